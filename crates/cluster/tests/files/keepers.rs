//! Copies of a client's journal at keepers: what a sync costs, keepers that are away, take-overs, and clients that come back after them.

use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{self, Client, CopyState};
use thalweg_fs::{Cookie, Filesystem, Ino, Level, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::journal::{Journaled, begin, find};
use crate::keeper_node::KeeperNode;
use crate::scene::*;

/// A machine with a journal, and its keepers.
pub(crate) async fn kept(scene: &Scene, are_durable: &[bool]) -> (Journaled, Vec<KeeperNode>) {
    let mut machine = Journaled::new(scene, "a").await;
    let keepers: Vec<_> = (0..)
        .zip(are_durable)
        .map(|(number, is_durable)| KeeperNode::new(scene, &format!("keeper{number}"), *is_durable))
        .collect();
    machine.keepers = keepers.iter().map(|keeper| keeper.target(&machine)).collect();
    (machine, keepers)
}

fn states(client: &Client) -> Vec<CopyState> {
    let journal = client.pending().journal.unwrap();
    journal.copies.iter().map(|copy| copy.state).collect()
}

/// Messages to keepers, without those that come by the clock.
fn copied(client: &Client) -> u64 {
    let sent = client.copy_traffic().unwrap().sent();
    sent.iter().filter(|(what, _)| **what != "Release").map(|(_, sent)| sent.messages).sum()
}

/// What another client finds in the file.
async fn seen(scene: &Scene) -> String {
    let visitor = scene.client("other").await;
    text(&visitor.client, find(&visitor.client).await).await
}

#[test]
fn a_sync_is_one_message_to_each_keeper() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, _keepers) = kept(&scene, &[true, false]).await;
        let (client, file) = begin(&scene, &machine, true).await;
        assert_eq!(states(&client), [CopyState::Current; 2]);
        put(&client, file, "text").await.unwrap();
        client.sync(file, false).await.unwrap();
        let (calls_before, before) = (calls(&client), copied(&client));
        for number in 0..20 {
            let data = vec![Bytes::from(vec![number; 128])];
            client.write(file, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
            client.sync(file, true).await.unwrap();
        }
        assert_eq!((calls(&client), copied(&client) - before), (calls_before, 2 * 20));
    });
}

/// The client is lost with its journal: a keeper has what was synced.
#[test]
fn a_take_over_writes_back_what_was_synced() {
    for is_durable in [true, false] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (mut machine, keepers) = kept(&scene, &[is_durable]).await;
            let (client, file) = begin(&scene, &machine, true).await;
            put(&client, file, "synced").await.unwrap();
            client.sync(file, false).await.unwrap();
            assert!(client.status().unsent > 0);
            machine.lose().await;
            drop(client);
            let taken = keepers[0].take_over(&scene, "a").await;
            assert!(taken[0].written > 0 && taken[0].set_aside == 0, "{taken:?}");
            assert_eq!(seen(&scene).await, "synced");
            // Nothing is left of the client at the server, and a second take-over finds nothing.
            assert_eq!(scene.service.sessions().iter().filter(|it| it.client == "a").count(), 0);
            let taken = keepers[0].take_over(&scene, "a").await;
            assert_eq!((taken.len(), taken[0].written), (1, 0));
            // The machine that takes its place begins anew.
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text(&again, find(&again).await).await, "synced");
            assert_eq!(states(&again), [CopyState::Current]);
        });
    }
}

