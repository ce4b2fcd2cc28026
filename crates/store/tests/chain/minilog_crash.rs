//! Mini-logs and power cuts: each rule of the log on which fragments and slots depend, reached in as few
//! steps as possible.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use thalweg_env::Env;
use thalweg_sim::crash::{CrashImage, Points, Policy, Shape as CrashShape};
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{
    BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Lba, Version, Versions, Write,
};
use thalweg_store::chain::{Chain, Cleaning, Options, Rebuild};
use thalweg_store::device::{Device, DeviceRef};

use crate::support::{LABELS, SEGMENT, Shape, content, lose_checkpoints, options, read_all};

/// No background work but that of the test.
fn patient() -> Options {
    Options {
        commit_interval: Duration::from_secs(3600),
        checkpoint_sectors: 10_000,
        auto_clean: false,
        ..options()
    }
}

/// Bytes of a map sector.
const SECTOR: usize = 512;
/// Bytes of the maps of the segments that are in use.
const MAPS: u64 = 9 * SEGMENT as u64 / 30 * SECTOR as u64;

/// A single link, whose segments follow each other.
fn shape() -> Shape {
    Shape { links: 1, segments_per_link: 9, blocks: 900, ..Shape::small(Cleaning::MoveToTail) }
}

/// A chain on recorded devices, and its expected content.
struct Rig {
    env: Env,
    recorder: Recorder,
    devices: Vec<DeviceRef>,
    chain: Arc<Chain>,
    model: BlockModel,
}

impl Rig {
    async fn new(env: &Env) -> Rig {
        Rig::on(env, Recorder::new(env), patient()).await
    }

    async fn on(env: &Env, recorder: Recorder, options: Options) -> Rig {
        let devices = shape().devices(|name, geometry| recorder.device(name, geometry));
        shape().format(env, &devices).await;
        let (chain, _) = Chain::open(env, shape().parts(&devices), options).await.unwrap();
        let model = BlockModel::new(shape().blocks);
        Rig { env: env.clone(), recorder, devices, chain: Arc::new(chain), model }
    }

    /// A write of the whole block.
    fn whole(&self, lba: u64) -> Write {
        Write::block(Lba(lba), content(lba, self.model.now().0))
    }

    /// A write of `len` bytes of the block.
    fn fragment(&self, lba: u64, len: usize) -> Write {
        let old = self.model.read(Lba(lba), self.model.now());
        let mut new = old.map_or_else(|| vec![0; BLOCK_SIZE], |old| old.to_vec());
        let range = 100..100 + len;
        new[range.clone()].fill(self.model.now().0 as u8 | 1);
        let changed = ByteRanges::from(range);
        Write { content: Some(Bytes::from(new)), changed, ..Write::block(Lba(lba), Bytes::new()) }
    }

    async fn apply(&mut self, writes: Vec<Write>) {
        let version = self.model.apply(&writes);
        assert_eq!(self.chain.apply(writes).await.unwrap(), version);
    }

    async fn sync(&self) {
        self.chain.sync(self.chain.now()).await.unwrap();
    }

    /// Whole blocks, each in a transaction of its own.
    async fn fill(&mut self, lbas: impl Iterator<Item = u64>) {
        for lba in lbas {
            self.apply(vec![self.whole(lba)]).await;
        }
    }

    /// A few bytes of each of these blocks, many in a transaction.
    async fn touch(&mut self, lbas: Range<u64>) {
        let lbas: Vec<u64> = lbas.collect();
        for some in lbas.chunks(60) {
            let writes = some.iter().map(|lba| self.fragment(*lba, 16)).collect();
            self.apply(writes).await;
        }
    }

    /// Opens the devices again, as they are.
    async fn reopen(&mut self) {
        let parts = shape().parts(&self.devices);
        let (chain, _) = Chain::open(&self.env, parts, patient()).await.unwrap();
        self.chain = Arc::new(chain);
    }

    /// Every block is that of the newest version.
    async fn compare(&self) {
        compare(&self.chain, &self.model, self.model.now(), "reopened").await;
    }

    /// The images of a crash after the event `begun`.
    fn images(&self, begun: usize, policy: &Policy) -> Vec<CrashImage> {
        let points = Points::At((begun..=self.recorder.position()).collect());
        self.recorder.images(&mut self.env.rng(), &policy.clone().at(points)).collect()
    }

    /// Opens the image: its state is that of one version, not older than `least`.
    async fn check(&self, image: &CrashImage, least: Version) {
        let (chain, found) =
            Chain::open(&self.env, shape().parts(&image.devices), patient()).await.unwrap();
        let place = format!("{}: {found:?}", image.describe());
        compare(&chain, &self.model, least, &place).await;
    }
}

