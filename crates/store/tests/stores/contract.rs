//! The contract of a block store, on every store: the reference in memory, the chain, and the store that
//! updates in place.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{
    BLOCK_SIZE, BlockStore, BlockVersion, BlocksExt, Class, Keep, Lba, Retained, Retention,
    StoreError, Version, Versions, Write, WriteList,
};
use thalweg_store::chain::Cleaning;
use thalweg_store::device::{DeviceRef, MemoryDevice};
use thalweg_store::inplace::{InPlace, NewInPlace, Options, Parts};

use crate::support::Shape;

pub(crate) const BLOCKS: u64 = 64;

/// Formatted devices, on which a store can be opened again and again.
pub(crate) enum Kind {
    Chain(Shape, Vec<DeviceRef>),
    InPlace(Parts),
}

impl Kind {
    pub(crate) async fn chain(env: &Env) -> Kind {
        let shape = Shape::small(Cleaning::MoveToTail);
        let (devices, _) = shape.ram_disks();
        shape.format(env, &devices).await;
        Kind::Chain(shape, devices)
    }

    pub(crate) async fn in_place(env: &Env) -> Kind {
        let data: DeviceRef = Arc::new(MemoryDevice::new(64 << 20));
        let parts = Parts { data, journal: None };
        InPlace::create(env, &parts, &NewInPlace::default()).await.unwrap();
        Kind::InPlace(parts)
    }

    pub(crate) async fn open(&self, env: &Env) -> Arc<dyn BlockStore> {
        match self {
            Kind::Chain(shape, devices) => Arc::new(shape.open(env, devices).await.unwrap().0),
            Kind::InPlace(parts) => {
                Arc::new(InPlace::open(env, parts.clone(), Options::default()).await.unwrap().0)
            }
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::Chain(..) => "chain",
            Kind::InPlace(_) => "in place",
        }
    }
}

/// Runs `check` on an empty store of each kind.
pub(crate) fn on_each(check: impl AsyncFn(&str, Arc<dyn BlockStore>)) {
    run(1, |env| async move {
        check("reference", Arc::new(VersionedMemory::new(BLOCKS))).await;
        for kind in [Kind::chain(&env).await, Kind::in_place(&env).await] {
            check(kind.name(), kind.open(&env).await).await;
        }
    });
}

pub(crate) fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK_SIZE])
}

pub(crate) async fn put(store: &dyn BlockStore, lba: u64, byte: u8) -> Version {
    store.apply(vec![Write::block(Lba(lba), block(byte))]).await.unwrap()
}

/// The first byte of a block at a version; `None` where nothing is stored.
pub(crate) async fn get(
    store: &dyn BlockStore,
    lba: u64,
    at: Version,
) -> Result<Option<u8>, StoreError> {
    let read = store.read(Lba(lba), 1, at).await?;
    Ok(read[0].as_ref().map(|content| content[0]))
}

pub(crate) fn is_gone(read: &Result<Option<u8>, StoreError>, at: Version) -> bool {
    matches!(read, Err(StoreError::Gone(version)) if *version == at)
}

#[test]
fn versions_are_contiguous_and_visible_at_once() {
    on_each(async |kind, store| {
        let start = store.now();
        for nth in 1..=5 {
            let version = put(&*store, 3, nth as u8).await;
            assert_eq!(version, Version(start.0 + nth), "{kind}");
            assert_eq!(store.now(), version, "{kind}");
            assert_eq!(get(&*store, 3, version).await.unwrap(), Some(nth as u8), "{kind}");
        }
        store.sync(store.now()).await.unwrap();
        assert_eq!(get(&*store, 3, store.now()).await.unwrap(), Some(5), "{kind}");
    });
}

#[test]
fn a_version_that_is_held_stays_and_one_that_is_not_is_gone() {
    on_each(async |kind, store| {
        let store = &*store;
        let first = put(store, 3, 1).await;
        let hold = store.hold(first).unwrap();
        let second = put(store, 3, 2).await;
        let third = put(store, 4, 3).await;
        assert_eq!(get(store, 3, first).await.unwrap(), Some(1), "{kind}");
        assert_eq!(get(store, 4, first).await.unwrap(), None, "{kind}");
        // Gone, also where the block has not changed since.
        for lba in [3, 4] {
            assert!(is_gone(&get(store, lba, second).await, second), "{kind}");
        }
        assert!(store.hold(second).is_none(), "{kind}");
        let again = store.hold(first).unwrap();
        drop(hold);
        store.discard(Lba(3), 2).await.unwrap();
        assert_eq!(get(store, 3, first).await.unwrap(), Some(1), "{kind}");
        drop(again);
        for version in [first, second, third] {
            assert!(is_gone(&get(store, 3, version).await, version), "{kind}");
            assert!(store.hold(version).is_none(), "{kind}");
        }
        assert_eq!(get(store, 3, store.now()).await.unwrap(), None, "{kind}");
    });
}

