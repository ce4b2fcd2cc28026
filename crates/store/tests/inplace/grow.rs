//! Online growth of an in-place volume: content before and after, crashes during it, concurrent
//! readers and writers, damage, files and loop devices.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_sim::crash::{Points, Policy};
use thalweg_sim::faults::Faulty;
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Class, Lba, StoreError, Version, Write};
use thalweg_store::checksum::crc32c;
use thalweg_store::device::{
    Device, DeviceError, DeviceRef, FileDevice, FileOptions, Geometry, MemoryDevice, Overlay,
    Purpose, QueueDepth, Tallies,
};
use thalweg_store::inplace::format::{
    COPIES, COPY, ENTRIES, FORMAT_VERSION, MAP_SECTOR, SECOND_PART, START, Superblock,
    ZEROS_ARE_EMPTY,
};
use thalweg_store::inplace::{self, InPlace, InPlaceError, Mend, Mode, NewInPlace, Options, Parts};

use crate::support::{Shape, transaction};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of one page of the map.
const PAGE: u64 = 8 * ENTRIES;

/// A store without background work. Its map has one page.
fn quiet() -> Shape {
    let shape = Shape::new(Mode::Wasteless);
    let never = Duration::from_secs(100_000);
    let options = Options {
        commit: never,
        writeback: never,
        expire: never,
        cache: 64 << 20,
        ..shape.options
    };
    Shape { blocks: 1000, options, ..shape }
}

/// The devices of a store, the first with room for so many blocks in all.
fn devices(shape: &Shape, room: u64, make: impl Fn(&str, Geometry) -> DeviceRef) -> Vec<DeviceRef> {
    let room = Shape { blocks: room, ..*shape };
    room.devices(make)
}

fn ram(name: &str, geometry: Geometry) -> DeviceRef {
    Arc::new(RamDisk::new(name, geometry))
}

fn whole(lba: u64, byte: u8) -> Write {
    Write::block(Lba(lba), Bytes::from(vec![byte; BLOCK_SIZE]))
}

/// The byte that fills a block; `None` when it cannot be read.
async fn byte_of(store: &InPlace, lba: u64) -> Option<u8> {
    match store.read_newest(Lba(lba), 1).await {
        Ok((_, block)) => Some(block[0].as_ref().map_or(0, |block| {
            assert!(block.iter().all(|byte| *byte == block[0]), "block {lba}");
            block[0]
        })),
        Err(StoreError::Corrupt { lba: at, .. }) if at == Lba(lba) => None,
        Err(error) => panic!("block {lba}: {error}"),
    }
}

async fn overwrite(device: &DeviceRef, at: u64, bytes: Vec<u8>) {
    device.write(at, vec![bytes.into()], Purpose::Repair).await.unwrap();
}

/// Changes both superblocks, with valid checksums.
async fn edit_superblocks(device: &DeviceRef, edit: impl Fn(&mut [u8])) {
    for at in (0..COPIES).map(|copy| copy * COPY) {
        let mut sector = device.read(at, COPY as usize, Purpose::Label).await.unwrap().to_vec();
        edit(&mut sector);
        sector[12..16].fill(0);
        let sum = crc32c(&sector[..512]);
        sector[12..16].copy_from_slice(&sum.to_le_bytes());
        overwrite(device, at, sector).await;
    }
}

/// Gives an empty store format 1.
async fn age(device: &DeviceRef) {
    edit_superblocks(device, |sector| sector[8..12].copy_from_slice(&[1, 0, 0, 0])).await;
    let found = superblock(device).await;
    let map = found.data_offset - found.map_offset;
    overwrite(device, found.map_offset, vec![0; map as usize]).await;
}

async fn superblock(device: &DeviceRef) -> Superblock {
    let found = inplace::dump::dump(device, false).await.unwrap();
    let copies = found.superblocks.into_iter().filter_map(|copy| copy.superblock);
    copies.max_by_key(|copy| copy.generation).unwrap()
}

/// Checks that every block is as `bytes` says, and that the others are zeros.
async fn compare(store: &InPlace, bytes: &BTreeMap<u64, u8>) {
    let blocks = store.read(Lba(0), store.blocks(), store.now()).await.unwrap();
    for (lba, block) in (0..).zip(blocks) {
        let expected = bytes.get(&lba).copied().unwrap_or(0);
        let is_right = block.map_or(expected == 0, |b| b.iter().all(|byte| *byte == expected));
        assert!(is_right, "block {lba} is not {expected}");
    }
}

async fn assert_clean(store: &InPlace) {
    let report = store.scrub(Mend::No, &|_, _| {}).await.unwrap();
    assert!(report.lost.is_empty() && report.map_sectors == 0, "{report:?}");
}

