//! Clients that may read, but not write.

use std::time::Duration;

use thalweg_ipc::Connection;
use thalweg_net::keys::Access;
use thalweg_store::block::{Lba, StoreError};
use thalweg_store::txn::{Begin, Durability, Transact, TxnError};

use crate::rig::{Rig, block};

impl Rig {
    /// A client over a stream of another kind than a Unix socket.
    async fn with_access(&self, access: Access) -> Connection {
        let (near, far) = tokio::io::duplex(1 << 16);
        let service = self.server.as_ref().unwrap().service().clone();
        self.env.spawn(async move { service.serve(far, access).await }).detach();
        Connection::over(&self.env, near).await.unwrap()
    }
}

fn is_read_only<T>(result: &Result<T, TxnError>) -> bool {
    matches!(result, Err(TxnError::Store(StoreError::ReadOnly)))
}

#[tokio::test]
async fn a_client_that_may_write_does_so_over_any_stream() {
    let rig = Rig::new();
    let client = rig.with_access(Access::Write).await;
    let txn = client.begin(Begin::STRICT).await.unwrap();
    txn.write(Lba(3), block(7)).unwrap();
    txn.commit(Durability::Synced).await.unwrap();
    assert_eq!(rig.stored(3).await, 7);
}

#[tokio::test]
async fn a_client_that_may_read_changes_nothing() {
    let rig = Rig::new();
    let (reader, writer) = (rig.with_access(Access::Read).await, rig.connect().await);
    let txn = writer.begin(Begin::STRICT).await.unwrap();
    txn.write(Lba(3), block(7)).unwrap();
    txn.commit(Durability::Synced).await.unwrap();
    for discards in [false, true] {
        let txn = reader.begin(Begin::STRICT).await.unwrap();
        assert_eq!(txn.read_run(Lba(3), 1).await.unwrap()[0], block(7));
        match discards {
            true => txn.discard(Lba(3)).unwrap(),
            false => txn.write(Lba(3), block(8)).unwrap(),
        }
        assert!(is_read_only(&txn.commit(Durability::Synced).await), "discards: {discards}");
    }
    // The writes of another client are not its to commit.
    let txn = writer.begin(Begin::STRICT).await.unwrap();
    txn.write(Lba(3), block(9)).unwrap();
    let handle = txn.release().await.unwrap();
    assert!(is_read_only(&reader.takeover(handle).await));
    assert_eq!(rig.stored(3).await, 7);
    // It ends without writes.
    let txn = reader.begin(Begin::READ_ONLY).await.unwrap();
    txn.commit(Durability::Synced).await.unwrap();
    let taken = writer.takeover(handle).await.unwrap();
    taken.commit(Durability::Synced).await.unwrap();
    assert_eq!(rig.stored(3).await, 9);
}

#[tokio::test]
async fn a_server_that_ends_ends_connections_of_every_kind() {
    let mut rig = Rig::new();
    let client = rig.with_access(Access::Write).await;
    client.sync().await.unwrap();
    rig.server = None;
    let synced = rig.env.timeout(Duration::from_secs(10), async {
        while client.sync().await.is_ok() {
            rig.env.sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(synced.await.is_some(), "the connection goes on");
}
