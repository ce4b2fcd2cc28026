//! Crashes of a client with a journal, of its server, and of both: a client that looks later finds a prefix of what the program has
//! done, with everything that was synced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_cluster::client::{AttachError, Client, JournaledData};
use thalweg_env::{Env, Rng};
use thalweg_fs::{
    AttributeChange, Caller, Cookie, Filesystem, Ino, Kind, Node, Rename, WriteAt, WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::journal::Journaled;
use crate::scene::*;
pub(crate) use crate::states::{History, State, len_of};
use crate::states::{XATTR, move_xattr, xattr_of};

/// A program that changes files of a directory.
pub(crate) struct Program {
    env: Env,
    pub(crate) rng: Rng,
    pub(crate) client: Client,
    directory: Ino,
    inodes: BTreeMap<String, Ino>,
    /// Directories, which are empty.
    below: BTreeMap<String, Ino>,
    /// An open file that was removed.
    removed: Option<Ino>,
    pub(crate) state: State,
    pub(crate) history: Arc<Mutex<History>>,
    /// Whether names change otherwise than by a create.
    pub(crate) renames: bool,
    /// Whether files have extended attributes.
    pub(crate) sets_xattrs: bool,
    /// Of each inode, the state after its last change.
    changed: BTreeMap<Ino, usize>,
}

pub(crate) fn left(rng: &mut Rng) -> Shape {
    match rng.random_range(0..4) {
        0 => Shape::Nothing,
        1 => Shape::Everything,
        2 => Shape::Subset(rng.random()),
        _ => Shape::Torn(rng.random()),
    }
}

impl Program {
    pub(crate) fn begins(&mut self, ino: Option<Ino>) {
        let mut history = self.history.lock();
        history.states.push(self.state.clone());
        if let Some(ino) = ino {
            self.changed.insert(ino, history.states.len() - 1);
        }
    }

    /// A change of names begins.
    fn names_begin(&mut self) {
        self.begins(Some(self.directory));
    }

    /// A name for something new: often one that there was before.
    fn unused_name(&mut self) -> String {
        loop {
            let name = format!("f{}", self.rng.random_range(0..30));
            if !self.state.contains_key(&name) {
                return name;
            }
        }
    }

    fn some(&mut self) -> Option<(String, Ino)> {
        let at = self.rng.random_range(0..self.inodes.len().max(1));
        self.inodes.iter().nth(at).map(|(name, ino)| (name.clone(), *ino))
    }

    async fn create(&mut self) {
        if self.inodes.len() > 20 {
            return;
        }
        let name = self.unused_name();
        self.state.insert(name.clone(), Some(Arc::default()));
        self.names_begin();
        let made = self.client.create(self.directory, name.as_bytes(), &new(Node::File)).await;
        let ino = made.unwrap().ino;
        self.client.reference(ino);
        self.inodes.insert(name, ino);
        self.changed.insert(ino, self.history.lock().states.len() - 1);
    }

    async fn write(&mut self, name: &str, ino: Ino, sync: bool) {
        let bytes = Arc::make_mut(self.state.get_mut(name).unwrap().as_mut().unwrap());
        // A few are large, so that the journal is soon full.
        let is_large = self.rng.random_bool(0.15);
        let len = self.rng.random_range(1..if is_large { 250_000 } else { 12_000 });
        let offset = self.rng.random_range(0..=bytes.len().min(30_000));
        bytes.resize(bytes.len().max(offset + len), 0);
        let value = self.rng.random_range(1..=255);
        bytes[offset..offset + len].fill(value);
        self.begins(Some(ino));
        let (at, data) = (WriteAt::Offset(offset as u64), vec![Bytes::from(vec![value; len])]);
        let how = WriteHow { sync, ..WriteHow::default() };
        self.client.write(ino, at, data, how).await.unwrap();
        if sync {
            self.synced(Some(ino));
        }
    }

    /// A sync of an inode, or of everything, has succeeded: what is found later has at least its last change.
    fn synced(&self, ino: Option<Ino>) {
        let mut history = self.history.lock();
        let last = history.states.len() - 1;
        let changed = ino.map_or(last, |ino| self.changed.get(&ino).copied().unwrap_or_default());
        history.synced = history.synced.max(changed);
        history.syncs += 1;
    }

    /// Whether the volume may soon be full.
    fn is_large(&self) -> bool {
        self.state.values().map(len_of).sum::<usize>() > 3_000_000
    }

    /// The file of this name is gone; now and then a program goes on to use it.
    async fn lost(&mut self, name: &str) {
        let ino = self.inodes.remove(name).unwrap();
        match self.removed {
            None if self.rng.random_bool(0.3) => self.removed = Some(ino),
            _ => self.client.unreference(ino, 1),
        }
    }

    async fn unlink(&mut self, name: &str, ino: Ino) {
        let handle = match self.rng.random_bool(0.3) {
            true => Some(self.client.open(&Caller::default(), ino, WRITING).await.unwrap().handle),
            false => None,
        };
        self.state.remove(name);
        self.state.remove(&xattr_of(name));
        self.names_begin();
        self.client.unlink(self.directory, name.as_bytes()).await.unwrap();
        if let Some(handle) = handle {
            put(&self.client, ino, "of nobody else").await.unwrap();
            self.client.release(ino, handle).await;
        }
        self.lost(name).await;
    }

    async fn rename(&mut self, name: &str, ino: Ino) {
        let replaced = self.some().filter(|(other, _)| other != name && self.rng.random_bool(0.6));
        let to = replaced.as_ref().map_or_else(|| self.unused_name(), |(other, _)| other.clone());
        let how = match replaced {
            Some(_) if self.rng.random_bool(0.2) => Rename::Exchange,
            _ => Rename::Replace,
        };
        let bytes = self.state.remove(name).unwrap();
        let other = self.state.insert(to.clone(), bytes).filter(|_| how == Rename::Exchange);
        other.into_iter().for_each(|bytes| drop(self.state.insert(name.to_owned(), bytes)));
        move_xattr(&mut self.state, (name, &to), how == Rename::Exchange);
        self.names_begin();
        let names = ((self.directory, name.as_bytes()), (self.directory, to.as_bytes()));
        self.client.rename(names.0, names.1, how).await.unwrap();
        match replaced {
            Some((_, other)) if how == Rename::Exchange => {
                self.inodes.insert(name.to_owned(), other);
            }
            Some(_) => {
                self.lost(&to).await;
                self.inodes.remove(name);
            }
            None => drop(self.inodes.remove(name)),
        }
        self.inodes.insert(to, ino);
    }

    /// Makes a directory, renames one, or removes it.
    async fn use_directory(&mut self) {
        let some = self.below.pop_first();
        match some {
            Some((name, ino)) if self.rng.random_bool(0.5) => {
                self.state.remove(&name);
                self.names_begin();
                self.client.remove_directory(self.directory, name.as_bytes()).await.unwrap();
                self.client.unreference(ino, 1);
            }
            Some((name, ino)) => {
                let to = self.unused_name();
                let content = self.state.remove(&name).unwrap();
                self.state.insert(to.clone(), content);
                self.names_begin();
                let names = ((self.directory, name.as_bytes()), (self.directory, to.as_bytes()));
                self.client.rename(names.0, names.1, Rename::NoReplace).await.unwrap();
                self.below.insert(to, ino);
            }
            None => {
                let name = self.unused_name();
                self.state.insert(name.clone(), None);
                self.names_begin();
                let made = make(&self.client, self.directory, &name, Node::Directory).await;
                self.client.reference(made);
                self.below.insert(name, made);
            }
        }
    }

    /// Writes to a file that has no name any more, and forgets it.
    async fn use_removed(&mut self) {
        let Some(ino) = self.removed else { return };
        put(&self.client, ino, "of nobody").await.unwrap();
        if self.rng.random_bool(0.3) {
            self.removed = None;
            self.client.unreference(ino, 1);
        }
    }

    pub(crate) async fn step(&mut self) {
        let chosen = if self.is_large() { 16 } else { self.rng.random_range(0..27) };
        match (chosen, self.some()) {
            (0..4, _) | (_, None) => self.create().await,
            (4..12, Some((name, ino))) => self.write(&name, ino, false).await,
            (12, Some((name, ino))) => self.write(&name, ino, true).await,
            (13, Some((name, ino))) if self.rng.random_bool(0.5) => {
                let (at, len) =
                    (self.rng.random_range(0..40_000), self.rng.random_range(1..40_000));
                let read = self.client.read(ino, at as u64, len).await.unwrap().concat();
                let bytes = self.state[&name].as_ref().unwrap();
                let wanted = bytes.get(at..).unwrap_or_default();
                assert!(read == wanted[..len.min(wanted.len())], "a read finds other bytes");
            }
            (13, Some((_, ino))) => {
                self.client.sync(ino, false).await.unwrap();
                self.synced(Some(ino));
            }
            (14, Some((name, ino))) => {
                let size = self.rng.random_range(0..=len_of(&self.state[&name]));
                let bytes = self.state.get_mut(&name).unwrap().as_mut().unwrap();
                Arc::make_mut(bytes).truncate(size);
                self.begins(Some(ino));
                let change = AttributeChange { size: Some(size as u64), ..Default::default() };
                self.client.set_attributes(ino, &change).await.unwrap();
            }
            (15 | 16 | 18..22, _) if !self.renames => {
                self.env.sleep(Duration::from_millis(1)).await;
            }
            (15 | 18, Some((name, ino))) => self.rename(&name, ino).await,
            (16 | 19, Some((name, ino))) => self.unlink(&name, ino).await,
            (20, _) => self.use_directory().await,
            (21, _) => self.use_removed().await,
            (22, _) => {
                self.client.sync(self.directory, false).await.unwrap();
                self.synced(Some(self.directory));
            }
            (24, Some((name, ino))) => self.reserve(&name, ino).await,
            (25 | 26, Some((name, ino))) if self.sets_xattrs => self.use_xattr(&name, ino).await,
            (17, _) => {
                self.client.sync_all().await.unwrap();
                self.synced(None);
            }
            _ => self.env.sleep(Duration::from_millis(self.rng.random_range(0..700))).await,
        }
    }
}

/// What another client finds.
pub(crate) async fn found(other: &Client, directory: Ino) -> State {
    let mut state = State::new();
    let entries = other.read_directory(directory, Cookie::START, 1000, false).await.unwrap();
    for entry in entries {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        let found = other.find(directory, &entry.name).await.unwrap();
        if found.kind == Kind::Directory {
            state.insert(name, None);
            continue;
        }
        other.reference(found.ino);
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < found.size {
            let some = other.read(found.ino, bytes.len() as u64, 1 << 20).await.unwrap().concat();
            assert!(!some.is_empty(), "{name} has {} of {} bytes", bytes.len(), found.size);
            bytes.extend_from_slice(&some);
        }
        if let Ok(value) = other.xattr(found.ino, XATTR).await {
            state.insert(xattr_of(&name), Some(Arc::new(value.to_vec())));
        }
        other.unreference(found.ino, 1);
        state.insert(name, Some(Arc::new(bytes)));
    }
    state
}

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) syncs: u64,
    pub(crate) client_crashes: u64,
    pub(crate) server_crashes: u64,
    /// States that a crash took back.
    pub(crate) taken_back: usize,
    /// Changes that only the journal had.
    pub(crate) unsent: usize,
}

