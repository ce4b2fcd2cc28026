//! The index rebuilt from the map alone: it equals the one of the lost checkpoint, with every snapshot; and
//! where the map itself is damaged, the loss is reported and nothing else is lost.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::content::Content;
use thalweg_sim::crash::{Points, Policy};
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, BlocksExt, Lba, Version, Write};
use thalweg_store::chain::{Chain, ChainError, Cleaning, Options, Rebuild, RebuildReport};
use thalweg_store::device::{Device, DeviceRef};

use crate::support::crash::{Plan, explore_seeds};
use crate::support::trio::Trio;
use crate::support::{
    LABELS, Pair, SEGMENT, Shape, Step, content, lose_checkpoints, options, random_step, read_all,
};

pub(crate) async fn rebuild(
    env: &Env,
    shape: &Shape,
    devices: &[DeviceRef],
    how: Rebuild,
) -> Result<RebuildReport, ChainError> {
    Chain::rebuild(env, shape.parts(devices), how, &|_, _| {}).await
}

/// Destroys the checkpoints, sees that nothing opens, rebuilds, and opens.
async fn lose_and_rebuild(env: &Env, shape: &Shape, devices: &[DeviceRef]) -> Chain {
    lose_checkpoints(&shape.parts(devices).map).await;
    let refused = shape.open(env, devices).await;
    assert!(matches!(refused, Err(ChainError::Damaged(_))), "{:?}", refused.map(|_| ()));
    let dry = Rebuild { dry_run: true, ..Rebuild::default() };
    let planned = rebuild(env, shape, devices, dry).await.unwrap();
    assert!(!planned.written && planned.lost.is_empty(), "{planned:?}");
    assert!(shape.open(env, devices).await.is_err(), "a dry run writes nothing");
    let report = rebuild(env, shape, devices, Rebuild::default()).await.unwrap();
    assert_eq!(report, RebuildReport { written: true, ..planned });
    let (chain, found) = shape.open(env, devices).await.unwrap();
    assert_eq!(found.version, report.version);
    chain
}

/// Random histories with every kind of operation, in which the checkpoints are lost repeatedly.
fn history(seed: u64, shape: Shape, rounds: usize) {
    run(seed, |env| async move {
        let devices =
            shape.devices(|name, geometry| Arc::new(RamDisk::new(name, geometry)) as DeviceRef);
        let mut trio = Trio::new(&env, &shape, &devices).await;
        let mut rng = env.rng();
        for round in 0..rounds {
            for _ in 0..220 {
                trio.step(&env, &mut rng, shape.blocks).await;
            }
            trio.compare().await;
            match round % 3 {
                0 => trio.pair.chain.close().await.unwrap(),
                _ => trio.pair.chain.sync(trio.pair.chain.now()).await.unwrap(),
            }
            drop(trio.pair.chain);
            trio.pair.chain = match round % 4 {
                // Some openings in between, which cut the logs.
                3 => shape.open(&env, &devices).await.unwrap().0,
                _ => lose_and_rebuild(&env, &shape, &devices).await,
            };
            trio.compare().await;
        }
    });
}

fn roomy(cleaning: Cleaning) -> Shape {
    Shape { segments_per_link: 9, blocks: 500, ..Shape::small(cleaning) }
}

#[test]
fn a_rebuilt_index_is_the_lost_one_move_to_tail() {
    for seed in 0..16 {
        history(seed, roomy(Cleaning::MoveToTail), 12);
    }
}

#[test]
fn a_rebuilt_index_is_the_lost_one_compact_in_body() {
    for seed in 100..116 {
        history(seed, roomy(Cleaning::CompactInBody), 12);
    }
}

#[test]
fn a_rebuilt_index_is_the_lost_one_in_other_shapes() {
    let single = Shape { links: 1, segments_per_link: 16, ..roomy(Cleaning::MoveToTail) };
    history(200, single, 12);
    history(201, Shape { sector: 4096, ..roomy(Cleaning::CompactInBody) }, 12);
    history(202, Shape { map_on_link: true, ..roomy(Cleaning::MoveToTail) }, 12);
}

/// Rebuilds every image of a crash, of histories with earlier rebuilds, also in the middle of a rebuild: the
/// state is the one that recovery finds.
fn crashes(first: u64, images: u64, shape: Shape, lazy: bool) {
    crashes_of(first, images, shape, lazy, 0.0);
}

