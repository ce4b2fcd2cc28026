//! What the server refuses of what a client with a journal has made, while it is mounted: nothing is lost, nothing behind it comes to the
//! server before it, and it is sent again.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::{self, AttachError, Client};
use thalweg_env::{Env, Rng};
use thalweg_fs::{
    Cookie, Filesystem, FsError, Ino, Level, Node, Rename, SetXattr, WriteAt, WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::full::alone;
use crate::journal::Journaled;
use crate::journal_crashes::left;
use crate::scene::*;

const LONG: Duration = Duration::from_secs(60);

/// Sets a quota behind the server's back, so that what clients were promised does not cover what they make. 0 is none.
async fn limit(scene: &Scene, directory: Ino, files: u64) {
    let files = Bytes::from(files.to_string());
    let name = b"thalweg.quota.max_files";
    scene.files.set_xattr(directory, name, files, SetXattr::Any).await.unwrap();
    // A crash of the server would undo it, and so refuse calls again that it has answered.
    scene.files.sync_all().await.unwrap();
}

/// A client that has made three changes of which the second one does not fit the quota, with their directory and files.
async fn full(scene: &Scene, machine: &Journaled) -> (Client, [Ino; 3]) {
    let client = machine.mount(scene, true).await.unwrap();
    let directory = alone(&client, "d").await;
    let old = make(&client, directory, "old", Node::File).await;
    client.reference(old);
    client.drain().await.unwrap();
    put(&client, old, "early").await.unwrap();
    let file = make(&client, directory, "file", Node::File).await;
    client.reference(file);
    put(&client, old, "later").await.unwrap();
    client.sync(file, false).await.unwrap();
    limit(scene, directory, 4).await;
    (client, [directory, old, file])
}

async fn names(fs: &dyn Filesystem, directory: Ino) -> Vec<String> {
    let entries = fs.read_directory(directory, Cookie::START, 1000, false).await.unwrap();
    entries.into_iter().map(|it| String::from_utf8(it.name.to_vec()).unwrap()).collect()
}

async fn find_directory(client: &Client) -> Ino {
    let directory = client.find(Ino::ROOT, b"d").await.unwrap().ino;
    client.reference(directory);
    directory
}

fn is_over_quota<T: std::fmt::Debug>(done: Result<T, FsError>) {
    assert!(matches!(done, Err(FsError::QuotaExceeded)), "{done:?}");
}

#[test]
fn a_refusal_loses_nothing_and_keeps_the_order() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let machine = Journaled::new(&scene, "a").await;
        let (client, [directory, old, file]) = full(&scene, &machine).await;
        for _ in 0..3 {
            is_over_quota(client.drain().await);
            // The server has what is before it, and nothing behind.
            assert_eq!(text(&*scene.files, old).await, "early");
            let pending = client.pending();
            assert_eq!(pending.unsent.changes, 2);
            assert!(pending.refused.is_some_and(|why| why.contains("quota")));
            // A caller that syncs it hears of it, each time; a sync of another file needs the journal alone.
            is_over_quota(client.sync(file, false).await);
            is_over_quota(client.sync(directory, false).await);
            is_over_quota(client.sync_all().await);
            client.sync(old, false).await.unwrap();
            assert_eq!(client.level(old).await.unwrap(), Level::Journal);
            assert_eq!(text(&client, old).await, "later");
            assert!(client.find(directory, b"file").await.is_ok());
            // A call comes behind what waits.
            is_over_quota(
                client.rename((Ino::ROOT, b"d"), (Ino::ROOT, b"e"), Rename::Replace).await,
            );
            env.sleep(Duration::from_secs(20)).await;
        }
        let batches = || client.traffic().sent_for("Batch").messages;
        let before = batches();
        env.sleep(LONG).await;
        assert!((2..12).contains(&(batches() - before)), "it is sent again now and then");
        limit(&scene, directory, 0).await;
        env.sleep(LONG).await;
        client.drain().await.unwrap();
        assert_eq!(text(&*scene.files, old).await, "later");
        let (status, pending) = (client.status(), client.pending());
        assert_eq!((status.lost, status.evictions, pending.refused), (0, 0, None));
        assert_eq!(names(&client, directory).await, names(&*scene.files, directory).await);
        client.sync(file, false).await.unwrap();
        client.rename((Ino::ROOT, b"d"), (Ino::ROOT, b"e"), Rename::Replace).await.unwrap();
        assert_eq!(scene.service.status().refused_changes, 0);
    });
}

