//! Connections that break, clients that do not answer, and servers that end.

use std::io;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_cluster::client::Client;
use thalweg_env::connection::{Connecting, Connector};
use thalweg_env::{Env, Time};
use thalweg_fs::{
    Caller, Filesystem, FsError, Ino, Invalidation, LockKind, LockOwner, LockRange, Node,
};
use thalweg_sim::net::SimConnector;
use thalweg_sim::run;

use crate::scene::*;

/// A POSIX lock of a whole file.

#[test]
fn a_change_waits_no_longer_than_a_lease_for_a_client_that_is_gone() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        assert_eq!(b.client.attributes(file).await.unwrap().size, 0);
        scene.network.part(from_ref(&b.host), from_ref(&scene.server));
        let start = env.now();
        put(&a.client, file, "new").await.unwrap();
        let took = env.now().since(start);
        assert!(took > LEASE / 2 && took < 3 * LEASE, "{took:?}");
        // What the other client cached it must not use any more.
        let asked = env.timeout(LEASE, b.client.attributes(file)).await;
        assert!(asked.is_none(), "{asked:?}");
        scene.network.heal();
        let found = b.client.attributes(file).await;
        assert!(matches!(found, Err(FsError::Stale)), "{found:?}");
        assert_eq!(b.client.find(Ino::ROOT, b"f").await.unwrap().size, 3);
        assert_eq!(b.client.status().evictions, 1);
    });
}

#[test]
fn calls_go_on_over_another_connection_and_count_once() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let directory = make(&a.client, Ino::ROOT, "d", Node::Directory).await;
        for number in 0..200 {
            let name = format!("f{number}");
            let (network, clock) = (scene.network.clone(), env.clone());
            let (one, two) = (a.host.clone(), scene.server.clone());
            let cutting = env.spawn(async move {
                clock.sleep(Duration::from_micros(number * 3)).await;
                network.reset(&one, &two);
            });
            // A create that was carried out twice would say that the name exists.
            make(&a.client, directory, &name, Node::File).await;
            cutting.await;
            assert!(b.client.find(Ino::ROOT, b"d").await.is_ok());
            assert!(b.client.find(directory, name.as_bytes()).await.is_ok());
        }
        assert_eq!(a.client.status().evictions, 0);
    });
}

#[test]
fn a_client_leaves_a_server_that_stands_still() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let a = scene.client("a").await;
        make(&a.client, Ino::ROOT, "f", Node::File).await;
        scene.pause();
        env.sleep(LEASE / 2).await;
        assert!(a.client.status().connected);
        env.sleep(LEASE).await;
        // The connection is open as far as the network knows.
        assert!(!a.client.status().connected);
        scene.resume();
        make(&a.client, Ino::ROOT, "g", Node::File).await;
        assert_eq!(a.client.status().evictions, 0);
    });
}

#[test]
fn a_lock_ends_with_its_client() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        let open = async |machine: &Machine| {
            machine.client.open(&Caller::default(), file, WRITING).await.unwrap().handle
        };
        let (first, second) = (open(&a).await, open(&b).await);
        // Owners with equal numbers on two machines are two.
        a.client.lock(file, &whole(first, 1), false).await.unwrap();
        let refused = b.client.lock(file, &whole(second, 1), false).await;
        assert!(matches!(refused, Err(FsError::Locked)));
        let seen = b.client.conflicting_lock(file, &whole(second, 1)).await.unwrap();
        assert_eq!(seen.unwrap().range, LockRange::ALL);
        // A wait that is given up leaves nothing behind.
        let waited =
            env.timeout(Duration::from_secs(1), b.client.lock(file, &whole(second, 1), true)).await;
        assert!(waited.is_none());
        a.client.unlock(file, LockKind::Posix, LockOwner::local(1), LockRange::ALL).await.unwrap();
        a.client.lock(file, &whole(first, 2), true).await.unwrap();
        let (waiting, lock) = (b.client.clone(), whole(second, 3));
        let waiter = env.spawn(async move { waiting.lock(file, &lock, true).await });
        env.sleep(Duration::from_secs(1)).await;
        assert!(!waiter.is_finished());
        a.process.kill();
        let start = env.now();
        waiter.await.unwrap().unwrap();
        assert!(env.now().since(start) < EXPIRE + LEASE);
    });
}

