//! Lost metadata of an in-place store: each loss is reported, and repaired if another place on the
//! devices has the information.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, StoreError, Write};
use thalweg_store::checksum::crc32c;
use thalweg_store::device::{DeviceRef, MemoryDevice, Purpose};
use thalweg_store::inplace::format::{
    COPIES, COPY, ENTRIES, FORMAT_VERSION, MAP_SECTOR, MapSector, START, Superblock,
};
use thalweg_store::inplace::{self, InPlace, InPlaceError, Mend, Mode, Options, Parts};
use thalweg_store::journal::{JournalError, Note};
use thalweg_store::tree::{Kind, NewPartition, catalogue};
use thalweg_store::txn::{self, TransactionManager};
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::support::Shape;

/// A store without background work, with a map of four sectors.
fn quiet() -> Shape {
    let shape = Shape::new(Mode::Wasteless);
    let never = Duration::from_secs(100_000);
    let options =
        Options { commit: never, writeback: never, expire: never, cache: 4 << 20, ..shape.options };
    Shape { blocks: 400, options, ..shape }
}

fn whole(lba: u64, byte: u8) -> Write {
    Write::block(Lba(lba), Bytes::from(vec![byte; BLOCK_SIZE]))
}

/// The byte that fills a block; `None` when it cannot be read.
async fn byte_of(store: &InPlace, lba: u64) -> Option<u8> {
    match store.read_newest(Lba(lba), 1).await {
        Ok((_, block)) => Some(block[0].as_ref().map_or(0, |block| block[0])),
        Err(StoreError::Corrupt { lba: at, .. }) if at == Lba(lba) => None,
        Err(error) => panic!("block {lba}: {error}"),
    }
}

async fn overwrite(device: &DeviceRef, at: u64, bytes: Vec<u8>) {
    device.write(at, vec![bytes.into()], Purpose::Repair).await.unwrap();
}

/// A closed store of a format, with some blocks full of 7.
async fn filled(env: &Env, shape: &Shape, lbas: &[u64], format: u32) -> Vec<DeviceRef> {
    let devices = shape.memory();
    shape.create(env, &devices).await;
    if format < FORMAT_VERSION {
        age(&devices[0], shape).await;
    }
    let (store, _) = shape.open(env, &devices).await;
    assert_eq!(store.superblock().format, format);
    store.apply(lbas.iter().map(|lba| whole(*lba, 7)).collect()).await.unwrap();
    store.close().await.unwrap();
    devices
}

