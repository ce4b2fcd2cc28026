//! What the lapse of a journal itself keeps: one test for each way in which another client could see what is changed later.

use std::time::Duration;

use thalweg_fs::{Filesystem, Ino, Level, Node, Rename};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::absence::{away, come_back, lists, text_at};
use crate::full::alone;
use crate::journal::{Journaled, begin, find};
use crate::scene::*;

/// Another client, which waits for the lapse, and then reads what the server has of the file of one that is away.
async fn meets_old(scene: &Scene) -> Machine {
    let visitor = scene.client("other").await;
    assert_eq!(text_at(&visitor.client, "d/file").await.as_deref(), Some("old"));
    visitor
}

/// Another client has read a file that the journal replaces by a rename.
#[test]
fn a_file_that_others_have_used_is_not_replaced() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        let client = machine.mount(&scene, true).await.unwrap();
        let directory = alone(&client, "d").await;
        for name in ["x", "y"] {
            let file = make(&client, directory, name, Node::File).await;
            client.reference(file);
            put(&client, file, name).await.unwrap();
        }
        client.wait_for(directory, Level::Server, LEASE).await.unwrap();
        client.rename((directory, b"x"), (directory, b"y"), Rename::Replace).await.unwrap();
        client.sync(directory, false).await.unwrap();
        machine.crash(Shape::Nothing);
        drop(client);
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        assert_eq!(text_at(other, "d/y").await.as_deref(), Some("y"));
        let again = machine.mount(&scene, true).await.unwrap();
        for client in [other, &again] {
            assert_eq!(text_at(client, "d/x").await.as_deref(), Some("x"));
            assert_eq!(text_at(client, "d/y").await.as_deref(), Some("y"));
        }
        assert_eq!(lists(&again).await.len(), 1);
    });
}

/// The file has a number of the client's own, of which the next server knows by its record alone.
#[test]
fn what_the_client_has_made_is_its_own_at_the_next_server_too() {
    for sleeps in [false, true] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            away(&scene, &mut machine).await;
            if sleeps {
                // No other client wants anything of it, so that it lapses without a recall.
                env.sleep(2 * EXPIRE).await;
            }
            scene.crash(Shape::Nothing).await;
            let visitor = meets_old(&scene).await;
            let other = &visitor.client;
            scene.crash(Shape::Nothing).await;
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text_at(other, "d/file").await.as_deref(), Some("old"));
            assert_eq!(lists(&again).await.len(), 1);
        });
    }
}

/// The lapse is on record: the next server does not wait for the client, and lets no mount go on that has lived through it.
#[test]
fn the_next_server_knows_of_the_lapse() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        away(&scene, &mut machine).await;
        let _visitor = meets_old(&scene).await;
        scene.crash(Shape::Nothing).await;
        assert_eq!(scene.service.status().lapsed_journals, 1);
    });
}

/// A client that was cut off uses what it has cached for as long as its lease lasts: the others wait for that.
#[test]
fn others_wait_for_the_lease_of_a_client_that_is_evicted() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, file) = begin(&scene, &machine, true).await;
        put(&client, file, "old").await.unwrap();
        client.wait_for(file, Level::Server, LEASE).await.unwrap();
        let visitor = scene.client("other").await;
        let other = &visitor.client;
        // It is heard now, so its lease is a whole one.
        client.sync_all().await.unwrap();
        scene.network.cut(&machine.host(), &scene.server);
        let begun = env.now();
        assert_eq!(scene.service.evict("a"), 1);
        let theirs = find(other).await;
        put(other, theirs, "new").await.unwrap();
        let took = env.now().since(begun);
        assert!(took > LEASE * 9 / 10, "it is cached at a client whose lease lasts: {took:?}");
    });
}

/// A batch that is being applied when its client is evicted is at the server before the others look, or never.
#[test]
fn no_batch_lands_behind_a_lapse() {
    for late in 0..60_u32 {
        run(u64::from(late), move |env| async move {
            let scene = Scene::slow(&env, Duration::from_millis(2)).await;
            let machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            put(&client, file, "old").await.unwrap();
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            put(&client, file, "new").await.unwrap();
            let sends = client.clone();
            let sending = env.spawn(async move {
                let _ = sends.wait_for(file, Level::Server, LEASE).await;
            });
            env.sleep(Duration::from_micros(60) * late).await;
            assert_eq!(scene.service.evict("a"), 1);
            scene.network.cut(&machine.host(), &scene.server);
            let seen = text_at(other, "d/file").await;
            env.sleep(2 * EXPIRE).await;
            let theirs = find(other).await;
            put(other, theirs, "x").await.unwrap();
            let now = text_at(other, "d/file").await.unwrap();
            let seen = seen.unwrap();
            assert!(now == format!("x{}", &seen[1..]), "{late}: {now} was {seen}");
            drop(sending);
        });
    }
}

/// The journal forgets what has become conflict copies: these are durable before.
#[test]
fn copies_survive_the_server_once_the_journal_is_mounted() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let mut machine = Journaled::new(&scene, "a").await;
        away(&scene, &mut machine).await;
        let visitor = meets_old(&scene).await;
        drop(machine.mount(&scene, true).await.unwrap());
        machine.crash(Shape::Nothing);
        visitor.process.kill();
        scene.crash(Shape::Nothing).await;
        let later = scene.client("later").await;
        let sets = lists(&later.client).await;
        assert_eq!(sets.len(), 1);
        for (entry, now) in sets[0].entries.iter().zip(["new", "2"]) {
            let copy = entry.copy.as_deref().unwrap();
            assert_eq!(text_at(&later.client, &copy[1..]).await.as_deref(), Some(now), "{copy}");
        }
    });
}

