//! Power cuts of the machine that a mount moves from, of the one that it moves to, of the server, and of several of them, at each flush and
//! each message of a short move: one of the two machines has the mount afterwards, with everything that was synced.

use std::collections::BTreeMap;

use thalweg_env::{Env, Task};
use thalweg_fs::{Filesystem, FsError, Ino, Node};
use thalweg_sim::{campaign, run};

use crate::journal::Journaled;
use crate::journal_crashes::{bystander, check, found};
use crate::journal_cuts::{SERVER, Script, TICK, left, look, step};
use crate::move_node::target;
use crate::moving_crashes::{Moves, Pair, settle, wait};
use crate::scene::*;

/// The machines that lose their power.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Cut {
    From,
    To,
    Server,
    Both,
    FromAndServer,
    ToAndServer,
    All,
}

impl Cut {
    const ALL: [Cut; 7] = [
        Cut::From,
        Cut::To,
        Cut::Server,
        Cut::Both,
        Cut::FromAndServer,
        Cut::ToAndServer,
        Cut::All,
    ];

    fn has_from(self) -> bool {
        matches!(self, Cut::From | Cut::Both | Cut::FromAndServer | Cut::All)
    }

    fn has_to(self) -> bool {
        matches!(self, Cut::To | Cut::Both | Cut::ToAndServer | Cut::All)
    }

    fn has_server(self) -> bool {
        matches!(self, Cut::Server | Cut::FromAndServer | Cut::ToAndServer | Cut::All)
    }
}

/// Where it fails: after so many events.
#[derive(Clone, Copy, Debug)]
struct At {
    event: usize,
    cut: Cut,
}

/// Requests to the devices, and messages, so far.
fn events(scene: &Scene, pair: &Pair) -> usize {
    let messages = usize::try_from(scene.network.total().writes).unwrap();
    pair.from.position() + pair.to.position() + scene.position() + messages
}

/// A program goes on until the mount is stale.
fn work(env: &Env, mut script: Script) -> Task<()> {
    env.spawn(async move {
        // Longer than a move takes.
        for byte in 10..100 {
            let written = script.try_write("z", usize::from(byte), byte, 30).await;
            let synced = match written {
                Ok(()) => script.client.sync(script.inodes["z"], false).await,
                Err(error) => Err(error),
            };
            match synced {
                Ok(()) => script.synced(),
                Err(FsError::Stale) => return,
                Err(error) => panic!("{error}"),
            }
        }
    })
}

/// A move with a cut; how many events it had until then, and whether the mount is at the other machine.
fn live(seed: u64, at: Option<At>, all: &mut Moves) -> (usize, bool) {
    let so_far = std::mem::take(all);
    let (count, has_moved, now) = run(seed, move |env| async move {
        let mut all = so_far;
        let what = format!("seed {seed}, {at:?}");
        let mut scene = Scene::slow(&env, SERVER).await;
        let (visitor, top) = bystander(&scene).await;
        let (from, to) = (Journaled::new(&scene, "a").await, Journaled::new(&scene, "b").await);
        let mut script = Script::begin(&scene, &from, top).await;
        script.first().await;
        let (client, history) = (script.client.clone(), script.history.clone());
        let there = Some(wait(&scene, &to, true).await);
        let mut pair = Pair { from, to, client: Some(client.clone()), there };
        let before = events(&scene, &pair);
        let working = work(pair.from.process.env(), script);
        let to = target(&pair.from, &pair.to);
        let moving = pair.from.process.env().spawn(async move { client.move_to(to, true).await });
        let most = at.map_or(usize::MAX, |at| at.event);
        let count = loop {
            let count = events(&scene, &pair) - before;
            if count >= most || moving.is_finished() {
                break count;
            }
            env.sleep(TICK).await;
        };
        if let Some(At { event, cut }) = at {
            if cut.has_from() {
                pair.from.crash(left(seed, event));
                pair.client = None;
            }
            if cut.has_to() {
                pair.to.crash(left(seed + 1, event));
                pair.there = None;
            }
            if cut.has_server() {
                scene.crash(left(seed + 2, event)).await;
            }
        }
        let outcome = match pair.client {
            Some(_) => Some(moving.await.unwrap()),
            None => None,
        };
        let client = settle(&scene, &mut pair, outcome, &mut all, &what).await;
        drop(working);
        let mark = format!("stayed-{}", all.stayed + all.unknown);
        let has_stayed = visitor.client.find(Ino::ROOT, mark.as_bytes()).await.is_ok();
        // As its machine sees it, and as another client does; and it goes on.
        let top_here = client.find(Ino::ROOT, b"top").await.unwrap().ino;
        client.reference(top_here);
        let directory = client.find(top_here, b"d").await.unwrap().ino;
        client.reference(directory);
        let here = found(&client, directory).await;
        let now = look(&visitor.client, top).await;
        assert!(here == now, "{what}: others see something else than the machine itself");
        let taken_back = all.tally.taken_back;
        check((&what, false), &history.lock(), &now, &mut all.tally);
        let lost = all.tally.taken_back - taken_back;
        let is_lossless = at.is_none_or(|at| at.cut == Cut::Server);
        assert!(!is_lossless || lost <= 1, "{what}: {lost} states are lost");
        make(&client, directory, "after", Node::File).await;
        client.sync(directory, false).await.unwrap();
        assert!(look(&visitor.client, top).await.contains_key("after"), "{what}");
        (count, !has_stayed, all)
    });
    *all = now;
    (count, has_moved)
}

#[test]
fn a_cut_at_each_flush_and_message_of_a_move_loses_nothing_synced() {
    let (mut all, mut outcomes) = (Moves::default(), BTreeMap::<(Cut, bool), u64>::new());
    for seed in campaign::seeds(1) {
        let (count, has_moved) = live(seed, None, &mut Moves::default());
        assert!(count > 100 && has_moved, "{count} events");
        let places = (1..=count).flat_map(|event| Cut::ALL.map(|cut| At { event, cut }));
        for at in places.step_by(step(8, 1)) {
            let (_, has_moved) = live(seed, Some(at), &mut all);
            *outcomes.entry((at.cut, has_moved)).or_default() += 1;
        }
    }
    let lives: u64 = outcomes.values().sum();
    println!(
        "{lives} moves with a cut, by what was cut and whether the mount has moved: {outcomes:?}; {all:?}"
    );
    assert!(outcomes.len() == 2 * Cut::ALL.len(), "a cut has one outcome alone: {outcomes:?}");
}
