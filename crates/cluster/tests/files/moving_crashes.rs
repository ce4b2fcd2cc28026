//! Moves of a mount while a program works there, and crashes of its machine, of the one that it moves to, and of the server, and cuts of
//! the network at any moment: one of the two machines has the mount afterwards, with everything that was synced.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use futures::FutureExt;
use rand::RngExt;
use thalweg_cluster::client::{Client, MoveError, MoveReport};
use thalweg_env::{Env, Rng, Task};
use thalweg_fs::{Filesystem, FsError, Ino, Node};
use thalweg_sim::{campaign, run};

use crate::journal::Journaled;
use crate::journal_crashes::{Program, Tally, begin, bystander, check, found, left};
use crate::move_node::{arrived, receive, target};
use crate::scene::*;

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) tally: Tally,
    pub(crate) moved: u64,
    pub(crate) stayed: u64,
    /// The command did not learn of the end, or ended with its machine.
    pub(crate) unknown: u64,
}

/// Works until the mount is stale.
fn work(env: &Env, mut program: Program) -> Task<()> {
    env.spawn(async move {
        loop {
            if let Err(panic) = AssertUnwindSafe(program.step()).catch_unwind().await {
                let text = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
                if text.ends_with("value: Stale") {
                    return;
                }
                resume_unwind(panic);
            }
        }
    })
}

/// The machine waits for a mount; that, when it is there.
pub(crate) async fn wait(scene: &Scene, to: &Journaled, lazy: bool) -> Task<Client> {
    let receiver = receive(scene, to, lazy).await.unwrap();
    to.process.env().spawn(async move { arrived(&receiver).await })
}

/// The two machines, and what they run.
pub(crate) struct Pair {
    pub(crate) from: Journaled,
    pub(crate) to: Journaled,
    pub(crate) client: Option<Client>,
    /// The mount, when it is at the other machine.
    pub(crate) there: Option<Task<Client>>,
}

impl Pair {
    async fn disturb(&mut self, scene: &mut Scene, rng: &mut Rng, tally: &mut Tally) {
        let (from, to, server) =
            (vec![self.from.host()], vec![self.to.host()], vec![scene.server.clone()]);
        match rng.random_range(0..10) {
            0 | 1 => {
                scene.crash(left(rng)).await;
                tally.server_crashes += 1;
            }
            2 => {
                self.from.crash(left(rng));
                self.client = None;
                tally.client_crashes += 1;
            }
            3 => {
                self.to.crash(left(rng));
                self.there = None;
                tally.client_crashes += 1;
            }
            // Until the end.
            4 => scene.network.part(&from, &to),
            5 => scene.network.part(&from, &server),
            6 => scene.network.part(&to, &server),
            7 => scene.network.reset(&from[0], &to[0]),
            8 => scene.network.reset(&from[0], &server[0]),
            _ => {}
        }
    }

    /// Whether the mount is at the other machine, whose machine begins again if it has crashed.
    async fn find(&mut self, scene: &Scene) -> Option<Client> {
        let there = match self.there.take() {
            Some(there) => there,
            None => wait(scene, &self.to, true).await,
        };
        let there = scene.env.timeout(Duration::from_secs(30), there).await;
        there.map(|there| there.unwrap())
    }
}

/// One of the machines has the mount; which.
pub(crate) async fn settle(
    scene: &Scene,
    pair: &mut Pair,
    outcome: Option<Result<MoveReport, MoveError>>,
    all: &mut Moves,
    what: &str,
) -> Client {
    let there = pair.find(scene).await;
    match (&outcome, &there) {
        (Some(Ok(_)), None) => panic!("{what}: the mount has moved, and is not there"),
        (Some(Err(error)), Some(_)) if !matches!(error, MoveError::Ended) => {
            panic!("{what}: the mount is there, though it did not move: {error}");
        }
        _ => {}
    }
    match (&outcome, &there) {
        (None | Some(Err(MoveError::Ended)), _) => all.unknown += 1,
        (_, Some(_)) => all.moved += 1,
        (_, None) => all.stayed += 1,
    }
    let Some(there) = there else {
        let client = match pair.client.take() {
            Some(client) => client,
            None => pair.from.mount(scene, true).await.unwrap(),
        };
        let name = format!("stayed-{}", all.stayed + all.unknown);
        make(&client, Ino::ROOT, &name, Node::File).await;
        return client;
    };
    if outcome.is_none() {
        // Its journal is of no use any more, and begins anew.
        let again = pair.from.mount(scene, true).await.unwrap();
        assert_eq!(again.status().unsent, 0);
        again.close().await;
    }
    if let Some(before) = pair.client.take() {
        let stale = before.attributes(Ino::ROOT).await;
        assert!(matches!(stale, Err(FsError::Stale)), "{what}: both have the mount: {stale:?}");
        before.close().await;
    }
    there
}