/// Writes at the ends of the volume, of its map's parts and of old sizes.
async fn fill(store: &InPlace, bytes: &mut BTreeMap<u64, u8>, byte: u8) {
    let last = store.blocks() - 1;
    let at = [0, 126, 127, 999, 1000, PAGE - 1, PAGE, PAGE + 1, 2998, 2999, 3000, 3001, 3002, last];
    for lba in at.into_iter().filter(|lba| *lba <= last) {
        store.apply(vec![whole(lba, byte)]).await.unwrap();
        bytes.insert(lba, byte);
    }
    store.sync(store.now()).await.unwrap();
}

#[test]
fn a_volume_grows_and_grows_again() {
    for (format, external, sector) in
        [(1, true, 512), (1, false, 512), (2, true, 4096), (2, false, 512)]
    {
        run(1, |env| async move {
            let shape = Shape { external, sector, ..quiet() };
            let devices = devices(&shape, 12_000, ram);
            shape.create(&env, &devices).await;
            if format == ZEROS_ARE_EMPTY {
                age(&devices[0]).await;
            }
            // New blocks do not show what an earlier use of the device left.
            let junk = superblock(&devices[0]).await.place(1000);
            overwrite(&devices[0], junk, vec![0x55; 11_000 * BLOCK_SIZE]).await;
            let mut bytes = BTreeMap::new();
            let (mut store, _) = shape.open(&env, &devices).await;
            fill(&store, &mut bytes, 1).await;
            // Within the page that the map has; then a second part, which moves, stays, and moves
            // again.
            let steps = [1010, PAGE, 3000, 3001, 3003, 3004, 3010, 8000];
            for (nth, blocks) in (2..).zip(steps) {
                let before = store.superblock();
                assert_eq!(store.grow(Some(blocks * BLOCK - 5)).await.unwrap(), blocks);
                assert_eq!((store.blocks(), store.status().blocks), (blocks, blocks));
                let after = store.superblock();
                assert_eq!(after.format, if blocks > PAGE { SECOND_PART } else { format });
                assert_eq!((after.map_format, after.place(7)), (format, before.place(7)));
                assert_eq!(after.second_part > 0, blocks > PAGE);
                assert_eq!(store.grow(Some(blocks * BLOCK)).await.unwrap(), blocks);
                compare(&store, &bytes).await;
                fill(&store, &mut bytes, nth).await;
                compare(&store, &bytes).await;
                match nth % 3 {
                    // Out of the journal, in place, or both.
                    0 => {}
                    1 => store.checkpoint().await.unwrap(),
                    _ => store.close().await.unwrap(),
                }
                drop(store);
                (store, _) = shape.open(&env, &devices).await;
                assert_eq!(store.blocks(), blocks);
                compare(&store, &bytes).await;
                assert_clean(&store).await;
                let found = inplace::dump::dump(&devices[0], true).await.unwrap().map.unwrap();
                assert_eq!(found.damaged, [0; 0]);
                assert_eq!(found.summed + found.unsummed + found.empty, blocks);
                let stored: Vec<u64> = found.content.unwrap().iter().map(|it| it.0).collect();
                assert_eq!(stored, bytes.keys().copied().collect::<Vec<_>>());
            }
            // As many blocks as the device has room for, and not one more.
            let most = store.grow(None).await.unwrap();
            assert!(most > 11_900);
            assert_eq!(store.grow(None).await.unwrap(), most);
            fill(&store, &mut bytes, 99).await;
            store.close().await.unwrap();
            let (store, _) = shape.open(&env, &devices).await;
            compare(&store, &bytes).await;
            assert_clean(&store).await;
        });
    }
}

#[test]
fn what_cannot_grow_says_so() {
    run(2, |env| async move {
        let shape = quiet();
        let devices = devices(&shape, 5000, ram);
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        let said = async |size| match store.grow(size).await {
            Err(InPlaceError::Invalid(said)) => said,
            other => panic!("{other:?}"),
        };
        let present = format!("{} bytes; it cannot shrink", 1000 * BLOCK);
        assert!(said(Some(999 * BLOCK)).await.ends_with(&present));
        assert!(said(Some(0)).await.ends_with(&present));
        said(Some(u64::MAX)).await;
        // A device of fixed size: the error says which size would do, and what there is room for.
        let place = store.superblock().place(6000);
        let refused = said(Some(6000 * BLOCK)).await;
        assert!(refused.contains(&(place + 6 * BLOCK).to_string()), "{refused}");
        let most = refused.split(' ').rev().nth(1).unwrap().parse::<u64>().unwrap();
        assert_eq!(store.grow(Some(most)).await.unwrap() * BLOCK, most);
        assert!(store.grow(Some(most + 1)).await.is_err());
        assert_eq!(store.grow(None).await.unwrap() * BLOCK, most);
        store.close().await.unwrap();
        let closed = store.grow(None).await;
        assert!(matches!(closed, Err(InPlaceError::Store(StoreError::Poisoned(_)))), "{closed:?}");
        drop(store);
        let over = |device: &DeviceRef| Arc::new(Overlay::new(device.clone())) as DeviceRef;
        let overlays: Vec<DeviceRef> = devices.iter().map(over).collect();
        let (store, _) = shape.open(&env, &overlays).await;
        for size in [None, Some(most + BLOCK)] {
            let refused = store.grow(size).await.unwrap_err().to_string();
            assert!(refused.contains("open for reading"), "{refused}");
        }
    });
}