/// Without its keeper the client has one copy: a sync waits for the server. When the keeper is back it gets what it lacks.
#[test]
fn without_its_keeper_a_sync_waits_for_the_server() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (mut machine, keepers) = kept(&scene, &[true, true]).await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "first").await.unwrap();
        client.sync(file, false).await.unwrap();
        let keeper = std::slice::from_ref(&keepers[1].host);
        scene.network.part(&[machine.host()], keeper);
        put(&client, file, "second").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert_eq!(states(&client), [CopyState::Current, CopyState::Away]);
        assert_eq!(client.status().unsent, 0);
        assert_eq!(client.level(file).await.unwrap(), Level::Server);
        // There is neither a copy nor the server.
        scene.network.part(&[machine.host()], std::slice::from_ref(&scene.server));
        put(&client, file, "third").await.unwrap();
        let (waiting, own) = (client.clone(), machine.process.env());
        let syncing = own.spawn(async move { waiting.sync(file, false).await });
        env.sleep(LEASE / 2).await;
        assert!(!syncing.is_finished(), "a sync ends with one copy");
        assert_eq!(client.level(file).await.unwrap(), Level::Memory);
        scene.network.heal();
        syncing.await.unwrap().unwrap();
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(states(&client), [CopyState::Current; 2]);
        let before = calls(&client);
        put(&client, file, "fourth").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert!(calls(&client) - before < 2 && client.status().unsent > 0);
        machine.lose().await;
        drop(client);
        keepers[1].take_over(&scene, "a").await;
        assert_eq!(seen(&scene).await, "fourth");
        // Both have all of it.
        let late = keepers[0].take_over(&scene, "a").await;
        assert!(late[0].stale > 0 && late[0].written == 0, "{late:?}");
    });
}

/// A client that was cut off, and taken for lost, comes back: no sync of it succeeds any more, and what it has is not written back.
#[test]
fn a_client_that_comes_back_after_a_take_over_is_refused() {
    for cuts_keeper in [true, false] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (machine, keepers) = kept(&scene, &[true]).await;
            let (client, file) = begin(&scene, &machine, true).await;
            put(&client, file, "first").await.unwrap();
            client.sync(file, false).await.unwrap();
            let (own, keeper) = ([machine.host()], std::slice::from_ref(&keepers[0].host));
            scene.network.part(&own, std::slice::from_ref(&scene.server));
            if cuts_keeper {
                scene.network.part(&own, keeper);
            }
            let taken = keepers[0].take_over(&scene, "a").await;
            assert!(taken[0].written > 0, "{taken:?}");
            let visitor = scene.client("other").await;
            let theirs = find(&visitor.client).await;
            put(&visitor.client, theirs, "other").await.unwrap();
            visitor.client.sync(theirs, false).await.unwrap();
            // Its lease may last for some time.
            put(&client, file, "after").await.unwrap();
            let (waiting, own) = (client.clone(), machine.process.env());
            let syncing = own.spawn(async move { waiting.sync(file, false).await });
            env.sleep(Duration::from_secs(5)).await;
            assert!(!syncing.is_finished(), "a sync ends after the take-over");
            let state = if cuts_keeper { CopyState::Away } else { CopyState::Refused };
            assert_eq!(states(&client), [state]);
            scene.network.heal();
            syncing.await.unwrap().unwrap_err();
            env.sleep(2 * EXPIRE).await;
            assert_eq!(client.status().evictions, 1);
            assert_eq!(text(&visitor.client, theirs).await, "other");
            drop(client);
            // Nor is its journal written back.
            let refused = machine.mount(&scene, true).await.unwrap_err().to_string();
            assert!(refused.contains("the server has ended the session"), "{refused}");
        });
    }
}

/// An unmount in order leaves nothing at a keeper; one that leaves the rest in the journal leaves the copy, too.
#[test]
fn a_copy_ends_with_its_journal() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (machine, keepers) = kept(&scene, &[true, false]).await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "left").await.unwrap();
        client.leave().await.unwrap();
        drop(client);
        let copies = async || {
            let mut counts = Vec::new();
            for keeper in &keepers {
                counts.push(keeper.keeper.copies().await.len());
            }
            counts
        };
        assert_eq!(copies().await, [1, 1]);
        // The copies of the session before go.
        let again = machine.mount(&scene, true).await.unwrap();
        assert_eq!(copies().await, [1, 1]);
        assert_eq!(text(&again, find(&again).await).await, "left");
        again.close().await;
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(copies().await, [0, 0]);
        assert!(keepers[0].keeper.seal("a").await.unwrap().is_empty());
    });
}

