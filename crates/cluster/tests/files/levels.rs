//! How far a file has come, as its client says, and what survives then.

use std::slice::from_ref;
use std::time::Duration;

use thalweg_cluster::client::Client;
use thalweg_cluster::server::Options;
use thalweg_fs::{Filesystem, FsError, Ino, Level, Node};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::scene::*;

/// No wait for replicas.
const NO_TIME: Duration = Duration::ZERO;

/// A directory of this client alone, with a file that was made without a call, and has a text; all is durable.
async fn alone(client: &Client) -> (Ino, Ino) {
    let directory = make(client, Ino::ROOT, "d", Node::Directory).await;
    client.reference(directory);
    for name in ["one", "two"] {
        make(client, directory, name, Node::File).await;
    }
    let file = make(client, directory, "f", Node::File).await;
    client.reference(file);
    put(client, file, "first").await.unwrap();
    client.sync_all().await.unwrap();
    (directory, file)
}

#[test]
fn a_file_is_in_memory_until_it_is_waited_for_and_then_survives_both_machines() {
    for (seed, left) in (0..).zip([Shape::Nothing, Shape::Everything]) {
        run(seed, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let a = scene.client("a").await;
            let (directory, file) = alone(&a.client).await;
            assert_eq!(a.client.level(file).await.unwrap(), Level::Server);
            put(&a.client, file, "later").await.unwrap();
            let new = make(&a.client, directory, "new", Node::File).await;
            let before = calls(&a.client);
            for ino in [file, new, directory] {
                assert_eq!(a.client.level(ino).await.unwrap(), Level::Memory);
                assert!(a.client.wait_for(ino, Level::Memory, NO_TIME).await.unwrap());
            }
            assert_eq!(
                (calls(&a.client), a.client.status().unsent),
                (before, 2),
                "nothing is sent"
            );
            assert!(a.client.wait_for(file, Level::Server, NO_TIME).await.unwrap());
            for ino in [file, new, directory] {
                assert_eq!(a.client.level(ino).await.unwrap(), Level::Server);
            }
            put(&a.client, file, "never sent").await.unwrap();
            assert_eq!(a.client.level(file).await.unwrap(), Level::Memory);
            a.process.kill();
            scene.crash(left).await;
            let b = scene.client("b").await;
            let found = b.client.find(Ino::ROOT, b"d").await.unwrap().ino;
            let found = b.client.find(found, b"f").await.unwrap().ino;
            assert_eq!(text(&b.client, found).await, "later");
        });
    }
}

#[test]
fn what_the_server_has_answered_is_in_memory_until_it_is_durable() {
    run(2, |env| async move {
        let commit = Duration::from_secs(20);
        let scene = Scene::durable_with(&env, Options { commit, ..options() }).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        // All of this is done by calls.
        let (one, two) = (
            make(&a.client, Ino::ROOT, "one", Node::Directory).await,
            make(&a.client, Ino::ROOT, "two", Node::Directory).await,
        );
        let file = make(&a.client, one, "f", Node::File).await;
        a.client.reference(file);
        let levels = async |inodes: &[Ino]| {
            let mut levels = Vec::new();
            for ino in inodes {
                let level = a.client.level(*ino).await;
                levels.push(level.unwrap_or_else(|error| panic!("{ino:?}: {error}")));
            }
            levels
        };
        assert_eq!(a.client.status().unsent, 0);
        assert_eq!(levels(&[Ino::ROOT, one, two, file]).await, [Level::Memory; 4]);
        // The new file alone: what is durable with it is said, too.
        assert!(a.client.wait_for(file, Level::Server, NO_TIME).await.unwrap());
        assert_eq!(levels(&[Ino::ROOT, one, two, file]).await, [Level::Server; 4]);
        a.client.rename((one, b"f"), (two, b"g"), thalweg_fs::Rename::Replace).await.unwrap();
        assert_eq!(
            levels(&[Ino::ROOT, one, two, file]).await,
            [Level::Server, Level::Memory, Level::Memory, Level::Memory]
        );
        // Another client sees nothing that is not durable.
        let found = b.client.find(Ino::ROOT, b"two").await.unwrap().ino;
        let found = b.client.find(found, b"g").await.unwrap().ino;
        assert_eq!(b.client.level(found).await.unwrap(), Level::Server);
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(levels(&[one, two, file]).await, [Level::Server; 3]);
        put(&a.client, file, "text").await.unwrap();
        assert_eq!(levels(&[file]).await, [Level::Memory]);
        env.sleep(commit + Duration::from_secs(1)).await;
        assert_eq!(levels(&[file]).await, [Level::Server], "the server makes it durable by itself");
    });
}

#[test]
fn levels_outlive_the_server() {
    run(3, |env| async move {
        let commit = Duration::from_secs(20);
        let mut scene = Scene::durable_with(&env, Options { commit, ..options() }).await;
        let a = scene.client("a").await;
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        put(&a.client, file, "text").await.unwrap();
        scene.crash(Shape::Nothing).await;
        assert_eq!(text(&a.client, file).await, "text", "the client has made it again");
        assert_eq!(a.client.level(file).await.unwrap(), Level::Memory);
        assert!(a.client.wait_for(file, Level::Server, NO_TIME).await.unwrap());
        assert_eq!(a.client.level(file).await.unwrap(), Level::Server);
        a.process.kill();
        scene.crash(Shape::Nothing).await;
        let b = scene.client("b").await;
        let found = b.client.find(Ino::ROOT, b"f").await.unwrap().ino;
        assert_eq!(text(&b.client, found).await, "text");
    });
}

#[test]
fn lost_changes_are_said_and_not_taken_for_durable_ones() {
    run(4, |env| async move {
        let scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (directory, file) = alone(&a.client).await;
        put(&a.client, file, "lost").await.unwrap();
        scene.network.part(from_ref(&a.host), from_ref(&scene.server));
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        assert_eq!(
            text(&b.client, b.client.find(directory, b"f").await.unwrap().ino).await,
            "first"
        );
        scene.network.heal();
        env.sleep(LEASE).await;
        assert_eq!(a.client.status().evictions, 1);
        for _ in 0..2 {
            let asked = a.client.level(file).await;
            assert!(matches!(asked, Err(FsError::Store(_))), "{asked:?}");
        }
        let waited = a.client.wait_for(file, Level::Server, NO_TIME).await;
        assert!(matches!(waited, Err(FsError::Store(_))), "{waited:?}");
        // It was told.
        a.client.find(Ino::ROOT, b"d").await.unwrap();
        a.client.find(directory, b"f").await.unwrap();
        assert!(a.client.wait_for(file, Level::Server, NO_TIME).await.unwrap());
        assert_eq!(a.client.level(file).await.unwrap(), Level::Server);
    });
}

#[test]
fn a_filesystem_without_replicas_says_so_at_once() {
    run(5, |env| async move {
        let scene = Scene::durable(&env).await;
        let a = scene.client("a").await;
        let (_, file) = alone(&a.client).await;
        put(&a.client, file, "text").await.unwrap();
        let start = env.now();
        let waited = a.client.wait_for(file, Level::Replicas, Duration::from_secs(60)).await;
        assert!(matches!(waited, Err(FsError::NoReplicas)), "{waited:?}");
        assert!(env.now().since(start) < Duration::from_secs(1));
        assert_eq!(a.client.level(file).await.unwrap(), Level::Server);
        let gone = a.client.level(Ino(12345)).await;
        assert!(matches!(gone, Err(FsError::Stale)), "{gone:?}");
    });
}
