//! A primary that becomes larger and smaller, and a follower that follows it.

use std::time::Duration;

use rand::RngExt;
use thalweg_replica::Room;
use thalweg_sim::{campaign, run};
use thalweg_store::block::{Blocks, Lba, Versions};
use thalweg_store::chain::ChainError;

use crate::cluster::{BLOCKS, Cluster, MOST, Role};

const SMALL: Room = Room { raw: 4 << 20, encoded: 16 << 10 };

/// Makes the primary larger or smaller; what leaves it is discarded first. A version in use may forbid it.
async fn resize(cluster: &mut Cluster, blocks: u64) -> bool {
    let chain = cluster.primary.process().chain.clone();
    if blocks < chain.blocks() {
        let (lba, count) = (Lba(blocks), chain.blocks() - blocks);
        let before = chain.now();
        let version = chain.discard(lba, count).await.unwrap();
        if version > before {
            assert_eq!(cluster.model.discard(lba, count), version);
        }
    }
    let resized = chain.resize(blocks).await;
    // A volume that becomes smaller discards its end first, though nothing is there.
    while cluster.model.now() < chain.now() {
        cluster.model.apply(&[]);
    }
    match resized {
        Ok(()) => true,
        Err(ChainError::Invalid(why)) if why.contains("a snapshot") => false,
        Err(error) => panic!("{error}"),
    }
}

async fn write(cluster: &mut Cluster, count: u32) {
    for _ in 0..count {
        cluster.write().await;
    }
}

/// Waits until the follower has everything, and the primary's size.
async fn catch_up(cluster: &Cluster) {
    cluster.catch_up().await;
    let blocks = cluster.primary.process().chain.blocks();
    for _ in 0..1000 {
        if cluster.follower.process().chain.blocks() == blocks {
            return;
        }
        cluster.env.sleep(Duration::from_millis(10)).await;
    }
    panic!("the follower has {} of {blocks} blocks", cluster.follower.process().chain.blocks());
}

#[test]
fn a_follower_grows_with_its_primary() {
    run(1, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        write(&mut cluster, 100).await;
        cluster.catch_up().await;
        // Without a version, and with one.
        assert!(resize(&mut cluster, 900).await);
        catch_up(&cluster).await;
        write(&mut cluster, 100).await;
        catch_up(&cluster).await;
        cluster.follower.kill().await;
        assert!(resize(&mut cluster, 1500).await);
        write(&mut cluster, 100).await;
        cluster.start(Role::Follower).await;
        catch_up(&cluster).await;
        cluster.follower.cut_power(1).await;
        cluster.start(Role::Follower).await;
        assert_eq!(cluster.follower.process().chain.blocks(), 1500);
        catch_up(&cluster).await;
    });
}

#[test]
fn a_follower_becomes_smaller_with_its_primary() {
    run(2, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        write(&mut cluster, 200).await;
        cluster.catch_up().await;
        assert!(resize(&mut cluster, 300).await);
        catch_up(&cluster).await;
        write(&mut cluster, 100).await;
        catch_up(&cluster).await;
        cluster.follower.kill().await;
        assert!(resize(&mut cluster, 200).await);
        write(&mut cluster, 50).await;
        cluster.start(Role::Follower).await;
        catch_up(&cluster).await;
        cluster.follower.cut_power(1).await;
        cluster.start(Role::Follower).await;
        assert_eq!(cluster.follower.process().chain.blocks(), 200);
        catch_up(&cluster).await;
    });
}

/// A reader holds a state of the follower while the primary becomes smaller, which the follower hears at once or later.
fn keep_the_end(seed: u64, is_cut: bool) {
    run(seed, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        write(&mut cluster, 200).await;
        cluster.catch_up().await;
        let process = cluster.follower.process();
        let chain = process.chain.clone();
        let hold = chain.hold(chain.now()).unwrap();
        if is_cut {
            let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
            cluster.network.part(&[one], &[two]);
        }
        assert!(resize(&mut cluster, 300).await);
        cluster.network.heal();
        cluster.catch_up().await;
        env.sleep(Duration::from_secs(5)).await;
        let follower = process.follower.clone().unwrap();
        let connections = || follower.traffic().sent_for("Follow").messages;
        let before = connections();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(chain.blocks(), BLOCKS);
        assert_eq!(cluster.unreadable(&chain, hold.version()).await, 0);
        // Nothing is written, and the connection lasts.
        drop(hold);
        catch_up(&cluster).await;
        assert_eq!(connections(), before);
        write(&mut cluster, 5).await;
        catch_up(&cluster).await;
    });
}

