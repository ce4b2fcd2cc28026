//! Journals of clients with squashed users: each change counts for the user that made it, also in conflict copies.

use std::sync::Arc;

use thalweg_cluster::client::Client;
use thalweg_cluster::conflicts::{ConflictKind, ConflictSet, DIRECTORY};
use thalweg_cluster::server::Visitor;
use thalweg_fs::{
    Attributes, Caller, Cookie, Credentials, Filesystem, Ino, Kind, Level, NewNode, Node,
};
use thalweg_net::keys::{Nobody, Squash};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::access::{NOBODY, place, squashed};
use crate::journal::Journaled;
use crate::keepers::kept;
use crate::scene::*;

/// The user that has a directory.
const BOB: u32 = 9;

fn node(node: Node, mode: u16, uid: u32) -> NewNode {
    NewNode { node, mode, umask: 0, uid, gid: uid }
}

fn all_squashed(name: &str) -> Visitor {
    Visitor { squash: Squash::All(Nobody::default()), ..visitor(name) }
}

/// The server knows a client so from now on.
fn admit(visitor: Visitor) {
    VISITORS.with(|all| all.borrow_mut().insert(visitor.name.clone(), visitor));
}

fn user(client: &Client, uid: u32) -> Arc<dyn Filesystem> {
    client.for_user(&Arc::new(Credentials::new(uid, uid, &[]))).unwrap()
}

/// What a trusted client finds at a path.
async fn at(client: &Client, path: &str) -> Option<Attributes> {
    let mut at = client.attributes(Ino::ROOT).await.unwrap().attributes;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        at = client.find(at.ino, name.as_bytes()).await.ok()?.attributes;
        client.reference(at.ino);
    }
    Some(at)
}

/// Its owner, its mode and its text.
async fn shown(client: &Client, path: &str) -> (u32, u32, u16, String) {
    let it = at(client, path).await.unwrap_or_else(|| panic!("{path} is not there"));
    (it.uid, it.gid, it.mode, text(client, it.ino).await)
}

/// The sets of a user.
async fn sets_of(client: &Client, root: &str, uid: u32) -> Vec<ConflictSet> {
    let path = format!("{root}/{DIRECTORY}/{uid}");
    let Some(own) = at(client, &path).await else { return Vec::new() };
    assert_eq!((own.uid, own.mode, own.kind), (uid, 0o700, Kind::Directory));
    let entries = client.read_directory(own.ino, Cookie::START, 100, false).await.unwrap();
    let mut sets = Vec::new();
    for entry in entries.iter().filter(|it| it.name.ends_with(b".json")) {
        let path = format!("{path}/{}", str::from_utf8(&entry.name).unwrap());
        let list = at(client, &path).await.unwrap();
        assert_eq!((list.uid, list.mode), (uid, 0o600));
        let list = client.read(list.ino, 0, 1 << 20).await.unwrap().concat();
        sets.push(serde_json::from_slice(&list).unwrap());
    }
    sets
}

/// A directory of a user at the server, and a file of that user in one of root's.
async fn prepare(scene: &Scene) {
    let office = scene.client("admin").await;
    let admin = &office.client;
    for (name, uid) in [("bob", BOB), ("nobody", NOBODY)] {
        place(admin, Ino::ROOT, name, node(Node::Directory, 0o755, uid)).await;
    }
    let shared = place(admin, Ino::ROOT, "shared", node(Node::Directory, 0o755, 0)).await;
    let log = place(admin, shared, "log", NewNode { gid: 5, ..node(Node::File, 0o640, BOB) }).await;
    put(admin, log, "old").await.unwrap();
    admin.close().await;
    // So that no other client has used them lately.
    scene.env.sleep(2 * LEASE).await;
}

