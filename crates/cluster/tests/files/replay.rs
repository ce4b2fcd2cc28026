//! A server crashes while it makes a change, and the change comes again after other clients have seen a part of it.

use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_fs::{Allocation, Filesystem, FsError, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::journal::Journaled;
use crate::scene::*;

async fn write(fs: &dyn Filesystem, ino: Ino, (offset, text): (u64, &'static str)) {
    let data = vec![Bytes::from_static(text.as_bytes())];
    fs.write(ino, WriteAt::Offset(offset), data, WriteHow::default()).await.unwrap();
}

/// What another client does before the write comes again.
#[derive(Clone, Copy)]
enum Other {
    Writes(u64, &'static str),
    Allocates(Allocation),
}

/// A file with contents that clients reach themselves, which one client has written and another one has read.
async fn read_file(env: &Env) -> (Scene, Machine, Machine, Ino) {
    let scene = Scene::either(env, options(), true).await;
    let (a, b) = (scene.client("a").await, scene.client("b").await);
    let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
    write(&a.client, file, (0, "old old ")).await;
    b.client.find(Ino::ROOT, b"f").await.unwrap();
    assert_eq!(text(&b.client, file).await, "old old ");
    (scene, a, b, file)
}

/// One client's write is under way when the server crashes, so many microseconds after it began, and comes again when other
/// clients have used the file: what they have read meanwhile, and what is in the file then.
fn write_again(moment: u64, other: Other, crashes_again: bool) -> (String, String) {
    run(moment, |env| async move {
        let (mut scene, a, b, file) = read_file(&env).await;
        let writer = a.client.clone();
        let writing = env.spawn(async move { write(&writer, file, (0, "newer...")).await });
        env.sleep(Duration::from_micros(moment)).await;
        // It has reclaimed what it held, and its calls come later.
        restart(&env, &mut scene, &b).await;
        scene.network.heal();
        scene.network.cut(&a.host, &scene.server);
        let found = text(&b.client, file).await;
        match other {
            Other::Writes(offset, text) => write(&b.client, file, (offset, text)).await,
            Other::Allocates(how) => b.client.allocate(file, 0, 8, how).await.unwrap(),
        }
        if crashes_again {
            scene.stop().await;
            env.sleep(Duration::from_millis(1)).await;
            scene.start(Shape::Nothing).await;
        }
        scene.network.heal();
        writing.await.unwrap();
        assert_eq!((a.client.status().evictions, b.client.status().evictions), (0, 0));
        (found, text(&b.client, file).await)
    })
}

/// Moments of the write's time at the server.
const MOMENTS: std::ops::Range<u64> = 100..900;

#[test]
fn a_write_that_was_seen_does_not_replace_what_followed() {
    let mut seen = 0;
    for (moment, crashes_again) in MOMENTS.step_by(20).flat_map(|it| [(it, false), (it, true)]) {
        let (found, at_last) = write_again(moment, Other::Writes(0, "followed"), crashes_again);
        match &*found {
            "newer..." => {
                seen += 1;
                assert_eq!(at_last, "followed", "{moment} {crashes_again}");
            }
            "old old " => assert!(["followed", "newer..."].contains(&&*at_last), "{at_last}"),
            other => panic!("{other}"),
        }
    }
    assert!(seen > 4, "{seen}");
}

/// Neither client has an answer when the second server crashes. One of them had read what the other has written.
#[test]
fn of_two_writes_that_come_again_the_one_that_follows_is_last() {
    let mut followed = 0;
    for (moment, later) in MOMENTS.step_by(40).flat_map(|it| [50, 150, 300].map(|by| (it, by))) {
        let (found, at_last) = run(moment, |env| async move {
            let (mut scene, a, b, file) = read_file(&env).await;
            let (writer, other) = (a.client.clone(), b.client.clone());
            let writing = env.spawn(async move { write(&writer, file, (0, "newer...")).await });
            env.sleep(Duration::from_micros(moment)).await;
            // It has reclaimed what it held, and its calls come later.
            restart(&env, &mut scene, &b).await;
            scene.network.heal();
            scene.network.cut(&a.host, &scene.server);
            let found = text(&b.client, file).await;
            let following = env.spawn(async move { write(&other, file, (0, "followed")).await });
            env.sleep(Duration::from_micros(later)).await;
            // At this server it is the other way around.
            restart(&env, &mut scene, &a).await;
            scene.network.heal();
            scene.network.cut(&b.host, &scene.server);
            env.sleep(Duration::from_millis(5)).await;
            scene.network.heal();
            writing.await.unwrap();
            following.await.unwrap();
            assert_eq!((a.client.status().evictions, b.client.status().evictions), (0, 0));
            (found, text(&b.client, file).await)
        });
        if found == "newer..." {
            followed += 1;
            assert_eq!(at_last, "followed", "{moment} {later}");
        }
    }
    assert!(followed > 4, "{followed}");
}

/// The server crashes, and all but this client reclaim what they held at the next one.
async fn restart(env: &Env, scene: &mut Scene, but: &Machine) {
    scene.stop().await;
    scene.network.heal();
    scene.network.cut(&but.host, &scene.server);
    env.sleep(Duration::from_millis(1)).await;
    scene.start(Shape::Nothing).await;
    while scene.service.expected() > 1 {
        env.sleep(Duration::from_micros(10)).await;
    }
}

#[test]
fn a_part_of_a_write_that_was_replaced_stays_so() {
    let mut seen = 0;
    for moment in MOMENTS.step_by(20) {
        let (found, at_last) = write_again(moment, Other::Writes(2, "XY"), false);
        seen += u64::from(found == "newer...");
        assert_eq!(at_last, "neXYr...", "{moment} {found}");
    }
    assert!(seen > 2, "{seen}");
}

#[test]
fn a_write_replaces_what_only_has_room_since() {
    let hows = [Allocation::Reserve { keep_size: true }, Allocation::Reserve { keep_size: false }];
    for how in hows {
        for moment in MOMENTS.step_by(80) {
            let (found, at_last) = write_again(moment, Other::Allocates(how), false);
            assert_eq!(at_last, "newer...", "{moment} {how:?} {found}");
        }
    }
}

#[test]
fn a_write_does_not_replace_what_was_cleared_since() {
    let mut seen = 0;
    for how in [Allocation::Punch, Allocation::Zero { keep_size: true }] {
        for moment in MOMENTS.step_by(40) {
            let (found, at_last) = write_again(moment, Other::Allocates(how), false);
            if found == "newer..." {
                seen += 1;
                assert_eq!(at_last, "\0".repeat(8), "{moment} {how:?}");
            }
        }
    }
    assert!(seen > 4, "{seen}");
}

#[test]
fn a_file_that_was_made_is_answered_after_it_was_removed() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        // Its answer is lost.
        scene.network.cut(&scene.server, &a.host);
        let maker = a.client.clone();
        let making =
            env.spawn(async move { maker.create(Ino::ROOT, b"f", &new(Node::File)).await });
        env.sleep(Duration::from_millis(1)).await;
        b.client.sync_all().await.unwrap();
        scene.stop().await;
        scene.network.reset(&a.host, &scene.server);
        scene.network.heal();
        scene.start(Shape::Nothing).await;
        while scene.service.expected() > 0 {
            env.sleep(Duration::from_micros(10)).await;
        }
        scene.network.cut(&a.host, &scene.server);
        b.client.unlink(Ino::ROOT, b"f").await.unwrap();
        assert!(!making.is_finished());
        scene.network.heal();
        making.await.unwrap().unwrap();
        assert!(matches!(b.client.find(Ino::ROOT, b"f").await, Err(FsError::NotFound)));
    });
}

/// A server counts versions from its beginning: what is durable at one says nothing of the changes of the next one.
#[test]
fn changes_are_kept_at_the_next_server_whatever_the_last_one_had() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let client = machine.mount(&scene, true).await.unwrap();
        client.drain().await.unwrap();
        let gone = scene.client("gone").await;
        for number in 0..50 {
            make(&gone.client, Ino::ROOT, &format!("d{number}"), Node::Directory).await;
        }
        // By a call, since the root is not delegated.
        make(&client, Ino::ROOT, "e", Node::Directory).await;
        assert!(client.status().kept > 0);
        gone.process.kill();
        // The client has not noticed it when it asks for a sync.
        scene.crash(Shape::Nothing).await;
        client.sync_all().await.unwrap();
        for round in 0..3 {
            let name = format!("later{round}");
            make(&client, Ino::ROOT, &name, Node::Directory).await;
            assert!(client.status().kept > 0, "a crash would lose it");
        }
        scene.crash(Shape::Nothing).await;
        for name in ["e", "later0", "later1", "later2"] {
            assert!(client.find(Ino::ROOT, name.as_bytes()).await.is_ok(), "{name}");
        }
        assert_eq!(client.status().lost, 0);
    });
}
