//! Peers of an older and of a newer release.

use thalweg_net::hello::Hello;
use thalweg_replica::protocol::HELLO;
use thalweg_replica::{Follower, Room, Stopped};
use thalweg_sim::run;
use thalweg_store::block::{Blocks, Version};

use crate::cluster::{Cluster, follower_chain};

fn others() -> [Hello; 2] {
    [HELLO.version - 1, HELLO.version + 1].map(|version| Hello { version, ..HELLO })
}

fn says_so(why: &str, other: &Hello) {
    let (theirs, own) = (other.version, HELLO.version);
    let said = format!("version {theirs} of the protocol, and this process version {own}");
    assert!(why.contains(&said), "{why}");
}

#[test]
fn a_primary_of_another_release_is_not_followed() {
    run(1, |env| async move {
        for other in others() {
            let chain = follower_chain(&env).await;
            let (mine, mut theirs) = tokio::io::duplex(1 << 16);
            let primary = env.spawn(async move { other.exchange(&mut theirs).await.err() });
            match Follower::new(&env, chain.clone()).follow(mine).await {
                Stopped::Lost(why) => says_so(&why, &other),
                stopped => panic!("{stopped}"),
            }
            // It hears the follower's version, too.
            assert!(primary.await.flatten().is_some());
            assert_eq!(chain.now(), Version(0));
        }
    });
}

#[test]
fn a_follower_of_another_release_is_refused_and_the_others_go_on() {
    run(2, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        let primary = cluster.primary.process().primary.clone().unwrap();
        for other in others() {
            let (mine, mut theirs) = tokio::io::duplex(1 << 16);
            let follower = env.spawn(async move { other.exchange(&mut theirs).await.err() });
            let refused = primary.serve(mine, "other").await.unwrap_err();
            says_so(&refused.to_string(), &other);
            assert!(follower.await.flatten().is_some());
            cluster.write().await;
            cluster.catch_up().await;
            assert_eq!(primary.followers().len(), 1);
        }
    });
}