#[test]
fn a_version_can_be_held_from_the_start() {
    on_each(async |kind, store| {
        let list = |byte| WriteList::new(vec![Write::block(Lba(5), block(byte))]).unwrap();
        let applied = store.submit(list(1), Retention::Hold).await.unwrap();
        let (version, hold, backpressure) = applied.into_parts();
        backpressure.wait().await;
        assert_eq!(hold.as_ref().map(|hold| hold.version()), Some(version), "{kind}");
        put(&*store, 5, 2).await;
        assert_eq!(get(&*store, 5, version).await.unwrap(), Some(1), "{kind}");
        drop(hold);
        assert!(is_gone(&get(&*store, 5, version).await, version), "{kind}");
    });
}

#[test]
fn of_several_writes_of_a_block_the_last_wins_with_all_changes() {
    on_each(async |kind, store| {
        put(&*store, 7, 9).await;
        let mut content = vec![9; BLOCK_SIZE];
        let mut part = |at: usize, byte| {
            content[at] = byte;
            let content = Some(content.clone().into());
            Write { lba: Lba(7), content, changed: (at..at + 1).into(), class: Class::Data }
        };
        let twice = vec![part(0, 1), part(100, 2)];
        store.apply(twice).await.unwrap();
        store.sync(store.now()).await.unwrap();
        let read = store.read(Lba(7), 1, store.now()).await.unwrap().remove(0).unwrap();
        assert_eq!((read[0], read[100], read[200]), (1, 2, 9), "{kind}");
        let discarded = Write { content: None, ..Write::block(Lba(7), block(0)) };
        store.apply(vec![Write::block(Lba(7), block(3)), discarded]).await.unwrap();
        assert_eq!(get(&*store, 7, store.now()).await.unwrap(), None, "{kind}");
    });
}

fn content(oldest: Version, newest: Version, stored: bool) -> BlockVersion {
    BlockVersion { oldest, newest, stored }
}

#[test]
fn the_newest_content_comes_with_its_version() {
    on_each(async |kind, store| {
        let (before, blocks) = store.read_newest(Lba(2), 2).await.unwrap();
        assert_eq!((before, blocks), (store.now(), vec![None, None]), "{kind}");
        let version = put(&*store, 3, 5).await;
        let (read, blocks) = store.read_newest(Lba(2), 2).await.unwrap();
        assert_eq!((read, blocks), (version, vec![None, Some(block(5))]), "{kind}");
        let future = store.read(Lba(3), 1, version.next()).await;
        assert!(matches!(future, Err(StoreError::Invalid(_))), "{kind}: {future:?}");
        assert!(store.hold(version.next()).is_none(), "{kind}");
    });
}

#[test]
fn a_follower_applies_given_versions_in_order() {
    on_each(async |kind, store| {
        let list = |byte| WriteList::new(vec![Write::block(Lba(5), block(byte))]).unwrap();
        let start = store.now();
        for (version, byte) in [(start.0 + 1, 1), (start.0 + 9, 2), (start.0 + 10, 3)] {
            let version = Version(version);
            let applied = store.submit_at(version, list(byte), Retention::Newest).await.unwrap();
            assert_eq!((applied.settle().await, store.now()), (version, version), "{kind}");
            assert_eq!(get(&*store, 5, version).await.unwrap(), Some(byte), "{kind}");
        }
        let refused = [start.0, start.0 + 9, start.0 + 10, 1 << 60];
        for version in refused.into_iter().map(Version) {
            let applied = store.submit_at(version, list(9), Retention::Newest).await;
            assert!(matches!(applied, Err(StoreError::Invalid(_))), "{kind}: {version}");
        }
        store.sync(store.now()).await.unwrap();
    });
}

#[test]
fn each_content_that_can_be_read_is_listed() {
    on_each(async |kind, store| {
        let store = &*store;
        let empty = store.now();
        assert_eq!(store.versions(Lba(3)).await.unwrap(), [content(empty, empty, false)], "{kind}");
        let first = put(store, 3, 1).await;
        let hold = store.hold(first).unwrap();
        put(store, 4, 9).await;
        let second = put(store, 3, 2).await;
        let two = [content(first, first, true), content(second, second, true)];
        assert_eq!(store.versions(Lba(3)).await.unwrap(), two, "{kind}");
        let third = store.discard(Lba(3), 1).await.unwrap();
        // The content in between is not kept.
        let two = [content(first, first, true), content(third, third, false)];
        assert_eq!(store.versions(Lba(3)).await.unwrap(), two, "{kind}");
        // First written while an older version was held: empty before.
        let now = put(store, 5, 7).await;
        let two = [content(first, first, false), content(now, now, true)];
        assert_eq!(store.versions(Lba(5)).await.unwrap(), two, "{kind}");
        drop(hold);
        assert_eq!(store.versions(Lba(3)).await.unwrap(), [content(now, now, false)], "{kind}");
        assert!(store.versions(Lba(store.blocks())).await.is_err(), "{kind}");
    });
}

