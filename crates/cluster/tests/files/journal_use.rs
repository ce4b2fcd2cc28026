//! What a client says of its journal: how far files have come, what the server does not have, and how full the journal is.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{Changes, Client, MountedJournal, PendingReport, journal};
use thalweg_fs::{Allocation, Filesystem, Ino, Level, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::faults::Faulty;
use thalweg_sim::run;

use crate::full::alone;
use crate::journal::{Journaled, begin, find};
use crate::scene::*;

const LONG: Duration = Duration::from_secs(60);

fn journal_of(client: &Client) -> MountedJournal {
    client.pending().journal.unwrap()
}

async fn write(client: &Client, file: Ino, byte: u8, len: usize) {
    let data = vec![Bytes::from(vec![byte; len])];
    client.write(file, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
}

/// An answer of the server is not enough: its machine may lose what it has answered, and this client's memory may be gone then, too.
#[test]
fn a_record_stays_until_the_server_has_made_it_durable() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, false).await;
        client.drain().await.unwrap();
        let rest = journal_of(&client).room;
        assert_eq!(rest.records, 1);
        let mut answered = 0;
        for round in 0..5 {
            for byte in 1..=4 {
                write(&client, file, byte, 5000).await;
                client.sync(file, false).await.unwrap();
            }
            let full = journal_of(&client).room;
            assert!(full.records >= 4 && full.used > 20_000, "{full:?}");
            loop {
                let PendingReport { unsent, undurable, .. } = client.pending();
                let room = journal_of(&client).room;
                if unsent.changes == 0 && undurable == 0 {
                    break;
                }
                answered += u64::from(unsent.changes == 0);
                assert!(
                    room.records >= 4 && room.used > 20_000,
                    "{room:?} with {unsent:?}, {undurable} answered calls in round {round}"
                );
                if answered > 0 && round == 4 {
                    break;
                }
                env.sleep(Duration::from_millis(5)).await;
            }
            if round < 4 {
                env.sleep(Duration::from_secs(2)).await;
                assert_eq!(journal_of(&client).room.records, 1, "it is released then");
            }
        }
        assert!(answered > 10, "the server made everything durable at once");
        // Both crash when the server has answered.
        machine.crash(Shape::Nothing);
        drop(client);
        scene.crash(Shape::Nothing).await;
        let again = machine.mount(&scene, true).await.unwrap();
        let seen = find(&again).await;
        assert_eq!(again.read(seen, 0, 1 << 20).await.unwrap().concat(), vec![4; 5000]);
    });
}

/// What the server has made durable is not read again after a crash.
#[test]
fn a_recovery_reads_little_of_what_was_released() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        let found = async || journal::inspect(&env, &machine.device()).await.unwrap();
        for round in 0..20 {
            write(&client, file, round, 100_000).await;
            client.sync(file, false).await.unwrap();
            if round % 4 == 3 {
                client.drain().await.unwrap();
                // The last record stays.
                assert!(found().await.bytes <= 100_000, "{:?}", found().await);
            }
        }
        // By the timer when it is worth a flush.
        for _ in 0..5 {
            for round in 0..4 {
                write(&client, file, round, 100_000).await;
                client.sync(file, false).await.unwrap();
            }
            assert!(client.wait_for(file, Level::Server, LONG).await.unwrap());
            env.sleep(Duration::from_secs(3)).await;
        }
        assert!(found().await.bytes <= 1_000_000, "{:?}", found().await);
    });
}

#[test]
fn a_file_comes_to_the_journal_and_then_to_the_server() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        let level = async || client.level(file).await.unwrap();
        assert_eq!(level().await, Level::Memory);
        // The directory was made by a call, which is in no journal.
        client.drain().await.unwrap();
        assert_eq!(level().await, Level::Server);
        write(&client, file, 9, 100).await;
        assert_eq!(level().await, Level::Memory);
        let messages = calls(&client);
        for _ in 0..2 {
            assert!(client.wait_for(file, Level::Journal, Duration::ZERO).await.unwrap());
            assert_eq!(level().await, Level::Journal);
        }
        write(&client, file, 1, 100).await;
        assert_eq!(level().await, Level::Memory);
        assert!(client.wait_for(file, Level::Journal, Duration::ZERO).await.unwrap());
        assert_eq!((level().await, calls(&client)), (Level::Journal, messages));
        assert!(client.wait_for(file, Level::Server, LONG).await.unwrap());
        assert_eq!(level().await, Level::Server);
        let replicas = client.wait_for(file, Level::Replicas, LONG).await;
        assert!(matches!(replicas, Err(thalweg_fs::FsError::NoReplicas)), "{replicas:?}");
        // A call is in no journal until the server has made it durable, nor is what depends on it.
        client.allocate(file, 0, 1, Allocation::Punch).await.unwrap();
        write(&client, file, 2, 100).await;
        assert_eq!(level().await, Level::Memory);
        assert!(client.wait_for(file, Level::Journal, LONG).await.unwrap());
        assert!(level().await >= Level::Journal);
    });
}

