//! Reads of files that are one client's alone: what it has of them needs no server.

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_fs::{Change, Filesystem, Ino, Invalidation, Node};
use thalweg_sim::run;

use crate::own_files::{alone, open};
use crate::scene::*;

#[test]
fn bytes_that_wait_are_read_without_a_call() {
    run(4, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = scene.client("a").await;
        let a = &machine.client;
        let (_, file) = alone(a).await;
        // Whole pages, of which the client keeps nothing when the server has them.
        let pages = "12345678".repeat(1024);
        put(a, file, &pages).await.unwrap();
        a.sync_all().await.unwrap();
        assert_eq!(text(a, file).await, pages[..1000]);
        put(a, file, "abcd").await.unwrap();
        let before = calls(a);
        assert_eq!(a.read(file, 1, 3).await.unwrap().concat(), b"bcd"[..]);
        assert_eq!(calls(a), before);
        // The server has the rest.
        assert_eq!(a.read(file, 1, 4).await.unwrap().concat(), b"bcd5"[..]);
        assert_eq!(calls(a), before + 1);
    });
}

#[test]
fn pages_of_a_new_file_are_read_without_a_call_and_dropped_when_another_client_writes() {
    run(12, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (directory, _) = alone(a).await;
        let file = make(a, directory, "new", Node::File).await;
        a.reference(file);
        open(a, file).await;
        put(a, file, "mine").await.unwrap();
        let before = calls(a);
        assert_eq!(a.read_cached(file, 0, 4096).await.unwrap().concat(), b"mine"[..]);
        assert_eq!((calls(a), a.status().unsent > 0), (before, true));
        let dropped = Arc::new(Mutex::new(Vec::new()));
        let told = dropped.clone();
        a.watch(Box::new(move |change| {
            told.lock().push(change);
            Invalidation::complete()
        }));
        b.find(Ino::ROOT, b"d").await.unwrap();
        b.find(directory, b"new").await.unwrap();
        b.reference(file);
        put(b, file, "ours").await.unwrap();
        let covers = |change: &Change| matches!(change, Change::Inode { ino, content: Some(_) } if *ino == file);
        assert!(dropped.lock().iter().any(covers), "{:?}", dropped.lock());
        assert_eq!(a.read_cached(file, 0, 4096).await.unwrap().concat(), b"ours"[..]);
    });
}
