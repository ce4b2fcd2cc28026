//! Full volumes and quotas: what a client was told is there, whatever finds no room.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_cluster::client::{self, Client};
use thalweg_env::{Env, Rng};
use thalweg_fs::{
    Allocation, AttributeChange, Caller, Change, Cookie, Filesystem, FsError, Ino, Invalidation,
    LockOwner, Node, Rename, SetXattr, WriteAt, WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::scene::*;

/// What limits the clients of a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limit {
    /// The volume.
    Volume,
    /// A quota of all directories together.
    Quota,
}

/// A program that has a directory to itself, and knows what must be in it.
struct Program {
    env: Env,
    rng: Rng,
    number: usize,
    client: Client,
    directory: Ino,
    /// What each name leads to.
    names: BTreeMap<String, (Ino, Vec<u8>)>,
    xattrs: BTreeMap<Ino, Bytes>,
    made: u64,
    /// Calls that found no room.
    refused: u64,
}

/// Whether a call found no room; every other failure is one of the test.
pub(crate) fn is_refused<T>(done: &Result<T, FsError>) -> bool {
    match done {
        Ok(_) => false,
        Err(FsError::NoSpace | FsError::QuotaExceeded) => true,
        Err(error) => panic!("{error}"),
    }
}

impl Program {
    fn some(&mut self) -> Option<String> {
        let at = self.rng.random_range(0..self.names.len().max(1));
        self.names.keys().nth(at).cloned()
    }

    async fn create(&mut self) -> Option<String> {
        self.made += 1;
        let name = format!("f{}", self.made);
        let made = self.client.create(self.directory, name.as_bytes(), &new(Node::File)).await;
        if is_refused(&made) {
            self.refused += 1;
            return None;
        }
        let ino = made.unwrap().ino;
        self.client.reference(ino);
        self.names.insert(name.clone(), (ino, Vec::new()));
        Some(name)
    }

    /// Writes a part of a file, or makes it longer, as a program would.
    async fn write(&mut self, name: &str, whole: bool) -> bool {
        let (ino, size) = (self.names[name].0, self.names[name].1.len());
        let len = self.rng.random_range(1..if whole { 300_000 } else { 60_000 });
        let offset = match self.rng.random_range(0..4) {
            _ if whole => 0,
            0 => size + self.rng.random_range(0..20_000),
            _ => self.rng.random_range(0..=size),
        };
        let opened = self.client.open(&Caller::default(), ino, WRITING).await.unwrap();
        let value = self.rng.random_range(1..=255);
        let mut done = true;
        for at in (0..len).step_by(131_072) {
            let part = vec![value; (len - at).min(131_072)];
            let end = offset + at + part.len();
            let (data, at) = (vec![Bytes::from(part)], (offset + at) as u64);
            let wrote =
                self.client.write(ino, WriteAt::Offset(at), data, WriteHow::default()).await;
            if is_refused(&wrote) {
                self.refused += 1;
                done = false;
                break;
            }
            let bytes = &mut self.names.get_mut(name).unwrap().1;
            bytes.resize(bytes.len().max(end), 0);
            bytes[at as usize..end].fill(value);
        }
        self.client.flush(ino, opened.handle, LockOwner::local(1)).await.unwrap();
        self.client.release(ino, opened.handle).await;
        done
    }

    /// Reserves storage, and writes to some of it.
    async fn reserve(&mut self, name: &str) {
        let (ino, size) = (self.names[name].0, self.names[name].1.len());
        let (len, keep_size) = (self.rng.random_range(1..200_000), self.rng.random_bool(0.4));
        let how = Allocation::Reserve { keep_size };
        if is_refused(&self.client.allocate(ino, size as u64, len as u64, how).await) {
            self.refused += 1;
            // A part of it may be there.
            let size = self.client.attributes(ino).await.unwrap().attributes.size;
            self.names.get_mut(name).unwrap().1.resize(size as usize, 0);
        } else if !keep_size {
            self.names.get_mut(name).unwrap().1.resize(size + len, 0);
        }
    }

    async fn set_xattr(&mut self, name: &str) {
        let value = vec![self.rng.random_range(1..=255); self.rng.random_range(0..9_000)];
        let (ino, value) = (self.names[name].0, Bytes::from(value));
        let set = self.client.set_xattr(ino, b"user.a", value.clone(), SetXattr::Any).await;
        if is_refused(&set) {
            self.refused += 1;
        } else {
            self.xattrs.insert(ino, value);
        }
    }

