//! Power cuts: after each the check finds no damage, and the filesystem is in a state that its volume
//! promises: that after some call, no older than the last durable one.

mod batches;
mod placing;
mod repair;
mod reuse;
mod rig;
mod salvage;
mod state;
mod user;

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::seq::IndexedRandom;
use rig::{Promise, Rig, SIZES, Volume};
use state::State;
use thalweg_env::{Env, Rng};
use thalweg_fs::check::{Damage, How, Report};
use thalweg_fs::{AttributeChange, Filesystem};
use thalweg_sim::contents::SimContents;
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::{campaign, run};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::Mode;
use user::User;

use crate::support::*;

const STEPS: usize = 60;
/// Steps after which the filesystem becomes larger.
const GROWS: usize = STEPS / SIZES.len();
const POINTS: usize = 12;
const LATENCY: Duration = Duration::from_micros(200);

/// Counts of the images checked.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    images: u64,
    /// Images that are older than the last state.
    behind: u64,
    /// Images whose data and metadata are of different states.
    mixed: u64,
    /// Pending work that crashes left.
    unfinished: u64,
    /// Crashes in recovery.
    recoveries: u64,
    /// Contents that crashes left without a file.
    leftovers: u64,
    /// Images by how often the filesystem had become larger.
    growths: [u64; SIZES.len()],
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.images += other.images;
        self.behind += other.behind;
        self.mixed += other.mixed;
        self.unfinished += other.unfinished;
        self.recoveries += other.recoveries;
        self.leftovers += other.leftovers;
        self.growths.iter_mut().zip(other.growths).for_each(|(all, some)| *all += some);
    }
}

/// A history and where to crash in it.
struct History {
    /// The contents of files, if they are kept elsewhere.
    contents: Option<Arc<SimContents>>,
    recorder: Recorder,
    states: Vec<State>,
    points: Vec<usize>,
    rng: Rng,
}

impl History {
    async fn new(env: &Env, rig: Rig, is_external: bool) -> History {
        let recorder = Recorder::with_latency(env, LATENCY);
        let devices = rig.devices(|name, geometry| recorder.device(name, geometry));
        let contents = is_external.then(|| SimContents::recorded(env, &recorder, LATENCY));
        let volume = match contents.clone() {
            Some(contents) => rig.make_external(env, &devices, contents).await,
            None => rig.make(env, &devices).await,
        };
        let mut user = User::new(env, volume).await;
        let begun = recorder.position();
        let mut states = vec![user.see().await];
        recorder.mark(0);
        let (mut rng, mut points) = (env.rng(), Vec::new());
        for number in 1..=STEPS {
            let mut durable = user.step().await;
            if number % GROWS == 0 && number < STEPS {
                let size = Some(SIZES[number / GROWS]);
                assert_eq!(Some(user.fs.grow(size).await.unwrap().size), size);
                durable = true;
            }
            states.push(user.see().await);
            if durable {
                recorder.mark(states.len() as u64 - 1);
            }
            if number == STEPS / 3 {
                user.fs.unlink(ROOT, b"open").await.ok();
                states.push(user.see().await);
            }
            if let [_, _, ..] = rig.modes()
                && rng.random_bool(0.2)
            {
                user.volume.set_mode(*rig.modes().choose(&mut rng).unwrap());
            }
            if is_external && rng.random_bool(0.15) {
                // Contents that are not needed go, and the crash comes while they do.
                env.sleep(Duration::from_micros(1)).await;
                let file = *user.files.choose(&mut rng).unwrap();
                let size = Some(rng.random_range(0..5000));
                let change = AttributeChange { size, ..AttributeChange::default() };
                user.fs.set_attributes(file, &change).await.ok();
                states.push(user.see().await);
                let before = recorder.position();
                user.fs.close().await.unwrap();
                let during = before..=recorder.position();
                recorder.mark(states.len() as u64 - 1);
                points.extend((0..2).map(|_| rng.random_range(during.clone())));
            }
            if number % 5 == 0 {
                user.volume.idle(env).await;
            }
        }
        drop(user);
        let mut point = || rng.random_range(begun..=recorder.position());
        points.extend((0..POINTS).map(|_| point()));
        History { contents, recorder, states, points, rng }
    }