/// What a user has in a new directory of its own below another one, as far as the server has it: "old" in a file.
async fn settle(client: &Client, directory: &str, uid: u32) -> (Arc<dyn Filesystem>, Ino, Ino) {
    let own = user(client, uid);
    let uid = own.acting(&Credentials::new(uid, uid, &[])).unwrap().uid;
    let above = own.find(Ino::ROOT, directory.as_bytes()).await.unwrap().ino;
    own.reference(above);
    let found = place(&*own, above, "d", node(Node::Directory, 0o755, uid)).await;
    for name in ["one", "two", "file"] {
        place(&*own, found, name, node(Node::File, 0o644, uid)).await;
    }
    let file = own.find(found, b"file").await.unwrap().ino;
    own.reference(file);
    put(&*own, file, "old").await.unwrap();
    own.wait_for(file, Level::Server, LEASE).await.unwrap();
    (own, found, file)
}

/// A user of a client that was away changes a file, and makes one.
async fn change(own: &dyn Filesystem, uid: u32, directory: Ino, file: Ino) {
    put(own, file, "new").await.unwrap();
    let second = place(own, directory, "second", node(Node::File, 0o604, uid)).await;
    put(own, second, "2").await.unwrap();
    own.sync(second, false).await.unwrap();
}

/// Each user has the copies and the list of what it has made: beside the file, or in its folder where it may not write there.
#[test]
fn users_of_a_squashed_client_get_their_conflict_copies() {
    for restarts in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            prepare(&scene).await;
            let mut machine = Journaled::new(&scene, "a").await;
            admit(squashed("a"));
            let client = machine.mount(&scene, true).await.unwrap();
            let (bob, in_bob, file) = settle(&client, "bob", BOB).await;
            let (root, in_nobody, theirs) = settle(&client, "nobody", 0).await;
            let shared = bob.find(Ino::ROOT, b"shared").await.unwrap().ino;
            bob.reference(shared);
            let log = bob.find(shared, b"log").await.unwrap().ino;
            bob.reference(log);
            let caller = Caller { uid: BOB, gid: BOB, pid: 1 };
            bob.open(&caller, log, WRITING).await.unwrap();
            change(&*bob, BOB, in_bob, file).await;
            put(&*bob, log, "LOG").await.unwrap();
            bob.sync(log, false).await.unwrap();
            change(&*root, NOBODY, in_nobody, theirs).await;
            assert!(client.status().unsent > 6);
            drop((bob, root));
            machine.crash(Shape::Nothing);
            drop(client);
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            for path in ["bob/d/file", "shared/log", "nobody/d/file"] {
                assert_eq!(shown(other, path).await.3, "old");
            }
            if restarts {
                scene.crash(Shape::Nothing).await;
            }
            let again = machine.mount(&scene, true).await.unwrap();
            let [set] = &sets_of(other, "", BOB).await[..] else { panic!("no set of bob") };
            let [first, second, third] = &set.entries[..] else { panic!("{set:?}") };
            assert_eq!(set.changes, 4, "{set:?}");
            let copy = |entry: &thalweg_cluster::conflicts::ConflictEntry| {
                entry.copy.clone().unwrap_or_else(|| panic!("{entry:?}"))
            };
            let beside = format!("/bob/d/file.conflict-{}", set.name);
            assert_eq!((first.kind, copy(first)), (ConflictKind::Complete, beside));
            assert_eq!(shown(other, &copy(first)).await, (BOB, BOB, 0o644, "new".to_owned()));
            // The group 5 is not one of bob's: no other user is to read it because of that.
            let apart = format!("/{DIRECTORY}/{BOB}/{}/log", set.name);
            assert_eq!(second.path.as_deref(), Some("/shared/log"));
            assert_eq!((second.kind, copy(second)), (ConflictKind::Complete, apart));
            assert_eq!(shown(other, &copy(second)).await, (BOB, BOB, 0o600, "LOG".to_owned()));
            assert_eq!(third.kind, ConflictKind::New);
            assert_eq!(shown(other, &copy(third)).await, (BOB, BOB, 0o604, "2".to_owned()));
            // Root's are those of the user nobody.
            let [set] = &sets_of(other, "", NOBODY).await[..] else { panic!("no set of nobody") };
            for (entry, text) in set.entries.iter().zip(["new", "2"]) {
                let it = shown(other, &copy(entry)).await;
                assert_eq!((it.0, it.3.as_str()), (NOBODY, text));
            }
            find_as_bob(&again).await;
            again.close().await;
            machine.mount(&scene, true).await.unwrap();
            assert_eq!(sets_of(other, "", BOB).await.len(), 1);
        });
    }
}