    async fn remove(&mut self, name: &str) {
        self.client.unlink(self.directory, name.as_bytes()).await.unwrap();
        let (ino, _) = self.names.remove(name).unwrap();
        self.client.unreference(ino, 1);
    }

    async fn step(&mut self) {
        let chosen = self.rng.random_range(0..22);
        match (chosen, self.some()) {
            (0..6, _) | (_, None) => {
                if let Some(name) = self.create().await {
                    self.write(&name, true).await;
                }
            }
            (6..11, Some(name)) => drop(self.write(&name, false).await),
            // A file is replaced as programs do it: only by a new one that is whole.
            (11..14, Some(old)) => {
                let Some(name) = self.create().await else { return };
                if !self.write(&name, true).await {
                    return self.remove(&name).await;
                }
                let (from, to) =
                    ((self.directory, name.as_bytes()), (self.directory, old.as_bytes()));
                let renamed = self.client.rename(from, to, Rename::Replace).await;
                if !is_refused(&renamed) {
                    let new = self.names.remove(&name).unwrap();
                    let (old, _) = self.names.insert(old, new).unwrap();
                    self.client.unreference(old, 1);
                }
            }
            (14..16, Some(name)) => self.remove(&name).await,
            (16, Some(name)) => {
                let (ino, bytes) = self.names.get_mut(&name).unwrap();
                let size = self.rng.random_range(0..=bytes.len());
                let change = AttributeChange { size: Some(size as u64), ..Default::default() };
                if !is_refused(&self.client.set_attributes(*ino, &change).await) {
                    bytes.truncate(size);
                }
            }
            (17, Some(name)) => self.client.sync(self.names[&name].0, false).await.unwrap(),
            (18, Some(name)) => self.reserve(&name).await,
            (19, Some(name)) => self.set_xattr(&name).await,
            _ => self.env.sleep(Duration::from_millis(self.rng.random_range(0..1500))).await,
        }
    }

