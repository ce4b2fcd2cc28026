//! Calls over a socket have the same results as calls in one process.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_ipc::Config;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Versions, Write};
use thalweg_store::txn::{
    self, Begin, Durability, Handle, Options, Transact, Transaction, TxnError,
};

use crate::rig::{BLOCKS, Rig, block};

const SYNCED: Durability = Durability::Synced;

#[tokio::test]
async fn it_sees_its_snapshot_and_its_own_writes() {
    let rig = Rig::new();
    let volume = rig.connect().await;
    assert_eq!(volume.blocks(), BLOCKS);
    for begin in [Begin::STRICT, Begin::SNAPSHOT] {
        rig.manager.apply(vec![Write::block(Lba(1), block(1))]).await.unwrap();
        rig.manager.discard(Lba(2), 1).await.unwrap();
        let txn = volume.begin(begin).await.unwrap();
        rig.manager.apply(vec![Write::block(Lba(1), block(2))]).await.unwrap();
        assert_eq!(txn.read(Lba(1)).await.unwrap(), block(1));
        assert_eq!(txn.read(Lba(1)).await.unwrap(), block(1));
        txn.write(Lba(2), block(9)).unwrap();
        assert_eq!(txn.read(Lba(2)).await.unwrap(), block(9));
        assert_eq!(rig.stored(2).await, 0);
        txn.discard(Lba(2)).unwrap();
        assert_eq!(txn.read_run(Lba(1), 2).await.unwrap(), [block(1), block(0)]);
        txn.abort().await;
        assert!(matches!(txn.read(Lba(1)).await, Err(TxnError::Ended)));
        assert!(matches!(txn.commit(SYNCED).await, Err(TxnError::Ended)));
    }
    rig.wait_for_running(0).await;
}

#[tokio::test]
async fn versions_and_syncs_travel() {
    let rig = Rig::new();
    let volume = rig.connect().await;
    rig.manager.apply(vec![Write::block(Lba(1), block(1))]).await.unwrap();
    let txn = volume.begin(Begin::STRICT).await.unwrap();
    let now = || rig.manager.name(rig.manager.now());
    let old = txn.version();
    assert_eq!(old, now());
    txn.write(Lba(2), block(9)).unwrap();
    let version = txn.commit(Durability::Visible).await.unwrap();
    assert_eq!(version, now());
    // At a version: while it is kept, and read-only.
    let hold = rig.manager.hold(version.version).unwrap();
    rig.manager.apply(vec![Write::block(Lba(2), block(7))]).await.unwrap();
    let then = volume.begin(Begin::at(version)).await.unwrap();
    assert_eq!((then.version(), then.read(Lba(2)).await.unwrap()), (version, block(9)));
    drop(hold);
    assert_eq!(then.read(Lba(2)).await.unwrap(), block(9));
    then.abort().await;
    let gone = volume.begin(Begin::at(old)).await;
    assert!(matches!(gone, Err(TxnError::Gone(version)) if version == old), "{gone:?}");
    let writing = Begin { at: Some(now()), ..Begin::STRICT };
    assert!(matches!(volume.begin(writing).await, Err(TxnError::Invalid(_))));
    let version = now();
    let syncs = rig.store.syncs();
    assert_eq!(volume.sync().await.unwrap(), version);
    assert_eq!(rig.store.syncs(), syncs + 1);
}

#[tokio::test]
async fn a_commit_counts_as_a_whole_and_a_conflict_as_nothing() {
    let rig = Rig::new();
    let (one, two) = (rig.connect().await, rig.connect().await);
    let (first, second) =
        (one.begin(Begin::STRICT).await.unwrap(), two.begin(Begin::STRICT).await.unwrap());
    for txn in [&first, &second] {
        txn.read(Lba(7)).await.unwrap();
        txn.write(Lba(7), block(7)).unwrap();
        txn.write(Lba(8), block(8)).unwrap();
    }
    first.commit(SYNCED).await.unwrap();
    second.write(Lba(9), block(9)).unwrap();
    assert!(matches!(second.commit(SYNCED).await, Err(TxnError::Conflict)));
    assert_eq!((rig.stored(7).await, rig.stored(8).await, rig.stored(9).await), (7, 8, 0));
}

#[tokio::test]
async fn marks_travel() {
    let rig = Rig::new();
    let (one, two) = (rig.connect().await, rig.connect().await);
    let (first, second) =
        (one.begin(Begin::STRICT).await.unwrap(), two.begin(Begin::STRICT).await.unwrap());
    for (at, txn) in [(0, &first), (64, &second)] {
        let mut content = txn.read(Lba(7)).await.unwrap().to_vec();
        txn.mark_accessed(Lba(7), at..at + 16).unwrap();
        content[at] = 1;
        txn.write(Lba(7), content.into()).unwrap();
        txn.mark_accessed(Lba(7), at..at + 16).unwrap();
        txn.please_cache(Lba(7));
    }
    first.commit(SYNCED).await.unwrap();
    second.commit(SYNCED).await.unwrap();
    let both = one.begin(Begin::READ_ONLY).await.unwrap().read(Lba(7)).await.unwrap();
    assert_eq!((both[0], both[64]), (1, 1));
}

