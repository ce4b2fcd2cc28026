//! Transactions: what they see, which of them commit, and their limits.

mod versions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use thalweg_env::Env;
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::passing::{Around, Change, Passing};
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BLOCK_SIZE, BlockStore, Blocks, BlocksExt, Lba, StoreError, Write};
use thalweg_store::chain::Cleaning;
use thalweg_store::device::{Device, DeviceRef};
use thalweg_store::txn::{
    self, Begin, Durability, Handle, Isolation, Options, Preempted, Transact, Transaction,
    TransactionManager, TxnError,
};

use crate::support::{self, Shape};

const BLOCKS: u64 = 64;
/// Changes of the whole store while other threads run transactions.
const CHANGES: u64 = 100_000;
const SYNCED: Durability = Durability::Synced;

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK_SIZE])
}

struct Rig {
    store: Arc<VersionedMemory>,
    manager: TransactionManager,
}

fn rig_with(env: &Env, options: Options) -> Rig {
    let store = Arc::new(VersionedMemory::new(BLOCKS));
    let manager = TransactionManager::new(env, store.clone(), options);
    Rig { store, manager }
}

fn rig(env: &Env) -> Rig {
    rig_with(env, Options::default())
}

impl Rig {
    async fn begin(&self, begin: Begin) -> Arc<dyn Transaction> {
        self.manager.begin(begin).await.unwrap()
    }

    async fn put(&self, lba: u64, byte: u8) {
        let write = Write::block(Lba(lba), block(byte));
        self.manager.apply(vec![write]).await.unwrap();
    }

    async fn get(&self, lba: u64) -> u8 {
        let found = self.store.read_newest(Lba(lba), 1).await.unwrap().1;
        found[0].as_ref().map_or(0, |content| content[0])
    }
}

/// Changes one byte of a block, and marks it.
async fn change(txn: &dyn Transaction, lba: u64, at: usize, byte: u8) {
    let mut content = txn.read(Lba(lba)).await.unwrap().to_vec();
    txn.mark_accessed(Lba(lba), at..at + 1).unwrap();
    content[at] = byte;
    txn.write(Lba(lba), content.into()).unwrap();
    txn.mark_accessed(Lba(lba), at..at + 1).unwrap();
}

/// As when a key is read once, and then a file system writes to the volume's block device for days.
#[test]
fn writes_past_transactions_keep_no_snapshot_of_the_last_one() {
    run(1, |env| async move {
        let rig = rig(&env);
        for begin in [Begin::SNAPSHOT, Begin::STRICT, Begin::READ_ONLY] {
            let txn = rig.begin(begin).await;
            txn.read(Lba(1)).await.unwrap();
            if !begin.read_only {
                txn.write(Lba(1), block(7)).unwrap();
            }
            txn.commit(Durability::Visible).await.unwrap();
            drop(txn);
            rig.manager.apply(vec![Write::block(Lba(1), block(8))]).await.unwrap();
            assert_eq!(rig.store.held(), 0, "{begin:?}");
            // A transaction that begins later sees it.
            Blocks::sync(&rig.manager, rig.manager.now()).await.unwrap();
            let txn = rig.begin(begin).await;
            assert_eq!(txn.read(Lba(1)).await.unwrap(), block(8));
            rig.manager.discard(Lba(1), 1).await.unwrap();
            assert_eq!(txn.read(Lba(1)).await.unwrap(), block(8));
            drop(txn);
            rig.manager.discard(Lba(2), 1).await.unwrap();
            assert_eq!(rig.store.held(), 0, "{begin:?}");
        }
    });
}

#[test]
fn it_sees_its_snapshot_and_its_own_writes() {
    run(1, |env| async move {
        let rig = rig(&env);
        rig.put(1, 1).await;
        let txn = rig.begin(Begin::STRICT).await;
        rig.put(1, 2).await;
        assert_eq!(txn.read(Lba(1)).await.unwrap()[0], 1);
        assert_eq!(txn.read(Lba(2)).await.unwrap()[0], 0);
        txn.write(Lba(2), block(9)).unwrap();
        assert_eq!(txn.read(Lba(2)).await.unwrap()[0], 9);
        txn.discard(Lba(2)).unwrap();
        let run = txn.read_run(Lba(1), 2).await.unwrap();
        assert_eq!((run[0][0], run[1][0]), (1, 0));
        txn.abort().await;
        assert_eq!((rig.get(1).await, rig.get(2).await), (2, 0));
    });
}

