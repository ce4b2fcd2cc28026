//! The longest waits while a rotational disk is busy: each writer is throttled a little, and reads
//! do not wait for the whole of a writeback.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Task, Time};
use thalweg_sim::faults::Faulty;
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::runtime::run;
use thalweg_store::block::{
    BLOCK_SIZE, Blocks, BlocksExt, Class, Lba, Retention, Write, WriteList,
};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::{InPlace, Mode, Options, Parts};

use crate::support::Shape;

/// Writers use the first half of the blocks, readers the other half.
const BLOCKS: u64 = 1 << 17;

/// Results of a load.
#[derive(Debug, Default)]
struct Waits {
    writes: Vec<Duration>,
    reads: Vec<Duration>,
}

impl Waits {
    fn longest(of: &[Duration]) -> Duration {
        of.iter().max().copied().unwrap_or_default()
    }
}

/// A write of a block filled with one byte.
fn whole(lba: u64, byte: u8, class: Class) -> Write {
    Write { class, ..Write::block(Lba(lba), vec![byte; BLOCK_SIZE].into()) }
}

/// A store on drives of 15,000 rpm with a small journal.
async fn on_drives(env: &Env, mode: Mode) -> Arc<InPlace> {
    on_drives_with(env, Options { mode, ..Options::default() }).await
}

async fn on_drives_with(env: &Env, options: Options) -> Arc<InPlace> {
    on_wrapped_drives(env, options, |drive| drive).await
}

async fn on_wrapped_drives(
    env: &Env,
    options: Options,
    mut wrap: impl FnMut(DeviceRef) -> DeviceRef,
) -> Arc<InPlace> {
    let mode = options.mode;
    let shape = Shape {
        blocks: BLOCKS,
        journal: 16 << 20,
        options: Options { cache: 64 << 20, barrier: false, ..options },
        ..Shape::new(mode)
    };
    let devices = shape.devices(|name, geometry| {
        let spec = HardDiskSpec {
            write_cache: 16 << 20,
            write_segments: 32,
            ..HardDiskSpec::sas_15k(geometry.size)
        };
        wrap(Arc::new(HardDisk::new(env, name, spec)))
    });
    shape.create(env, &devices).await;
    let (store, _) = shape.open(env, &devices).await;
    for first in (BLOCKS / 2..BLOCKS).step_by(256) {
        let writes = (first..first + 256).map(|lba| whole(lba, 1, Class::Metadata));
        store.apply(writes.collect()).await.unwrap();
    }
    store.sync(store.now()).await.unwrap();
    store.checkpoint().await.unwrap();
    Arc::new(store)
}

/// Writers of random blocks and readers of others, each in a loop until `end`.
async fn load(env: &Env, store: &Arc<InPlace>, counts: [usize; 2], end: Time) -> Waits {
    load_with(env, store, counts, Duration::from_millis(1), end).await
}

/// [`load`], with a pause after each write.
async fn load_with(
    env: &Env,
    store: &Arc<InPlace>,
    counts: [usize; 2],
    pause: Duration,
    end: Time,
) -> Waits {
    let waits = Arc::new(Mutex::new(Waits::default()));
    let writers = (0..counts[0]).map(|_| {
        let (env, store, waits, mut rng) = (env.clone(), store.clone(), waits.clone(), env.rng());
        async move {
            while env.now() < end {
                let lba = rng.random_range(0..BLOCKS / 2);
                let write = whole(lba, rng.random(), Class::Metadata);
                let begun = env.now();
                store.apply(vec![write]).await.unwrap();
                waits.lock().writes.push(env.now().since(begun));
                env.sleep(pause).await;
            }
        }
    });
    let readers = (0..counts[1]).map(|_| {
        let (env, store, waits, mut rng) = (env.clone(), store.clone(), waits.clone(), env.rng());
        async move {
            while env.now() < end {
                let begun = env.now();
                let lba = Lba(rng.random_range(BLOCKS / 2..BLOCKS));
                store.read_newest(lba, 1).await.unwrap();
                waits.lock().reads.push(env.now().since(begun));
            }
        }
    });
    tokio::join!(join_all(writers), join_all(readers));
    Arc::into_inner(waits).unwrap().into_inner()
}

