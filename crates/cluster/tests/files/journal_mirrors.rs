//! A journal on two devices: power cuts with either of them behind, a device that is lost at any time, one that comes back, and one that takes its place.

use std::time::Duration;

use rand::RngExt;
use thalweg_cluster::client::{Client, journal};
use thalweg_env::{Env, Rng};
use thalweg_fs::Filesystem;
use thalweg_sim::crash::Shape;
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_store::device::{Access, DeviceRef, Geometry, SideState};
use thalweg_store::pool::{DevicePair, NamedSide, PairError};

use crate::journal::{Journaled, SIZE, begin};
use crate::journal_crashes::{self, Tally, bystander, check, found, left, live_all};
use crate::scene::*;

/// Bytes of each device: the label takes the first MiB.
const DEVICE: Geometry = Geometry { size: SIZE + (1 << 20), sector: 512 };
/// The devices that a life may use: the first two, and those that take their places.
const DEVICES: usize = 8;

/// A machine with a client whose journal is on two devices.
struct Mirrored {
    machine: Journaled,
    recorder: Recorder,
    devices: Vec<DeviceRef>,
    faults: Vec<Faults>,
    /// Which of them are named.
    named: [usize; 2],
    unused: usize,
    pair: Option<DevicePair>,
}

fn faulty(env: &Env, devices: Vec<DeviceRef>) -> (Vec<DeviceRef>, Vec<Faults>) {
    let wrapped = devices.into_iter().map(|device| {
        let (device, faults) = Faulty::wrap(env, device);
        (device as DeviceRef, faults)
    });
    wrapped.unzip()
}

impl Mirrored {
    async fn new(scene: &Scene, name: &str) -> Mirrored {
        let env = &scene.env;
        let recorder = Recorder::with_latency(env, Duration::from_micros(100));
        let devices = (0..DEVICES).map(|number| recorder.device(&format!("j{number}"), DEVICE));
        let (devices, faults) = faulty(env, devices.collect());
        let pair = DevicePair::create(env, [devices[0].clone(), devices[1].clone()]).await.unwrap();
        journal::create(env, &pair.device()).await.unwrap();
        let machine = Journaled::new(scene, name).await.with_device(pair.device());
        let (named, unused) = ([0, 1], 2);
        Mirrored { machine, recorder, devices, faults, named, unused, pair: Some(pair) }
    }

    fn present(&self) -> [NamedSide; 2] {
        self.named.map(|number| NamedSide::Present(self.devices[number].clone()))
    }

    /// One of the named devices alone.
    fn alone(&self, side: usize) -> [NamedSide; 2] {
        let mut named = self.present();
        named[1 - side] = NamedSide::Missing("the other one".to_owned());
        named
    }

    async fn open(&mut self, named: [NamedSide; 2]) -> Result<(), PairError> {
        let env = self.machine.process.env().clone();
        let pair = DevicePair::open(&env, named, Access::Exclusive).await?;
        let filling = pair.clone();
        env.spawn(async move { filling.fill().await }).detach();
        self.pair = Some(pair);
        Ok(())
    }

    async fn mount(mut self, scene: &Scene, lazy: bool) -> (Mirrored, Client) {
        let device = self.pair.as_ref().unwrap().device();
        self.machine = self.machine.with_device(device);
        let client = self.machine.mount(scene, lazy).await.unwrap();
        (self, client)
    }

    /// The power fails; of each device some of what was not durable is left.
    fn crash(&mut self, env: &Env, left: Shape) {
        self.machine.process.kill();
        self.machine.host().power_off();
        let image = self.recorder.image(self.recorder.position(), left);
        let (recorder, devices) = Recorder::from_image(env, Default::default(), &image);
        let (devices, faults) = faulty(env, devices);
        (self.recorder, self.devices, self.faults, self.pair) = (recorder, devices, faults, None);
        self.machine.process = env.node();
        self.machine.host().power_on();
    }