/// The second part of the map moves behind its old place; a device with room for one more block but
/// not for that is refused.
#[test]
fn a_device_without_room_for_moving_the_map_says_how_much_it_takes() {
    run(3, |env| async move {
        let shape = quiet();
        let device = Arc::new(MemoryDevice::new(6 << 20));
        let devices: Vec<DeviceRef> = vec![device.clone(), devices(&shape, 1000, ram).remove(1)];
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        let blocks = store.grow(Some(10_000 * BLOCK)).await.unwrap();
        assert_eq!(blocks, 10_000);
        let size = device.geometry().size;
        device.grow_to(Some(size + 2 * BLOCK)).await.unwrap();
        let Err(InPlaceError::Invalid(said)) = store.grow(None).await else { panic!() };
        let least = said.split(' ').rev().nth(1).unwrap().parse::<u64>().unwrap();
        device.grow_to(Some(least - BLOCK)).await.unwrap();
        assert!(store.grow(None).await.is_err());
        device.grow_to(Some(least)).await.unwrap();
        assert!(store.grow(None).await.unwrap() > blocks);
        assert_eq!(device.geometry().size, least);
        assert_clean(&store).await;
    });
}

/// Blocks that the crash test writes: at the beginning, and at the ends of each size.
fn lba_of(index: u64) -> u64 {
    match index {
        0..8 => index,
        8..24 => 1004 + index - 8,
        _ => 3990 + index - 24,
    }
}

const INDEXES: u64 = 44;

/// The test's blocks that a volume of this size has.
fn indexes(blocks: u64) -> u64 {
    (0..INDEXES).take_while(|index| lba_of(*index) < blocks).count() as u64
}

/// Marks of sizes, above those of versions.
const SIZES: u64 = 1 << 40;

struct Session {
    store: InPlace,
    recorder: Recorder,
    shape: Shape,
    applied: Mutex<BTreeMap<u64, Vec<Write>>>,
    now: tokio::sync::Mutex<Vec<Option<Bytes>>>,
}

impl Session {
    async fn work(&self, env: &Env, mut rng: Rng, steps: usize) {
        for _ in 0..steps {
            if rng.random_bool(0.7) {
                let mut now = self.now.lock().await;
                let blocks = indexes(self.store.blocks());
                let shape = Shape { blocks, metadata: 5, ..self.shape };
                let writes = transaction(&mut rng, &shape, &mut now);
                let next = self.store.now().next();
                self.applied.lock().insert(next.0, writes.clone());
                let place = |write: Write| Write { lba: Lba(lba_of(write.lba.0)), ..write };
                let writes = writes.into_iter().map(place).collect();
                assert_eq!(self.store.apply(writes).await.unwrap(), next);
            } else {
                let version = self.store.now();
                self.store.sync(version).await.unwrap();
                self.recorder.mark(version.0);
            }
            env.sleep(Duration::from_micros(rng.random_range(0..9000))).await;
        }
    }

    async fn grow(&self, env: &Env, mut rng: Rng, sizes: &[u64]) {
        for blocks in sizes {
            env.sleep(Duration::from_micros(rng.random_range(20_000..60_000))).await;
            assert_eq!(self.store.grow(Some(blocks * BLOCK)).await.unwrap(), *blocks);
            self.recorder.mark(SIZES + blocks);
        }
    }
}

async fn read_indexes(store: &InPlace) -> Vec<Option<Bytes>> {
    let mut blocks = vec![None; INDEXES as usize];
    for index in 0..indexes(store.blocks()) {
        let read = store.read_newest(Lba(lba_of(index)), 1).await.unwrap().1.remove(0);
        blocks[index as usize] = read.filter(|block| block.iter().any(|byte| *byte != 0));
    }
    blocks
}

