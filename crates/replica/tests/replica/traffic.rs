//! What a primary and its follower send, by purpose.

use std::time::Duration;

use thalweg_env::Env;
use thalweg_net::traffic::{Sent, Traffic};
use thalweg_replica::Room;
use thalweg_sim::run;
use thalweg_store::block::BLOCK_SIZE;

use crate::cluster::{BEAT, Cluster};

/// The bytes of a hello.
const HELLO: u64 = 12;

/// All bytes that were sent, and those of one hello.
fn bytes(traffic: &Traffic) -> u64 {
    HELLO + traffic.sent().values().map(|sent| sent.bytes).sum::<u64>()
}

/// What was sent for a purpose while something else happened.
async fn during(traffic: &Traffic, purpose: &str, work: impl Future<Output = ()>) -> Sent {
    let before = traffic.sent_for(purpose);
    work.await;
    let after = traffic.sent_for(purpose);
    Sent { messages: after.messages - before.messages, bytes: after.bytes - before.bytes }
}

#[test]
fn every_byte_is_counted_for_its_purpose() {
    run(1, |env: Env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        cluster.catch_up().await;
        let primary = cluster.primary.process().primary.clone().unwrap();
        let follower = cluster.follower.process().follower.clone().unwrap();
        let (sent, heard) = (primary.traffic().clone(), follower.traffic().clone());
        // An idle follower asks, and is told; nothing else is sent.
        let (changes, told) = (sent.sent_for("Changes"), sent.sent_for("Told"));
        let asked = during(&heard, "Ask", env.sleep(BEAT * 10)).await;
        assert!((8..=12).contains(&asked.messages), "{asked:?}");
        assert_eq!(sent.sent_for("Changes"), changes);
        let answered = sent.sent_for("Told").messages - told.messages;
        assert!(answered.abs_diff(asked.messages) <= 1, "{answered} of {asked:?}");
        let copied = sent.sent_for("Copy");
        let written = async {
            for _ in 0..50 {
                cluster.write().await;
            }
            cluster.catch_up().await;
        };
        let changes = during(&sent, "Changes", written).await;
        assert!(changes.messages > 0 && changes.bytes > 50, "{changes:?}");
        assert_eq!(sent.sent_for("Copy"), copied, "no copy was needed");
        assert!(heard.sent_for("Durable").messages > 0);

        // The network has carried these bytes and no others.
        env.sleep(Duration::from_millis(20)).await;
        let (one, other) = (&cluster.primary.host, &cluster.follower.host);
        let carried = [(one, other), (other, one)].map(|(a, b)| cluster.network.tally(a, b).bytes);
        assert_eq!(carried, [bytes(&sent), bytes(&heard)], "{sent:?} {heard:?}");
    });
}

#[test]
fn a_copy_is_counted_apart() {
    run(2, |env: Env| async move {
        // What is written while the follower is away does not fit.
        let mut cluster = Cluster::new(&env, Room { raw: 4 << 20, encoded: 8 << 10 }).await;
        cluster.catch_up().await;
        let sent = cluster.primary.process().primary.clone().unwrap().traffic().clone();
        cluster.follower.kill().await;
        for _ in 0..100 {
            cluster.write().await;
        }
        let changes = sent.sent_for("Changes");
        let away = async {
            cluster.follower.start(&cluster.primary.host).await;
            cluster.catch_up().await;
        };
        let copied = during(&sent, "Copy", away).await;
        assert!(copied.bytes > BLOCK_SIZE as u64, "{copied:?}");
        assert_eq!(sent.sent_for("Changes"), changes);
    });
}