#[test]
fn a_client_goes_on_with_a_new_server() {
    run(1, |env| async move {
        let mut scene = Scene::new(&env).await;
        let a = scene.client("a").await;
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        put(&a.client, file, "text").await.unwrap();
        scene.restart().await;
        // The new server does not know the session.
        assert!(matches!(a.client.attributes(file).await, Err(FsError::Stale)));
        let found = a.client.find(Ino::ROOT, b"f").await.unwrap();
        assert_eq!((found.ino, found.size), (file, 4));
        assert_eq!(text(&a.client, file).await, "text");
    });
}

#[test]
fn calls_fail_when_the_server_is_gone_for_good() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let a = scene.client("a").await;
        scene.server.power_off();
        let start = env.now();
        let failed = a.client.statistics().await;
        assert!(matches!(failed, Err(FsError::Store(_))), "{failed:?}");
        assert!(env.now().since(start) < Duration::from_secs(70));
    });
}

/// Until when a client answers from its cache, while no message reaches it.
async fn last_cached(env: &Env, machine: &Machine, file: Ino) -> Time {
    let mut last = env.now();
    while let Some(found) =
        env.timeout(Duration::from_millis(1), machine.client.attributes(file)).await
    {
        if found.is_err() {
            break;
        }
        last = env.now();
        env.sleep(Duration::from_millis(10)).await;
    }
    last
}

#[test]
fn a_change_waits_for_the_lease_of_a_client_that_was_evicted() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        scene.network.part(std::slice::from_ref(&b.host), std::slice::from_ref(&scene.server));
        assert_eq!(scene.service.evict("b"), 1);
        assert_eq!(scene.service.evict("b"), 0);
        let reading = last_cached(&env, &b, file);
        let writing = async {
            put(&a.client, file, "new").await.unwrap();
            env.now()
        };
        let (read, written) = tokio::join!(reading, writing);
        assert!(read < written, "{read:?} {written:?}");
        assert!(written.since(Time::default()) > LEASE / 2);
    });
}

#[test]
fn a_client_that_answers_no_invalidation_is_evicted() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        // Its caller never drops what it caches; the client renews its lease all the time.
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keeper = kept.clone();
        b.client.watch(Box::new(move |_| {
            let (invalidation, completion) = Invalidation::pending();
            keeper.lock().push(completion);
            invalidation
        }));
        let start = env.now();
        put(&a.client, file, "new").await.unwrap();
        let took = env.now().since(start);
        assert!(took > LEASE + LEASE / 2 && took < 3 * LEASE, "{took:?}");
        assert!(kept.lock().len() >= 2, "the change, and the end of the session");
        assert!(matches!(b.client.attributes(file).await, Err(FsError::Stale)));
        assert_eq!(b.client.find(Ino::ROOT, b"f").await.unwrap().size, 3);
    });
}

#[test]
fn an_answer_that_was_lost_allows_nothing_when_it_is_sent_again() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        scene.network.cut(&scene.server, &a.host);
        let making = a.client.clone();
        let made = env.spawn(async move { make(&making, Ino::ROOT, "f", Node::File).await });
        env.sleep(Duration::from_millis(10)).await;
        let found = b.client.find(Ino::ROOT, b"f").await.unwrap();
        scene.network.reset(&a.host, &scene.server);
        let (writing, file) = (b.client.clone(), found.ino);
        // The invalidation for the first client is lost with the connection, and sent again on the next one.
        let written = env.spawn(async move { put(&writing, file, "new").await });
        env.sleep(Duration::from_millis(10)).await;
        scene.network.heal();
        assert_eq!(made.await.unwrap(), file);
        written.await.unwrap().unwrap();
        assert_eq!(a.client.attributes(file).await.unwrap().size, 3);
        assert_eq!(a.client.status().evictions, 0);
    });
}

