//! A client with a journal that stays away: other clients go on, and what they have used is not changed behind their backs.

use std::time::Duration;

use thalweg_cluster::client::Client;
use thalweg_cluster::conflicts::{ConflictKind, ConflictSet, DIRECTORY};
use thalweg_cluster::protocol::{Answer, JournalMount, Request};
use thalweg_fs::{Cookie, Filesystem, Ino, Level, Node};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::full::alone;
use crate::journal::{Journaled, begin, find};
use crate::peer::Peer;
use crate::scene::*;

/// What another client finds at a path.
pub(crate) async fn text_at(client: &Client, path: &str) -> Option<String> {
    let mut at = Ino::ROOT;
    for name in path.split('/') {
        at = client.find(at, name.as_bytes()).await.ok()?.ino;
        client.reference(at);
    }
    Some(text(client, at).await)
}

/// A client whose journal has changes, and that stays away: its file had "old" at the server.
pub(crate) async fn away(scene: &Scene, machine: &mut Journaled) {
    let (client, file) = begin(scene, machine, true).await;
    put(&client, file, "old").await.unwrap();
    client.wait_for(file, Level::Server, LEASE).await.unwrap();
    put(&client, file, "new").await.unwrap();
    let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
    let second = make(&client, directory, "second", Node::File).await;
    client.reference(second);
    put(&client, second, "2").await.unwrap();
    client.sync(second, false).await.unwrap();
    machine.crash(Shape::Nothing);
    drop(client);
}

pub(crate) async fn lists(client: &Client) -> Vec<ConflictSet> {
    let Ok(own) = client.find(Ino::ROOT, DIRECTORY.as_bytes()).await else { return Vec::new() };
    client.reference(own.ino);
    let entries = client.read_directory(own.ino, Cookie::START, 100, false).await.unwrap();
    let mut sets = Vec::new();
    for entry in entries.iter().filter(|it| it.name.ends_with(b".json")) {
        client.find(own.ino, &entry.name).await.unwrap();
        client.reference(entry.ino);
        let list = client.read(entry.ino, 0, 1 << 20).await.unwrap().concat();
        sets.push(serde_json::from_slice(&list).unwrap());
    }
    sets
}

/// No other client has used what the journal is about, however long the client was away, and whatever the server did.
#[test]
fn a_client_that_was_away_writes_back_what_nobody_has_used() {
    for restarts in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            away(&scene, &mut machine).await;
            env.sleep(2 * EXPIRE).await;
            if restarts {
                scene.crash(Shape::Nothing).await;
                env.sleep(2 * EXPIRE).await;
            }
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text_at(&again, "d/file").await.as_deref(), Some("new"));
            assert_eq!(text_at(&again, "d/second").await.as_deref(), Some("2"));
            assert_eq!(lists(&again).await, []);
        });
    }
}

/// Other clients have read a file meanwhile, or changed it: what they saw stays, and the journal's rest is beside it.
#[test]
fn what_others_have_used_becomes_a_conflict_copy() {
    for (changes, restarts) in [(false, false), (false, true), (true, false), (true, true)] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            away(&scene, &mut machine).await;
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            // It waits for a lease, and then goes on.
            assert_eq!(text_at(other, "d/file").await.as_deref(), Some("old"));
            let file = find(other).await;
            if changes {
                put(other, file, "their").await.unwrap();
                other.sync(file, false).await.unwrap();
            }
            if restarts {
                scene.crash(Shape::Nothing).await;
            }
            let again = machine.mount(&scene, true).await.unwrap();
            let kept = if changes { "their" } else { "old" };
            for client in [&again, other] {
                assert_eq!(text_at(client, "d/file").await.as_deref(), Some(kept));
                assert_eq!(text_at(client, "d/second").await, None);
            }
            let sets = lists(&again).await;
            let [set] = &sets[..] else { panic!("{sets:?}") };
            let [first, second] = &set.entries[..] else { panic!("{set:?}") };
            let kind = if changes { ConflictKind::Ranges } else { ConflictKind::Complete };
            assert_eq!((first.kind, second.kind), (kind, ConflictKind::New));
            assert_eq!(first.path.as_deref(), Some("/d/file"));
            assert_eq!(second.path.as_deref(), Some("/d/second"));
            for (entry, now) in [(first, "new"), (second, "2")] {
                let copy = entry.copy.as_deref().unwrap();
                assert_eq!(text_at(other, &copy[1..]).await.as_deref(), Some(now), "{copy}");
            }
            // The journal is empty.
            again.close().await;
            machine.mount(&scene, true).await.unwrap();
            assert_eq!(lists(other).await.len(), 1);
        });
    }
}

