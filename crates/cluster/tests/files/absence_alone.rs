//! A client with a journal is away while the filesystem is used without a server: each file that is there counts as used by others.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_cluster::client::{Client, ConflictScope};
use thalweg_cluster::conflicts::{ConflictKind, ConflictSet};
use thalweg_cluster::server::use_without_server;
use thalweg_fs::{Filesystem, Ino, Level, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::absence::{lists, text_at};
use crate::full::alone;
use crate::journal::Journaled;
use crate::scene::*;

const SCOPES: [ConflictScope; 2] = [ConflictScope::Prefix, ConflictScope::File];

async fn machine(scene: &Scene, conflict: ConflictScope) -> Journaled {
    let mut machine = Journaled::new(scene, "a").await;
    machine.conflict = conflict;
    machine
}

/// A client with files in a directory of its own, which the server has with their names as their text.
async fn begin(scene: &Scene, machine: &Journaled) -> (Client, Ino, [Ino; 2]) {
    let client = machine.mount(scene, true).await.unwrap();
    let directory = alone(&client, "d").await;
    let mut files = [directory; 2];
    for (file, name) in files.iter_mut().zip(["x", "y"]) {
        *file = make(&client, directory, name, Node::File).await;
        client.reference(*file);
        put(&client, *file, name).await.unwrap();
    }
    client.wait_for(directory, Level::Server, LEASE).await.unwrap();
    (client, directory, files)
}

/// A new file with a text, durable in the journal.
async fn add(client: &Client, directory: Ino, name: &str, text: &str) {
    let file = make(client, directory, name, Node::File).await;
    client.reference(file);
    put(client, file, text).await.unwrap();
    client.sync(file, false).await.unwrap();
}

/// The inode of a path, without a server.
async fn at(files: &dyn Filesystem, path: &str) -> Ino {
    let mut at = Ino::ROOT;
    for name in path.split('/') {
        at = files.find(at, name.as_bytes()).await.unwrap().ino;
        files.reference(at);
    }
    at
}

async fn read(files: &dyn Filesystem, path: &str) -> String {
    text(files, at(files, path).await).await
}

/// The server ends, and a program reads a file without it.
async fn read_without_server(scene: &mut Scene) {
    scene.stop().await;
    let use_it = async |files: &Arc<dyn Filesystem>| {
        assert_eq!(read(&**files, "d/x").await, "x");
    };
    scene.without_server(Shape::Nothing, use_it).await;
}

/// The paths of a set, with how their copies were made and what these have.
async fn copies(client: &Client, set: &ConflictSet) -> Vec<(String, ConflictKind, String)> {
    let mut copies = Vec::new();
    for entry in &set.entries {
        let copy = match &entry.copy {
            Some(copy) => text_at(client, &copy[1..]).await.unwrap(),
            None => String::new(),
        };
        copies.push((entry.path.clone().unwrap(), entry.kind, copy));
    }
    copies.sort_by(|a, b| a.0.cmp(&b.0));
    copies
}

fn copy(path: &str, kind: ConflictKind, text: &str) -> (String, ConflictKind, String) {
    (path.to_owned(), kind, text.to_owned())
}

/// A file that is there stays as it is, and the copy of one that was only read is complete. New files go to their names.
#[test]
fn files_that_were_there_conflict_and_new_ones_do_not() {
    for (scope, lapses, writes) in SCOPES.iter().flat_map(|scope| {
        [(false, false), (false, true), (true, false), (true, true)].map(|(a, b)| (*scope, a, b))
    }) {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = machine(&scene, scope).await;
            let (client, directory, [x, y]) = begin(&scene, &machine).await;
            add(&client, directory, "early", "E").await;
            let data = vec![Bytes::from_static(b"X")];
            client.write(x, WriteAt::Offset(3), data, WriteHow::default()).await.unwrap();
            put(&client, y, "Y").await.unwrap();
            add(&client, directory, "late", "L").await;
            machine.crash(Shape::Nothing);
            drop(client);
            if lapses {
                env.sleep(2 * EXPIRE).await;
            }
            scene.stop().await;
            let use_it = async |files: &Arc<dyn Filesystem>| {
                assert_eq!(read(&**files, "d/x").await, "x");
                if writes {
                    put(&**files, at(&**files, "d/x").await, "their").await.unwrap();
                    files.sync_all().await.unwrap();
                }
            };
            scene.without_server(Shape::Nothing, use_it).await;
            scene.start(Shape::Nothing).await;
            let status = scene.service.status();
            assert_eq!((status.lapsed_journals, scene.service.expected()), (1, 0));
            let again = machine.mount(&scene, true).await.unwrap();
            let kept = if writes { "their" } else { "x" };
            assert_eq!(text_at(&again, "d/x").await.as_deref(), Some(kept));
            assert_eq!(text_at(&again, "d/y").await.as_deref(), Some("y"));
            assert_eq!(text_at(&again, "d/early").await.as_deref(), Some("E"));
            let sets = lists(&again).await;
            let [set] = &sets[..] else { panic!("{sets:?}") };
            let of_x = match writes {
                true => copy("/d/x", ConflictKind::Ranges, "\0\0\0X"),
                false => copy("/d/x", ConflictKind::Complete, "x\0\0X"),
            };
            let mut expected = vec![of_x, copy("/d/y", ConflictKind::Complete, "Y")];
            let is_prefix = scope == ConflictScope::Prefix;
            if is_prefix {
                expected.insert(0, copy("/d/late", ConflictKind::New, "L"));
            }
            assert_eq!(copies(&again, set).await, expected);
            let late = text_at(&again, "d/late").await;
            assert_eq!(late.as_deref(), (!is_prefix).then_some("L"));
            // The journal is empty.
            again.close().await;
            machine.mount(&scene, true).await.unwrap();
            let visitor = scene.client("other").await;
            assert_eq!(lists(&visitor.client).await.len(), 1);
            assert_eq!(scene.service.status().lapsed_journals, 0);
        });
    }
}

