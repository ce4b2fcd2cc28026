//! Programs of one client that sync at the same time.

use std::time::Duration;

use thalweg_fs::{Filesystem, Ino, Node};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::scene::*;

/// A directory of this client alone, with so many files.
async fn alone(client: &thalweg_cluster::client::Client, files: usize) -> (Ino, Vec<Ino>) {
    let directory = make(client, Ino::ROOT, "d", Node::Directory).await;
    client.reference(directory);
    let mut made = Vec::new();
    for number in 0..files + 2 {
        let file = make(client, directory, &format!("f{number}"), Node::File).await;
        client.reference(file);
        made.push(file);
    }
    client.sync_all().await.unwrap();
    (directory, made.split_off(2))
}

#[test]
fn they_share_batches() {
    run(1, |env| async move {
        let mut scene = Scene::slow(&env, Duration::from_millis(20)).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let (directory, files) = alone(&a.client, 40).await;
        let before = calls(&a.client);
        let mut syncs = Vec::new();
        for (number, file) in files.iter().enumerate() {
            let (client, file) = (a.client.clone(), *file);
            syncs.push(env.spawn(async move {
                put(&client, file, &format!("text {number}")).await.unwrap();
                client.sync(file, false).await.unwrap();
            }));
        }
        for sync in syncs {
            sync.await.unwrap();
        }
        let used = calls(&a.client) - before;
        assert!(used <= 4, "{used} calls");
        a.process.kill();
        scene.crash(Shape::Nothing).await;
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        b.client.reference(directory);
        for (number, file) in files.iter().enumerate() {
            b.client.find(directory, format!("f{}", number + 2).as_bytes()).await.unwrap();
            assert_eq!(text(&b.client, *file).await, format!("text {number}"));
        }
    });
}

/// A call is answered while the server makes an earlier batch durable: its change is not in that batch.
#[test]
fn a_batch_that_began_before_a_change_does_not_cover_it() {
    for micros in (0..1000).step_by(50) {
        run(micros, |env| async move {
            let mut scene = Scene::slow(&env, Duration::from_millis(20)).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let shared = make(&a.client, Ino::ROOT, "shared", Node::File).await;
            put(&a.client, shared, "old").await.unwrap();
            let (_, files) = alone(&a.client, 1).await;
            b.client.find(Ino::ROOT, b"shared").await.unwrap();
            b.client.reference(shared);
            assert_eq!(text(&b.client, shared).await, "old");
            let (client, file) = (a.client.clone(), files[0]);
            let pause = Duration::from_micros(micros);
            let own = env.clone();
            let other = env.spawn(async move {
                own.sleep(pause).await;
                put(&client, file, "own").await.unwrap();
                client.sync(file, false).await.unwrap();
            });
            put(&a.client, shared, "new").await.unwrap();
            a.client.sync(shared, false).await.unwrap();
            a.process.kill();
            scene.crash(Shape::Nothing).await;
            drop(other);
            assert_eq!(text(&b.client, shared).await, "new", "{micros} µs");
        });
    }
}
