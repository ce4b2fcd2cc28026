//! Writes outside of transactions, as of block devices, on volumes with partitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::Env;
use thalweg_sim::passing::{Around, Change, Passing};
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, StoreError, Write};
use thalweg_store::tree::{Kind, NewPartition, Partition, Store, TreeError, catalogue};
use thalweg_store::txn::{Begin, Durability, Options, Transact, TransactionManager, TxnError};
use thalweg_store::volume::{StoreVolume, Volume};
use tokio::sync::Notify;

async fn manager(env: &Env) -> TransactionManager {
    let store = Arc::new(VersionedMemory::new(2048));
    let manager = TransactionManager::new(env, store, Options::default());
    catalogue::fence(&manager).await;
    manager
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK_SIZE])
}

async fn create(env: &Env, manager: &TransactionManager) -> Result<Partition, TreeError> {
    let kind = Kind::Btree;
    let new = NewPartition { name: "names".to_owned(), kind, first: None, blocks: Some(128) };
    catalogue::create(env, manager, &new).await
}

#[tokio::test]
async fn the_first_partition_ends_writes_past_transactions() {
    let env = Env::real();
    let manager = manager(&env).await;
    let volume = StoreVolume::live(Arc::new(manager.fenced()));
    let len = BLOCK_SIZE as u64;
    volume.write(1000 * len, block(1), false).await.unwrap();
    assert!(!volume.is_read_only());
    create(&env, &manager).await.unwrap();
    assert!(volume.is_read_only());
    let refused = [
        volume.write(1000 * len, block(2), false).await,
        volume.write(1000 * len, block(2).slice(..512), false).await,
        volume.trim(0, 4 * len, false).await,
        volume.write_zeroes(0, 4 * len, true, false).await,
        volume.write_zeroes(0, 4 * len, false, false).await,
    ];
    for refused in refused {
        let Err(StoreError::Invalid(why)) = &refused else { panic!("{refused:?}") };
        assert!(why.contains("partitions"), "{why}");
    }
    // Writes from before are still made durable.
    volume.flush().await.unwrap();
    assert_eq!(volume.read(1000 * len, BLOCK_SIZE).await.unwrap().concat(), block(1));
    // While a transaction runs, writes go through the stream.
    let running = manager.begin(Begin::STRICT).await.unwrap();
    assert!(volume.write(0, block(2), false).await.is_err());
    assert!(volume.trim(0, len, false).await.is_err());
    drop(running);
    Store::open(&env, Arc::new(manager.clone()), "names").await.unwrap();
    // Found when the volume is opened anew, and lowered by a transaction that removes the catalogue.
    manager.fence(b"", false);
    assert!(!volume.is_read_only());
    catalogue::fence(&manager).await;
    assert!(volume.is_read_only());
    let removes = manager.begin(Begin::STRICT).await.unwrap();
    removes.discard(Lba(0)).unwrap();
    removes.commit(Durability::Synced).await.unwrap();
    assert!(!volume.is_read_only());
}

#[tokio::test]
async fn a_writer_excludes_the_first_partition_and_no_further_ones() {
    let env = Env::real();
    let manager = manager(&env).await;
    let [one, two] = ["attached", "connected"].map(|why| manager.occupy(why.to_owned()));
    for _ in 0..2 {
        let refused = create(&env, &manager).await;
        let Err(TreeError::Txn(TxnError::Invalid(why))) = &refused else { panic!("{refused:?}") };
        assert!(why == "attached" || why == "connected");
        assert!(!manager.settled_fence().await);
    }
    // A transaction that leaves block 0 alone, or gives it other content, does not raise the fence.
    let txn = manager.begin(Begin::STRICT).await.unwrap();
    txn.write(Lba(0), block(1)).unwrap();
    txn.commit(Durability::Synced).await.unwrap();
    manager.fenced().discard(Lba(0), 1).await.unwrap();
    drop(one);
    assert!(create(&env, &manager).await.is_err());
    drop(two);
    create(&env, &manager).await.unwrap();
    assert!(manager.settled_fence().await);
    assert_eq!(manager.status().running, 0);
    let _writer = manager.occupy("late".to_owned());
    let more =
        NewPartition { name: "more".to_owned(), kind: Kind::Raw, first: None, blocks: Some(10) };
    catalogue::create(&env, &manager, &more).await.unwrap();
}

/// Concurrent writes to the blocks of the catalogue and of the store while the partition is created: either
/// they come first, and there is no partition, or they are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_write_slips_in_while_the_first_partition_is_made() {
    let env = Env::real();
    let mut made = 0;
    for round in 0..100u64 {
        let manager = manager(&env).await;
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                let (fenced, stop) = (manager.fenced(), stop.clone());
                // First behind the blocks that have to be empty, then over all of it.
                env.spawn(async move {
                    let mut at = 100 + round + writer;
                    let mut refused = false;
                    while !stop.load(Ordering::SeqCst) {
                        let lba = Lba(if at > 160 { at % 40 } else { at });
                        let done = fenced.apply(vec![Write::block(lba, block(7))]).await;
                        assert!(done.is_err() || !refused, "a write after one was refused");
                        refused = done.is_err();
                        at += 1;
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        let created = create(&env, &manager).await;
        stop.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await.unwrap();
        }
        match created {
            Ok(_) => {
                made += 1;
                let store = Store::open(&env, Arc::new(manager.clone()), "names").await.unwrap();
                assert_eq!(store.check().await.unwrap().keys, 0);
            }
            Err(TreeError::Foreign(_)) => assert!(!manager.is_fenced()),
            Err(error) => panic!("{error}"),
        }
    }
    // Otherwise the test shows nothing.
    assert!(made > 0, "no partition was made in any round");
}

/// Stalls the first change of block 0.
#[derive(Debug, Default)]
struct Stalling {
    has_stalled: AtomicBool,
    stalls: Notify,
    proceeds: Notify,
}

#[async_trait]
impl Around for Stalling {
    async fn before_change(&self, change: Change<'_>) -> Result<(), StoreError> {
        let Change::Apply(writes) = change else { return Ok(()) };
        let is_head = writes.iter().any(|write| write.lba == Lba(0));
        if is_head && !self.has_stalled.swap(true, Ordering::SeqCst) {
            self.stalls.notify_one();
            self.proceeds.notified().await;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_write_waits_for_the_commit_that_makes_the_first_partition() {
    let env = Env::real();
    let memory = Arc::new(VersionedMemory::new(2048));
    let store = Arc::new(Passing::new(memory, Stalling::default()));
    let manager = TransactionManager::new(&env, store.clone(), Options::default());
    catalogue::fence(&manager).await;
    let (creator, creates) = (env.clone(), manager.clone());
    let creating = env.spawn(async move { create(&creator, &creates).await });
    store.around.stalls.notified().await;
    let fenced = manager.fenced();
    let writing =
        env.spawn(async move { fenced.apply(vec![Write::block(Lba(20), block(7))]).await });
    env.sleep(Duration::from_millis(20)).await;
    assert!(!writing.is_finished() && !manager.is_fenced());
    store.around.proceeds.notify_one();
    creating.await.unwrap().unwrap();
    let refused = writing.await.unwrap();
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
}