#[test]
fn readers_of_an_old_state_keep_its_end() {
    keep_the_end(3, false);
    keep_the_end(3, true);
}

#[test]
fn a_size_that_readers_kept_from_coming_gives_way_to_a_later_one() {
    run(6, |env| async move {
        let mut cluster = Cluster::new(&env, Room::default()).await;
        write(&mut cluster, 200).await;
        cluster.catch_up().await;
        let chain = cluster.follower.process().chain.clone();
        let hold = chain.hold(chain.now()).unwrap();
        assert!(resize(&mut cluster, 300).await);
        cluster.catch_up().await;
        env.sleep(Duration::from_secs(1)).await;
        let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
        cluster.network.part(&[one], &[two]);
        assert!(resize(&mut cluster, 200).await);
        env.sleep(Duration::from_secs(5)).await;
        drop(hold);
        assert_eq!(chain.blocks(), BLOCKS);
        cluster.network.heal();
        catch_up(&cluster).await;
        write(&mut cluster, 5).await;
        catch_up(&cluster).await;
    });
}

#[test]
fn what_left_the_volume_while_a_follower_was_away_does_not_come_back() {
    run(4, |env| async move {
        let mut cluster = Cluster::new(&env, SMALL).await;
        write(&mut cluster, 300).await;
        cluster.catch_up().await;
        cluster.follower.kill().await;
        for (blocks, writes) in [(400, 100), (500, 0), (450, 50), (BLOCKS, 5)] {
            assert!(resize(&mut cluster, blocks).await);
            write(&mut cluster, writes).await;
        }
        // It is in the label, not in memory.
        cluster.primary.cut_power(1).await;
        cluster.start(Role::Primary).await;
        cluster.start(Role::Follower).await;
        catch_up(&cluster).await;
    });
}

#[test]
fn a_follower_whose_drives_are_too_small_says_so_and_goes_on_with_larger_ones() {
    run(5, |env| async move {
        let mut cluster = Cluster::sized(&env, Room::default(), [12, 6]).await;
        write(&mut cluster, 100).await;
        cluster.catch_up().await;
        let state = cluster.follower.process().chain.now();
        assert!(resize(&mut cluster, MOST).await);
        write(&mut cluster, 100).await;
        env.sleep(Duration::from_secs(1)).await;
        let process = cluster.follower.process();
        let trouble = process.trouble.lock().clone().unwrap();
        assert!(trouble.contains("the links hold up to") && trouble.contains("add a link"));
        assert_eq!(cluster.check().await, Some(state));
        drop(process);
        cluster.follower.add_drive(6).await;
        catch_up(&cluster).await;
        cluster.follower.cut_power(1).await;
        cluster.start(Role::Follower).await;
        write(&mut cluster, 10).await;
        catch_up(&cluster).await;
    });
}

/// One life of a cluster with faults, in which the primary changes its size; returns how often it did.
fn life(seed: u64) -> usize {
    run(seed, |env| async move {
        let mut rng = env.rng();
        let room = if seed.is_multiple_of(3) { Room::default() } else { SMALL };
        let mut cluster = Cluster::new(&env, room).await;
        let mut resized = 0;
        for _ in 0..30 {
            let count = rng.random_range(0..30);
            write(&mut cluster, count).await;
            cluster.check().await;
            cluster.check_bound();
            let (one, two) = (cluster.primary.host.clone(), cluster.follower.host.clone());
            match rng.random_range(0..12) {
                0..4 => {
                    let blocks = rng.random_range(100..1000);
                    resized += usize::from(resize(&mut cluster, blocks).await);
                }
                4 | 5 => {
                    cluster.follower.cut_power(rng.random()).await;
                    cluster.start(Role::Follower).await;
                }
                6 => {
                    cluster.primary.cut_power(rng.random()).await;
                    cluster.start(Role::Primary).await;
                }
                7 | 8 => cluster.network.part(&[one], &[two]),
                9 => cluster.network.reset(&one, &two),
                _ => cluster.network.heal(),
            }
            env.sleep(Duration::from_millis(rng.random_range(0..200))).await;
        }
        cluster.network.heal();
        catch_up(&cluster).await;
        resized
    })
}

#[test]
fn a_follower_has_a_state_and_its_size_through_changes_of_the_size() {
    let resized: usize = campaign::seeds(8).map(life).sum();
    assert!(resized > 25, "{resized}");
}

/// A connection once ended while the state from before a copy got its snapshot, and that version was held for ever.
#[test]
fn seeds_that_failed_once() {
    assert!(life(1_370_547_552_275) > 0);
}
