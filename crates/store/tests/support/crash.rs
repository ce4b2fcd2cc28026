//! Histories of several writers on recorded devices, and the check of every image that a crash
//! could leave of them: also of crashes during recovery, and of what is written after it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use rand::seq::IteratorRandom;
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, StoreError, Version, Write};
use thalweg_store::chain::{Chain, ChainError, Options, Rebuild, Recovered};
use thalweg_store::device::{Device, DeviceRef, Overlay};

use super::{Shape, Step, lose_checkpoints, options, random_step, read_all, some_parts};

mod tally;

pub use tally::Tally;

/// How a history is explored.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub shape: Shape,
    /// Steps of each writer in a generation.
    pub steps: usize,
    pub writers: usize,
    /// Crash points at which images are made of a generation.
    pub points: usize,
    /// Generations after the first: each begins with the recovery of some image of the one before.
    pub generations: usize,
    /// Images of each generation from which the next one begins.
    pub branches: usize,
    /// Rounds cover several segments: only the timer and checkpoints commit.
    pub lazy: bool,
    /// Checkpoints get lost, and the index is rebuilt from the map.
    pub rebuild: bool,
    /// The share of writes that change parts of their blocks.
    pub parts: f64,
}

impl Plan {
    fn options(&self) -> Options {
        let options = Options { max_deltas: 2, ..options() };
        match self.lazy {
            true => Options {
                commit_interval: Duration::from_millis(400),
                checkpoint_sectors: 50,
                ..options
            },
            false => options,
        }
    }

    async fn open(
        &self,
        env: &Env,
        devices: &[DeviceRef],
    ) -> Result<(Chain, Recovered), ChainError> {
        let opened = Chain::open(env, self.shape.parts(devices), self.options()).await;
        if !self.rebuild || !matches!(opened, Err(ChainError::Damaged(_))) {
            return opened;
        }
        let how = Rebuild::default();
        Chain::rebuild(env, self.shape.parts(devices), how, &|_, _| {}).await?;
        Chain::open(env, self.shape.parts(devices), self.options()).await
    }

    /// Opens an image for reading alone, which must leave it as it is; the version and all blocks.
    async fn open_read_only(&self, env: &Env, image: &CrashImage) -> (Version, Vec<Option<Bytes>>) {
        let over = |device: &DeviceRef| Arc::new(Overlay::new(device.clone())) as DeviceRef;
        let overlays: Vec<DeviceRef> = image.devices.iter().map(over).collect();
        let options = Options { read_only: true, ..self.options() };
        let opened = Chain::open(env, self.shape.parts(&overlays), options).await;
        let (chain, _) = opened.unwrap_or_else(|error| panic!("{}: {error}", image.describe()));
        let now = chain.now();
        let refused =
            chain.apply(vec![Write::block(Lba(0), Bytes::from(vec![0; BLOCK_SIZE]))]).await;
        assert!(matches!(refused, Err(StoreError::ReadOnly)), "{refused:?}");
        let blocks = read_all(&chain, now).await.unwrap();
        chain.close().await.unwrap();
        for device in &image.devices {
            assert_eq!(device.tallies().total().write_bytes, 0, "{}", image.describe());
        }
        (now, blocks)
    }
}

/// Explores the seeds from `first` on until `images` images were checked, times the campaign's length.
pub fn explore_seeds(first: u64, images: u64, plan: &Plan) -> Tally {
    let plan = *plan;
    let mut total = Tally::default();
    for seed in campaign::seeds_from(first) {
        let tally = run(seed, |env| async move { explore(&env, seed, &plan).await });
        total.add(&tally);
        if total.images >= images * campaign::length() {
            break;
        }
    }
    println!("{total:?}");
    total.assert_varied();
    if plan.parts > 0.0 {
        total.assert_parts(images);
    }
    total
}

/// One image of so many is opened for reading alone too.
const LOOKED: u64 = 12;

/// What made a version.
#[derive(Clone, Debug)]
enum Made {
    Apply(Vec<Write>),
    Discard(Lba, u64),
}

/// What several writers did, in the order of versions.
#[derive(Default)]
struct History {
    applied: BTreeMap<u64, Made>,
    /// A discard of nothing stored returns the version of another change.
    discarded: Vec<(u64, Lba, u64)>,
}

impl History {
    fn into_model(mut self, mut model: BlockModel) -> BlockModel {
        for (version, lba, count) in self.discarded {
            if version > model.now().0 {
                self.applied.entry(version).or_insert(Made::Discard(lba, count));
            }
        }
        for (version, made) in self.applied {
            let now = match made {
                Made::Apply(writes) => model.apply(&writes),
                Made::Discard(lba, count) => model.discard(lba, count),
            };
            assert_eq!(now, Version(version), "versions are contiguous");
        }
        model
    }
}

/// One generation of writers on an open chain, recorded.
struct Session {
    chain: Arc<Chain>,
    recorder: Recorder,
    history: Arc<Mutex<History>>,
    shape: Shape,
    /// What each block holds. Changes of parts of blocks start from it.
    now: tokio::sync::Mutex<Vec<Option<Bytes>>>,
    parts: f64,
}

