//! The in-place store, case by case: what each mode writes where, what a crash leaves, and errors
//! about devices that are damaged, foreign or failing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_sim::crash::Shape as Survival;
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::recording::{Event, Recorder};
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Class, Lba, StoreError, Write};
use thalweg_store::device::{DeviceRef, MemoryDevice, Operation, Purpose, Tallies};
use thalweg_store::inplace::{InPlace, InPlaceError, Mend, Mode, NewInPlace, Options, Parts};
use thalweg_store::journal::JournalError;

use crate::support::Shape;

/// A store without background work.
fn quiet(mode: Mode) -> Shape {
    let shape = Shape::new(mode);
    let never = Duration::from_secs(100_000);
    let options = Options {
        threshold: 4096,
        commit: never,
        writeback: never,
        expire: never,
        cache: 1 << 20,
        ..shape.options
    };
    Shape { options, ..shape }
}

fn part(lba: u64, old: u8, range: std::ops::Range<usize>, new: u8, class: Class) -> Write {
    let mut content = vec![old; BLOCK_SIZE];
    content[range.clone()].fill(new);
    Write { lba: Lba(lba), content: Some(content.into()), changed: range.into(), class }
}

fn whole(lba: u64, new: u8, class: Class) -> Write {
    let content = Some(Bytes::from(vec![new; BLOCK_SIZE]));
    Write { content, class, ..Write::block(Lba(lba), Bytes::new()) }
}

fn discard(lba: u64) -> Write {
    Write { content: None, class: Class::Metadata, ..Write::block(Lba(lba), Bytes::new()) }
}

async fn bytes_of(store: &InPlace, lba: u64) -> (u8, u8) {
    let block = store.read(Lba(lba), 1, store.now()).await.unwrap().remove(0);
    block.map_or((0, 0), |block| (block[0], block[BLOCK_SIZE - 1]))
}

/// Three data blocks, of which two change in part and one as a whole, and three metadata blocks, as in
/// figure 4.3. Each holds ones before.
const DATA: [u64; 3] = [100, 110, 120];
const METADATA: [u64; 3] = [3, 7, 11];

async fn figure(store: &InPlace) {
    let first = DATA.map(|lba| whole(lba, 1, Class::Data));
    let second = METADATA.map(|lba| whole(lba, 1, Class::Metadata));
    store.apply(first.into_iter().chain(second).collect()).await.unwrap();
    store.sync(store.now()).await.unwrap();
    store.checkpoint().await.unwrap();
}

fn updates() -> Vec<Write> {
    let partial = |lba| part(lba, 1, 0..700, 2, Class::Data);
    let meta = METADATA.map(|lba| part(lba, 1, 0..20, 2, Class::Metadata));
    let data = [partial(DATA[0]), partial(DATA[1]), whole(DATA[2], 2, Class::Data)];
    data.into_iter().chain(meta).collect()
}

/// The first bytes of the data blocks and of the metadata blocks after a crash at t1, t2 and t3: before
/// anything is sent, when data and journal are written and the last flush has not ended, and after it.
fn figure_4_3(mode: Mode) -> Vec<([u8; 3], [u8; 3])> {
    run(1, |env| async move {
        let shape = quiet(mode);
        let recorder = Recorder::with_latency(&env, Duration::from_micros(100));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        store.apply(updates()).await.unwrap();
        let t1 = recorder.position();
        store.sync(store.now()).await.unwrap();
        let t3 = recorder.position();
        let events = recorder.log().events;
        // The journal's write, which has the commit record.
        let commit = events.iter().rposition(|event| matches!(event, Event::WriteBegan(_)));
        let mut states = Vec::new();
        for (point, kept) in [(t1, true), (commit.unwrap(), true), (t3, false)] {
            let survival = match kept {
                true => Survival::Everything,
                false => Survival::Nothing,
            };
            let image = recorder.image(point, survival);
            let (store, _) = shape.open(&env, &image.devices).await;
            let mut state = ([0; 3], [0; 3]);
            for nth in 0..3 {
                state.0[nth] = bytes_of(&store, DATA[nth]).await.0;
                state.1[nth] = bytes_of(&store, METADATA[nth]).await.0;
            }
            states.push(state);
        }
        states
    })
}

