//! A server crashes and starts again: its clients go on as if nothing had happened.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::server::Options;
use thalweg_fs::{Caller, Filesystem, FsError, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::scene::*;

/// A machine without the server's last changes, or with all of them.
const BOTH: [Shape; 2] = [Shape::Nothing, Shape::Everything];

#[test]
fn what_was_acknowledged_survives_as_long_as_its_client() {
    for (seed, left) in (0..).zip(BOTH) {
        run(seed, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let directory = make(&a.client, Ino::ROOT, "d", Node::Directory).await;
            let file = make(&a.client, directory, "f", Node::File).await;
            put(&a.client, file, "text").await.unwrap();
            let before = a.client.attributes(file).await.unwrap().attributes;
            assert!(a.client.status().kept > 0);
            scene.crash(left).await;
            let after = a.client.attributes(file).await.unwrap().attributes;
            assert_eq!(after, before, "{left:?}");
            assert_eq!(text(&a.client, file).await, "text");
            assert_eq!(b.client.find(Ino::ROOT, b"d").await.unwrap().ino, directory);
            assert_eq!(b.client.find(directory, b"f").await.unwrap().ino, file);
            assert_eq!(text(&b.client, file).await, "text");
            assert_eq!((a.client.status().evictions, b.client.status().evictions), (0, 0));
            env.sleep(Duration::from_secs(3)).await;
            assert_eq!(a.client.status().kept, 0, "all is durable");
        });
    }
}

#[test]
fn open_files_without_names_and_locks_outlive_the_server() {
    for (seed, left) in (0..).zip(BOTH) {
        run(seed, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
            let gone = make(&a.client, Ino::ROOT, "gone", Node::File).await;
            put(&a.client, gone, "text").await.unwrap();
            b.client.find(Ino::ROOT, b"f").await.unwrap();
            b.client.find(Ino::ROOT, b"gone").await.unwrap();
            let open = async |machine: &Machine, ino| {
                machine.client.reference(ino);
                machine.client.open(&Caller::default(), ino, WRITING).await.unwrap().handle
            };
            let (first, second) = (open(&a, file).await, open(&b, file).await);
            let (held, _) = (open(&b, gone).await, open(&a, gone).await);
            a.client.lock(file, &whole(first, 1), false).await.unwrap();
            a.client.unlink(Ino::ROOT, b"gone").await.unwrap();
            scene.crash(left).await;
            let refused = b.client.lock(file, &whole(second, 1), false).await;
            assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
            assert!(matches!(b.client.find(Ino::ROOT, b"gone").await, Err(FsError::NotFound)));
            assert_eq!(text(&b.client, gone).await, "text");
            put(&a.client, gone, "more").await.unwrap();
            assert_eq!(text(&b.client, gone).await, "more");
            // A lock can wait again, and a file can go.
            let (waiting, lock) = (b.client.clone(), whole(second, 1));
            let waiter = env.spawn(async move { waiting.lock(file, &lock, true).await });
            env.sleep(Duration::from_millis(10)).await;
            assert!(!waiter.is_finished());
            a.client.release(file, first).await;
            waiter.await.unwrap().unwrap();
            a.client.unreference(gone, 1);
            b.client.release(gone, held).await;
            b.client.unreference(gone, 1);
            env.sleep(LEASE).await;
            assert!(matches!(scene.files.attributes(gone).await, Err(FsError::Stale)));
        });
    }
}

#[test]
fn changes_of_what_the_caller_has_forgotten_survive() {
    for (seed, left) in (0..).zip(BOTH) {
        run(seed, |env| async move {
            let commit = Duration::from_secs(60);
            let mut scene = Scene::durable_with(&env, Options { commit, ..options() }).await;
            let a = scene.client("a").await;
            let directory = make(&a.client, Ino::ROOT, "d", Node::Directory).await;
            let file = make(&a.client, directory, "f", Node::File).await;
            put(&a.client, file, "text").await.unwrap();
            for ino in [file, directory] {
                a.client.reference(ino);
                a.client.unreference(ino, 1);
            }
            // The server hears of it.
            env.sleep(3 * LEASE).await;
            assert!(a.client.status().kept > 0);
            scene.crash(left).await;
            let found = a.client.find(Ino::ROOT, b"d").await.unwrap().ino;
            let found = a.client.find(found, b"f").await.unwrap().ino;
            assert_eq!((found, text(&a.client, found).await), (file, "text".to_owned()));
            for ino in [file, directory] {
                a.client.reference(ino);
                a.client.unreference(ino, 1);
            }
            env.sleep(3 * LEASE).await;
            assert_eq!(scene.service.sessions()[0].inodes, 1, "the root alone");
        });
    }
}

