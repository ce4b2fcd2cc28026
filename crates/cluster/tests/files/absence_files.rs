//! A client that was away writes back file by file: what others have used is skipped with what depends on it, and all else is at the
//! server.

use std::time::Duration;

use thalweg_cluster::client::{Client, ConflictScope, OnConflict};
use thalweg_cluster::conflicts::{ConflictKind, DIRECTORY};
use thalweg_fs::{Cookie, Filesystem, Ino, Level, Node, Rename};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

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