#[test]
fn of_two_that_change_what_they_read_one_commits() {
    for begin in [Begin::STRICT, Begin::SNAPSHOT] {
        run(2, |env| async move {
            let rig = rig(&env);
            let (a, b) = (rig.begin(begin).await, rig.begin(begin).await);
            for txn in [&a, &b] {
                txn.read(Lba(3)).await.unwrap();
                txn.write(Lba(3), block(7)).unwrap();
            }
            a.commit(SYNCED).await.unwrap();
            assert!(matches!(b.commit(SYNCED).await, Err(TxnError::Conflict)));
            assert_eq!(rig.manager.status().conflicts, 1);
        });
    }
}

#[test]
fn aborted_ones_write_nothing() {
    run(3, |env| async move {
        let rig = rig(&env);
        rig.put(1, 1).await;
        let before = (rig.store.now(), rig.store.syncs());
        let txn = rig.begin(Begin::STRICT).await;
        txn.write(Lba(1), block(5)).unwrap();
        txn.abort().await;
        drop(rig.begin(Begin::STRICT).await);
        assert_eq!((rig.store.now(), rig.store.syncs()), before);
        assert_eq!(rig.manager.status().running, 0);
    });
}

#[test]
fn write_skew_is_for_snapshot_isolation_alone() {
    for (begin, both) in [(Begin::SNAPSHOT, true), (Begin::STRICT, false)] {
        run(4, |env| async move {
            let rig = rig(&env);
            let (a, b) = (rig.begin(begin).await, rig.begin(begin).await);
            for (txn, mine) in [(&a, 1), (&b, 2)] {
                txn.read(Lba(1)).await.unwrap();
                txn.read(Lba(2)).await.unwrap();
                txn.write(Lba(mine), block(1)).unwrap();
            }
            a.commit(SYNCED).await.unwrap();
            assert_eq!(b.commit(SYNCED).await.is_ok(), both);
        });
    }
}

#[test]
fn disjoint_fragments_of_a_block_are_merged() {
    for begin in [Begin::STRICT, Begin::SNAPSHOT] {
        run(5, |env| async move {
            let rig = rig(&env);
            rig.put(1, 1).await;
            let mut txns = Vec::new();
            for at in 0..20 {
                let txn = rig.begin(begin).await;
                change(&*txn, 1, at * 16, 100 + at as u8).await;
                txns.push(txn);
            }
            for txn in txns {
                txn.commit(SYNCED).await.unwrap();
            }
            let found = rig.store.read(Lba(1), 1, rig.store.now()).await.unwrap();
            let found = found[0].clone().unwrap();
            for at in 0..20 {
                assert_eq!((found[at * 16], found[at * 16 + 1]), (100 + at as u8, 1));
            }
            assert_eq!(rig.manager.status().merged, 19);
        });
    }
}

#[test]
fn neighbours_in_one_fragment_conflict() {
    run(6, |env| async move {
        let rig = rig(&env);
        let (a, b) = (rig.begin(Begin::STRICT).await, rig.begin(Begin::STRICT).await);
        change(&*a, 1, 32, 1).await;
        change(&*b, 1, 47, 1).await;
        a.commit(SYNCED).await.unwrap();
        assert!(matches!(b.commit(SYNCED).await, Err(TxnError::Conflict)));
    });
}

#[test]
fn an_access_without_a_mark_is_of_the_whole_block() {
    run(7, |env| async move {
        let rig = rig(&env);
        // Reads: one without a mark, then one with.
        let a = rig.begin(Begin::STRICT).await;
        a.read(Lba(1)).await.unwrap();
        a.read(Lba(1)).await.unwrap();
        a.mark_accessed(Lba(1), 0..16).unwrap();
        a.write(Lba(9), block(1)).unwrap();
        let b = rig.begin(Begin::STRICT).await;
        change(&*b, 1, 4000, 1).await;
        b.commit(SYNCED).await.unwrap();
        assert!(matches!(a.commit(SYNCED).await, Err(TxnError::Conflict)));
        // A mark after a read of a block that the transaction wrote does not narrow the write.
        let a = rig.begin(Begin::STRICT).await;
        a.write(Lba(5), block(5)).unwrap();
        a.read(Lba(5)).await.unwrap();
        a.mark_accessed(Lba(5), 0..16).unwrap();
        a.commit(SYNCED).await.unwrap();
        assert_eq!(rig.store.read(Lba(5), 1, rig.store.now()).await.unwrap()[0], Some(block(5)));
    });
}