/// Images seen: with the old size, with one in between, and with the last one.
fn crash(seed: u64, mode: Mode) -> (u64, [u64; 3]) {
    run(seed, |env| async move {
        let sector = if seed.is_multiple_of(2) { 512 } else { 4096 };
        let external = seed % 4 < 2;
        let mut shape = Shape { blocks: 1010, sector, external, ..Shape::new(mode) };
        shape.options.gap = (seed % 5 < 2).then_some(32 << 10);
        let sizes: &[u64] = match seed % 3 {
            0 => &[4000, 4010],
            1 => &[4000, 4001, 4010],
            _ => &[PAGE, 4002, 4008],
        };
        let recorder = Recorder::with_latency(&env, Duration::from_micros(400));
        let devices = devices(&shape, 4050, |name, geometry| recorder.device(name, geometry));
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        let opened = recorder.position();
        let session = Session {
            store,
            recorder: recorder.clone(),
            shape,
            applied: Mutex::default(),
            now: tokio::sync::Mutex::new(vec![None; INDEXES as usize]),
        };
        let writers = (0..3).map(|_| session.work(&env, env.rng(), 25));
        let growing = session.grow(&env, env.rng(), sizes);
        futures::future::join(futures::future::join_all(writers), growing).await;
        let mut model = BlockModel::new(INDEXES);
        for (version, writes) in session.applied.lock().iter() {
            assert_eq!(model.apply(writes).0, *version);
        }
        drop(session);
        let last = *sizes.last().unwrap();
        let policy = Policy { points: Points::Flushes, ..Policy::sampled(0) };
        let policy = Policy { exhaustive: 2, prefixes: 1, missing: 1, subsets: 2, ..policy };
        let policy = Policy { shuffled: 2, torn: 2, ..policy };
        let mut seen = (0, [0; 3]);
        let images = recorder.images(&mut env.rng(), &policy);
        for image in images.filter(|image| image.point() > opened) {
            let place = image.describe();
            let marks: Vec<u64> = image.acknowledged().collect();
            let version = marks.iter().copied().find(|mark| *mark < SIZES).unwrap_or(0);
            let size = marks.iter().find_map(|mark| mark.checked_sub(SIZES)).unwrap_or(1010);
            let (store, found) = shape.open(&env, &image.devices).await;
            let blocks = store.blocks();
            assert!(blocks >= size, "{size} blocks were acknowledged, not {blocks}: {place}");
            let known = |it: &u64| *it == blocks;
            assert!(blocks == 1010 || sizes.iter().any(known), "{blocks} blocks: {place}");
            let held = read_indexes(&store).await;
            let read = |lba: Lba| held[lba.0 as usize].clone();
            let allowed = model
                .check(Version(version), model.now(), read)
                .unwrap_or_else(|error| panic!("{error}: {place}"));
            let state = Version(found.version.max(version));
            assert!(allowed.contains(state), "{state} is not in {allowed}: {place}");
            let nth = if blocks == 1010 { 0 } else { 1 + usize::from(blocks == last) };
            seen.1[nth] += 1;
            seen.0 += 1;
            // Growth continues from there.
            if seen.0 % 4 == 0 {
                assert_eq!(store.grow(Some(4020 * BLOCK)).await.unwrap(), 4020, "{place}");
                assert!(read_indexes(&store).await == held, "{place}");
                store.apply(vec![whole(4019, 3)]).await.unwrap();
                store.close().await.unwrap();
                let (store, _) = shape.open(&env, &image.devices).await;
                assert!(read_indexes(&store).await == held, "{place}");
                assert_eq!(byte_of(&store, 4019).await, Some(3));
                assert_clean(&store).await;
            }
        }
        seen
    })
}

#[test]
fn a_crash_leaves_the_old_volume_or_the_grown_one() {
    let (mut images, mut sizes) = (0, [0; 3]);
    for seed in campaign::seeds(6) {
        let mode = if seed % 2 == 0 { Mode::Wasteless } else { Mode::Data };
        let seen = crash(seed, mode);
        images += seen.0;
        (0..3).for_each(|nth| sizes[nth] += seen.1[nth]);
    }
    println!("{images} images, by size: {sizes:?}");
    assert!(images > 1000 && sizes.iter().all(|count| *count > 50), "{images}: {sizes:?}");
}

