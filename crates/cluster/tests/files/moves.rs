//! What is moved out of the directory that a client sees is out of its reach.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client;
use thalweg_cluster::failure::WireError;
use thalweg_cluster::protocol::{Answer, Reply, Request};
use thalweg_fs::{
    AttributeChange, Caller, Cookie, Filesystem, FsError, Handle, Ino, Node, Rename, SetXattr,
};
use thalweg_net::keys::Access;
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::peer::{Peer, call};
use crate::scene::*;

fn is_stale<T>(result: Result<T, FsError>) -> bool {
    matches!(result, Err(FsError::Stale))
}

async fn open(fs: &dyn Filesystem, ino: Ino) -> Handle {
    fs.open(&Caller::default(), ino, WRITING).await.unwrap().handle
}

/// An administrator, and a client of `/pub`; `/pub`, and `/secret`.
async fn two(scene: &Scene) -> (Machine, Machine, [Ino; 2]) {
    let admin = scene.client("admin").await;
    let public = make(&admin.client, Ino::ROOT, "pub", Node::Directory).await;
    let secret = make(&admin.client, Ino::ROOT, "secret", Node::Directory).await;
    let visit = Visit { path: "/pub", access: Access::Write };
    let options = client::Options { exclusive: None, ..patient() };
    let client = scene.client_with(visit.of("lim"), options).await.unwrap();
    (admin, client, [public, secret])
}

/// No call by one of these inodes comes to anything.
async fn nothing_is_reached(fs: &dyn Filesystem, directory: Ino, file: (Ino, Handle)) {
    let (file, handle) = file;
    assert!(is_stale(fs.lookup(directory, b"new").await));
    assert!(is_stale(fs.lookup(directory, b"..").await));
    assert!(is_stale(fs.parent(directory).await));
    assert!(is_stale(fs.read_directory(directory, Cookie::START, 10, true).await));
    assert!(is_stale(fs.create(directory, b"intruder", &new(Node::File)).await));
    assert!(is_stale(fs.unlink(directory, b"f").await));
    assert!(is_stale(fs.rename((directory, b"f"), (Ino::ROOT, b"f"), Rename::Replace).await));
    assert!(is_stale(fs.link(file, Ino::ROOT, b"linked").await));
    for ino in [directory, file] {
        assert!(is_stale(fs.attributes(ino).await));
        let change = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
        assert!(is_stale(fs.set_attributes(ino, &change).await));
        assert!(is_stale(fs.xattrs(ino).await));
        let value = Bytes::from_static(b"v");
        assert!(is_stale(fs.set_xattr(ino, b"user.x", value, SetXattr::Any).await));
    }
    assert!(is_stale(fs.read(file, 0, 10).await));
    assert!(is_stale(put(fs, file, "intruder").await));
    assert!(is_stale(fs.open(&Caller::default(), file, WRITING).await));
    assert!(is_stale(fs.lock(file, &whole(handle, 7), false).await));
    assert!(is_stale(fs.lock(file, &whole(handle, 7), true).await));
}

#[test]
fn nothing_of_a_directory_is_reached_that_was_moved_away() {
    for restarts in [false, true] {
        run(1, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let (admin, lim, [public, secret]) = two(&scene).await;
            let (fs, client) = (&admin.client, &lim.client);
            let [above, kept] = [
                make(client, Ino::ROOT, "above", Node::Directory).await,
                make(client, Ino::ROOT, "kept", Node::Directory).await,
            ];
            let moved = make(client, above, "m", Node::Directory).await;
            let file = make(client, moved, "f", Node::File).await;
            let stays = make(client, kept, "stays", Node::File).await;
            // One with names on both sides.
            client.link(stays, moved, b"also").await.unwrap();
            for ino in [file, stays] {
                put(client, ino, "old").await.unwrap();
            }
            let (handle, other) = (open(client, file).await, open(client, stays).await);
            client.lock(file, &whole(handle, 7), false).await.unwrap();
            client.lock(stays, &whole(other, 7), false).await.unwrap();
            // It caches all of it.
            client.read_directory(moved, Cookie::START, 10, true).await.unwrap();
            assert_eq!(text(client, file).await, "old");
            for (parent, name) in [(public, &b"above"[..]), (above, b"m"), (moved, b"f")] {
                fs.find(parent, name).await.unwrap();
            }
            fs.rename((public, b"above"), (secret, b"gone"), Rename::Replace).await.unwrap();
            make(fs, moved, "new", Node::File).await;
            put(fs, file, "later secret").await.unwrap();
            nothing_is_reached(client, moved, (file, handle)).await;
            // Its lock is gone, too.
            let admins = open(fs, file).await;
            fs.lock(file, &whole(admins, 1), false).await.unwrap();
            if restarts {
                scene.crash(Shape::Everything).await;
                nothing_is_reached(client, moved, (file, handle)).await;
                assert_eq!(client.status().evictions, 0);
            }
            nothing_is_reached(client, above, (file, handle)).await;
            // What stays, stays open, and locked.
            put(client, stays, "new").await.unwrap();
            assert_eq!(text(client, stays).await, "new");
            fs.find(public, b"kept").await.unwrap();
            fs.find(kept, b"stays").await.unwrap();
            let refused = fs.open(&Caller::default(), stays, WRITING).await.unwrap();
            assert!(fs.lock(stays, &whole(refused.handle, 1), false).await.is_err());
            make(client, kept, "made", Node::File).await;
            assert!(matches!(client.find(Ino::ROOT, b"above").await, Err(FsError::NotFound)));
        });
    }
}