async fn compare(chain: &Chain, model: &BlockModel, least: Version, place: &str) {
    let blocks = read_all(chain, chain.now()).await.unwrap_or_else(|why| panic!("{place}: {why}"));
    let read = |lba: Lba| blocks[lba.0 as usize].clone();
    let versions = model.check(least, model.now(), read);
    let versions = versions.unwrap_or_else(|why| panic!("{place}: {why}"));
    assert!(versions.contains(chain.now()), "{place}: content of {versions}");
}

#[test]
fn the_log_has_fragments_and_whole_blocks_in_the_order_of_versions() {
    run(1, |env| async move {
        let mut rig = Rig::new(&env).await;
        for lba in [1, 2] {
            rig.apply(vec![rig.fragment(lba, 16)]).await;
        }
        rig.apply(vec![rig.whole(3)]).await;
        rig.apply(vec![rig.fragment(3, 16)]).await;
        rig.chain.discard(Lba(3), 1).await.unwrap();
        rig.model.discard(Lba(3), 1);
        rig.sync().await;
        rig.reopen().await;
        rig.compare().await;
    });
}

#[test]
fn a_transaction_of_several_mini_log_blocks_survives_as_a_whole() {
    run(2, |env| async move {
        let mut rig = Rig::new(&env).await;
        rig.apply(vec![rig.fragment(0, 16)]).await;
        let begun = rig.recorder.position();
        rig.apply((1..12).map(|lba| rig.fragment(lba, 1000)).collect()).await;
        rig.sync().await;
        assert_eq!(rig.chain.status().minis.blocks, 3);
        for image in rig.images(begun, &Policy::thorough()) {
            rig.check(&image, Version(0)).await;
        }
    });
}

/// Blocks that cleaning or a checkpoint moves end no transaction whose fragments are still in memory.
#[test]
fn nothing_comes_between_a_transaction_and_its_fragments() {
    for cleans in [true, false] {
        run(3, |env| async move {
            let mut rig = Rig::new(&env).await;
            let segment = u64::from(SEGMENT);
            rig.fill((0..segment).chain(3..segment)).await;
            rig.fill(0..6).await;
            rig.sync().await;
            let (durable, begun) = (rig.chain.now(), rig.recorder.position());
            rig.apply(vec![rig.whole(500), rig.fragment(501, 16)]).await;
            if cleans {
                assert_eq!(rig.chain.clean(1).await.unwrap(), 1);
                rig.sync().await;
            } else {
                rig.chain.checkpoint().await.unwrap();
            }
            for image in rig.images(begun, &Policy::thorough()) {
                rig.check(&image, durable).await;
            }
        });
    }
}

/// Fragments that arrive while a checkpoint writes the blocks that it has settled, half of them or all, are
/// settled by it too.
#[test]
fn a_checkpoint_settles_what_comes_meanwhile() {
    for slots in [200, 64] {
        run(4, |env| async move {
            let recorder = Recorder::with_latency(&env, Duration::from_micros(50));
            // It stops to write after every 64 blocks.
            let mut rig = Rig::on(&env, recorder, patient()).await;
            rig.touch(0..slots).await;
            let chain = rig.chain.clone();
            let mut checkpoint = Box::pin(async move { chain.checkpoint().await });
            assert!(checkpoint.as_mut().now_or_never().is_none());
            assert_eq!(rig.chain.status().minis.settled, 64);
            rig.touch(500..600).await;
            checkpoint.await.unwrap();
            assert_eq!(rig.chain.status().minis.slots, 0);
            rig.reopen().await;
            rig.compare().await;
        });
    }
}

/// More blocks change in part than the free segments would hold: a checkpoint comes while there is room to
/// settle them.
#[test]
fn there_is_room_to_settle_every_slot() {
    run(5, |env| async move {
        let mut rig = Rig::new(&env).await;
        rig.fill((0..900).chain(0..700)).await;
        rig.touch(0..900).await;
        rig.chain.checkpoint().await.unwrap();
        rig.reopen().await;
        rig.compare().await;
    });
}

/// Recovery, or a rebuild, settles slots and is interrupted: the bases and fragments of their contents are
/// still there.
#[test]
fn the_bases_of_slots_are_left_alone_until_a_checkpoint() {
    for rebuilds in [false, true] {
        run(6, |env| async move {
            let mut rig = Rig::new(&env).await;
            let segment = u64::from(SEGMENT);
            rig.fill(0..segment).await;
            // The tail comes to the last segment, behind which the first one would follow.
            for _ in 0..7 {
                rig.fill(segment..2 * segment).await;
            }
            rig.fill(segment..segment + 200).await;
            rig.chain.checkpoint().await.unwrap();
            // Now nothing in the first segment is live.
            rig.touch(0..segment).await;
            rig.sync().await;
            if rebuilds {
                lose_checkpoints(&shape().parts(&rig.devices).map).await;
            }
            let begun = rig.recorder.position();
            open_or_rebuild(&env, &rig.devices).await;
            for image in rig.images(begun, &Policy::sampled(0)) {
                let chain = open_or_rebuild(&env, &image.devices).await;
                compare(&chain, &rig.model, rig.model.now(), &image.describe()).await;
            }
        });
    }
}