#[test]
fn a_mark_under_snapshot_isolation_after_a_read_leaves_the_write_alone() {
    run(8, |env| async move {
        let rig = rig(&env);
        let txn = rig.begin(Begin::SNAPSHOT).await;
        txn.write(Lba(5), block(5)).unwrap();
        txn.mark_accessed(Lba(5), 0..4096).unwrap();
        txn.read(Lba(5)).await.unwrap();
        txn.mark_accessed(Lba(5), 0..16).unwrap();
        txn.commit(SYNCED).await.unwrap();
        assert_eq!(rig.store.read(Lba(5), 1, rig.store.now()).await.unwrap()[0], Some(block(5)));
    });
}

#[test]
fn readers_always_commit() {
    run(9, |env| async move {
        let rig = rig(&env);
        let txn = rig.begin(Begin::READ_ONLY).await;
        txn.read(Lba(1)).await.unwrap();
        assert!(matches!(txn.write(Lba(1), block(1)), Err(TxnError::Invalid(_))));
        let other = rig.begin(Begin::STRICT).await;
        other.read(Lba(1)).await.unwrap();
        rig.put(1, 4).await;
        txn.commit(SYNCED).await.unwrap();
        other.commit(SYNCED).await.unwrap();
        assert_eq!(rig.manager.status().read_only, 2);
    });
}

#[test]
fn writes_outside_of_transactions_count_like_commits() {
    run(10, |env| async move {
        let rig = rig(&env);
        rig.put(1, 1).await;
        let txn = rig.begin(Begin::STRICT).await;
        txn.read(Lba(1)).await.unwrap();
        txn.write(Lba(2), block(1)).unwrap();
        rig.put(1, 2).await;
        assert!(matches!(txn.commit(SYNCED).await, Err(TxnError::Conflict)));
        let txn = rig.begin(Begin::STRICT).await;
        txn.read(Lba(1)).await.unwrap();
        txn.write(Lba(2), block(1)).unwrap();
        rig.manager.discard(Lba(0), 10).await.unwrap();
        assert!(matches!(txn.commit(SYNCED).await, Err(TxnError::Conflict)));
        // A write that changes part of a block keeps the current content of the rest.
        let txn = rig.begin(Begin::STRICT).await;
        change(&*txn, 3, 100, 7).await;
        txn.commit(SYNCED).await.unwrap();
        let stale = block(8);
        let changed = (0..50).into();
        let write = Write { lba: Lba(3), content: Some(stale), changed, class: Default::default() };
        rig.manager.apply(vec![write]).await.unwrap();
        let found = rig.store.read(Lba(3), 1, rig.store.now()).await.unwrap()[0].clone().unwrap();
        assert_eq!((found[49], found[50], found[100]), (8, 0, 7));
    });
}

#[test]
fn a_released_one_is_taken_over_once() {
    run(11, |env| async move {
        let rig = rig(&env);
        let other = rig.manager.client();
        let txn = rig.begin(Begin::STRICT).await;
        txn.write(Lba(1), block(3)).unwrap();
        let handle = txn.release().await.unwrap();
        let txn = other.takeover(handle).await.unwrap();
        assert!(matches!(rig.manager.takeover(handle).await, Err(TxnError::UnknownHandle)));
        assert!(matches!(rig.manager.takeover(Handle(7)).await, Err(TxnError::UnknownHandle)));
        txn.commit(SYNCED).await.unwrap();
        assert_eq!(rig.get(1).await, 3);
        assert!(matches!(other.takeover(handle).await, Err(TxnError::UnknownHandle)));
        assert_eq!(rig.manager.status().running, 0);
    });
}

/// A UUID has constant bits; random numbers have none.
#[test]
fn a_handle_is_random_in_each_of_its_bits() {
    run(11, |env| async move {
        let rig = rig(&env);
        let (mut ones, mut zeros) = (0, 0);
        for _ in 0..64 {
            let txn = rig.begin(Begin::STRICT).await;
            let handle = txn.release().await.unwrap();
            ones |= handle.0;
            zeros |= !handle.0;
            rig.manager.takeover(handle).await.unwrap().abort().await;
        }
        assert_eq!((ones, zeros), (u128::MAX, u128::MAX), "{ones:x} {zeros:x}");
    });
}

