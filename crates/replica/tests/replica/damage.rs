//! A follower with drives that lose blocks.

use std::time::Duration;

use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_replica::Room;
use thalweg_sim::{campaign, run};
use thalweg_store::block::{BLOCK_SIZE, Blocks, Version, Versions};

use crate::cluster::{BLOCKS, Cluster, DRIVE, Role};

/// A cluster with some content. The follower has none of it in memory.
async fn cluster(env: &Env, room: Room) -> Cluster {
    let mut cluster = Cluster::new(env, room).await;
    for _ in 0..300 {
        cluster.write().await;
    }
    cluster.catch_up().await;
    restart(&mut cluster).await;
    cluster.catch_up().await;
    restart(&mut cluster).await;
    cluster
}

async fn restart(cluster: &mut Cluster) {
    cluster.follower.kill().await;
    cluster.start(Role::Follower).await;
    cluster.env.sleep(Duration::from_millis(200)).await;
}

/// Damages everything that the follower's drives have now.
fn damage_all(cluster: &Cluster) -> usize {
    let drives = cluster.follower.drives();
    drives[0].rot(0..DRIVE, 1);
    drives[1].break_sectors(0..DRIVE);
    damaged_sectors(cluster)
}

fn damaged_sectors(cluster: &Cluster) -> usize {
    cluster.follower.drives().iter().map(|drive| drive.damaged_sectors()).sum()
}

fn cut(cluster: &Cluster) {
    let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
    cluster.network.part(&[one], &[two]);
}

/// How many blocks of the follower's newest state cannot be read. Those that can are right.
async fn unreadable(cluster: &Cluster) -> usize {
    let chain = cluster.follower.process().chain.clone();
    let hold = loop {
        if let Some(hold) = chain.hold(chain.now()) {
            break hold;
        }
    };
    match hold.version() < chain.whole_from() {
        true => 0,
        false => cluster.unreadable(&chain, hold.version()).await,
    }
}

#[test]
fn a_damaged_block_is_fetched_from_the_primary_and_repaired() {
    run(1, |env| async move {
        let cluster = cluster(&env, Room::default()).await;
        let before = damage_all(&cluster);
        assert!(cluster.check().await.is_some());
        let repaired = cluster.follower.process().chain.status().counts.repaired;
        assert!(repaired > 100, "{repaired}");
        assert_eq!((before - damaged_sectors(&cluster)) / 8, repaired as usize);
        // It is whole without the primary.
        let mut cluster = cluster;
        cut(&cluster);
        cluster.follower.kill().await;
        cluster.start(Role::Follower).await;
        assert!(cluster.check().await.is_some());
    });
}

#[test]
fn a_scrub_of_a_follower_repairs_it_from_the_primary() {
    run(2, |env| async move {
        let cluster = cluster(&env, Room::default()).await;
        damage_all(&cluster);
        let chain = cluster.follower.process().chain.clone();
        let report = chain.scrub(&|_, _| {}).await.unwrap();
        assert!(report.repaired > 100 && report.damaged == 0, "{report:?}");
        cut(&cluster);
        assert_eq!(unreadable(&cluster).await, 0);
    });
}

#[test]
fn a_damaged_block_that_the_primary_has_changed_is_no_newer_one_and_comes_with_the_changes() {
    run(3, |env| async move {
        let mut cluster = cluster(&env, Room::default()).await;
        cut(&cluster);
        env.sleep(Duration::from_secs(5)).await;
        damage_all(&cluster);
        for _ in 0..200 {
            cluster.write().await;
        }
        let damaged = unreadable(&cluster).await;
        assert!(damaged > 100, "{damaged}");
        let at = cluster.follower.process().chain.now();
        cluster.network.heal();
        // The blocks that the primary has not changed are whole again before the others.
        cluster.catch_up().await;
        let whole_from = cluster.follower.process().chain.whole_from();
        assert!(whole_from > at, "changes came as a copy: {whole_from} after {at}");
        assert_eq!(unreadable(&cluster).await, 0);
    });
}

#[test]
fn a_block_that_is_damaged_at_both_stays_an_error() {
    run(4, |env| async move {
        let mut cluster = cluster(&env, Room::default()).await;
        cluster.primary.kill().await;
        cluster.start(Role::Primary).await;
        env.sleep(Duration::from_secs(1)).await;
        damage_all(&cluster);
        for drive in cluster.primary.drives() {
            drive.break_sectors(0..DRIVE);
        }
        let damaged = unreadable(&cluster).await;
        assert!(damaged > 100, "{damaged}");
        cluster.primary.drives().iter().for_each(|drive| drive.heal());
        assert_eq!(unreadable(&cluster).await, 0);
    });
}

/// Damages some of what the follower's drives have.
fn damage_some(cluster: &Cluster, rng: &mut Rng) {
    for drive in cluster.follower.drives() {
        for _ in 0..rng.random_range(0..300) {
            let at = rng.random_range(0..DRIVE / BLOCK_SIZE as u64) * BLOCK_SIZE as u64;
            match rng.random_range(0..2) {
                0 => drive.rot(at..at + 1, 1),
                _ => drive.break_sectors(at..at + 1),
            }
        }
    }
}

/// One life of a cluster with damage, cuts and crashes of the primary; returns how many blocks could not be read meanwhile.
fn life(seed: u64) -> usize {
    run(seed, |env| async move {
        let mut rng = env.rng();
        let small = Room { raw: 4 << 20, encoded: 16 << 10 };
        let room = if seed.is_multiple_of(2) { Room::default() } else { small };
        let mut cluster = cluster(&env, room).await;
        let mut damaged = 0;
        for _ in 0..25 {
            for _ in 0..rng.random_range(0..40) {
                cluster.write().await;
            }
            let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
            match rng.random_range(0..10) {
                0..3 => damage_some(&cluster, &mut rng),
                3 => cut(&cluster),
                4 => cluster.network.reset(&one, &two),
                5 => {
                    cluster.primary.cut_power(rng.random()).await;
                    cluster.start(Role::Primary).await;
                }
                6 => {
                    // Recovery needs what the newest round wrote.
                    cluster.follower.drives().iter().for_each(|drive| drive.heal());
                    restart(&mut cluster).await;
                }
                _ => cluster.network.heal(),
            }
            env.sleep(Duration::from_millis(rng.random_range(0..200))).await;
            damaged += unreadable(&cluster).await;
            cluster.check_bound();
        }
        cluster.network.heal();
        let target = cluster.primary.process().chain.now();
        for _ in 0..1000 {
            let follower = cluster.follower.process().follower.clone().unwrap();
            if follower.status().connected && reached(&cluster) >= target {
                break;
            }
            env.sleep(Duration::from_millis(20)).await;
        }
        cluster.catch_up().await;
        damaged
    })
}

/// The follower's newest version, if it is a whole state.
fn reached(cluster: &Cluster) -> Version {
    let chain = cluster.follower.process().chain.clone();
    if chain.now() < chain.whole_from() { Version(0) } else { chain.now() }
}

#[test]
fn damage_makes_no_block_wrong_and_goes_away() {
    let damaged: Vec<usize> = campaign::seeds(5).map(life).collect();
    let some = damaged.iter().filter(|damaged| **damaged > 0).count();
    assert!(some > 0 && damaged.iter().sum::<usize>() < damaged.len() * 25 * BLOCKS as usize);
}