#[test]
fn a_crash_leaves_what_figure_4_3_says() {
    let (old, new) = ([1; 3], [2; 3]);
    for mode in [Mode::Data, Mode::Wasteless] {
        assert_eq!(figure_4_3(mode), [(old, old), (old, old), (new, new)], "{mode}");
    }
    // All data is written before the commit, and no metadata.
    assert_eq!(figure_4_3(Mode::Ordered), [(old, old), (new, old), (new, new)]);
    // Only the block that changed as a whole is.
    assert_eq!(figure_4_3(Mode::Selective), [(old, old), ([1, 1, 2], old), (new, new)]);
}

/// Cost of one transaction of the figure: bytes in the journal, blocks in place before the commit,
/// and flushes.
fn cost(mode: Mode, external: bool) -> (u64, u64, u64) {
    run(1, |env| async move {
        let shape = Shape { external, ..quiet(mode) };
        let devices = shape.memory();
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        let tallies = |devices: &[DeviceRef]| {
            let mut sum = Tallies::default();
            devices.iter().for_each(|device| sum += device.tallies());
            sum
        };
        let before = tallies(&devices);
        store.apply(updates()).await.unwrap();
        store.sync(store.now()).await.unwrap();
        let spent = tallies(&devices).since(&before);
        let home = spent.of(Purpose::UserData).write_bytes / BLOCK_SIZE as u64;
        (spent.of(Purpose::Journal).write_bytes, home, spent.total().flushes)
    })
}

#[test]
fn each_mode_writes_what_it_should() {
    for external in [false, true] {
        // Two partial blocks of 700 bytes and three times 20 of metadata, in sectors; then whole blocks.
        assert_eq!(cost(Mode::Wasteless, external), (1536 + 4096, 0, 1));
        assert_eq!(cost(Mode::Data, external), (512 + 3 * 4096, 0, 1));
        assert_eq!(cost(Mode::Selective, external), (1536, 1, 2));
        assert_eq!(cost(Mode::Ordered, external), (512, 3, 2));
    }
    assert_eq!(cost(Mode::Writeback, false), (512, 3, 1));
    assert_eq!(cost(Mode::Writeback, true), (512, 3, 2));
}

/// In writeback mode a timer commits metadata without its data.
#[test]
fn writeback_commits_metadata_without_its_data() {
    run(2, |env| async move {
        let shape = quiet(Mode::Writeback);
        let options = Options { commit: Duration::from_millis(20), ..shape.options };
        let shape = Shape { options, ..shape };
        let devices = shape.memory();
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        store.apply(updates()).await.unwrap();
        env.sleep(Duration::from_millis(100)).await;
        drop(store);
        let (store, _) = shape.open(&env, &devices).await;
        assert_eq!(bytes_of(&store, METADATA[0]).await.0, 2);
        assert_eq!(bytes_of(&store, DATA[0]).await.0, 1);
    });
}

/// Journal bytes of a sequence of changes of one block, each synced.
fn sequence(changes: &[usize], checkpoint_after: usize) -> (u64, u64) {
    let changes = changes.to_vec();
    run(3, |env| async move {
        let shape = quiet(Mode::Selective);
        let devices = shape.memory();
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        let before = store.status().counts;
        for (nth, len) in changes.iter().enumerate() {
            let new = 10 + nth as u8;
            let write = match *len {
                BLOCK_SIZE => whole(DATA[0], new, Class::Data),
                len => {
                    let old = bytes_of(&store, DATA[0]).await.1;
                    part(DATA[0], old, 0..len, new, Class::Data)
                }
            };
            store.apply(vec![write]).await.unwrap();
            store.sync(store.now()).await.unwrap();
            if nth + 1 == checkpoint_after {
                store.checkpoint().await.unwrap();
            }
        }
        let counts = store.status().counts;
        (counts.journal_bytes - before.journal_bytes, counts.direct - before.direct)
    })
}

