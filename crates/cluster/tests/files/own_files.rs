//! Files that are one client's alone: it opens, locks and closes them by itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_cluster::client::{self, Client};
use thalweg_fs::{
    AttributeChange, Attributes, Caller, Change, Filesystem, FsError, Handle, Ino, Invalidation,
    Lock, LockKind, LockMode, LockOwner, LockRange, Node, OpenFlags, PageCache, Rename, TimeChange,
    Timestamp, WriteAt, WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::scene::*;

pub(crate) async fn open(client: &Client, ino: Ino) -> Handle {
    client.open(&Caller::default(), ino, WRITING).await.unwrap().handle
}

fn flock(handle: Handle, mode: LockMode) -> Lock {
    let owner = LockOwner::local(1000 + handle.0);
    Lock { kind: LockKind::Bsd, owner, handle, pid: 1, mode, range: LockRange::ALL }
}

/// A directory of this client alone, with a file that was made without a call.
pub(crate) async fn alone(client: &Client) -> (Ino, Ino) {
    let directory = make(client, Ino::ROOT, "d", Node::Directory).await;
    client.reference(directory);
    for name in ["one", "two"] {
        make(client, directory, name, Node::File).await;
    }
    let file = make(client, directory, "f", Node::File).await;
    client.reference(file);
    (directory, file)
}

#[test]
fn a_file_is_made_opened_locked_written_and_closed_without_a_call() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let a = &machine.client;
        let (directory, _) = alone(a).await;
        let before = calls(a);
        for number in 0..100 {
            let file = make(a, directory, &format!("n{number}"), Node::File).await;
            let handle = open(a, file).await;
            a.lock(file, &whole(handle, 5), false).await.unwrap();
            a.lock(file, &flock(handle, LockMode::Shared), false).await.unwrap();
            assert_eq!(a.conflicting_lock(file, &whole(handle, 6)).await.unwrap().unwrap().pid, 1);
            put(a, file, "bytes").await.unwrap();
            a.unlock(file, LockKind::Posix, LockOwner::local(5), LockRange::ALL).await.unwrap();
            a.flush(file, handle, LockOwner::local(5)).await.unwrap();
            a.release(file, handle).await;
        }
        assert_eq!(calls(a), before);
        let last = make(a, directory, "last", Node::File).await;
        a.sync(last, false).await.unwrap();
        assert_eq!(calls(a), before + 1, "one batch, which is durable when it is answered");
        assert_eq!((a.status().unsent, a.status().kept), (0, 0));
    });
}

#[test]
fn locks_exclude_programs_of_one_client() {
    run(2, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let a = &machine.client;
        let (_, file) = alone(a).await;
        let (one, two) = (open(a, file).await, open(a, file).await);
        a.lock(file, &flock(one, LockMode::Exclusive), false).await.unwrap();
        let refused = a.lock(file, &flock(two, LockMode::Shared), false).await;
        assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
        // A wait for a lock is the server's, which gets to know the lock that is held.
        let (waiting, lock) = (a.clone(), flock(two, LockMode::Exclusive));
        let wait = env.spawn(async move { waiting.lock(file, &lock, true).await });
        env.sleep(LEASE).await;
        assert_eq!(scene.service.status().clients[0].open, 2);
        a.release(file, one).await;
        wait.await.unwrap().unwrap();
        a.release(file, two).await;
        assert_eq!(scene.service.status().clients[0].open, 0);
        // Nothing of it is at the server any more.
        let before = calls(a);
        let handle = open(a, file).await;
        a.lock(file, &flock(handle, LockMode::Exclusive), false).await.unwrap();
        assert_eq!(calls(a), before);
    });
}

#[test]
fn others_meet_files_that_are_open_and_locked() {
    run(3, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (_, file) = alone(a).await;
        let handle = open(a, file).await;
        a.lock(file, &whole(handle, 5), false).await.unwrap();
        put(a, file, "mine").await.unwrap();
        let directory = b.find(Ino::ROOT, b"d").await.unwrap().ino;
        assert_eq!(b.find(directory, b"f").await.unwrap().ino, file);
        b.reference(file);
        let opened = b.open(&Caller::default(), file, WRITING).await.unwrap();
        assert_eq!(opened.pages, PageCache::Bypass, "the other one writes through its pages");
        let refused = b.lock(file, &whole(opened.handle, 5), false).await;
        assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
        let (waiting, lock) = (b.clone(), whole(opened.handle, 5));
        let wait = env.spawn(async move { waiting.lock(file, &lock, true).await });
        env.sleep(Duration::from_millis(10)).await;
        // A descriptor of the owner of the lock is closed.
        a.flush(file, handle, LockOwner::local(5)).await.unwrap();
        wait.await.unwrap().unwrap();
        // What one writes invalidates what the other one caches.
        let counts = scene.service.status().invalidations.sent;
        put(b, file, "ours").await.unwrap();
        assert!(scene.service.status().invalidations.sent > counts);
        assert_eq!(text(a, file).await, "ours");
        a.release(file, handle).await;
        b.release(file, opened.handle).await;
        let status = scene.service.status();
        assert!(status.clients.iter().all(|client| client.open == 0));
    });
}

