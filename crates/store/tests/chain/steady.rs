//! A chain that is nearly full, under writers that never pause: they proceed evenly, and cleaning moves no
//! more than necessary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Task};
use thalweg_sim::runtime::run;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, StoreError, Versions, Write};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options, Parts};
use thalweg_store::device::{
    Device, DeviceError, DeviceRef, Geometry, Partition, Purpose, QueueDepth, Tallies,
};

use crate::support::{Shape, content, link_id, options};

const WRITERS: u64 = 16;
/// Blocks in a segment.
const SEGMENT: u32 = 960;

/// A chain of two links.
#[derive(Clone, Copy, Debug)]
struct Plan {
    segments_per_link: u32,
    blocks: u64,
    cleaning: Cleaning,
}

impl Plan {
    /// This many segments on each link, and this share of the possible live blocks.
    fn new(segments_per_link: u32, cleaning: Cleaning, fill: f64) -> Plan {
        let reserved = 2 + if cleaning == Cleaning::CompactInBody { 6 } else { 4 };
        let capacity = (2 * segments_per_link - reserved) * SEGMENT;
        Plan { segments_per_link, blocks: (f64::from(capacity) * fill) as u64, cleaning }
    }

    fn link_bytes(&self) -> u64 {
        u64::from(self.segments_per_link * SEGMENT) * BLOCK_SIZE as u64
    }

    fn map_bytes(&self) -> u64 {
        Chain::map_bytes(SEGMENT, 2 * self.segments_per_link)
    }

    fn create(&self) -> Create {
        Create {
            segment_blocks: SEGMENT,
            blocks: self.blocks,
            max_segments: 2 * self.segments_per_link,
            ..Shape::small(self.cleaning).create()
        }
    }
}

/// Two links and a map: on one drive, or each on its own.
fn parts(env: &Env, plan: &Plan, is_shared: bool) -> Parts {
    let drive = |name: &str, bytes| -> DeviceRef {
        let spec = SolidStateSpec { bus_rate: 200_000_000, ..SolidStateSpec::sata(bytes) };
        Arc::new(SolidState::new(env, name, spec))
    };
    let (link, map) = (plan.link_bytes(), plan.map_bytes());
    let shared = drive("shared", 2 * link + map);
    let part = |start, size| -> DeviceRef {
        Arc::new(Partition::new(shared.clone(), start, size).unwrap())
    };
    let device = |number: u64| match is_shared {
        true => part(number * link, link),
        false => drive("own", link),
    };
    Parts {
        links: (0..2).map(|at| Link { id: link_id(at), device: device(at as u64) }).collect(),
        map: part(2 * link, map),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    }
}

async fn open(env: &Env, plan: &Plan, parts: &Parts) -> Arc<Chain> {
    Chain::create(env, parts.clone(), &plan.create()).await.unwrap();
    let options = Options { checkpoint_sectors: 200, ..options() };
    Arc::new(Chain::open(env, parts.clone(), options).await.unwrap().0)
}

/// A write of 16 bytes over what [`fill`] wrote.
fn small_write(lba: u64, stamp: u64) -> Write {
    let mut whole = content(lba, 0).to_vec();
    whole[..16].copy_from_slice(&content(lba, stamp)[..16]);
    let mut changed = thalweg_store::block::ByteRanges::none();
    changed.add(0..16);
    Write { changed, ..Write::block(Lba(lba), whole.into()) }
}

async fn fill(chain: &Chain, blocks: std::ops::Range<u64>) {
    for lba in blocks {
        chain.apply(vec![Write::block(Lba(lba), content(lba, 0))]).await.unwrap();
    }
    chain.sync(chain.now()).await.unwrap();
}