fn crashes_of(first: u64, images: u64, shape: Shape, lazy: bool, parts: f64) {
    let steps = if lazy { 120 } else { 60 };
    let plan = Plan {
        shape,
        steps,
        writers: 3,
        points: 10,
        generations: 3,
        branches: 2,
        lazy,
        rebuild: true,
        parts,
    };
    let total = explore_seeds(first, images, &plan);
    assert!(total.rebuilt >= images);
}

pub(crate) fn tight(cleaning: Cleaning) -> Shape {
    Shape { blocks: 220, segments_per_link: 4, ..Shape::small(cleaning) }
}

#[test]
fn a_rebuild_after_a_crash_finds_what_recovery_finds_move_to_tail() {
    crashes(0, 300, tight(Cleaning::MoveToTail), false);
}

#[test]
fn a_rebuild_after_a_crash_finds_what_recovery_finds_compact_in_body() {
    crashes(1_000, 300, tight(Cleaning::CompactInBody), false);
}

#[test]
fn a_rebuild_after_a_crash_in_long_rounds_finds_what_recovery_finds() {
    let roomier = |cleaning| Shape { segments_per_link: 7, ..tight(cleaning) };
    crashes(2_000, 300, roomier(Cleaning::MoveToTail), true);
    crashes(3_000, 300, roomier(Cleaning::CompactInBody), true);
}

#[test]
fn a_rebuild_of_large_sectors_after_a_crash_finds_what_recovery_finds() {
    crashes(4_000, 300, Shape { sector: 4096, ..tight(Cleaning::CompactInBody) }, false);
}

#[test]
fn a_rebuild_of_parts_of_blocks_after_a_crash_finds_what_recovery_finds() {
    let single = Shape { links: 1, segments_per_link: 9, ..tight(Cleaning::MoveToTail) };
    crashes_of(5_000, 300, tight(Cleaning::MoveToTail), false, 0.8);
    crashes_of(6_000, 300, tight(Cleaning::CompactInBody), false, 0.8);
    crashes_of(7_000, 250, single, false, 0.8);
}

/// A volume that was synced and not closed, on disks that can be copied.
struct Rest {
    env: Env,
    shape: Shape,
    disks: Vec<Arc<RamDisk>>,
    model: BlockModel,
    /// First byte of the map of the first segment.
    maps: u64,
}

impl Rest {
    async fn new(env: &Env, shape: Shape, steps: usize) -> Rest {
        let (devices, disks) = shape.ram_disks();
        shape.format(env, &devices).await;
        let (chain, _) = shape.open(env, &devices).await.unwrap();
        let maps = LABELS + 2 * chain.label().checkpoint_half;
        let mut pair = Pair { chain, model: BlockModel::new(shape.blocks) };
        let mut rng = env.rng();
        for _ in 0..steps {
            pair.step(env, &random_step(&mut rng, shape.blocks)).await.unwrap();
        }
        pair.step(env, &Step::Sync).await.unwrap();
        drop(pair.chain);
        lose_checkpoints(&shape.parts(&devices).map).await;
        Rest { env: env.clone(), shape, disks, model: pair.model, maps }
    }

    fn map(&self) -> Content {
        self.disks[self.shape.links].content()
    }

    /// The sectors of the map that are not empty, as offsets.
    fn sectors(&self) -> Vec<u64> {
        let map = self.map();
        let end = self.disks[self.shape.links].geometry().size;
        let used = |at: &u64| map.read(*at, 512).iter().any(|byte| *byte != 0);
        (self.maps..end).step_by(512).filter(used).collect()
    }

    /// Devices with these contents, and `map` on the last of them.
    fn with_map(&self, map: Content) -> Vec<DeviceRef> {
        let contents = self.disks.iter().map(|disk| disk.content());
        let contents = contents.take(self.shape.links).chain([map]);
        let pairs = self.disks.iter().zip(contents);
        let disk = |(disk, content): (&Arc<RamDisk>, Content)| {
            Arc::new(RamDisk::with_content(&disk.name(), disk.geometry(), content)) as DeviceRef
        };
        pairs.map(disk).collect()
    }

