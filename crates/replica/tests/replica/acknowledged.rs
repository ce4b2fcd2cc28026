//! What a primary acknowledged with the help of followers survives in them.

use std::time::Duration;

use rand::RngExt;
use thalweg_replica::Room;
use thalweg_sim::{campaign, run};
use thalweg_store::block::{Blocks, StoreError, Version};

use crate::nodes::Nodes;

const SMALL: Room = Room { raw: 4 << 20, encoded: 16 << 10 };

#[test]
fn a_sync_waits_for_as_many_followers_as_it_should() {
    run(1, |env| async move {
        let mut nodes = Nodes::new(&env, 3, 2, Room::default()).await;
        for _ in 0..20 {
            nodes.write(0).await;
        }
        env.sleep(Duration::from_millis(200)).await;
        assert_eq!(nodes.newest_acknowledged(0), Version(20));
        nodes.machines[2].kill().await;
        nodes.write(0).await;
        env.sleep(Duration::from_secs(60)).await;
        assert_eq!(nodes.newest_acknowledged(0), Version(20));
        let primary = nodes.machines[0].process().primary.clone().unwrap();
        let status = primary.ack_status().unwrap();
        assert_eq!((status.needed, status.connected, status.waiting), (2, 1, 1));
        // What is internal waits for no follower.
        let chain = nodes.machines[0].process().chain.clone();
        chain.create_snapshot("now").await.unwrap();
        chain.checkpoint().await.unwrap();
        nodes.start(2, 0).await;
        env.sleep(Duration::from_millis(500)).await;
        assert_eq!(nodes.newest_acknowledged(0), Version(21));
        nodes.machines[1].kill().await;
        nodes.write(0).await;
        let waiting = env.spawn(async move { chain.sync(chain.now()).await });
        env.sleep(Duration::from_millis(100)).await;
        primary.end_acknowledging();
        let ended = waiting.await.unwrap();
        assert!(matches!(ended, Err(StoreError::Unreplicated(_))), "{ended:?}");
        assert_eq!(nodes.newest_acknowledged(0), Version(21));
    });
}

#[test]
fn a_follower_that_is_gone_is_missed_until_it_is_back() {
    run(4, |env| async move {
        let mut nodes = Nodes::new(&env, 3, 0, Room::default()).await;
        env.sleep(Duration::from_millis(500)).await;
        let primary = nodes.machines[0].process().primary.clone().unwrap();
        let names = || -> Vec<String> {
            primary.followers().into_iter().map(|follower| follower.name).collect()
        };
        let known = names();
        assert_eq!((known.len(), primary.lost_followers().len()), (2, 0));
        nodes.machines[2].kill().await;
        env.sleep(Duration::from_secs(60)).await;
        let (left, lost) = (names(), primary.lost_followers());
        assert_eq!((left.len(), lost.len()), (1, 1));
        nodes.start(2, 0).await;
        env.sleep(Duration::from_millis(500)).await;
        assert_eq!((names().len(), primary.lost_followers().len()), (2, 0));
        // And once more: it is the same one.
        nodes.machines[2].kill().await;
        nodes.machines[1].kill().await;
        env.sleep(Duration::from_secs(60)).await;
        assert_eq!((names().len(), primary.lost_followers().len()), (0, 2));
    });
}

#[test]
fn one_flush_of_a_follower_acknowledges_many_syncs() {
    run(2, |env| async move {
        let mut nodes = Nodes::new(&env, 2, 1, Room::default()).await;
        env.sleep(Duration::from_millis(100)).await;
        let follower = nodes.machines[1].process().chain.clone();
        let before = follower.status().counts.rounds;
        for _ in 0..300 {
            nodes.write(0).await;
        }
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(nodes.newest_acknowledged(0), Version(300));
        assert_eq!(nodes.acknowledged.lock().len(), 300);
        let rounds = follower.status().counts.rounds - before;
        assert!(rounds < 100, "{rounds} rounds for 300 syncs");
    });
}

