//! What an administrator of a server sees.

use std::slice::from_ref;
use std::time::Duration;

use thalweg_cluster::server::{HolderReport, InodeReport};
use thalweg_fs::{Caller, Filesystem, FsError, Ino, Node};
use thalweg_sim::run;

use crate::scene::*;

/// What a client holds.
fn of<'a>(report: &'a InodeReport, client: &str) -> &'a HolderReport {
    report.holders.iter().find(|it| it.client == client).unwrap()
}

#[test]
fn a_report_of_a_file_names_the_holders() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = make(&a.client, Ino::ROOT, "d", Node::Directory).await;
        let file = make(&a.client, directory, "f", Node::File).await;
        let found = scene.service.inode("/d/f").await.unwrap();
        assert_eq!((found.ino, found.holders.len()), (file.0, 1));
        let writer = a.client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
        a.client.lock(file, &whole(writer, 1), false).await.unwrap();
        env.sleep(Duration::from_secs(1)).await;
        b.client.find(Ino::ROOT, b"d").await.unwrap();
        b.client.find(directory, b"f").await.unwrap();
        let reading = thalweg_fs::OpenFlags { write: false, ..WRITING };
        let reader = b.client.open(&Caller::default(), file, reading).await.unwrap().handle;
        let (waiting, lock) = (b.client.clone(), whole(reader, 1));
        let waits = env.spawn(async move { waiting.lock(file, &lock, true).await });
        env.sleep(Duration::from_millis(500)).await;

        let found = scene.service.inode("d/f/").await.unwrap();
        let (one, two) = (of(&found, "a"), of(&found, "b"));
        assert_eq!((one.reading, one.writing, two.reading, two.writing), (0, 1, 1, 0));
        assert!(one.attributes && two.attributes && !one.names && one.connected && !one.ended);
        let between = |millis: Option<u64>, from: u64| {
            let millis = millis.unwrap();
            assert!(millis.abs_diff(from) < 50, "{millis} ms, {from} expected");
        };
        between(one.cached_ms, 1500);
        between(one.open_ms, 1500);
        between(two.cached_ms, 500);
        between(one.locks[0].since_ms, 1500);
        between(two.waits[0].since_ms, 500);
        assert_eq!((one.locks.len(), one.waits.len()), (1, 0));
        assert_eq!((two.locks.len(), two.waits.len(), two.waits[0].last), (0, 1, None));

        a.client.release(file, writer).await;
        waits.await.unwrap().unwrap();
        let found = scene.service.inode("/d/f").await.unwrap();
        assert_eq!((of(&found, "b").locks.len(), of(&found, "b").waits.len()), (1, 0));
        assert_eq!((of(&found, "a").locks.len(), of(&found, "a").open_ms), (0, None));
        // The names in a directory, and the root.
        assert!(of(&scene.service.inode("/d").await.unwrap(), "a").names);
        assert_eq!(scene.service.inode("").await.unwrap().ino, Ino::ROOT.0);
        for (path, error) in [("/d/x", FsError::NotFound), ("/d/f/x", FsError::NotDirectory)] {
            let failed = scene.service.inode(path).await.unwrap_err();
            assert_eq!(failed.to_string(), error.to_string(), "{path}");
        }
    });
}

#[test]
fn a_report_shows_an_invalidation_until_it_ends() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        scene.network.part(from_ref(&b.host), from_ref(&scene.server));
        let writing = a.client.clone();
        let writes = env.spawn(async move { put(&writing, file, "new").await });
        env.sleep(LEASE / 2).await;
        let found = scene.service.inode("f").await.unwrap();
        let [recall] = &found.invalidations[..] else { panic!("{found:?}") };
        let half = (LEASE / 2).as_millis() as u64;
        assert!((half - 100..=half).contains(&recall.age_ms), "{recall:?}");
        assert_eq!((&*recall.client, &*recall.call), ("a", "Write"));
        assert_eq!((&recall.unanswered[..], recall.names.len()), (&["b".to_owned()][..], 0));
        assert!(scene.service.inode("/").await.unwrap().invalidations.is_empty());
        let counts = scene.service.status().invalidations;
        assert_eq!((counts.pending, counts.oldest_ms), (1, Some(recall.age_ms)));
        assert_eq!((counts.sent, counts.answered, counts.timed_out), (1, 0, 0));
        // The client is evicted, and its lease runs on: it may use what it caches.
        let mut was_ended = false;
        while !writes.is_finished() {
            let found = scene.service.inode("f").await.unwrap();
            was_ended |= of(&found, "b").ended;
            assert_eq!(found.invalidations.len(), 1);
            // Not at the moment at which the lease ends, while the answer is in flight.
            env.sleep(Duration::from_millis(7)).await;
        }
        assert!(was_ended);
        writes.await.unwrap().unwrap();
        let found = scene.service.inode("f").await.unwrap();
        assert!(found.invalidations.is_empty());
        assert_eq!(found.holders.len(), 1, "{found:?}");
        let status = scene.service.status();
        let counts = status.invalidations;
        assert_eq!((counts.pending, counts.oldest_ms), (0, None));
        assert_eq!((counts.sent, counts.answered, counts.timed_out), (1, 0, 1));
        assert_eq!(status.evictions, 1);
        // A name in a directory.
        let c = scene.client("c").await;
        c.client.lookup(Ino::ROOT, b"g").await.unwrap();
        scene.network.part(from_ref(&c.host), from_ref(&scene.server));
        let creating = a.client.clone();
        let creates = env.spawn(async move { make(&creating, Ino::ROOT, "g", Node::File).await });
        env.sleep(LEASE / 2).await;
        let found = scene.service.inode("/").await.unwrap();
        assert_eq!(found.invalidations[0].names, ["g"]);
        assert_eq!(found.invalidations[0].call, "Create");
        creates.await.unwrap();
    });
}
