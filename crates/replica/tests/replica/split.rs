//! Two primaries: the one of the lower term is fenced, and nothing is mixed.

use std::time::Duration;

use rand::RngExt;
use thalweg_replica::{Room, Stopped, announce};
use thalweg_sim::{campaign, run};
use thalweg_store::block::{Blocks, StoreError, Version};
use thalweg_store::chain::Fence;

use crate::nodes::Nodes;

#[test]
fn an_old_primary_is_fenced_by_the_one_that_has_replaced_it() {
    run(1, |env| async move {
        let mut nodes = Nodes::new(&env, 3, 0, Room::default()).await;
        for _ in 0..30 {
            nodes.write(0).await;
        }
        env.sleep(Duration::from_millis(200)).await;
        // Two replicas have everything; one of them takes over while the primary is cut off and goes on.
        let (old, new) = (nodes.host(0), nodes.host(1));
        nodes.network.part(std::slice::from_ref(&old), &[new, nodes.host(2)]);
        for _ in 0..20 {
            nodes.write(0).await;
        }
        env.sleep(Duration::from_millis(200)).await;
        assert_eq!(nodes.newest_acknowledged(0), Version(50));
        nodes.promote(1, 0).await;
        for _ in 0..5 {
            assert!(nodes.write(1).await);
        }
        nodes.network.heal();
        env.sleep(Duration::from_secs(10)).await;
        let chain = nodes.machines[0].process().chain.clone();
        assert_eq!(chain.fence(), Some(Fence { term: 1, from: Version(30) }));
        assert!(!nodes.write(0).await, "a fenced primary refuses writes");
        let synced = chain.sync(chain.now()).await;
        assert!(matches!(synced, Err(StoreError::Fenced(1))), "{synced:?}");
        assert_eq!(chain.snapshot("fenced-1").unwrap().version, Version(50));
        // The other replica follows the old one, which says why it is refused.
        nodes.network.reset(&nodes.host(2), &old);
        env.sleep(Duration::from_secs(1)).await;
        let refused = nodes.machines[2].process().refused.lock().clone().unwrap();
        assert!(refused.contains("primary no longer"), "{refused}");
        nodes.machines[2].kill().await;
        nodes.start(2, 1).await;
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(nodes.check(2).await, Some(Version(35)));
        assert_eq!(nodes.machines[2].process().chain.term(), 1);
        // It stays fenced, and does not open for writing.
        nodes.machines[0].cut_power(7).await;
        assert!(!nodes.start(0, 0).await);
        assert!(nodes.violations.lock().is_empty());
    });
}

#[test]
fn a_follower_of_the_new_primary_fences_the_old_one() {
    run(2, |env| async move {
        let mut nodes = Nodes::new(&env, 3, 0, Room::default()).await;
        nodes.write(0).await;
        env.sleep(Duration::from_millis(200)).await;
        let (old, new) = (nodes.host(0), nodes.host(1));
        // The new primary never reaches the old one.
        nodes.network.part(std::slice::from_ref(&old), std::slice::from_ref(&new));
        nodes.machines[2].kill().await;
        nodes.promote(1, 0).await;
        nodes.write(1).await;
        nodes.start(2, 1).await;
        env.sleep(Duration::from_secs(1)).await;
        assert!(nodes.machines[0].process().chain.fence().is_none());
        nodes.machines[2].kill().await;
        nodes.start(2, 0).await;
        env.sleep(Duration::from_secs(1)).await;
        let fence = nodes.machines[0].process().chain.fence();
        assert_eq!(fence, Some(Fence { term: 1, from: Version(1) }));
    });
}

#[test]
fn primaries_of_one_term_refuse_each_other_and_none_is_fenced() {
    run(3, |env| async move {
        let mut nodes = Nodes::new(&env, 3, 0, Room::default()).await;
        nodes.write(0).await;
        env.sleep(Duration::from_millis(200)).await;
        nodes.machines[0].lose_power(1).await;
        nodes.promote(1, 0).await;
        nodes.promote(2, 0).await;
        assert!(nodes.write(1).await && nodes.write(2).await);
        for (from, to) in [(1, 2), (2, 1)] {
            let chain = nodes.machines[from].process().chain.clone();
            let stream = nodes.machines[from].connector(&nodes.host(to)).open().await.unwrap();
            let refused = announce(&env, stream, &chain, 0).await.unwrap_err();
            assert!(matches!(refused, Stopped::Refused(_)), "{refused}");
            assert!(refused.to_string().contains("two replicas were promoted"), "{refused}");
        }
        assert!(nodes.write(1).await && nodes.write(2).await);
        // A replica of one of them is refused by the other.
        assert!((1..3).all(|number| nodes.machines[number].process().chain.fence().is_none()));
    });
}

