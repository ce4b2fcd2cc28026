//! A client that was away writes back file by file: a file that other clients have used is skipped with the changes that depend on it, and the
//! rest is at the server.

use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::{Client, ConflictScope, OnConflict};
use thalweg_cluster::conflicts::{ConflictKind, DIRECTORY};
use thalweg_env::Rng;
use thalweg_fs::{Cookie, Filesystem, Ino, Level, Node, Rename, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::absence::{lists, text_at};
use crate::full::alone;
use crate::journal::Journaled;
use crate::scene::*;

async fn machine(scene: &Scene) -> Journaled {
    let mut machine = Journaled::new(scene, "a").await;
    machine.conflict = ConflictScope::File;
    machine
}

/// A client with files in a directory of its own, which the server has with their names as their text.
async fn begin(scene: &Scene, machine: &Journaled, names: &[&str]) -> (Client, Ino, Vec<Ino>) {
    let client = machine.mount(scene, true).await.unwrap();
    let directory = alone(&client, "d").await;
    let mut files = Vec::new();
    for name in names {
        let file = make(&client, directory, name, Node::File).await;
        client.reference(file);
        put(&client, file, name).await.unwrap();
        files.push(file);
    }
    client.wait_for(directory, Level::Server, LEASE).await.unwrap();
    (client, directory, files)
}

/// What is left in the directory of the sets.
async fn left(client: &Client) -> Vec<String> {
    let Ok(own) = client.find(Ino::ROOT, DIRECTORY.as_bytes()).await else { return Vec::new() };
    client.reference(own.ino);
    let entries = client.read_directory(own.ino, Cookie::START, 100, false).await.unwrap();
    entries.iter().map(|it| String::from_utf8(it.name.to_vec()).unwrap()).collect()
}

/// One file of three was read meanwhile: the others are written back, and what is behind it, too.
#[test]
fn the_other_files_are_written_back() {
    for (discards, changes, restarts) in
        [(false, false, false), (false, true, true), (true, false, true), (true, true, false)]
    {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = machine(&scene).await;
            machine.on_conflict = if discards { OnConflict::Discard } else { OnConflict::Copy };
            let (client, directory, files) = begin(&scene, &machine, &["x", "y", "z"]).await;
            for (file, text) in files.iter().zip(["X1", "Y1", "Z1"]) {
                put(&client, *file, text).await.unwrap();
            }
            // What depends on the file that is used, and what does not.
            let names = ((directory, &b"y"[..]), (directory, &b"w"[..]));
            client.rename(names.0, names.1, Rename::Replace).await.unwrap();
            let y = make(&client, directory, "y", Node::File).await;
            let v = make(&client, directory, "v", Node::File).await;
            for (file, text) in [(y, "new"), (v, "V1"), (files[0], "X2")] {
                client.reference(file);
                put(&client, file, text).await.unwrap();
            }
            client.sync_all().await.unwrap();
            machine.crash(Shape::Nothing);
            drop(client);
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            assert_eq!(text_at(other, "d/y").await.as_deref(), Some("y"));
            if changes {
                let seen = other.find(Ino::ROOT, b"d").await.unwrap().ino;
                let theirs = other.find(seen, b"y").await.unwrap().ino;
                put(other, theirs, "?").await.unwrap();
            }
            if restarts {
                scene.crash(Shape::Nothing).await;
            }
            let again = machine.mount(&scene, true).await.unwrap();
            let kept = if changes { "?" } else { "y" };
            for client in [other, &again] {
                for (path, text) in [("d/x", "X2"), ("d/z", "Z1"), ("d/v", "V1"), ("d/y", kept)] {
                    assert_eq!(text_at(client, path).await.as_deref(), Some(text), "{path}");
                }
                assert_eq!(text_at(client, "d/w").await, None);
            }
            let sets = lists(&again).await;
            if discards {
                assert!(left(&again).await.is_empty() && sets.is_empty());
                return;
            }
            let [set] = &sets[..] else { panic!("{sets:?}") };
            let [old, new] = &set.entries[..] else { panic!("{set:?}") };
            let kind = if changes { ConflictKind::Ranges } else { ConflictKind::Complete };
            assert_eq!((old.kind, new.kind), (kind, ConflictKind::New));
            assert_eq!(old.renamed.as_deref(), Some("/d/w"));
            assert_eq!(set.changes, 4);
            for (entry, now) in [(old, "Y1"), (new, "new")] {
                let copy = entry.copy.as_deref().unwrap();
                assert_eq!(text_at(other, &copy[1..]).await.as_deref(), Some(now), "{copy}");
            }
            // What was skipped is on record no more.
            assert_eq!(left(&again).await.len(), 1);
        });
    }
}