#[test]
fn readers_and_writers_go_on_while_it_grows() {
    for seed in 0..4 {
        run(seed, |env| async move {
            let shape = Shape { blocks: 1010, ..Shape::new(Mode::ALL[seed as usize]) };
            let recorder = Recorder::with_latency(&env, Duration::from_millis(2));
            let devices = devices(&shape, 9000, |name, geometry| recorder.device(name, geometry));
            shape.create(&env, &devices).await;
            let (store, _) = shape.open(&env, &devices).await;
            let bytes = tokio::sync::Mutex::new(BTreeMap::new());
            let writer = async |number: u64| {
                let mut rng = env.rng();
                for step in 0..60 {
                    // Each writer has blocks of its own.
                    let lba = rng.random_range(0..store.blocks() / 4) * 4 + number;
                    let byte = 1 + (step % 200) as u8;
                    store.apply(vec![whole(lba, byte)]).await.unwrap();
                    bytes.lock().await.insert(lba, byte);
                    assert_eq!(byte_of(&store, lba).await, Some(byte));
                    env.sleep(Duration::from_micros(rng.random_range(0..9000))).await;
                }
            };
            let grower = async {
                for blocks in [1016, 2200, 2210, 4000, 4001, 4002, 8000] {
                    env.sleep(Duration::from_millis(20)).await;
                    assert_eq!(store.grow(Some(blocks * BLOCK)).await.unwrap(), blocks);
                }
            };
            let scrubber = async {
                for _ in 0..3 {
                    assert_clean(&store).await;
                    env.sleep(Duration::from_millis(40)).await;
                }
            };
            futures::join!(writer(0), writer(1), writer(2), grower, scrubber);
            let bytes = bytes.into_inner();
            compare(&store, &bytes).await;
            store.close().await.unwrap();
            drop(store);
            let (store, _) = shape.open(&env, &devices).await;
            assert_eq!(store.blocks(), 8000);
            compare(&store, &bytes).await;
            assert_clean(&store).await;
        });
    }
}

/// A device on which the next read of the map at a place waits before it reads.
#[derive(Debug)]
struct Gate {
    inner: DeviceRef,
    at: Mutex<Option<u64>>,
    reached: tokio::sync::Notify,
    open: tokio::sync::Notify,
}

#[async_trait]
impl Device for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        let waits = purpose == Purpose::Map && self.at.lock().take_if(|at| *at == offset).is_some();
        if waits {
            self.reached.notify_one();
            self.open.notified().await;
        }
        self.inner.read(offset, len, purpose).await
    }

    async fn write(&self, offset: u64, data: Vec<Bytes>, why: Purpose) -> Result<(), DeviceError> {
        self.inner.write(offset, data, why).await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
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
        self.inner.name()
    }
}

/// A growth overtakes a reader of the map, and a block is written over the map's old place.
#[test]
fn a_reader_of_the_map_finds_what_has_moved_meanwhile() {
    run(5, |env| async move {
        let shape = quiet();
        let mut devices = devices(&shape, 5000, ram);
        let gate = Arc::new(Gate {
            inner: devices[0].clone(),
            at: Mutex::new(None),
            reached: tokio::sync::Notify::new(),
            open: tokio::sync::Notify::new(),
        });
        devices[0] = gate.clone();
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        store.grow(Some(3000 * BLOCK)).await.unwrap();
        store.apply(vec![whole(1500, 7)]).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        let (store, _) = shape.open(&env, &devices).await;
        let place = store.superblock().second_part;
        assert_eq!(place, store.superblock().place(3000));
        *gate.at.lock() = Some(place);
        let reader = byte_of(&store, 1500);
        let other = async {
            gate.reached.notified().await;
            store.grow(Some(4000 * BLOCK)).await.unwrap();
            store.apply(vec![whole(3000, 0xee)]).await.unwrap();
            store.sync(store.now()).await.unwrap();
            store.checkpoint().await.unwrap();
            let over = devices[0].read(place, BLOCK_SIZE, Purpose::UserData).await.unwrap();
            assert!(over.iter().all(|byte| *byte == 0xee));
            gate.open.notify_one();
        };
        let (found, ()) = futures::join!(reader, other);
        assert_eq!((found, byte_of(&store, 2000).await), (Some(7), Some(0)));
        assert_clean(&store).await;
    });
}

/// A store that grew to 3000 blocks, with a 7 in each of some, and the device below its faults.
async fn grown(env: &Env, shape: &Shape, format: u32) -> Vec<DeviceRef> {
    let devices = devices(shape, 9000, ram);
    shape.create(env, &devices).await;
    if format == ZEROS_ARE_EMPTY {
        age(&devices[0]).await;
    }
    let (store, _) = shape.open(env, &devices).await;
    store.grow(Some(3000 * BLOCK)).await.unwrap();
    let lbas = [3, PAGE, PAGE + 1, PAGE + ENTRIES, 2 * PAGE, 2999];
    store.apply(lbas.map(|lba| whole(lba, 7)).to_vec()).await.unwrap();
    store.close().await.unwrap();
    devices
}