#[test]
fn a_lease_counts_from_the_call_not_from_its_answer() {
    for seed in 0..60 {
        run(seed, |env| async move {
            let scene = Scene::new(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
            b.client.find(Ino::ROOT, b"f").await.unwrap();
            // A renewal reaches the server, and its answer waits.
            scene.network.cut(&scene.server, &b.host);
            env.sleep(LEASE / 4 + Duration::from_millis(10)).await;
            let writing = a.client.clone();
            let written = env.spawn(async move {
                put(&writing, file, "new").await.unwrap();
            });
            env.sleep(LEASE - Duration::from_millis(100)).await;
            // The answer may arrive, and what follows it may not.
            scene.network.reset(&b.host, &scene.server);
            env.sleep(Duration::from_micros(300)).await;
            scene.network.part(std::slice::from_ref(&b.host), std::slice::from_ref(&scene.server));
            let clock = env.clone();
            let written = async {
                written.await;
                clock.now()
            };
            let (read, written) = tokio::join!(last_cached(&env, &b, file), written);
            assert!(read < written, "seed {seed}: {read:?} {written:?}");
        });
    }
}

#[test]
fn nothing_waits_for_a_client_that_was_dropped() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (scene.client("a").await, scene.client("b").await);
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        let Machine { client, process, .. } = b;
        drop(client);
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(scene.service.sessions().len(), 1);
        let start = env.now();
        put(&a.client, file, "new").await.unwrap();
        assert!(env.now().since(start) < LEASE / 10);
        drop(process);
    });
}

#[test]
fn an_inode_that_is_forgotten_while_the_connection_breaks_is_removed() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let a = scene.client("a").await;
        let sent = |scene: &Scene| scene.network.tally(&a.host, &scene.server).writes;
        for number in 0..10u64 {
            let name = format!("f{number}");
            let file = make(&a.client, Ino::ROOT, &name, Node::File).await;
            a.client.reference(file);
            a.client.unlink(Ino::ROOT, name.as_bytes()).await.unwrap();
            a.client.unreference(file, 1);
            // The message is under way, or has just arrived.
            let before = sent(&scene);
            while sent(&scene) == before {
                env.sleep(Duration::from_micros(10)).await;
            }
            env.sleep(Duration::from_micros(number * 12)).await;
            scene.network.reset(&a.host, &scene.server);
            env.sleep(LEASE).await;
            let left = scene.files.statistics().await.unwrap().inodes.0;
            assert_eq!(left, 1, "inodes in use, with the root, after {number} resets");
        }
        assert_eq!(a.client.status().evictions, 0);
    });
}

#[test]
fn a_client_hears_at_once_that_it_was_evicted() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let a = scene.client("a").await;
        // It sends nothing for a while.
        env.sleep(LEASE + LEASE / 8).await;
        assert_eq!(scene.service.evict("a"), 1);
        env.sleep(LEASE / 20).await;
        assert_eq!(a.client.status().evictions, 1);
    });
}

/// Connects, unless the server is said to refuse.
#[derive(Debug)]
struct Door {
    to: SimConnector,
    refuses: Arc<AtomicBool>,
}

impl Connector for Door {
    fn connect(&self) -> Connecting<'_> {
        match self.refuses.load(Ordering::Relaxed) {
            true => Box::pin(async { Err(io::ErrorKind::PermissionDenied.into()) }),
            false => self.to.connect(),
        }
    }
}

#[test]
fn calls_fail_at_once_when_the_server_refuses_the_client() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let refuses = Arc::<AtomicBool>::default();
        let (to, said) = (scene.entrance("a"), refuses.clone());
        let door = Box::new(Door { to, refuses: said });
        let client = Client::connect(&env, door, patient()).await.unwrap();
        let file = make(&client, Ino::ROOT, "f", Node::File).await;
        refuses.store(true, Ordering::Relaxed);
        scene.service.evict("a");
        let start = env.now();
        let failed = client.statistics().await;
        assert!(matches!(failed, Err(FsError::Store(_))), "{failed:?}");
        assert!(env.now().since(start) < Duration::from_secs(1));
        // It may be let in again.
        refuses.store(false, Ordering::Relaxed);
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(client.find(Ino::ROOT, b"f").await.unwrap().ino, file);
    });
}

#[test]
fn a_close_does_not_wait_for_a_server_that_is_gone() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let a = scene.client("a").await;
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        let opened = a.client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
        a.client.lock(file, &whole(opened, 1), false).await.unwrap();
        scene.network.part(std::slice::from_ref(&a.host), std::slice::from_ref(&scene.server));
        let start = env.now();
        a.client.flush(file, opened, LockOwner::local(1)).await.unwrap();
        assert!(env.now().since(start) <= LEASE + Duration::from_millis(1));
        scene.network.heal();
        env.sleep(LEASE).await;
        // The server has heard of it in the meantime.
        let b = scene.client("b").await;
        b.client.find(Ino::ROOT, b"f").await.unwrap();
        let other = b.client.open(&Caller::default(), file, WRITING).await.unwrap().handle;
        b.client.lock(file, &whole(other, 1), false).await.unwrap();
    });
}