impl Session {
    async fn write(&self, writer: usize, stamp: u64, rng: &mut Rng, burst: bool) {
        let step = match random_step(rng, self.shape.blocks) {
            // Long runs without a sync make rounds that cover several segments.
            Step::Sync | Step::Checkpoint if burst => return,
            // A discard's version is clear only if one writer makes them.
            Step::Discard(..) if writer > 0 => Step::Sync,
            step => step,
        };
        match step {
            Step::Apply(lbas) => {
                // Histories of whole blocks alone need no order.
                let mut now = match self.parts > 0.0 {
                    true => Some(self.now.lock().await),
                    false => None,
                };
                let mut writes = match &mut now {
                    Some(now) => some_parts(rng, &lbas, stamp, self.parts, now),
                    None => some_parts(
                        rng,
                        &lbas,
                        stamp,
                        0.0,
                        &mut vec![None; self.shape.blocks as usize],
                    ),
                };
                if rng.random_bool(0.1) {
                    writes[0].content = None;
                    let first = writes[0].lba;
                    let again = writes[1..].iter().any(|write| write.lba == first);
                    if let Some(now) = now.as_mut().filter(|_| !again) {
                        now[first.0 as usize] = None;
                    }
                }
                let version = self.chain.apply(writes.clone()).await.unwrap();
                let before = self.history.lock().applied.insert(version.0, Made::Apply(writes));
                assert!(before.is_none(), "two transactions are version {version}");
            }
            Step::Parts(_) => {}
            Step::Discard(lba, count) => {
                let mut now = self.now.lock().await;
                now[lba as usize..(lba + count) as usize].fill(None);
                let version = self.chain.discard(Lba(lba), count).await.unwrap();
                drop(now);
                self.history.lock().discarded.push((version.0, Lba(lba), count));
            }
            Step::Sync => {
                let version = self.chain.now();
                self.chain.sync(version).await.unwrap();
                self.recorder.mark(version.0);
            }
            Step::Clean(segments) => {
                self.chain.clean(segments).await.unwrap();
            }
            Step::Checkpoint => {
                let version = self.chain.now();
                self.chain.checkpoint().await.unwrap();
                self.recorder.mark(version.0);
            }
            Step::Wait(_) => {}
        }
    }

