//! A client whose session the server has ended: it begins another one, or none.

use std::slice::from_ref;
use std::time::Duration;

use thalweg_cluster::client::{self, Recover};
use thalweg_fs::{Caller, Filesystem, FsError, Ino, Level, Node};
use thalweg_sim::run;

use crate::scene::*;

/// As in errno.h.
const EIO: i32 = 5;

fn options(recover: Recover) -> client::Options {
    client::Options { recover, ..patient() }
}

#[test]
fn an_evicted_client_that_may_not_recover_fails_all_calls_at_once() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let a = scene.client_with(visitor("a"), options(Recover::No)).await.unwrap();
        let b = scene.client("b").await;
        let directory = make(&a.client, Ino::ROOT, "d", Node::Directory).await;
        let file = make(&a.client, directory, "f", Node::File).await;
        a.client.reference(file);
        let opened = a.client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
        put(&a.client, file, "sure").await.unwrap();
        a.client.sync(file, false).await.unwrap();
        put(&a.client, file, "soon").await.unwrap();
        // By then the server has it.
        env.sleep(2 * LEASE).await;
        assert_eq!(a.client.status().unsent, 0);
        scene.network.part(from_ref(&a.host), from_ref(&scene.server));
        let found = b.client.find(Ino::ROOT, b"d").await.unwrap().ino;
        let found = b.client.find(found, b"f").await.unwrap().ino;
        put(&b.client, found, "new").await.unwrap();
        assert!(!a.client.status().ended, "it has not heard of it");
        scene.network.heal();
        env.sleep(2 * LEASE).await;
        for _ in 0..2 {
            let start = env.now();
            let (fs, caller) = (&a.client, Caller::default());
            let failed = [
                fs.find(Ino::ROOT, b"d").await.err(),
                fs.attributes(file).await.err(),
                fs.attributes(Ino::ROOT).await.err(),
                fs.read(file, 0, 10).await.err(),
                put(fs, file, "more").await.err(),
                fs.create(Ino::ROOT, b"g", &new(Node::File)).await.err(),
                fs.unlink(Ino::ROOT, b"d").await.err(),
                fs.open(&caller, file, WRITING).await.err(),
                fs.lock(file, &whole(opened, 1), false).await.err(),
                fs.sync(file, false).await.err(),
                fs.sync_all().await.err(),
                fs.statistics().await.err(),
                fs.level(file).await.err(),
                fs.wait_for(file, Level::Server, Duration::ZERO).await.err(),
            ];
            for (number, error) in failed.iter().enumerate() {
                let error = error.as_ref().unwrap_or_else(|| panic!("call {number} succeeds"));
                assert!(matches!(error, FsError::Store(_)), "call {number}: {error:?}");
                assert_eq!(thalweg_fs::errno::of(error), EIO, "call {number}");
            }
            assert_eq!(env.now().since(start), Duration::ZERO);
            env.sleep(Duration::from_secs(600)).await;
        }
        let said = a.client.statistics().await.unwrap_err().to_string();
        assert!(said.contains("mount it again"), "{said}");
        let status = a.client.status();
        assert_eq!((status.evictions, status.ended, status.connected), (1, true, false));
        a.client.release(file, opened).await;
        a.client.close().await;
        assert_eq!(scene.service.sessions().len(), 1, "only that of the other client");
        // Another client of the same machine, as after a mount.
        let again = scene.client_with(visitor("a"), options(Recover::No)).await.unwrap();
        let found = again.client.find(Ino::ROOT, b"d").await.unwrap().ino;
        let found = again.client.find(found, b"f").await.unwrap().ino;
        assert_eq!(text(&again.client, found).await, "newn");
    });
}

#[test]
fn a_client_that_loses_the_server_for_a_while_goes_on_either_way() {
    for recover in [Recover::Clean, Recover::No] {
        run(2, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let a = scene.client_with(visitor("a"), options(recover)).await.unwrap();
            let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
            scene.network.reset(&a.host, &scene.server);
            put(&a.client, file, "one").await.unwrap();
            scene.crash(thalweg_sim::crash::Shape::Nothing).await;
            assert_eq!(text(&a.client, file).await, "one");
            assert_eq!((a.client.status().evictions, a.client.status().ended), (0, false));
        });
    }
}

#[test]
fn an_evicted_client_goes_on_with_another_session() {
    run(3, |env| async move {
        let scene = Scene::durable(&env).await;
        let a = scene.client_with(visitor("a"), options(Recover::Clean)).await.unwrap();
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        put(&a.client, file, "text").await.unwrap();
        assert_eq!(scene.service.evict("a"), 1);
        env.sleep(LEASE).await;
        let failed = a.client.sync(file, false).await;
        assert!(matches!(failed, Err(FsError::Store(_))), "what was not synced: {failed:?}");
        assert_eq!(a.client.find(Ino::ROOT, b"f").await.unwrap().ino, file);
        put(&a.client, file, "more").await.unwrap();
        a.client.sync(file, false).await.unwrap();
        assert_eq!((a.client.status().evictions, a.client.status().ended), (1, false));
    });
}