/// Writers that overwrite blocks which `next` chooses, until they are dropped.
fn writers(
    env: &Env,
    chain: &Arc<Chain>,
    next: impl Fn(&mut thalweg_env::Rng) -> u64 + Copy + Send + 'static,
) -> (Vec<Task<()>>, Arc<AtomicU64>) {
    let written = Arc::new(AtomicU64::new(0));
    let write = |number: u64| {
        let (chain, written, mut rng) = (chain.clone(), written.clone(), env.rng());
        env.spawn(async move {
            let mut stamp = number << 32;
            loop {
                let lba = next(&mut rng);
                let write = Write::block(Lba(lba), content(lba, stamp));
                if chain.apply(vec![write]).await.is_err() {
                    return;
                }
                stamp += 1;
                let count = written.fetch_add(1, Ordering::Relaxed);
                if count % 64 == 0 && chain.sync(chain.now()).await.is_err() {
                    return;
                }
            }
        })
    };
    ((0..WRITERS).map(write).collect(), written)
}

/// Blocks written within each of `count` windows.
async fn windows(env: &Env, written: &AtomicU64, window: Duration, count: usize) -> Vec<u64> {
    let mut found = Vec::new();
    for _ in 0..count {
        let before = written.load(Ordering::Relaxed);
        env.sleep(window).await;
        found.push(written.load(Ordering::Relaxed) - before);
    }
    found
}

