//! A journal that is full while its server is away, and a volume that is full when a journal is written back.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{self, AttachError, Client, ConflictScope, journal};
use thalweg_cluster::server;
use thalweg_fs::{Cookie, Filesystem, FsError, Ino, Level, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::absence::{lists, text_at};
use crate::full::{alone, fill};
use crate::journal::{Journaled, begin, find};
use crate::scene::*;

/// Bytes of one write.
const PART: usize = 100_000;
/// Writes that are more than the journal takes.
const PARTS: u8 = 60;

async fn write_part(client: &Client, file: Ino, number: u8) -> Result<(), FsError> {
    let at = WriteAt::Offset(u64::from(number) * PART as u64);
    let data = vec![Bytes::from(vec![number + 1; PART])];
    client.write(file, at, data, WriteHow::default()).await?;
    client.sync(file, false).await
}

/// Waits as a mount with `disconnected=error` does: until the server is away and the lease is over.
async fn until_disconnected<T>(
    client: &Client,
    env: &thalweg_env::Env,
    call: impl Future<Output = T>,
) -> Option<T> {
    let mut call = Box::pin(call);
    loop {
        let done = env.timeout(Duration::from_millis(50), &mut call).await;
        if done.is_some() || client.is_disconnected() {
            return done;
        }
    }
}

/// The first parts of a file, as a client finds them.
async fn parts(client: &Client, file: Ino) -> Vec<u8> {
    let mut found = Vec::new();
    for number in 0..PARTS {
        let at = u64::from(number) * PART as u64;
        let part = client.read(file, at, PART).await.unwrap().concat();
        if part != vec![number + 1; PART] {
            break;
        }
        found.push(number);
    }
    found
}

/// A journal that fills up while the server is away stops the writers, and no longer than that is so. The client may crash when it is full.
#[test]
fn writers_wait_while_the_journal_is_full_and_the_server_is_away() {
    for (away, crashes) in
        [(LEASE * 3 / 4, false), (LEASE * 3 / 4, true), (3 * EXPIRE, false), (3 * EXPIRE, true)]
    {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            client.drain().await.unwrap();
            scene.stop().await;
            let (writes, written) =
                (client.clone(), std::sync::Arc::new(parking_lot::Mutex::new(0)));
            let counts = written.clone();
            let writing = machine.process.env().spawn(async move {
                for number in 0..PARTS {
                    write_part(&writes, file, number).await?;
                    *counts.lock() = number + 1;
                }
                Ok::<(), FsError>(())
            });
            env.sleep(away).await;
            let before = *written.lock();
            assert!((5..PARTS).contains(&before), "{before} writes of {PARTS}");
            assert!(!writing.is_finished(), "it waits for room");
            let room = client.pending().journal.unwrap().room;
            assert!(room.used < room.size, "{room:?}");
            if crashes {
                machine.crash(Shape::Nothing);
                scene.start(Shape::Nothing).await;
                drop(client);
                let again = machine.mount(&scene, true).await.unwrap();
                let seen = find(&again).await;
                let found = parts(&again, seen).await.len();
                assert!(found >= usize::from(before), "{found} of {before}");
                return;
            }
            scene.start(Shape::Nothing).await;
            writing.await.unwrap().unwrap();
            assert_eq!((client.status().lost, client.status().evictions), (0, 0));
            let visitor = scene.client("other").await;
            let seen = find(&visitor.client).await;
            assert_eq!(parts(&visitor.client, seen).await.len(), usize::from(PARTS));
        });
    }
}

