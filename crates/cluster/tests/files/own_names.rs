//! Names that are one client's alone: it removes and renames them by itself.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::Client;
use thalweg_fs::{
    Attributes, Caller, Cookie, Filesystem, FsError, Handle, Ino, Lookup, Node, Rename, WriteAt,
    WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::journal::Journaled;
use crate::scene::*;

async fn open(client: &Client, ino: Ino) -> Handle {
    client.open(&Caller::default(), ino, WRITING).await.unwrap().handle
}

/// A directory of this client alone: two names were made there by calls.
pub(crate) async fn alone(client: &Client, name: &str) -> Ino {
    let directory = make(client, Ino::ROOT, name, Node::Directory).await;
    client.reference(directory);
    for name in ["one", "two"] {
        make(client, directory, name, Node::File).await;
    }
    directory
}

async fn names(fs: &dyn Filesystem, directory: Ino) -> Vec<String> {
    let entries = fs.read_directory(directory, Cookie::START, 1000, false).await.unwrap();
    let names = entries.into_iter().map(|it| String::from_utf8(it.name.to_vec()).unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

async fn attributes(fs: &dyn Filesystem, ino: Ino) -> Attributes {
    fs.attributes(ino).await.unwrap().attributes
}

async fn is_absent(fs: &dyn Filesystem, directory: Ino, name: &str) -> bool {
    matches!(fs.lookup(directory, name.as_bytes()).await.unwrap(), Lookup::Absent(_))
}

async fn rename(
    client: &Client,
    (from, name): (Ino, &str),
    (to, other): (Ino, &str),
    how: Rename,
) -> Result<(), FsError> {
    client.rename((from, name.as_bytes()), (to, other.as_bytes()), how).await
}

#[test]
fn names_are_removed_and_renamed_without_a_call() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let top = alone(a, "d").await;
        let before = calls(a);
        let (left, right) = (
            make(a, top, "left", Node::Directory).await,
            make(a, top, "right", Node::Directory).await,
        );
        let mut files = Vec::new();
        for name in ["f", "g", "h", "i"] {
            files.push(make(a, left, name, Node::File).await);
            put(a, files[files.len() - 1], name).await.unwrap();
        }
        a.unlink(left, b"f").await.unwrap();
        assert!(is_absent(a, left, "f").await);
        let gone = a.unlink(left, b"f").await;
        assert!(matches!(gone, Err(FsError::NotFound)), "{gone:?}");
        // It is made again, and so is a directory.
        let again = make(a, left, "f", Node::File).await;
        assert_ne!(again, files[0]);
        let empty = make(a, top, "empty", Node::Directory).await;
        make(a, empty, "x", Node::File).await;
        a.unlink(empty, b"x").await.unwrap();
        a.remove_directory(top, b"empty").await.unwrap();
        let empty = make(a, top, "empty", Node::Directory).await;
        make(a, empty, "y", Node::File).await;
        // A directory keeps its place; another one takes that of an empty one.
        rename(a, (top, "left"), (top, "moved"), Rename::NoReplace).await.unwrap();
        let target = make(a, top, "target", Node::Directory).await;
        rename(a, (top, "right"), (top, "target"), Rename::Replace).await.unwrap();
        assert_eq!(a.find(top, b"target").await.unwrap().ino, right);
        assert_ne!(target, right);
        // Files also go to other directories.
        rename(a, (left, "g"), (left, "h"), Rename::Replace).await.unwrap();
        rename(a, (left, "h"), (right, "g"), Rename::Replace).await.unwrap();
        rename(a, (left, "f"), (right, "g"), Rename::Exchange).await.unwrap();
        rename(a, (left, "i"), (right, "g"), Rename::Replace).await.unwrap();
        rename(a, (right, "g"), (right, "g"), Rename::Replace).await.unwrap();
        assert_eq!(calls(a), before);
        let mut known = Vec::new();
        for ino in [top, left, right, empty, files[1], files[3]] {
            known.push(attributes(a, ino).await);
        }
        a.sync_all().await.unwrap();
        assert_eq!(a.status().lost, 0);
        b.find(Ino::ROOT, b"d").await.unwrap();
        assert_eq!(names(b, top).await, ["empty", "moved", "one", "target", "two"]);
        assert_eq!(b.find(top, b"moved").await.unwrap().ino, left);
        assert_eq!(b.find(top, b"target").await.unwrap().ino, right);
        assert_eq!(b.find(top, b"empty").await.unwrap().ino, empty);
        assert_eq!(names(b, left).await, ["f"]);
        assert_eq!(names(b, right).await, ["g"]);
        assert_eq!(b.find(left, b"f").await.unwrap().ino, files[1]);
        assert_eq!(b.find(right, b"g").await.unwrap().ino, files[3]);
        for known in known {
            assert_eq!(attributes(b, known.ino).await, known);
        }
        // The client tells the server soon that it does not use these any more.
        env.sleep(4 * LEASE).await;
        for ino in [files[0], files[2], again, target] {
            assert!(matches!(scene.files.attributes(ino).await, Err(FsError::Stale)), "{ino}");
        }
    });
}