/// A sector of the second part that was lost, flipped or cannot be read is damaged, also after the
/// second part has moved, until a repair gives it up.
#[test]
fn damage_in_the_second_part_stays_damage_when_it_moves() {
    for (format, damage) in [(2, 0), (2, 1), (1, 1), (2, 2), (1, 2)] {
        run(6, |env| async move {
            let shape = quiet();
            let devices = grown(&env, &shape, format).await;
            let place = superblock(&devices[0]).await.second_part;
            let (faulty, faults) = Faulty::wrap(&env, devices[0].clone());
            match damage {
                0 => overwrite(&devices[0], place, vec![0; MAP_SECTOR as usize]).await,
                1 => {
                    let read = devices[0].read(place, MAP_SECTOR as usize, Purpose::Map).await;
                    let mut sector = read.unwrap().to_vec();
                    sector[17] ^= 4;
                    overwrite(&devices[0], place, sector).await;
                }
                _ => faults.break_sectors(place..place + MAP_SECTOR),
            }
            let number = PAGE / ENTRIES;
            let parts = vec![faulty as DeviceRef, devices[1].clone()];
            let (store, _) = shape.open(&env, &parts).await;
            if damage < 2 {
                assert_eq!(byte_of(&store, PAGE).await, None);
                assert!(store.apply(vec![whole(PAGE + 5, 8)]).await.is_err());
            }
            store.grow(Some(6000 * BLOCK)).await.unwrap();
            assert_ne!(store.superblock().second_part, place);
            faults.heal();
            assert_eq!(byte_of(&store, PAGE).await, None);
            let found = inplace::dump::dump(&devices[0], false).await.unwrap().map.unwrap();
            assert_eq!(found.damaged, [number]);
            drop(store);
            let (store, _) = shape.open(&env, &devices).await;
            assert_eq!(
                (byte_of(&store, PAGE).await, byte_of(&store, PAGE + 1).await),
                (None, None)
            );
            for (lba, byte) in [(3, 7), (PAGE + ENTRIES, 7), (2 * PAGE, 7), (2999, 7), (5999, 0)] {
                assert_eq!(byte_of(&store, lba).await, Some(byte), "block {lba}");
            }
            assert_eq!(store.scrub(Mend::No, &|_, _| {}).await.unwrap().map_sectors, 1);
            let report = store.scrub(Mend::Yes, &|_, _| {}).await.unwrap();
            assert_eq!((report.map_sectors, report.unverified), (1, 2));
            store.close().await.unwrap();
            let (store, _) = shape.open(&env, &devices).await;
            assert_eq!(
                (byte_of(&store, PAGE).await, byte_of(&store, PAGE + 2).await),
                (Some(7), Some(0))
            );
            assert_clean(&store).await;
        });
    }
}

/// Either superblock or backup alone leads to the grown volume.
#[test]
fn every_copy_of_the_superblock_is_that_of_the_grown_volume() {
    run(7, |env| async move {
        let shape = quiet();
        let devices = grown(&env, &shape, FORMAT_VERSION).await;
        let (store, _) = shape.open(&env, &devices).await;
        store.grow(Some(6000 * BLOCK)).await.unwrap();
        store.apply(vec![whole(5999, 9), whole(3000, 9)]).await.unwrap();
        store.sync(store.now()).await.unwrap();
        store.checkpoint().await.unwrap();
        // Without an orderly close.
        drop(store);
        let size = devices[0].geometry().size;
        let last = size / COPY * COPY - COPY;
        let copies = [0, COPY, START - COPY, last];
        let whole = devices[0].read(0, size as usize, Purpose::Map).await.unwrap();
        for kept in copies {
            overwrite(&devices[0], 0, whole.to_vec()).await;
            for at in copies.into_iter().filter(|at| *at != kept) {
                overwrite(&devices[0], at, vec![0; 512]).await;
            }
            let parts = shape.parts(&devices);
            let opened = InPlace::open_damaged(&env, parts, shape.options).await;
            let (store, found) = opened.unwrap();
            assert_eq!(found.superblock_restored, kept > COPY);
            assert_eq!(store.blocks(), 6000);
            for (lba, byte) in [(3, 7), (2999, 7), (3000, 9), (5999, 9), (5998, 0)] {
                assert_eq!(byte_of(&store, lba).await, Some(byte), "block {lba}");
            }
            assert_clean(&store).await;
        }
    });
}

