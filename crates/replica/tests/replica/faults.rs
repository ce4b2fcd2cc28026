//! A follower holds a prefix of the primary's commits, whatever happens to machines and network.

use std::time::Duration;

use rand::RngExt;
use thalweg_replica::Room;
use thalweg_sim::{campaign, run};
use thalweg_store::block::{Blocks, Version};

use crate::cluster::{Cluster, Role};

const SMALL: Room = Room { raw: 4 << 20, encoded: 16 << 10 };

#[test]
fn a_follower_gets_every_commit_in_order() {
    run(1, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        for turn in 0..400 {
            cluster.write().await;
            if turn % 20 == 0 {
                env.sleep(Duration::from_millis(3)).await;
                cluster.check().await;
            }
        }
        cluster.catch_up().await;
        let status = cluster.primary.process().primary.as_ref().unwrap().followers();
        assert_eq!(status.len(), 1);
        assert_eq!(status[0].copy, None);
        // It never needed a copy: it followed from the beginning.
        assert_eq!(cluster.follower.process().chain.whole_from(), Version(0));
    });
}

#[test]
fn only_what_is_durable_at_the_primary_is_applied() {
    run(2, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        for _ in 0..50 {
            cluster.write().await;
            let durable = cluster.primary.process().chain.status().durable_version;
            assert!(cluster.follower.process().chain.now().0 <= durable);
            env.sleep(Duration::from_millis(1)).await;
        }
        cluster.catch_up().await;
    });
}

#[test]
fn one_that_fell_behind_gets_the_newest_content_of_what_changed() {
    run(3, |env| async move {
        let mut cluster = Cluster::new(&env, SMALL).await;
        cluster.write().await;
        cluster.catch_up().await;
        cluster.follower.kill().await;
        for _ in 0..600 {
            cluster.write().await;
        }
        cluster.start(Role::Follower).await;
        cluster.catch_up().await;
        assert!(cluster.follower.process().chain.whole_from() > Version(0));
        for _ in 0..20 {
            cluster.write().await;
        }
        cluster.catch_up().await;
    });
}

#[test]
fn a_copy_that_was_interrupted_is_not_taken_for_a_state() {
    run(4, |env| async move {
        let room = Room { encoded: 1 << 20, ..SMALL };
        let mut cluster = Cluster::new(&env, room).await;
        for _ in 0..40 {
            cluster.write().await;
        }
        cluster.catch_up().await;
        cluster.follower.kill().await;
        while cluster.primary.process().chain.now() < Version(3000) {
            cluster.write().await;
        }
        cluster.start(Role::Follower).await;
        // Its newest version is in the backlog again, but its blocks are of many versions.
        let is_late = |cluster: &Cluster| {
            let chain = cluster.follower.process().chain.clone();
            let left = chain.whole_from().0.saturating_sub(chain.now().0);
            (1..200).contains(&left)
        };
        while !is_late(&cluster) {
            env.sleep(Duration::from_micros(20)).await;
        }
        let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
        cluster.network.reset(&one, &two);
        for _ in 0..50 {
            assert_eq!(cluster.check().await, None);
            cluster.write().await;
        }
        cluster.catch_up().await;
    });
}

/// One life of a cluster with faults of all kinds; returns how often the follower was compared.
fn life(seed: u64, turns: u64) -> usize {
    run(seed, |env| async move {
        let mut rng = env.rng();
        let room = if seed.is_multiple_of(3) { Room::default() } else { SMALL };
        let mut cluster = Cluster::new(&env, room).await;
        let mut compared = 0;
        for _ in 0..turns {
            for _ in 0..rng.random_range(0..30) {
                cluster.write().await;
                if rng.random_range(0..4) == 0 {
                    env.sleep(Duration::from_micros(rng.random_range(0..3000))).await;
                }
            }
            compared += usize::from(cluster.check().await.is_some());
            cluster.check_bound();
            let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
            match rng.random_range(0..12) {
                0 => {
                    cluster.follower.kill().await;
                    cluster.start(Role::Follower).await;
                }
                1 | 2 => {
                    let acknowledged = acknowledged(&cluster);
                    cluster.follower.cut_power(rng.random()).await;
                    cluster.start(Role::Follower).await;
                    let version = cluster.follower.process().chain.now();
                    assert!(version >= acknowledged, "{version} after {acknowledged}");
                }
                3 => {
                    cluster.primary.kill().await;
                    cluster.start(Role::Primary).await;
                }
                4 | 5 => {
                    cluster.primary.cut_power(rng.random()).await;
                    cluster.start(Role::Primary).await;
                }
                6 => cluster.network.cut(&one, &two),
                7 => cluster.network.cut(&two, &one),
                8 => cluster.network.part(&[one], &[two]),
                9 => cluster.network.reset(&one, &two),
                10 => {
                    cluster.follower.node().pause();
                    env.sleep(Duration::from_millis(rng.random_range(0..3000))).await;
                    cluster.follower.node().resume();
                }
                _ => cluster.network.heal(),
            }
            env.sleep(Duration::from_millis(rng.random_range(0..200))).await;
        }
        cluster.network.heal();
        cluster.catch_up().await;
        compared
    })
}

/// The newest version that the primary may have told its clients to be durable at the follower.
fn acknowledged(cluster: &Cluster) -> Version {
    let primary = cluster.primary.process();
    let followers = primary.primary.as_ref().unwrap().followers();
    Version(followers.iter().map(|status| status.durable).max().unwrap_or(0))
}

#[test]
fn it_stays_a_prefix_through_crashes_cuts_and_pauses() {
    let compared: usize = campaign::seeds(24).map(|seed| life(seed, 40)).sum();
    assert!(compared > 100, "{compared}");
}
