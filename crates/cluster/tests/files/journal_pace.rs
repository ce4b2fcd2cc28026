//! When a client commits to its journal, and sends what that has, without being asked (table 7.1 of Arion's paper).

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{self, Client, journal};
use thalweg_env::Env;
use thalweg_fs::{Filesystem, Ino, WriteAt, WriteHow};
use thalweg_sim::net::LinkSpec;
use thalweg_sim::run;

use crate::journal::Journaled;
use crate::scene::*;

const LONG: Duration = Duration::from_secs(3600);

async fn write(client: &Client, file: Ino, offset: u64, len: usize) {
    let data = vec![Bytes::from(vec![7; len])];
    client.write(file, WriteAt::Offset(offset), data, WriteHow::default()).await.unwrap();
}

/// Mounts with these options, and makes a file in a directory of the client alone.
async fn mount(scene: &Scene, machine: &Journaled, options: client::Options) -> (Client, Ino) {
    let connector = Box::new(machine.host().connector(&scene.server, PORT));
    let client = Client::connect(&scene.env, connector, options).await.unwrap();
    let directory = crate::full::alone(&client, "d").await;
    let file = make(&client, directory, "file", thalweg_fs::Node::File).await;
    client.reference(file);
    client.drain().await.unwrap();
    (client, file)
}

#[test]
fn a_commit_begins_when_the_journal_lacks_much() {
    run(1, |env| async move {
        // A quarter of a small journal is as much as the mebibyte of a large one.
        for (size, piece) in [(64 << 20, 64 << 10), (journal::MIN_SIZE / 2 * 3, 20_000)] {
            let scene = Scene::durable(&env).await;
            let machine = Journaled::sized(&scene, "a", size).await;
            let options = client::Options {
                commit: LONG,
                writeback: LONG,
                memory: 64 << 20,
                ..machine.options(true)
            };
            let (client, file) = mount(&scene, &machine, options).await;
            let (mut lacks, mut most) = (0, 0);
            for at in 0..100 {
                write(&client, file, at * piece, piece as usize).await;
                env.sleep(Duration::from_millis(20)).await;
                let pending = client.pending();
                lacks = pending.unsent.bytes - pending.in_journal.bytes;
                most = lacks.max(most);
            }
            let bound = (1 << 20) + piece;
            assert!(most < bound && most > bound / 2, "{most} of {bound}, {lacks} at last");
        }
    });
}

#[test]
fn a_small_journal_takes_every_sync() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::sized(&scene, "a", 4 * journal::MIN_SIZE).await;
        let options = client::Options {
            writeback: LONG,
            expire: LONG,
            memory: 64 << 20,
            ..machine.options(true)
        };
        let (client, file) = mount(&scene, &machine, options).await;
        // Each takes a sector of the journal, which is filled twice.
        let mut most = 0;
        for at in 0..60_000 {
            write(&client, file, at % 1000 * 128, 128).await;
            assert!(client.commit().await.unwrap(), "commit {at} is not in the journal");
            env.sleep(Duration::from_micros(300)).await;
            let room = client.pending().journal.unwrap().room;
            most = room.used.max(most);
            assert!(room.used < room.size / 8 * 7, "{room:?} at {at}");
        }
        let size = client.pending().journal.unwrap().room.size;
        assert!(most > size / 3, "the journal was never in use: {most} of {size}");
    });
}

/// What waits is as old as it may be, and no more is sent for it than what is old: so later changes replace it first.
#[test]
fn what_is_old_leaves_and_the_rest_stays() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let expire = Duration::from_secs(10);
        let options =
            client::Options { writeback: Duration::from_secs(1), expire, ..machine.options(true) };
        let (client, file) = mount(&scene, &machine, options).await;
        let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
        let other = make(&client, directory, "other", thalweg_fs::Node::File).await;
        client.reference(other);
        write(&client, other, 0, 100).await;
        let before = calls(&client);
        for round in 0..600 {
            write(&client, file, 0, 1000).await;
            env.sleep(Duration::from_millis(100)).await;
            let oldest = client.pending().oldest_ms.map_or(Duration::ZERO, Duration::from_millis);
            assert!(oldest < expire + Duration::from_secs(2), "{oldest:?} in round {round}");
        }
        // A file behind which another one is busy is sent, too.
        let level = client.level(other).await.unwrap();
        assert!(level >= thalweg_fs::Level::Server, "{level:?}");
        let renewals = 60_000 / LEASE.as_millis() as u64 * 4;
        let sent = calls(&client) - before;
        assert!((5..=12 + renewals).contains(&sent), "{sent} calls, {renewals} of them for leases");
    });
}

#[test]
fn a_sync_to_the_server_is_durable_there() {
    for to_server in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let sync = if to_server { client::SyncTo::Server } else { client::SyncTo::Journal };
            let options = client::Options { sync, ..machine.options(true) };
            let (client, file) = mount(&scene, &machine, options).await;
            for how in 0..3 {
                write(&client, file, how, 100).await;
                match how {
                    0 => client.sync(file, false).await.unwrap(),
                    1 => client.sync_all().await.unwrap(),
                    _ => {
                        let how = WriteHow { sync: true, ..WriteHow::default() };
                        let data = vec![Bytes::from_static(b"synced")];
                        client.write(file, WriteAt::Offset(500), data, how).await.unwrap();
                    }
                }
                assert_eq!(client.status().unsent == 0, to_server, "{how}");
            }
            // Both machines are lost, and the journal.
            machine.process.kill();
            machine.crash(thalweg_sim::crash::Shape::Nothing);
            drop(client);
            scene.crash(thalweg_sim::crash::Shape::Nothing).await;
            let other = scene.client("b").await;
            let directory = other.client.find(Ino::ROOT, b"d").await.unwrap().ino;
            let found = other.client.find(directory, b"file").await.unwrap().attributes;
            assert_eq!(found.size == 506, to_server, "{found:?}");
        });
    }
}