/// What every listing says agrees with what reads say, in any order of writes, discards, holds and releases.
#[test]
fn listings_agree_with_reads() {
    use rand::{RngExt, SeedableRng};
    on_each(async |kind, store| {
        let mut chance = thalweg_env::Rng::seed_from_u64(7);
        let mut holds = Vec::new();
        for _ in 0..400 {
            match chance.random_range(0..6) {
                0 => holds.extend(store.hold(store.now())),
                1 if !holds.is_empty() => {
                    let at = chance.random_range(0..holds.len());
                    drop(holds.swap_remove(at));
                }
                2 => {
                    let lba = chance.random_range(0..4);
                    store.discard(Lba(lba), 2).await.unwrap();
                }
                _ => {
                    let (lba, byte) = (chance.random_range(0..5), chance.random_range(1..200));
                    put(&*store, lba, byte).await;
                }
            }
            let now = store.now();
            for lba in 0..5 {
                let listed = store.versions(Lba(lba)).await.unwrap();
                assert_eq!(listed.last().unwrap().newest, now, "{kind}");
                assert!(listed.is_sorted_by(|a, b| a.newest < b.oldest), "{kind}: {listed:?}");
                let readable = holds.iter().map(|hold| hold.version()).chain([now]);
                for at in readable {
                    let mut of = listed.iter().filter(|it| it.oldest <= at && at <= it.newest);
                    let (found, more) = (of.next().unwrap(), of.next());
                    let read = get(&*store, lba, at).await.unwrap();
                    assert_eq!(
                        (read.is_some(), more),
                        (found.stored, None),
                        "{kind}: {lba} at {at}"
                    );
                    let same = get(&*store, lba, found.oldest).await.unwrap();
                    assert_eq!(same, read, "{kind}: {lba} at {at}");
                }
            }
        }
    });
}

#[test]
fn each_opening_is_an_epoch_of_its_own() {
    run(1, |env| async move {
        for kind in [Kind::chain(&env).await, Kind::in_place(&env).await] {
            let mut names = std::collections::BTreeSet::new();
            let mut last = None;
            for _ in 0..5 {
                let store = kind.open(&env).await;
                assert!(last < Some(store.epoch()), "{}", kind.name());
                last = Some(store.epoch());
                // Visible, and lost in the crash: the next opening numbers it again.
                let lost = put(&*store, 3, 1).await;
                assert!(names.insert(store.name(lost)), "{}", kind.name());
            }
        }
    });
}

#[test]
fn the_latest_versions_stay_by_count() {
    run(1, |env| async move {
        for kind in [Kind::chain(&env).await, Kind::in_place(&env).await] {
            let name = kind.name();
            let store = Retained::new(&env, kind.open(&env).await, Keep::latest(3));
            let mut versions = Vec::new();
            for byte in 1..=10 {
                versions.push(put(&store, 3, byte).await);
            }
            assert_eq!(store.oldest(), versions[6], "{name}");
            for (nth, version) in versions.iter().enumerate() {
                let read = get(&store, 3, *version).await;
                match nth {
                    ..6 => assert!(is_gone(&read, *version), "{name}"),
                    _ => assert_eq!(read.unwrap(), Some(nth as u8 + 1), "{name}"),
                }
            }
            assert_eq!(store.versions(Lba(3)).await.unwrap().len(), 4, "{name}");
            store.set_keep(Keep::latest(0));
            assert!(is_gone(&get(&store, 3, versions[8]).await, versions[8]), "{name}");
            assert_eq!(get(&store, 3, versions[9]).await.unwrap(), Some(10), "{name}");
        }
    });
}

#[test]
fn the_latest_versions_stay_by_age() {
    use std::time::Duration;
    run(1, |env| async move {
        let keep = Keep::younger_than(Duration::from_secs(10));
        for kind in [Kind::chain(&env).await, Kind::in_place(&env).await] {
            let name = kind.name();
            let store = Retained::new(&env, kind.open(&env).await, keep);
            let first = put(&store, 3, 1).await;
            env.sleep(Duration::from_secs(60)).await;
            // Its age counts from its replacement.
            let second = put(&store, 3, 2).await;
            env.sleep(Duration::from_secs(5)).await;
            assert_eq!(get(&store, 3, first).await.unwrap(), Some(1), "{name}");
            let third = put(&store, 3, 3).await;
            // Without further writes.
            env.sleep(Duration::from_secs(8)).await;
            assert!(is_gone(&get(&store, 3, first).await, first), "{name}");
            assert_eq!(get(&store, 3, second).await.unwrap(), Some(2), "{name}");
            env.sleep(Duration::from_secs(60)).await;
            assert!(is_gone(&get(&store, 3, second).await, second), "{name}");
            let newest = (get(&store, 3, third).await.unwrap(), store.oldest());
            assert_eq!(newest, (Some(3), third), "{name}");
        }
    });
}
