//! Clients that know more inodes than the server has memory for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::server::Options;
use thalweg_fs::{Caller, Filesystem, Ino, Node};
use thalweg_sim::files::NaiveFiles;
use thalweg_sim::run;

use crate::scene::*;

/// Inodes that the clients may know.
const KNOWN: usize = 400;

/// A scene with such a bound, and files `0` to `count`.
pub(crate) async fn scene_with_files(env: &thalweg_env::Env, known: usize, count: usize) -> Scene {
    let files = Arc::new(NaiveFiles::new(env));
    let scene = Scene::with(env, files, Options { known, ..options() }).await;
    for number in 0..count {
        make(&*scene.files, Ino::ROOT, &number.to_string(), Node::File).await;
    }
    scene
}

/// Inodes that a client knows, as the server says.
fn known_to(scene: &Scene, client: &str) -> usize {
    scene.service.sessions().iter().find(|it| it.client == client).unwrap().inodes
}

async fn look_up(machine: &Machine, number: usize) -> Ino {
    machine.client.find(Ino::ROOT, number.to_string().as_bytes()).await.unwrap().ino
}

#[test]
fn the_client_that_knows_most_forgets() {
    run(1, |env| async move {
        let scene = scene_with_files(&env, KNOWN, 2000).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        for number in 0..100 {
            look_up(&b, number).await;
        }
        let mut most = 0;
        for number in 0..2000 {
            look_up(&a, number).await;
            env.sleep(Duration::from_millis(5)).await;
            most = most.max(scene.service.status().known);
        }
        // Between two sweeps a client learns of less than 100.
        assert!((KNOWN..KNOWN + 100).contains(&most), "{most} inodes");
        env.sleep(LEASE / 2).await;
        let known = scene.service.status().known;
        assert!(known <= KNOWN, "{known} inodes");
        // What was forgotten is found again, and what was not is cached still.
        for number in [0, 1000, 1999] {
            let ino = look_up(&a, number).await;
            put(&a.client, ino, "text").await.unwrap();
            assert_eq!(text(&*scene.files, ino).await, "text");
        }
        assert_eq!((a.client.status().evictions, b.client.status().evictions), (0, 0));
    });
}

#[test]
fn what_a_caller_refers_to_stays() {
    run(1, |env| async move {
        let scene = scene_with_files(&env, KNOWN, 1000).await;
        let a = scene.client("a").await;
        let mut kept = Vec::new();
        for number in 0..100 {
            let ino = look_up(&a, number).await;
            a.client.reference(ino);
            kept.push(ino);
        }
        let open = a.client.open(&Caller::default(), kept[7], WRITING).await.unwrap().handle;
        a.client.lock(kept[7], &whole(open, 1), false).await.unwrap();
        for number in 100..1000 {
            look_up(&a, number).await;
        }
        env.sleep(LEASE / 2).await;
        let known = known_to(&scene, "a");
        assert!((100..=KNOWN).contains(&known), "{known} inodes");
        for ino in &kept {
            put(&a.client, *ino, "text").await.unwrap();
        }
        let locks = scene.files.locks(kept[7]);
        assert_eq!(locks.len(), 1);
        a.client.release(kept[7], open).await;
        // More is referred to than there is room for: it stays all the same, and is right without a cache.
        let mut all = Vec::new();
        for number in 100..700 {
            let ino = look_up(&a, number).await;
            a.client.reference(ino);
            all.push(ino);
        }
        env.sleep(2 * LEASE).await;
        assert!(known_to(&scene, "a") >= 700);
        for ino in all {
            scene
                .files
                .write(
                    ino,
                    thalweg_fs::WriteAt::Offset(0),
                    vec![Bytes::from_static(b"here")],
                    Default::default(),
                )
                .await
                .unwrap();
            put(&a.client, ino, "t").await.unwrap();
            assert_eq!(a.client.attributes(ino).await.unwrap().size, 4);
            a.client.unreference(ino, 1);
        }
        env.sleep(LEASE).await;
        let known = scene.service.status().known;
        assert!(known <= KNOWN, "{known} inodes");
        assert_eq!(a.client.status().evictions, 0);
    });
}