#[test]
fn a_refusal_survives_the_client_and_an_unmount() {
    for crashes in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let mut machine = Journaled::new(&scene, "a").await;
            let (client, [directory, old, _]) = full(&scene, &machine).await;
            is_over_quota(client.drain().await);
            if crashes {
                machine.crash(Shape::Nothing);
            } else {
                client.leave().await.unwrap();
            }
            drop(client);
            let refused = machine.mount(&scene, true).await;
            assert!(matches!(refused, Err(AttachError::Pending { .. })), "{refused:?}");
            limit(&scene, directory, 0).await;
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text(&*scene.files, old).await, "later");
            assert_eq!(names(&again, find_directory(&again).await).await.len(), 4);
        });
    }
}

/// Another client that wants the directory waits. If room comes in time, it gets everything; else the session ends, and it finds what was
/// before the refusal. The journal keeps the rest for a later mount.
#[test]
fn a_recall_waits_for_what_was_refused() {
    for in_time in [true, false] {
        run(1, move |env| async move {
            let scene = Scene::durable(&env).await;
            let machine = Journaled::new(&scene, "a").await;
            let (client, [directory, old, _]) = full(&scene, &machine).await;
            let visitor = scene.client("other").await;
            let other = visitor.client.clone();
            let looking =
                env.spawn(async move { names(&other, find_directory(&other).await).await });
            env.sleep(LEASE / 4).await;
            assert!(!looking.is_finished(), "it waits for what was refused");
            if in_time {
                limit(&scene, directory, 0).await;
            }
            let seen = looking.await.unwrap();
            assert_eq!(seen.contains(&"file".to_owned()), in_time, "{seen:?}");
            assert_eq!(client.status().evictions, u64::from(!in_time));
            if in_time {
                assert_eq!(client.status().lost, 0);
                return;
            }
            assert_eq!(text(&*scene.files, old).await, "early");
            limit(&scene, directory, 0).await;
            client.close().await;
            let again = machine.mount(&scene, true).await.unwrap();
            assert_eq!(text(&*scene.files, old).await, "later");
            let found = names(&again, find_directory(&again).await).await;
            assert!(found.contains(&"file".to_owned()), "{found:?}");
        });
    }
}

/// A client gives up calls after a while, as with `soft`. It loses nothing of its journal by that. The server may have applied the batch, and its
/// answer was lost.
#[test]
fn a_server_that_is_away_for_long_loses_nothing() {
    for seed in campaign::seeds(60) {
        run(seed, move |env| async move {
            let scene = Scene::slow(&env, Duration::from_millis(1)).await;
            let machine = Journaled::new(&scene, "a").await;
            let options =
                client::Options { retry: Some(LEASE / 2), ..machine.options(seed % 2 == 0) };
            let connector = Box::new(machine.host().connector(&scene.server, PORT));
            let client = Client::connect(machine.process.env(), connector, options).await.unwrap();
            let directory = alone(&client, "d").await;
            let file = make(&client, directory, "file", Node::File).await;
            client.reference(file);
            client.drain().await.unwrap();
            let mut rng = env.rng();
            let mut expected = Vec::new();
            let mut failed = 0;
            for round in 1..6_u8 {
                for _ in 0..rng.random_range(1..20) {
                    let (at, data) = (WriteAt::Offset(expected.len() as u64), vec![round; 3000]);
                    let wrote = client
                        .write(file, at, vec![data.clone().into()], WriteHow::default())
                        .await;
                    if wrote.is_ok() {
                        expected.extend_from_slice(&data);
                    }
                }
                client.sync(file, false).await.unwrap();
                let draining = client.clone();
                let drained = env.spawn(async move { draining.drain().await });
                env.sleep(Duration::from_micros(rng.random_range(0..6_000))).await;
                scene.network.cut(&scene.server, &machine.host());
                if rng.random_bool(0.5) {
                    scene.network.cut(&machine.host(), &scene.server);
                }
                // These come behind the batch that is sent in vain, and must not be a part of it.
                for _ in 0..rng.random_range(0..5) {
                    let (at, data) = (WriteAt::Offset(expected.len() as u64), vec![round; 100]);
                    let data_written = vec![data.clone().into()];
                    let writing = client.write(file, at, data_written, WriteHow::default());
                    if let Some(Ok(_)) = env.timeout(LEASE / 100, writing).await {
                        expected.extend_from_slice(&data);
                    }
                }
                // Shorter than a lease, so that the session goes on.
                env.sleep(LEASE * 3 / 4).await;
                failed += u32::from(drained.await.unwrap().is_err());
                scene.network.heal();
                env.sleep(Duration::from_millis(rng.random_range(0..500))).await;
            }
            env.sleep(2 * LEASE).await;
            client.drain().await.unwrap();
            assert_eq!((client.status().lost, client.status().evictions), (0, 0), "{failed}");
            let found = scene.files.read(file, 0, 1 << 20).await.unwrap().concat();
            assert!(found == expected, "{} of {} bytes", found.len(), expected.len());
        });
    }
}

