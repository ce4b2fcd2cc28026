//! Locks: the table against a naive model, waits, deadlocks, and the calls of the filesystem.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use thalweg_env::Env;
use thalweg_fs::locks::LockTable;
use thalweg_fs::{
    Caller, Filesystem, FsError, Handle, Ino, Lock, LockKind, LockMode, LockOwner, LockRange,
    OpenFlags,
};
use thalweg_sim::run;

use crate::support::*;

const FILE: Ino = Ino(7);
/// Bytes of the model's file.
const BYTES: u64 = 12;

fn lock(kind: LockKind, owner: u64, mode: LockMode, first: u64, last: u64) -> Lock {
    let (owner, handle) = (LockOwner::local(owner), Handle(owner));
    Lock { kind, owner, handle, pid: 1, mode, range: LockRange { first, last } }
}

fn posix(owner: u64, mode: LockMode, first: u64, last: u64) -> Lock {
    lock(LockKind::Posix, owner, mode, first, last)
}

fn bsd(owner: u64, mode: LockMode) -> Lock {
    lock(LockKind::Bsd, owner, mode, 0, u64::MAX)
}

#[derive(Clone, Debug)]
enum Step {
    Lock(Lock),
    Unlock(LockKind, u64, LockRange),
    UnlockOwner(LockKind, u64),
    Release(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![Just(LockKind::Bsd), Just(LockKind::Posix)];
    let mode = prop_oneof![Just(LockMode::Shared), Just(LockMode::Exclusive)];
    let range =
        (0..BYTES, 0..BYTES).prop_map(|(a, b)| LockRange { first: a.min(b), last: a.max(b) });
    (kind, mode, 0..3u64, range, 0..10u8).prop_map(|(kind, mode, owner, range, what)| {
        let whole = LockRange { first: 0, last: BYTES - 1 };
        let range = if kind == LockKind::Bsd { whole } else { range };
        match what {
            0..6 => Step::Lock(lock(kind, owner, mode, range.first, range.last)),
            6..8 => Step::Unlock(kind, owner, range),
            8 => Step::UnlockOwner(kind, owner),
            _ => Step::Release(owner),
        }
    })
}

/// The mode of each locked byte, by kind and owner. An owner has one handle here.
type Model = BTreeMap<(LockKind, u64, u64), LockMode>;

fn excludes(model: &Model, lock: &Lock) -> bool {
    model.iter().any(|((kind, owner, byte), mode)| {
        *kind == lock.kind
            && *owner != lock.owner.number
            && (lock.range.first..=lock.range.last).contains(byte)
            && (*mode == LockMode::Exclusive || lock.mode == LockMode::Exclusive)
    })
}

/// What the table shows of the model: each byte that an owner cannot lock exclusively.
fn excluded(table: &LockTable) -> BTreeSet<(LockKind, u64, u64)> {
    let mut found = BTreeSet::new();
    for (kind, owner, byte) in cases() {
        let wanted = lock(kind, owner, LockMode::Exclusive, byte, byte);
        if let Some(held) = table.conflict(FILE, &wanted) {
            assert!(held.owner.number != owner && held.kind == kind, "{held:?}");
            assert!((held.range.first..=held.range.last).contains(&byte), "{held:?}");
            found.insert((kind, owner, byte));
        }
    }
    found
}

fn cases() -> impl Iterator<Item = (LockKind, u64, u64)> {
    let bytes = |kind, owner| (0..BYTES).map(move |byte| (kind, owner, byte));
    [LockKind::Bsd, LockKind::Posix]
        .into_iter()
        .flat_map(move |kind| (0..3).flat_map(move |owner| bytes(kind, owner)))
}

proptest! {
    #[test]
    fn the_table_is_a_map_of_bytes(steps in proptest::collection::vec(step(), 1..40)) {
        run(1, async move |_| {
            let (table, mut model) = (LockTable::default(), Model::new());
            for step in &steps {
                match step {
                    Step::Lock(lock) => {
                        let locked = table.lock(FILE, lock, false).await;
                        let key = |byte| (lock.kind, lock.owner.number, byte);
                        if lock.kind == LockKind::Bsd && model.get(&key(0)).is_some_and(|it| *it != lock.mode) {
                            model.retain(|(kind, owner, _), _| (*kind, *owner) != (lock.kind, lock.owner.number));
                        }
                        if excludes(&model, lock) {
                            assert!(matches!(locked, Err(FsError::Locked)), "{step:?}: {locked:?}");
                        } else {
                            locked.unwrap();
                            let bytes = lock.range.first..=lock.range.last;
                            model.extend(bytes.map(|byte| (key(byte), lock.mode)));
                        }
                    }
                    Step::Unlock(kind, owner, range) => {
                        table.unlock(FILE, *kind, LockOwner::local(*owner), *range).unwrap();
                        model.retain(|(k, o, byte), _| {
                            (k, o) != (kind, owner) || !(range.first..=range.last).contains(byte)
                        });
                    }
                    Step::UnlockOwner(kind, owner) => {
                        table.unlock_owner(FILE, *kind, LockOwner::local(*owner));
                        model.retain(|(k, o, _), _| (k, o) != (kind, owner));
                    }
                    Step::Release(handle) => {
                        table.unlock_handle(FILE, Handle(*handle));
                        model.retain(|(_, owner, _), _| owner != handle);
                    }
                }
                let wanted = cases().filter(|(kind, owner, byte)| {
                    excludes(&model, &lock(*kind, *owner, LockMode::Exclusive, *byte, *byte))
                });
                assert_eq!(excluded(&table), wanted.collect(), "{step:?}");
                assert_eq!(table.is_empty(), model.is_empty());
            }
        });
    }
}

/// Starts a wait for a lock and lets it begin.
async fn wait_for(
    env: &Env,
    table: &Arc<LockTable>,
    ino: Ino,
    lock: Lock,
) -> thalweg_env::Task<Result<(), FsError>> {
    let (of, before) = (table.clone(), table.waiting());
    let task = env.spawn(async move { of.lock(ino, &lock, true).await });
    env.sleep(Duration::from_millis(1)).await;
    assert_eq!(table.waiting(), before + 1);
    task
}

#[test]
fn a_wait_ends_when_the_lock_is_free() {
    run(1, async |env| {
        let table = Arc::new(LockTable::default());
        let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
        table.lock(FILE, &posix(1, exclusive, 0, 9), false).await.unwrap();
        let first = wait_for(&env, &table, FILE, posix(2, exclusive, 5, 5)).await;
        let second = wait_for(&env, &table, FILE, posix(3, shared, 8, 20)).await;
        table
            .unlock(FILE, LockKind::Posix, LockOwner::local(1), LockRange { first: 0, last: 5 })
            .unwrap();
        first.await.unwrap().unwrap();
        assert_eq!(table.waiting(), 1);
        // A change to a shared lock lets other shared ones in.
        table.lock(FILE, &posix(1, shared, 6, 9), false).await.unwrap();
        second.await.unwrap().unwrap();
        let held = bsd(1, exclusive);
        table.lock(FILE, &held, false).await.unwrap();
        let third = wait_for(&env, &table, FILE, bsd(2, exclusive)).await;
        table.unlock_handle(FILE, Handle(1));
        third.await.unwrap().unwrap();
        assert_eq!(table.waiting(), 0);
    });
}

#[test]
fn a_dropped_wait_leaves_nothing() {
    run(1, async |env| {
        let table = Arc::new(LockTable::default());
        table.lock(FILE, &bsd(1, LockMode::Exclusive), false).await.unwrap();
        let waiting = wait_for(&env, &table, FILE, bsd(2, LockMode::Exclusive)).await;
        drop(waiting);
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(table.waiting(), 0);
        table.unlock_owner(FILE, LockKind::Bsd, LockOwner::local(1));
        assert!(table.is_empty());
        table.lock(FILE, &bsd(3, LockMode::Exclusive), false).await.unwrap();
    });
}

#[test]
fn posix_owners_do_not_wait_in_a_circle() {
    run(1, async |env| {
        let table = Arc::new(LockTable::default());
        let one = |owner, at| posix(owner, LockMode::Exclusive, at, at);
        let (a, b, c) = (Ino(1), Ino(2), Ino(3));
        for (owner, ino) in [(1, a), (2, b), (3, c)] {
            table.lock(ino, &one(owner, 0), false).await.unwrap();
        }
        let first = wait_for(&env, &table, b, one(1, 0)).await;
        let second = wait_for(&env, &table, c, one(2, 0)).await;
        // 1 waits for 2, and 2 for 3.
        let circle = table.lock(a, &one(3, 0), true).await;
        assert!(matches!(circle, Err(FsError::Deadlock)), "{circle:?}");
        // Another owner may wait for any of them.
        let fourth = wait_for(&env, &table, a, one(4, 0)).await;
        table.unlock_owner(c, LockKind::Posix, LockOwner::local(3));
        second.await.unwrap().unwrap();
        table.unlock_owner(b, LockKind::Posix, LockOwner::local(2));
        first.await.unwrap().unwrap();
        table.unlock_owner(a, LockKind::Posix, LockOwner::local(1));
        fourth.await.unwrap().unwrap();
    });
}

#[test]
fn a_failed_change_of_a_bsd_lock_loses_it() {
    run(1, async |_| {
        let table = LockTable::default();
        let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
        table.lock(FILE, &bsd(1, shared), false).await.unwrap();
        table.lock(FILE, &bsd(2, shared), false).await.unwrap();
        assert!(matches!(table.lock(FILE, &bsd(1, exclusive), false).await, Err(FsError::Locked)));
        table.lock(FILE, &bsd(2, exclusive), false).await.unwrap();
        // A POSIX lock stays as it was, and neither kind excludes the other.
        table.lock(FILE, &posix(1, shared, 0, 9), false).await.unwrap();
        table.lock(FILE, &posix(3, shared, 0, 9), false).await.unwrap();
        let changed = table.lock(FILE, &posix(1, exclusive, 0, 9), false).await;
        assert!(matches!(changed, Err(FsError::Locked)));
        assert!(table.conflict(FILE, &posix(4, exclusive, 0, 0)).is_some());
        table.unlock_owner(FILE, LockKind::Posix, LockOwner::local(3));
        assert_eq!(
            table.conflict(FILE, &posix(4, exclusive, 0, 0)).map(|it| it.owner.number),
            Some(1)
        );
    });
}

#[test]
fn an_inode_has_a_limit_of_locks() {
    run(1, async |_| {
        let table = LockTable::default();
        let mut held = 0;
        let limit = loop {
            match table.lock(FILE, &posix(1, LockMode::Shared, held * 2, held * 2), false).await {
                Ok(()) => held += 1,
                Err(error) => break error,
            }
            if held % 1024 != 0 {
                continue;
            }
            assert!(held <= thalweg_fs::locks::MAX_LOCKS as u64);
        };
        assert!(matches!(limit, FsError::TooManyLocks), "{limit}");
        table.lock(Ino(8), &posix(1, LockMode::Shared, 0, 0), false).await.unwrap();
    });
}

#[test]
fn closes_end_locks() {
    run(1, async |env| {
        let (volume, _) = trusting(&env, 4096);
        let fs = make(&env, &volume).await;
        let file = create(&fs, ROOT, "a").await;
        let caller = Caller { uid: 0, gid: 0, pid: 9 };
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let one = fs.open(&caller, file, flags).await.unwrap().handle;
        let two = fs.open(&caller, file, flags).await.unwrap().handle;
        assert_ne!(one, two);
        let range = LockRange { first: 0, last: 9 };
        let by = |kind, owner, handle| {
            let (mode, owner) = (LockMode::Exclusive, LockOwner::local(owner));
            Lock { kind, owner, handle, pid: 9, mode, range }
        };
        fs.lock(file, &by(LockKind::Posix, 1, one), false).await.unwrap();
        fs.lock(file, &by(LockKind::Bsd, 2, one), false).await.unwrap();
        let held = fs.conflicting_lock(file, &by(LockKind::Posix, 3, two)).await.unwrap();
        assert_eq!(held, Some(by(LockKind::Posix, 1, one)));
        // Another transaction's view has the same locks.
        fs.flush(file, two, LockOwner::local(1)).await.unwrap();
        fs.lock(file, &by(LockKind::Posix, 3, two), false).await.unwrap();
        let refused = fs.lock(file, &by(LockKind::Bsd, 3, two), false).await;
        assert!(matches!(refused, Err(FsError::Locked)));
        fs.release(file, one).await;
        fs.lock(file, &by(LockKind::Bsd, 3, two), false).await.unwrap();
        fs.release(file, two).await;
        assert_eq!(fs.conflicting_lock(file, &by(LockKind::Posix, 4, one)).await.unwrap(), None);
    });
}