async fn until_written(env: &Env, written: &AtomicU64, count: u64) {
    while written.load(Ordering::Relaxed) < count {
        env.sleep(Duration::from_millis(10)).await;
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

#[test]
fn a_nearly_full_chain_writes_evenly() {
    for (seed, is_shared) in [(1, true), (2, false)] {
        run(seed, |env| async move {
            let plan = Plan::new(30, Cleaning::CompactInBody, 0.95);
            let parts = parts(&env, &plan, is_shared);
            let chain = open(&env, &plan, &parts).await;
            let blocks = plan.blocks;
            fill(&chain, 0..blocks).await;
            let (_writers, written) = writers(&env, &chain, move |rng| rng.random_range(0..blocks));
            until_written(&env, &written, 2 * blocks).await;
            let windows = windows(&env, &written, Duration::from_secs(1), 12).await;
            let (least, middle) = (*windows.iter().min().unwrap(), median(&windows));
            assert!(10 * least >= 7 * middle, "{least} of {middle}: {windows:?}");
            let status = chain.status();
            let counts = &status.counts;
            assert!(2 * counts.checkpoints < 3 * counts.segments_cleaned, "{counts:?}");
            let flush = status.stages.iter().find(|stage| stage.stage == "flush").unwrap();
            // The content of the drive's cache takes 40 ms.
            assert!(flush.latency.p99_us < 60_000, "{flush:?}");
        });
    }
}

/// Blocks that cleaning moves for each one that users write, once each block was written `rounds` times.
async fn moved_per_write(
    env: &Env,
    chain: &Arc<Chain>,
    next: impl Fn(&mut thalweg_env::Rng) -> u64 + Copy + Send + 'static,
    rounds: u64,
) -> f64 {
    let (_writers, written) = writers(env, chain, next);
    let blocks = chain.blocks();
    until_written(env, &written, rounds * blocks).await;
    let before = (written.load(Ordering::Relaxed), chain.status().counts.blocks_moved);
    until_written(env, &written, 2 * rounds * blocks).await;
    let after = (written.load(Ordering::Relaxed), chain.status().counts.blocks_moved);
    (after.1 - before.1) as f64 / (after.0 - before.0) as f64
}

/// Nine tenths of the blocks stay; the others are overwritten again and again.
fn hot_tenth(blocks: u64) -> impl Fn(&mut thalweg_env::Rng) -> u64 + Copy + Send + 'static {
    move |rng| match rng.random_bool(0.98) {
        true => rng.random_range(0..blocks / 10),
        false => rng.random_range(0..blocks),
    }
}

#[test]
fn what_stays_is_moved_seldom() {
    run(3, |env| async move {
        let plan = Plan::new(40, Cleaning::CompactInBody, 0.9);
        let parts = parts(&env, &plan, true);
        let chain = open(&env, &plan, &parts).await;
        fill(&chain, 0..plan.blocks).await;
        let moved = moved_per_write(&env, &chain, hot_tenth(plan.blocks), 2).await;
        assert!(moved < 0.8, "{moved} blocks are moved for each that is written");
        assert_eq!(chain.status().counts.tail_switches, 0, "one drive is all there is");
    });
}

#[test]
fn the_tail_leaves_a_drive_on_which_most_died() {
    run(4, |env| async move {
        let plan = Plan::new(40, Cleaning::CompactInBody, 0.7);
        let parts = parts(&env, &plan, false);
        let chain = open(&env, &plan, &parts).await;
        fill(&chain, 0..plan.blocks).await;
        let moved = moved_per_write(&env, &chain, hot_tenth(plan.blocks), 2).await;
        let counts = chain.status().counts;
        assert!(counts.tail_switches > 0, "{counts:?}");
        assert!(moved < 0.4, "{moved} blocks are moved for each that is written");
    });
}

#[test]
fn small_writes_get_places_of_their_own_without_a_burst() {
    run(5, |env| async move {
        let plan = Plan::new(30, Cleaning::CompactInBody, 0.5);
        let parts = parts(&env, &plan, true);
        Chain::create(&env, parts.clone(), &plan.create()).await.unwrap();
        let options = Options { mini_slots: 2048, mini_blocks: 4096, ..Options::default() };
        let chain = Arc::new(Chain::open(&env, parts.clone(), options).await.unwrap().0);
        let blocks = plan.blocks;
        fill(&chain, 0..blocks).await;
        let write = |number: u64| {
            let (chain, mut rng, env) = (chain.clone(), env.rng(), env.clone());
            env.clone().spawn(async move {
                for stamp in 1.. {
                    let lba = number + WRITERS * rng.random_range(0..blocks / WRITERS);
                    chain.apply(vec![small_write(lba, stamp)]).await.unwrap();
                    chain.sync(chain.now()).await.unwrap();
                    env.sleep(Duration::from_millis(8)).await;
                }
            })
        };
        let _writers: Vec<_> = (0..WRITERS).map(write).collect();
        let bytes = || {
            let links = parts.links.iter().map(|link| link.device.tallies().total().write_bytes);
            links.sum::<u64>()
        };
        env.sleep(Duration::from_secs(1)).await;
        let mut windows = Vec::new();
        for _ in 0..100 {
            let before = bytes();
            env.sleep(Duration::from_millis(100)).await;
            windows.push(bytes() - before);
        }
        let (mean, most) =
            (windows.iter().sum::<u64>() / windows.len() as u64, *windows.iter().max().unwrap());
        assert!(chain.status().counts.checkpoints >= 2, "{:?}", chain.status().counts);
        assert!(most < 5 * mean, "{most} bytes in 100 ms, {mean} in the mean: {windows:?}");
    });
}

#[test]
fn a_chain_that_is_full_to_the_last_block_is_overwritten() {
    for cleaning in [Cleaning::MoveToTail, Cleaning::CompactInBody] {
        run(6, |env| async move {
            let plan = Plan::new(20, cleaning, 1.0);
            let parts = parts(&env, &plan, true);
            let chain = open(&env, &plan, &parts).await;
            let blocks = plan.blocks;
            fill(&chain, 0..blocks).await;
            let (_writers, written) = writers(&env, &chain, move |rng| rng.random_range(0..blocks));
            let done = env.timeout(Duration::from_secs(60), until_written(&env, &written, 2000));
            assert!(done.await.is_some(), "writers wait for ever: {:?}", chain.status());
        });
    }
}

#[test]
fn a_version_that_holds_everything_ends_in_no_space_and_no_wait() {
    run(7, |env| async move {
        let plan = Plan::new(20, Cleaning::CompactInBody, 0.6);
        let parts = parts(&env, &plan, true);
        let chain = open(&env, &plan, &parts).await;
        fill(&chain, 0..plan.blocks).await;
        let hold = chain.hold(chain.now()).unwrap();
        let overwrite = async {
            for lba in (0..plan.blocks).cycle() {
                let write = Write::block(Lba(lba), content(lba, 1));
                if let Err(error) = chain.apply(vec![write]).await {
                    return error;
                }
            }
            unreachable!("the range goes on for ever")
        };
        let error = env.timeout(Duration::from_secs(60), overwrite).await;
        assert!(matches!(error, Some(StoreError::NoSpace)), "{error:?}: {:?}", chain.status());
        drop(hold);
        let again = chain.apply(vec![Write::block(Lba(0), content(0, 2))]);
        let again = env.timeout(Duration::from_secs(10), again).await;
        assert!(matches!(again, Some(Ok(_))), "{again:?}");
    });
}

/// A device of which every tenth flush takes a second, and which becomes ten times slower on demand.
#[derive(Debug)]
struct Moody {
    env: Env,
    inner: DeviceRef,
    flushes: AtomicU64,
    /// Nanoseconds that each byte written takes longer.
    drag: AtomicU64,
}

#[async_trait]
impl Device for Moody {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.inner.read(offset, len, purpose).await
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let drag = self.drag.load(Ordering::Relaxed) * bytes as u64;
        self.env.sleep(Duration::from_nanos(drag)).await;
        self.inner.write(offset, data, purpose).await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        if self.flushes.fetch_add(1, Ordering::Relaxed) % 10 == 9 {
            self.env.sleep(Duration::from_secs(1)).await;
        }
        self.inner.flush(purpose).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len).await
    }

    fn queue_depth(&self) -> QueueDepth {
        self.inner.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.inner.tallies()
    }

    fn name(&self) -> String {
        "moody".to_owned()
    }
}