#[test]
fn what_a_dead_process_left_is_aborted_but_for_what_it_released() {
    run(12, |env| async move {
        let rig = rig(&env);
        let (dying, heir) = (rig.manager.client(), rig.manager.client());
        let kept = dying.begin(Begin::STRICT).await.unwrap();
        kept.write(Lba(1), block(1)).unwrap();
        let given = dying.begin(Begin::STRICT).await.unwrap();
        given.write(Lba(2), block(2)).unwrap();
        let handle = given.release().await.unwrap();
        drop(dying);
        let error = kept.write(Lba(1), block(1)).unwrap_err();
        assert!(matches!(error, TxnError::Preempted(Preempted::OwnerDied)));
        assert!(matches!(kept.commit(SYNCED).await, Err(TxnError::Preempted(_))));
        heir.takeover(handle).await.unwrap().commit(SYNCED).await.unwrap();
        assert_eq!((rig.get(1).await, rig.get(2).await), (0, 2));
        assert_eq!(rig.manager.status().running, 0);
    });
}

#[test]
fn limits_are_clear_errors() {
    run(13, |env| async move {
        let options = Options { max_writes: 3, max_running: 2, ..Options::default() };
        let rig = rig_with(&env, options);
        let txn = rig.begin(Begin::STRICT).await;
        for lba in 0..3 {
            txn.write(Lba(lba), block(1)).unwrap();
        }
        txn.write(Lba(2), block(2)).unwrap();
        assert!(matches!(txn.write(Lba(3), block(1)), Err(TxnError::TooLarge(3))));
        assert!(matches!(txn.write(Lba(BLOCKS), block(1)), Err(TxnError::Invalid(_))));
        assert!(matches!(txn.write(Lba(1), Bytes::new()), Err(TxnError::Invalid(_))));
        assert!(matches!(txn.read(Lba(u64::MAX)).await, Err(TxnError::Invalid(_))));
        assert!(matches!(txn.read_run(Lba(BLOCKS - 1), 2).await, Err(TxnError::Invalid(_))));
        assert!(matches!(txn.mark_accessed(Lba(40), 0..16), Err(TxnError::Invalid(_))));
        assert!(matches!(txn.mark_accessed(Lba(1), 0..4097), Err(TxnError::Invalid(_))));
        let _second = rig.begin(Begin::STRICT).await;
        let third = rig.manager.begin(Begin::STRICT).await;
        assert!(matches!(third, Err(TxnError::TooMany(2))));
        // Another process has a limit of its own.
        rig.manager.client().begin(Begin::STRICT).await.unwrap();
        txn.commit(SYNCED).await.unwrap();
        rig.begin(Begin::STRICT).await;
    });
}

#[test]
fn the_idle_are_aborted() {
    run(14, |env| async move {
        let options = Options { idle: Duration::from_secs(10), ..Options::default() };
        let rig = rig_with(&env, options);
        let (idle, busy) = (rig.begin(Begin::STRICT).await, rig.begin(Begin::STRICT).await);
        for _ in 0..20 {
            env.sleep(Duration::from_secs(1)).await;
            busy.read(Lba(1)).await.unwrap();
        }
        let error = idle.read(Lba(1)).await.unwrap_err();
        assert!(matches!(error, TxnError::Preempted(Preempted::Idle)), "{error}");
        assert!(error.is_retryable());
        busy.commit(SYNCED).await.unwrap();
    });
}

#[test]
fn the_greedy_are_aborted() {
    run(15, |env| async move {
        let options = Options { memory: 10 * BLOCK_SIZE, ..Options::default() };
        let rig = rig_with(&env, options);
        let (greedy, modest) = (rig.begin(Begin::SNAPSHOT).await, rig.begin(Begin::SNAPSHOT).await);
        modest.write(Lba(1), block(1)).unwrap();
        for lba in 0..9 {
            greedy.write(Lba(10 + lba), block(1)).unwrap();
        }
        modest.write(Lba(2), block(1)).unwrap();
        let error = greedy.write(Lba(1), block(1)).unwrap_err();
        assert!(matches!(error, TxnError::Preempted(Preempted::Memory)));
        modest.commit(SYNCED).await.unwrap();
        assert_eq!(rig.manager.status().buffered_bytes, 0);
    });
}

#[test]
fn a_stuck_one_gives_way_when_space_is_short() {
    run(16, |env| async move {
        let rig = rig(&env);
        let stuck = rig.begin(Begin::STRICT).await;
        stuck.read(Lba(1)).await.unwrap();
        rig.store.set_full(true);
        let (store, sleeper) = (rig.store.clone(), env.clone());
        let freed = env.spawn(async move {
            sleeper.sleep(Duration::from_millis(1)).await;
            store.set_full(false);
        });
        // The first attempt finds the store full and aborts the stuck one; nothing is left to abort.
        let write = Write::block(Lba(1), block(1));
        let full = rig.manager.apply(vec![write.clone()]).await;
        assert!(full.is_err());
        assert!(matches!(stuck.read(Lba(1)).await, Err(TxnError::Preempted(Preempted::Stuck))));
        freed.await;
        rig.manager.apply(vec![write]).await.unwrap();
    });
}