/// A new name in a directory that other clients have seen conflicts with the same name alone.
#[test]
fn a_new_name_conflicts_with_the_same_name() {
    for takes_name in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let client = machine.mount(&scene, true).await.unwrap();
            let directory = alone(&client, "d").await;
            client.wait_for(directory, Level::Server, LEASE).await.unwrap();
            let file = make(&client, directory, "file", Node::File).await;
            client.reference(file);
            put(&client, file, "ours").await.unwrap();
            client.sync(file, false).await.unwrap();
            machine.crash(Shape::Nothing);
            drop(client);
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            let seen = other.find(Ino::ROOT, b"d").await.unwrap().ino;
            other.reference(seen);
            let name = if takes_name { "file" } else { "another" };
            let theirs = make(other, seen, name, Node::File).await;
            other.reference(theirs);
            put(other, theirs, "theirs").await.unwrap();
            let again = machine.mount(&scene, true).await.unwrap();
            let sets = lists(&again).await;
            let now = text_at(&again, "d/file").await;
            if takes_name {
                assert_eq!(now.as_deref(), Some("theirs"));
                let copy = sets[0].entries[0].copy.clone().unwrap();
                assert_eq!(text_at(&again, &copy[1..]).await.as_deref(), Some("ours"));
            } else {
                assert_eq!((now.as_deref(), sets.len()), (Some("ours"), 0));
            }
        });
    }
}

/// A client that loses its journals again and again takes no more of the server than a few.
#[test]
fn a_client_leaves_a_few_journals_at_most() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        for reserves in [false, true] {
            for _ in 0..12 {
                let peer = Peer::new(&scene, &scene.visit("a"), 0).await;
                let journal = Some(JournalMount::Incarnation(1));
                let request = Request::Attach { session: env.uuid(), resumes: false, journal };
                let answer = peer.ask(0, request).await;
                assert!(matches!(answer, Answer::Attached { .. }), "{answer:?}");
                if reserves {
                    let answer = peer.ask(1, Request::Reserve).await;
                    assert!(matches!(answer, Answer::Numbers { .. }), "{answer:?}");
                }
            }
            env.sleep(3 * EXPIRE).await;
            let left = if reserves { 8 } else { 0 };
            assert_eq!(scene.service.status().lapsed_journals, left);
            assert_eq!(scene.service.sessions().len(), left);
        }
        // Nor does a later server wait for them.
        scene.crash(Shape::Nothing).await;
        assert_eq!((scene.service.expected(), scene.service.status().lapsed_journals), (0, 8));
        assert_eq!(scene.service.forget_journals("a"), 8);
        env.sleep(LEASE).await;
        assert_eq!(scene.service.sessions().len(), 0);
    });
}

/// A mount that lives on has acted on what it cached; one that begins again has not.
#[test]
fn a_mount_that_was_cut_off_does_not_go_on_with_a_lapsed_journal() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let session = env.uuid();
        let attach = async |resumes, journal| {
            let peer = Peer::new(&scene, &scene.visit("a"), 0).await;
            let journal = Some(journal);
            let answer = peer.ask(0, Request::Attach { session, resumes, journal }).await;
            (peer, answer)
        };
        let (peer, _) = attach(false, JournalMount::Incarnation(1)).await;
        peer.ask(1, Request::Reserve).await;
        env.sleep(3 * EXPIRE).await;
        let (_, refused) = attach(true, JournalMount::Incarnation(1)).await;
        assert!(matches!(refused, Answer::Lapsed), "{refused:?}");
        for journal in [JournalMount::Rebooted, JournalMount::Incarnation(2)] {
            let (_, attached) = attach(true, journal).await;
            assert!(matches!(attached, Answer::Attached { .. }), "{attached:?}");
        }
    });
}

/// An administrator gives a journal up at any moment of its lapse.
#[test]
fn a_journal_is_given_up_while_it_lapses() {
    run(1, |env| async move {
        // Its record takes a while.
        let scene = Scene::slow(&env, Duration::from_millis(20)).await;
        let peer = Peer::new(&scene, &scene.visit("a"), 0).await;
        let journal = Some(JournalMount::Incarnation(1));
        let request = Request::Attach { session: env.uuid(), resumes: false, journal };
        peer.ask(0, request).await;
        peer.ask(1, Request::Reserve).await;
        let begun = env.now();
        while scene.service.forget_journals("a") == 0 {
            env.sleep(Duration::from_millis(1)).await;
            assert!(env.now().since(begun) < 3 * EXPIRE, "it never lapses");
        }
        env.sleep(LEASE).await;
        assert_eq!(scene.service.sessions().len(), 0);
    });
}

/// The network is there again: the client goes on, with its journal. No call asks for that.
pub(crate) async fn come_back(scene: &Scene, client: &Client) {
    scene.network.heal();
    let begun = scene.env.now();
    while !client.status().connected || client.pending().journal.is_none() {
        scene.env.sleep(LEASE / 4).await;
        assert!(scene.env.now().since(begun) < 20 * LEASE, "it does not come back");
    }
}