#[test]
fn a_device_with_slow_flushes_that_becomes_slow_while_cleaning_runs_keeps_no_writer_for_long() {
    run(8, |env| async move {
        let plan = Plan::new(20, Cleaning::CompactInBody, 0.9);
        let mut parts = parts(&env, &plan, true);
        let moods: Vec<Arc<Moody>> = parts
            .links
            .iter_mut()
            .map(|link| {
                let moody = Arc::new(Moody {
                    env: env.clone(),
                    inner: link.device.clone(),
                    flushes: AtomicU64::new(0),
                    drag: AtomicU64::new(0),
                });
                link.device = moody.clone();
                moody
            })
            .collect();
        let chain = open(&env, &plan, &parts).await;
        let blocks = plan.blocks;
        fill(&chain, 0..blocks).await;
        let (_writers, written) = writers(&env, &chain, move |rng| rng.random_range(0..blocks));
        until_written(&env, &written, blocks).await;
        // 200 MB/s become 20.
        moods.iter().for_each(|moody| moody.drag.store(45, Ordering::Relaxed));
        let windows = windows(&env, &written, Duration::from_secs(10), 6).await;
        assert!(windows.iter().all(|written| *written > 0), "{windows:?}");
        let status = chain.status();
        let stage = |name| status.stages.iter().find(|stage| stage.stage == name).unwrap().latency;
        assert!(stage("round_flush").max_us >= 1_000_000, "{:?}", status.stages);
        // Some flushes in a row: the previous round's, its own, and a checkpoint's.
        assert!(stage("flush").max_us < 8_000_000, "{:?}", status.slow_flushes);
        assert!(stage("write_wait").max_us < 8_000_000, "{:?}", status.stages);
        let slowest = &status.slow_flushes[0];
        assert_eq!(slowest.took_us, stage("flush").max_us);
        let told: u64 = slowest.stages.iter().map(|(_, micros)| micros).sum();
        assert!(told * 10 >= slowest.took_us * 9, "most of it is told: {slowest:?}");
    });
}