fn live(seed: u64, rounds: usize) -> Moves {
    run(seed, move |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (mut rng, mut all) = (env.rng(), Moves::default());
        let (visitor, top) = bystander(&scene).await;
        let other = visitor.client.clone();
        let [mut from, mut to] =
            [Journaled::new(&scene, "a").await, Journaled::new(&scene, "b").await];
        for round in 0..rounds {
            let what = format!("seed {seed}, round {round}");
            let client = from.mount(&scene, rng.random_bool(0.7)).await.unwrap();
            let name = format!("d{round}");
            let program = begin(&from, &client, &name).await;
            let history = program.history.clone();
            let working = work(from.process.env(), program);
            let there = Some(wait(&scene, &to, rng.random_bool(0.7)).await);
            env.sleep(Duration::from_millis(rng.random_range(50..3000))).await;
            let mut pair = Pair { from, to, client: Some(client.clone()), there };
            let (own, at) = (client.clone(), target(&pair.from, &pair.to));
            let moving = pair.from.process.env().spawn(async move { own.move_to(at, true).await });
            all.tally.unsent += client.status().unsent;
            drop(client);
            // Most moves take a few milliseconds.
            let most = if rng.random_bool(0.8) { 4_000 } else { 50_000 };
            env.sleep(Duration::from_micros(rng.random_range(0..most))).await;
            pair.disturb(&mut scene, &mut rng, &mut all.tally).await;
            if rng.random_bool(0.2) {
                env.sleep(Duration::from_micros(rng.random_range(0..20_000))).await;
                pair.disturb(&mut scene, &mut rng, &mut all.tally).await;
            }
            env.sleep(Duration::from_millis(rng.random_range(0..1500))).await;
            scene.network.heal();
            let outcome = match pair.client {
                Some(_) => Some(moving.await.unwrap()),
                None => None,
            };
            let has_crashed = pair.client.is_none() || pair.there.is_none();
            let client = settle(&scene, &mut pair, outcome, &mut all, &what).await;
            drop(working);
            // As its machine sees it, and as another client does.
            let top_here = client.find(Ino::ROOT, b"top").await.unwrap().ino;
            client.reference(top_here);
            let directory = client.find(top_here, name.as_bytes()).await.unwrap().ino;
            client.reference(directory);
            let here = found(&client, directory).await;
            let seen = other.find(top, name.as_bytes()).await.unwrap().ino;
            other.reference(seen);
            let now = found(&other, seen).await;
            assert!(here == now, "{what}: others see something else than the machine itself");
            let taken_back = all.tally.taken_back;
            check((&what, false), &history.lock(), &now, &mut all.tally);
            let lost = all.tally.taken_back - taken_back;
            assert!(has_crashed || lost <= 1, "{what}: without a crash {lost} states are lost");
            client.close().await;
            pair.from.process.kill();
            pair.to.process.kill();
            env.sleep(Duration::from_millis(1)).await;
            pair.from = Journaled::new(&scene, "a").await;
            pair.to = Journaled::new(&scene, "b").await;
            (from, to) = (pair.from, pair.to);
        }
        all
    })
}

#[test]
fn one_of_the_two_machines_has_the_mount_with_everything_that_was_synced() {
    let mut sum = Moves::default();
    for seed in campaign::seeds(36) {
        let Moves { tally, moved, stayed, unknown } = live(seed, 4);
        sum.tally.syncs += tally.syncs;
        sum.tally.unsent += tally.unsent;
        sum.tally.client_crashes += tally.client_crashes;
        sum.tally.server_crashes += tally.server_crashes;
        sum.moved += moved;
        sum.stayed += stayed;
        sum.unknown += unknown;
    }
    println!("{sum:?}");
    assert!(sum.moved > 36 && sum.stayed > 12 && sum.unknown > 12);
    assert!(sum.tally.syncs > 60 && sum.tally.unsent > 60);
}