#[test]
fn an_update_sequence_stays_as_it_began() {
    // Small first: the whole block is journaled too.
    assert_eq!(sequence(&[100, BLOCK_SIZE], 0), (512 + 512 + 4096, 0));
    // Large first and written at once: the next write begins a new sequence.
    assert_eq!(sequence(&[BLOCK_SIZE, 100], 0), (512 + 512, 1));
    // Written back in between: the large write goes directly then.
    assert_eq!(sequence(&[100, BLOCK_SIZE], 1), (512 + 512, 1));
}

/// The journal holds a small change of a block when a large one is written directly: replay must
/// not put the old bytes over the new ones.
#[test]
fn nothing_old_is_replayed_over_what_went_home_directly() {
    run(4, |env| async move {
        let shape = quiet(Mode::Selective);
        let devices = shape.memory();
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        store.apply(vec![part(DATA[0], 1, 0..100, 2, Class::Data)]).await.unwrap();
        store.sync(store.now()).await.unwrap();
        store.checkpoint().await.unwrap();
        store.apply(vec![whole(DATA[0], 3, Class::Data)]).await.unwrap();
        store.sync(store.now()).await.unwrap();
        drop(store);
        let (store, _) = shape.open(&env, &devices).await;
        assert_eq!(bytes_of(&store, DATA[0]).await, (3, 3));
    });
}

/// The same while the journal has to keep the small change because of another block: a crash in the
/// middle of the large write leaves each sector old or new, never the small change.
#[test]
fn nothing_is_written_directly_under_bytes_that_may_be_replayed() {
    run(14, |env| async move {
        let shape = quiet(Mode::Selective);
        let options = Options {
            writeback: Duration::from_millis(10),
            expire: Duration::from_millis(100),
            ..shape.options
        };
        let shape = Shape { options, ..shape };
        let recorder = Recorder::with_latency(&env, Duration::from_micros(100));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        let [a, b, _] = DATA;
        store.apply(vec![part(a, 1, 0..100, 2, Class::Data)]).await.unwrap();
        store.sync(store.now()).await.unwrap();
        env.sleep(Duration::from_millis(60)).await;
        let again = part(a, 1, 0..100, 3, Class::Data);
        store.apply(vec![again, part(b, 1, 0..100, 3, Class::Data)]).await.unwrap();
        store.sync(store.now()).await.unwrap();
        env.sleep(Duration::from_millis(70)).await;
        assert_eq!(store.status().dirty, 1, "the first block is home, the second is not");
        store.apply(vec![whole(a, 4, Class::Data)]).await.unwrap();
        let applied = recorder.position();
        store.sync(store.now()).await.unwrap();
        for point in applied..=recorder.position() {
            let image = recorder.image(point, Survival::Everything);
            let (store, _) = shape.open(&env, &image.devices).await;
            let block = store.read(Lba(a), 1, store.now()).await.unwrap().remove(0).unwrap();
            assert!([(3, 1), (4, 4)].contains(&(block[0], block[511])), "{}", image.describe());
        }
    });
}

#[test]
fn a_block_that_was_freed_shows_nothing_old() {
    for mode in Mode::ALL {
        run(5, |env| async move {
            let shape = quiet(mode);
            let devices = shape.memory();
            shape.create(&env, &devices).await;
            let (store, _) = shape.open(&env, &devices).await;
            figure(&store).await;
            store.apply(vec![discard(DATA[0])]).await.unwrap();
            let fresh = part(DATA[0], 0, 50..60, 9, Class::Data);
            store.apply(vec![fresh]).await.unwrap();
            store.sync(store.now()).await.unwrap();
            drop(store);
            let (store, _) = shape.open(&env, &devices).await;
            let block = store.read(Lba(DATA[0]), 1, store.now()).await.unwrap().remove(0).unwrap();
            assert_eq!((block[0], block[55], block[4095]), (0, 9, 0), "{mode}");
        });
    }
}

#[test]
fn rot_is_found_where_there_are_checksums() {
    run(6, |env| async move {
        let shape = quiet(Mode::Wasteless);
        let devices = shape.memory();
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        let place = store.superblock().place(DATA[1]);
        store.close().await.unwrap();
        drop(store);
        let mut block =
            devices[0].read(place, BLOCK_SIZE, Purpose::UserData).await.unwrap().to_vec();
        block[17] ^= 4;
        devices[0].write(place, vec![block.into()], Purpose::UserData).await.unwrap();
        let (store, _) = shape.open(&env, &devices).await;
        let error = store.read(Lba(DATA[1]), 1, store.now()).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { lba: Lba(110), .. }), "{error}");
        assert_eq!(bytes_of(&store, DATA[0]).await, (1, 1));
        let report = store.scrub(Mend::Yes, &|_, _| {}).await.unwrap();
        assert_eq!((report.blocks, report.lost), (6, vec![DATA[1]]));
    });
}