/// A recall of one of its directories takes a file with two names back.
#[test]
fn a_file_gets_further_names_without_a_call() {
    run(8, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (top, other) = (alone(a, "d").await, alone(a, "other").await);
        let before = calls(a);
        let below = make(a, top, "below", Node::Directory).await;
        let file = make(a, top, "file", Node::File).await;
        a.reference(file);
        put(a, file, "text").await.unwrap();
        for (parent, name, links) in [(below, "one", 2), (top, "link", 3)] {
            let linked = a.link(file, parent, name.as_bytes()).await.unwrap().attributes;
            assert_eq!((linked.ino, linked.links), (file, links));
        }
        rename(a, (top, "file"), (top, "link"), Rename::Replace).await.unwrap();
        a.unlink(top, b"file").await.unwrap();
        rename(a, (top, "link"), (below, "two"), Rename::Replace).await.unwrap();
        assert_eq!((calls(a), attributes(a, file).await.links), (before, 2));
        let known = attributes(a, file).await;
        // Of another directory it is not this client's alone, whether it gets a name there or goes there.
        rename(a, (below, "two"), (other, "two"), Rename::Replace).await.unwrap();
        assert_eq!(a.status().unsent, 0);
        let refused = a.link(file, other, b"two").await;
        assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
        b.find(Ino::ROOT, b"other").await.unwrap();
        let found = b.find(other, b"two").await.unwrap().attributes;
        assert_eq!((found.ino, found.links, found.size), (file, 2, known.size));
        b.reference(file);
        put(b, file, "both").await.unwrap();
        assert_eq!(text(a, file).await, "both");
        put(a, file, "mine").await.unwrap();
        assert_eq!(text(b, file).await, "mine");
        b.find(Ino::ROOT, b"d").await.unwrap();
        assert_eq!(b.find(top, b"below").await.unwrap().ino, below);
        assert_eq!(b.find(below, b"one").await.unwrap().ino, file);
        assert_eq!(names(b, top).await, ["below", "one", "two"]);
        assert_eq!(a.status().lost, 0);
    });
}

#[test]
fn the_server_says_why_a_name_of_a_client_alone_stays() {
    run(2, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let a = &machine.client;
        let top = alone(a, "d").await;
        let below = make(a, top, "below", Node::Directory).await;
        make(a, below, "file", Node::File).await;
        make(a, top, "other", Node::File).await;
        let refused = a.remove_directory(top, b"below").await;
        assert!(matches!(refused, Err(FsError::NotEmpty)), "{refused:?}");
        let refused = a.remove_directory(top, b"other").await;
        assert!(matches!(refused, Err(FsError::NotDirectory)), "{refused:?}");
        let refused = a.unlink(top, b"below").await;
        assert!(matches!(refused, Err(FsError::IsDirectory)), "{refused:?}");
        for (from, to, how) in [
            ("other", "below", Rename::Replace),
            ("below", "other", Rename::Replace),
            ("other", "below", Rename::NoReplace),
            ("other", "absent", Rename::Exchange),
            ("absent", "other", Rename::Replace),
        ] {
            let refused = rename(a, (top, from), (top, to), how).await;
            assert!(refused.is_err(), "{from} {to}: {refused:?}");
        }
        for name in ["inside", "file"] {
            let refused = rename(a, (top, "below"), (below, name), Rename::Replace).await;
            assert!(
                matches!(refused, Err(FsError::Invalid(_) | FsError::NotDirectory)),
                "{refused:?}"
            );
        }
        for name in [&b"."[..], b"..", b""] {
            assert!(a.unlink(top, name).await.is_err());
            assert!(a.remove_directory(top, name).await.is_err());
            assert!(a.rename((top, b"other"), (top, name), Rename::Replace).await.is_err());
        }
        assert_eq!(names(a, top).await, ["below", "one", "other", "two"]);
        // It has changed nothing by itself that the server refuses.
        assert_eq!((a.status().lost, scene.service.status().refused_changes), (0, 0));
    });
}

