//! Locks of files that are one client's alone, also of those that the server knows to be open; opens of such directories.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use thalweg_cluster::client::{self, Client};
use thalweg_env::Env;
use thalweg_fs::{
    AttributeChange, Caller, Filesystem, FsError, Handle, Ino, Lock, LockKind, LockMode, LockOwner,
    LockRange, Node,
};
use thalweg_sim::campaign::seeds;
use thalweg_sim::crash::Shape;
use thalweg_sim::run;

use crate::scene::*;

async fn open(client: &Client, ino: Ino) -> Handle {
    client.open(&Caller::default(), ino, WRITING).await.unwrap().handle
}

/// A file that one client has made, and another one has to itself from here on: it opens it by a call.
async fn taken(maker: &Client, taker: &Client) -> (Ino, Handle) {
    let file = make(maker, Ino::ROOT, "f", Node::File).await;
    taker.find(Ino::ROOT, b"f").await.unwrap();
    [maker, taker].iter().for_each(|client| client.reference(file));
    (file, open(taker, file).await)
}

async fn unlock(client: &Client, ino: Ino, owner: u64) {
    client.unlock(ino, LockKind::Posix, LockOwner::local(owner), LockRange::ALL).await.unwrap();
}

#[test]
fn locks_take_no_call_once_the_file_is_the_clients_alone() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (file, handle) = taken(b, a).await;
        let before = calls(a);
        for _ in 0..100 {
            a.lock(file, &whole(handle, 5), false).await.unwrap();
            let refused = a.lock(file, &whole(handle, 6), false).await;
            assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
            unlock(a, file, 5).await;
            a.lock(file, &whole(handle, 6), false).await.unwrap();
            a.flush(file, handle, LockOwner::local(6)).await.unwrap();
        }
        assert_eq!(calls(a), before);
        a.lock(file, &whole(handle, 5), false).await.unwrap();
        // Another client meets the lock, and gets it in its turn.
        let theirs = open(b, file).await;
        let refused = b.lock(file, &whole(theirs, 5), false).await;
        assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
        unlock(a, file, 5).await;
        b.lock(file, &whole(theirs, 5), false).await.unwrap();
        let refused = a.lock(file, &whole(handle, 5), false).await;
        assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
    });
}

#[test]
fn a_lock_that_was_taken_here_outlives_the_server() {
    run(2, |env| async move {
        let mut scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (file, handle) = taken(b, a).await;
        a.lock(file, &whole(handle, 5), false).await.unwrap();
        for left in [Shape::Nothing, Shape::Everything] {
            scene.crash(left).await;
            env.sleep(4 * LEASE).await;
            let theirs = open(b, file).await;
            let refused = b.lock(file, &whole(theirs, 7), false).await;
            assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
            b.release(file, theirs).await;
        }
        a.flush(file, handle, LockOwner::local(5)).await.unwrap();
        let theirs = open(b, file).await;
        b.lock(file, &whole(theirs, 7), false).await.unwrap();
    });
}

#[test]
fn a_directory_is_opened_without_a_call_and_others_may_remove_it() {
    run(3, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let directory = make(a, Ino::ROOT, "d", Node::Directory).await;
        a.reference(directory);
        for name in ["one", "two", "three"] {
            make(a, directory, name, Node::File).await;
        }
        let before = calls(a);
        for _ in 0..10 {
            let handle = open(a, directory).await;
            a.release(directory, handle).await;
        }
        assert_eq!(calls(a), before);
        // Locks of directories are the server's: another client may have taken one before.
        let handle = open(a, directory).await;
        a.lock(directory, &whole(handle, 5), false).await.unwrap();
        b.find(Ino::ROOT, b"d").await.unwrap();
        b.reference(directory);
        let theirs = open(b, directory).await;
        let refused = b.lock(directory, &whole(theirs, 5), false).await;
        assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
        for name in ["one", "two", "three"] {
            b.unlink(directory, name.as_bytes()).await.unwrap();
        }
        b.remove_directory(Ino::ROOT, b"d").await.unwrap();
        let empty = a.read_directory(directory, Default::default(), 100, false).await.unwrap();
        assert!(empty.is_empty(), "{empty:?}");
        a.release(directory, handle).await;
    });
}

/// A lock of one byte.
fn byte(handle: Handle, owner: u64, at: u64) -> Lock {
    Lock { range: LockRange { first: at, last: at }, ..whole(handle, owner) }
}

