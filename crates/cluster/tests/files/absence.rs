//! A client with a journal that stays away: other clients go on, and what they have used is not changed behind their backs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::Client;
use thalweg_cluster::conflicts::{ConflictEntry, ConflictKind, ConflictSet, DIRECTORY};
use thalweg_cluster::protocol::{Answer, JournalMount, Request};
use thalweg_env::Rng;
use thalweg_fs::{Cookie, Filesystem, Ino, Kind, Level, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::full::alone;
use crate::journal::{Journaled, begin, find};
use crate::journal_crashes::{
    self, History, State, Tally, bystander, found, left, len_of, recover,
};
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

/// What another client does in a directory while its owner is away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Foreign {
    Nothing,
    Lists,
    Reads,
    Writes,
}

/// By names of files, offsets and bytes of ranges.
type Ranges = BTreeMap<String, Vec<(u64, Vec<u8>)>>;

/// Bytes that other clients have written.
const THEIRS: u8 = 0;

/// What others find, and have written.
struct Seen {
    /// Before they changed something.
    before: State,
    written: Option<String>,
}

async fn use_it(other: &Client, directory: Ino, what: Foreign, rng: &mut Rng) -> Option<Seen> {
    let names: Vec<Bytes> = match what {
        Foreign::Nothing => return None,
        _ => {
            let all = other.read_directory(directory, Cookie::START, 1000, false).await.unwrap();
            all.into_iter().filter(|it| it.kind == Kind::File).map(|it| it.name).collect()
        }
    };
    if what == Foreign::Lists || names.is_empty() {
        return None;
    }
    let before = found(other, directory).await;
    let mut written = None;
    if what == Foreign::Writes {
        let name = &names[rng.random_range(0..names.len())];
        let file = other.find(directory, name).await.unwrap().ino;
        other.reference(file);
        let data = vec![Bytes::from(vec![THEIRS; 20_000])];
        other.write(file, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
        other.sync(file, false).await.unwrap();
        other.unreference(file, 1);
        written = Some(String::from_utf8(name.to_vec()).unwrap());
    }
    Some(Seen { before, written })
}

/// The state that the files at the server and the conflict copies come to, without a file that other clients have written; the bytes of
/// that in the copy; and its name.
async fn merged(
    client: &Client,
    directory: Ino,
    sets: &[ConflictSet],
    written: Option<&String>,
) -> (State, Ranges, Option<String>) {
    // A file that was open without a name has no path.
    let entries = sets.iter().flat_map(|set| &set.entries).filter(|it| it.path.is_some());
    let entries: Vec<&ConflictEntry> = entries.collect();
    let base = |path: &String| path.rsplit('/').next().unwrap().to_owned();
    let all = found(client, directory).await;
    let mut state = all.clone();
    for entry in &entries {
        entry.copy.iter().for_each(|copy| drop(state.remove(&base(copy))));
        if entry.removed || entry.renamed.is_some() {
            state.remove(&base(entry.path.as_ref().unwrap()));
        }
    }
    let (mut ranges, mut name) = (Ranges::new(), written.cloned());
    for entry in entries {
        let path = base(entry.path.as_ref().unwrap());
        let is_written = written == Some(&path) && entry.kind != ConflictKind::New;
        let last = if entry.removed {
            None
        } else {
            entry.renamed.as_ref().map(base).or(Some(path.clone()))
        };
        if is_written {
            name = last.clone();
        }
        let copy = entry.copy.as_ref().map(|copy| all[&base(copy)].clone());
        let Some(last) = last else { continue };
        if entry.kind == ConflictKind::Ranges {
            assert!(is_written, "no other client has written to {path}");
            let bytes = copy.flatten().unwrap();
            let parts = entry.ranges.iter();
            let parts =
                parts.map(|(at, len)| (*at, bytes[*at as usize..(*at + *len) as usize].to_vec()));
            ranges.insert(last, parts.collect());
            continue;
        }
        if let Some(content) = copy.or_else(|| all.get(&path).cloned()) {
            state.insert(last.clone(), content.clone());
            entry.linked.iter().for_each(|it| drop(state.insert(base(it), content.clone())));
        }
    }
    name.iter().for_each(|name| drop(state.remove(name)));
    (state, ranges, name)
}

/// Everything that was synced is at the server or in a conflict copy.
fn check_all(
    what: &str,
    history: &History,
    (now, ranges, written): (State, Ranges, Option<String>),
) {
    let fits = |state: &State| {
        let mut state = state.clone();
        for (name, parts) in &ranges {
            let Some(Some(bytes)) = state.get(name) else { return false };
            for (at, part) in parts {
                let at = *at as usize;
                if bytes.get(at..at + part.len()) != Some(&part[..]) {
                    return false;
                }
            }
        }
        written.iter().for_each(|written| drop(state.remove(written)));
        state == now
    };
    let at = history.states.iter().rposition(fits);
    let differs = |state: &State| -> Vec<String> {
        let names = state.keys().chain(now.keys()).collect::<BTreeSet<_>>().into_iter();
        let wrong = names.filter(|name| state.get(*name) != now.get(*name));
        let shown = |name: &String| {
            let len = |state: &State| state.get(name).map(len_of);
            format!("{name}: {:?} {:?}", len(state), len(&now))
        };
        wrong.map(shown).collect()
    };
    let nearest = history.states.iter().map(differs).enumerate().min_by_key(|it| it.1.len());
    assert!(
        at.is_some_and(|at| at >= history.synced),
        "{what}: it is {at:?} of {}, of which {} was synced; the nearest is {nearest:?}, with {written:?} and {:?}",
        history.states.len(),
        history.synced,
        ranges.keys()
    );
}

/// How a client goes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaves {
    Crashes,
    /// The network is cut, and the client lives on.
    IsCut,
}