/// What a keeper has in memory is written when it ends in order. When it crashes the copy begins anew, with what the server does not
/// have.
#[test]
fn a_copy_in_memory_survives_an_end_in_order_and_begins_anew_after_a_crash() {
    for crashes in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (mut machine, mut keepers) = kept(&scene, &[false]).await;
            let (client, file) = begin(&scene, &machine, true).await;
            client.drain().await.unwrap();
            for text in ["first", "second"] {
                put(&client, file, text).await.unwrap();
                client.sync(file, false).await.unwrap();
                match crashes {
                    true => keepers[0].crash(Shape::Nothing),
                    false => keepers[0].restart().await,
                }
                env.sleep(Duration::from_secs(5)).await;
                assert_eq!(states(&client), [CopyState::Current]);
            }
            assert!(client.status().unsent > 0);
            machine.lose().await;
            drop(client);
            let taken = keepers[0].take_over(&scene, "a").await;
            assert!(taken[0].written > 0, "{taken:?}");
            assert_eq!(seen(&scene).await, "second");
        });
    }
}

/// While a keeper is away the server makes everything durable, and the journal forgets it: the copy begins with what follows.
#[test]
fn a_copy_that_lacks_what_the_journal_has_released_begins_anew() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (mut machine, keepers) = kept(&scene, &[true]).await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "first").await.unwrap();
        client.sync(file, false).await.unwrap();
        let keeper = std::slice::from_ref(&keepers[0].host);
        scene.network.part(&[machine.host()], keeper);
        for number in 0..5 {
            put(&client, file, &format!("number {number}")).await.unwrap();
            client.sync(file, false).await.unwrap();
        }
        client.drain().await.unwrap();
        scene.network.heal();
        env.sleep(Duration::from_secs(10)).await;
        put(&client, file, "number 5").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert_eq!(states(&client), [CopyState::Current]);
        machine.lose().await;
        drop(client);
        let taken = keepers[0].take_over(&scene, "a").await;
        assert_eq!(taken[0].written, 1);
        assert_eq!(seen(&scene).await, "number 5");
    });
}

/// The copy takes less than the journal: the client waits for the server, which makes room.
#[test]
fn a_full_copy_waits_for_the_server() {
    for is_durable in [true, false] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (mut machine, keepers) = kept(&scene, &[is_durable]).await;
            let (client, file) = begin(&scene, &machine, true).await;
            let mut bytes = vec![0; 150_000];
            for number in 1..80_u8 {
                bytes.fill(number);
                let data = vec![Bytes::copy_from_slice(&bytes)];
                client.write(file, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
                client.sync(file, true).await.unwrap();
            }
            assert_eq!(client.status().lost, 0);
            machine.lose().await;
            drop(client);
            keepers[0].take_over(&scene, "a").await;
            let visitor = scene.client("other").await;
            let seen = find(&visitor.client).await;
            let found = visitor.client.read(seen, 0, 1 << 20).await.unwrap().concat();
            assert!(found == bytes, "other bytes are there than were synced");
        });
    }
}

/// What a keeper had before it was away counts: what it gets afterwards comes behind that.
#[test]
fn a_copy_goes_on_with_what_it_lacks() {
    for restarts in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (mut machine, mut keepers) = kept(&scene, &[true]).await;
            let (client, file) = begin(&scene, &machine, true).await;
            client.drain().await.unwrap();
            put(&client, file, "first, ").await.unwrap();
            client.sync(file, false).await.unwrap();
            let keeper = keepers[0].host.clone();
            scene.network.part(&[machine.host()], &[keeper]);
            for (at, text) in [(7, "second, "), (15, "third, ")] {
                let data = vec![Bytes::from(text)];
                client.write(file, WriteAt::Offset(at), data, WriteHow::default()).await.unwrap();
                env.sleep(2 * client::Options::default().commit).await;
            }
            assert_eq!(states(&client), [CopyState::Away]);
            if restarts {
                keepers[0].crash(Shape::Nothing);
            }
            scene.network.heal();
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(states(&client), [CopyState::Current]);
            // The server has nothing of it.
            assert_eq!(client.pending().unsent.changes, 3);
            let before = calls(&client);
            client.sync(file, false).await.unwrap();
            assert_eq!(calls(&client), before);
            machine.lose().await;
            drop(client);
            let taken = keepers[0].take_over(&scene, "a").await;
            assert_eq!(taken[0].written, 3);
            assert_eq!(seen(&scene).await, "first, second, third, ");
        });
    }
}

