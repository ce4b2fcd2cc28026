//! The contract of a block store, on every store: the reference in memory, the chain, and the store that
//! updates in place.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{
    BLOCK_SIZE, BlockStore, Class, Lba, Retention, StoreError, Version, Write, WriteList,
};
use thalweg_store::chain::Cleaning;
use thalweg_store::device::{DeviceRef, MemoryDevice};
use thalweg_store::inplace::{InPlace, NewInPlace, Options, Parts};

use crate::support::Shape;

const BLOCKS: u64 = 64;

async fn chain(env: &Env) -> Arc<dyn BlockStore> {
    let shape = Shape::small(Cleaning::MoveToTail);
    let (devices, _) = shape.ram_disks();
    shape.format(env, &devices).await;
    Arc::new(shape.open(env, &devices).await.unwrap().0)
}

async fn in_place(env: &Env) -> Arc<dyn BlockStore> {
    let data: DeviceRef = Arc::new(MemoryDevice::new(64 << 20));
    let parts = Parts { data, journal: None };
    InPlace::create(env, &parts, &NewInPlace::default()).await.unwrap();
    Arc::new(InPlace::open(env, parts, Options::default()).await.unwrap().0)
}

/// Runs `check` on an empty store of each kind.
fn on_each(check: impl AsyncFn(&str, Arc<dyn BlockStore>)) {
    run(1, |env| async move {
        check("reference", Arc::new(VersionedMemory::new(BLOCKS))).await;
        check("chain", chain(&env).await).await;
        check("in place", in_place(&env).await).await;
    });
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK_SIZE])
}

async fn put(store: &dyn BlockStore, lba: u64, byte: u8) -> Version {
    store.apply(vec![Write::block(Lba(lba), block(byte))]).await.unwrap()
}

/// The first byte of a block at a version; `None` where nothing is stored.
async fn get(store: &dyn BlockStore, lba: u64, at: Version) -> Result<Option<u8>, StoreError> {
    let read = store.read(Lba(lba), 1, at).await?;
    Ok(read[0].as_ref().map(|content| content[0]))
}

fn is_gone(read: &Result<Option<u8>, StoreError>, at: Version) -> bool {
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
        assert_eq!(get(&*store, 3, Version::NEWEST).await.unwrap(), Some(5), "{kind}");
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