/// The network is there again: the client goes on, with its journal.
pub(crate) async fn come_back(scene: &Scene, client: &Client) {
    scene.network.heal();
    let begun = scene.env.now();
    while client.statistics().await.is_err() || client.pending().journal.is_none() {
        scene.env.sleep(LEASE / 4).await;
        assert!(scene.env.now().since(begun) < 20 * LEASE, "it does not come back");
    }
}

fn live(seed: u64, leaves: Leaves) -> (Tally, usize, usize) {
    run(seed, move |env| async move {
        let mut scene = Scene::durable(&env).await;
        let mut rng = env.rng();
        let mut tally = Tally::default();
        let (visitor, top) = bystander(&scene).await;
        let other = visitor.client.clone();
        let mut machine = Journaled::new(&scene, "a").await;
        let client = machine.mount(&scene, rng.random_bool(0.7)).await.unwrap();
        let mut program = journal_crashes::begin(&machine, &client, "d").await;
        program.renames = rng.random_bool(0.5);
        let history: Arc<_> = program.history.clone();
        let working = machine.process.env().spawn(async move {
            loop {
                program.step().await;
            }
        });
        env.sleep(Duration::from_millis(rng.random_range(50..4000))).await;
        if rng.random_bool(0.3) {
            scene.crash(left(&mut rng)).await;
            env.sleep(Duration::from_millis(rng.random_range(0..500))).await;
        }
        drop(working);
        let client = match leaves {
            Leaves::Crashes => {
                machine.crash(left(&mut rng));
                None
            }
            Leaves::IsCut => {
                scene.network.part(&[machine.host()], std::slice::from_ref(&scene.server));
                Some(client)
            }
        };
        let mut acts = vec![Foreign::Nothing, Foreign::Lists, Foreign::Reads, Foreign::Writes];
        let what = acts.swap_remove(rng.random_range(0..4));
        if rng.random_bool(0.5) {
            env.sleep(EXPIRE + LEASE).await;
        }
        if rng.random_bool(0.3) {
            scene.crash(left(&mut rng)).await;
        }
        let directory = other.find(top, b"d").await.unwrap().ino;
        other.reference(directory);
        let seen = use_it(&other, directory, what, &mut rng).await;
        let name = format!("seed {seed}, {what:?}");
        let written = seen.as_ref().and_then(|seen| seen.written.clone());
        if let Some(Seen { before, .. }) = &seen {
            assert!(history.lock().states.contains(before), "{name}: others see no prefix");
        }
        if rng.random_bool(0.3) {
            scene.crash(left(&mut rng)).await;
        }
        let recovered = match client {
            Some(client) => {
                come_back(&scene, &client).await;
                client
            }
            None => recover(&mut scene, &mut machine, &mut rng, &mut tally).await,
        };
        let sets = lists(&recovered).await;
        let entries: Vec<_> = sets.iter().flat_map(|set| &set.entries).collect();
        if let Some(Seen { before, .. }) = &seen {
            // What other clients have seen is not changed behind their backs.
            let now = found(&other, directory).await;
            for (name, bytes) in before.iter().filter(|(name, _)| Some(*name) != written.as_ref()) {
                assert!(now.get(name) == Some(bytes), "{name} has changed");
            }
        }
        if matches!(what, Foreign::Nothing) {
            assert!(sets.is_empty(), "{name}: {sets:?}");
        }
        let copies = entries.iter().filter(|entry| entry.copy.is_some()).count();
        let all = merged(&other, directory, &sets, written.as_ref()).await;
        check_all(&name, &history.lock(), all);
        recovered.close().await;
        (tally, sets.len(), copies)
    })
}

#[test]
fn what_was_synced_is_at_the_server_or_in_a_copy() {
    let (mut crashes, mut sets, mut copies) = (0, 0, 0);
    for seed in campaign::seeds(60) {
        let (tally, some, few) = live(seed, Leaves::Crashes);
        crashes += tally.client_crashes + tally.server_crashes;
        (sets, copies) = (sets + some, copies + few);
    }
    println!("{crashes} crashes in recoveries, {sets} conflict sets with {copies} copies");
    assert!(crashes > 10 && sets > 5 && copies > 10);
}

#[test]
fn a_client_that_was_cut_off_goes_on_with_its_journal() {
    let (mut sets, mut copies) = (0, 0);
    for seed in campaign::seeds(60) {
        let (_, some, few) = live(seed, Leaves::IsCut);
        (sets, copies) = (sets + some, copies + few);
    }
    println!("{sets} conflict sets with {copies} copies");
    assert!(sets > 5 && copies > 10);
}