/// Lives so many lives, and sums up what happened.
pub(crate) fn live_all(count: u64, live: impl Fn(u64) -> Tally) -> Tally {
    let mut all = Tally::default();
    for seed in campaign::seeds(count) {
        let Tally { syncs, client_crashes, server_crashes, taken_back, unsent } = live(seed);
        all.syncs += syncs;
        all.client_crashes += client_crashes;
        all.server_crashes += server_crashes;
        all.taken_back += taken_back;
        all.unsent += unsent;
    }
    println!("{all:?}");
    all
}

fn summary(state: &State) -> Vec<(String, usize)> {
    state.iter().map(|(name, content)| (name.clone(), len_of(content))).collect()
}

/// Another client, and a directory that it has made.
pub(crate) async fn bystander(scene: &Scene) -> (Machine, Ino) {
    let machine = scene.client("other").await;
    let top = make(&machine.client, Ino::ROOT, "top", Node::Directory).await;
    machine.client.reference(top);
    machine.client.sync_all().await.unwrap();
    (machine, top)
}

/// Begins a program in a directory that is durable.
pub(crate) async fn begin(machine: &Journaled, client: &Client, name: &str) -> Program {
    let top = client.find(Ino::ROOT, b"top").await.unwrap().ino;
    client.reference(top);
    let directory = make(client, top, name, Node::Directory).await;
    client.reference(directory);
    client.sync_all().await.unwrap();
    let history = Arc::new(Mutex::new(History::default()));
    history.lock().states.push(State::new());
    let env = machine.process.env().clone();
    let (rng, client) = (env.rng(), client.clone());
    let (inodes, below, changed, state) = Default::default();
    let removed = None;
    Program {
        env,
        rng,
        client,
        directory,
        inodes,
        below,
        removed,
        state,
        history,
        renames: true,
        sets_xattrs: true,
        changed,
    }
}

