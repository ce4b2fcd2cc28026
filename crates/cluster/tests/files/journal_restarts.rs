//! Several clients with journals, and a server that starts again: what one of them has had to itself before is not taken for its own.

use std::time::Duration;

use futures::future::join;
use thalweg_cluster::client::Client;
use thalweg_cluster::server;
use thalweg_fs::{Caller, Filesystem, Ino, Node};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::absence::lists;
use crate::journal::Journaled;
use crate::scene::*;

/// A client opens a file, so that it is its own, and writes to it.
async fn write(client: &Client, file: Ino, text: &str) {
    client.reference(file);
    let opened = client.open(&Caller::default(), file, WRITING).await.unwrap();
    put(client, file, text).await.unwrap();
    client.release(file, opened.handle).await;
}

/// Two clients with journals, each of which has had the other one's file to itself, and has changes of its own that wait.
async fn begin(scene: &Scene, machines: &[Journaled; 2]) -> ([Client; 2], [Ino; 2]) {
    let a = machines[0].mount(scene, true).await.unwrap();
    let b = machines[1].mount(scene, true).await.unwrap();
    let files = [
        make(&a, Ino::ROOT, "one", Node::File).await,
        make(&a, Ino::ROOT, "two", Node::File).await,
    ];
    for client in [&b, &a] {
        client.find(Ino::ROOT, b"one").await.unwrap();
        client.find(Ino::ROOT, b"two").await.unwrap();
    }
    write(&a, files[1], "early").await;
    write(&b, files[0], "early").await;
    scene.env.sleep(Duration::from_millis(10)).await;
    write(&b, files[1], "b").await;
    write(&a, files[0], "a").await;
    scene.env.sleep(Duration::from_millis(10)).await;
    for (client, file) in [(&a, files[0]), (&b, files[1])] {
        client.drain().await.unwrap();
        write(client, file, "later").await;
        client.sync(file, false).await.unwrap();
        assert!(client.status().unsent > 0, "the file is not its own");
    }
    ([a, b], files)
}

fn sharing() -> server::Options {
    server::Options { share: Duration::from_millis(1), ..options() }
}

/// Each of the two sends what it has made at the same moment: neither waits for the other one.
#[test]
fn what_was_taken_back_from_a_client_is_not_its_own_at_the_next_server() {
    run(1, |env| async move {
        let mut scene = Scene::durable_with(&env, sharing()).await;
        let machines = [Journaled::new(&scene, "a").await, Journaled::new(&scene, "b").await];
        let ([a, b], files) = begin(&scene, &machines).await;
        scene.crash(Shape::Nothing).await;
        while scene.service.expected() > 0 {
            env.sleep(Duration::from_millis(1)).await;
        }
        let begun = env.now();
        let (one, two) = join(a.drain(), b.drain()).await;
        one.unwrap();
        two.unwrap();
        assert!(env.now().since(begun) < LEASE / 2, "they wait for each other");
        assert_eq!((a.status().evictions, b.status().evictions), (0, 0));
        let visitor = scene.client("other").await;
        for (name, file) in [("one", files[0]), ("two", files[1])] {
            visitor.client.find(Ino::ROOT, name.as_bytes()).await.unwrap();
            visitor.client.reference(file);
            assert_eq!(text(&visitor.client, file).await, "later");
        }
    });
}

/// The power fails everywhere: the journals of both are written back.
#[test]
fn two_journals_are_written_back_after_a_crash_of_everything() {
    for at_once in [true, false] {
        run(1, move |env| async move {
            let mut scene = Scene::durable_with(&env, sharing()).await;
            let mut machines =
                [Journaled::new(&scene, "a").await, Journaled::new(&scene, "b").await];
            let (clients, files) = begin(&scene, &machines).await;
            machines.iter_mut().for_each(|machine| machine.crash(Shape::Nothing));
            drop(clients);
            scene.crash(Shape::Nothing).await;
            let mounting = machines[1].mount(&scene, true);
            let (a, b) = match at_once {
                true => join(machines[0].mount(&scene, true), mounting).await,
                false => (machines[0].mount(&scene, true).await, mounting.await),
            };
            let (a, b) = (a.unwrap(), b.unwrap());
            for (client, name, file) in [(&b, "one", files[0]), (&a, "two", files[1])] {
                client.find(Ino::ROOT, name.as_bytes()).await.unwrap();
                client.reference(file);
                assert_eq!(text(client, file).await, "later", "{name}");
            }
            assert_eq!(lists(&a).await, []);
        });
    }
}