async fn open_or_rebuild(env: &Env, devices: &[DeviceRef]) -> Chain {
    let opened = Chain::open(env, shape().parts(devices), patient()).await;
    if let Ok((chain, _)) = opened {
        return chain;
    }
    Chain::rebuild(env, shape().parts(devices), Rebuild::default(), &|_, _| {}).await.unwrap();
    Chain::open(env, shape().parts(devices), patient()).await.unwrap().0
}

/// Recovery settles slots into three segments and is interrupted, twice, each time with other parts of its
/// map missing: the remnants of one attempt, whether the next one met them or not, never count as that one's.
#[test]
fn attempts_to_recover_are_told_apart() {
    run(7, |env| async move {
        let mut rig = Rig::new(&env).await;
        let segment = u64::from(SEGMENT);
        rig.fill(0..2 * segment - 40).await;
        rig.chain.checkpoint().await.unwrap();
        rig.touch(0..segment + 100).await;
        rig.sync().await;
        let begun = rig.recorder.position();
        rig.reopen().await;
        let maps = LABELS + 2 * rig.chain.label().checkpoint_half;
        let first = Torn::new(&rig.recorder, begun, maps);
        let mut slots = BTreeSet::new();
        // From the second sector on: the first one says how far data was written.
        for end in 2..=first.sectors.len() {
            let recorder = Recorder::new(&env);
            let record = |disk: &Arc<RamDisk>| {
                let device = recorder.device_with(&disk.name(), disk.geometry(), disk.content());
                device as DeviceRef
            };
            let devices: Vec<DeviceRef> = first.without(1..end).iter().map(record).collect();
            let parts = shape().parts(&devices);
            slots.insert(Chain::open(&env, parts, patient()).await.unwrap().1.slots);
            let second = Torn::new(&recorder, 0, maps);
            for at in 0..second.sectors.len() {
                let disks = second.without(at..at + 1).into_iter();
                let devices: Vec<DeviceRef> = disks.map(|disk| disk as DeviceRef).collect();
                let parts = shape().parts(&devices);
                let (chain, found) = Chain::open(&env, parts, patient()).await.unwrap();
                let place = format!("without 1..{end}, then {at}: {found:?}");
                compare(&chain, &rig.model, rig.model.now(), &place).await;
            }
        }
        assert!(slots.iter().all(|slots| *slots < segment + 100), "{slots:?}");
    });
}

/// A crash while most of the map, from some byte on, was being written.
struct Torn {
    none: CrashImage,
    all: CrashImage,
    /// The offsets of the sectors that were being written.
    sectors: Vec<u64>,
}

impl Torn {
    fn new(recorder: &Recorder, begun: usize, maps: u64) -> Torn {
        let at = |point| {
            let [none, all] = [CrashShape::Nothing, CrashShape::Everything]
                .map(|shape| recorder.image(point, shape));
            let [old, new] = [&none, &all].map(|image| image.disks()[1].content());
            let sectors = (maps..maps + MAPS).step_by(SECTOR);
            let differs = |at: &u64| old.read(*at, SECTOR) != new.read(*at, SECTOR);
            Torn { sectors: sectors.filter(differs).collect(), none, all }
        };
        let torn = (begun..=recorder.position()).map(at);
        torn.max_by_key(|torn| torn.sectors.len()).unwrap()
    }

    /// The disks with all of these written but some of the sectors.
    fn without(&self, missing: Range<usize>) -> Vec<Arc<RamDisk>> {
        let mut disks = self.all.disks().to_vec();
        let (old, mut map) = (self.none.disks()[1].content(), disks[1].content());
        for at in &self.sectors[missing] {
            map.write(*at, &old.read(*at, SECTOR));
        }
        disks[1] = Arc::new(RamDisk::with_content("map", disks[1].geometry(), map));
        disks
    }
}

/// A version with a short hold is moved after a write to part of its block, of which a snapshot keeps the
/// result: a replay, which does not know the first, does not confuse the two.
#[test]
fn what_moved_is_not_taken_for_a_slot_of_another_version() {
    run(8, |env| async move {
        let mut rig = Rig::new(&env).await;
        let segment = u64::from(SEGMENT);
        rig.fill(0..segment + 10).await;
        rig.chain.checkpoint().await.unwrap();
        let held = rig.chain.hold(rig.chain.now()).unwrap();
        rig.apply(vec![rig.fragment(7, 16)]).await;
        let snapshot = rig.chain.create_snapshot("s").await.unwrap();
        rig.apply(vec![rig.whole(7)]).await;
        assert_eq!(rig.chain.clean(1).await.unwrap(), 1);
        rig.sync().await;
        drop(held);
        rig.reopen().await;
        rig.compare().await;
        let found = rig.chain.read(Lba(7), 1, snapshot.version).await.unwrap();
        assert_eq!(found[0], rig.model.read(Lba(7), snapshot.version));
    });
}