#[test]
fn a_damaged_sector_of_the_map_is_said_and_given_up() {
    run(7, |env| async move {
        let shape = quiet(Mode::Wasteless);
        let devices = shape.memory();
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        let place = store.superblock().map_offset;
        store.close().await.unwrap();
        drop(store);
        let mut sector = devices[0].read(place, 512, Purpose::Map).await.unwrap().to_vec();
        sector[40] ^= 1;
        devices[0].write(place, vec![sector.into()], Purpose::Map).await.unwrap();
        let (store, _) = shape.open(&env, &devices).await;
        let error = store.read(Lba(METADATA[0]), 1, store.now()).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        // Block 140 is in the next sector.
        assert!(store.read(Lba(140), 1, store.now()).await.is_ok());
        let report = store.scrub(Mend::No, &|_, _| {}).await.unwrap();
        assert_eq!((report.map_sectors, report.lost.len()), (1, 0));
        assert!(store.read(Lba(METADATA[0]), 1, store.now()).await.is_err());
        let report = store.scrub(Mend::Yes, &|_, _| {}).await.unwrap();
        assert_eq!((report.map_sectors, report.lost.len()), (1, 0));
        assert_eq!(bytes_of(&store, METADATA[0]).await, (1, 1));
        store.close().await.unwrap();
        drop(store);
        let (store, _) = shape.open(&env, &devices).await;
        assert_eq!(bytes_of(&store, DATA[2]).await, (1, 1));
    });
}

/// Cost of writing back two blocks whose neighbours in between are in place: writes, and blocks in
/// them.
async fn home_of_two(store: &InPlace, device: &DeviceRef, lbas: [u64; 2]) -> (u64, u64) {
    for lba in lbas {
        store.apply(vec![part(lba, 1, 0..10, 2, Class::Data)]).await.unwrap();
    }
    store.sync(store.now()).await.unwrap();
    let before = device.tallies();
    store.checkpoint().await.unwrap();
    let spent = device.tallies().since(&before).of(Purpose::UserData);
    (spent.writes, spent.write_bytes / BLOCK_SIZE as u64)
}

/// Twenty blocks that are in place and in memory.
async fn twenty(env: &Env, shape: &Shape, devices: &[DeviceRef]) -> InPlace {
    shape.create(env, devices).await;
    let (store, _) = shape.open(env, devices).await;
    for lba in 40..60 {
        store.apply(vec![whole(lba, 1, Class::Data)]).await.unwrap();
    }
    store.sync(store.now()).await.unwrap();
    store.checkpoint().await.unwrap();
    store
}

fn with_gap(bytes: u32) -> Shape {
    let shape = quiet(Mode::Wasteless);
    Shape { options: Options { gap: Some(bytes), ..shape.options }, ..shape }
}