type State = BTreeMap<String, Vec<u8>>;

async fn state_of(fs: &dyn Filesystem, directory: Ino) -> State {
    let mut state = State::new();
    for entry in fs.read_directory(directory, Cookie::START, 1000, false).await.unwrap() {
        let bytes = fs.read(entry.ino, 0, 1 << 20).await.unwrap().concat();
        state.insert(String::from_utf8(entry.name.to_vec()).unwrap(), bytes);
    }
    state
}

/// A client at work, while its quota comes and goes, and both machines crash now and then.
struct Life {
    scene: Scene,
    machine: Journaled,
    client: Client,
    directory: Ino,
    inodes: Vec<(String, Ino)>,
    /// What the directory was after each change.
    states: Vec<State>,
    /// The state that was synced last, and the last one that the server had.
    synced: usize,
    last_seen: usize,
    refusals: u64,
    syncs: u64,
}

impl Life {
    async fn begin(env: &Env) -> Life {
        let scene = Scene::durable(env).await;
        let machine = Journaled::new(&scene, "a").await;
        let client = machine.mount(&scene, env.rng().random_bool(0.5)).await.unwrap();
        let directory = alone(&client, "d").await;
        client.drain().await.unwrap();
        let states = vec![state_of(&client, directory).await];
        let (inodes, synced, last_seen, refusals, syncs) = Default::default();
        Life {
            scene,
            machine,
            client,
            directory,
            inodes,
            states,
            synced,
            last_seen,
            refusals,
            syncs,
        }
    }