    fn states(&self) -> [SideState; 2] {
        let sides = self.pair.as_ref().unwrap().sides();
        [sides[0].state, sides[1].state]
    }

    /// Another, empty device takes the place of one.
    fn replace(&mut self, side: usize) {
        self.named[side] = self.unused;
        self.unused += 1;
    }
}

/// What happened to the devices.
#[derive(Debug, Default)]
struct Losses {
    lost: u64,
    came_back: u64,
    replaced: u64,
    given_up: u64,
    unfilled: u64,
}

/// How the devices are found after a crash: the one that was left behind comes back, or is gone, or another one is in its place.
async fn open_again(
    mirrored: &mut Mirrored,
    rng: &mut Rng,
    losses: &mut Losses,
    was: [SideState; 2],
) {
    let current = was.map(|state| state == SideState::InSync);
    if current == [true, true] {
        // One may be lost while the machine is off: the other one is refused until that is said.
        if rng.random_bool(0.25) && mirrored.unused < DEVICES {
            let side = rng.random_range(0..2);
            let refused = mirrored.open(mirrored.alone(side)).await;
            assert!(matches!(refused, Err(PairError::Undecided { .. })));
            let mut named = mirrored.alone(side);
            named[1 - side] = NamedSide::Lost;
            mirrored.open(named).await.unwrap();
            mirrored.pair = None;
            mirrored.replace(1 - side);
            losses.given_up += 1;
        }
        return mirrored.open(mirrored.present()).await.unwrap();
    }
    let side = usize::from(current[1]);
    match rng.random_range(0..3) {
        0 => {
            mirrored.open(mirrored.alone(side)).await.unwrap();
        }
        1 if mirrored.unused < DEVICES => {
            mirrored.replace(1 - side);
            losses.replaced += 1;
            mirrored.open(mirrored.present()).await.unwrap();
        }
        _ => {
            // Left behind, it is not used alone, whatever is left of the notice on it.
            let refused = mirrored.open(mirrored.alone(1 - side)).await;
            let is_refused = matches!(
                refused,
                Err(PairError::Undecided { .. }
                    | PairError::LeftBehind { .. }
                    | PairError::NoPair { .. })
            );
            assert!(is_refused);
            losses.came_back += 1;
            mirrored.open(mirrored.present()).await.unwrap();
        }
    }
}

fn live(seed: u64, rounds: usize) -> (Tally, Losses) {
    run(seed, move |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (mut rng, mut tally, mut losses) = (env.rng(), Tally::default(), Losses::default());
        let (visitor, top) = bystander(&scene).await;
        let other = visitor.client.clone();
        let mut mirrored = Mirrored::new(&scene, "a").await;
        for round in 0..rounds {
            let (there, client) = mirrored.mount(&scene, rng.random_bool(0.6)).await;
            mirrored = there;
            let name = format!("d{round}");
            let mut program = journal_crashes::begin(&mirrored.machine, &client, &name).await;
            let history = program.history.clone();
            let working = mirrored.machine.process.env().spawn(async move {
                loop {
                    program.step().await;
                }
            });
            let mut has_lost = false;
            for _ in 0..rng.random_range(1..4) {
                env.sleep(Duration::from_millis(rng.random_range(50..2000))).await;
                // A device dies in the midst of its requests.
                let is_whole = mirrored.states() == [SideState::InSync; 2];
                if is_whole && !has_lost && rng.random_bool(0.5) {
                    has_lost = true;
                    let lost = mirrored.named[rng.random_range(0..2_usize)];
                    mirrored.faults[lost].die_after(rng.random_range(0..40));
                    losses.lost += 1;
                }
                if rng.random_bool(0.3) {
                    scene.crash(left(&mut rng)).await;
                    tally.server_crashes += 1;
                }
            }
            assert!(client.pending().journal.is_some(), "one device is enough");
            tally.unsent += client.status().unsent;
            let was = mirrored.states();
            losses.unfilled +=
                was.iter().filter(|it| matches!(it, SideState::Rebuilding { .. })).count() as u64;
            mirrored.crash(&env, left(&mut rng));
            drop((working, client));
            tally.client_crashes += 1;
            open_again(&mut mirrored, &mut rng, &mut losses, was).await;
            let (there, recovered) = mirrored.mount(&scene, true).await;
            mirrored = there;
            let seen = other.find(top, name.as_bytes()).await.unwrap().ino;
            other.reference(seen);
            let now = found(&other, seen).await;
            recovered.close().await;
            let what = format!("seed {seed}, round {round}");
            check((&what, false), &history.lock(), &now, &mut tally);
            // The next mount has two devices again.
            mirrored.crash(&env, Shape::Everything);
            mirrored.open(mirrored.present()).await.unwrap();
        }
        (tally, losses)
    })
}

