//! A journal is written back in little memory.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{Client, ConflictScope, JournaledData};
use thalweg_fs::{Filesystem, Ino, Level, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::journal::{Journaled, begin, find};
use crate::scene::*;

/// Bytes of each write, places in the file, and writes.
const LEN: usize = 10_000;
const SLOTS: usize = 10;
const WRITES: usize = 700;

/// Bytes that a client may take in memory, and those that it takes for a journal that is written back: half of that, a batch, and what is
/// known of each write.
const MEMORY: usize = 512 << 10;
const MOST: usize = MEMORY / 2 + (512 << 10) + 200 * WRITES;

/// A machine that has crashed with seven megabytes in its journal, and what the file is to have.
async fn crashed(scene: &Scene, data: JournaledData) -> (Journaled, Vec<u8>) {
    let mut machine = Journaled::sized(scene, "a", 32 << 20).await;
    (machine.data, machine.memory) = (data, MEMORY);
    let (client, file) = begin(scene, &machine, true).await;
    write_all(&client, file, SLOTS).await;
    client.wait_for(file, Level::Server, LEASE).await.unwrap();
    let expected = write_all(&client, file, WRITES).await;
    client.sync(file, true).await.unwrap();
    let unsent = client.pending().unsent;
    assert!(unsent.bytes > 6 << 20, "{unsent:?}");
    machine.crash(Shape::Nothing);
    drop(client);
    (machine, expected)
}

/// Writes to the file, one slot after the other, again and again; what it has then.
async fn write_all(client: &Client, file: Ino, writes: usize) -> Vec<u8> {
    let mut expected = vec![0; SLOTS * LEN];
    for number in 0..writes {
        let (bytes, at) = (vec![(number % 251) as u8 + 1; LEN], number % SLOTS * LEN);
        expected[at..at + LEN].copy_from_slice(&bytes);
        let data = vec![Bytes::from(bytes)];
        client.write(file, WriteAt::Offset(at as u64), data, WriteHow::default()).await.unwrap();
    }
    expected
}

async fn all_of(client: &Client, file: Ino) -> Vec<u8> {
    client.read(file, 0, 1 << 20).await.unwrap().concat()
}

#[test]
fn a_large_journal_is_written_back_in_little_memory() {
    for data in [JournaledData::Wasteless, JournaledData::Pages] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (machine, expected) = crashed(&scene, data).await;
            let again = machine.mount(&scene, true).await.unwrap();
            let memory = again.status().recovery_memory;
            assert!((1..MOST).contains(&memory), "{memory} bytes");
            assert!(all_of(&again, find(&again).await).await == expected);
        });
    }
}

/// The server's machine fails again and again meanwhile, and so does the client's.
#[test]
fn a_large_journal_is_written_back_after_further_crashes() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (mut machine, expected) = crashed(&scene, JournaledData::Wasteless).await;
        for round in 1..6 {
            let mounting = machine.process.env().spawn(machine.mounting(&scene, true));
            env.sleep(Duration::from_millis(3 * round)).await;
            machine.crash(Shape::Nothing);
            drop(mounting);
            if round % 2 == 0 {
                scene.crash(Shape::Nothing).await;
            }
        }
        let again = machine.mount(&scene, true).await.unwrap();
        assert!(all_of(&again, find(&again).await).await == expected);
    });
}

/// Also around what other clients have used meanwhile.
#[test]
fn a_large_journal_is_written_around_what_others_have_used() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (mut machine, mut expected) = crashed(&scene, JournaledData::Wasteless).await;
        machine.conflict = ConflictScope::File;
        let visitor = scene.client("other").await;
        env.sleep(3 * LEASE).await;
        // Bytes of the file, without a look at it.
        let directory = visitor.client.find(Ino::ROOT, b"d").await.unwrap().ino;
        visitor.client.reference(directory);
        let file = visitor.client.find(directory, b"file").await.unwrap().ino;
        visitor.client.reference(file);
        let data = vec![Bytes::from(vec![255; LEN])];
        let at = WriteAt::Offset(5 * LEN as u64);
        visitor.client.write(file, at, data, WriteHow::default()).await.unwrap();
        visitor.client.sync(file, false).await.unwrap();
        expected[5 * LEN..6 * LEN].fill(255);
        let again = machine.mount(&scene, true).await.unwrap();
        assert!(all_of(&again, find(&again).await).await == expected);
    });
}