#[test]
fn a_file_that_was_cached_alone_is_read_anew() {
    run(4, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (directory, file) = alone(a).await;
        let opened = a.open(&Caller::default(), file, WRITING).await.unwrap();
        assert_eq!(opened.pages, PageCache::Keep);
        let appending = OpenFlags { append: true, ..WRITING };
        let second = a.open(&Caller::default(), file, appending).await.unwrap();
        assert_eq!(second.pages, PageCache::Bypass);
        a.release(file, second.handle).await;
        put(a, file, "mine").await.unwrap();
        a.release(file, opened.handle).await;
        // The server does not know that pages of the closed file are cached.
        b.find(Ino::ROOT, b"d").await.unwrap();
        b.find(directory, b"f").await.unwrap();
        put(b, file, "ours").await.unwrap();
        for (flags, pages) in [
            (appending, PageCache::Bypass),
            (WRITING, PageCache::Renew),
            (WRITING, PageCache::Keep),
            (appending, PageCache::Bypass),
        ] {
            let opened = a.open(&Caller::default(), file, flags).await.unwrap();
            assert_eq!(opened.pages, pages);
            a.release(file, opened.handle).await;
        }
    });
}

#[test]
fn a_file_that_was_made_longer_ends_with_a_hole() {
    run(4, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let (_, file) = alone(&machine.client).await;
        for size in [94_006, 77_811] {
            let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
            let set = machine.client.set_attributes(file, &change).await.unwrap();
            assert_eq!((set.size, set.stored), (size, 0));
        }
    });
}

#[test]
fn removed_files_stay_as_long_as_they_are_open() {
    run(5, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (directory, file) = alone(a).await;
        put(a, file, "kept").await.unwrap();
        let handle = open(a, file).await;
        a.unlink(directory, b"f").await.unwrap();
        let other = make(a, directory, "g", Node::File).await;
        a.reference(other);
        let second = open(a, other).await;
        put(a, other, "too").await.unwrap();
        a.rename((directory, b"one"), (directory, b"g"), Rename::Replace).await.unwrap();
        a.sync_all().await.unwrap();
        assert_eq!(b.find(Ino::ROOT, b"d").await.unwrap().ino, directory);
        for (ino, handle, kept) in [(file, handle, "kept"), (other, second, "too")] {
            assert_eq!(text(a, ino).await, kept);
            a.release(ino, handle).await;
        }
    });
}

#[test]
fn what_moves_to_a_directory_of_all_is_told() {
    run(6, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (directory, file) = alone(a).await;
        let below = make(a, directory, "below", Node::Directory).await;
        let deep = make(a, below, "deep", Node::File).await;
        let linked = make(a, directory, "linked", Node::File).await;
        let mut opened = Vec::new();
        for ino in [file, deep, linked] {
            a.reference(ino);
            let handle = open(a, ino).await;
            a.lock(ino, &whole(handle, 5), false).await.unwrap();
            opened.push(handle);
        }
        a.rename((directory, b"below"), (Ino::ROOT, b"moved"), Rename::Replace).await.unwrap();
        a.rename((directory, b"f"), (Ino::ROOT, b"f"), Rename::Replace).await.unwrap();
        a.link(linked, Ino::ROOT, b"l").await.unwrap();
        let moved = b.find(Ino::ROOT, b"moved").await.unwrap().ino;
        b.find(moved, b"deep").await.unwrap();
        b.find(Ino::ROOT, b"f").await.unwrap();
        b.find(Ino::ROOT, b"l").await.unwrap();
        for ino in [file, deep, linked] {
            b.reference(ino);
            let handle = open(b, ino).await;
            let refused = b.lock(ino, &whole(handle, 5), false).await;
            assert!(matches!(refused, Err(FsError::Locked)), "{ino:?} {refused:?}");
        }
    });
}