/// Files that were removed, or replaced, while they are open: `restart` is what comes between. With `asks` the server stops when it has
/// got that, and has not answered.
async fn use_removed(
    env: &thalweg_env::Env,
    scene: &mut Scene,
    restart: Option<Shape>,
    asks: Option<Duration>,
) {
    let machines = (scene.client("a").await, scene.client("b").await);
    let (a, b) = (&machines.0.client, &machines.1.client);
    let top = alone(a, "d").await;
    let mut opened = Vec::new();
    for name in ["old", "removed", "replaced"] {
        let file = make(a, top, name, Node::File).await;
        a.reference(file);
        put(a, file, "text").await.unwrap();
        opened.push((file, open(a, file).await));
        // The server knows one of them for long, and others not at all.
        if name == "old" {
            a.sync_all().await.unwrap();
        }
    }
    make(a, top, "new", Node::File).await;
    a.unlink(top, b"removed").await.unwrap();
    rename(a, (top, "new"), (top, "replaced"), Rename::Replace).await.unwrap();
    a.unlink(top, b"old").await.unwrap();
    for (file, handle) in &opened {
        a.lock(*file, &whole(*handle, 5), false).await.unwrap();
        assert_eq!(attributes(a, *file).await.links, 0);
        let more = vec![Bytes::from_static(b" more")];
        a.write(*file, WriteAt::End, more, WriteHow::default()).await.unwrap();
    }
    if let Some(asks) = asks {
        let client = a.clone();
        env.spawn(async move { client.sync_all().await }).detach();
        env.sleep(asks).await;
    }
    if let Some(left) = restart {
        scene.crash(left).await;
    }
    b.find(Ino::ROOT, b"d").await.unwrap();
    b.reference(top);
    assert_eq!(names(b, top).await, ["one", "replaced", "two"]);
    for (file, handle) in opened {
        let more = vec![Bytes::from_static(b" and more")];
        a.write(file, WriteAt::End, more, WriteHow::default()).await.unwrap();
        a.sync(file, false).await.unwrap();
        assert_eq!(text(a, file).await, "text more and more");
        assert_eq!(attributes(a, file).await.links, 0);
        a.flush(file, handle, thalweg_fs::LockOwner::local(5)).await.unwrap();
        a.release(file, handle).await;
        a.unreference(file, 1);
        // The client tells the server soon, and then it is gone.
        env.sleep(4 * LEASE).await;
        assert!(matches!(scene.files.attributes(file).await, Err(FsError::Stale)));
    }
    assert_eq!(a.status().lost, 0);
}

#[test]
fn files_are_used_after_they_were_removed() {
    for restart in [None, Some(Shape::Nothing), Some(Shape::Everything)] {
        run(3, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            use_removed(&env, &mut scene, restart, None).await;
        });
    }
    for micros in 0..25 {
        run(3, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let asks = Some(Duration::from_micros(10 * micros));
            use_removed(&env, &mut scene, Some(Shape::Everything), asks).await;
        });
    }
}

/// What another client has seen of removals and renames is durable, also when the client that made them is gone.
#[test]
fn what_others_have_seen_of_names_survives() {
    for looks in 0..3 {
        run(6, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let machines = (scene.client("a").await, scene.client("b").await);
            let (a, b) = (&machines.0.client, &machines.1.client);
            let top = alone(a, "d").await;
            b.find(Ino::ROOT, b"d").await.unwrap();
            b.reference(top);
            // The other one has left it alone for so long.
            env.sleep(2 * LEASE).await;
            for name in ["x", "y", "removed", "renamed"] {
                make(a, top, name, Node::File).await;
            }
            a.sync_all().await.unwrap();
            a.unlink(top, b"removed").await.unwrap();
            rename(a, (top, "renamed"), (top, "new"), Rename::Replace).await.unwrap();
            assert_eq!(a.status().unsent, 2);
            let name = ["removed", "renamed", "new"][looks];
            assert_eq!(is_absent(b, top, name).await, looks < 2);
            machines.0.process.kill();
            scene.crash(Shape::Nothing).await;
            // The one that has looked may use what it was told.
            let other = scene.client("c").await;
            other.client.find(Ino::ROOT, b"d").await.unwrap();
            assert_eq!(is_absent(&other.client, top, name).await, looks < 2);
        });
    }
}

/// A listing that the server has made before a name is gone does not bring it back.
#[test]
fn a_listing_brings_no_name_back() {
    for micros in 0..30 {
        run(7, move |env| async move {
            let scene = Scene::durable(&env).await;
            let machine = scene.client("a").await;
            let a = &machine.client;
            let top = alone(a, "d").await;
            make(a, top, "x", Node::File).await;
            let client = a.clone();
            let listing = env.spawn(async move { names(&client, top).await });
            env.sleep(Duration::from_micros(10 * micros)).await;
            a.unlink(top, b"x").await.unwrap();
            rename(a, (top, "two"), (top, "three"), Rename::Replace).await.unwrap();
            listing.await.unwrap();
            assert!(is_absent(a, top, "x").await && is_absent(a, top, "two").await);
            make(a, top, "x", Node::File).await;
            assert_eq!(names(a, top).await, ["one", "three", "x"]);
            assert_eq!(a.status().lost, 0);
        });
    }
}