/// The user finds the list and the copies through the mount.
async fn find_as_bob(again: &Client) {
    let bob = user(again, BOB);
    let folder = bob.find(Ino::ROOT, DIRECTORY.as_bytes()).await.unwrap().attributes;
    assert_eq!((folder.uid, folder.gid, folder.mode), (0, 0, 0o755));
    let own = folder.ino;
    bob.reference(own);
    let own = bob.find(own, b"9").await.unwrap().ino;
    bob.reference(own);
    let entries = bob.read_directory(own, Cookie::START, 9, false).await.unwrap();
    assert_eq!(entries.len(), 2);
}

/// The client's root is a directory that the user nobody may not even search.
#[test]
fn conflict_copies_lie_in_a_root_that_nobody_may_search() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let office = scene.client("admin").await;
        let home =
            place(&office.client, Ino::ROOT, "home", node(Node::Directory, 0o700, BOB)).await;
        place(&office.client, home, "d", node(Node::Directory, 0o700, BOB)).await;
        office.client.close().await;
        scene.env.sleep(2 * LEASE).await;
        let mut machine = Journaled::new(&scene, "a").await;
        admit(Visitor { path: "/home".to_owned(), ..squashed("a") });
        let client = machine.mount(&scene, true).await.unwrap();
        let (bob, directory, file) = settle(&client, "d", BOB).await;
        change(&*bob, BOB, directory, file).await;
        drop(bob);
        machine.crash(Shape::Nothing);
        drop(client);
        let visitor = scene.client("other").await;
        assert_eq!(shown(&visitor.client, "home/d/d/file").await.3, "old");
        machine.mount(&scene, true).await.unwrap();
        let sets = sets_of(&visitor.client, "home", BOB).await;
        assert_eq!(sets[0].entries.len(), 2, "{sets:?}");
        let copy = format!("home{}", sets[0].entries[0].copy.as_deref().unwrap());
        assert_eq!(shown(&visitor.client, &copy).await, (BOB, BOB, 0o644, "new".to_owned()));
        let folder = at(&visitor.client, &format!("home/{DIRECTORY}")).await.unwrap();
        assert_eq!((folder.uid, folder.mode), (BOB, 0o755));
    });
}

/// Copies of files with one name, whose directories are gone, are as many files.
#[test]
fn copies_without_a_place_keep_apart() {
    for is_squashed in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            prepare(&scene).await;
            let mut machine = Journaled::new(&scene, "a").await;
            if is_squashed {
                admit(squashed("a"));
            }
            let client = machine.mount(&scene, true).await.unwrap();
            let bob: Arc<dyn Filesystem> =
                if is_squashed { user(&client, BOB) } else { Arc::new(client.clone()) };
            let home = bob.find(Ino::ROOT, b"bob").await.unwrap().ino;
            bob.reference(home);
            let mut files = Vec::new();
            for name in ["x", "y"] {
                let directory = place(&*bob, home, name, node(Node::Directory, 0o755, BOB)).await;
                for name in ["one", "two"] {
                    place(&*bob, directory, name, node(Node::File, 0o644, BOB)).await;
                }
                files.push(directory);
            }
            bob.sync_all().await.unwrap();
            bob.wait_for(files[1], Level::Server, LEASE).await.unwrap();
            for (directory, text) in files.iter().zip(["of x", "of y"]) {
                let file = place(&*bob, *directory, "file", node(Node::File, 0o644, BOB)).await;
                put(&*bob, file, text).await.unwrap();
                bob.sync(file, false).await.unwrap();
            }
            drop(bob);
            machine.crash(Shape::Nothing);
            drop(client);
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            let home = at(other, "bob").await.unwrap().ino;
            for name in ["x", "y"] {
                let directory = at(other, &format!("bob/{name}")).await.unwrap().ino;
                for name in ["one", "two"] {
                    other.unlink(directory, name.as_bytes()).await.unwrap();
                }
                other.remove_directory(home, name.as_bytes()).await.unwrap();
            }
            machine.mount(&scene, true).await.unwrap();
            let sets = match is_squashed {
                true => sets_of(other, "", BOB).await,
                false => crate::absence::lists(other).await,
            };
            let mut texts = Vec::new();
            for entry in &sets[0].entries {
                texts.push(shown(other, entry.copy.as_deref().unwrap()).await.3);
            }
            assert_eq!(texts, ["of x", "of y"], "{sets:?}");
        });
    }
}