/// Another client has taken names of which the server knows no use: the client learns that when it is refused.
#[test]
fn names_that_others_have_taken_are_skipped() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = machine(&scene).await;
        let (client, directory, files) = begin(&scene, &machine, &["x"]).await;
        for name in ["p", "q", "r"] {
            let file = make(&client, directory, name, Node::File).await;
            client.reference(file);
            put(&client, file, name).await.unwrap();
        }
        put(&client, files[0], "X1").await.unwrap();
        client.sync_all().await.unwrap();
        machine.crash(Shape::Nothing);
        drop(client);
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        let seen = other.find(Ino::ROOT, b"d").await.unwrap().ino;
        other.reference(seen);
        for name in ["p", "r"] {
            make(other, seen, name, Node::File).await;
        }
        other.sync_all().await.unwrap();
        let again = machine.mount(&scene, true).await.unwrap();
        assert_eq!(text_at(other, "d/x").await.as_deref(), Some("X1"));
        assert_eq!(text_at(other, "d/q").await.as_deref(), Some("q"));
        for name in ["p", "r"] {
            assert_eq!(text_at(other, &format!("d/{name}")).await.as_deref(), Some(""));
        }
        let sets = lists(&again).await;
        let entries: Vec<_> = sets.iter().flat_map(|set| &set.entries).collect();
        assert_eq!(entries.len(), 2, "{entries:?}");
        for (entry, text) in entries.iter().zip(["p", "r"]) {
            let copy = entry.copy.as_deref().unwrap();
            assert_eq!(text_at(other, &copy[1..]).await.as_deref(), Some(text), "{copy}");
        }
    });
}

/// The client crashes at any moment while it writes back around what was used, and then mounts with the other scope.
#[test]
fn a_crash_while_it_writes_back_loses_nothing_that_was_skipped() {
    for late in 0..60_u32 {
        run(u64::from(late), move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = machine(&scene).await;
            let (client, _, files) = begin(&scene, &machine, &["x", "y"]).await;
            // In turns, so that the server passes what is skipped again and again.
            for text in ["1", "2", "3"] {
                for file in &files {
                    put(&client, *file, text).await.unwrap();
                }
            }
            client.sync_all().await.unwrap();
            machine.crash(Shape::Nothing);
            drop(client);
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            assert_eq!(text_at(other, "d/x").await.as_deref(), Some("x"));
            let mounting = machine.process.env().spawn(machine.mounting(&scene, true));
            env.sleep(Duration::from_micros(200) * late).await;
            machine.crash(if late % 2 == 0 { Shape::Nothing } else { Shape::Everything });
            drop(mounting);
            if late % 3 == 0 {
                machine.conflict = ConflictScope::Prefix;
            }
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text_at(other, "d/x").await.as_deref(), Some("x"), "{late}");
            let sets = lists(&again).await;
            let entries: Vec<_> = sets.iter().flat_map(|set| &set.entries).collect();
            let copy_of = |path: &str| {
                let entry = entries.iter().find(|it| it.path.as_deref() == Some(path))?;
                Some(entry.copy.clone()?[1..].to_owned())
            };
            let x = copy_of("/d/x").unwrap();
            assert_eq!(text_at(other, &x).await.as_deref(), Some("3"), "{late}: {sets:?}");
            let y = match copy_of("/d/y") {
                Some(copy) => text_at(other, &copy).await,
                None => text_at(other, "d/y").await,
            };
            assert_eq!(y.as_deref(), Some("3"), "{late}: {sets:?}");
            again.close().await;
        });
    }
}

/// Bytes of the file that both sides write.
const LEN: usize = 4000;

/// A range of the file, and the bytes for it.
type Patch = (usize, Vec<u8>);

fn patch(rng: &mut Rng, value: u8) -> Patch {
    let len = rng.random_range(1..400);
    (rng.random_range(0..LEN - len), vec![value; len])
}

async fn write(client: &Client, file: Ino, (at, bytes): &Patch) {
    let (at, data) = (WriteAt::Offset(*at as u64), vec![Bytes::from(bytes.clone())]);
    client.write(file, at, data, WriteHow::default()).await.unwrap();
}

fn apply(file: &mut [u8], (at, bytes): &Patch) {
    file[*at..at + bytes.len()].copy_from_slice(bytes);
}

/// What is written back of the one side's patches after those of the other: all that have no byte of that side's, or of one that is not
/// written back. With `prefix`, those before the first that has.
fn kept(ours: &[Patch], theirs: &[Patch], prefix: bool) -> Vec<bool> {
    let mut taken = vec![false; LEN];
    for (at, bytes) in theirs {
        taken[*at..at + bytes.len()].fill(true);
    }
    let mut has_stopped = false;
    let is_kept = |(at, bytes): &Patch| {
        let range = *at..at + bytes.len();
        let conflicts = has_stopped || taken[range.clone()].contains(&true);
        has_stopped |= conflicts && prefix;
        if conflicts {
            taken[range].fill(true);
        }
        !conflicts
    };
    ours.iter().map(is_kept).collect()
}

/// How the other side uses the file beside its writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Looks {
    No,
    Reads,
    /// They write to so many places that these count as all of the file.
    Everywhere,
}