#[test]
fn superblocks_with_an_impossible_second_part_are_refused() {
    run(8, |env| async move {
        let shape = quiet();
        let devices = grown(&env, &shape, FORMAT_VERSION).await;
        let found = superblock(&devices[0]).await;
        let bytes = devices[0].read(0, 512, Purpose::Label).await.unwrap();
        let field = (0..504).find(|at| bytes[*at..at + 8] == found.second_part.to_le_bytes());
        let field = field.unwrap();
        assert!(field > 100);
        let (size, at) = (devices[0].geometry().size, found.second_part);
        let hostile = [
            0,
            1,
            BLOCK,
            START,
            found.map_offset,
            found.data_offset,
            found.place(2999),
            at - BLOCK,
            at + 1,
            at + 512,
            size - BLOCK,
            size,
            size + BLOCK,
            u64::MAX / BLOCK * BLOCK,
            u64::MAX / BLOCK * BLOCK - BLOCK,
            u64::MAX,
            1 << 63,
        ];
        let refused = async || {
            let opened = InPlace::open(&env, shape.parts(&devices), shape.options).await;
            let error = opened.map(drop).unwrap_err();
            assert!(matches!(error, InPlaceError::Damaged(_)), "{error}");
            let opened = InPlace::open_damaged(&env, shape.parts(&devices), shape.options).await;
            assert!(opened.is_err());
            inplace::dump::dump(&devices[0], true).await.unwrap();
        };
        for value in hostile {
            edit_superblocks(&devices[0], |sector| {
                sector[field..field + 8].copy_from_slice(&value.to_le_bytes());
            })
            .await;
            refused().await;
        }
        let restore = |sector: &mut [u8]| {
            sector[field..field + 8].copy_from_slice(&at.to_le_bytes());
            sector[field + 8..field + 12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        };
        for format in [0, 3, u32::MAX] {
            edit_superblocks(&devices[0], |sector| {
                restore(sector);
                sector[field + 8..field + 12].copy_from_slice(&u32::to_le_bytes(format));
            })
            .await;
            refused().await;
        }
        // Numbers of blocks that need a longer or shorter second part.
        let blocks = (0..504).find(|at| bytes[*at..at + 8] == 3000_u64.to_le_bytes()).unwrap();
        for value in [0, 1, PAGE, 3001, 1 << 50, 1 << 52, u64::MAX / 4096, u64::MAX] {
            edit_superblocks(&devices[0], |sector| {
                restore(sector);
                sector[blocks..blocks + 8].copy_from_slice(&u64::to_le_bytes(value));
            })
            .await;
            refused().await;
        }
        edit_superblocks(&devices[0], |sector| {
            restore(sector);
            sector[blocks..blocks + 8].copy_from_slice(&3000_u64.to_le_bytes());
        })
        .await;
        let (store, _) = shape.open(&env, &devices).await;
        assert_clean(&store).await;
        // The error of a program that does not know the second part.
        edit_superblocks(&devices[0], |sector| sector[8..12].copy_from_slice(&[4, 0, 0, 0])).await;
        let newer = InPlace::open(&env, shape.parts(&devices), shape.options).await.map(drop);
        assert!(matches!(newer, Err(InPlaceError::Newer { format: 4, .. })), "{newer:?}");
    });
}

/// A device fails in the middle of a growth: the store stops, and opens as the old or the grown
/// volume later.
#[test]
fn a_growth_that_fails_leaves_one_of_both_volumes() {
    // In one of them the journal is emptied right after writeback.
    for mode in [Mode::Wasteless, Mode::Ordered] {
        let (mut sizes, mut writes) = (Vec::new(), 0);
        loop {
            let (outcome, blocks) = run(9, |env| async move {
                let mut shape = quiet();
                shape.options.mode = mode;
                let devices = grown(&env, &shape, FORMAT_VERSION).await;
                let (faulty, faults) = Faulty::wrap(&env, devices[0].clone());
                let parts = vec![faulty as DeviceRef, devices[1].clone()];
                let (store, _) = shape.open(&env, &parts).await;
                let write = Write { class: Class::Metadata, ..whole(PAGE + 9, 4) };
                store.apply(vec![write]).await.unwrap();
                store.sync(store.now()).await.unwrap();
                faults.die_after(writes);
                let outcome = store.grow(Some(6000 * BLOCK)).await;
                faults.heal();
                // The map may have moved: it is not written.
                store.checkpoint().await.ok();
                store.close().await.ok();
                drop(store);
                let (store, _) = shape.open(&env, &devices).await;
                for (lba, byte) in [(3, 7), (PAGE, 7), (PAGE + 9, 4), (2999, 7)] {
                    assert_eq!(byte_of(&store, lba).await, Some(byte), "block {lba}");
                }
                assert_clean(&store).await;
                (outcome.is_ok(), store.blocks())
            });
            sizes.push(blocks);
            if outcome {
                break;
            }
            writes += 1;
        }
        assert!(writes > 8, "{writes} requests");
        assert!(sizes.contains(&3000) && sizes.contains(&6000), "{sizes:?}");
        assert!(sizes.is_sorted(), "{sizes:?}");
    }
}

fn journal_inside() -> NewInPlace {
    NewInPlace { name: "file".to_owned(), journal_size: Some(272 << 10), size: None }
}

async fn open_file(env: &Env, path: &Path) -> (Arc<FileDevice>, InPlace) {
    let device = loop {
        match FileDevice::open(path, &FileOptions::default()).await {
            // The tasks of a dropped store release its device a little later.
            Err(DeviceError::Locked { .. }) => env.sleep(Duration::from_millis(1)).await,
            opened => break Arc::new(opened.unwrap()),
        }
    };
    let parts = Parts { data: device.clone(), journal: None };
    (device, InPlace::open(env, parts, Options::default()).await.unwrap().0)
}

#[tokio::test]
async fn a_file_becomes_larger_with_its_volume() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    let env = Env::real();
    for is_sparse in [false, true] {
        std::fs::remove_file(&path).ok();
        let options = FileOptions { sparse: is_sparse, ..FileOptions::default() };
        let device = FileDevice::create(&path, 4 << 20, &options).await.unwrap();
        let parts = Parts { data: Arc::new(device), journal: None };
        InPlace::create(&env, &parts, &journal_inside()).await.unwrap();
        drop(parts);
        let (device, store) = open_file(&env, &path).await;
        let first = store.blocks();
        store.apply(vec![whole(first - 1, 1)]).await.unwrap();
        // The volume asks for a larger file, and then finds that it is larger already.
        assert_eq!(store.grow(Some(8 << 20)).await.unwrap(), 2048);
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!((device.geometry().size, size > 8 << 20), (size, true));
        assert_eq!(store.grow(None).await.unwrap(), 2048);
        store.apply(vec![whole(2047, 2)]).await.unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(24 << 20).unwrap();
        assert_eq!(device.geometry().size, size);
        let most = store.grow(None).await.unwrap();
        assert!((5000..6144).contains(&most), "{most}");
        assert_eq!(device.geometry().size, 24 << 20);
        store.apply(vec![whole(most - 1, 3)]).await.unwrap();
        let refused = store.grow(Some(8 << 20)).await;
        assert!(matches!(refused, Err(InPlaceError::Invalid(_))), "{refused:?}");
        // A truncated file keeps its known size.
        assert_eq!(device.grow_to(Some(1 << 20)).await.unwrap(), 24 << 20);
        store.close().await.unwrap();
        drop((device, store));
        let (device, store) = open_file(&env, &path).await;
        assert_eq!((store.blocks(), device.geometry().size), (most, 24 << 20));
        for (lba, byte) in [(first - 1, 1), (first, 0), (2047, 2), (2048, 0), (most - 1, 3)] {
            assert_eq!(byte_of(&store, lba).await, Some(byte), "block {lba}");
        }
        assert_clean(&store).await;
        store.close().await.unwrap();
    }
}