#[test]
fn a_file_that_has_moved_is_shared_with_its_new_directory() {
    run(4, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (from, to) = (alone(a, "from").await, alone(a, "to").await);
        let file = make(a, from, "file", Node::File).await;
        a.reference(file);
        let before = calls(a);
        rename(a, (from, "file"), (to, "file"), Rename::Replace).await.unwrap();
        put(a, file, "mine").await.unwrap();
        assert_eq!(calls(a), before);
        // The directory that it has left is not this client's any more; the file is.
        b.find(Ino::ROOT, b"from").await.unwrap();
        assert!(is_absent(b, from, "file").await);
        let before = calls(a);
        put(a, file, "still").await.unwrap();
        assert_eq!(calls(a), before);
        b.find(Ino::ROOT, b"to").await.unwrap();
        assert_eq!(b.find(to, b"file").await.unwrap().ino, file);
        b.reference(file);
        assert_eq!(text(b, file).await, "still");
        put(b, file, "yours").await.unwrap();
        assert_eq!(text(a, file).await, "yours");
        put(a, file, "again").await.unwrap();
        assert_eq!(a.status().unsent, 0, "both use it, by calls");
        assert_eq!(text(b, file).await, "again");
    });
}

/// Another client sees names that have changed at the moment at which it looks.
#[test]
fn renames_at_the_moment_of_a_recall_are_not_lost() {
    for seed in 0..40 {
        run(seed, |env| async move {
            let scene = Scene::either(&env, options(), seed % 2 == 1).await;
            let machines = (scene.client("a").await, scene.client("b").await);
            let (a, b) = (&machines.0.client, &machines.1.client);
            let top = alone(a, "d").await;
            make(a, top, "n0", Node::File).await;
            let b = b.clone();
            let looking = env.spawn(async move {
                let found = b.find(Ino::ROOT, b"d").await.unwrap().ino;
                b.reference(found);
                let names = names(&b, found).await;
                (b, names)
            });
            for number in 0..30 {
                env.sleep(Duration::from_micros(17 * (seed % 7) + 5)).await;
                let (old, new) = (format!("n{number}"), format!("n{}", number + 1));
                let file = make(a, top, "temporary", Node::File).await;
                put(a, file, &new).await.unwrap();
                rename(a, (top, "temporary"), (top, &new), Rename::Replace).await.unwrap();
                a.unlink(top, old.as_bytes()).await.unwrap();
            }
            let (b, seen) = looking.await.unwrap();
            // A new name is there before the old one is gone.
            let known = seen.iter().filter(|name| name.starts_with('n')).count();
            assert!((1..3).contains(&known), "seed {seed}: {seen:?}");
            assert_eq!(names(&b, top).await, ["n30", "one", "two"], "seed {seed}");
            let last = b.find(top, b"n30").await.unwrap().ino;
            assert_eq!(text(&b, last).await, "n30", "seed {seed}");
            assert_eq!(a.status().lost, 0);
        });
    }
}

/// A journal has writes to a file that is removed: when its client has rebooted, no program has it open, and it may be gone.
#[test]
fn a_journal_with_changes_of_a_removed_file_is_written_back() {
    for (is_sent, restarts) in [(false, false), (false, true), (true, false), (true, true)] {
        run(5, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let client = machine.mount(&scene, true).await.unwrap();
            let top = alone(&client, "d").await;
            let file = make(&client, top, "file", Node::File).await;
            client.reference(file);
            put(&client, file, "text").await.unwrap();
            open(&client, file).await;
            client.unlink(top, b"file").await.unwrap();
            if is_sent {
                client.wait_for(top, thalweg_fs::Level::Server, LEASE).await.unwrap();
            }
            put(&client, file, "more").await.unwrap();
            let kept = make(&client, top, "kept", Node::File).await;
            client.sync(kept, false).await.unwrap();
            assert!(client.status().unsent > 0);
            machine.crash(Shape::Nothing);
            drop(client);
            if restarts {
                scene.crash(Shape::Nothing).await;
            }
            let again = machine.mount(&scene, true).await.unwrap();
            again.find(Ino::ROOT, b"d").await.unwrap();
            assert_eq!(names(&again, top).await, ["kept", "one", "two"]);
            again.close().await;
            env.sleep(4 * LEASE).await;
            assert!(matches!(scene.files.attributes(file).await, Err(FsError::Stale)));
        });
    }
}