#[test]
fn a_commit_that_is_given_up_hands_the_turn_on() {
    run(17, |env| async move {
        let rig = Arc::new(rig(&env));
        for round in 0..50u8 {
            let mut commits = Vec::new();
            for lba in 0..4 {
                let txn = rig.begin(Begin::STRICT).await;
                txn.write(Lba(lba), block(round)).unwrap();
                commits.push(async move { txn.commit(SYNCED).await }.boxed());
            }
            // Polled once, and dropped: it may or may not commit.
            let mut given_up = commits.remove(usize::from(round) % 4);
            let _ = (&mut given_up).now_or_never();
            drop(given_up);
            for commit in commits {
                commit.await.unwrap();
            }
        }
        assert_eq!(rig.manager.status().running, 0);
    });
}

#[test]
fn the_loop_tries_again_until_it_commits() {
    run(18, |env| async move {
        let rig = Arc::new(rig(&env));
        let clients: Vec<_> = (0..16)
            .map(|_| {
                let (rig, sleeper) = (rig.clone(), env.clone());
                env.spawn(async move {
                    for _ in 0..10 {
                        let add = async |txn: Arc<dyn Transaction>| {
                            let count = txn.read(Lba(7)).await?[0];
                            sleeper.sleep(Duration::from_micros(3)).await;
                            txn.write(Lba(7), block(count + 1))
                        };
                        let done: Result<(), TxnError> =
                            txn::run(&rig.manager, Begin::STRICT, SYNCED, add).await;
                        done.unwrap();
                    }
                })
            })
            .collect();
        for client in clients {
            client.await;
        }
        assert_eq!(rig.get(7).await, 160);
        assert!(rig.manager.status().conflicts > 0);
    });
}

/// Increments a block in one transaction that takes a while.
async fn count(rig: &Rig, env: &Env, lba: u64) {
    let add = async |txn: Arc<dyn Transaction>| {
        let count = txn.read(Lba(lba)).await?[0];
        env.sleep(Duration::from_micros(100)).await;
        txn.write(Lba(lba), block(count + 1))
    };
    let done: Result<(), TxnError> = txn::run(&rig.manager, Begin::STRICT, SYNCED, add).await;
    done.unwrap();
}

#[test]
fn those_who_try_again_do_it_one_after_the_other() {
    run(19, |env| async move {
        let rig = rig(&env);
        join_all((0..32).map(|_| count(&rig, &env, 7))).await;
        assert_eq!(rig.get(7).await, 32);
        // The first attempts run at once, and one of them commits; none fails twice.
        assert_eq!(rig.manager.status().conflicts, 31);
    });
}

/// The holder of a turn may itself wait for it, or for its next holder.
#[test]
fn nobody_waits_for_a_turn_for_ever() {
    run(21, |env| async move {
        let rig = rig(&env);
        let outer = async |txn: Arc<dyn Transaction>| {
            let before = txn.read(Lba(0)).await?[0];
            // All of these conflict with each other.
            join_all((0..4).map(|_| count(&rig, &env, 1))).await;
            if before == 0 {
                rig.put(0, 1).await;
            }
            txn.write(Lba(0), block(2))
        };
        let done: Result<(), TxnError> = txn::run(&rig.manager, Begin::STRICT, SYNCED, outer).await;
        done.unwrap();
        assert_eq!((rig.get(0).await, rig.get(1).await), (2, 8));
    });
}

#[test]
fn levels_have_names() {
    assert_eq!(Begin::default().isolation, Isolation::StrictSerializable);
    assert_eq!(serde_json::to_string(&Isolation::Snapshot).unwrap(), "\"snapshot\"");
}

#[test]
fn a_reader_sees_what_survives_a_crash_and_waits_for_nobody() {
    run(19, |env| async move {
        let rig = rig(&env);
        let txn = rig.begin(Begin::STRICT).await;
        txn.write(Lba(1), block(1)).unwrap();
        txn.commit(SYNCED).await.unwrap();
        let reader = rig.begin(Begin::READ_ONLY).await;
        let syncs = rig.store.syncs();
        assert_eq!(reader.read(Lba(1)).await.unwrap()[0], 1);
        reader.commit(SYNCED).await.unwrap();
        assert_eq!(rig.store.syncs(), syncs);
    });
}