#[test]
fn writers_wait_a_little_each_for_room_in_the_journal() {
    for mode in [Mode::Data, Mode::Wasteless] {
        run(1, |env| async move {
            let store = on_drives(&env, mode).await;
            let waits = load(&env, &store, [8, 0], env.now() + Duration::from_secs(120)).await;
            let longest = Waits::longest(&waits.writes);
            assert!(longest < Duration::from_millis(300), "{mode}: {longest:?}");
            assert!(waits.writes.len() > 150_000, "{mode}: {}", waits.writes.len());
        });
    }
}

#[test]
fn many_readers_and_what_goes_home_share_the_arm() {
    run(2, |env| async move {
        let store = on_drives(&env, Mode::Wasteless).await;
        let waits = load(&env, &store, [8, 32], env.now() + Duration::from_secs(120)).await;
        // Single requests in alternation reach 11,000 and 12,000.
        let done = (waits.writes.len(), waits.reads.len());
        assert!(done.0 > 75_000 && done.1 > 15_000, "{done:?}");
    });
}

/// Writes the same 512 blocks in a loop, 64 at a time and synced, until `end`; returns the number
/// of rounds.
fn log(env: &Env, store: &Arc<InPlace>, end: Time) -> Task<u64> {
    let (inner, store) = (env.clone(), store.clone());
    env.spawn(async move {
        let mut written = 0;
        while inner.now() < end {
            let first = (written % 8) * 64;
            let writes = (first..first + 64).map(|lba| whole(lba, written as u8, Class::Data));
            let writes = WriteList::new(writes.collect()).unwrap();
            let applied = store.submit(writes, Retention::Newest).await.unwrap();
            store.sync(store.now()).await.unwrap();
            applied.settle().await;
            written += 1;
        }
        written
    })
}

/// A large writer that always writes the same blocks must not take the journal's room from small
/// ones.
#[test]
fn who_writes_little_passes_who_writes_much() {
    run(5, |env| async move {
        let store = on_drives(&env, Mode::Wasteless).await;
        let end = env.now() + Duration::from_secs(60);
        let log = log(&env, &store, end);
        let waits = load(&env, &store, [8, 0], end).await;
        let (little, much) = (waits.writes.len(), log.await.unwrap());
        // With backpressure by how full the journal is, the small ones reach 39,000.
        assert!(little > 46_000 && much > 800, "{little}, {much}");
    });
}

/// Sequential blocks are written back in few requests, and the rest of such a sweep is short.
#[test]
fn who_writes_little_hardly_waits_while_much_is_written() {
    run(8, |env| async move {
        let store = on_drives(&env, Mode::Wasteless).await;
        let end = env.now() + Duration::from_secs(120);
        let log = log(&env, &store, end);
        let pause = Duration::from_millis(20);
        let waits = load_with(&env, &store, [8, 0], pause, end).await;
        let mean = waits.writes.iter().sum::<Duration>() / waits.writes.len() as u32;
        let much = log.await.unwrap();
        // With a forecast that counts blocks: 7 ms.
        assert!(mean < Duration::from_micros(700) && much > 8_000, "{mean:?}, {much}");
    });
}

/// A failed store makes no room: writers do not wait for it.
#[test]
fn who_is_held_back_does_not_wait_for_a_store_that_failed() {
    const MANY: usize = 2000;
    run(6, |env| async move {
        let mut drives = Vec::new();
        let options = Options { mode: Mode::Wasteless, ..Options::default() };
        let store = on_wrapped_drives(&env, options, |drive| {
            let (drive, faults) = Faulty::wrap(&env, drive);
            drives.push(faults);
            drive
        })
        .await;
        let write = |lba| whole(lba, 3, Class::Metadata);
        load(&env, &store, [8, 0], env.now() + Duration::from_secs(20)).await;
        let many = WriteList::new((0..MANY as u64).map(write).collect()).unwrap();
        let applied = store.submit(many, Retention::Newest).await.unwrap();
        let fail = async {
            env.sleep(Duration::from_millis(100)).await;
            drives.iter().for_each(|drive| drive.die_after(0));
            store.apply(vec![write(0)]).await.ok();
            store.sync(store.now()).await.unwrap_err();
            env.now()
        };
        let held = async {
            applied.settle().await;
            env.now()
        };
        let (failed, released) = tokio::join!(fail, held);
        assert!(released > failed, "no writer was throttled");
        let longer = released.since(failed);
        assert!(longer < Duration::from_millis(50), "{longer:?}");
    });
}