/// Names that were made meanwhile stay; removed files stay removed, and what was synced of them is in copies.
#[test]
fn names_that_were_made_or_removed_stay_so() {
    for scope in SCOPES {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = machine(&scene, scope).await;
            let (client, directory, [_, y]) = begin(&scene, &machine).await;
            add(&client, directory, "new", "ours").await;
            put(&client, y, "Y").await.unwrap();
            client.sync(y, false).await.unwrap();
            machine.crash(Shape::Nothing);
            drop(client);
            scene.stop().await;
            let use_it = async |files: &Arc<dyn Filesystem>| {
                let directory = at(&**files, "d").await;
                let theirs = make(&**files, directory, "new", Node::File).await;
                put(&**files, theirs, "theirs").await.unwrap();
                files.unlink(directory, b"y").await.unwrap();
                files.sync_all().await.unwrap();
            };
            scene.without_server(Shape::Nothing, use_it).await;
            scene.start(Shape::Nothing).await;
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text_at(&again, "d/new").await.as_deref(), Some("theirs"));
            assert_eq!(text_at(&again, "d/y").await, None);
            let sets = lists(&again).await;
            let [set] = &sets[..] else { panic!("{sets:?}") };
            let mut texts = Vec::new();
            for entry in &set.entries {
                texts.push(text_at(&again, &entry.copy.as_ref().unwrap()[1..]).await.unwrap());
            }
            texts.sort();
            assert_eq!(texts, ["Y", "ours"]);
        });
    }
}

/// Inodes that are made meanwhile get no number of the journal's.
#[test]
fn no_inode_gets_a_number_of_the_journal() {
    for scope in SCOPES {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = machine(&scene, scope).await;
            let (client, directory, _) = begin(&scene, &machine).await;
            for number in 0..20 {
                add(&client, directory, &format!("new{number}"), "ours").await;
            }
            machine.crash(Shape::Nothing);
            drop(client);
            scene.stop().await;
            let use_it = async |files: &Arc<dyn Filesystem>| {
                for number in 0..1000 {
                    make(&**files, Ino::ROOT, &format!("their{number}"), Node::File).await;
                }
                files.sync_all().await.unwrap();
            };
            scene.without_server(Shape::Nothing, use_it).await;
            scene.start(Shape::Nothing).await;
            let again = machine.mount(&scene, true).await.unwrap();
            for number in 0..20 {
                let text = text_at(&again, &format!("d/new{number}")).await;
                assert_eq!(text.as_deref(), Some("ours"));
            }
            assert_eq!(lists(&again).await, []);
        });
    }
}

/// A journal that has nothing goes on; so does the session of one that has written nothing at all end.
#[test]
fn a_journal_without_changes_goes_on() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let mut machine = machine(&scene, ConflictScope::Prefix).await;
        let (client, _, _) = begin(&scene, &machine).await;
        client.sync_all().await.unwrap();
        machine.crash(Shape::Nothing);
        drop(client);
        read_without_server(&mut scene).await;
        scene.start(Shape::Nothing).await;
        let again = machine.mount(&scene, true).await.unwrap();
        assert_eq!(lists(&again).await, []);
        let directory = again.find(Ino::ROOT, b"d").await.unwrap().ino;
        again.reference(directory);
        add(&again, directory, "more", "M").await;
        again.close().await;
        let visitor = scene.client("other").await;
        assert_eq!(text_at(&visitor.client, "d/more").await.as_deref(), Some("M"));
    });
}

/// The use is on record before anything can be read: a crash of the machine at once undoes nothing of that. Later changes have later times,
/// also behind a clock that was set back.
#[test]
fn a_use_without_a_server_is_on_record_before_it_reads() {
    for writes in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = machine(&scene, ConflictScope::File).await;
            let (client, _, [x, _]) = begin(&scene, &machine).await;
            let data = vec![Bytes::from_static(b"X")];
            client.write(x, WriteAt::Offset(3), data, WriteHow::default()).await.unwrap();
            client.sync(x, false).await.unwrap();
            machine.crash(Shape::Nothing);
            drop(client);
            read_without_server(&mut scene).await;
            let again = async |files: &Arc<dyn Filesystem>| {
                // It is the same use, and changes nothing on record.
                let table = files.session_table().unwrap();
                let before = table.sessions().await.unwrap();
                assert_eq!(use_without_server(table).await.unwrap().away, 1);
                assert_eq!(table.sessions().await.unwrap(), before);
            };
            scene.without_server(Shape::Nothing, again).await;
            scene.start(Shape::Nothing).await;
            if writes {
                scene.shift_wall_clock(-86_400_000_000_000);
                let visitor = scene.client("other").await;
                let directory = visitor.client.find(Ino::ROOT, b"d").await.unwrap().ino;
                visitor.client.reference(directory);
                let theirs = visitor.client.find(directory, b"x").await.unwrap().ino;
                visitor.client.reference(theirs);
                put(&visitor.client, theirs, "their").await.unwrap();
                visitor.client.sync(theirs, false).await.unwrap();
            }
            let again = machine.mount(&scene, true).await.unwrap();
            let sets = lists(&again).await;
            let [set] = &sets[..] else { panic!("{sets:?}") };
            let expected = match writes {
                true => copy("/d/x", ConflictKind::Ranges, "\0\0\0X"),
                false => copy("/d/x", ConflictKind::Complete, "x\0\0X"),
            };
            assert_eq!(copies(&again, set).await, [expected]);
        });
    }
}