#[test]
fn the_server_keeps_the_locks_that_it_has_while_some_are_held() {
    run(4, |env| async move {
        let scene = Scene::durable(&env).await;
        let machines = (scene.client("a").await, scene.client("b").await);
        let (a, b) = (&machines.0.client, &machines.1.client);
        let (file, handle) = taken(b, a).await;
        a.lock(file, &byte(handle, 5, 0), false).await.unwrap();
        let waiting = a.clone();
        let wait = env.spawn(async move { waiting.lock(file, &byte(handle, 6, 0), true).await });
        env.sleep(Duration::from_millis(20)).await;
        unlock(a, file, 5).await;
        wait.await.unwrap().unwrap();
        let before = calls(a);
        a.lock(file, &byte(handle, 5, 1), false).await.unwrap();
        assert_eq!(calls(a), before + 1, "the server has the lock of 6");
        unlock(a, file, 6).await;
        let theirs = open(b, file).await;
        b.lock(file, &byte(theirs, 7, 0), false).await.unwrap();
        let refused = b.lock(file, &byte(theirs, 7, 1), false).await;
        assert!(matches!(refused, Err(FsError::Locked)), "{refused:?}");
    });
}

#[test]
fn a_lock_that_is_taken_while_the_server_is_told_of_others_is_told_too() {
    for late in 0..40 {
        run(late, |env| async move {
            let scene = Scene::durable(&env).await;
            let machines = (scene.client("a").await, scene.client("b").await);
            let (a, b) = (&machines.0.client, &machines.1.client);
            let (file, handle) = taken(b, a).await;
            a.lock(file, &byte(handle, 5, 0), false).await.unwrap();
            let waiting = a.clone();
            // The server has to know of the lock that is held.
            let wait =
                env.spawn(async move { waiting.lock(file, &byte(handle, 6, 0), true).await });
            env.sleep(Duration::from_micros(10 * late)).await;
            a.lock(file, &byte(handle, 7, 1), false).await.unwrap();
            env.sleep(Duration::from_millis(20)).await;
            let theirs = open(b, file).await;
            let refused = b.lock(file, &byte(theirs, 8, 1), false).await;
            assert!(matches!(refused, Err(FsError::Locked)), "{late}: {refused:?}");
            unlock(a, file, 5).await;
            wait.await.unwrap().unwrap();
        });
    }
}

/// As SQLite does with the index of its log: it has a lock on it as long as it is open, and others for each transaction.
#[test]
fn locks_stay_here_when_a_call_has_changed_the_file() {
    for is_lost in [false, true] {
        run(5, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let machines = (scene.client("a").await, scene.client("b").await);
            let (a, b) = (&machines.0.client, &machines.1.client);
            let (file, handle) = taken(b, a).await;
            a.lock(file, &byte(handle, 5, 0), false).await.unwrap();
            // It gets longer by a call.
            let longer = AttributeChange { size: Some(3), ..AttributeChange::default() };
            let before = calls(a);
            a.set_attributes(file, &longer).await.unwrap();
            assert_eq!(calls(a), before + 1);
            let found = a.conflicting_lock(file, &byte(handle, 6, 0)).await.unwrap();
            assert_eq!(found.map(|lock| lock.owner), Some(LockOwner::local(5)));
            assert!(calls(a) <= before + 2, "one for its attributes");
            let before = calls(a);
            for at in [1, 2, 1, 2] {
                a.lock(file, &byte(handle, 5, at), false).await.unwrap();
                let range = LockRange { first: 1, last: 1 };
                a.unlock(file, LockKind::Posix, LockOwner::local(5), range).await.unwrap();
            }
            assert_eq!(calls(a), before);
            if is_lost {
                scene.crash(Shape::Everything).await;
                env.sleep(4 * LEASE).await;
            }
            let theirs = open(b, file).await;
            for at in [0, 2] {
                let refused = b.lock(file, &byte(theirs, 5, at), false).await;
                assert!(matches!(refused, Err(FsError::Locked)), "{at}: {refused:?}");
            }
            b.lock(file, &byte(theirs, 5, 1), false).await.unwrap();
        });
    }
}

/// The programs that hold a lock on the one file, by all that they were told: shared ones, or an exclusive one.
#[derive(Debug, Default)]
struct Told {
    holders: Vec<(u64, LockMode)>,
}

