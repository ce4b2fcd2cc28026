//! A mount moves to another machine.

use std::time::Duration;

use bytes::Bytes;
use futures::future::{join, join3};
use thalweg_cluster::client::{self, Client, MoveError, journal};
use thalweg_fs::{Caller, Filesystem, FsError, Ino, Node, OpenFlags, WriteAt, WriteHow};
use thalweg_net::keys::Access;
use thalweg_sim::crash::Shape;
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_store::device::Geometry;

use crate::full::alone;
use crate::journal::{Journaled, begin, find};
use crate::move_node::{arrived, receive, target};
use crate::scene::*;

/// What another client finds in the file.
async fn seen(scene: &Scene) -> String {
    let visitor = scene.client("other").await;
    text(&visitor.client, find(&visitor.client).await).await
}

/// Two machines; a mount of the first one with a file in a directory of its own.
async fn machines(scene: &Scene) -> (Journaled, Journaled) {
    (Journaled::new(scene, "a").await, Journaled::new(scene, "b").await)
}

#[test]
fn a_mount_moves_with_what_the_server_does_not_have() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (from, to) = machines(&scene).await;
        let (client, file) = begin(&scene, &from, true).await;
        put(&client, file, "first").await.unwrap();
        client.sync(file, false).await.unwrap();
        let receiver = receive(&scene, &to, true).await.unwrap();
        put(&client, file, "second").await.unwrap();
        let unsent = client.status().unsent;
        assert!(unsent > 0);
        let moving = client.move_to(target(&from, &to), false);
        let (moved, there) = join(moving, arrived(&receiver)).await;
        let moved = moved.unwrap();
        assert!(moved.has_arrived && moved.changes >= unsent as u64, "{moved:?}");
        // The server has been sent nothing of it.
        assert_eq!(there.status().unsent, unsent);
        let file = find(&there).await;
        let before = calls(&there);
        assert_eq!(text(&there, file).await, "second");
        put(&there, file, "third!").await.unwrap();
        there.sync(file, false).await.unwrap();
        assert_eq!(calls(&there), before, "what is delegated takes no call");
        // Nothing is left where it was.
        assert!(matches!(client.attributes(file).await, Err(FsError::Stale)));
        assert!(matches!(put(&client, file, "late").await, Err(FsError::Stale)));
        assert!(matches!(client.sync(file, false).await, Err(FsError::Stale)));
        assert_eq!(client.status().unsent, 0);
        client.close().await;
        assert_eq!(seen(&scene).await, "third!");
        there.close().await;
        // Both may be mounted again.
        for machine in [&from, &to] {
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text(&again, find(&again).await).await, "third!");
            again.close().await;
        }
    });
}

/// Why a move is refused that begins now.
async fn refused(client: &Client, from: &Journaled, to: &Journaled) -> String {
    client.move_to(target(from, to), false).await.unwrap_err().to_string()
}

/// Whether the mount goes on where it is: without the server's help, and with it.
async fn goes_on(client: &Client, file: Ino, scene: &Scene) {
    put(client, file, "goes on").await.unwrap();
    client.sync(file, false).await.unwrap();
    assert!(seen(scene).await.starts_with("goes on"));
}

#[test]
fn a_move_that_cannot_be_is_refused_and_the_mount_goes_on() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (from, to) = machines(&scene).await;
        let (client, file) = begin(&scene, &from, true).await;
        let why = refused(&client, &from, &to).await;
        assert!(why.contains("b cannot be reached: connection refused"), "{why}");
        goes_on(&client, file, &scene).await;
        // Another directory of the server, and other rights.
        let below = Visit { path: "/d", access: Access::Write };
        let reads = Visit { path: "/", access: Access::Read };
        for (visit, expected) in [(below, "another directory"), (reads, "other rights")] {
            let other = Journaled::new(&scene, "c").await;
            scene.admit(visit.of("c"));
            let _receiver = receive(&scene, &other, true).await.unwrap();
            let why = refused(&client, &from, &other).await;
            assert!(why.contains(expected), "{why}");
            other.process.kill();
            env.sleep(Duration::from_millis(1)).await;
        }
        // One that has a mount.
        let used = Journaled::new(&scene, "e").await;
        let receiver = receive(&scene, &used, true).await.unwrap();
        let another = Journaled::new(&scene, "f").await;
        let moving = another.mount(&scene, true).await.unwrap();
        let at = target(&another, &used);
        let (moved, there) = join(moving.move_to(at, false), arrived(&receiver)).await;
        moved.unwrap();
        let why = refused(&client, &from, &used).await;
        assert!(why.contains("another one is there"), "{why}");
        there.close().await;
        let visitor = scene.client("without").await;
        let why = refused(&visitor.client, &from, &used).await;
        assert!(why.contains("no journal"), "{why}");
        goes_on(&client, file, &scene).await;
    });
}

#[test]
fn a_journal_without_room_for_what_is_to_move_is_refused() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (from, to) = machines(&scene).await;
        let recorder = Recorder::with_latency(&env, Duration::from_micros(100));
        let mut devices = Vec::new();
        for (name, size) in [("large", 32 << 20), ("small", journal::MIN_SIZE)] {
            let device = recorder.device(name, Geometry { size, sector: 512 });
            journal::create(&env, &device).await.unwrap();
            devices.push(device);
        }
        let small = to.with_device(devices.pop().unwrap());
        let large = from.with_device(devices.pop().unwrap());
        let recall = Duration::from_secs(3600);
        let options = client::Options { recall, memory: 64 << 20, ..large.options(true) };
        let connector = Box::new(large.host().connector(&scene.server, PORT));
        let connecting = Client::connect(large.process.env(), connector, options);
        let client = connecting.await.unwrap();
        let directory = alone(&client, "d").await;
        let file = make(&client, directory, "file", Node::File).await;
        client.reference(file);
        let _receiver = receive(&scene, &small, true).await.unwrap();
        // To blocks that are there: further ones would take room, and calls for that.
        for number in 0..60 {
            let data = vec![Bytes::from(vec![1; 100_000])];
            let at = WriteAt::Offset(number % 6 * 100_000);
            client.write(file, at, data, WriteHow::default()).await.unwrap();
        }
        client.commit().await.unwrap();
        let why = refused(&client, &large, &small).await;
        assert!(why.contains("is too small"), "{why}");
        goes_on(&client, file, &scene).await;
    });
}