#[test]
fn an_old_primary_that_announces_itself_is_fenced() {
    run(4, |env| async move {
        let mut nodes = Nodes::new(&env, 3, 0, Room::default()).await;
        nodes.write(0).await;
        env.sleep(Duration::from_millis(200)).await;
        nodes.machines[0].lose_power(1).await;
        nodes.promote(1, 0).await;
        nodes.write(1).await;
        // The second replica follows the first one, and replaces it in turn.
        nodes.machines[2].kill().await;
        nodes.start(2, 1).await;
        env.sleep(Duration::from_millis(500)).await;
        nodes.promote(2, 0).await;
        let chain = nodes.machines[1].process().chain.clone();
        let stream = nodes.machines[1].connector(&nodes.host(2)).open().await.unwrap();
        let refused = announce(&env, stream, &chain, 0).await.unwrap_err();
        assert!(refused.to_string().contains("promoted in its place"), "{refused}");
        assert_eq!(chain.fence().map(|fence| fence.term), Some(2));
        assert!(!nodes.write(1).await);
    });
}

/// One life of three machines, with partitions, pauses, crashes, and promotions at any time; returns how many primaries
/// were fenced, and how many syncs acknowledged.
fn life(seed: u64) -> (usize, usize) {
    run(seed, |env| async move {
        let mut rng = env.rng();
        let room = Room { raw: 4 << 20, encoded: 16 << 10 };
        let room = if seed.is_multiple_of(3) { Room::default() } else { room };
        let mut nodes = Nodes::new(&env, 3, seed as usize % 2, room).await;
        let mut paused: Option<usize> = None;
        let mut promoted = 0;
        for _ in 0..40 {
            for _ in 0..rng.random_range(0..20) {
                let number = rng.random_range(0..3);
                let machine = &nodes.machines[number];
                if paused != Some(number) && machine.runs() && machine.is_primary() {
                    nodes.write(number).await;
                }
                env.sleep(Duration::from_micros(rng.random_range(0..1000))).await;
            }
            let number = rng.random_range(0..3);
            let other = (number + rng.random_range(1..3)) % 3;
            let (one, two) = (nodes.host(number), nodes.host(other));
            let runs = paused != Some(number) && nodes.machines[number].runs();
            match rng.random_range(0..12) {
                0 => nodes.network.cut(&one, &two),
                1 => nodes.network.part(&[one], &[two]),
                2 => nodes.network.reset(&one, &two),
                3..6 => nodes.network.heal(),
                6 if runs && paused.is_none() => {
                    nodes.machines[number].node().pause();
                    paused = Some(number);
                }
                7 | 8 => {
                    if let Some(number) = paused.take() {
                        nodes.machines[number].node().resume();
                    }
                }
                9 if runs => {
                    nodes.machines[number].cut_power(rng.random()).await;
                    // A follower may try another machine.
                    nodes.start(number, other).await;
                }
                10 if runs && !nodes.machines[number].is_primary() && promoted < 2 => {
                    let was = nodes.machines.iter().filter(|machine| machine.is_primary()).count();
                    nodes.promote(number, other).await;
                    let is = nodes.machines.iter().filter(|machine| machine.is_primary()).count();
                    promoted += is - was;
                }
                _ => env.sleep(Duration::from_secs(rng.random_range(0..120))).await,
            }
            env.sleep(Duration::from_millis(rng.random_range(0..400))).await;
            for number in 0..3 {
                if paused != Some(number) && nodes.machines[number].runs() {
                    nodes.check(number).await;
                }
            }
        }
        let violations = nodes.violations.lock().clone();
        assert!(violations.is_empty(), "acknowledged after a higher term was met: {violations:?}");
        let is_fenced = |machine: &&crate::cluster::Machine| {
            !machine.runs() || machine.process().chain.fence().is_some()
        };
        let fenced = nodes.machines.iter().filter(is_fenced).count();
        (fenced, nodes.acknowledged.lock().len())
    })
}

#[test]
fn an_old_primary_acknowledges_nothing_after_it_has_met_the_new_term() {
    let lives: Vec<(usize, usize)> = campaign::seeds(20).map(life).collect();
    let (fenced, acknowledged) =
        lives.iter().fold((0, 0), |sum, life| (sum.0 + life.0, sum.1 + life.1));
    assert!(fenced > 5 && acknowledged > 500, "{fenced} fenced, {acknowledged} acknowledged");
}
