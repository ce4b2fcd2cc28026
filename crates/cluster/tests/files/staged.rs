//! Large batches of a client with a journal: what they leave out, and how they come in several messages.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::Client;
use thalweg_env::Env;
use thalweg_fs::{Filesystem, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::recording::Recorder;
use thalweg_sim::{campaign, run};
use thalweg_store::device::Geometry;

use crate::full::alone;
use crate::journal::Journaled;
use crate::journal_crashes::left;
use crate::scene::*;

/// A machine whose journal has room for a large batch.
async fn machine(env: &Env, scene: &Scene) -> Journaled {
    let recorder = Recorder::with_latency(env, Duration::from_micros(100));
    let device = recorder.device("large-journal", Geometry { size: 64 << 20, sector: 512 });
    thalweg_cluster::client::journal::create(env, &device).await.unwrap();
    Journaled::new(scene, "a").await.with_device(device)
}

fn messages(client: &Client, kind: &str) -> u64 {
    client.traffic().sent().get(kind).map_or(0, |sent| sent.messages)
}

fn sent_bytes(client: &Client) -> u64 {
    client.traffic().sent().values().map(|sent| sent.bytes).sum()
}

async fn write(client: &Client, file: Ino, offset: u64, bytes: Vec<u8>) {
    let (at, data) = (WriteAt::Offset(offset), vec![Bytes::from(bytes)]);
    client.write(file, at, data, WriteHow::default()).await.unwrap();
}

#[test]
fn bytes_that_are_replaced_and_files_that_come_and_go_are_not_sent() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = machine(&env, &scene).await;
        let client = machine.mount(&scene, true).await.unwrap();
        let directory = alone(&client, "d").await;
        let file = make(&client, directory, "file", Node::File).await;
        client.reference(file);
        client.drain().await.unwrap();
        let (before, calls_before) = (sent_bytes(&client), calls(&client));
        for number in 0..200_u8 {
            write(&client, file, u64::from(number % 4) * 30_000, vec![number; 60_000]).await;
            let name = format!("t{number}");
            let temporary = make(&client, directory, &name, Node::File).await;
            write(&client, temporary, 0, vec![1; 20_000]).await;
            client.unlink(directory, name.as_bytes()).await.unwrap();
        }
        client.drain().await.unwrap();
        let (bytes, calls) = (sent_bytes(&client) - before, calls(&client) - calls_before);
        assert!(bytes < 1_000_000, "{bytes} bytes were sent of 16 MB in {calls} messages");
        let other = scene.client("b").await;
        let other = &other.client;
        let directory = other.find(Ino::ROOT, b"d").await.unwrap().ino;
        other.reference(directory);
        let found = other.find(directory, b"file").await.unwrap();
        other.reference(found.ino);
        let read = other.read(found.ino, 0, 1 << 20).await.unwrap().concat();
        let parts = [(30_000, 196), (30_000, 197), (30_000, 198), (60_000, 199)];
        let wanted: Vec<u8> = parts.iter().flat_map(|(len, value)| vec![*value; *len]).collect();
        assert!(read == wanted, "the file has other bytes");
        let own = client.attributes(file).await.unwrap().attributes;
        assert_eq!((own.modified, own.size), (found.modified, found.size));
    });
}

/// Each number is one inode's: those of files that come and go, too, are told to the server, which else would give no more.
#[test]
fn a_client_has_numbers_for_files_that_come_and_go() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = machine(&env, &scene).await;
        let client = machine.mount(&scene, true).await.unwrap();
        let directory = alone(&client, "d").await;
        let mut made = 0;
        while made < 200_000 {
            for _ in 0..1_000 {
                let name = format!("t{made}");
                make(&client, directory, &name, Node::File).await;
                client.unlink(directory, name.as_bytes()).await.unwrap();
                made += 1;
            }
            client.drain().await.unwrap();
        }
        // Some are made by calls while there is no room.
        let calls = messages(&client, "Create");
        assert!(calls < 2_000, "{calls} of {made} files were made by calls");
        assert_eq!(client.status().lost, 0);
    });
}