#[test]
fn writes_pass_while_no_transaction_runs_and_are_seen_by_the_next() {
    run(20, |env| async move {
        let rig = rig(&env);
        rig.begin(Begin::STRICT).await.abort().await;
        rig.put(1, 1).await;
        assert_eq!(rig.manager.status().singletons, 0, "it did not pass");
        let txn = rig.begin(Begin::STRICT).await;
        assert_eq!(txn.read(Lba(1)).await.unwrap()[0], 1);
        rig.put(2, 2).await;
        assert_eq!(rig.manager.status().singletons, 1, "it passed a transaction");
        txn.abort().await;
        rig.manager.discard(Lba(1), 1).await.unwrap();
        assert_eq!(rig.manager.status().singletons, 1);
        let txn = rig.begin(Begin::STRICT).await;
        assert_eq!(txn.read(Lba(1)).await.unwrap()[0], 0);
    });
}

/// Two concurrent changes of the whole store do not admit transactions for each other.
#[test]
fn changes_of_the_whole_overlap() {
    run(25, |env| async move {
        let rig = rig(&env);
        let change = async |micros| {
            let change = async || {
                env.sleep(Duration::from_micros(micros)).await;
                let mut beginning = rig.manager.begin(Begin::STRICT);
                assert!(beginning.as_mut().now_or_never().is_none());
            };
            rig.manager.exclusively(change).await;
        };
        futures::join!(change(10), change(30), change(20));
        rig.begin(Begin::STRICT).await;
    });
}

/// Wraps a store whose changes are visible long before their calls return.
#[derive(Debug)]
struct Lingering;

#[async_trait]
impl Around for Lingering {
    async fn after_change(&self) {
        std::future::pending().await
    }
}

fn lingering() -> Arc<dyn BlockStore> {
    Arc::new(Passing::new(Arc::new(VersionedMemory::new(BLOCKS)), Lingering))
}

#[test]
fn a_turn_goes_on_once_a_commit_is_decided_or_given_up() {
    run(20, |env| async move {
        let store = lingering();
        let manager = TransactionManager::new(&env, store, Options::default());
        let contention = manager.contention();
        let turn = contention.turn().await;
        assert!(turn.is_held() && !txn::Turn::default().is_held());
        let txn = manager.begin(Begin::STRICT).await.unwrap();
        change(&*txn, 3, 0, 1).await;
        let mut committing = Box::pin(turn.commit(&*txn, SYNCED));
        assert!(committing.as_mut().now_or_never().is_none(), "the store takes its time");
        let start = env.now();
        let turn = contention.turn().await;
        assert!(turn.is_held());
        assert_eq!(env.now(), start);
        drop(committing);
        drop(turn);
        assert!(contention.turn().await.is_held());
    });
}

/// A store that takes a second for each change.
#[derive(Debug)]
struct Sluggish(Env);

#[async_trait]
impl Around for Sluggish {
    async fn before_change(&self, _: Change<'_>) -> Result<(), StoreError> {
        self.0.sleep(Duration::from_secs(1)).await;
        Ok(())
    }
}

/// A store that delays the first writer forever.
#[derive(Debug, Default)]
struct Behind(AtomicBool);

#[async_trait]
impl Around for Behind {
    async fn before_backpressure(&self) {
        if !self.0.swap(true, Ordering::Relaxed) {
            std::future::pending().await
        }
    }
}

/// A store that refuses changes, and delays every writer forever.
#[derive(Debug)]
struct Refusing;

#[async_trait]
impl Around for Refusing {
    async fn before_change(&self, _: Change<'_>) -> Result<(), StoreError> {
        Err(StoreError::Poisoned("it takes none".into()))
    }

    async fn before_backpressure(&self) {
        std::future::pending().await
    }
}

#[test]
fn who_wrote_nothing_is_not_held_back() {
    run(28, |env| async move {
        let memory = Arc::new(VersionedMemory::new(BLOCKS));
        let store = Arc::new(Passing::new(memory, Refusing));
        let manager = TransactionManager::new(&env, store, Options::default());
        let txn = manager.begin(Begin::STRICT).await.unwrap();
        change(&*txn, 3, 0, 1).await;
        txn.commit(SYNCED).await.unwrap_err();
        let whole = Write::block(Lba(3), vec![1; BLOCK_SIZE].into());
        let part = Write { changed: (0..10).into(), ..whole.clone() };
        for write in [whole, part] {
            manager.apply(vec![write]).await.unwrap_err();
        }
    });
}