#[test]
fn what_was_synced_survives_the_loss_of_either_device_and_then_of_the_machine() {
    let losses = std::cell::RefCell::new(Losses::default());
    let all = live_all(30, |seed| {
        let (tally, of_this) = live(seed, 4);
        let mut sum = losses.borrow_mut();
        sum.lost += of_this.lost;
        sum.came_back += of_this.came_back;
        sum.replaced += of_this.replaced;
        sum.given_up += of_this.given_up;
        sum.unfilled += of_this.unfilled;
        tally
    });
    let losses = losses.into_inner();
    println!("{losses:?}");
    assert!(all.syncs > 100 && all.client_crashes > 100 && all.unsent > 100);
    assert!(losses.lost > 40 && losses.came_back > 5 && losses.replaced > 5 && losses.given_up > 3);
}

#[test]
fn a_device_that_dies_is_told_and_the_mount_goes_on() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mirrored = Mirrored::new(&scene, "a").await;
        let mirror = mirrored.pair.clone();
        let options = thalweg_cluster::client::Options {
            journal: mirror.as_ref().map(DevicePair::device),
            mirror,
            ..mirrored.machine.options(true)
        };
        let connector = Box::new(mirrored.machine.host().connector(&scene.server, PORT));
        let client =
            Client::connect(mirrored.machine.process.env(), connector, options).await.unwrap();
        let directory = crate::full::alone(&client, "d").await;
        let file = make(&client, directory, "file", thalweg_fs::Node::File).await;
        client.reference(file);
        let sides = || client.pending().journal.unwrap().sides;
        assert!(sides().iter().all(|side| side.is_current) && sides().len() == 2);
        client.sync(file, false).await.unwrap();
        let sent = calls(&client);
        mirrored.faults[1].die_after(0);
        put(&client, file, "synced to one").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert_eq!(calls(&client), sent, "no message");
        let found: Vec<_> = sides().into_iter().map(|it| (it.is_current, it.state)).collect();
        assert_eq!(found, [(true, "in sync".to_owned()), (false, "failed".to_owned())]);
        // The second one fails as well: now the journal has failed.
        mirrored.faults[0].die_after(0);
        put(&client, file, "synced to the server").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert!(client.pending().journal_failed);
    });
}

#[test]
fn a_sync_is_one_flush_of_each_device() {
    run(2, |env| async move {
        let scene = Scene::durable(&env).await;
        let mirrored = Mirrored::new(&scene, "a").await;
        let flushes = |mirrored: &Mirrored| {
            [0, 1].map(|side| mirrored.devices[side].tallies().total().flushes)
        };
        let (client, file) = begin(&scene, &mirrored.machine, true).await;
        put(&client, file, "text").await.unwrap();
        client.sync(file, false).await.unwrap();
        let before = flushes(&mirrored);
        for _ in 0..20 {
            put(&client, file, "other").await.unwrap();
            client.sync(file, false).await.unwrap();
        }
        assert_eq!(flushes(&mirrored), before.map(|it| it + 20));
    });
}
