//! Calls that wait for locks: they hold up no other call, and nothing is left of a caller that has gone.

use std::sync::Arc;
use std::time::Duration;

use thalweg_cluster::client;
use thalweg_fs::{
    Caller, Filesystem, FsError, Handle, Ino, Lock, LockKind, LockMode, LockOwner, LockRange, Node,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::scene::*;

/// A client whose opens are calls.
async fn calling(scene: &Scene, name: &str) -> Machine {
    let options = client::Options { exclusive: None, ..patient() };
    scene.client_with(visitor(name), options).await.unwrap()
}

async fn open(fs: &dyn Filesystem, ino: Ino) -> Handle {
    fs.open(&Caller::default(), ino, WRITING).await.unwrap().handle
}

fn flock(handle: Handle, mode: LockMode) -> Lock {
    let owner = LockOwner::local(100 + handle.0);
    Lock { kind: LockKind::Bsd, owner, mode, ..whole(handle, 0) }
}

/// A waiting call that is not awaited.
fn wait(machine: &Machine, ino: Ino, lock: Lock) -> thalweg_env::Task<Result<(), FsError>> {
    let client = machine.client.clone();
    machine.process.env().spawn(async move { client.lock(ino, &lock, true).await })
}

#[test]
fn a_call_that_waits_for_a_lock_holds_up_no_other_one() {
    run(1, |env| async move {
        let scene = Scene::new(&env).await;
        let (a, b) = (calling(&scene, "a").await, calling(&scene, "b").await);
        let file = make(&b.client, Ino::ROOT, "f", Node::File).await;
        a.client.find(Ino::ROOT, b"f").await.unwrap();
        let (held, waits) = (open(&b.client, file).await, open(&a.client, file).await);
        b.client.lock(file, &whole(held, 1), false).await.unwrap();
        let waiting = wait(&a, file, whole(waits, 1));
        env.sleep(Duration::from_millis(1)).await;
        // More calls than the server keeps answers for.
        let many = (0..16).map(|_| {
            let client = a.client.clone();
            a.process.env().spawn(async move {
                for _ in 0..2200 {
                    let handle = open(&client, file).await;
                    client.release(file, handle).await;
                }
            })
        });
        futures::future::join_all(many).await;
        let status = scene.service.status();
        let of_a = status.clients.iter().find(|it| it.client == "a").unwrap();
        assert_eq!((of_a.open, of_a.running), (1, 1), "the wait alone");
        make(&a.client, Ino::ROOT, "g", Node::File).await;
        b.client.unlock(file, LockKind::Posix, LockOwner::local(1), LockRange::ALL).await.unwrap();
        waiting.await.unwrap().unwrap();
        assert_eq!(a.client.status().calls, 0);
    });
}

/// Whether another client gets a lock of the whole file at once; it has none afterwards.
async fn is_free(machine: &Machine, file: Ino, handle: Handle) -> bool {
    let taken = machine.client.lock(file, &whole(handle, 1), false).await;
    let all = LockRange::ALL;
    machine.client.unlock(file, LockKind::Posix, LockOwner::local(1), all).await.unwrap();
    taken.is_ok()
}

#[test]
fn a_lock_is_taken_back_from_a_caller_that_has_gone() {
    // The caller goes before, while and after the lock comes to it.
    for micros in (0..1200).step_by(50) {
        run(1, |env| async move {
            let scene = Scene::new(&env).await;
            let (a, b) = (calling(&scene, "a").await, calling(&scene, "b").await);
            let file = make(&b.client, Ino::ROOT, "f", Node::File).await;
            a.client.find(Ino::ROOT, b"f").await.unwrap();
            let (held, waits) = (open(&b.client, file).await, open(&a.client, file).await);
            // The caller has a part of it already, which stays.
            let part = LockRange { first: 3, last: 4 };
            let own = Lock { range: part, mode: LockMode::Shared, ..whole(waits, 1) };
            a.client.lock(file, &own, false).await.unwrap();
            let other = Lock { range: LockRange { first: 9, last: 9 }, ..whole(held, 1) };
            b.client.lock(file, &other, false).await.unwrap();
            let waiting = wait(&a, file, whole(waits, 1));
            env.sleep(Duration::from_millis(1)).await;
            let (client, own_env) = (b.client.clone(), b.process.env().clone());
            let unlocking = own_env.spawn(async move {
                client
                    .unlock(file, LockKind::Posix, LockOwner::local(1), LockRange::ALL)
                    .await
                    .unwrap();
            });
            env.sleep(Duration::from_micros(micros)).await;
            let got = env.timeout(Duration::ZERO, waiting).await;
            unlocking.await.unwrap();
            env.sleep(Duration::from_millis(5)).await;
            let locks = a.client.locks(file);
            if got.is_some() {
                assert_eq!(locks, [whole(waits, 1)]);
                assert!(!is_free(&b, file, held).await);
                return;
            }
            assert_eq!(locks, [own], "{micros}");
            assert!(!is_free(&b, file, held).await, "the part is locked still");
            let all = LockRange::ALL;
            a.client.unlock(file, LockKind::Posix, LockOwner::local(1), part).await.unwrap();
            assert!(is_free(&b, file, held).await, "{micros}");
            a.client.unlock(file, LockKind::Posix, LockOwner::local(1), all).await.unwrap();
        });
    }
}

#[test]
fn a_lock_is_taken_back_also_when_the_connection_is_lost() {
    for goes_first in [false, true] {
        run(1, |env| async move {
            let scene = Scene::new(&env).await;
            let (a, b) = (calling(&scene, "a").await, calling(&scene, "b").await);
            let file = make(&b.client, Ino::ROOT, "f", Node::File).await;
            a.client.find(Ino::ROOT, b"f").await.unwrap();
            let (held, waits) = (open(&b.client, file).await, open(&a.client, file).await);
            b.client.lock(file, &whole(held, 1), false).await.unwrap();
            let waiting = wait(&a, file, whole(waits, 1));
            env.sleep(Duration::from_millis(1)).await;
            let sides = [[a.host.clone()], [scene.server.clone()]];
            scene.network.part(&sides[0], &sides[1]);
            scene.network.reset(&a.host, &scene.server);
            let unlock =
                b.client.unlock(file, LockKind::Posix, LockOwner::local(1), LockRange::ALL);
            match goes_first {
                true => {
                    drop(waiting);
                    env.sleep(Duration::from_millis(1)).await;
                    unlock.await.unwrap();
                }
                false => {
                    unlock.await.unwrap();
                    env.sleep(Duration::from_millis(1)).await;
                    drop(waiting);
                }
            }
            scene.network.heal();
            env.sleep(LEASE / 2).await;
            assert!(is_free(&b, file, held).await, "{goes_first}");
            assert_eq!(a.client.status().evictions, 0);
            // It is no obstacle to a lock of the same owner.
            a.client.lock(file, &whole(waits, 1), true).await.unwrap();
            assert!(!is_free(&b, file, held).await);
        });
    }
}

#[test]
fn a_wait_goes_on_at_the_next_server() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let (a, b) = (calling(&scene, "a").await, calling(&scene, "b").await);
        let file = make(&b.client, Ino::ROOT, "f", Node::File).await;
        a.client.find(Ino::ROOT, b"f").await.unwrap();
        let (held, waits) = (open(&b.client, file).await, open(&a.client, file).await);
        b.client.lock(file, &whole(held, 1), false).await.unwrap();
        let (waiting, gone) = (wait(&a, file, whole(waits, 1)), wait(&a, file, whole(waits, 2)));
        env.sleep(Duration::from_millis(1)).await;
        scene.stop().await;
        drop(gone);
        env.sleep(Duration::from_millis(1)).await;
        scene.start(Shape::Everything).await;
        // Many calls come before the waiting one is answered.
        for number in 0..100 {
            make(&a.client, Ino::ROOT, &format!("g{number}"), Node::File).await;
        }
        b.client.unlock(file, LockKind::Posix, LockOwner::local(1), LockRange::ALL).await.unwrap();
        waiting.await.unwrap().unwrap();
        a.client.unlock(file, LockKind::Posix, LockOwner::local(1), LockRange::ALL).await.unwrap();
        assert!(is_free(&b, file, held).await, "a waiter that went has no lock");
    });
}