#[test]
fn short_gaps_between_blocks_on_their_way_home_are_closed() {
    run(17, |env| async move {
        let shape = with_gap(5 * BLOCK_SIZE as u32);
        let devices = shape.memory();
        let store = twenty(&env, &shape, &devices).await;
        assert_eq!(home_of_two(&store, &devices[0], [42, 48]).await, (1, 7));
        assert_eq!(store.status().counts.filled, 5);
        assert_eq!(home_of_two(&store, &devices[0], [50, 57]).await, (2, 2), "too far");
        store.apply(vec![discard(45)]).await.unwrap();
        store.sync(store.now()).await.unwrap();
        store.checkpoint().await.unwrap();
        assert_eq!(home_of_two(&store, &devices[0], [44, 47]).await, (2, 2), "nothing is there");
        // It must not be written before it is committed.
        store.apply(vec![part(52, 1, 0..10, 3, Class::Data)]).await.unwrap();
        let before = devices[0].tallies();
        store.checkpoint().await.unwrap();
        assert_eq!(devices[0].tallies().since(&before).of(Purpose::UserData).writes, 0);
        store.sync(store.now()).await.unwrap();
        store.checkpoint().await.unwrap();
        for lba in [51, 53] {
            store.apply(vec![part(lba, 1, 0..10, 2, Class::Data)]).await.unwrap();
        }
        store.sync(store.now()).await.unwrap();
        store.apply(vec![part(52, 1, 0..10, 4, Class::Data)]).await.unwrap();
        let before = devices[0].tallies();
        store.checkpoint().await.unwrap();
        let spent = devices[0].tallies().since(&before).of(Purpose::UserData);
        assert_eq!((spent.writes, spent.write_bytes), (2, 2 * BLOCK_SIZE as u64));
        store.close().await.unwrap();
        drop(store);
        let (store, _) = shape.open(&env, &devices).await;
        assert_eq!(home_of_two(&store, &devices[0], [54, 59]).await, (2, 2), "not in memory");
        let expected =
            [(41, 1), (42, 2), (43, 1), (44, 2), (45, 0), (46, 1), (47, 2), (48, 2), (49, 1)];
        for (lba, first) in
            expected.into_iter().chain([(50, 2), (51, 2), (52, 4), (53, 2), (56, 1), (57, 2)])
        {
            assert_eq!(bytes_of(&store, lba).await, (first, first.min(1)), "block {lba}");
        }
    });
}

/// Dirty blocks in a gap between blocks to be written back are written along.
#[test]
fn what_waits_between_blocks_on_their_way_home_goes_along() {
    run(22, |env| async move {
        let span = Duration::from_secs(10);
        let shape = with_gap(5 * BLOCK_SIZE as u32);
        let options = Options { expire: span, writeback: span / 10, ..shape.options };
        let shape = Shape { options, ..shape };
        let devices = shape.memory();
        let store = twenty(&env, &shape, &devices).await;
        let change = async |lba, to| {
            store.apply(vec![part(lba, 1, 0..10, to, Class::Data)]).await.unwrap();
            store.sync(store.now()).await.unwrap();
        };
        env.sleep(span).await;
        let before = (devices[0].tallies(), store.status().counts);
        for lba in [42, 48] {
            change(lba, 2).await;
        }
        env.sleep(span / 2).await;
        for lba in [43, 45, 55] {
            change(lba, 3).await;
        }
        // Committed blocks in the gap are written along.
        store.apply(vec![part(43, 1, 0..10, 4, Class::Data)]).await.unwrap();
        env.sleep(span / 2 + span / 5).await;
        let spent = devices[0].tallies().since(&before.0).of(Purpose::UserData);
        assert_eq!((spent.writes, spent.write_bytes), (1, 7 * BLOCK_SIZE as u64));
        let (counts, dirty) = (store.status().counts, store.status().dirty);
        assert_eq!(counts.checkpointed - before.1.checkpointed, 4);
        assert_eq!((counts.filled - before.1.filled, dirty), (3, 2));
        drop(store);
        let (store, _) = shape.open(&env, &devices).await;
        let expected = [(42, 2), (43, 3), (44, 1), (45, 3), (46, 1), (48, 2), (55, 3)];
        for (lba, first) in expected {
            assert_eq!(bytes_of(&store, lba).await, (first, 1), "block {lba}");
        }
    });
}

/// A block that closes a gap is not written otherwise meanwhile: a device may reorder two
/// concurrent writes.
#[test]
fn a_block_that_closes_a_gap_is_on_its_way() {
    run(21, |env| async move {
        let shape = with_gap(64 << 10);
        let shape = Shape { options: Options { mode: Mode::Selective, ..shape.options }, ..shape };
        let ([data, _], devices) = faulty(&env, &shape).await;
        let store = twenty(&env, &shape, &devices).await;
        for lba in [42, 48] {
            store.apply(vec![part(lba, 1, 0..10, 2, Class::Data)]).await.unwrap();
        }
        store.sync(store.now()).await.unwrap();
        let (direct, filled) = (store.status().counts.direct, store.status().counts.filled);
        let span = Duration::from_millis(10);
        data.slow(1.0, span);
        let begun = env.now();
        let changed = async {
            env.sleep(span / 2).await;
            store.apply(vec![whole(45, 9, Class::Data)]).await.unwrap();
            store.sync(store.now()).await.unwrap();
        };
        let (home, ()) = futures::join!(store.checkpoint(), changed);
        home.unwrap();
        let counts = store.status().counts;
        assert_eq!((counts.direct - direct, counts.filled - filled), (1, 5));
        // Both writes, one after the other, and a flush.
        assert!(env.now().since(begun) >= span * 3, "{:?}", env.now().since(begun));
        assert_eq!(bytes_of(&store, 45).await, (9, 9));
    });
}