#[test]
fn two_chains_on_one_drive_both_go_on() {
    run(9, |env| async move {
        let plan = Plan::new(20, Cleaning::CompactInBody, 0.9);
        let bytes = 2 * plan.link_bytes() + plan.map_bytes();
        let drive: DeviceRef = Arc::new(SolidState::new(
            &env,
            "drive",
            SolidStateSpec { bus_rate: 200_000_000, ..SolidStateSpec::sata(2 * bytes) },
        ));
        let part = |start, size| -> DeviceRef {
            Arc::new(Partition::new(drive.clone(), start, size).unwrap())
        };
        let mut loads = Vec::new();
        for volume in 0..2 {
            let (start, link) = (volume * bytes, plan.link_bytes());
            let device = |at: u64| part(start + at * link, link);
            let links =
                (0..2).map(|at| Link { id: link_id(at), device: device(at as u64) }).collect();
            let map = part(start + 2 * link, plan.map_bytes());
            let none = None::<DeviceRef>;
            let parts =
                Parts { links, map, map_link: None, tail_cache: none.clone(), body_cache: none };
            let chain = open(&env, &plan, &parts).await;
            fill(&chain, 0..plan.blocks).await;
            let blocks = plan.blocks;
            loads.push((writers(&env, &chain, move |rng| rng.random_range(0..blocks)), chain));
        }
        env.sleep(Duration::from_secs(2)).await;
        let mut medians = Vec::new();
        for ((_, written), chain) in &loads {
            let windows = windows(&env, written, Duration::from_millis(500), 8).await;
            assert!(windows.iter().all(|count| *count > 0), "{windows:?}, {:?}", chain.status());
            medians.push(median(&windows));
        }
        let (a, b) = (medians[0], medians[1]);
        assert!(a < 2 * b && b < 2 * a, "one of two equal loads gets {a}, the other {b}");
        assert!(a > 1000 / BLOCK_SIZE as u64);
    });
}

/// One checkpoint is given up at some point, and the next one is not; then the power is cut. Everything that
/// the second one declared durable is there, also blocks that cleaning moved.
#[test]
fn a_checkpoint_that_is_given_up_forgets_no_flush() {
    for nth in 0..48 {
        run(10 + nth, |env| async move {
            let plan = Plan::new(12, Cleaning::CompactInBody, 0.7);
            let drives: Vec<Arc<SolidState>> = [plan.link_bytes(), plan.link_bytes()]
                .into_iter()
                .chain([plan.map_bytes()])
                .map(|bytes| Arc::new(SolidState::new(&env, "own", SolidStateSpec::sata(bytes))))
                .collect();
            let link = |at: usize| Link { id: link_id(at), device: drives[at].clone() };
            let parts = Parts {
                links: (0..2).map(link).collect(),
                map: drives[2].clone(),
                map_link: None,
                tail_cache: None,
                body_cache: None,
            };
            let chain = open(&env, &plan, &parts).await;
            let blocks = plan.blocks;
            fill(&chain, 0..blocks).await;
            for lba in (0..blocks).step_by(3) {
                chain.apply(vec![Write::block(Lba(lba), content(lba, 1))]).await.unwrap();
            }
            chain.checkpoint().await.unwrap();
            assert!(chain.clean(2).await.unwrap() > 0);
            // They wait for a place of their own, which the checkpoint gives them.
            for lba in (1..blocks).step_by(3) {
                chain.apply(vec![small_write(lba, 1)]).await.unwrap();
            }
            chain.sync(chain.now()).await.unwrap();
            let patience = Duration::from_micros(nth * 211);
            let given_up = env.timeout(patience, chain.checkpoint()).await.is_none();
            let again = env.timeout(Duration::from_secs(60), chain.checkpoint()).await;
            let Ok(()) = again.expect("the next checkpoint ends") else {
                assert!(given_up, "only a checkpoint that was interrupted poisons the chain");
                return;
            };
            drop(chain);
            drives.iter().for_each(|drive| drive.power_cut());
            drives.iter().for_each(|drive| drive.power_on());
            let (chain, _) = Chain::open(&env, parts, options()).await.unwrap();
            for lba in 0..blocks {
                let wanted = match lba % 3 {
                    0 => content(lba, 1),
                    1 => small_write(lba, 1).content.unwrap(),
                    _ => content(lba, 0),
                };
                let found = chain.read_newest(Lba(lba), 1).await.unwrap().1;
                assert!(found[0] == Some(wanted), "block {lba}, given up at {patience:?}");
            }
        });
    }
}