    fn images(&mut self) -> impl Iterator<Item = CrashImage> + use<> {
        let policy = Policy { prefixes: 1, missing: 1, torn: 1, ..Policy::sampled(1) };
        let policy = policy.at(Points::At(self.points.clone()));
        self.recorder.images(&mut self.rng, &policy)
    }
}

fn crashes(seed: u64, rig: Rig) -> Tally {
    crashes_of(seed, rig, false)
}

fn crashes_of(seed: u64, rig: Rig, is_external: bool) -> Tally {
    run(seed, |env| async move {
        let mut history = History::new(&env, rig, is_external).await;
        let mut tally = Tally::default();
        for (nth, image) in history.images().enumerate() {
            // Before the image is written.
            let (recorder, devices) = Recorder::from_image(&env, LATENCY, &image);
            let left =
                history.contents.as_ref().map(|it| it.after_crash(image.point(), &mut history.rng));
            let again = left.as_ref().map(|it| it.recorded_copy(&recorder, LATENCY));
            let found = check_image(&env, rig, &image, left, &history.states, &mut tally).await;
            if nth % 8 == 0 {
                recover(&env, rig, &devices, again.clone()).await;
                let of = (&recorder, again.as_ref());
                tally.recoveries += crash_recovery(&env, rig, of, &found, &mut history.rng).await;
            }
        }
        tally
    })
}

/// Checks a filesystem that was repaired: nothing is wrong, but files may have lost some bytes.
async fn check_sound(env: &Env, volume: &Volume, when: &str) -> Report {
    let mut report = volume.check(env, How { data: true, ..How::default() }).await;
    if volume.contents.is_some() {
        // Contents are durable before the change that they belong to.
        report.findings.retain(|finding| {
            let damage = &finding.damage;
            !matches!(damage, Damage::OrphanedContents { .. } | Damage::ContentsBehind { .. })
        });
    }
    assert!(report.findings.is_empty(), "{when}: {:#?}", report.findings);
    report
}

async fn check_clean(env: &Env, volume: &Volume, when: &str) -> Report {
    let report = check_sound(env, volume, when).await;
    assert!(report.is_clean(), "{when}: {:#?}", report.lost);
    report
}

/// Opens an image, which must hold a state that its volume promises.
async fn check_image(
    env: &Env,
    rig: Rig,
    image: &CrashImage,
    contents: Option<Arc<SimContents>>,
    states: &[State],
    tally: &mut Tally,
) -> State {
    let volume = rig.open(env, &image.devices).await.with(contents);
    let report = check_clean(env, &volume, &image.describe()).await;
    let fs = volume.files(env).await;
    let found = State::see(&fs, &[]).await;
    let least = image.acknowledged().max().unwrap_or(0) as usize;
    let promise = match volume.contents {
        Some(_) => Promise::Elsewhere,
        None => rig.promise(),
    };
    let number = state::find(states, least, &found, promise, rig.sector())
        .unwrap_or_else(|near| panic!("{}: no state from {least} on: {near:#?}", image.describe()));
    tally.images += 1;
    tally.behind += u64::from(number + 1 < states.len());
    tally.mixed += u64::from(states[number].files != found.files);
    tally.unfinished += report.unfinished;
    tally.growths[volume.growths().await] += 1;
    fs.close().await.unwrap();
    create(&fs, ROOT, "and goes on").await;
    // A growth that was cut short does not stand in the way of another.
    fs.grow(None).await.unwrap();
    assert_eq!(volume.growths().await + 1, SIZES.len(), "{}", image.describe());
    fs.close().await.unwrap();
    let after = check_clean(env, &volume, &image.describe()).await;
    assert_eq!(after.unfinished, 0, "{}", image.describe());
    if volume.contents.is_some() {
        tally.leftovers += volume.check(env, How::default()).await.findings.len() as u64;
        volume.check(env, How { repair: true, ..How::default() }).await;
        let report = volume.check(env, How::default()).await;
        assert!(report.is_clean(), "{}: {:#?}", image.describe(), report.findings);
    }
    found
}