    /// Runs every writer to its end; what they did.
    async fn run(self, env: &Env, plan: &Plan, rng: &mut Rng, stamp: u64) -> (Arc<Chain>, History) {
        let session = Arc::new(self);
        let tasks: Vec<_> = (0..plan.writers)
            .map(|writer| {
                let (session, env2, plan) = (session.clone(), env.clone(), *plan);
                let mut rng = env.rng();
                // The environment's streams alone would give each generation the same chances.
                for _ in 0..stamp % 17 {
                    rng.random::<u64>();
                }
                env.spawn(async move {
                    let mut burst = plan.lazy;
                    for number in 0..plan.steps {
                        if rng.random_bool(if plan.lazy { 0.01 } else { 0.03 }) {
                            burst = !burst;
                        }
                        let stamp = stamp + (number * 64 + writer) as u64;
                        session.write(writer, stamp, &mut rng, burst).await;
                        let pause = [0, 0, 20, 300, 3_000][rng.random_range(0..5)];
                        env2.sleep(Duration::from_micros(pause)).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("a writer panicked");
        }
        if rng.random_bool(0.3) {
            session.chain.close().await.unwrap();
            session.recorder.mark(session.chain.now().0);
        }
        let history = std::mem::take(&mut *session.history.lock());
        (session.chain.clone(), history)
    }
}

fn latency() -> Duration {
    Duration::from_micros(200)
}

/// Explores one seed to its end.
async fn explore(env: &Env, seed: u64, plan: &Plan) -> Tally {
    let recorder = Recorder::with_latency(env, latency());
    let devices = plan.shape.devices(|name, geometry| recorder.device(name, geometry));
    plan.shape.format(env, &devices).await;
    let mut explorer = Explorer { env: env.clone(), seed, plan: *plan, tally: Tally::default() };
    let mut rng = env.rng();
    let begun = recorder.position();
    let model = BlockModel::new(plan.shape.blocks);
    explorer.generation(&mut rng, (recorder, devices), begun, model, 0).await;
    explorer.tally
}

struct Explorer {
    env: Env,
    seed: u64,
    plan: Plan,
    tally: Tally,
}

type Recorded = (Recorder, Vec<DeviceRef>);

impl Explorer {
    /// Opens the devices, writes, and checks every image from event `begun` on.
    async fn generation(
        &mut self,
        rng: &mut Rng,
        (recorder, devices): Recorded,
        begun: usize,
        model: BlockModel,
        depth: usize,
    ) {
        let plan = self.plan;
        let mut begun = begun;
        if plan.rebuild && depth > 0 && rng.random_bool(0.5) {
            lose_checkpoints(&plan.shape.parts(&devices).map).await;
            begun = recorder.position();
        }
        let (chain, found) = plan.open(&self.env, &devices).await.unwrap();
        let opened = recorder.position();
        let start = Version(found.version);
        recorder.mark(start.0);
        let now = read_all(&chain, start).await.unwrap();
        let session = Session {
            chain: Arc::new(chain),
            recorder: recorder.clone(),
            history: Arc::default(),
            shape: plan.shape,
            now: tokio::sync::Mutex::new(now),
            parts: plan.parts,
        };
        let stamp = 1 + (depth as u64 + 1) * 1_000_000 + rng.random_range(0..100_000) * 10;
        let (chain, history) = session.run(&self.env, &plan, rng, stamp).await;
        self.tally.add_counts(&chain);
        drop(chain);
        let before = model.clone();
        let model = history.into_model(model);
        self.crash_recovery(&recorder, &before, (begun, opened), start, depth, rng).await;
        let points: Vec<usize> = (opened..recorder.position()).sample(rng, plan.points);
        let policy = policy(depth).at(Points::At(points));
        let images: Vec<CrashImage> = recorder.images(rng, &policy).collect();
        let branches: Vec<usize> = match depth < plan.generations {
            true => (0..images.len()).sample(rng, plan.branches),
            false => Vec::new(),
        };
        for (number, image) in images.into_iter().enumerate() {
            let next = branches
                .contains(&number)
                .then(|| Recorder::from_image(&self.env, latency(), &image));
            let version = self.check(&image, &model, start, depth).await;
            if let Some(recorded) = next {
                let mut model = model.clone();
                model.rewind(version);
                Box::pin(self.generation(rng, recorded, 0, model, depth + 1)).await;
            }
        }
    }

    /// A crash while a volume is opened recovers to the same version again, however often.
    async fn crash_recovery(
        &mut self,
        recorder: &Recorder,
        model: &BlockModel,
        (begun, opened): (usize, usize),
        start: Version,
        depth: usize,
        rng: &mut Rng,
    ) {
        let points: Vec<usize> = (begun..=opened).sample(rng, self.plan.points / 8 + 1);
        let images = recorder.images(rng, &policy(depth + 1).at(Points::At(points)));
        for image in images {
            let again = self.check(&image, model, start, depth).await;
            assert_eq!(again, start, "seed {} depth {depth}: {}", self.seed, image.describe());
            self.tally.recoveries_crashed += 1;
        }
    }

    /// Opens an image and compares all of it; the version that it recovered to.
    async fn check(
        &mut self,
        image: &CrashImage,
        model: &BlockModel,
        start: Version,
        depth: usize,
    ) -> Version {
        let place = || format!("seed {} depth {depth}: {}", self.seed, image.describe());
        let acknowledged =
            image.acknowledged().max().map_or(start, |mark| Version(mark).max(start));
        let fork = |disk: &Arc<RamDisk>| {
            let (name, geometry) = (disk.name(), disk.geometry());
            Arc::new(RamDisk::with_content(&name, geometry, disk.content())) as DeviceRef
        };
        let forked: Vec<DeviceRef> = match self.plan.rebuild {
            true => image.disks().iter().map(fork).collect(),
            false => Vec::new(),
        };
        let looks = !self.plan.rebuild && self.tally.images.is_multiple_of(LOOKED);
        let shown = match looks {
            false => None,
            true => Some(self.plan.open_read_only(&self.env, image).await),
        };
        let opened = self.plan.open(&self.env, &image.devices).await;
        let (chain, found) = opened.unwrap_or_else(|error| panic!("{}: {error}", place()));
        let now = chain.now();
        let blocks = read_all(&chain, now).await;
        let blocks = blocks.unwrap_or_else(|error| panic!("{}: {error}", place()));
        if let Some((version, shown)) = shown {
            assert_eq!(version, now, "{}: read-only", place());
            assert!(shown == blocks, "{}: read-only, version {now}", place());
        }
        let versions = model
            .check(acknowledged, model.now(), |lba| blocks[lba.0 as usize].clone())
            .unwrap_or_else(|error| panic!("{}: {found:?}: {error}", place()));
        assert!(versions.contains(now), "{}: now {now}, content of {versions}", place());
        self.tally.found(&found);
        if !forked.is_empty() {
            lose_checkpoints(&self.plan.shape.parts(&forked).map).await;
            let opened = self.plan.open(&self.env, &forked).await;
            let (chain, found) = opened.unwrap_or_else(|error| panic!("{}: {error}", place()));
            let again = read_all(&chain, chain.now()).await;
            let again = again.unwrap_or_else(|error| panic!("{}: {error}", place()));
            let differs = (0..again.len()).find(|lba| again[*lba] != blocks[*lba]);
            let same = chain.now() == now && differs.is_none();
            assert!(same, "{}: {found:?} rather than {now}; block {differs:?}", place());
            self.tally.rebuilt += 1;
        }
        now
    }
}

fn policy(depth: usize) -> Policy {
    let more = if depth == 0 { 2 } else { 1 };
    Policy {
        points: Points::Flushes,
        exhaustive: 2,
        prefixes: 2,
        missing: 2 * more,
        subsets: 2 * more,
        torn: 2 * more,
        shuffled: 2,
    }
}