    /// Rebuilds from a damaged map. Without a loss everything is there, or at `least` the state of one
    /// version; with one, blocks that differ are older, no more than the report says, and none was written
    /// after the lost entries. Returns whether there was a loss.
    async fn check(&self, map: Content, exact: bool, what: &str) -> bool {
        let devices = self.with_map(map);
        let now = self.model.now();
        let lost = match rebuild(&self.env, &self.shape, &devices, Rebuild::default()).await {
            Ok(_) => None,
            Err(ChainError::Loss(_)) => {
                assert!(self.shape.open(&self.env, &devices).await.is_err(), "{what}");
                let how = Rebuild { accept_loss: true, ..Rebuild::default() };
                Some(rebuild(&self.env, &self.shape, &devices, how).await.unwrap())
            }
            Err(error) => panic!("{what}: {error}"),
        };
        let (chain, _) = self.shape.open(&self.env, &devices).await.unwrap();
        let blocks = read_all(&chain, chain.now()).await.unwrap();
        let Some(lost) = lost else {
            let read = |lba: Lba| blocks[lba.0 as usize].clone();
            let least = if exact { now } else { Version(0) };
            let found = self.model.check(least, now, read);
            assert!(
                found.unwrap_or_else(|e| panic!("{what}: {e}")).contains(chain.now()),
                "{what}"
            );
            return false;
        };
        let newest = lost.lost.iter().map(|part| part.newest.unwrap_or(u64::MAX)).max().unwrap();
        let mut differ = 0;
        for (lba, found) in blocks.into_iter().enumerate() {
            let lba = Lba(lba as u64);
            if found == self.model.read(lba, now) {
                continue;
            }
            let held = |at: u64| self.model.read(lba, Version(at));
            assert!((0..now.0).any(|at| held(at) == found), "{what}: {lba:?} never held that");
            let last = (1..=now.0).rev().find(|at| held(*at) != held(*at - 1)).unwrap();
            // The last write may look as a crash leaves it: it ends the log.
            if last <= lost.version || exact {
                differ += 1;
                assert!(last <= newest, "{what}: {lba:?} was written at {last}, after {newest}");
            }
        }
        assert!(differ <= lost.lost_blocks, "{what}: {differ} blocks differ: {lost:?}");
        assert!(differ <= lost.undecided, "{what}: {differ} blocks differ: {lost:?}");
        // The result is a whole volume again: written to, and rebuilt once more.
        let mut pair = Pair { chain, model: BlockModel::new(self.shape.blocks) };
        let before = read_all(&pair.chain, pair.chain.now()).await.unwrap();
        while pair.model.now() < pair.chain.now() {
            pair.model.apply(&[]);
        }
        let all: Vec<u64> = (0..self.shape.blocks / 2).collect();
        for part in all.chunks(100) {
            pair.step(&self.env, &Step::Apply(part.to_vec())).await.unwrap();
        }
        pair.chain.clean(2).await.unwrap();
        pair.chain.close().await.unwrap();
        drop(pair.chain);
        let chain = lose_and_rebuild(&self.env, &self.shape, &devices).await;
        let after = read_all(&chain, chain.now()).await.unwrap();
        for (lba, found) in after.into_iter().enumerate() {
            let expected = match lba < all.len() {
                true => pair.model.read(Lba(lba as u64), pair.model.now()),
                false => before[lba].clone(),
            };
            assert!(found == expected, "{what}: block {lba} after a second rebuild");
        }
        true
    }
}

fn harm(map: &mut Content, at: u64, how: u64) {
    match how {
        0 => {
            let byte = map.read(at + 40, 1)[0];
            map.write(at + 40, &[byte ^ 4]);
        }
        1 => map.zero(at, 512),
        _ => map.write(at, &[0x5a; 512]),
    }
}

/// Damages each sector of the map in turn.
fn each_sector(seed: u64, cleaning: Cleaning) {
    run(seed, |env| async move {
        let rest = Rest::new(&env, tight(cleaning), 220).await;
        let sectors = rest.sectors();
        let (mut lost, mut whole) = (0, 0);
        for (number, at) in sectors.iter().enumerate() {
            // One in three of each kind.
            let how = (number as u64 + seed) % 3;
            let mut map = rest.map();
            harm(&mut map, *at, how);
            let segment = (at - rest.maps) / (512 * u64::from(SEGMENT) / 30);
            let what = format!("seed {seed}: harm {how} at {at} in segment {segment}");
            match rest.check(map, how == 0, &what).await {
                true => lost += 1,
                false => whole += 1,
            }
        }
        println!("{lost} with a loss, {whole} without");
        assert!(lost > 10, "{lost} with a loss, {whole} without");
    });
}