/// The conflict copy, if there is one, has the bytes that are not 0.
async fn check_copies(other: &Client, again: &Client, set_aside: &[u8]) {
    let sets = lists(again).await;
    let entries: Vec<_> = sets.iter().flat_map(|set| &set.entries).collect();
    let has_some = set_aside.iter().any(|it| *it > 0);
    assert_eq!(!entries.is_empty(), has_some, "{entries:?}");
    for entry in &entries {
        assert_eq!(entry.kind, ConflictKind::Ranges);
        let directory = other.find(Ino::ROOT, b"d").await.unwrap().ino;
        let name = entry.copy.as_deref().unwrap().rsplit('/').next().unwrap();
        let copy = other.find(directory, name.as_bytes()).await.unwrap().ino;
        let bytes = other.read(copy, 0, LEN).await.unwrap().concat();
        for (at, len) in &entry.ranges {
            let range = *at as usize..(*at + *len) as usize;
            assert_eq!(bytes[range.clone()], set_aside[range]);
        }
        let len: u64 = entry.ranges.iter().map(|(_, len)| len).sum();
        assert_eq!(len as usize, set_aside.iter().filter(|it| **it > 0).count());
    }
}

fn both_write(seed: u64, scope: ConflictScope, looks: Looks) -> (usize, bool) {
    run(seed, move |env| async move {
        let (mut scene, mut rng) = (Scene::durable(&env).await, env.rng());
        let mut machine = machine(&scene).await;
        machine.conflict = scope;
        let (client, _, files) = begin(&scene, &machine, &["x"]).await;
        write(&client, files[0], &(0, vec![1; LEN])).await;
        client.wait_for(files[0], Level::Server, LEASE).await.unwrap();
        let count = rng.random_range(1..7);
        let ours: Vec<Patch> = (0..count).map(|at| patch(&mut rng, 10 + at)).collect();
        for patch in &ours {
            write(&client, files[0], patch).await;
        }
        client.sync_all().await.unwrap();
        machine.crash(Shape::Nothing);
        drop(client);
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        let seen = other.find(Ino::ROOT, b"d").await.unwrap().ino;
        other.reference(seen);
        let file = other.find(seen, b"x").await.unwrap().ino;
        other.reference(file);
        let count = rng.random_range(1..4);
        let mut theirs: Vec<Patch> = (0..count).map(|at| patch(&mut rng, 100 + at)).collect();
        if looks == Looks::Everywhere {
            theirs = (0..40).map(|at| (at * 100, vec![100])).collect();
        }
        // By calls, or in a batch as the file's owner, which has that sent when the other side comes back.
        let owns = rng.random_bool(0.5);
        if owns {
            env.sleep(3 * EXPIRE).await;
            other.open(&Default::default(), file, WRITING).await.unwrap();
        }
        let before = calls(other);
        for patch in &theirs {
            write(other, file, patch).await;
        }
        let is_own = calls(other) == before;
        // Otherwise it makes the calls again at the next server, which notes them again.
        if rng.random_bool(0.5) {
            other.sync(file, false).await.unwrap();
        }
        if looks == Looks::Reads {
            other.read(file, 0, 1).await.unwrap();
        }
        if rng.random_bool(0.3) {
            scene.crash(Shape::Nothing).await;
        }
        let again = machine.mount(&scene, true).await.unwrap();
        let is_kept = match looks {
            Looks::No => kept(&ours, &theirs, scope == ConflictScope::Prefix),
            Looks::Reads | Looks::Everywhere => vec![false; ours.len()],
        };
        let (mut now, mut set_aside) = (vec![1; LEN], vec![0; LEN]);
        theirs.iter().for_each(|patch| apply(&mut now, patch));
        for (patch, is_kept) in ours.iter().zip(&is_kept) {
            apply(if *is_kept { &mut now } else { &mut set_aside }, patch);
        }
        let found = other.read(file, 0, 2 * LEN).await.unwrap().concat();
        let differs = (0..LEN).find(|at| found.get(*at) != now.get(*at));
        assert_eq!((found.len(), differs), (LEN, None), "{seed}: {is_kept:?}");
        check_copies(other, &again, &set_aside).await;
        (is_kept.iter().filter(|it| **it).count(), is_own)
    })
}

/// Two sides that only write bytes of a file do not stand in each other's way where these are others.
#[test]
fn bytes_that_others_have_not_written_are_written_back() {
    let (mut kept, mut owned) = (0, 0);
    for seed in campaign::seeds(120) {
        let scope = if seed % 2 == 0 { ConflictScope::File } else { ConflictScope::Prefix };
        let (some, is_own) = both_write(seed, scope, Looks::No);
        kept += some;
        owned += usize::from(is_own);
    }
    println!("{kept} writes were written back, {owned} times into another client's own file");
    assert!(kept > 100 && owned > 20);
    for seed in campaign::seeds(40) {
        let looks = if seed % 2 == 0 { Looks::Reads } else { Looks::Everywhere };
        assert_eq!(both_write(seed, ConflictScope::File, looks).0, 0, "{seed}");
    }
}