/// What another client finds must be what the program has come to, at its last sync or after that.
pub(crate) fn check(
    (what, has_objects): (&str, bool),
    history: &History,
    now: &State,
    tally: &mut Tally,
) {
    let at = history.position_of(now, has_objects);
    let Some(at) = at.filter(|at| *at >= history.synced) else {
        let states: Vec<_> = history.states.iter().map(summary).collect();
        let (now, synced) = (summary(now), history.synced);
        panic!("{what}: {now:?} is {at:?}, of which {synced} was synced: {states:#?}");
    };
    tally.taken_back += history.states.len() - 1 - at;
    tally.syncs += history.syncs;
}

/// Mounts the journal again. The server and the client may crash meanwhile, again and again.
pub(crate) async fn recover(
    scene: &mut Scene,
    machine: &mut Journaled,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Client {
    let env = scene.env.clone();
    for _ in 0..3 {
        if rng.random_bool(0.4) {
            break;
        }
        let mounting = machine.process.env().spawn(machine.mounting(scene, true));
        env.sleep(Duration::from_micros(rng.random_range(0..20_000))).await;
        let crashing = rng.random_range(0..3);
        if crashing > 0 {
            // The client's machine stops with the server's, or lives on.
            if crashing == 2 {
                machine.crash(left(rng));
                tally.client_crashes += 1;
            }
            scene.crash(left(rng)).await;
            tally.server_crashes += 1;
            if crashing == 2 {
                continue;
            }
            match mounting.await.unwrap() {
                Ok(client) => return client,
                Err(AttachError::Lost(_)) => continue,
                Err(error) => panic!("{error}"),
            }
        }
        drop(mounting);
        machine.crash(left(rng));
        tally.client_crashes += 1;
    }
    machine.mount(scene, true).await.unwrap()
}

/// Whether the contents of files are objects in a life.
pub(crate) fn has_objects(seed: u64) -> bool {
    seed % 4 == 3
}

fn live(seed: u64, rounds: usize) -> Tally {
    run(seed, move |env| async move {
        let mut scene = Scene::either(&env, options(), has_objects(seed)).await;
        let mut rng = env.rng();
        let mut tally = Tally::default();
        let (visitor, top) = bystander(&scene).await;
        let other = visitor.client.clone();
        let mut machine = Journaled::new(&scene, "a").await;
        for round in 0..rounds {
            machine.data = match rng.random_range(0..4) {
                // Of large writes, which are calls then, a crash undoes sizes and not bytes.
                _ if has_objects(seed) => JournaledData::Wasteless,
                0 | 1 => JournaledData::Wasteless,
                2 => JournaledData::Pages,
                _ => JournaledData::Selective { threshold: 4096 },
            };
            let client = machine.mount(&scene, rng.random_bool(0.6)).await.unwrap();
            let name = format!("d{round}");
            let mut program = begin(&machine, &client, &name).await;
            let history = program.history.clone();
            let working = machine.process.env().spawn(async move {
                loop {
                    program.step().await;
                }
            });
            for _ in 0..rng.random_range(1..4) {
                env.sleep(Duration::from_millis(rng.random_range(50..3000))).await;
                if rng.random_bool(0.4) {
                    scene.crash(left(&mut rng)).await;
                    tally.server_crashes += 1;
                }
            }
            // The client crashes, and perhaps the server with it.
            tally.unsent += client.status().unsent;
            machine.crash(left(&mut rng));
            drop((working, client));
            tally.client_crashes += 1;
            if rng.random_bool(0.3) {
                scene.crash(left(&mut rng)).await;
                tally.server_crashes += 1;
            }
            let (reader, looks_early) = (other.clone(), rng.random_bool(0.5));
            let look = async move {
                let seen = reader.find(top, name.as_bytes()).await.unwrap().ino;
                reader.reference(seen);
                found(&reader, seen).await
            };
            // A reader that comes before the client is back waits for it.
            let looking = if looks_early { Ok(env.spawn(look)) } else { Err(look) };
            env.sleep(Duration::from_millis(rng.random_range(0..1000))).await;
            let recovered = recover(&mut scene, &mut machine, &mut rng, &mut tally).await;
            let now = match looking {
                Ok(looking) => looking.await.unwrap(),
                Err(look) => look.await,
            };
            recovered.close().await;
            let what = format!("seed {seed}, round {round}");
            check((&what, has_objects(seed)), &history.lock(), &now, &mut tally);
        }
        tally
    })
}

#[test]
fn what_was_synced_survives_and_others_see_a_prefix() {
    let all = live_all(40, |seed| live(seed, 4));
    let crashes = all.client_crashes + all.server_crashes;
    assert!(all.syncs > 100 && crashes > 100 && all.unsent > 100 && all.taken_back > 0);
}