#[test]
fn a_harmed_map_sector_loses_what_the_report_names_and_no_more() {
    for seed in 0..2 {
        each_sector(seed, Cleaning::MoveToTail);
        each_sector(seed, Cleaning::CompactInBody);
    }
}

#[test]
fn many_harmed_map_sectors_lose_what_the_report_names_and_no_more() {
    for seed in 10..16 {
        let cleaning = [Cleaning::MoveToTail, Cleaning::CompactInBody][seed as usize % 2];
        run(seed, |env| async move {
            let rest = Rest::new(&env, tight(cleaning), 220).await;
            let sectors = rest.sectors();
            let mut rng = env.rng();
            let mut lost = 0;
            for round in 0..12 {
                let mut map = rest.map();
                for _ in 0..rng.random_range(2..8) {
                    let at = sectors[rng.random_range(0..sectors.len())];
                    harm(&mut map, at, rng.random_range(0..3));
                }
                let what = format!("seed {seed} round {round}");
                lost += u64::from(rest.check(map, false, &what).await);
            }
            assert!(lost > 3, "{lost}");
        });
    }
}

/// A volume that is all holes, in one discard and in many, does not come back, however the segments with the
/// discards are cleaned; and they do not use up its room.
#[test]
fn discarded_blocks_stay_discarded() {
    for cleaning in [Cleaning::MoveToTail, Cleaning::CompactInBody] {
        let shape = Shape { blocks: 600, ..Shape::small(cleaning) };
        run(1, |env| async move {
            let devices =
                shape.devices(|name, geometry| Arc::new(RamDisk::new(name, geometry)) as DeviceRef);
            let mut trio = Trio::new(&env, &shape, &devices).await;
            for round in 0..12_u64 {
                for lba in (0..shape.blocks).step_by(50) {
                    let blocks = (lba..lba + 50).collect();
                    trio.pair.step(&env, &Step::Apply(blocks)).await.unwrap();
                }
                // Every second block alone, or everything at once.
                let runs: Vec<(u64, u64)> = match round % 2 {
                    0 => (0..shape.blocks).step_by(2).map(|lba| (lba, 1)).collect(),
                    _ => vec![(0, shape.blocks)],
                };
                for (lba, count) in runs {
                    trio.pair.step(&env, &Step::Discard(lba, count)).await.unwrap();
                }
                for _ in 0..4 {
                    trio.pair.step(&env, &Step::Checkpoint).await.unwrap();
                    trio.pair.step(&env, &Step::Clean(3)).await.unwrap();
                }
                let status = trio.pair.chain.status();
                assert!(status.live_blocks <= shape.blocks, "{status:?}");
                if round % 4 > 1 {
                    trio.pair.chain.sync(trio.pair.chain.now()).await.unwrap();
                    drop(trio.pair.chain);
                    trio.pair.chain = lose_and_rebuild(&env, &shape, &devices).await;
                }
                trio.compare().await;
            }
        });
    }
}

/// Content beyond the end of a volume that shrank does not come back when it grows.
#[test]
fn what_left_a_shrunken_volume_stays_away() {
    let shape = roomy(Cleaning::MoveToTail);
    run(3, |env| async move {
        let devices =
            shape.devices(|name, geometry| Arc::new(RamDisk::new(name, geometry)) as DeviceRef);
        let mut trio = Trio::new(&env, &shape, &devices).await;
        trio.pair.step(&env, &Step::Apply((300..400).collect())).await.unwrap();
        trio.pair.step(&env, &Step::Discard(300, 200)).await.unwrap();
        trio.pair.chain.resize(310).await.unwrap();
        trio.pair.chain.checkpoint().await.unwrap();
        trio.pair.chain.resize(500).await.unwrap();
        // The discard's segment is written again.
        for _ in 0..40 {
            trio.pair.step(&env, &Step::Apply((0..100).collect())).await.unwrap();
        }
        trio.pair.step(&env, &Step::Sync).await.unwrap();
        drop(trio.pair.chain);
        trio.pair.chain = lose_and_rebuild(&env, &shape, &devices).await;
        trio.compare().await;
    });
}

