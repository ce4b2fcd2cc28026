//! How far a follower is behind: in versions, bytes and time.

use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_replica::{FollowerStatus, ReplicaStatus, Room};
use thalweg_sim::net::LinkSpec;
use thalweg_sim::{campaign, run};
use thalweg_store::block::{BLOCK_SIZE, BlocksExt, Lba, Version, Write};

use crate::cluster::{BEAT, Cluster, Role};

fn follower(cluster: &Cluster) -> FollowerStatus {
    cluster.follower.process().follower.as_ref().unwrap().status()
}

/// What the primary knows of its follower.
fn at_primary(cluster: &Cluster) -> Option<ReplicaStatus> {
    cluster.primary.process().primary.as_ref().unwrap().followers().pop()
}

#[test]
fn an_idle_follower_is_known_to_be_current() {
    run(1, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        for _ in 0..100 {
            cluster.write().await;
        }
        cluster.catch_up().await;
        for _ in 0..50 {
            env.sleep(Duration::from_millis(37)).await;
            // A beat, and the way there and back.
            assert!(cluster.check_bound().unwrap() <= BEAT + Duration::from_millis(3));
        }
        let status = follower(&cluster);
        assert_eq!((status.behind_versions, status.behind_bytes), (Some(0), Some(0)));
        let known = at_primary(&cluster).unwrap();
        assert_eq!(
            (known.behind_versions, known.behind_bytes, known.behind_ms),
            (0, Some(0), Some(0))
        );
    });
}

#[test]
fn a_question_in_between_makes_the_bound_smaller() {
    run(2, |env| async move {
        let cluster = Cluster::new(&env, Room::default()).await;
        cluster.catch_up().await;
        env.sleep(BEAT * 5 / 2).await;
        cluster.follower.process().follower.as_ref().unwrap().ask();
        env.sleep(Duration::from_millis(3)).await;
        assert!(cluster.check_bound().unwrap() <= Duration::from_millis(4));
    });
}

#[test]
fn a_follower_that_is_cut_off_knows_how_far_it_was_behind() {
    run(3, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        cluster.write().await;
        cluster.catch_up().await;
        let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
        // Changes do not come through, and then nothing does.
        cluster.network.set_links(&one, &two, LinkSpec::of(Duration::from_millis(400)));
        let before = cluster.primary.process().chain.status().version;
        for _ in 0..40 {
            cluster.write().await;
            env.sleep(Duration::from_millis(25)).await;
        }
        let (status, known) = (follower(&cluster), at_primary(&cluster).unwrap());
        assert!(status.behind_versions.unwrap() > 0 && known.behind_versions > 0);
        assert!(status.behind_bytes.unwrap() > 0 && known.behind_bytes.unwrap() > 0);
        assert!(status.behind_ms.unwrap() >= 400 && known.behind_ms.unwrap() >= 400);
        assert!(known.behind_ms.unwrap() < 1600, "{known:?}");
        cluster.network.part(&[one], &[two]);
        env.sleep(Duration::from_secs(60)).await;
        let status = follower(&cluster);
        assert!(!status.connected && status.behind_ms.unwrap() > 60_000, "{status:?}");
        assert!(status.primary.unwrap() > before && status.silent_ms.unwrap() > 50_000);
        assert!(at_primary(&cluster).is_none());
        cluster.network.heal();
        cluster.catch_up().await;
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(follower(&cluster).behind_versions, Some(0));
    });
}

/// A follower behind links that differ by direction, with pauses of either process and broken connections.
fn life(seed: u64) -> usize {
    run(seed, |env| async move {
        let mut rng = env.rng();
        let room = Room { raw: 4 << 20, encoded: 16 << 10 };
        let room = if seed.is_multiple_of(2) { Room::default() } else { room };
        let mut cluster = Cluster::new(&env, room).await;
        let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
        let mut checked = 0;
        for _ in 0..60 {
            let millis = |most: u64| Duration::from_millis(most);
            match rng.random_range(0..8) {
                0 => {
                    let (there, back) = (rng.random_range(0..200), rng.random_range(0..200));
                    cluster.network.set_link(&one, &two, LinkSpec::of(millis(there)));
                    cluster.network.set_link(&two, &one, LinkSpec::of(millis(back)));
                }
                1 => cluster.network.reset(&one, &two),
                2 => {
                    cluster.follower.node().pause();
                    env.sleep(millis(rng.random_range(0..500))).await;
                    cluster.follower.node().resume();
                }
                3 => {
                    cluster.primary.node().pause();
                    env.sleep(millis(rng.random_range(0..500))).await;
                    cluster.primary.node().resume();
                }
                4 => {
                    cluster.primary.cut_power(rng.random()).await;
                    cluster.start(Role::Primary).await;
                }
                _ => {}
            }
            for _ in 0..rng.random_range(0..20) {
                cluster.write().await;
                env.sleep(Duration::from_micros(rng.random_range(0..20_000))).await;
                checked += usize::from(cluster.check_bound().is_some());
            }
        }
        cluster.network.set_links(&one, &two, LinkSpec::of(Duration::from_millis(1)));
        cluster.catch_up().await;
        env.sleep(4 * BEAT).await;
        assert!(cluster.check_bound().unwrap() <= BEAT + Duration::from_millis(5));
        checked
    })
}

#[test]
fn the_bound_is_never_too_small() {
    let checked: usize = campaign::seeds(12).map(life).sum();
    assert!(checked > 1000, "{checked}");
}

#[test]
fn the_bytes_behind_are_right_after_a_copy() {
    run(5, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        for _ in 0..100 {
            cluster.write().await;
        }
        cluster.catch_up().await;
        cluster.follower.kill().await;
        for _ in 0..100 {
            cluster.write().await;
        }
        env.sleep(Duration::from_secs(1)).await;
        // It begins to count again, and has no changes for the follower.
        cluster.primary.kill().await;
        cluster.start(Role::Primary).await;
        cluster.start(Role::Follower).await;
        cluster.catch_up().await;
        assert!(cluster.follower.process().chain.whole_from() > Version(0));
        env.sleep(BEAT).await;
        cluster.follower.node().pause();
        let chain = cluster.primary.process().chain.clone();
        for lba in 0..10 {
            let writes = vec![Write::block(Lba(lba), Bytes::from(vec![7; BLOCK_SIZE]))];
            cluster.model.apply(&writes);
            chain.apply(writes).await.unwrap();
        }
        let behind = cluster.primary.process().primary.as_ref().unwrap().followers();
        assert_eq!(behind[0].behind_bytes, Some(10 * BLOCK_SIZE as u64), "{behind:?}");
        cluster.follower.node().resume();
        cluster.catch_up().await;
    });
}