#[test]
fn what_is_moved_back_can_be_looked_up_again() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (admin, lim, [public, secret]) = two(&scene).await;
        let (fs, client) = (&admin.client, &lim.client);
        let moved = make(client, Ino::ROOT, "m", Node::Directory).await;
        let file = make(client, moved, "f", Node::File).await;
        let handle = open(client, file).await;
        fs.find(public, b"m").await.unwrap();
        fs.find(moved, b"f").await.unwrap();
        for (number, restarts) in [false, true, false].into_iter().enumerate() {
            fs.rename((public, b"m"), (secret, b"gone"), Rename::Replace).await.unwrap();
            nothing_is_reached(client, moved, (file, handle)).await;
            put(fs, file, "later").await.unwrap();
            fs.rename((secret, b"gone"), (public, b"m"), Rename::Replace).await.unwrap();
            assert!(is_stale(client.attributes(file).await), "it was not looked up");
            for name in [[number as u8, 0], [number as u8, 1]] {
                assert_eq!(client.find(Ino::ROOT, b"m").await.unwrap().ino, moved);
                assert_eq!(client.find(moved, b"f").await.unwrap().ino, file);
                assert_eq!(text(client, file).await, "later");
                client.create(moved, &name.map(|it| it + b'a'), &new(Node::File)).await.unwrap();
                let handle = open(client, file).await;
                if restarts {
                    scene.crash(Shape::Everything).await;
                    assert_eq!(text(client, file).await, "later");
                }
                client.release(file, handle).await;
            }
        }
        assert_eq!(client.status().evictions, 0);
    });
}

#[test]
fn a_file_that_is_moved_away_is_out_of_reach() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (admin, lim, [public, secret]) = two(&scene).await;
        let (fs, client) = (&admin.client, &lim.client);
        let file = make(client, Ino::ROOT, "f", Node::File).await;
        let stays = make(client, Ino::ROOT, "g", Node::File).await;
        let outside = make(fs, secret, "o", Node::File).await;
        open(client, file).await;
        fs.find(public, b"f").await.unwrap();
        fs.rename((public, b"f"), (secret, b"f"), Rename::Replace).await.unwrap();
        put(fs, file, "secret").await.unwrap();
        assert!(is_stale(client.read(file, 0, 10).await));
        assert!(is_stale(client.attributes(file).await));
        // An exchange moves both ways.
        client.read(stays, 0, 1).await.unwrap();
        fs.rename((secret, b"o"), (public, b"g"), Rename::Exchange).await.unwrap();
        assert!(is_stale(client.read(stays, 0, 10).await));
        assert_eq!(client.find(Ino::ROOT, b"g").await.unwrap().ino, outside);
        put(client, outside, "inside").await.unwrap();
        // Renames inside of its root change nothing, by any client.
        let directory = make(fs, public, "d", Node::Directory).await;
        let handle = open(client, outside).await;
        fs.rename((public, b"g"), (directory, b"g"), Rename::Replace).await.unwrap();
        assert_eq!(text(client, outside).await, "inside");
        client.release(outside, handle).await;
        assert_eq!(client.status().evictions, 0);
    });
}

#[test]
fn what_a_client_has_made_by_itself_is_there_when_it_is_moved_away() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let admin = scene.client("admin").await;
        let fs = &admin.client;
        let public = make(fs, Ino::ROOT, "pub", Node::Directory).await;
        let secret = make(fs, Ino::ROOT, "secret", Node::Directory).await;
        env.sleep(LEASE).await;
        let visit = Visit { path: "/pub", access: Access::Write };
        let lim = scene.client_as(visit.of("lim")).await.unwrap();
        let client = &lim.client;
        let moved = make(client, Ino::ROOT, "m", Node::Directory).await;
        let mut files = Vec::new();
        for number in 0..10 {
            let file = make(client, moved, &format!("f{number}"), Node::File).await;
            put(client, file, "made").await.unwrap();
            files.push(file);
        }
        assert!(client.status().unsent > 0, "it has not told the server");
        fs.rename((public, b"m"), (secret, b"m"), Rename::Replace).await.unwrap();
        for (number, file) in files.iter().enumerate() {
            let found = fs.find(secret, b"m").await.unwrap().ino;
            let found = fs.find(found, format!("f{number}").as_bytes()).await.unwrap();
            assert_eq!((found.ino, &text(fs, *file).await[..]), (*file, "made"));
            assert!(is_stale(put(client, *file, "more").await), "{number}");
        }
        assert!(is_stale(client.create(moved, b"x", &new(Node::File)).await));
        client.sync_all().await.unwrap();
        assert_eq!(client.status().lost, 0);
        let listed = fs.read_directory(moved, Cookie::START, 100, false).await.unwrap();
        assert_eq!(listed.len(), 10);
    });
}