#[test]
fn who_is_held_back_keeps_nobody_waiting() {
    run(27, |env| async move {
        let memory = Arc::new(VersionedMemory::new(BLOCKS));
        let store = Arc::new(Passing::new(memory, Behind::default()));
        let manager = TransactionManager::new(&env, store.clone(), Options::default());
        let first = manager.begin(Begin::STRICT).await.unwrap();
        change(&*first, 3, 0, 1).await;
        let mut held_back = Box::pin(first.commit(SYNCED));
        assert!(held_back.as_mut().now_or_never().is_none());
        let before = store.now();
        // The write itself is done, and other transactions go on.
        let second = manager.begin(Begin::STRICT).await.unwrap();
        assert_eq!(second.read(Lba(3)).await.unwrap()[0], 1);
        change(&*second, 3, 0, 2).await;
        second.commit(SYNCED).await.unwrap();
        assert!(store.now() > before);
    });
}

/// A transaction that conflicts with a decided but unapplied commit retries when that is applied, not all the
/// time.
#[test]
fn a_conflict_is_told_when_another_attempt_may_succeed() {
    run(26, |env| async move {
        let memory = Arc::new(VersionedMemory::new(BLOCKS));
        let store = Arc::new(Passing::new(memory, Sluggish(env.clone())));
        let manager = TransactionManager::new(&env, store, Options::default());
        let attempts = AtomicU64::new(0);
        let add = async || {
            let added: Result<(), TxnError> =
                txn::run(&manager, Begin::STRICT, SYNCED, async |txn| {
                    assert!(attempts.fetch_add(1, Ordering::Relaxed) < 40, "it does nothing else");
                    let count = txn.read(Lba(3)).await?[0];
                    txn.write(Lba(3), block(count + 1))
                })
                .await;
            added.unwrap();
        };
        let start = env.now();
        // The old snapshot is kept and could be shared.
        let reader = manager.begin(Begin::SNAPSHOT).await.unwrap();
        join_all((0..4).map(|_| add())).await;
        reader.abort().await;
        let txn = manager.begin(Begin::STRICT).await.unwrap();
        assert_eq!(txn.read(Lba(3)).await.unwrap()[0], 4);
        let spent = env.now().since(start);
        assert!(spent < Duration::from_secs(5), "{spent:?}");
        // Each of them meets each earlier one once.
        assert!(attempts.load(Ordering::Relaxed) <= 4 + 3 + 2 + 1, "{attempts:?}");
    });
}

/// A write that bypassed the stream and was dropped halfway is seen by the next transaction.
#[test]
fn a_passage_that_is_given_up_is_seen() {
    run(24, |env| async move {
        let store = lingering();
        let manager = TransactionManager::new(&env, store, Options::default());
        let seen = async || {
            // The snapshot of a transaction that ended is kept and could be shared.
            let txn = manager.begin(Begin::STRICT).await.unwrap();
            txn.read(Lba(1)).await.unwrap()[0]
        };
        assert_eq!(seen().await, 0);
        let write = vec![Write::block(Lba(1), block(1))];
        assert!(manager.apply(write).now_or_never().is_none());
        assert_eq!(seen().await, 1);
        assert!(manager.discard(Lba(1), 1).now_or_never().is_none());
        assert_eq!(seen().await, 0);
    });
}

#[test]
fn a_change_of_the_whole_comes_between_transactions() {
    run(21, |env| async move {
        let rig = Arc::new(rig(&env));
        rig.put(1, 1).await;
        let txn = rig.begin(Begin::STRICT).await;
        txn.read(Lba(1)).await.unwrap();
        txn.write(Lba(2), block(2)).unwrap();
        let (again, sleeper) = (rig.clone(), env.clone());
        let later = env.spawn(async move {
            sleeper.sleep(Duration::from_micros(5)).await;
            again.begin(Begin::STRICT).await.read(Lba(1)).await.unwrap()[0]
        });
        rig.manager
            .exclusively(async || {
                env.sleep(Duration::from_micros(50)).await;
                rig.store.apply(vec![Write::block(Lba(1), block(9))]).await.unwrap();
            })
            .await;
        let refused = txn.commit(SYNCED).await;
        assert!(matches!(refused, Err(TxnError::Preempted(Preempted::Replaced))));
        assert_eq!(later.await, Some(9));
    });
}

