//! Connections that end in the middle of a transaction.

use std::time::Duration;

use thalweg_ipc::Config;
use thalweg_ipc::protocol::{Answer, Request};
use thalweg_store::block::{Class, Lba};
use thalweg_store::txn::{Begin, Durability, Options, Transact, TxnError};

use crate::rig::{Rig, block};

/// At every step of a client, its transactions end with its connection, except for the released one.
#[tokio::test]
async fn a_client_that_dies_leaves_nothing_but_what_it_released() {
    let rig = Rig::new();
    let steps = [
        Request::Begin { txn: 1, begin: Begin::STRICT },
        Request::Read { txn: 1, lba: 0, count: 8 },
        Request::Write { txn: 1, lba: 1, class: Class::Data },
        Request::Mark { txn: 1, lba: 1, start: 0, end: 8 },
        Request::Discard { txn: 1, lba: 2 },
        Request::PleaseCache { txn: 1, lba: 1 },
    ];
    for count in 1..=steps.len() {
        let mut raw = rig.raw().await;
        for (id, step) in (1..).zip(&steps[..count]) {
            let is_answered = matches!(step, Request::Begin { .. } | Request::Read { .. });
            let payload =
                if matches!(step, Request::Write { .. }) { block(1) } else { Default::default() };
            raw.send(if is_answered { id } else { 0 }, step, &payload).await;
        }
        drop(raw);
        rig.wait_for_running(0).await;
        assert_eq!(rig.stored(1).await, 0);
    }
    let mut raw = rig.raw().await;
    raw.send(1, &steps[0], &[]).await;
    raw.send(0, &steps[2], &block(1)).await;
    raw.send(2, &Request::Release { txn: 1 }, &[]).await;
    raw.answer().await.unwrap();
    let Some((2, Answer::Released(handle))) = raw.answer().await else { panic!("no handle") };
    raw.send(3, &Request::Begin { txn: 2, begin: Begin::STRICT }, &[]).await;
    raw.answer().await.unwrap();
    drop(raw);
    rig.wait_for_running(1).await;
    // The connection that takes it over owns it: it ends with that connection.
    let mut raw = rig.raw().await;
    raw.send(1, &Request::Takeover { txn: 5, handle }, &[]).await;
    raw.answer().await.unwrap();
    drop(raw);
    rig.wait_for_running(0).await;
    assert_eq!(rig.stored(1).await, 0);
}

#[tokio::test]
async fn a_released_transaction_is_waited_for_so_long() {
    let options = Options { idle: Duration::from_millis(80), ..Options::default() };
    let rig = Rig::with(options, Config::default());
    let volume = rig.connect().await;
    let txn = volume.begin(Begin::STRICT).await.unwrap();
    let handle = txn.release().await.unwrap();
    drop((txn, volume));
    rig.wait_for_running(0).await;
    let volume = rig.connect().await;
    assert!(matches!(volume.takeover(handle).await, Err(TxnError::UnknownHandle)));
}

#[tokio::test]
async fn who_does_not_wait_for_a_beginning_leaves_nothing() {
    let rig = Rig::new();
    let volume = rig.connect().await;
    for _ in 0..50 {
        let begin = volume.begin(Begin::STRICT);
        futures::pin_mut!(begin);
        assert!(futures::poll!(&mut begin).is_pending());
    }
    rig.wait_for_running(0).await;
    drop(volume.begin(Begin::STRICT).await.unwrap());
    rig.wait_for_running(0).await;
}

#[tokio::test]
async fn without_a_server_every_call_says_so() {
    let mut rig = Rig::new();
    let volume = rig.connect().await;
    let txn = volume.begin(Begin::STRICT).await.unwrap();
    txn.write(Lba(1), block(1)).unwrap();
    let other = volume.begin(Begin::STRICT).await.unwrap();
    rig.server = None;
    let lost = |error| assert!(matches!(error, TxnError::Disconnected(_)), "{error}");
    lost(txn.read(Lba(0)).await.unwrap_err());
    lost(txn.commit(Durability::Synced).await.unwrap_err());
    lost(other.write(Lba(1), block(1)).unwrap_err());
    lost(other.release().await.unwrap_err());
    other.abort().await;
    lost(volume.begin(Begin::STRICT).await.unwrap_err());
    rig.wait_for_running(0).await;
    assert_eq!(rig.stored(1).await, 0);
}