/// After a reboot, and when a keeper takes over, each change counts for the user that has made it.
#[test]
fn changes_count_for_the_users_that_have_made_them() {
    for (is_all, is_lost) in [(false, false), (false, true), (true, false), (true, true)] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            prepare(&scene).await;
            let (mut machine, keepers) = kept(&scene, &[true]).await;
            admit(if is_all { all_squashed("a") } else { squashed("a") });
            let client = machine.mount(&scene, true).await.unwrap();
            let users: &[(&str, u32, u32)] = match is_all {
                true => &[("nobody", 77, NOBODY)],
                false => &[("bob", BOB, BOB), ("nobody", 0, NOBODY)],
            };
            let mut begun = Vec::new();
            for (directory, uid, seen_as) in users {
                let (own, directory, file) = settle(&client, directory, *uid).await;
                begun.push((own, *seen_as, directory, file));
            }
            for (own, uid, directory, file) in &begun {
                change(&**own, *uid, *directory, *file).await;
            }
            assert!(client.status().unsent as usize >= 3 * users.len());
            drop(begun);
            if is_lost {
                machine.lose().await;
                drop(client);
                let taken = keepers[0].take_over(&scene, "a").await;
                assert!(taken[0].written > 0 && taken[0].set_aside == 0, "{taken:?}");
            } else {
                machine.crash(Shape::Nothing);
                drop(client);
                machine.mount(&scene, true).await.unwrap();
            }
            let visitor = scene.client("other").await;
            for (directory, _, uid) in users {
                for (name, mode, text) in [("file", 0o644, "new"), ("second", 0o604, "2")] {
                    let path = format!("{directory}/d/{name}");
                    let found = shown(&visitor.client, &path).await;
                    assert_eq!(found, (*uid, *uid, mode, text.to_owned()), "{path}");
                }
            }
            assert_eq!(at(&visitor.client, DIRECTORY).await, None);
        });
    }
}

/// A keeper takes over files, too, that another client has used meanwhile.
#[test]
fn a_take_over_makes_the_conflict_copies_of_users() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        prepare(&scene).await;
        let (mut machine, keepers) = kept(&scene, &[true]).await;
        admit(squashed("a"));
        let client = machine.mount(&scene, true).await.unwrap();
        let (bob, directory, file) = settle(&client, "bob", BOB).await;
        change(&*bob, BOB, directory, file).await;
        drop(bob);
        machine.lose().await;
        drop(client);
        let visitor = scene.client("other").await;
        assert_eq!(shown(&visitor.client, "bob/d/file").await.3, "old");
        let taken = keepers[0].take_over(&scene, "a").await;
        assert!(taken[0].set_aside > 0, "{taken:?}");
        let sets = sets_of(&visitor.client, "", BOB).await;
        let copy = sets[0].entries[0].copy.as_deref().unwrap();
        assert_eq!(shown(&visitor.client, copy).await, (BOB, BOB, 0o644, "new".to_owned()));
    });
}