/// A program that writes would find its file stale: it is moved with its consent only.
#[test]
fn a_mount_with_files_that_are_open_for_writing_moves_when_it_is_forced() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (from, to) = machines(&scene).await;
        let (client, file) = begin(&scene, &from, true).await;
        let reading = OpenFlags { write: false, ..WRITING };
        client.open(&Caller::default(), file, reading).await.unwrap();
        let handle = client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
        put(&client, file, "text").await.unwrap();
        let receiver = receive(&scene, &to, true).await.unwrap();
        let open = client.move_to(target(&from, &to), false).await;
        assert!(matches!(open, Err(MoveError::Open { writing: 1 })), "{open:?}");
        put(&client, file, "more").await.unwrap();
        let moving = client.move_to(target(&from, &to), true);
        let (moved, there) = join(moving, arrived(&receiver)).await;
        moved.unwrap();
        assert!(matches!(put(&client, file, "late").await, Err(FsError::Stale)));
        client.release(file, handle).await;
        assert_eq!(text(&there, find(&there).await).await, "more");
    });
}

/// Another client that wants what is delegated while the mount moves gets it from the machine that has it then.
#[test]
fn a_recall_during_a_move_is_answered_by_the_one_that_has_the_mount() {
    for delay in (0..6000).step_by(100) {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (from, to) = machines(&scene).await;
            let (client, file) = begin(&scene, &from, true).await;
            put(&client, file, "text").await.unwrap();
            client.sync(file, false).await.unwrap();
            let receiver = receive(&scene, &to, true).await.unwrap();
            let other = scene.client("other").await;
            let looking = async {
                env.sleep(Duration::from_micros(delay)).await;
                let begun = env.now();
                let found = text(&other.client, find(&other.client).await).await;
                (found, env.now().since(begun))
            };
            let moving = client.move_to(target(&from, &to), false);
            let (moved, there, (found, took)) = join3(moving, arrived(&receiver), looking).await;
            moved.unwrap();
            assert_eq!(found, "text");
            assert!(took < LEASE / 2, "it has waited for {took:?}, {delay} µs after the begin");
            assert_eq!(text(&there, find(&there).await).await, "text");
            assert_eq!(there.status().evictions, 0);
        });
    }
}

/// A mount moves there and back again, and what each has made stays.
#[test]
fn a_mount_moves_back() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = machines(&scene).await;
        let machines = [machines.0, machines.1];
        let (mut client, _) = begin(&scene, &machines[0], true).await;
        let mut expected = Vec::new();
        for round in 0..6 {
            let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
            client.reference(directory);
            for number in 0..3 {
                let name = format!("round-{round}-{number}");
                let made = make(&client, directory, &name, Node::File).await;
                client.reference(made);
                put(&client, made, &name).await.unwrap();
                expected.push(name);
            }
            let (from, to) = (&machines[round % 2], &machines[(round + 1) % 2]);
            let receiver = receive(&scene, to, true).await.unwrap();
            let moving = client.move_to(target(from, to), false);
            let (moved, there) = join(moving, arrived(&receiver)).await;
            moved.unwrap();
            client = there;
        }
        assert!(client.status().unsent >= expected.len());
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        let directory = other.find(Ino::ROOT, b"d").await.unwrap().ino;
        other.reference(directory);
        for name in expected {
            let found = other.find(directory, name.as_bytes()).await.unwrap().ino;
            other.reference(found);
            assert_eq!(text(other, found).await, name);
        }
    });
}

/// The machine that a mount moves from loses its power, and its connections do not end by that. Wherever the session is by then, the mount goes on
/// there with everything that was synced.
#[test]
fn a_machine_that_is_lost_at_the_switch_in_silence() {
    let mut moved = 0;
    let moments: Vec<u64> = (0..5_000).step_by(125).collect();
    let all = moments.len();
    for micros in moments {
        moved += run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (mut from, to) = machines(&scene).await;
            let (client, file) = begin(&scene, &from, true).await;
            put(&client, file, "first").await.unwrap();
            client.drain().await.unwrap();
            let receiver = receive(&scene, &to, true).await.unwrap();
            let there = env.spawn(async move { arrived(&receiver).await });
            put(&client, file, "later").await.unwrap();
            client.sync(file, false).await.unwrap();
            let (own, at) = (client.clone(), target(&from, &to));
            let moving = from.process.env().spawn(async move { own.move_to(at, false).await });
            env.sleep(Duration::from_micros(micros)).await;
            from.crash(Shape::Nothing);
            drop((moving, client));
            let there = env.timeout(Duration::from_secs(30), there).await;
            let moved = usize::from(there.is_some());
            let client = match there {
                Some(there) => there.unwrap(),
                None => from.mount(&scene, true).await.unwrap(),
            };
            assert_eq!(text(&client, find(&client).await).await, "later", "{micros} µs");
            assert_eq!(seen(&scene).await, "later", "{micros} µs");
            moved
        });
    }
    assert!(0 < moved && moved < all, "{moved} of {all} have moved");
}