#[test]
fn where_no_arm_moves_nobody_takes_turns() {
    run(2, |env| async move {
        let options =
            Options { mode: Mode::Wasteless, rotational: Some(false), ..Options::default() };
        let store = on_drives_with(&env, options).await;
        let waits = load(&env, &store, [8, 32], env.now() + Duration::from_secs(120)).await;
        // There is one reader, so the disk head moves back and forth.
        let done = (waits.writes.len(), waits.reads.len());
        assert!(done.0 < 25_000, "{done:?}");
    });
}

#[test]
fn one_reader_waits_for_no_stretch_of_writes() {
    run(3, |env| async move {
        let store = on_drives(&env, Mode::Wasteless).await;
        let waits = load(&env, &store, [8, 1], env.now() + Duration::from_secs(60)).await;
        let longest = Waits::longest(&waits.reads);
        assert!(longest < Duration::from_millis(100), "{longest:?}");
        // Alternation has more reads than writes.
        let done = (waits.writes.len(), waits.reads.len());
        assert!(done.0 > 40_000 && done.1 > 1_500, "{done:?}");
    });
}

/// A block that changes while under writeback keeps that change in the journal, and nothing older.
#[test]
fn what_changes_on_its_way_home_keeps_that_change_and_nothing_older() {
    const FIRST: u64 = 199 * 300;
    run(7, |env| async move {
        let options = Options { mode: Mode::Data, ..Options::default() };
        let mut drives = Vec::new();
        let store = on_wrapped_drives(&env, options, |drive| {
            drives.push(drive.clone());
            drive
        })
        .await;
        let write = async |first, count, value| {
            let writes = (first..first + count).map(|lba| whole(lba, value, Class::Data));
            let version = store.apply(writes.collect()).await.unwrap();
            store.sync(version).await.unwrap();
        };
        let used = || {
            let status = store.status();
            status.journal_size - status.journal_room
        };
        // The first blocks of the journal are written back last.
        for nth in (0..200).rev() {
            write(nth * 300, 1, 2).await;
        }
        let before = used();
        let change = async {
            env.sleep(Duration::from_millis(1)).await;
            write(FIRST, 1, 3).await;
            write(FIRST, 1, 4).await;
            assert!(store.status().dirty > 100, "most were home before it changed");
        };
        let (checkpoint, ()) = tokio::join!(store.checkpoint(), change);
        checkpoint.unwrap();
        assert!(used() < before / 50, "{} of {before} are kept", used());
        // More than the journal takes.
        for nth in 0..30 {
            write(nth * 256, 256, 5).await;
        }
        drop(store);
        let [data, journal] = drives.try_into().unwrap_or_else(|_| unreachable!());
        let parts = Parts { data, journal: Some(journal) };
        let (store, _) = InPlace::open(&env, parts, options).await.unwrap();
        let found = store.read(Lba(FIRST), 1, store.now()).await.unwrap();
        assert_eq!(found[0].as_ref().unwrap()[0], 4);
    });
}

/// Blocks leave the dirty ones when they are in place, not at the end of their batch.
#[test]
fn what_is_home_counts_at_once() {
    run(4, |env| async move {
        let store = on_drives(&env, Mode::Wasteless).await;
        for nth in 0..200 {
            store.apply(vec![whole(nth * 300, 2, Class::Metadata)]).await.unwrap();
        }
        store.sync(store.now()).await.unwrap();
        assert_eq!(store.status().dirty, 200);
        let look = async {
            while store.status().dirty == 200 {
                env.sleep(Duration::from_millis(1)).await;
            }
            store.status().dirty
        };
        let (checkpoint, dirty) = tokio::join!(store.checkpoint(), look);
        checkpoint.unwrap();
        assert!(dirty > 150, "{dirty} are left when the first is home");
    });
}
