//! The loss of a client with its journal, while its server and its keepers crash too: a take-over finds a prefix of what the program has
//! done, with everything that was synced.

use std::time::Duration;

use rand::RngExt;
use thalweg_cluster::client::AttachError;
use thalweg_env::Rng;
use thalweg_fs::Filesystem;
use thalweg_sim::run;

use crate::journal::Journaled;
use crate::journal_crashes::{Tally, begin, bystander, check, found, left, live_all};
use crate::keeper_node::KeeperNode;
use crate::scene::*;

/// Something happens to the server or to a keeper, which comes back.
async fn disturb(
    scene: &mut Scene,
    machine: &Journaled,
    keepers: &mut [KeeperNode],
    rng: &mut Rng,
    tally: &mut Tally,
) {
    let some = rng.random_range(0..keepers.len());
    let keeper = &mut keepers[some];
    let (own, its) = ([machine.host()], [keeper.host.clone()]);
    match rng.random_range(0..7) {
        0 => {
            scene.crash(left(rng)).await;
            tally.server_crashes += 1;
        }
        1 => keeper.fail(left(rng)).await,
        2 => keeper.restart().await,
        3 => {
            scene.network.part(&own, &its);
            scene.env.sleep(Duration::from_millis(rng.random_range(0..8000))).await;
            scene.network.heal();
        }
        4 => scene.network.reset(&machine.host(), &keeper.host),
        // Until something else happens to the network, or the end.
        5 => scene.network.part(&own, &its),
        _ => {}
    }
}

/// Takes over. The keeper and the server may crash meanwhile, again and again.
async fn take_over(scene: &mut Scene, keeper: &mut KeeperNode, rng: &mut Rng, tally: &mut Tally) {
    for _ in 0..3 {
        if rng.random_bool(0.4) {
            break;
        }
        let taking = keeper.process().spawn(keeper.taking_over(scene, "a"));
        scene.env.sleep(Duration::from_micros(rng.random_range(0..20_000))).await;
        if rng.random_bool(0.5) {
            scene.crash(left(rng)).await;
            tally.server_crashes += 1;
            match taking.await.unwrap() {
                Ok(_) => return,
                Err(AttachError::Lost(_)) => continue,
                Err(error) => panic!("{error}"),
            }
        }
        drop(taking);
        keeper.fail(left(rng)).await;
    }
    let last = keeper.take_over(scene, "a").await;
    // Those of earlier rounds may have been taken over elsewhere.
    assert!(!last.is_empty(), "there is no copy");
}

fn live(seed: u64, rounds: usize) -> Tally {
    run(seed, move |env| async move {
        let mut scene = Scene::durable(&env).await;
        let mut rng = env.rng();
        let mut tally = Tally::default();
        let (visitor, top) = bystander(&scene).await;
        let other = visitor.client.clone();
        let mut machine = Journaled::new(&scene, "a").await;
        let count = rng.random_range(1..3);
        let mut keepers: Vec<_> = (0..count)
            .map(|it| KeeperNode::new(&scene, &format!("keeper{it}"), rng.random_bool(0.7)))
            .collect();
        machine.keepers = keepers.iter().map(|keeper| keeper.target(&machine)).collect();
        for round in 0..rounds {
            let client = machine.mount(&scene, rng.random_bool(0.6)).await.unwrap();
            let name = format!("d{round}");
            let mut program = begin(&machine, &client, &name).await;
            let history = program.history.clone();
            let working = machine.process.env().spawn(async move {
                loop {
                    program.step().await;
                }
            });
            for _ in 0..rng.random_range(1..4) {
                env.sleep(Duration::from_millis(rng.random_range(50..2000))).await;
                disturb(&mut scene, &machine, &mut keepers, &mut rng, &mut tally).await;
            }
            env.sleep(Duration::from_millis(rng.random_range(0..500))).await;
            tally.unsent += client.status().unsent;
            // It is lost, or it is cut off from the server and goes on.
            let is_lost = rng.random_bool(0.6);
            if is_lost {
                machine.lose().await;
            } else {
                let server = std::slice::from_ref(&scene.server);
                scene.network.part(&[machine.host()], server);
                env.sleep(Duration::from_millis(rng.random_range(0..200))).await;
            }
            tally.client_crashes += 1;
            if rng.random_bool(0.3) {
                scene.crash(left(&mut rng)).await;
                tally.server_crashes += 1;
            }
            let some = rng.random_range(0..keepers.len());
            let keeper = &mut keepers[some];
            if rng.random_bool(0.3) {
                keeper.fail(left(&mut rng)).await;
            }
            take_over(&mut scene, keeper, &mut rng, &mut tally).await;
            if !is_lost {
                env.sleep(Duration::from_millis(rng.random_range(0..1000))).await;
                machine.lose().await;
            }
            drop((working, client));
            scene.network.heal();
            let seen = other.find(top, name.as_bytes()).await.unwrap().ino;
            other.reference(seen);
            let now = found(&other, seen).await;
            let what = format!("seed {seed}, round {round}");
            check((&what, false), &history.lock(), &now, &mut tally);
        }
        tally
    })
}

#[test]
fn what_was_synced_survives_the_loss_of_a_client_with_its_journal() {
    let all = live_all(30, |seed| live(seed, 3));
    let crashes = all.client_crashes + all.server_crashes;
    assert!(all.syncs > 100 && crashes > 60 && all.unsent > 50 && all.taken_back > 0);
}