/// Without a rotational disk, and unless asked for, no unchanged block is written.
#[test]
fn gaps_are_closed_for_drives_that_move_an_arm() {
    run(18, |env| async move {
        let shape = quiet(Mode::Wasteless);
        let devices = shape.memory();
        let store = twenty(&env, &shape, &devices).await;
        assert_eq!(home_of_two(&store, &devices[0], [42, 48]).await, (2, 2));
        let devices = shape.devices(|name, geometry| {
            Arc::new(HardDisk::new(&env, name, HardDiskSpec::sas_15k(geometry.size)))
        });
        let store = twenty(&env, &shape, &devices).await;
        assert_eq!(home_of_two(&store, &devices[0], [42, 48]).await, (1, 7));
        // Nor on a device that wrongly reports that it is rotational, once that is overridden.
        store.set_options(Options { rotational: Some(false), ..store.options() });
        assert_eq!(home_of_two(&store, &devices[0], [43, 49]).await, (2, 2));
    });
}

#[test]
fn a_gap_that_cannot_be_written_keeps_nobody_from_home() {
    run(19, |env| async move {
        let shape = with_gap(64 << 10);
        let ([data, _], devices) = faulty(&env, &shape).await;
        let store = twenty(&env, &shape, &devices).await;
        data.fail(Operation::Write, 1);
        assert_eq!(home_of_two(&store, &devices[0], [42, 48]).await.1, 2);
        assert_eq!((store.status().counts.filled, store.status().dirty), (0, 0));
    });
}

/// Distant sectors of the map are merged into one write where the pages between them are in memory.
#[test]
fn short_gaps_in_the_map_are_closed() {
    let writes = |gap| {
        run(20, |env| async move {
            let shape = Shape { blocks: 3000, ..with_gap(gap) };
            let devices = shape.memory();
            shape.create(&env, &devices).await;
            let (store, _) = shape.open(&env, &devices).await;
            for lba in [10, 2900] {
                store.apply(vec![whole(lba, 1, Class::Data)]).await.unwrap();
            }
            let _ = store.read(Lba(0), 2999, store.now()).await.unwrap();
            store.sync(store.now()).await.unwrap();
            let before = devices[0].tallies();
            store.checkpoint().await.unwrap();
            let writes = devices[0].tallies().since(&before).of(Purpose::Map).writes;
            store.close().await.unwrap();
            drop(store);
            let (store, _) = shape.open(&env, &devices).await;
            assert_eq!(bytes_of(&store, 10).await, (1, 1));
            assert_eq!(bytes_of(&store, 2900).await, (1, 1));
            writes
        })
    };
    assert_eq!((writes(0), writes(4096), writes(64 << 10)), (2, 2, 1));
}

/// Its neighbours are written in the same request, or are in the same sector of the device.
#[test]
fn a_damaged_sector_of_the_map_stays_damaged_when_it_is_written() {
    for sector in [512, 4096] {
        run(16, |env| async move {
            let shape = Shape { sector, blocks: 400, ..quiet(Mode::Wasteless) };
            let devices = shape.memory();
            shape.create(&env, &devices).await;
            let (store, _) = shape.open(&env, &devices).await;
            // Sectors 1, 2 and 3 of the map.
            let [first, damaged, third] = [5, 130, 260];
            for lba in [first, damaged, third] {
                store.apply(vec![whole(lba, 1, Class::Data)]).await.unwrap();
            }
            let place = store.superblock().map_offset;
            store.close().await.unwrap();
            drop(store);
            let mut page = devices[0].read(place, 4096, Purpose::Map).await.unwrap().to_vec();
            page[512 + 40] ^= 1;
            devices[0].write(place, vec![page.into()], Purpose::Map).await.unwrap();
            let (store, _) = shape.open(&env, &devices).await;
            for lba in [first, third] {
                store.apply(vec![whole(lba, 2, Class::Data)]).await.unwrap();
            }
            store.close().await.unwrap();
            drop(store);
            let (store, _) = shape.open(&env, &devices).await;
            let read = store.read(Lba(damaged), 1, store.now()).await.map(drop);
            assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
            assert_eq!(bytes_of(&store, first).await, (2, 2));
            assert_eq!(bytes_of(&store, third).await, (2, 2));
        });
    }
}