#[test]
fn open_files_and_locks_outlive_a_server_that_does_not_know_them() {
    for left in [Shape::Nothing, Shape::Everything] {
        run(7, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let machines = (scene.client("a").await, scene.client("b").await);
            let (a, b) = (&machines.0.client, &machines.1.client);
            let (directory, file) = alone(a).await;
            let (quiet, told) = (open(a, file).await, open(a, file).await);
            a.lock(file, &whole(quiet, 5), false).await.unwrap();
            put(a, file, "mine").await.unwrap();
            scene.crash(left).await;
            // The wait has the server know of both.
            let (waiting, lock) = (a.clone(), whole(told, 6));
            let wait = env.spawn(async move { waiting.lock(file, &lock, true).await });
            env.sleep(4 * LEASE).await;
            scene.crash(left).await;
            env.sleep(4 * LEASE).await;
            assert_eq!(b.find(Ino::ROOT, b"d").await.unwrap().ino, directory);
            b.find(directory, b"f").await.unwrap();
            b.reference(file);
            let handle = open(b, file).await;
            let refused = b.lock(file, &whole(handle, 7), false).await;
            assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
            assert_eq!(text(b, file).await, "mine");
            a.unlock(file, LockKind::Posix, LockOwner::local(5), LockRange::ALL).await.unwrap();
            wait.await.unwrap().unwrap();
            assert_eq!(a.status().lost, 0);
        });
    }
}

#[test]
fn writes_and_opens_at_the_moment_of_a_recall_are_not_lost() {
    for seed in 0..40 {
        run(seed, |env| async move {
            let scene = Scene::either(&env, options(), seed % 2 == 1).await;
            let machines = (scene.client("a").await, scene.client("b").await);
            let (a, b) = (&machines.0.client, &machines.1.client);
            let (directory, file) = alone(a).await;
            let b = b.clone();
            let looking = env.spawn(async move {
                let found = b.find(Ino::ROOT, b"d").await.unwrap().ino;
                b.find(found, b"f").await.unwrap();
                b.reference(file);
                b
            });
            let mut locked = Vec::new();
            for number in 0..20_u64 {
                env.sleep(Duration::from_micros(20 * (seed % 7) + 5)).await;
                let handle = open(a, file).await;
                let range = LockRange { first: number, last: number };
                a.lock(file, &Lock { range, ..whole(handle, number) }, false).await.unwrap();
                let data = vec![Bytes::from_static(b"x")];
                a.write(file, WriteAt::End, data, WriteHow::default()).await.unwrap();
                locked.push(handle);
                if number % 3 == 0 {
                    a.release(file, handle).await;
                    locked.pop();
                }
            }
            let b = looking.await.unwrap();
            assert_eq!(b.attributes(file).await.unwrap().attributes.size, 20, "seed {seed}");
            let handle = open(&b, file).await;
            for number in 0..20_u64 {
                let range = LockRange { first: number, last: number };
                let asked = Lock { range, ..whole(handle, 99) };
                let found = b.conflicting_lock(file, &asked).await.unwrap();
                assert_eq!(found.is_some(), number % 3 != 0, "seed {seed}, lock {number}");
            }
            for handle in locked {
                a.release(file, handle).await;
            }
            b.lock(file, &whole(handle, 99), false).await.unwrap();
            assert_eq!(b.find(directory, b"f").await.unwrap().ino, file);
        });
    }
}

/// The answer to a batch has proofs of the inodes that it makes, and of nothing else.
#[test]
fn a_client_claims_what_it_has_made_between_other_changes() {
    run(30, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let a = &machine.client;
        let (directory, file) = alone(a).await;
        put(a, file, "before").await.unwrap();
        let later = make(a, directory, "later", Node::File).await;
        a.reference(later);
        put(a, file, "after").await.unwrap();
        make(a, directory, "last", Node::Directory).await;
        a.sync(file, false).await.unwrap();
        scene.crash(Shape::Nothing).await;
        put(a, later, "later").await.unwrap();
        a.sync(later, false).await.unwrap();
        assert_eq!(a.status().evictions, 0);
        assert_eq!(text(&*scene.files, later).await, "later");
    });
}

#[test]
fn a_file_that_is_opened_to_be_written_becomes_its_clients_own() {
    run(8, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let file = make(b, Ino::ROOT, "f", Node::File).await;
        b.reference(file);
        let theirs = b.open(&Caller::default(), file, WRITING).await.unwrap();
        put(b, file, "theirs, which is long").await.unwrap();
        b.release(file, theirs.handle).await;
        assert_eq!(a.find(Ino::ROOT, b"f").await.unwrap().ino, file);
        a.reference(file);
        // It was another one's a moment ago.
        let handle = open(a, file).await;
        let before = calls(a);
        put(a, file, "THEIRS").await.unwrap();
        assert!(calls(a) > before);
        a.release(file, handle).await;
        env.sleep(2 * LEASE).await;
        let handle = open(a, file).await;
        let before = calls(a);
        for text in ["mine", "ours", "mine"] {
            put(a, file, text).await.unwrap();
            a.sync(file, true).await.unwrap();
        }
        assert!(calls(a) - before <= 4, "attributes once, and three batches");
        let cut = |size| AttributeChange { size: Some(size), ..AttributeChange::default() };
        a.set_attributes(file, &cut(0)).await.unwrap();
        put(a, file, "mineR and more").await.unwrap();
        assert_eq!(a.set_attributes(file, &cut(5)).await.unwrap().size, 5);
        let then = Some(TimeChange::At(Timestamp { seconds: 7, nanos: 8 }));
        let times = AttributeChange { modified: then, ..AttributeChange::default() };
        a.set_attributes(file, &times).await.unwrap();
        assert!(calls(a) - before <= 4);
        // The other one sees all of it, as it is then.
        assert_eq!(text(b, file).await, "mineR");
        let found = b.attributes(file).await.unwrap().attributes;
        assert_eq!((found.size, found.modified.seconds), (5, 7));
        let own = a.attributes(file).await.unwrap().attributes;
        // When it was read is not told to others.
        assert_eq!(own, Attributes { accessed: own.accessed, ..found });
        let before = calls(a);
        put(a, file, "o").await.unwrap();
        assert!(calls(a) > before, "it is not alone any more");
        assert_eq!(text(b, file).await, "oineR");
        a.release(file, handle).await;
    });
}