    /// A change was made, or refused at once.
    fn made<T>(&mut self, done: Result<T, FsError>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                is_over_quota::<()>(Err(error));
                self.states.pop();
                self.refusals += 1;
                None
            }
        }
    }

    async fn create(&mut self, name: String) {
        let mut next = self.states.last().unwrap().clone();
        next.insert(name.clone(), Vec::new());
        self.states.push(next);
        let done = self.client.create(self.directory, name.as_bytes(), &new(Node::File)).await;
        if let Some(made) = self.made(done) {
            self.client.reference(made.ino);
            self.inodes.push((name, made.ino));
        }
    }

    async fn append(&mut self, some: usize, data: Vec<u8>) {
        let (name, ino) = self.inodes[some].clone();
        let mut next = self.states.last().unwrap().clone();
        let bytes = next.get_mut(&name).unwrap();
        let at = WriteAt::Offset(bytes.len() as u64);
        bytes.extend_from_slice(&data);
        self.states.push(next);
        let done = self.client.write(ino, at, vec![data.into()], WriteHow::default()).await;
        self.made(done);
    }

    async fn sync(&mut self, some: usize) {
        match self.client.sync(self.inodes[some].1, false).await {
            // Everything that was made before is in the journal, or at the server.
            Ok(()) => {
                self.synced = self.states.len() - 1;
                self.syncs += 1;
            }
            Err(error) => {
                is_over_quota::<()>(Err(error));
                self.refusals += 1;
            }
        }
    }

    async fn limit(&self, files: u64) {
        limit(&self.scene, self.directory, files).await;
    }

    /// The client crashes, and perhaps the server.
    async fn crash(&mut self, rng: &mut Rng) {
        self.limit(0).await;
        self.machine.crash(left(rng));
        if rng.random_bool(0.5) {
            self.scene.crash(left(rng)).await;
        }
        self.client = self.machine.mount(&self.scene, rng.random_bool(0.5)).await.unwrap();
        let at = self.position().await.filter(|at| *at >= self.synced);
        let at = at.unwrap_or_else(|| panic!("{} was synced", self.synced));
        self.states.truncate(at + 1);
        (self.synced, self.last_seen) = (at, at);
        self.inodes.retain(|(name, _)| self.states[at].contains_key(name));
        find_directory(&self.client).await;
        for (name, ino) in &mut self.inodes {
            *ino = self.client.find(self.directory, name.as_bytes()).await.unwrap().ino;
            self.client.reference(*ino);
        }
    }

    async fn crash_server(&mut self, rng: &mut Rng) {
        self.scene.crash(left(rng)).await;
        // It gets again what it had answered, before anyone else looks.
        let env = self.scene.env.clone();
        let restarted = env.now();
        self.client.sync_all().await.ok();
        while !self.client.status().connected || env.now() < restarted + LEASE {
            env.sleep(LEASE / 20).await;
        }
        self.last_seen = 0;
    }

    /// The state that the server has, if it is one.
    async fn position(&self) -> Option<usize> {
        let now = state_of(&*self.scene.files, self.directory).await;
        self.states.iter().position(|it| *it == now)
    }

    /// What the server has is a prefix, and never less than before.
    async fn check(&mut self) {
        let at = self.position().await.expect("the server has a prefix");
        assert!(at >= self.last_seen, "the server went back to {at}");
        self.last_seen = at;
    }
}

/// Refusals and syncs of a life.
fn live(seed: u64) -> (u64, u64) {
    run(seed, move |env| async move {
        let mut life = Life::begin(&env).await;
        let mut rng = env.rng();
        for step in 0..120_u8 {
            let some = life.inodes.len().checked_sub(1).map(|last| rng.random_range(0..=last));
            match (rng.random_range(0..20), some) {
                (0..5, _) => life.create(format!("f{step}")).await,
                (5..10, Some(some)) => {
                    life.append(some, vec![step + 1; rng.random_range(1..9000)]).await;
                }
                (10..13, Some(some)) => life.sync(some).await,
                (13, _) => life.limit(3 + life.inodes.len() as u64 / 2).await,
                (14 | 15, _) => life.limit(0).await,
                (16, _) => life.refusals += u64::from(life.client.drain().await.is_err()),
                (17, _) if rng.random_bool(0.3) => life.crash(&mut rng).await,
                (18, _) if rng.random_bool(0.3) => life.crash_server(&mut rng).await,
                _ => env.sleep(Duration::from_millis(rng.random_range(0..2000))).await,
            }
            life.check().await;
        }
        life.limit(0).await;
        life.client.drain().await.unwrap();
        assert_eq!(life.position().await, Some(life.states.len() - 1), "something is missing");
        assert_eq!(life.client.status().lost, 0);
        (life.refusals, life.syncs)
    })
}

#[test]
fn refusals_come_and_go_and_nothing_is_lost() {
    let (mut refusals, mut syncs) = (0, 0);
    for seed in campaign::seeds(40) {
        let seen = live(seed);
        (refusals, syncs) = (refusals + seen.0, syncs + seen.1);
    }
    println!("{refusals} refusals, {syncs} syncs");
    assert!(refusals > 100 && syncs > 100);
}