    /// What another client finds must be what this one was told.
    async fn verify(&self, seed: u64, other: &Client) {
        let top = other.find(Ino::ROOT, b"top").await.unwrap().ino;
        let directory = format!("c{}", self.number);
        let directory = other.find(top, directory.as_bytes()).await.unwrap().ino;
        other.reference(directory);
        for (name, (ino, bytes)) in &self.names {
            let found = other.find(directory, name.as_bytes()).await.unwrap();
            other.reference(found.ino);
            let what = format!("seed {seed}: client {}, {name}", self.number);
            assert_eq!(found.size, bytes.len() as u64, "{what}");
            if let Some(value) = self.xattrs.get(ino) {
                assert!(other.xattr(found.ino, b"user.a").await.unwrap() == value, "{what}");
            }
            let mut read = Vec::with_capacity(bytes.len());
            while read.len() < bytes.len() {
                let some = other.read(found.ino, read.len() as u64, 1 << 20).await.unwrap();
                read.extend(some.concat());
            }
            let differs = read.iter().zip(bytes).position(|(is, was)| is != was);
            assert_eq!(differs, None, "{what}: the first wrong byte");
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    refused: u64,
    crashes: u64,
    recalls: u64,
}

fn live(seed: u64, limit: Limit, steps: usize) -> Tally {
    run(seed, move |env| async move {
        let mut scene = Scene::small(&env).await;
        let mut rng = env.rng();
        let admin = scene.client("admin").await;
        let top = make(&admin.client, Ino::ROOT, "top", Node::Directory).await;
        admin.client.reference(top);
        if limit == Limit::Quota {
            let bytes = Bytes::from((1_200_000 + rng.random_range(0..400_000)).to_string());
            let set = |name: &'static [u8], value| {
                admin.client.set_xattr(top, name, value, SetXattr::Any)
            };
            set(b"thalweg.quota.max_bytes", bytes).await.unwrap();
            set(b"thalweg.quota.max_files", Bytes::from_static(b"60")).await.unwrap();
        }
        let mut working = Vec::new();
        let mut machines = Vec::new();
        for number in 0..rng.random_range(2..=4) {
            let name = format!("c{number}");
            let machine = scene.client(&name).await;
            let client = machine.client.clone();
            let top = client.find(Ino::ROOT, b"top").await.unwrap().ino;
            client.reference(top);
            let directory = make(&client, top, &name, Node::Directory).await;
            client.reference(directory);
            machines.push(machine);
            let (env, rng) = (env.clone(), env.rng());
            let (names, xattrs, made, refused) = Default::default();
            let mut program =
                Program { env, rng, number, client, directory, names, xattrs, made, refused };
            working.push(scene.env.spawn(async move {
                for _ in 0..steps {
                    program.step().await;
                }
                program
            }));
        }
        let mut tally = Tally::default();
        while !working.iter().all(|it| it.is_finished()) {
            env.sleep(Duration::from_millis(rng.random_range(100..3000))).await;
            if rng.random_bool(0.3) {
                let left = match rng.random_range(0..4) {
                    0 => Shape::Nothing,
                    1 => Shape::Everything,
                    2 => Shape::Subset(rng.random()),
                    _ => Shape::Torn(rng.random()),
                };
                scene.crash(left).await;
                tally.crashes += 1;
            }
        }
        let other = scene.client("other").await;
        for program in working {
            let program = program.await.unwrap();
            // Nothing of what it was told is refused later.
            program.client.sync_all().await.unwrap();
            assert_eq!(program.client.status().lost, 0, "seed {seed}");
            program.verify(seed, &other.client).await;
            tally.refused += program.refused;
        }
        tally.recalls = scene.service.status().room_recalls;
        tally
    })
}

/// A seed with which a batch that was made again near the limit of a quota counted twice.
const FOUND: u64 = 2522806747345;

fn lives(count: u64, limit: Limit) {
    let mut all = Tally::default();
    for seed in campaign::seeds(count).chain([FOUND]) {
        let tally = live(seed, limit, 60);
        all.refused += tally.refused;
        all.crashes += tally.crashes;
        all.recalls += tally.recalls;
    }
    println!("{limit:?}: {all:?}");
    assert!(all.refused > count && all.crashes > count / 2, "{all:?}");
}

#[test]
fn a_full_volume_loses_nothing_that_was_acknowledged() {
    lives(30, Limit::Volume);
}

#[test]
fn a_full_quota_loses_nothing_that_was_acknowledged() {
    lives(30, Limit::Quota);
}

/// Writes to new files in a directory until there is no room; how many bytes fit.
pub(crate) async fn fill(client: &dyn Filesystem, directory: Ino, prefix: &str) -> u64 {
    let mut bytes = 0;
    for number in 0.. {
        let name = format!("{prefix}{number}");
        let made = client.create(directory, name.as_bytes(), &new(Node::File)).await;
        if is_refused(&made) {
            return bytes;
        }
        let ino = made.unwrap().ino;
        client.reference(ino);
        for at in 0..4 {
            let data = vec![Bytes::from(vec![7; 65_536])];
            let at = WriteAt::Offset(at * 65_536);
            if is_refused(&client.write(ino, at, data, WriteHow::default()).await) {
                return bytes;
            }
            bytes += 65_536;
        }
    }
    bytes
}

/// A directory of a client alone.
pub(crate) async fn alone(client: &Client, name: &str) -> Ino {
    let directory = make(client, Ino::ROOT, name, Node::Directory).await;
    client.reference(directory);
    for name in ["one", "two"] {
        make(client, directory, name, Node::File).await;
    }
    directory
}

#[test]
fn room_that_a_client_does_not_use_is_for_the_others() {
    for gone in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::small(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let (da, db) = (alone(&a.client, "a").await, alone(&b.client, "b").await);
            make(&a.client, da, "last", Node::File).await;
            let free = scene.files.statistics().await.unwrap().free * 4096;
            if gone {
                a.process.kill();
            }
            let bytes = fill(&b.client, db, "f").await;
            assert!(bytes + 65_536 * 2 > free, "{bytes} of {free} bytes");
            assert!(scene.service.status().room_recalls > 0);
            b.client.sync_all().await.unwrap();
            assert_eq!(b.client.status().lost, 0);
        });
    }
}

