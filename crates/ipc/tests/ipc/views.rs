//! Reads that may be old over a socket.

use thalweg_store::block::{Blocks, BlocksExt, Lba, Version, Versions, Write};
use thalweg_store::stale::{Cost, Needs, Unserved, VersionRange};
use thalweg_store::txn::{Begin, Durability, Transact, TxnError};

use crate::rig::{Rig, block};

fn range(low: Version, up: Version) -> VersionRange {
    VersionRange { low, up }
}

#[tokio::test]
async fn a_view_is_narrowed_by_its_reads() {
    let rig = Rig::new();
    let volume = rig.connect().await;
    let base = rig.store.now();
    let _kept = rig.store.hold_since(base).unwrap();
    let at = |n: u64| Version(base.0 + n);
    // Block 1 changes in versions 1 and 3, block 2 in version 2.
    for (lba, value) in [(1, 1), (2, 2), (1, 3)] {
        rig.manager.apply(vec![Write::block(Lba(lba), block(value))]).await.unwrap();
    }
    let view = |needs| volume.view(Box::leak(Box::new(needs)), Version(0));
    let oldest = view(Needs { low: at(1), ..Needs::default() }).await.unwrap();
    assert_eq!(oldest.seen().await.unwrap().range, range(at(1), at(3)));
    assert_eq!(oldest.read(Lba(1)).await.unwrap(), block(1));
    assert_eq!(oldest.seen().await.unwrap().range, range(at(1), at(2)));
    assert_eq!(oldest.read(Lba(2)).await.unwrap(), block(0));
    assert_eq!(oldest.seen().await.unwrap().range, range(at(1), at(1)));
    assert_eq!(oldest.commit(Durability::Visible).await.unwrap().version, at(1));
    assert!(matches!(oldest.seen().await, Err(TxnError::Ended)));
    let newest = view(Needs { is_newest: true, ..Needs::default() }).await.unwrap();
    assert_eq!(newest.read(Lba(1)).await.unwrap(), block(3));
    assert!(newest.write(Lba(1), block(4)).is_err());
    newest.commit(Durability::Visible).await.unwrap();
    assert_eq!(rig.stored(1).await, 3);
    let exact = view(Needs { at: Some(at(2)), ..Needs::default() }).await.unwrap();
    assert_eq!(exact.read_run(Lba(1), 2).await.unwrap(), [block(1), block(2)]);
    let behind = view(Needs { low: at(9), ..Needs::default() }).await;
    assert!(matches!(behind, Err(TxnError::Unserved(Unserved::Behind(it))) if it == at(9)));
    // A transaction of its own state says so.
    let plain = volume.begin(Begin::READ_ONLY).await.unwrap();
    assert_eq!(plain.seen().await.unwrap().range, range(at(3), at(3)));
    drop((exact, plain, newest, oldest));
    rig.wait_for_running(0).await;
}

#[tokio::test]
async fn contents_come_with_their_costs() {
    let rig = Rig::new();
    let volume = rig.connect().await;
    let base = rig.store.now();
    let _kept = rig.store.hold_since(base).unwrap();
    for value in 1..=100 {
        rig.manager.apply(vec![Write::block(Lba(1), block(value))]).await.unwrap();
    }
    let all = range(base, Version(u64::MAX));
    let contents = volume.contents(Lba(1), all).await.unwrap();
    assert_eq!(contents, rig.manager.contents(Lba(1), all).await.unwrap());
    assert_eq!(contents.len(), 101);
    assert!(contents.iter().all(|(_, cost)| *cost == Cost::MEMORY));
    let outside = volume.contents(Lba(1 << 40), all).await;
    assert!(matches!(outside, Err(TxnError::Store(_))), "{outside:?}");
}