/// Bytes that the link of a slow client carries in a second.
const SLOW: u64 = 2 << 20;

/// Has the link between a machine and the server be slow.
fn slow_down(scene: &Scene, machine: &Journaled) {
    let link = LinkSpec { bandwidth: SLOW, ..LinkSpec::of(Duration::from_millis(1)) };
    scene.network.set_links(&machine.host(), &scene.server, link);
}

/// Messages for a purpose that a client has sent.
fn messages(client: &Client, purpose: &str) -> u64 {
    client.traffic().sent_for(purpose).messages
}

#[test]
fn makers_wait_for_a_batch_and_not_for_all_that_waits() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::sized(&scene, "a", 256 << 20).await;
        slow_down(&scene, &machine);
        let options = client::Options {
            writeback: LONG,
            recall: Duration::from_secs(8),
            memory: 64 << 20,
            batch: 256 << 10,
            ..machine.options(true)
        };
        let (client, file) = mount(&scene, &machine, options).await;
        let (mut longest, mut most, piece) = (Duration::ZERO, 0, 64 << 10);
        // So that it knows its link.
        for at in 0..256 {
            write(&client, file, at % 64 * piece, piece as usize).await;
            if at % 64 == 63 {
                client.drain().await.unwrap();
            }
        }
        for at in 0..2000 {
            let begun = env.now();
            write(&client, file, at % 64 * piece, piece as usize).await;
            longest = env.now().since(begun).max(longest);
            most = client.pending().unsent.bytes.max(most);
        }
        // What the link carries in that time waits, and half as much again.
        assert!(most > 16 << 20, "{most} bytes wait: the makers never had to");
        assert!(longest < Duration::from_secs(1), "a write has waited for {longest:?}");
        assert!(longest > Duration::from_millis(50), "no write has waited");
    });
}

/// The longest time that a new file takes of 64 KiB, of which one is made after each pause; they take more than the client is promised: a
/// quarter of what is free.
async fn longest_of_files(env: &Env, pause: Duration) -> Duration {
    let scene = Scene::durable(env).await;
    let machine = Journaled::sized(&scene, "a", 64 << 20).await;
    slow_down(&scene, &machine);
    let options = client::Options {
        writeback: LONG,
        memory: 64 << 20,
        batch: 128 << 10,
        ..machine.options(true)
    };
    let (client, _) = mount(&scene, &machine, options).await;
    let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
    let (created, wrote) = (messages(&client, "Create"), messages(&client, "Write"));
    let (mut longest, mut total) = (Duration::ZERO, 0);
    for at in 0..80 {
        env.sleep(pause).await;
        let begun = env.now();
        let name = format!("file{at}");
        let file = make(&client, directory, &name, thalweg_fs::Node::File).await;
        client.reference(file);
        write(&client, file, 0, 64 << 10).await;
        client.unreference(file, 1);
        longest = env.now().since(begun).max(longest);
        total += 64 << 10;
    }
    assert_eq!(messages(&client, "Create"), created, "a file was made by a call");
    assert_eq!(messages(&client, "Write"), wrote, "a file was written by a call");
    let sent = total - client.pending().unsent.bytes;
    assert!(sent > 1 << 20, "{sent} bytes were sent: the promise was enough");
    longest
}

#[test]
fn makers_without_room_wait_for_a_batch_and_not_for_all_that_waits() {
    run(1, |env| async move {
        let longest = longest_of_files(&env, Duration::ZERO).await;
        assert!(longest < Duration::from_millis(400), "a file has waited for {longest:?}");
        // Not as fast as the link: the server has some before the promise is used up.
        let longest = longest_of_files(&env, Duration::from_millis(50)).await;
        assert!(longest < Duration::from_millis(30), "a file has waited for {longest:?}");
    });
}

#[test]
fn what_waits_in_memory_is_sent_in_the_background_unless_it_is_replaced() {
    run(1, |env| async move {
        for (background, blocks, is_sent) in
            [(Some(256 << 10), 128, true), (Some(256 << 10), 4, false), (None, 128, false)]
        {
            let scene = Scene::durable(&env).await;
            let machine = Journaled::sized(&scene, "a", 64 << 20).await;
            let options = client::Options {
                writeback: LONG,
                memory: 64 << 20,
                background,
                ..machine.options(true)
            };
            let (client, file) = mount(&scene, &machine, options).await;
            let (mut most, written) = (0, 1024 * 4096);
            for at in 0..1024 {
                write(&client, file, at % blocks * 4096, 4096).await;
                env.sleep(Duration::from_millis(1)).await;
                most = client.pending().unsent.bytes.max(most);
            }
            let left = client.pending().unsent.bytes;
            match is_sent {
                true => assert!(most < 512 << 10, "{most} bytes have waited"),
                false => assert_eq!(left, written),
            }
        }
    });
}