/// The server's answer is not enough for a copy either: its machine may lose what it has answered, with the client's.
#[test]
fn a_copy_keeps_what_the_server_has_not_made_durable() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        // In memory nothing is left of what is released.
        let (mut machine, keepers) = kept(&scene, &[false]).await;
        let (client, file) = begin(&scene, &machine, false).await;
        client.drain().await.unwrap();
        for text in ["zeroth", "first", "other"] {
            put(&client, file, text).await.unwrap();
            client.sync(file, false).await.unwrap();
        }
        while client.status().unsent > 0 {
            env.sleep(Duration::from_millis(5)).await;
        }
        // The client looks for what it may release.
        env.sleep(Duration::from_millis(200)).await;
        assert!(client.pending().undurable > 0, "the server made it durable at once");
        let data = vec![Bytes::from(", second")];
        client.write(file, WriteAt::Offset(6), data, WriteHow::default()).await.unwrap();
        client.sync(file, false).await.unwrap();
        assert!(client.pending().undurable > 0, "the server made it durable meanwhile");
        machine.lose().await;
        drop(client);
        scene.crash(Shape::Nothing).await;
        keepers[0].take_over(&scene, "a").await;
        assert_eq!(seen(&scene).await, "otherh, second");
    });
}

/// Other clients went on while the client was away: a take-over leaves what they have seen, as the client's own return would.
#[test]
fn what_others_have_used_becomes_conflict_copies_at_a_take_over() {
    for changes in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let (mut machine, keepers) = kept(&scene, &[true]).await;
            let (client, file) = begin(&scene, &machine, true).await;
            put(&client, file, "old").await.unwrap();
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            put(&client, file, "new").await.unwrap();
            client.sync(file, false).await.unwrap();
            machine.lose().await;
            drop(client);
            let visitor = scene.client("other").await;
            let theirs = find(&visitor.client).await;
            assert_eq!(text(&visitor.client, theirs).await, "old");
            if changes {
                put(&visitor.client, theirs, "their").await.unwrap();
            }
            let taken = keepers[0].take_over(&scene, "a").await;
            assert_eq!((taken[0].written, taken[0].set_aside), (0, 1), "{taken:?}");
            let kept = if changes { "their" } else { "old" };
            assert_eq!(text(&visitor.client, theirs).await, kept);
            let directory = visitor.client.find(Ino::ROOT, b"d").await.unwrap().ino;
            let listed =
                visitor.client.read_directory(directory, Cookie::START, 100, false).await.unwrap();
            let copy = listed.iter().find(|it| it.name.starts_with(b"file.conflict-")).unwrap();
            let copied = visitor.client.find(directory, &copy.name).await.unwrap().ino;
            visitor.client.reference(copied);
            assert_eq!(text(&visitor.client, copied).await, "new");
        });
    }
}

#[test]
fn a_mount_begins_without_its_keeper() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let (mut machine, keepers) = kept(&scene, &[true]).await;
        let keeper = std::slice::from_ref(&keepers[0].host);
        scene.network.part(&[machine.host()], keeper);
        let (client, file) = begin(&scene, &machine, true).await;
        assert_eq!(states(&client), [CopyState::Away]);
        put(&client, file, "first").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert_eq!(client.pending().unsent.changes, 0);
        scene.network.heal();
        env.sleep(Duration::from_secs(10)).await;
        put(&client, file, "second").await.unwrap();
        client.sync(file, false).await.unwrap();
        assert_eq!(
            (states(&client), client.pending().unsent.changes),
            (vec![CopyState::Current], 1)
        );
        machine.lose().await;
        drop(client);
        keepers[0].take_over(&scene, "a").await;
        assert_eq!(seen(&scene).await, "second");
    });
}