#[test]
fn a_follower_that_is_back_before_its_crash_is_noticed_counts_once() {
    run(3, |env| async move {
        let mut nodes = Nodes::new(&env, 3, 2, Room::default()).await;
        nodes.write(0).await;
        env.sleep(Duration::from_millis(200)).await;
        assert_eq!(nodes.newest_acknowledged(0), Version(1));
        nodes.machines[2].kill().await;
        env.sleep(Duration::from_secs(2)).await;
        nodes.write(0).await;
        env.sleep(Duration::from_millis(200)).await;
        // Nothing says at the primary that the connection of a machine without power has ended.
        nodes.machines[1].cut_power(1).await;
        nodes.start(1, 0).await;
        env.sleep(Duration::from_millis(500)).await;
        let primary = nodes.machines[0].process().primary.clone().unwrap();
        let durable: Vec<u64> = primary.followers().iter().map(|it| it.durable).collect();
        assert_eq!(durable, [2, 2]);
        let status = primary.ack_status().unwrap();
        assert_eq!((status.needed, status.connected, status.waiting), (2, 1, 1));
        assert_eq!(nodes.newest_acknowledged(0), Version(1));
        nodes.start(2, 0).await;
        env.sleep(Duration::from_millis(500)).await;
        assert_eq!(nodes.newest_acknowledged(0), Version(2));
    });
}

/// A primary with two followers, of which `ack` acknowledge, until the primary loses its power and one takes over;
/// returns how much was acknowledged.
fn life(seed: u64) -> u64 {
    run(seed, |env| async move {
        let mut rng = env.rng();
        let ack = 1 + seed as usize % 2;
        let room = if seed.is_multiple_of(3) { Room::default() } else { SMALL };
        let mut nodes = Nodes::new(&env, 3, ack, room).await;
        for _ in 0..rng.random_range(1..25) {
            for _ in 0..rng.random_range(0..40) {
                nodes.write(0).await;
                if rng.random_range(0..3) == 0 {
                    env.sleep(Duration::from_micros(rng.random_range(0..3000))).await;
                }
            }
            let number = rng.random_range(1..3);
            let (one, two) = (nodes.host(0), nodes.host(number));
            match rng.random_range(0..9) {
                0 => {
                    nodes.machines[number].cut_power(rng.random()).await;
                    nodes.start(number, 0).await;
                }
                1 => nodes.network.cut(&one, &two),
                2 => nodes.network.cut(&two, &one),
                3 => nodes.network.part(&[one], &[two]),
                4 => nodes.network.reset(&one, &two),
                _ => nodes.network.heal(),
            }
            env.sleep(Duration::from_millis(rng.random_range(0..300))).await;
        }
        nodes.machines[0].lose_power(rng.random()).await;
        let acknowledged = nodes.newest_acknowledged(0);
        for number in 1..3 {
            if rng.random() {
                nodes.machines[number].lose_power(rng.random()).await;
                nodes.machines[number].host.power_on();
                nodes.start(number, 0).await;
            }
        }
        // With two acknowledgements either one has everything, with one the newer one.
        let newest = |number: &usize| {
            let chain = &nodes.machines[*number].process().chain;
            let before = chain.snapshot(thalweg_store::chain::BEFORE_COPY);
            match (chain.now() >= chain.whole_from(), before) {
                (true, _) => chain.now(),
                (false, before) => before.map_or(Version(0), |before| before.version),
            }
        };
        let chosen = match ack {
            2 => rng.random_range(1..3),
            _ => (1..3).max_by_key(newest).unwrap(),
        };
        nodes.promote(chosen, 0).await;
        if nodes.machines[chosen].is_primary() {
            let found = nodes.machines[chosen].process().chain.now();
            assert!(found >= acknowledged, "{found} after {acknowledged} was acknowledged");
            assert!(nodes.write(chosen).await);
        } else {
            assert_eq!(acknowledged, Version(0), "it has no whole state");
        }
        acknowledged.0
    })
}

#[test]
fn nothing_acknowledged_is_missing_in_a_promoted_follower() {
    let acknowledged: u64 = campaign::seeds(40).map(life).sum();
    assert!(acknowledged > 1000, "{acknowledged}");
}

/// The follower once gave up the state from before a copy for one that was not durable, because the next copy began.
#[test]
fn seeds_that_failed_once() {
    assert!(life(679_762_460_888) > 0);
}