#[test]
fn a_client_claims_again_what_it_has_claimed_in_part() {
    for seed in 0..60 {
        run(seed, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
            let opened = a.client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
            a.client.lock(file, &whole(opened, 1), false).await.unwrap();
            for number in 0..40 {
                put(&a.client, file, &format!("{number}")).await.unwrap();
                make(&a.client, Ino::ROOT, &format!("f{number}"), Node::File).await;
            }
            // That server stops, too, when a part of the reclaims has reached it.
            for span in [60_000, 600, 60_000] {
                scene.crash(Shape::Nothing).await;
                while !scene.service.sessions().iter().any(|it| it.client == "a" && it.connected) {
                    env.sleep(Duration::from_micros(50)).await;
                }
                env.sleep(Duration::from_micros(100 + 40 * seed)).await;
                scene.network.reset(&a.host, &scene.server);
                env.sleep(Duration::from_micros(span)).await;
            }
            assert_eq!(text(&a.client, file).await, "39");
            let status = a.client.status();
            assert_eq!((status.evictions, status.lost), (0, 0), "seed {seed}");
            for number in 0..40 {
                b.client.find(Ino::ROOT, format!("f{number}").as_bytes()).await.unwrap();
            }
            b.client.find(Ino::ROOT, b"f").await.unwrap();
            let other = b.client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
            let refused = b.client.lock(file, &whole(other, 1), false).await;
            assert!(matches!(refused, Err(FsError::Locked)), "seed {seed}");
        });
    }
}

#[test]
fn a_client_keeps_no_more_than_its_bound() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let a = scene.client("a").await;
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        let mut most = 0;
        for _ in 0..200 {
            let data = vec![Bytes::from(vec![7; 512 << 10])];
            a.client.write(file, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
            most = most.max(a.client.status().kept);
        }
        // 32 MiB, and the call that exceeds that.
        assert!((60..=66).contains(&most), "{most}");
    });
}

#[test]
fn no_client_sees_what_a_crash_may_undo() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        let other = make(&a.client, Ino::ROOT, "g", Node::File).await;
        assert!(a.client.status().kept > 0);
        assert_eq!(b.client.find(Ino::ROOT, b"f").await.unwrap().ino, file);
        put(&a.client, other, "lost").await.unwrap();
        // The client that made it is gone, too.
        a.process.kill();
        scene.crash(Shape::Nothing).await;
        assert_eq!(b.client.find(Ino::ROOT, b"f").await.unwrap().ino, file);
        let found = b.client.find(Ino::ROOT, b"g").await.unwrap();
        assert_eq!((found.ino, found.size), (other, 0), "as durable as what came after it");
        assert_eq!(b.client.status().evictions, 0);
    });
}

#[test]
fn a_client_that_comes_back_too_late_has_lost_its_session() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        let opened = a.client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
        a.client.lock(file, &whole(opened, 1), false).await.unwrap();
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        put(&a.client, file, "lost").await.unwrap();
        scene.network.part(std::slice::from_ref(&a.host), std::slice::from_ref(&scene.server));
        let start = env.now();
        scene.crash(Shape::Nothing).await;
        // Nothing is changed while the lost client may use what it caches.
        put(&b.client, file, "new").await.unwrap();
        assert!(env.now().since(start) > LEASE);
        assert!(env.now().since(start) < 2 * LEASE);
        let other = b.client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
        b.client.lock(file, &whole(other, 1), false).await.unwrap();
        scene.network.heal();
        env.sleep(2 * LEASE).await;
        assert_eq!((a.client.status().evictions, a.client.status().lost), (1, 1));
        assert!(matches!(a.client.attributes(file).await, Err(FsError::Stale)));
        a.client.find(Ino::ROOT, b"f").await.unwrap();
        assert_eq!(text(&a.client, file).await, "new");
    });
}

/// Nothing is made again at a server that has everything. A later change is kept until it is durable, and no longer.
#[test]
fn what_is_durable_at_a_later_server_is_not_kept() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let client = &machine.client;
        let file = make(client, Ino::ROOT, "file", Node::File).await;
        client.reference(file);
        client.sync_all().await.unwrap();
        assert_eq!(client.status().kept, 0);
        scene.crash(Shape::Nothing).await;
        put(client, file, "text").await.unwrap();
        client.sync_all().await.unwrap();
        assert_eq!(client.status().kept, 0);
    });
}