/// A file that is made and removed while a program has it open is at the server as long as that.
#[test]
fn a_file_without_a_name_is_at_the_server_while_it_is_open() {
    for left in [None, Some(Shape::Nothing), Some(Shape::Everything)] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let machine = Journaled::new(&scene, "a").await;
            let client = machine.mount(&scene, true).await.unwrap();
            let directory = alone(&client, "d").await;
            let file = make(&client, directory, "file", Node::File).await;
            client.reference(file);
            let handle = client.open(&Default::default(), file, WRITING).await.unwrap().handle;
            put(&client, file, "kept").await.unwrap();
            client.unlink(directory, b"file").await.unwrap();
            client.wait_for(directory, Level::Server, LEASE).await.unwrap();
            if let Some(left) = left {
                scene.crash(left).await;
            }
            assert_eq!(text(&client, file).await, "kept");
            put(&client, file, "K").await.unwrap();
            assert_eq!(text(&client, file).await, "Kept");
            client.release(file, handle).await;
            assert_eq!(client.status().lost, 0);
        });
    }
}

/// A mount that was cut off writes back what it had, goes on with its journal, and has lost nothing.
#[test]
fn a_mount_that_was_cut_off_loses_nothing_and_syncs_here_again() {
    for (restarts, calls_meanwhile) in [(false, false), (true, false), (false, true)] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            put(&client, file, "old").await.unwrap();
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            put(&client, file, "new").await.unwrap();
            client.sync(file, false).await.unwrap();
            scene.network.part(&[machine.host()], std::slice::from_ref(&scene.server));
            assert_eq!(scene.service.evict("a"), 1);
            env.sleep(EXPIRE).await;
            if restarts {
                scene.crash(Shape::Nothing).await;
            }
            // A call sends what waits first: that is under way when the session ends.
            let caller = client.clone();
            let calling =
                calls_meanwhile.then(|| env.spawn(async move { caller.statistics().await }));
            env.sleep(LEASE).await;
            come_back(&scene, &client).await;
            drop(calling);
            let visitor = scene.client("other").await;
            assert_eq!(text_at(&visitor.client, "d/file").await.as_deref(), Some("new"));
            assert_eq!((lists(&client).await.len(), client.status().lost), (0, 0));
            let directory = alone(&client, "e").await;
            client.wait_for(directory, Level::Server, LEASE).await.unwrap();
            let before = calls(&client);
            let second = make(&client, directory, "file", Node::File).await;
            client.reference(second);
            put(&client, second, "later").await.unwrap();
            client.sync(second, false).await.unwrap();
            assert_eq!(calls(&client), before);
            machine.crash(Shape::Nothing);
            drop(client);
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text_at(&again, "e/file").await.as_deref(), Some("later"));
            assert_eq!(text_at(&again, "d/file").await.as_deref(), Some("new"));
            assert_eq!(lists(&again).await.len(), 0);
        });
    }
}

/// How another client uses a file while its owner is cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Used {
    Not,
    Reads,
    Renames,
}

/// Programs of a mount that was cut off go on with the files that they have open, unless other clients have used them.
#[test]
fn open_files_that_no_other_client_has_used_go_on() {
    for (used, closes, restarts) in [
        (Used::Not, false, false),
        (Used::Not, false, true),
        (Used::Not, true, false),
        (Used::Reads, false, false),
        (Used::Renames, false, false),
    ] {
        run(1, move |env| async move {
            let mut scene = Scene::durable(&env).await;
            let machine = Journaled::new(&scene, "a").await;
            let (client, file) = begin(&scene, &machine, true).await;
            let handle = client.open(&Default::default(), file, WRITING).await.unwrap().handle;
            put(&client, file, "old").await.unwrap();
            client.wait_for(file, Level::Server, LEASE).await.unwrap();
            put(&client, file, "new").await.unwrap();
            client.sync(file, false).await.unwrap();
            scene.network.part(&[machine.host()], std::slice::from_ref(&scene.server));
            assert_eq!(scene.service.evict("a"), 1);
            env.sleep(EXPIRE).await;
            let visitor = scene.client("other").await;
            let other = &visitor.client;
            match used {
                Used::Not => {}
                Used::Reads => assert_eq!(text_at(other, "d/file").await.as_deref(), Some("old")),
                Used::Renames => {
                    let directory = other.find(Ino::ROOT, b"d").await.unwrap().ino;
                    other.reference(directory);
                    let names = ((directory, &b"file"[..]), (directory, &b"moved"[..]));
                    other.rename(names.0, names.1, Rename::Replace).await.unwrap();
                }
            }
            if restarts {
                scene.crash(Shape::Nothing).await;
            }
            if closes {
                client.release(file, handle).await;
            }
            come_back(&scene, &client).await;
            let goes_on = used == Used::Not && !closes;
            let written = put(&client, file, "later").await;
            assert_eq!(written.is_ok(), goes_on, "{used:?} {closes} {written:?}");
            let opened =
                || -> usize { scene.service.sessions().iter().map(|session| session.open).sum() };
            assert_eq!(opened(), usize::from(goes_on), "{used:?} {closes}");
            if goes_on {
                client.sync(file, false).await.unwrap();
                assert_eq!(text(&client, file).await, "later");
                assert_eq!(text_at(other, "d/file").await.as_deref(), Some("later"));
                client.release(file, handle).await;
                assert_eq!((opened(), client.status().lost), (0, 0));
            }
        });
    }
}