#[test]
fn what_does_not_belong_together_is_refused() {
    run(8, |env| async move {
        let shape = quiet(Mode::Wasteless);
        let (devices, others) = (shape.memory(), shape.memory());
        let open = async |data: &DeviceRef, journal: Option<&DeviceRef>| {
            let parts = Parts { data: data.clone(), journal: journal.cloned() };
            InPlace::open(&env, parts, shape.options).await.map(drop).unwrap_err()
        };
        assert!(matches!(open(&devices[0], None).await, InPlaceError::NoStore { .. }));
        shape.create(&env, &devices).await;
        shape.create(&env, &others).await;
        assert!(matches!(open(&devices[0], None).await, InPlaceError::JournalElsewhere { .. }));
        let foreign = open(&devices[0], Some(&others[1])).await;
        assert!(
            matches!(foreign, InPlaceError::Journal(JournalError::Foreign { .. })),
            "{foreign}"
        );
        let blank: DeviceRef = Arc::new(MemoryDevice::new(1 << 20));
        let none = open(&devices[0], Some(&blank)).await;
        assert!(matches!(none, InPlaceError::Journal(JournalError::NoJournal { .. })), "{none}");
        let inside = Shape { external: false, ..shape };
        let single = inside.memory();
        inside.create(&env, &single).await;
        assert!(matches!(open(&single[0], Some(&blank)).await, InPlaceError::JournalInside));
        let (store, _) = shape.open(&env, &devices).await;
        let error = store.apply(vec![whole(shape.blocks, 1, Class::Data)]).await.unwrap_err();
        assert!(matches!(error, StoreError::Invalid(_)));
        assert!(store.read(Lba(shape.blocks - 1), 2, store.now()).await.is_err());
    });
}

#[test]
fn too_small_a_device_is_refused() {
    run(9, |env| async move {
        let create = async |size: u64, new: NewInPlace| {
            let data: DeviceRef = Arc::new(MemoryDevice::new(size));
            InPlace::create(&env, &Parts { data, journal: None }, &new).await
        };
        let error = create(256 << 10, NewInPlace::default()).await.unwrap_err();
        assert!(matches!(error, InPlaceError::Invalid(_)), "{error}");
        let large = NewInPlace { size: Some(1 << 30), ..NewInPlace::default() };
        let error = create(64 << 20, large).await.unwrap_err();
        assert!(matches!(error, InPlaceError::Invalid(_)), "{error}");
        create(64 << 20, NewInPlace::default()).await.unwrap();
    });
}

/// A store whose devices fail on command: data, then journal.
async fn faulty(env: &Env, shape: &Shape) -> ([Faults; 2], Vec<DeviceRef>) {
    let wrapped: Vec<_> =
        shape.memory().into_iter().map(|device| Faulty::wrap(env, device)).collect();
    let devices: Vec<DeviceRef> =
        wrapped.iter().map(|(device, _)| device.clone() as DeviceRef).collect();
    shape.create(env, &devices).await;
    let mut faults = wrapped.into_iter().map(|(_, faults)| faults);
    ([faults.next().unwrap(), faults.next().unwrap()], devices)
}