#[test]
fn lost_bytes_are_told_by_close_and_sync_and_a_rename_refuses_them() {
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let a = scene.client("a").await;
        let fs = &a.client;
        let directory = alone(fs, "d").await;
        let (old, new) = (make(fs, directory, "old", Node::File).await, b"new");
        put(fs, old, "old").await.unwrap();
        fs.sync_all().await.unwrap();
        let file = make(fs, directory, "new", Node::File).await;
        fs.reference(file);
        fs.sync_all().await.unwrap();
        let opened = fs.open(&Caller::default(), file, WRITING).await.unwrap();
        put(fs, file, "text").await.unwrap();
        // A quota is set behind the server's back.
        let limit = Bytes::from_static(b"4096");
        scene
            .files
            .set_xattr(directory, b"thalweg.quota.max_bytes", limit, SetXattr::Any)
            .await
            .unwrap();
        fs.sync_all().await.unwrap();
        let flushed = fs.flush(file, opened.handle, LockOwner::local(1)).await;
        assert!(matches!(flushed, Err(FsError::QuotaExceeded)), "{flushed:?}");
        fs.sync(file, false).await.unwrap();
        let to = (directory, &b"old"[..]);
        let renamed = fs.rename((directory, new), to, Rename::Replace).await;
        assert!(matches!(renamed, Err(FsError::QuotaExceeded)), "{renamed:?}");
        assert_eq!(text(fs, old).await, "old");
        // Written anew it is whole.
        let cut = AttributeChange { size: Some(0), ..Default::default() };
        fs.set_attributes(file, &cut).await.unwrap();
        fs.rename((directory, new), to, Rename::Replace).await.unwrap();
    });
}

#[test]
fn the_room_of_removed_files_is_free_at_once() {
    for others in [false, true] {
        run(1, move |env| async move {
            let scene = Scene::small(&env).await;
            let (a, b) = (scene.client("a").await, scene.client("b").await);
            let (fs, directory) = (&a.client, alone(&a.client, "d").await);
            let filled = fill(fs, directory, "f").await;
            fs.sync_all().await.unwrap();
            let seen = b.client.find(Ino::ROOT, b"d").await.unwrap().ino;
            b.client.reference(seen);
            // The cache of the other caller, which refers to all files until it is told that one was removed.
            let kernel = b.client.clone();
            b.client.watch(Box::new(move |change| {
                if let Change::Removed { ino, .. } = change {
                    kernel.unreference(ino, 1);
                }
                Invalidation::complete()
            }));
            let entries = fs.read_directory(directory, Cookie::START, 1000, false).await.unwrap();
            for entry in &entries {
                if others {
                    let found = b.client.find(seen, &entry.name).await.unwrap();
                    b.client.reference(found.ino);
                }
            }
            for entry in &entries {
                fs.unlink(directory, &entry.name).await.unwrap();
                // The caller refers to those that it has written.
                fs.unreference(entry.ino, 1);
            }
            let begin = env.now();
            let again = fill(fs, directory, "g").await;
            assert!(again + 2 * 65_536 > filled, "{again} of {filled} bytes");
            assert!(env.now().since(begin) < Duration::from_secs(3));
            fs.sync_all().await.unwrap();
            assert_eq!(fs.status().lost, 0);
        });
    }
}

/// A copy that finds no room is made again when the clients have returned what they do not use.
#[test]
fn a_copy_finds_the_room_that_others_were_promised() {
    const LEN: u64 = 1 << 20;
    run(1, |env| async move {
        let scene = Scene::durable(&env).await;
        let owner = scene.client("owner").await;
        alone(&owner.client, "d").await;
        let options = client::Options { exclusive: None, ..patient() };
        let other = scene.client_with(visitor("other"), options).await.unwrap();
        let (from, to) = (
            make(&other.client, Ino::ROOT, "from", Node::File).await,
            make(&other.client, Ino::ROOT, "to", Node::File).await,
        );
        let data = vec![Bytes::from(vec![1; LEN as usize])];
        other.client.write(from, WriteAt::Offset(0), data, WriteHow::default()).await.unwrap();
        let mut at = 0;
        loop {
            let copied = other.client.copy((from, 0), (to, at), LEN).await;
            if is_refused(&copied) {
                break;
            }
            assert_eq!(copied.unwrap(), LEN);
            at += LEN;
        }
        let free = scene.files.statistics().await.unwrap().free * 4096;
        assert!(free < LEN, "{free} bytes are free");
    });
}