/// Options with which a sync alone commits.
pub(crate) fn patient() -> Options {
    Options {
        commit_interval: Duration::from_secs(3600),
        checkpoint_sectors: 10_000,
        auto_clean: false,
        ..options()
    }
}

/// Segments that a crash left whole, and recovery did not reach, count for nothing: neither their content nor
/// versions that were given to other writes since.
#[test]
fn what_recovery_left_behind_does_not_come_back() {
    let shape =
        Shape { links: 1, segments_per_link: 9, blocks: 900, ..tight(Cleaning::MoveToTail) };
    run(1, |env| async move {
        let recorder = Recorder::new(&env);
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let (chain, _) = Chain::open(&env, shape.parts(&devices), patient()).await.unwrap();
        let begun = recorder.position();
        for lba in 0..700 {
            chain.apply(vec![Write::block(Lba(lba), content(lba, 1))]).await.unwrap();
        }
        chain.sync(chain.now()).await.unwrap();
        drop(chain);
        let events = begun..recorder.position();
        let policy = Policy { exhaustive: 4, ..Policy::thorough() };
        let mut rng = env.rng();
        let mut holes = 0;
        for image in recorder.images(&mut rng, &policy.at(Points::At(events.collect()))) {
            let parts = shape.parts(&image.devices);
            let (chain, found) = Chain::open(&env, parts.clone(), patient()).await.unwrap();
            if found.version == 0 || found.version >= 480 {
                continue;
            }
            holes += 1;
            let mut model = BlockModel::new(shape.blocks);
            for lba in 0..found.version {
                model.apply(&[Write::block(Lba(lba), content(lba, 1))]);
            }
            // The log goes on into the next segment, and no further.
            let segment = u64::from(SEGMENT);
            for lba in 0..100 + (segment - found.version % segment) % segment {
                let write = [Write::block(Lba(lba), content(lba, 2))];
                assert_eq!(chain.apply(write.to_vec()).await.unwrap(), model.apply(&write));
            }
            chain.sync(chain.now()).await.unwrap();
            drop(chain);
            let chain = lose_and_rebuild(&env, &shape, &image.devices).await;
            let pair = Pair { chain, model };
            pair.compare().await;
        }
        assert!(holes > 0, "no image had a hole in its map");
    });
}

/// A transaction's write over its own discard stays, though cleaning copies the entry of the discard and not
/// the block.
#[test]
fn a_block_is_not_hidden_by_a_discard_of_its_transaction() {
    let shape = Shape { links: 1, segments_per_link: 16, ..roomy(Cleaning::MoveToTail) };
    let segment = u64::from(SEGMENT);
    // The entry comes to the end of a segment, and the block to the next.
    for filled in segment - 6..segment + 2 {
        run(filled, |env| async move {
            let devices =
                shape.devices(|name, geometry| Arc::new(RamDisk::new(name, geometry)) as DeviceRef);
            shape.format(&env, &devices).await;
            let (chain, _) = shape.open(&env, &devices).await.unwrap();
            let write = |lba: u64, stamp: u64| Write::block(Lba(lba), content(lba, stamp));
            let discard = |lba| Write { content: None, ..write(lba, 0) };
            for lba in 0..filled {
                chain.apply(vec![write(lba, 1)]).await.unwrap();
            }
            let over = vec![discard(10), discard(11), discard(12), write(11, 2)];
            chain.apply(over).await.unwrap();
            for lba in 20..filled {
                chain.apply(vec![write(lba, 3)]).await.unwrap();
            }
            chain.sync(chain.now()).await.unwrap();
            assert_eq!(chain.clean(1).await.unwrap(), 1);
            chain.close().await.unwrap();
            drop(chain);
            let chain = lose_and_rebuild(&env, &shape, &devices).await;
            let found = chain.read(Lba(10), 3, chain.now()).await.unwrap();
            assert_eq!(found, [None, Some(content(11, 2)), None], "{filled} blocks before");
        });
    }
}
