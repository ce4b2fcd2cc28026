//! What other clients may do to the files of a client that is away: remove, replace, move or cut them.

use thalweg_cluster::client::{Client, ConflictScope};
use thalweg_cluster::conflicts::ConflictEntry;
use thalweg_fs::{AttributeChange, Cookie, Filesystem, Ino, Node, Rename};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::absence::{away, lists, text_at};
use crate::journal::Journaled;
use crate::scene::*;

/// What another client does to the file, or to the directory that it is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harm {
    RemovesFile,
    RemovesDirectory,
    /// To this size.
    Cuts(u64),
    /// By another file that gets its name.
    Replaces,
    /// It is removed, and another one is made with its name.
    MakesAnew,
    MovesFile,
    MovesDirectory,
}

const HARMS: [Harm; 8] = [
    Harm::RemovesFile,
    Harm::RemovesDirectory,
    Harm::Cuts(0),
    Harm::Cuts(1),
    Harm::Replaces,
    Harm::MakesAnew,
    Harm::MovesFile,
    Harm::MovesDirectory,
];

async fn new_file(other: &Client, directory: Ino, name: &str) {
    let file = make(other, directory, name, Node::File).await;
    other.reference(file);
    put(other, file, "theirs").await.unwrap();
}

async fn harm(other: &Client, harm: Harm) {
    let directory = other.find(Ino::ROOT, b"d").await.unwrap().ino;
    other.reference(directory);
    match harm {
        Harm::RemovesFile => other.unlink(directory, b"file").await.unwrap(),
        Harm::RemovesDirectory => {
            let entries = other.read_directory(directory, Cookie::START, 100, false).await.unwrap();
            for entry in entries {
                other.unlink(directory, &entry.name).await.unwrap();
            }
            other.remove_directory(Ino::ROOT, b"d").await.unwrap();
        }
        Harm::Cuts(size) => {
            let file = other.find(directory, b"file").await.unwrap().ino;
            other.reference(file);
            let change = AttributeChange { size: Some(size), ..Default::default() };
            other.set_attributes(file, &change).await.unwrap();
        }
        Harm::Replaces => {
            new_file(other, directory, "theirs").await;
            let names = ((directory, &b"theirs"[..]), (directory, &b"file"[..]));
            other.rename(names.0, names.1, Rename::Replace).await.unwrap();
        }
        Harm::MakesAnew => {
            other.unlink(directory, b"file").await.unwrap();
            new_file(other, directory, "file").await;
        }
        Harm::MovesFile => {
            let names = ((directory, &b"file"[..]), (Ino::ROOT, &b"moved"[..]));
            other.rename(names.0, names.1, Rename::Replace).await.unwrap();
        }
        Harm::MovesDirectory => {
            let names = ((Ino::ROOT, &b"d"[..]), (Ino::ROOT, &b"e"[..]));
            other.rename(names.0, names.1, Rename::Replace).await.unwrap();
        }
    }
    other.sync_all().await.unwrap();
}

/// What is at the paths at last, whatever comes of the journal: what the other client has made of it stays.
fn kept(harm: Harm) -> Vec<(&'static str, Option<&'static str>)> {
    match harm {
        Harm::RemovesFile => vec![("d/file", None), ("d/one", Some(""))],
        Harm::RemovesDirectory => vec![("d/file", None)],
        Harm::Cuts(0) => vec![("d/file", Some(""))],
        Harm::Cuts(_) => vec![("d/file", Some("o"))],
        Harm::Replaces => vec![("d/file", Some("theirs")), ("d/theirs", None)],
        Harm::MakesAnew => vec![("d/file", Some("theirs"))],
        Harm::MovesFile => vec![("d/file", None)],
        Harm::MovesDirectory => vec![("d/file", None)],
    }
}

/// Whether the copy of an entry has this text, and lies at a path that says what it is.
async fn has_copy(client: &Client, entry: &ConflictEntry, now: &str) -> bool {
    let Some(copy) = entry.copy.as_deref() else { return false };
    let is_named = copy.contains(".conflict-") || copy.starts_with("/.thalweg-conflicts/");
    is_named && text_at(client, &copy[1..]).await.as_deref() == Some(now)
}

/// Whether a text that a client has synced is in the file itself, and whether it is in a copy that a set names.
pub(crate) async fn survives(client: &Client, path: &str, now: &str) -> (bool, bool) {
    let is_there = text_at(client, path).await.as_deref() == Some(now);
    let mut has_a_copy = false;
    for set in lists(client).await {
        for entry in &set.entries {
            has_a_copy |= has_copy(client, entry, now).await;
        }
    }
    (is_there, has_a_copy)
}

fn check_one(did: Harm, conflict: ConflictScope, restarts: bool) {
    let what = format!("{did:?} {conflict:?} {restarts}");
    run(1, move |env| async move {
        let mut scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        machine.conflict = conflict;
        away(&scene, &mut machine).await;
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        harm(other, did).await;
        if restarts {
            scene.crash(Shape::Nothing).await;
        }
        let mounted = machine.mount(&scene, true).await;
        let again = mounted.unwrap_or_else(|error| panic!("{what}: {error}"));
        let sets = lists(&again).await;
        let place = if did == Harm::MovesDirectory { "e" } else { "d" };
        let path = match did {
            Harm::MovesFile => "moved".to_owned(),
            _ => format!("{place}/file"),
        };
        for client in [other, &again] {
            for (path, text) in kept(did) {
                let now = text_at(client, path).await;
                assert_eq!(now.as_deref(), text, "{what}: {path} {sets:?}");
            }
            let is_gone = client.find(Ino::ROOT, b"d").await.is_err();
            let removes = matches!(did, Harm::RemovesDirectory | Harm::MovesDirectory);
            assert_eq!(is_gone, removes, "{what}");
            let (is_there, has_a_copy) = survives(client, &path, "new").await;
            assert!(is_there != has_a_copy, "{what}: {is_there} {has_a_copy} {sets:?}");
            // Of a directory that has moved nothing in it was used.
            assert_eq!(is_there, did == Harm::MovesDirectory, "{what}: {sets:?}");
            let second = survives(client, &format!("{place}/second"), "2").await;
            assert!(second.0 != second.1, "{what}: {second:?} {sets:?}");
            let depends = conflict == ConflictScope::Prefix || did == Harm::RemovesDirectory;
            assert_eq!(second.1, depends && has_a_copy, "{what}: {sets:?}");
        }
        // Nothing is left for a next time.
        again.close().await;
        let last = machine.mount(&scene, true).await.unwrap();
        assert_eq!(lists(&last).await, sets, "{what}");
    });
}

/// A file stays as another client has made it, and what was synced of it before is there or in a copy.
#[test]
fn what_others_have_done_to_a_file_stays_and_nothing_synced_vanishes() {
    for did in HARMS {
        for conflict in [ConflictScope::Prefix, ConflictScope::File] {
            for restarts in [false, true] {
                check_one(did, conflict, restarts);
            }
        }
    }
}