/// Gives an empty store format 1.
async fn age(device: &DeviceRef, shape: &Shape) {
    for at in (0..COPIES).map(|copy| copy * COPY) {
        let mut sector = device.read(at, 4096, Purpose::Label).await.unwrap().to_vec();
        sector[8..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        let sum = crc32c(&sector[..512]);
        sector[12..16].copy_from_slice(&sum.to_le_bytes());
        overwrite(device, at, sector).await;
    }
    let superblock = superblock(device).await;
    overwrite(device, superblock.map_offset, vec![0; map_size(shape)]).await;
}

fn map_size(shape: &Shape) -> usize {
    Superblock::map_size(shape.blocks) as usize
}

async fn superblock(device: &DeviceRef) -> Superblock {
    let found = inplace::dump::dump(device, false).await.unwrap();
    let copies = found.superblocks.into_iter().filter_map(|copy| copy.superblock);
    copies.max_by_key(|copy| copy.generation).unwrap()
}

async fn damaged_sectors(device: &DeviceRef) -> Vec<u64> {
    inplace::dump::dump(device, false).await.unwrap().map.unwrap().damaged
}

/// A sector of the map that was written and reads as zeros is damage, wherever it is.
#[test]
fn a_sector_of_the_map_that_reads_as_zeros_is_damaged() {
    for (number, sector) in [(0, 512), (1, 512), (3, 512), (7, 512), (0, 4096)] {
        run(1, |env| async move {
            let shape = Shape { sector, ..quiet() };
            let lbas = [0, 100, 126, 127, 300, 390];
            let devices = filled(&env, &shape, &lbas, FORMAT_VERSION).await;
            let map = superblock(&devices[0]).await.map_offset;
            // The device loses whole sectors of its own size.
            let unit = u64::from(sector);
            let lost = number * MAP_SECTOR / unit * unit;
            overwrite(&devices[0], map + lost, vec![0; unit as usize]).await;
            let expected: Vec<u64> = (lost / MAP_SECTOR..(lost + unit) / MAP_SECTOR).collect();
            assert_eq!(damaged_sectors(&devices[0]).await, expected);
            let (store, _) = shape.open(&env, &devices).await;
            let is_lost = |lba: u64| expected.contains(&(lba / ENTRIES));
            for lba in [0, 1, 100, 127, 300, 301, 390] {
                let stored = if lbas.contains(&lba) { 7 } else { 0 };
                let readable = (!is_lost(lba)).then_some(stored);
                assert_eq!(byte_of(&store, lba).await, readable, "block {lba}");
            }
            let report = store.scrub(Mend::No, &|_, _| {}).await.unwrap();
            assert_eq!((report.map_sectors, report.unverified), (expected.len() as u64, 0));
            // A write could not be told from the sector's old content.
            let refused = store.apply(vec![whole(number * ENTRIES % shape.blocks, 8)]).await;
            assert_eq!(refused.is_err(), is_lost(number * ENTRIES % shape.blocks));
        });
    }
}

/// A repair finds the empty blocks of a lost sector, and counts the others.
#[test]
fn a_lost_sector_of_the_map_is_replaced() {
    run(2, |env| async move {
        let shape = quiet();
        let devices = filled(&env, &shape, &[3, 60, 127], FORMAT_VERSION).await;
        let superblock = superblock(&devices[0]).await;
        overwrite(&devices[0], superblock.map_offset, vec![0; 512]).await;
        // Left by an earlier use of the device, where the store never wrote.
        overwrite(&devices[0], superblock.place(50), vec![9; BLOCK_SIZE]).await;
        let (store, _) = shape.open(&env, &devices).await;
        let report = store.scrub(Mend::Yes, &|_, _| {}).await.unwrap();
        assert_eq!((report.map_sectors, report.unverified, report.unsummed), (1, 3, 3));
        assert_eq!(store.allocation(Lba(0), 5, None), [(3, false), (1, true), (1, false)]);
        store.apply(vec![whole(4, 8)]).await.unwrap();
        store.close().await.unwrap();
        assert_eq!(damaged_sectors(&devices[0]).await, [0; 0]);
        let (store, _) = shape.open(&env, &devices).await;
        for (lba, byte) in [(0, 0), (3, 7), (4, 8), (50, 9), (60, 7), (126, 0), (127, 7)] {
            assert_eq!(byte_of(&store, lba).await, Some(byte), "block {lba}");
        }
        let report = store.scrub(Mend::No, &|_, _| {}).await.unwrap();
        assert_eq!((report.map_sectors, report.unverified, report.lost), (0, 0, vec![]));
    });
}

/// A store of format 1 has sectors of zeros where its blocks are empty, and stays as it is.
#[test]
fn a_store_of_format_1_keeps_its_zeros() {
    run(3, |env| async move {
        let shape = quiet();
        let devices = filled(&env, &shape, &[130], 1).await;
        assert_eq!(damaged_sectors(&devices[0]).await, [0; 0]);
        let map = superblock(&devices[0]).await.map_offset;
        let read = async |at, len| devices[0].read(map + at, len, Purpose::Map).await.unwrap();
        assert_eq!(read(0, 512).await, vec![0; 512]);
        assert_ne!(read(512, 512).await, vec![0; 512]);
        let (store, _) = shape.open(&env, &devices).await;
        assert_eq!(byte_of(&store, 0).await, Some(0));
        assert_eq!(byte_of(&store, 130).await, Some(7));
        let report = store.scrub(Mend::Yes, &|_, _| {}).await.unwrap();
        assert_eq!((report.map_sectors, report.unverified), (0, 0));
        store.apply(vec![whole(0, 8)]).await.unwrap();
        store.close().await.unwrap();
        let (store, _) = shape.open(&env, &devices).await;
        assert_eq!((byte_of(&store, 0).await, byte_of(&store, 1).await), (Some(8), Some(0)));
    });
}

/// One flipped bit in the first block of the catalogue, which the map's checksum turns into an error.
#[test]
fn a_flipped_bit_in_the_catalogue_is_repaired() {
    for block in [0, 15] {
        run(4, |env| async move {
            let shape = quiet();
            let devices = shape.memory();
            shape.create(&env, &devices).await;
            let open = async || {
                let (store, _) = shape.open(&env, &devices).await;
                let store = Arc::new(store);
                (store.clone(), TransactionManager::new(&env, store, txn::Options::default()))
            };
            let (store, volume) = open().await;
            let new = NewPartition {
                name: "names".to_owned(),
                kind: Kind::Btree,
                first: None,
                blocks: Some(100),
            };
            catalogue::create(&env, &volume, &new).await.unwrap();
            let place = store.superblock().place(block);
            store.close().await.unwrap();
            drop((store, volume));
            let read = async || {
                devices[0].read(place, BLOCK_SIZE, Purpose::Repair).await.unwrap().to_vec()
            };
            let good = read().await;
            let mut bad = good.clone();
            bad[200] ^= 4;
            overwrite(&devices[0], place, bad).await;
            let (store, volume) = open().await;
            assert_eq!(byte_of(&store, block).await, None);
            let partition = catalogue::open(&volume, "names").await.unwrap();
            assert_eq!(partition.first, 16);
            assert_eq!(store.scrub(Mend::No, &|_, _| {}).await.unwrap().lost, [block]);
            assert_eq!(catalogue::damaged_blocks(&volume).await.unwrap(), [block]);
            assert_eq!(catalogue::repair(&volume).await.unwrap(), [block]);
            assert_eq!(store.scrub(Mend::No, &|_, _| {}).await.unwrap().lost, [0; 0]);
            assert_eq!(read().await, good);
        });
    }
}

/// Where a store has its journal, and the content that replaces both superblocks of it.
async fn lose_journal(shape: &Shape, devices: &[DeviceRef]) {
    let (device, at) = match shape.external {
        true => (&devices[1], 0),
        false => (&devices[0], START),
    };
    overwrite(device, at, vec![0; (COPIES * COPY) as usize]).await;
}

/// After an orderly close the transactions that the ring still shows are not replayed.
#[test]
fn a_closed_store_needs_nothing_of_a_journal_without_superblocks() {
    for external in [false, true] {
        run(5, |env| async move {
            let shape = Shape { external, ..quiet() };
            let devices = filled(&env, &shape, &[3, 200], FORMAT_VERSION).await;
            lose_journal(&shape, &devices).await;
            let parts = shape.parts(&devices);
            let error = InPlace::open(&env, parts.clone(), shape.options).await.map(drop);
            let said = error.unwrap_err().to_string();
            assert!(external || said.contains("fsck -y"), "{said}");
            let opened = InPlace::open_damaged(&env, parts, shape.options).await;
            let (store, found) = opened.unwrap();
            assert!(found.journal_rebuilt);
            assert_eq!((found.transactions, found.blocks, found.journal_missing), (0, 0, 0));
            assert_eq!((byte_of(&store, 3).await, byte_of(&store, 200).await), (Some(7), Some(7)));
            store.apply(vec![whole(3, 8)]).await.unwrap();
            store.sync(store.now()).await.unwrap();
            // Lost again, before anything is in place.
            drop(store);
            lose_journal(&shape, &devices).await;
            let opened = InPlace::open_damaged(&env, shape.parts(&devices), shape.options).await;
            let (store, found) = opened.unwrap();
            assert_eq!((found.transactions, found.blocks), (1, 1));
            assert_eq!((byte_of(&store, 3).await, byte_of(&store, 200).await), (Some(8), Some(7)));
            drop(store);
            let (_, found) = shape.open(&env, &devices).await;
            assert!(!found.journal_rebuilt);
        });
    }
}

/// An older program had the store open last: its superblock has no note of the journal.
#[test]
fn a_journal_that_was_not_noted_is_found_by_its_records() {
    run(6, |env| async move {
        let shape = Shape { external: false, ..quiet() };
        let devices = filled(&env, &shape, &[3, 200], 1).await;
        let (store, _) = shape.open(&env, &devices).await;
        for byte in 8..40 {
            store.apply(vec![whole(3, byte), whole(u64::from(byte), byte)]).await.unwrap();
            store.sync(store.now()).await.unwrap();
        }
        drop(store);
        for at in (0..COPIES).map(|copy| copy * COPY) {
            let mut sector = devices[0].read(at, 4096, Purpose::Label).await.unwrap().to_vec();
            sector[12..16].fill(0);
            // The bytes behind the field `sector`.
            sector[180..512].fill(0);
            let sum = crc32c(&sector[..512]);
            sector[12..16].copy_from_slice(&sum.to_le_bytes());
            overwrite(&devices[0], at, sector).await;
        }
        let superblock = superblock(&devices[0]).await;
        assert_eq!((superblock.format, superblock.journal_note), (1, Note::default()));
        lose_journal(&shape, &devices).await;
        let opened = InPlace::open_damaged(&env, shape.parts(&devices), shape.options).await;
        let (store, found) = opened.unwrap();
        // Each takes 8.5 KiB, and the ring of 264 KiB has room for 31: the first was released.
        assert!(found.transactions >= 31 && found.journal_missing == 0, "{found:?}");
        for byte in 8..40 {
            assert_eq!(byte_of(&store, u64::from(byte)).await, Some(byte));
        }
        assert_eq!((byte_of(&store, 3).await, byte_of(&store, 20).await), (Some(39), Some(20)));
        assert!(store.superblock().journal_note.epoch == 0);
    });
}

/// Each backup of the superblock leads to the same store; only a repair reads them.
#[test]
fn lost_superblocks_are_restored_from_a_backup() {
    for external in [false, true] {
        run(8, |env| async move {
            let shape = Shape { external, ..quiet() };
            let devices = filled(&env, &shape, &[3], FORMAT_VERSION).await;
            let last = devices[0].geometry().size / COPY * COPY - COPY;
            for kept in [START - COPY, last] {
                let before = superblock(&devices[0]).await;
                for at in [0, COPY, START - COPY, last].into_iter().filter(|at| *at != kept) {
                    overwrite(&devices[0], at, vec![0; 512]).await;
                }
                let parts = shape.parts(&devices);
                let error = InPlace::open(&env, parts.clone(), shape.options).await.map(drop);
                assert!(matches!(error, Err(InPlaceError::NoSuperblock { .. })), "{error:?}");
                let opened = InPlace::open_damaged(&env, parts, shape.options).await;
                let (store, found) = opened.unwrap();
                assert!(found.superblock_restored && !found.journal_rebuilt);
                assert_eq!(byte_of(&store, 3).await, Some(7));
                assert_eq!(store.superblock(), before);
                store.close().await.unwrap();
            }
            // A new store leaves no backup of the old one.
            shape.create(&env, &devices).await;
            let (store, _) = shape.open(&env, &devices).await;
            assert_eq!(byte_of(&store, 3).await, Some(0));
        });
    }
}

/// A device that does not show that it was this volume's journal is not turned into one.
#[test]
fn a_device_that_may_be_any_is_not_taken_for_a_journal() {
    run(7, |env| async move {
        let shape = Shape { external: true, ..quiet() };
        let devices = filled(&env, &shape, &[3], FORMAT_VERSION).await;
        let other: DeviceRef = Arc::new(MemoryDevice::new(1 << 20));
        overwrite(&other, 65_536, vec![7; 4096]).await;
        let parts = Parts { data: devices[0].clone(), journal: Some(other.clone()) };
        let refused = InPlace::open_damaged(&env, parts, shape.options).await.map(drop);
        assert!(
            matches!(refused, Err(InPlaceError::Journal(JournalError::NoJournal { .. }))),
            "{refused:?}"
        );
        let start = other.read(0, 8192, Purpose::Journal).await.unwrap();
        assert!(start.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn golden_bytes_of_an_empty_sector() {
    let volume = Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
    let sector = MapSector::empty(3, &volume);
    assert!(sector.as_bytes()[..508].iter().all(|byte| *byte == 0));
    assert_eq!(sector.checksum.get(), 508_839_466);
    assert!(sector.is_whole(3, &volume, 1) && sector.is_whole(3, &volume, FORMAT_VERSION));
    assert!(!sector.is_whole(4, &volume, 1));
}