#[test]
fn a_file_that_another_client_has_open_is_no_clients_own() {
    run(9, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let file = make(a, Ino::ROOT, "f", Node::File).await;
        a.reference(file);
        b.find(Ino::ROOT, b"f").await.unwrap();
        b.reference(file);
        env.sleep(2 * LEASE).await;
        let reading = OpenFlags { write: false, ..WRITING };
        let theirs = b.open(&Caller::default(), file, reading).await.unwrap().handle;
        let handle = open(a, file).await;
        put(a, file, "now").await.unwrap();
        assert_eq!(a.status().unsent, 0);
        assert_eq!(text(b, file).await, "now");
        b.release(file, theirs).await;
        a.release(file, handle).await;
        // An open that comes while it is one client's own takes it back, with a lock on it.
        env.sleep(2 * LEASE).await;
        let handle = open(a, file).await;
        a.lock(file, &whole(handle, 5), false).await.unwrap();
        put(a, file, "own").await.unwrap();
        assert_eq!(a.status().unsent, 1);
        let theirs = b.open(&Caller::default(), file, WRITING).await.unwrap();
        // Both have their answers at the same time.
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!((a.status().unsent, theirs.pages), (0, PageCache::Bypass));
        let refused = b.lock(file, &whole(theirs.handle, 5), false).await;
        assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
    });
}

#[test]
fn pages_of_closed_files_are_dropped_before_another_client_owns_the_file() {
    run(10, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let file = make(a, Ino::ROOT, "f", Node::File).await;
        a.reference(file);
        b.find(Ino::ROOT, b"f").await.unwrap();
        b.reference(file);
        let reading = OpenFlags { write: false, ..WRITING };
        let opened = b.open(&Caller::default(), file, reading).await.unwrap();
        assert_eq!(opened.pages, PageCache::Keep);
        b.release(file, opened.handle).await;
        let dropped = Arc::new(Mutex::new(Vec::new()));
        let told = dropped.clone();
        b.watch(Box::new(move |change| {
            told.lock().push(change);
            Invalidation::complete()
        }));
        env.sleep(2 * LEASE).await;
        open(a, file).await;
        put(a, file, "own").await.unwrap();
        assert_eq!(a.status().unsent, 1);
        assert!(dropped.lock().contains(&Change::content(file)), "{:?}", dropped.lock());
        assert_eq!(text(b, file).await, "own");
    });
}

#[test]
fn changes_wait_as_long_as_they_are_to_and_long_writes_are_cut() {
    run(11, |env| async move {
        let scene = Scene::durable(&env).await;
        let expire = Duration::from_secs(20);
        let options = client::Options { expire, ..patient() };
        let a = scene.client_with(visitor("a"), options).await.unwrap();
        let (a, b) = (&a.client, scene.client("b").await);
        let (directory, file) = alone(a).await;
        let before = a.status().unsent;
        let long: Vec<u8> = (0..1_500_000_u32).map(|it| (it % 251) as u8).collect();
        let data = vec![Bytes::from(long.clone())];
        let went = a.write(file, WriteAt::Offset(5), data, WriteHow::default()).await.unwrap();
        assert_eq!(went, 5);
        a.sync(file, true).await.unwrap();
        put(a, file, "later").await.unwrap();
        assert!(before > 0 && a.status().unsent == 1);
        env.sleep(expire - Duration::from_secs(1)).await;
        assert_eq!(a.status().unsent, 1);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(a.status().unsent, 0);
        assert_eq!(b.client.find(Ino::ROOT, b"d").await.unwrap().ino, directory);
        b.client.find(directory, b"f").await.unwrap();
        let read = b.client.read(file, 0, 2_000_000).await.unwrap().concat();
        assert!(read[..5] == *b"later" && read[5..] == long);
    });
}