#[test]
fn locks_of_both_kinds_do_not_know_each_other() {
    run(1, |env| async move {
        let mut scene = Scene::durable(&env).await;
        // Opens and locks of the one are its own, those of the other are the server's.
        let a = Arc::new(scene.client("a").await);
        let b = calling(&scene, "b").await;
        let file = make(&a.client, Ino::ROOT, "f", Node::File).await;
        // As a kernel does with what it has open.
        a.client.reference(file);
        let handle = open(&a.client, file).await;
        for _ in 0..2 {
            for wait in [false, true] {
                let both = [whole(handle, 1), flock(handle, LockMode::Exclusive)];
                for lock in both {
                    a.client.lock(file, &lock, wait).await.unwrap();
                }
                assert_eq!(a.client.locks(file).len(), 2);
            }
            b.client.find(Ino::ROOT, b"f").await.unwrap();
            b.client.reference(file);
            let other = open(&b.client, file).await;
            for lock in [whole(other, 1), flock(other, LockMode::Shared)] {
                let refused = b.client.lock(file, &lock, false).await;
                assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
            }
            // The next server knows both.
            scene.crash(Shape::Everything).await;
            env.sleep(LEASE).await;
            for lock in [whole(other, 1), flock(other, LockMode::Shared)] {
                let refused = b.client.lock(file, &lock, false).await;
                assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
            }
            let owner = LockOwner::local(1);
            a.client.unlock(file, LockKind::Posix, owner, LockRange::ALL).await.unwrap();
            b.client.lock(file, &whole(other, 1), false).await.unwrap();
            // A change of a lock of flock that is refused loses the old one, also for the next server.
            let owner = flock(handle, LockMode::Shared).owner;
            a.client.unlock(file, LockKind::Bsd, owner, LockRange::ALL).await.unwrap();
            for (client, handle) in [(&a.client, handle), (&b.client, other)] {
                client.lock(file, &flock(handle, LockMode::Shared), false).await.unwrap();
            }
            let refused = a.client.lock(file, &flock(handle, LockMode::Exclusive), false).await;
            assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
            assert_eq!(a.client.locks(file), []);
            b.client.release(file, other).await;
            b.client.unreference(file, 1);
        }
    });
}