/// Finishes the pending work after a crash.
async fn recover(env: &Env, rig: Rig, devices: &[DeviceRef], contents: Option<Arc<SimContents>>) {
    let volume = rig.open(env, devices).await.with(contents);
    volume.files(env).await.close().await.unwrap();
}

/// Crashes in the middle of a recovery that was recorded: the next one comes to the same.
async fn crash_recovery(
    env: &Env,
    rig: Rig,
    (recorder, contents): (&Recorder, Option<&Arc<SimContents>>),
    expected: &State,
    rng: &mut Rng,
) -> u64 {
    let mut crashed = 0;
    let policy = Policy { points: Points::Sampled(3), ..Policy::sampled(3) };
    for again in recorder.images(rng, &policy) {
        let contents = contents.map(|it| it.after_crash(again.point(), &mut env.rng()));
        let volume = rig.open(env, &again.devices).await.with(contents);
        check_clean(env, &volume, &again.describe()).await;
        let found = State::see(&volume.files(env).await, &[]).await;
        assert!(found == *expected, "recovery came to something else: {}", again.describe());
        crashed += 1;
    }
    crashed
}

#[test]
fn a_crash_leaves_a_prefix_of_what_was_done() {
    let mut tally = Tally::default();
    for seed in campaign::seeds(4) {
        tally.add(crashes(seed, Rig::chain(seed)));
    }
    println!("{tally:?}");
    assert!(tally.images > 150 && tally.behind > 80 && tally.unfinished > 20, "{tally:?}");
    assert!(tally.recoveries > 50, "{tally:?}");
    assert!(tally.growths.iter().all(|images| *images > 10), "{tally:?}");
}

#[test]
fn a_crash_with_contents_elsewhere() {
    let mut tally = Tally::default();
    for seed in campaign::seeds(8) {
        let rig = match seed % 2 {
            0 => Rig::chain(seed / 2),
            _ => Rig::in_place(&[Mode::Ordered], seed / 2),
        };
        tally.add(crashes_of(seed, rig, true));
    }
    println!("{tally:?}");
    assert!(tally.images > 300 && tally.behind > 160 && tally.unfinished > 40, "{tally:?}");
    assert!(tally.recoveries > 100 && tally.leftovers > 20 && tally.mixed > 20, "{tally:?}");
}

/// Crashes on several shapes of an in-place store, the journal inside and outside.
fn crash_in_place(modes: &'static [Mode]) -> Tally {
    let mut tally = Tally::default();
    let strict = modes.iter().all(|mode| mode.journals_all_data());
    // Where modes alternate, few crashes fall into one that promises less.
    let enough = campaign::seeds(4).end;
    for seed in campaign::seeds(16) {
        if seed >= enough && (strict || tally.mixed > 0) {
            break;
        }
        tally.add(crashes(seed, Rig::in_place(modes, seed)));
    }
    println!("{modes:?}: {tally:?}");
    // A mode that promises less also mixes states.
    assert_eq!(tally.mixed > 0, !strict, "{tally:?}");
    assert!(tally.images > 120 && tally.behind > 60 && tally.recoveries > 50, "{tally:?}");
    assert!(tally.growths.iter().all(|images| *images > 10), "{tally:?}");
    tally
}

#[test]
fn a_crash_in_writeback_mode() {
    crash_in_place(&[Mode::Writeback]);
}

#[test]
fn a_crash_in_ordered_mode() {
    crash_in_place(&[Mode::Ordered]);
}

#[test]
fn a_crash_in_data_mode() {
    crash_in_place(&[Mode::Data]);
}

#[test]
fn a_crash_in_wasteless_mode() {
    crash_in_place(&[Mode::Wasteless]);
}

#[test]
fn a_crash_in_selective_mode() {
    crash_in_place(&[Mode::Selective]);
}

#[test]
fn a_crash_while_modes_change() {
    crash_in_place(&[Mode::Data, Mode::Wasteless]);
    crash_in_place(&[Mode::Ordered, Mode::Wasteless, Mode::Selective, Mode::Data]);
    crash_in_place(&Mode::ALL);
}