/// The link does not rest while the server applies a batch, and nothing is sent twice.
#[test]
fn the_next_batch_is_staged_while_one_is_applied() {
    run(1, |env| async move {
        let (scene, faults) = Scene::failing(&env, options()).await;
        let mut machine = machine(&env, &scene).await;
        machine.batch = 1 << 20;
        let client = machine.mount(&scene, true).await.unwrap();
        let directory = alone(&client, "d").await;
        let file = make(&client, directory, "file", Node::File).await;
        client.reference(file);
        client.drain().await.unwrap();
        let other = make(&client, directory, "other", Node::File).await;
        client.reference(other);
        let fill = async |file, blocks: std::ops::Range<u8>, more: u8| {
            for block in blocks {
                write(&client, file, u64::from(block) << 19, vec![block + more; 1 << 19]).await;
            }
        };
        fill(file, 0..4, 1).await;
        client.drain().await.unwrap();
        // As much as there is room for, in three batches that do not fit into messages.
        fill(file, 0..4, 100).await;
        fill(other, 0..2, 200).await;
        client.sync(file, false).await.unwrap();
        let before = ["Stage", "Batch"].map(|kind| messages(&client, kind));
        let unsent = client.status().unsent;
        faults.iter().for_each(|drive| drive.slow(1.0, Duration::from_millis(20)));
        let draining = client.clone();
        let drained = env.spawn(async move { draining.drain().await });
        let mut ahead = 0;
        while !drained.is_finished() {
            let [staged, batches] = ["Stage", "Batch"].map(|kind| messages(&client, kind));
            if batches == before[1] + 1 && client.status().unsent == unsent {
                ahead = ahead.max(staged - before[0]);
            }
            env.sleep(Duration::from_micros(200)).await;
        }
        drained.await.unwrap().unwrap();
        assert_eq!(ahead, 4, "parts before the first batch was applied, of {unsent} changes");
        let [staged, batches] = ["Stage", "Batch"].map(|kind| messages(&client, kind));
        let (staged, batches) = (staged - before[0], batches - before[1]);
        assert_eq!((staged, batches), (6, 3), "nothing is sent twice");
        let whole: Vec<u8> = (0..4).flat_map(|block| vec![block + 100; 1 << 19]).collect();
        assert!(scene.files.read(file, 0, 4 << 20).await.unwrap().concat() == whole);
    });
}

async fn stage_and_crash(env: &Env, is_direct: bool) -> u64 {
    let mut scene = Scene::either(env, options(), is_direct).await;
    let mut machine = machine(env, &scene).await;
    // Of small ones there are several in flight.
    machine.batch = [machine.batch, 3 << 19][env.rng().random_range(0..2)];
    let client = machine.mount(&scene, true).await.unwrap();
    let directory = alone(&client, "d").await;
    let mut rng = env.rng();
    let mut files = BTreeMap::new();
    for name in ["x", "y", "z"] {
        let file = make(&client, directory, name, Node::File).await;
        client.reference(file);
        files.insert(name, (file, Vec::<u8>::new()));
    }
    for round in 0..4 {
        // Parts of a batch that only replaces bytes of objects are stored as they come.
        let replaces = round > 1;
        for _ in 0..rng.random_range(10..60) {
            let name = ["x", "y", "z"][rng.random_range(0..3)];
            let (file, bytes) = files.get_mut(name).unwrap();
            let offset = rng.random_range(0..=bytes.len().min(1 << 20));
            let mut new = vec![rng.random_range(1..=255); rng.random_range(1..200_000)];
            if replaces {
                new.truncate(bytes.len() - offset);
            }
            if new.is_empty() {
                continue;
            }
            bytes.resize(bytes.len().max(offset + new.len()), 0);
            bytes[offset..offset + new.len()].copy_from_slice(&new);
            write(&client, *file, offset as u64, new).await;
        }
        let (draining, sent) = (client.clone(), env.clone());
        let drained = env.spawn(async move {
            draining.drain().await.unwrap();
            sent.now()
        });
        if rng.random_bool(0.8) {
            env.sleep(Duration::from_micros(rng.random_range(0..20_000))).await;
            scene.crash(left(&mut rng)).await;
        }
        drained.await;
    }
    assert_eq!(client.status().lost, 0);
    for (file, bytes) in files.values() {
        let found = scene.files.read(*file, 0, bytes.len() + 1).await.unwrap().concat();
        assert!(found == *bytes, "the server has other bytes");
    }
    let other = scene.client("b").await;
    let other = &other.client;
    let directory = other.find(Ino::ROOT, b"d").await.unwrap().ino;
    other.reference(directory);
    for (name, (_, bytes)) in &files {
        let found = other.find(directory, name.as_bytes()).await.unwrap();
        other.reference(found.ino);
        let mut read = Vec::new();
        while (read.len() as u64) < found.size {
            let some = other.read(found.ino, read.len() as u64, 1 << 20).await.unwrap().concat();
            assert!(!some.is_empty(), "{name} ends early");
            read.extend_from_slice(&some);
        }
        assert!(read == *bytes, "{name} has other bytes");
    }
    messages(&client, "Stage")
}

#[test]
fn a_staged_batch_is_applied_whatever_becomes_of_the_server() {
    let staged: u64 = campaign::seeds(25)
        .map(|seed| run(seed, move |env| async move { stage_and_crash(&env, seed % 2 == 0).await }))
        .sum();
    println!("{staged} messages with parts");
    assert!(staged > 100);
}