/// Under snapshot isolation the client caches reads; the server must not take a mark of a read for one of a
/// write.
#[tokio::test]
async fn what_is_remembered_of_a_snapshot_does_not_move_marks() {
    let rig = Rig::new();
    let volume = rig.connect().await;
    let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
    txn.read(Lba(3)).await.unwrap();
    txn.write(Lba(3), block(3)).unwrap();
    assert_eq!(txn.read(Lba(3)).await.unwrap(), block(3));
    txn.mark_accessed(Lba(3), 0..1).unwrap();
    txn.commit(SYNCED).await.unwrap();
    let found = volume.begin(Begin::READ_ONLY).await.unwrap().read(Lba(3)).await.unwrap();
    assert_eq!(found, block(3));
}

#[tokio::test]
async fn long_runs_come_in_parts() {
    let rig = Rig::new();
    let volume = rig.connect().await;
    let txn = volume.begin(Begin::STRICT).await.unwrap();
    for lba in (0..BLOCKS).step_by(16) {
        txn.write(Lba(lba), block((lba / 16) as u8)).unwrap();
    }
    let run = txn.read_run(Lba(0), BLOCKS).await.unwrap();
    assert_eq!(run.len() as u64, BLOCKS);
    for (lba, content) in run.iter().enumerate() {
        assert_eq!(*content, block(if lba % 16 == 0 { (lba / 16) as u8 } else { 0 }), "{lba}");
    }
}

#[tokio::test]
async fn what_cannot_be_is_said_at_once() {
    let options = Options { max_writes: 2, max_running: 2, ..Options::default() };
    let rig = Rig::with(options, Config::default());
    let volume = rig.connect().await;
    let txn = volume.begin(Begin::STRICT).await.unwrap();
    let invalid = |result| assert!(matches!(result, Err(TxnError::Invalid(_))));
    invalid(txn.write(Lba(BLOCKS), block(1)));
    invalid(txn.write(Lba(0), Bytes::from_static(b"short")));
    invalid(txn.discard(Lba(u64::MAX)));
    invalid(txn.mark_accessed(Lba(0), 0..1));
    invalid(txn.read_run(Lba(BLOCKS - 1), 2).await.map(|_| ()));
    txn.read(Lba(0)).await.unwrap();
    invalid(txn.mark_accessed(Lba(0), 4000..4097));
    txn.write(Lba(0), block(1)).unwrap();
    txn.write(Lba(1), block(1)).unwrap();
    txn.write(Lba(1), block(2)).unwrap();
    assert!(matches!(txn.write(Lba(2), block(1)), Err(TxnError::TooLarge(2))));
    let other = volume.begin(Begin::READ_ONLY).await.unwrap();
    invalid(other.write(Lba(0), block(1)));
    assert!(matches!(volume.begin(Begin::STRICT).await, Err(TxnError::TooMany(2))));
    drop(other);
    txn.commit(SYNCED).await.unwrap();
    assert_eq!((rig.stored(0).await, rig.stored(1).await), (1, 2));
    rig.wait_for_running(0).await;
}

#[tokio::test]
async fn a_released_transaction_goes_on_elsewhere() {
    let rig = Rig::new();
    let (one, two) = (rig.connect().await, rig.connect().await);
    let txn = one.begin(Begin::STRICT).await.unwrap();
    txn.write(Lba(1), block(1)).unwrap();
    let handle = txn.release().await.unwrap();
    assert!(matches!(txn.write(Lba(2), block(2)), Err(TxnError::Ended)));
    assert!(matches!(txn.read(Lba(2)).await, Err(TxnError::Ended)));
    assert!(matches!(txn.release().await, Err(TxnError::Ended)));
    assert!(matches!(txn.commit(SYNCED).await, Err(TxnError::Ended)));
    let unknown = |result: Result<Arc<dyn Transaction>, _>| {
        assert!(matches!(result, Err(TxnError::UnknownHandle)));
    };
    unknown(two.takeover(Handle(handle.0 ^ 1)).await);
    // The connection that released it may be closed.
    drop((txn, one));
    let txn = two.takeover(handle).await.unwrap();
    unknown(two.takeover(handle).await);
    assert_eq!(txn.read(Lba(1)).await.unwrap(), block(1));
    txn.write(Lba(2), block(2)).unwrap();
    txn.mark_accessed(Lba(1), 0..1).unwrap();
    txn.commit(SYNCED).await.unwrap();
    assert_eq!((rig.stored(1).await, rig.stored(2).await), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_share_a_connection_and_lose_no_increment() {
    const TASKS: usize = 16;
    const ROUNDS: usize = 25;
    let rig = Rig::new();
    let volume = rig.connect().await;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let volume = volume.clone();
            rig.env.spawn(async move {
                for _ in 0..ROUNDS {
                    txn::run::<_, TxnError, _>(&volume, Begin::STRICT, SYNCED, increment)
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let found = volume.begin(Begin::READ_ONLY).await.unwrap().read(Lba(0)).await.unwrap();
    let count = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert_eq!(count, (TASKS * ROUNDS) as u64);
    assert!(rig.manager.status().conflicts > 0, "they never met");
}

async fn increment(txn: Arc<dyn Transaction>) -> Result<(), TxnError> {
    let mut content = txn.read(Lba(0)).await?.to_vec();
    let count = u64::from_le_bytes(content[..8].try_into().unwrap());
    content[..8].copy_from_slice(&(count + 1).to_le_bytes());
    assert_eq!(content.len(), BLOCK_SIZE);
    txn.write(Lba(0), content.into())
}