/// With `disconnected=error` writers get an error when the lease is over, also while the journal is full, and what was synced is there.
#[test]
fn writers_get_an_error_while_the_server_is_away_and_what_was_synced_survives() {
    for crashes in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            client.drain().await.unwrap();
            scene.stop().await;
            let (begun, mut synced) = (env.now(), 0);
            for number in 0..PARTS {
                let wrote = write_part(&client, file, number);
                match until_disconnected(&client, &env, wrote).await {
                    Some(Ok(())) => synced = number + 1,
                    Some(Err(_)) | None => break,
                }
            }
            assert!((5..PARTS).contains(&synced), "{synced} writes of {PARTS}");
            let took = env.now().since(begun);
            assert!(took <= LEASE + Duration::from_millis(100), "{took:?}");
            // Another one fails as soon.
            let later = until_disconnected(&client, &env, write_part(&client, file, synced)).await;
            assert!(!matches!(later, Some(Ok(()))), "{later:?}");
            scene.start(Shape::Nothing).await;
            if crashes {
                machine.crash(Shape::Nothing);
                let again = machine.mount(&scene, true).await.unwrap();
                let seen = find(&again).await;
                assert!(parts(&again, seen).await.len() >= usize::from(synced));
                return;
            }
            for number in synced..PARTS {
                write_part(&client, file, number).await.unwrap();
            }
            assert_eq!(client.status().lost, 0);
            let visitor = scene.client("other").await;
            let seen = find(&visitor.client).await;
            assert_eq!(parts(&visitor.client, seen).await.len(), usize::from(PARTS));
        });
    }
}

/// With `soft` writers wait for the server for so long and no longer, also while the journal is full, and what was synced is there.
#[test]
fn writers_give_up_after_a_time_while_the_journal_is_full() {
    let patience = 2 * LEASE;
    for crashes in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let options = client::Options { retry: Some(patience), ..machine.options(true) };
            let connector = Box::new(machine.host().connector(&scene.server, PORT));
            let client = Client::connect(machine.process.env(), connector, options).await.unwrap();
            let directory = alone(&client, "d").await;
            let file = make(&client, directory, "file", Node::File).await;
            client.reference(file);
            client.drain().await.unwrap();
            scene.stop().await;
            let (begun, mut synced) = (env.now(), 0);
            let error = loop {
                match write_part(&client, file, synced).await {
                    Ok(()) => synced += 1,
                    Err(error) => break error,
                }
            };
            assert!((5..PARTS).contains(&synced), "{synced} writes of {PARTS}");
            assert!(matches!(error, FsError::Store(_)), "{error:?}");
            let took = env.now().since(begun);
            assert!((patience..2 * patience).contains(&took), "{took:?}");
            if crashes {
                machine.crash(Shape::Nothing);
                drop(client);
                scene.start(Shape::Nothing).await;
                let again = machine.mount(&scene, true).await.unwrap();
                let seen = find(&again).await;
                assert!(parts(&again, seen).await.len() >= usize::from(synced));
                return;
            }
            scene.start(Shape::Nothing).await;
            // The write that has failed is made again, as a program would.
            let begun = env.now();
            while synced < PARTS {
                match write_part(&client, file, synced).await {
                    Ok(()) => synced += 1,
                    Err(error) => assert!(env.now().since(begun) < LEASE, "{error}"),
                }
                env.sleep(Duration::from_millis(10)).await;
            }
            assert_eq!((client.status().lost, client.status().evictions), (0, 0));
            let visitor = scene.client("other").await;
            let seen = find(&visitor.client).await;
            assert_eq!(parts(&visitor.client, seen).await.len(), usize::from(PARTS));
        });
    }
}