/// Without a journal there is nothing between memory and the server.
#[test]
fn a_wait_for_a_journal_that_is_not_there_waits_for_the_server() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let visitor = scene.client("plain").await;
        let machine = Journaled::new(&scene, "a").await;
        let (faulty, faults) = Faulty::wrap(&env, machine.device());
        let machine = machine.with_device(faulty);
        let failing = machine.mount(&scene, true).await.unwrap();
        for (client, name) in [(&visitor.client, "d1"), (&failing, "d2")] {
            let directory = alone(client, name).await;
            let file = make(client, directory, "file", Node::File).await;
            client.reference(file);
            faults.die_after(0);
            write(client, file, 1, 100).await;
            assert_eq!(client.level(file).await.unwrap(), Level::Memory);
            assert!(client.wait_for(file, Level::Journal, LONG).await.unwrap());
            assert_eq!(client.level(file).await.unwrap(), Level::Server, "{name}");
            assert!(client.pending().journal.is_none());
        }
    });
}

#[test]
fn what_the_server_does_not_have_is_counted() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        client.drain().await.unwrap();
        let nothing = client.pending();
        assert!(nothing.is_empty() && nothing.files == 0 && nothing.oldest_ms.is_none());
        let journal = nothing.journal.unwrap();
        assert_eq!((journal.incarnation, journal.room.records), (Some(1), 1));
        let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
        write(&client, file, 1, 1000).await;
        client.sync(file, false).await.unwrap();
        env.sleep(Duration::from_millis(700)).await;
        let other = make(&client, directory, "other", Node::File).await;
        client.reference(other);
        write(&client, other, 2, 234).await;
        let pending = client.pending();
        assert_eq!(pending.unsent, Changes { changes: 3, bytes: 1234 });
        assert_eq!(pending.in_journal, Changes { changes: 1, bytes: 1000 });
        // The file, the new one and its directory.
        assert_eq!((pending.files, pending.undurable), (3, 0));
        assert!((700..1000).contains(&pending.oldest_ms.unwrap()), "{pending:?}");
        client.sync(other, false).await.unwrap();
        let synced = client.pending();
        assert_eq!((synced.unsent, synced.in_journal), (pending.unsent, pending.unsent));
        assert!(synced.journal.unwrap().room.used > journal.room.used);
        // While a batch is under way, its changes are not at the server.
        scene.network.cut(&machine.host(), &scene.server);
        let (draining, own) = (client.clone(), machine.process.env());
        let draining = own.spawn(async move { draining.drain().await });
        env.sleep(LEASE / 4).await;
        assert_eq!(client.pending().unsent, pending.unsent);
        assert_eq!(client.pending().in_journal, pending.unsent);
        assert!(client.pending().oldest_ms > pending.oldest_ms && !draining.is_finished());
        scene.network.heal();
        draining.await.unwrap().unwrap();
        let done = client.pending();
        assert!(done.is_empty() && done.oldest_ms.is_none() && done.files == 0, "{done:?}");
        assert_eq!(done.in_journal, Changes::default());
        assert_eq!(done.journal.unwrap().room.records, 1);
        // A call that was answered, with and without a change of the client's own behind it.
        for has_own in [false, true] {
            client.allocate(file, 0, 1, Allocation::Punch).await.unwrap();
            if has_own {
                write(&client, other, 3, 10).await;
            }
            let answered = client.pending();
            assert!(answered.undurable > 0 && !answered.is_empty(), "{answered:?}");
            client.drain().await.unwrap();
            assert!(client.pending().is_empty(), "{:?}", client.pending());
        }
    });
}

#[test]
fn what_a_client_leaves_is_written_back_by_the_next_mount() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        client.drain().await.unwrap();
        put(&client, file, "left").await.unwrap();
        let messages = calls(&client);
        client.leave().await.unwrap();
        assert_eq!(calls(&client), messages);
        assert!(put(&client, file, "later").await.is_err());
        drop(client);
        assert_eq!(text(&*scene.files, file).await, "");
        let again = machine.mount(&scene, true).await.unwrap();
        let seen = find(&again).await;
        assert_eq!(text(&again, seen).await, "left");
        // Without a journal nothing is left anywhere, and the client goes on.
        let visitor = scene.client("plain").await;
        assert!(visitor.client.leave().await.is_err());
        visitor.client.find(Ino::ROOT, b"d").await.unwrap();
    });
}