impl Told {
    fn locked(&mut self, program: u64, mode: LockMode) {
        self.released(program);
        let conflicts =
            |held: &&(u64, LockMode)| mode == LockMode::Exclusive || held.1 == LockMode::Exclusive;
        let other = self.holders.iter().find(conflicts);
        assert!(other.is_none(), "program {program} locks ({mode:?}) what {other:?} has locked");
        self.holders.push((program, mode));
    }

    fn released(&mut self, program: u64) {
        self.holders.retain(|(holder, _)| *holder != program);
    }
}

/// A program that locks the file, and opens and closes it.
struct Program {
    client: Client,
    file: Ino,
    number: u64,
    told: Arc<Mutex<Told>>,
}

impl Program {
    async fn live(self, env: Env) {
        let mut rng = env.rng();
        let mut handle = open(&self.client, self.file).await;
        for _ in 0..40 {
            let pause = if rng.random_bool(0.1) { 30_000 } else { rng.random_range(0..900) };
            env.sleep(Duration::from_micros(pause)).await;
            match rng.random_range(0..10) {
                0 => {
                    self.told.lock().released(self.number);
                    let owner = LockOwner::local(self.number);
                    self.client.flush(self.file, handle, owner).await.unwrap();
                    self.client.release(self.file, handle).await;
                    handle = open(&self.client, self.file).await;
                }
                1..=3 => {
                    self.told.lock().released(self.number);
                    unlock(&self.client, self.file, self.number).await;
                }
                kind => {
                    let mode = if kind < 7 { LockMode::Shared } else { LockMode::Exclusive };
                    self.lock(handle, mode, rng.random_bool(0.2)).await;
                }
            }
        }
        self.told.lock().released(self.number);
        self.client.flush(self.file, handle, LockOwner::local(self.number)).await.unwrap();
        self.client.release(self.file, handle).await;
    }

    /// What it holds stays held if it is refused another mode.
    async fn lock(&self, handle: Handle, mode: LockMode, wait: bool) {
        let lock = Lock { mode, ..whole(handle, self.number) };
        if wait {
            // Two that wait for each other would be refused; that is not what this is about.
            self.told.lock().released(self.number);
            unlock(&self.client, self.file, self.number).await;
        } else if mode == LockMode::Shared {
            self.told.lock().released(self.number);
        }
        match self.client.lock(self.file, &lock, wait).await {
            Ok(()) => self.told.lock().locked(self.number, mode),
            Err(FsError::Locked) if !wait => {
                self.told.lock().released(self.number);
                unlock(&self.client, self.file, self.number).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn programs_of_several_clients_exclude_each_other() {
    for seed in seeds(40) {
        run(seed, |env| async move {
            let mut scene = Scene::durable(&env).await;
            let mut machines = vec![scene.client("a").await, scene.client("b").await];
            let options = client::Options { exclusive: None, ..patient() };
            machines.push(scene.client_with(visitor("c"), options).await.unwrap());
            let (file, first) = taken(&machines[1].client, &machines[0].client).await;
            machines[0].client.release(file, first).await;
            machines[2].client.find(Ino::ROOT, b"f").await.unwrap();
            let told = Arc::new(Mutex::new(Told::default()));
            let mut rng = env.rng();
            let mut lives = Vec::new();
            for number in 1..=5_u64 {
                // Most are at the first client, so that it has the file to itself at times.
                let at = [0, 0, 0, 1, 2][number as usize - 1];
                let client = machines[at].client.clone();
                client.reference(file);
                let program = Program { client, file, number, told: told.clone() };
                let (task_env, begin) = (env.clone(), rng.random_range(0..40_000));
                lives.push(env.spawn(async move {
                    let late = if at == 0 { 0 } else { begin };
                    task_env.sleep(Duration::from_micros(late)).await;
                    program.live(task_env.clone()).await;
                }));
            }
            if seed % 2 == 1 {
                env.sleep(Duration::from_micros(rng.random_range(0..60_000))).await;
                scene.crash(Shape::Everything).await;
            }
            for life in lives {
                life.await.unwrap();
            }
            assert!(told.lock().holders.is_empty());
            let last = &machines[1].client;
            let handle = open(last, file).await;
            last.lock(file, &whole(handle, 99), false).await.unwrap();
        });
    }
}