#[test]
fn a_journal_that_fails_poisons_the_store() {
    for flush in [false, true] {
        run(10, |env| async move {
            let shape = quiet(Mode::Wasteless);
            let ([_, journal], devices) = faulty(&env, &shape).await;
            let (store, _) = shape.open(&env, &devices).await;
            figure(&store).await;
            journal.fail(if flush { Operation::Flush } else { Operation::Write }, 1);
            store.apply(updates()).await.unwrap();
            assert!(store.sync(store.now()).await.is_err());
            let error = store.apply(updates()).await.unwrap_err();
            assert!(matches!(error, StoreError::Poisoned(_)), "{error}");
            // Reads still work.
            assert_eq!(bytes_of(&store, DATA[0]).await.0, 2);
            drop(store);
            let (store, _) = shape.open(&env, &devices).await;
            let found = bytes_of(&store, DATA[0]).await.0;
            assert_eq!(found, bytes_of(&store, METADATA[0]).await.0);
        });
    }
}

#[test]
fn a_data_device_that_fails_for_a_while_loses_nothing() {
    run(11, |env| async move {
        let shape = quiet(Mode::Wasteless);
        let ([data, _], devices) = faulty(&env, &shape).await;
        let (store, _) = shape.open(&env, &devices).await;
        figure(&store).await;
        store.apply(updates()).await.unwrap();
        store.sync(store.now()).await.unwrap();
        data.fail(Operation::Write, 1);
        assert!(store.checkpoint().await.is_err());
        assert!(store.checkpoint().await.is_ok());
        assert_eq!(store.status().dirty, 0);
        drop(store);
        let (store, found) = shape.open(&env, &devices).await;
        assert_eq!(bytes_of(&store, DATA[0]).await, (2, 1));
        assert_eq!(found.given_up, 0);
    });
}

/// Memory full of uncommitted blocks is committed and written back at once, not by a timer.
#[test]
fn full_memory_is_committed() {
    for mode in Mode::ALL {
        run(15, |env| async move {
            let shape = quiet(mode);
            let options = Options { cache: 400 << 10, ..shape.options };
            let shape = Shape { journal: 4 << 20, blocks: 400, options, ..shape };
            let devices = shape.memory();
            shape.create(&env, &devices).await;
            let (store, _) = shape.open(&env, &devices).await;
            for lba in 0..400 {
                store.apply(vec![whole(lba, 7, shape.class(lba))]).await.unwrap();
            }
            assert!(env.now().as_secs_f64() < 1.0, "{mode} waited for a timer");
        });
    }
}

/// A block that changes repeatedly in a transaction takes journal room once: writers need not wait
/// for a commit that makes room.
#[test]
fn a_block_that_changes_often_makes_nobody_wait() {
    for mode in [Mode::Data, Mode::Wasteless] {
        run(22, |env| async move {
            let shape = quiet(mode);
            let devices = shape.memory();
            shape.create(&env, &devices).await;
            let (store, _) = shape.open(&env, &devices).await;
            let begun = env.now();
            let times = 3 * shape.journal / BLOCK_SIZE as u64;
            for nth in 0..times {
                let write = part(100 + nth % 3, 0, 0..100, nth as u8 | 1, Class::Data);
                store.apply(vec![write]).await.unwrap();
            }
            assert_eq!((env.now(), store.status().counts.commits), (begun, 0), "{mode}");
            store.sync(store.now()).await.unwrap();
            let counts = store.status().counts;
            let most = if mode == Mode::Data { 4 * BLOCK_SIZE as u64 } else { 512 };
            assert!(counts.commits == 1 && counts.journal_bytes <= most, "{counts:?}");
        });
    }
}

#[test]
fn memory_is_bounded_and_writers_wait() {
    run(12, |env| async move {
        let shape = Shape {
            blocks: 3000,
            options: Options { cache: 400 << 10, ..Shape::new(Mode::Ordered).options },
            ..Shape::new(Mode::Ordered)
        };
        let devices = shape.memory();
        shape.create(&env, &devices).await;
        let (store, _) = shape.open(&env, &devices).await;
        for lba in 0..3000 {
            let class = if lba % 3 == 0 { Class::Metadata } else { Class::Data };
            store.apply(vec![whole(lba, lba as u8 | 1, class)]).await.unwrap();
            let status = store.status();
            assert!(status.cached <= 102 && status.dirty <= 52, "{status:?}");
        }
        for lba in (0..3000).step_by(7) {
            assert_eq!(bytes_of(&store, lba).await.0, lba as u8 | 1);
        }
    });
}