#[test]
fn a_client_whose_root_is_moved_loses_its_session() {
    for (from, to) in [("pub", "other"), ("pub", "secret/pub")] {
        run(1, |env| async move {
            let scene = Scene::durable(&env).await;
            let admin = scene.client("admin").await;
            let fs = &admin.client;
            let public = make(fs, Ino::ROOT, from, Node::Directory).await;
            let secret = make(fs, Ino::ROOT, "secret", Node::Directory).await;
            let deep = make(fs, public, "deep", Node::Directory).await;
            let visit = Visit { path: "/pub/deep", access: Access::Write };
            let lim = scene.client_as(visit.of("lim")).await.unwrap();
            let client = &lim.client;
            let file = make(client, Ino::ROOT, "f", Node::File).await;
            fs.find(deep, b"f").await.unwrap();
            let target = match to {
                "other" => (Ino::ROOT, &b"other"[..]),
                _ => (secret, &b"pub"[..]),
            };
            fs.rename((Ino::ROOT, from.as_bytes()), target, Rename::Replace).await.unwrap();
            put(fs, file, "secret").await.unwrap();
            let read = env.timeout(LEASE, client.read(file, 0, 10)).await;
            assert!(!matches!(read, Some(Ok(_))), "{read:?}");
            // Another directory at the path is the client's.
            let public = make(fs, Ino::ROOT, from, Node::Directory).await;
            let next = make(fs, public, "deep", Node::Directory).await;
            assert_ne!(next, deep);
            env.sleep(LEASE).await;
            make(client, Ino::ROOT, "g", Node::File).await;
            fs.find(next, b"g").await.unwrap();
            assert_eq!(client.status().evictions, 1);
        });
    }
}

#[test]
fn a_client_is_not_told_again_of_what_is_being_moved_away() {
    for (seed, is_known) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        run(seed, |env| async move {
            // A rename waits until what it revokes is durable.
            let scene = Scene::slow(&env, Duration::from_millis(5)).await;
            let options = client::Options { exclusive: None, ..patient() };
            let admin = scene.client_with(visitor("admin"), options).await.unwrap();
            let fs = &admin.client;
            let public = make(fs, Ino::ROOT, "pub", Node::Directory).await;
            let secret = make(fs, Ino::ROOT, "secret", Node::Directory).await;
            let moved = make(fs, public, "m", Node::Directory).await;
            let visit = Visit { path: "/pub", access: Access::Write };
            let peer = Peer::attached(&scene, &scene.admit(visit.of("peer")), 1).await;
            let look_up = Request::Lookup { parent: public, name: "m".into() };
            let (ino, from) = (public, Cookie::START);
            let list = Request::ReadDirectory { ino, from, most: 9, attributes: true };
            if is_known {
                assert!(matches!(peer.ask(1, look_up.clone()).await, Answer::Inode(_)));
            }
            let renaming = fs.clone();
            let renames = env.spawn(async move {
                renaming.rename((public, b"m"), (secret, b"m"), Rename::Replace).await
            });
            let mut asked = Vec::new();
            while !renames.is_finished() {
                for request in [&look_up, &list] {
                    let number = 2 + asked.len() as u64;
                    let (channel, call) = (peer.channel.clone(), call(number, request.clone()));
                    asked.push(env.spawn(async move {
                        channel.call::<_, Reply>(&call, &[]).await.unwrap().0.answer
                    }));
                }
                env.sleep(Duration::from_micros(100)).await;
            }
            renames.await.unwrap().unwrap();
            let stale = Answer::Failed(WireError::Stale);
            for (at, answer) in asked.into_iter().enumerate() {
                let answer = answer.await.unwrap();
                let is_listed = at % 2 == 1 && answer == Answer::Entries;
                let is_found = matches!(answer, Answer::Inode(_) | Answer::Absent);
                assert!(is_listed || at % 2 == 0 && (is_found || answer == stale), "{answer:?}");
            }
            let seen = peer.ask(9999, Request::Attributes { ino: moved, shown: false }).await;
            assert_eq!(seen, stale, "{seed} {is_known}");
            assert_eq!(peer.ask(10000, look_up).await, Answer::Absent);
        });
    }
}