/// Neither read-only transactions nor writes outside of transactions make the store keep anything newer than
/// the state to which a change of the whole store goes back.
#[test]
fn nothing_is_held_during_a_change_of_the_whole() {
    run(23, |env| async move {
        let rig = Arc::new(rig(&env));
        rig.put(1, 1).await;
        let _txn = rig.begin(Begin::STRICT).await;
        let again = rig.clone();
        rig.manager
            .exclusively(async || {
                assert_eq!(rig.store.held(), 0);
                // It changes part of a block, so it goes through the order of commits.
                let changed = (0..1).into();
                let write = Write { changed, ..Write::block(Lba(1), block(2)) };
                rig.manager.apply(vec![write]).await.unwrap();
                assert_eq!(rig.store.held(), 0);
                let mut reader = again.begin(Begin::READ_ONLY).boxed();
                assert!(reader.as_mut().now_or_never().is_none());
                assert_eq!(rig.store.held(), 0);
            })
            .await;
        rig.begin(Begin::READ_ONLY).await;
    });
}

fn is_over(done: &AtomicBool) -> bool {
    done.load(Ordering::Relaxed)
}

/// A transaction on another thread is aborted, or commits before: also one that is just beginning or ending.
#[test]
fn a_change_of_the_whole_comes_between_transactions_of_threads() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(4).enable_all().build().unwrap().block_on(async {
        let env = Env::real();
        let rig = Arc::new(rig(&env));
        let done = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..3)
            .map(|lba| {
                let (rig, done) = (rig.clone(), done.clone());
                env.spawn(async move {
                    let mut committed = 0;
                    while !is_over(&done) {
                        let txn = rig.begin(Begin::STRICT).await;
                        // The last one ends when it is aborted, and never by itself.
                        while lba == 2 && txn.read(Lba(lba)).await.is_ok() && !is_over(&done) {
                            tokio::task::yield_now().await;
                        }
                        let written = txn.write(Lba(lba), block(1));
                        committed += u64::from(written.is_ok() && txn.commit(SYNCED).await.is_ok());
                        tokio::task::yield_now().await;
                    }
                    committed
                })
            })
            .collect();
        for round in 0..CHANGES {
            let change = async || {
                let now = rig.store.now();
                for _ in 0..20 {
                    assert_eq!(rig.store.held(), 0, "in round {round}");
                    assert_eq!(rig.store.now(), now, "in round {round}");
                    std::hint::spin_loop();
                }
            };
            let changed =
                env.timeout(Duration::from_secs(20), rig.manager.exclusively(change)).await;
            assert!(changed.is_some(), "it waits for ever in round {round}");
            // The other threads get to a different point each time.
            (0..round % 500).for_each(|_| std::hint::spin_loop());
            tokio::task::yield_now().await;
        }
        done.store(true, Ordering::Relaxed);
        let committed: Vec<u64> = join_all(clients).await.into_iter().flatten().collect();
        assert!(committed[..2].iter().all(|committed| *committed > 100), "{committed:?}");
        assert_eq!(rig.manager.status().buffered_bytes, 0, "nobody runs any more");
    });
}

/// The largest transaction is longer than the shortest segment.
#[test]
fn the_largest_transaction_survives_a_crash_as_a_whole() {
    run(22, |env| async move {
        let shape = Shape::small(Cleaning::MoveToTail);
        let most = Options::default().max_writes as u64;
        assert!(most > u64::from(support::SEGMENT));
        let recorder = Recorder::with_latency(&env, Duration::from_micros(50));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let chain = Arc::new(shape.open(&env, &devices).await.unwrap().0);
        let opened = recorder.position();
        let manager = TransactionManager::new(&env, chain, Options::default());
        for round in 1..6u8 {
            let txn = manager.begin(Begin::STRICT).await.unwrap();
            for lba in 0..most {
                txn.write(Lba(lba), block(round)).unwrap();
            }
            txn.commit(SYNCED).await.unwrap();
            recorder.mark(u64::from(round));
        }
        let points = (opened..recorder.position()).step_by(3).collect();
        let policy = Policy::sampled(0).at(Points::At(points));
        let images: Vec<CrashImage> = recorder.images(&mut env.rng(), &policy).collect();
        assert!(images.len() > 30);
        for image in images {
            let disks = image.disks().iter().map(|disk| disk.clone() as Arc<dyn Device>);
            let devices: Vec<DeviceRef> = disks.collect();
            let chain = shape.open(&env, &devices).await.unwrap().0;
            let found = chain.read(Lba(0), most, chain.now()).await.unwrap();
            let round = |block: &Option<Bytes>| block.as_ref().map_or(0, |block| block[0]);
            let first = round(&found[0]);
            assert!(found.iter().all(|block| round(block) == first), "{}", image.describe());
            assert!(u64::from(first) >= image.acknowledged().max().unwrap_or(0));
        }
    });
}