fn losetup(arguments: &[&str]) -> Option<String> {
    let output = Command::new("losetup").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// A loop device, until this is dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        losetup(&["--detach", &self.0]);
    }
}

#[tokio::test]
async fn a_volume_takes_what_its_block_device_has_grown_by() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let Some(disk) = losetup(&["--find", "--show", path.to_str().unwrap()]).map(Loop) else {
        eprintln!("SKIPPED: no loop device can be made here; run as root");
        return;
    };
    let env = Env::real();
    let device = FileDevice::open(&disk.0, &FileOptions::default()).await.unwrap();
    let parts = Parts { data: Arc::new(device), journal: None };
    InPlace::create(&env, &parts, &journal_inside()).await.unwrap();
    drop(parts);
    let (device, store) = open_file(&env, Path::new(&disk.0)).await;
    assert!(device.is_block_device());
    let first = store.blocks();
    store.apply(vec![whole(first - 1, 1)]).await.unwrap();
    assert_eq!(store.grow(None).await.unwrap(), first);
    // A loop device does not extend its file.
    let refused = store.grow(Some(8 << 20)).await;
    assert!(matches!(refused, Err(InPlaceError::Invalid(_))), "{refused:?}");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(16 << 20).unwrap();
    assert_eq!(store.grow(None).await.unwrap(), first);
    losetup(&["--set-capacity", &disk.0]).unwrap();
    let most = store.grow(None).await.unwrap();
    assert!(most > 3000 && device.geometry().size == 16 << 20, "{most}");
    store.apply(vec![whole(most - 1, 2)]).await.unwrap();
    store.close().await.unwrap();
    drop((device, store));
    let (device, store) = open_file(&env, Path::new(&disk.0)).await;
    assert_eq!(store.blocks(), most);
    let found = (byte_of(&store, first - 1).await, byte_of(&store, most - 1).await);
    assert_eq!(found, (Some(1), Some(2)));
    assert_clean(&store).await;
    store.close().await.unwrap();
    drop((device, store));
}
