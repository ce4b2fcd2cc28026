//! Every image that a crash could leave of an in-place store keeps the promises of its mode, also
//! when the crash comes in recovery, in a checkpoint, or after a change of mode.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use rand::seq::IteratorRandom;
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_sim::crash::{CrashImage, Policy, Shape as Survival};
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Class, Lba, Version, Write};
use thalweg_store::device::{Device, DeviceRef, Overlay, Purpose};
use thalweg_store::inplace::format::{COPIES, COPY, START};
use thalweg_store::inplace::{InPlace, InPlaceError, Mode, Options};
use thalweg_store::journal::JournalError;

use crate::support::{Shape, transaction};

#[derive(Clone, Copy)]
struct Plan {
    shape: Shape,
    writers: usize,
    steps: usize,
    points: usize,
    generations: usize,
    branches: usize,
    /// Maximum duration of a request.
    latency: Duration,
    /// Modes that the store changes among while it runs.
    modes: &'static [Mode],
}

impl Plan {
    fn new(mode: &'static Mode, seed: u64) -> Plan {
        // With slow requests blocks change again while under writeback; where blocks never expire,
        // writers wait only for room in the journal, or for room in memory.
        let is_slow = seed % 4 > 1;
        let mut shape = Shape::varied(*mode, seed);
        if is_slow {
            shape.options.expire = Duration::from_secs(60);
            if !seed.is_multiple_of(2) {
                shape.options.cache = 10 << 20;
            }
        }
        Plan {
            shape,
            writers: 3,
            steps: 30,
            points: 24,
            generations: 2,
            branches: 2,
            latency: Duration::from_micros(if is_slow { 20_000 } else { 400 }),
            modes: std::slice::from_ref(mode),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    images: u64,
    replayed: u64,
    torn: u64,
    crashed_recoveries: u64,
    rebuilt: u64,
    checkpointed: u64,
    direct: u64,
    released: u64,
}

/// History of the writers, and the versions that were acknowledged.
struct Session {
    store: Arc<InPlace>,
    recorder: Recorder,
    applied: Arc<Mutex<BTreeMap<u64, Vec<Write>>>>,
    shape: Shape,
    now: tokio::sync::Mutex<Vec<Option<Bytes>>>,
}

impl Session {
    async fn work(self: Arc<Session>, env: Env, mut rng: Rng, steps: usize, modes: &[Mode]) {
        for _ in 0..steps {
            match rng.random_range(0..10) {
                0..7 => {
                    let mut now = self.now.lock().await;
                    let writes = transaction(&mut rng, &self.shape, &mut now);
                    // Noted before it is visible.
                    let next = self.store.now().next();
                    self.applied.lock().insert(next.0, writes.clone());
                    assert_eq!(self.store.apply(writes).await.unwrap(), next);
                }
                7..9 => {
                    let version = self.store.now();
                    self.store.sync(version).await.unwrap();
                    self.recorder.mark(version.0);
                }
                _ => {
                    let mode = modes.iter().choose(&mut rng).unwrap();
                    let options = self.store.options();
                    self.store.set_options(Options { mode: *mode, ..options });
                }
            }
            env.sleep(Duration::from_micros(rng.random_range(0..9000))).await;
        }
    }
}

/// Checks that each sector of `found` is that of one of `contents`.
fn is_made_of(found: &Option<Bytes>, contents: &[Option<Bytes>], sector: usize) -> bool {
    let zeros = vec![0; BLOCK_SIZE];
    let bytes = |content: &Option<Bytes>| content.as_ref().map_or(zeros.clone(), |c| c.to_vec());
    let (found, contents) = (bytes(found), contents.iter().map(bytes).collect::<Vec<_>>());
    (0..BLOCK_SIZE).step_by(sector).all(|at| {
        let range = at..at + sector;
        contents.iter().any(|content| content[range.clone()] == found[range.clone()])
    })
}

/// Checks the content of a recovered store; returns its version.
fn check(
    plan: &Plan,
    model: &BlockModel,
    acknowledged: Version,
    recovered: Version,
    blocks: &[Option<Bytes>],
    image: &CrashImage,
) -> Version {
    let is_strict = plan.modes.iter().all(|mode| mode.journals_all_data());
    let read = |lba: Lba| match plan.shape.class(lba.0) {
        Class::Data if !is_strict => model.read(lba, recovered),
        _ => blocks[lba.0 as usize].clone(),
    };
    let allowed = model
        .check(acknowledged, model.now(), read)
        .unwrap_or_else(|error| panic!("{error}\n{}", image.describe()));
    // A version that changed nothing is not in the journal.
    let state = recovered.max(acknowledged);
    assert!(allowed.contains(state), "{recovered} is not in {allowed}: {}", image.describe());
    let is_writeback = plan.modes.contains(&Mode::Writeback);
    let since = if is_writeback { acknowledged } else { state };
    for lba in (plan.shape.metadata..plan.shape.blocks).map(Lba) {
        let mut contents: Vec<Option<Bytes>> =
            (since.0..=model.now().0).map(|at| model.read(lba, Version(at))).collect();
        // As long as it is not durable that a block was emptied, nothing that it got later is there.
        let emptied = contents.windows(2).position(|it| it[0].is_some() && it[1].is_none());
        if let Some(last) = emptied.filter(|_| !is_writeback) {
            contents.truncate(last + 1);
        }
        // In writeback mode a new block may hold any content until it is synced.
        if is_writeback && contents[0].is_none() && contents.iter().any(Option::is_some) {
            continue;
        }
        let found = &blocks[lba.0 as usize];
        assert!(
            is_made_of(found, &contents, plan.shape.sector as usize),
            "block {} is made of nothing that it held from version {since} on ({recovered} is \
             recovered): {}",
            lba.0,
            image.describe()
        );
    }
    recovered
}

async fn read_all(store: &InPlace) -> Vec<Option<Bytes>> {
    let read = store.read(Lba(0), store.blocks(), store.now()).await.unwrap();
    read.into_iter().map(|b| b.filter(|b| b.iter().any(|byte| *byte != 0))).collect()
}

fn fork(image: &CrashImage) -> Vec<DeviceRef> {
    let fork = |disk: &Arc<RamDisk>| {
        let fork = RamDisk::with_content(&disk.name(), disk.geometry(), disk.content());
        Arc::new(fork) as DeviceRef
    };
    image.disks().iter().map(fork).collect()
}

/// Opens an image read-only: it must show the same content as recovery, and leave the image
/// unchanged.
async fn look(
    env: &Env,
    plan: &Plan,
    image: &CrashImage,
    (blocks, version): (&[Option<Bytes>], Version),
) {
    let devices = fork(image);
    let over = |device: &DeviceRef| Arc::new(Overlay::new(device.clone())) as DeviceRef;
    let overlays: Vec<DeviceRef> = devices.iter().map(over).collect();
    let (store, found) = plan.shape.open(env, &overlays).await;
    assert_eq!(Version(found.version), version, "{}", image.describe());
    assert!(read_all(&store).await == blocks, "{}", image.describe());
    store.close().await.unwrap();
    for device in devices {
        assert_eq!(device.tallies().total().write_bytes, 0, "{}", image.describe());
    }
}

/// Crashes in the middle of the recovery of an image, and recovers again.
async fn crash_recovery(
    env: &Env,
    plan: &Plan,
    image: &CrashImage,
    expected: (&[Option<Bytes>], Version),
    rng: &mut Rng,
    tally: &mut Tally,
) {
    let (recorder, devices) = Recorder::from_image(env, Duration::from_micros(100), image);
    let (store, _) = plan.shape.open(env, &devices).await;
    drop(store);
    let policy = Policy { points: thalweg_sim::crash::Points::Sampled(4), ..Policy::sampled(4) };
    for again in recorder.images(rng, &policy) {
        let (store, found) = plan.shape.open(env, &again.devices).await;
        tally.crashed_recoveries += 1;
        assert_eq!(found.version, expected.1.0, "{}\nthen {}", image.describe(), again.describe());
        assert!(
            read_all(&store).await == expected.0,
            "recovery came to something else: {}\nthen {}",
            image.describe(),
            again.describe()
        );
    }
}

/// Recovers an image whose journal lost both superblocks: acknowledged versions must survive, and
/// old content must not come back.
async fn lose_superblocks(
    env: &Env,
    plan: &Plan,
    model: &BlockModel,
    image: &CrashImage,
    acknowledged: Version,
    expected: (&[Option<Bytes>], Version),
    tally: &mut Tally,
) {
    let devices = fork(image);
    let (journal, at) = match plan.shape.external {
        true => (&devices[1], 0),
        false => (&devices[0], START),
    };
    let zeros = Bytes::from(vec![0; (COPIES * COPY) as usize]);
    journal.write(at, vec![zeros], Purpose::Journal).await.unwrap();
    let (parts, options) = (plan.shape.parts(&devices), plan.shape.options);
    let refused = InPlace::open(env, parts.clone(), options).await.map(drop).unwrap_err();
    assert!(matches!(&refused, InPlaceError::Journal(error) if error.is_lost()), "{refused}");
    let (store, found) = match InPlace::open_damaged(env, parts, options).await {
        // A separate journal device without a single transaction cannot be told from any other
        // device.
        Err(InPlaceError::Journal(JournalError::NoJournal { .. })) if plan.shape.external => return,
        opened => opened.unwrap(),
    };
    assert!(found.journal_rebuilt);
    tally.rebuilt += u64::from(found.blocks > 0);
    let blocks = read_all(&store).await;
    assert_eq!(found.version, expected.1.0, "{found:?}: {}", image.describe());
    if plan.modes.iter().all(|mode| mode.journals_all_data()) {
        assert!(blocks == expected.0, "{found:?}: {}", image.describe());
    }
    let metadata = plan.shape.metadata as usize;
    assert!(blocks[..metadata] == expected.0[..metadata], "{found:?}: {}", image.describe());
    // Bytes of released transactions may overwrite data that was not acknowledged, but nothing
    // else.
    for lba in (plan.shape.metadata..plan.shape.blocks).map(Lba) {
        let mut contents = (acknowledged.0..=model.now().0).map(|at| model.read(lba, Version(at)));
        let synced = contents.next().flatten();
        if contents.all(|content| content == synced) {
            assert!(blocks[lba.0 as usize] == synced, "block {}: {}", lba.0, image.describe());
        }
    }
}

async fn explore(
    env: &Env,
    plan: &Plan,
    start: Option<(&CrashImage, BlockModel, Vec<Option<Bytes>>)>,
    depth: usize,
    tally: &mut Tally,
) {
    let (recorder, devices, mut model, now) = match start {
        Some((image, model, now)) => {
            let (recorder, devices) = Recorder::from_image(env, plan.latency, image);
            (recorder, devices, model, now)
        }
        None => {
            let recorder = Recorder::with_latency(env, plan.latency);
            let devices = plan.shape.devices(|name, geometry| recorder.device(name, geometry));
            plan.shape.create(env, &devices).await;
            (
                recorder,
                devices,
                BlockModel::new(plan.shape.blocks),
                vec![None; plan.shape.blocks as usize],
            )
        }
    };
    let (store, _) = plan.shape.open(env, &devices).await;
    let opened = recorder.position();
    let (first, epoch) = (store.now(), store.epoch());
    assert_eq!(first, model.now());
    recorder.mark(first.0);
    let session = Arc::new(Session {
        store: Arc::new(store),
        recorder: recorder.clone(),
        applied: Arc::default(),
        shape: plan.shape,
        now: tokio::sync::Mutex::new(now),
    });
    let writers = (0..plan.writers)
        .map(|_| session.clone().work(env.clone(), env.rng(), plan.steps, plan.modes));
    futures::future::join_all(writers).await;
    if depth == 0 {
        session.store.close().await.unwrap();
    }
    let status = session.store.status();
    tally.checkpointed += status.counts.checkpointed;
    tally.direct += status.counts.direct;
    tally.released += status.counts.releases;
    for (version, writes) in session.applied.lock().iter() {
        assert_eq!(model.apply(writes).0, *version);
    }
    drop(session);
    let mut rng = env.rng();
    let images = recorder.images(&mut rng, &Policy::sampled(plan.points));
    let mut branches = Vec::new();
    for (nth, image) in images.filter(|image| image.point() > opened).enumerate() {
        let acknowledged = Version(image.acknowledged().next().unwrap_or(first.0));
        let (store, found) = plan.shape.open(env, &fork(&image)).await;
        tally.images += 1;
        assert!(store.epoch() > epoch, "{}", image.describe());
        tally.replayed += u64::from(found.blocks > 0);
        tally.torn += u64::from(found.torn);
        let blocks = read_all(&store).await;
        let version = check(plan, &model, acknowledged, Version(found.version), &blocks, &image);
        drop(store);
        let expected = (&blocks[..], version);
        lose_superblocks(env, plan, &model, &image, acknowledged, expected, tally).await;
        if nth % 3 == 0 {
            look(env, plan, &image, (&blocks, version)).await;
        }
        if nth % 7 == 0 {
            crash_recovery(env, plan, &image, (&blocks, version), &mut rng, tally).await;
        }
        if depth + 1 < plan.generations && branches.len() < plan.branches && rng.random_bool(0.05) {
            // Later content is compared with what was found: data may be of no version.
            let mut model = model.clone();
            model.rewind(version);
            let found: Vec<Write> = (0..)
                .zip(&blocks)
                .filter(|(lba, block)| model.read(Lba(*lba), version) != **block)
                .map(|(lba, block)| Write {
                    content: block.clone(),
                    ..Write::block(Lba(lba), Bytes::new())
                })
                .collect();
            if found.is_empty() {
                branches.push((image, model, blocks));
            }
        }
    }
    for (image, model, now) in branches {
        Box::pin(explore(env, plan, Some((&image, model, now)), depth + 1, tally)).await;
    }
}

fn crash(seed: u64, plan: Plan) -> Tally {
    run(seed, |env| async move {
        let mut tally = Tally::default();
        explore(&env, &plan, None, 0, &mut tally).await;
        tally
    })
}

/// Runs a mode on several shapes; more of them with `THALWEG_LONG`.
fn crash_mode(mode: &'static Mode) {
    let (mut images, mut recoveries, mut checkpointed, mut direct) = (0, 0, 0, 0);
    for seed in campaign::seeds(4) {
        let tally = crash(seed, Plan::new(mode, seed));
        images += tally.images;
        recoveries += tally.crashed_recoveries;
        checkpointed += tally.checkpointed;
        direct += tally.direct;
        assert!(tally.replayed > tally.images / 4, "{tally:?}");
        assert!(tally.rebuilt > tally.images / 4, "{tally:?}");
    }
    assert!(images > 1000 && recoveries > 200 && checkpointed > 100);
    assert_eq!(direct > 100, !mode.journals_all_data(), "{direct}");
}

#[test]
fn a_crash_in_writeback_mode() {
    crash_mode(&Mode::Writeback);
}

#[test]
fn a_crash_in_ordered_mode() {
    crash_mode(&Mode::Ordered);
}

#[test]
fn a_crash_in_data_mode() {
    crash_mode(&Mode::Data);
}

#[test]
fn a_crash_in_wasteless_mode() {
    crash_mode(&Mode::Wasteless);
}

#[test]
fn a_crash_in_selective_mode() {
    crash_mode(&Mode::Selective);
}

#[test]
fn a_crash_while_modes_change() {
    for seed in campaign::seeds(3).map(|seed| 100 + seed) {
        let modes: &'static [Mode] = match seed % 3 {
            0 => &[Mode::Data, Mode::Wasteless],
            1 => &[Mode::Ordered, Mode::Wasteless, Mode::Selective],
            _ => &Mode::ALL,
        };
        let plan = Plan { modes, ..Plan::new(&Mode::Wasteless, seed) };
        crash(seed, plan);
    }
}

/// A block, and the block of metadata that says which of the file's owners has it.
const BLOCK: Lba = Lba(100);
const OWNER: Lba = Lba(3);

/// Gives a block to another owner before it is durable that it was changed and emptied; `class`: what it holds then.
/// No crash leaves the former owner with what the later one wrote.
fn reuse(mode: Mode, class: Class) {
    run(1, |env| async move {
        let never = Duration::from_secs(100_000);
        let shape = Shape::new(mode);
        let options = Options { commit: never, writeback: never, expire: never, ..shape.options };
        let shape = Shape { options, ..shape };
        let recorder = Recorder::with_latency(&env, Duration::from_micros(100));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        let write = |lba, byte, class| Write {
            class,
            ..Write::block(lba, Bytes::from(vec![byte; BLOCK_SIZE]))
        };
        let owner = |number| write(OWNER, number, Class::Metadata);
        store.apply(vec![owner(1), write(BLOCK, 1, Class::Data)]).await.unwrap();
        store.sync(store.now()).await.unwrap();
        store.checkpoint().await.unwrap();
        store.apply(vec![write(BLOCK, 1, Class::Data)]).await.unwrap();
        store.apply(vec![write(BLOCK, 2, Class::Data)]).await.unwrap();
        let empty = Write { content: None, changed: ByteRanges::whole(), ..owner(0) };
        store.apply(vec![Write { lba: BLOCK, ..empty }]).await.unwrap();
        store.apply(vec![owner(2), write(BLOCK, 3, class)]).await.unwrap();
        let begun = recorder.position();
        store.sync(store.now()).await.unwrap();
        let mut owners = [0, 0];
        for point in begun..=recorder.position() {
            let image = recorder.image(point, Survival::Everything);
            let (store, _) = shape.open(&env, &image.devices).await;
            let found = read_all(&store).await;
            let byte = |lba: Lba| found[lba.0 as usize].as_ref().map_or(0, |block| block[0]);
            let (owner, holds) = (byte(OWNER), byte(BLOCK));
            assert!(owner == 2 || holds < 3, "{mode} {class:?}: {}", image.describe());
            assert!(owner == 1 || holds == 3, "{mode} {class:?}: {}", image.describe());
            owners[usize::from(owner) - 1] += 1;
        }
        assert!(owners[0] > 0 && owners[1] > 0, "{owners:?}");
    });
}

#[test]
fn a_block_keeps_what_its_owner_had_until_it_is_free() {
    for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Writeback) {
        [Class::Data, Class::Metadata].into_iter().for_each(|class| reuse(mode, class));
    }
}