/// A client that is away with new files of so many bytes together, on a small volume.
async fn away_with(scene: &Scene, machine: &mut Journaled, files: u8) {
    let client = machine.mount(scene, true).await.unwrap();
    let directory = alone(&client, "d").await;
    client.wait_for(directory, Level::Server, LEASE).await.unwrap();
    for number in 0..files {
        let file = make(&client, directory, &format!("n{number}"), Node::File).await;
        client.reference(file);
        let data = vec![Bytes::from(vec![number + 1; 20_000])];
        client.write(file, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
    }
    client.sync_all().await.unwrap();
    assert!(client.pending().unsent.changes > 0, "the server has it");
    machine.crash(Shape::Nothing);
    drop(client);
}

async fn check_files(client: &Client, files: u8) {
    let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
    client.reference(directory);
    for number in 0..files {
        let file = client.find(directory, format!("n{number}").as_bytes()).await.unwrap();
        client.reference(file.ino);
        let bytes = client.read(file.ino, 0, 100_000).await.unwrap().concat();
        assert_eq!(bytes, vec![number + 1; 20_000], "n{number}");
    }
}

/// Removes everything from a directory, so that its room is free.
async fn empty(fs: &dyn Filesystem, directory: Ino) {
    for entry in fs.read_directory(directory, Cookie::START, 1000, false).await.unwrap() {
        fs.unlink(directory, &entry.name).await.unwrap();
        fs.unreference(entry.ino, 1);
    }
    fs.sync_all().await.unwrap();
}

/// Room that the server has promised is the client's until a caller that lacks room has waited for it: a client that is back by then has it.
#[test]
fn a_client_that_is_back_within_the_hold_has_its_room() {
    for conflict in [ConflictScope::Prefix, ConflictScope::File] {
        run(1, move |env| async move {
            let hold = 4 * EXPIRE;
            let scene = Scene::small_with(&env, server::Options { hold, ..options() }).await;
            let mut machine = Journaled::new(&scene, "a").await;
            machine.conflict = conflict;
            away_with(&scene, &mut machine, 8).await;
            let visitor = scene.client("other").await;
            let other = visitor.client.clone();
            let filling = env.spawn(async move {
                let own = alone(&other, "o").await;
                fill(&other, own, "f").await
            });
            env.sleep(hold - LEASE).await;
            assert!(!filling.is_finished(), "it waits for the room that was promised");
            let again = machine.mount(&scene, true).await.unwrap();
            check_files(&again, 8).await;
            assert!(filling.await.unwrap() > 0);
            check_files(&visitor.client, 8).await;
            assert_eq!(lists(&again).await, []);
        });
    }
}

/// Another client has filled the volume meanwhile: the journal waits for room. So does one whose volume was filled past the server.
#[test]
fn what_a_full_volume_does_not_take_is_written_back_when_there_is_room() {
    for (conflict, by_client, restarts) in [
        (ConflictScope::Prefix, true, false),
        (ConflictScope::File, true, true),
        (ConflictScope::File, false, false),
        (ConflictScope::Prefix, false, true),
    ] {
        run(1, move |env| async move {
            let mut scene = Scene::small(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            machine.conflict = conflict;
            away_with(&scene, &mut machine, 8).await;
            env.sleep(3 * EXPIRE).await;
            if restarts {
                scene.crash(Shape::Nothing).await;
            }
            let visitor = scene.client("other").await;
            let files: &dyn Filesystem = if by_client { &visitor.client } else { &*scene.files };
            let top = make(files, Ino::ROOT, "top", Node::Directory).await;
            files.reference(top);
            assert!(fill(files, top, "f").await > 0);
            files.sync_all().await.unwrap();
            let before = journal::inspect(&env, &machine.device()).await.unwrap();
            for _ in 0..2 {
                let refused = machine.mount(&scene, true).await;
                let Err(AttachError::Pending { why, .. }) = refused else { panic!("{refused:?}") };
                assert!(why.contains("space"), "{why}");
                let after = journal::inspect(&env, &machine.device()).await.unwrap();
                assert_eq!((after.changes, after.bytes), (before.changes, before.bytes));
                machine.crash(Shape::Nothing);
            }
            empty(files, top).await;
            env.sleep(2 * EXPIRE).await;
            let again = machine.mount(&scene, true).await.unwrap();
            check_files(&again, 8).await;
            check_files(&visitor.client, 8).await;
            assert_eq!(lists(&again).await, []);
            assert_eq!(text_at(&again, "d/one").await.as_deref(), Some(""));
        });
    }
}
