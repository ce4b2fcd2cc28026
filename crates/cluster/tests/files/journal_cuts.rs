//! Power cuts of a client with a journal, of its server, or of both, at each flush and each message of a short life: of its work, of the
//! recovery after another cut, and of the return of a client that was away.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_cluster::client::{AttachError, Client};
use thalweg_env::{Env, Task};
use thalweg_fs::{Filesystem, FsError, Ino, Node, Rename, WriteAt, WriteHow};
use thalweg_sim::crash::Shape;
use thalweg_sim::{campaign, run};

use crate::absence::lists;
use crate::absence_lives::{check_all, merged};
use crate::journal::Journaled;
use crate::journal_crashes::{Tally, bystander, check, found};
use crate::scene::*;
use crate::states::{History, State};

/// How often events are looked for: requests to a device and messages take many times as long.
pub(crate) const TICK: Duration = Duration::from_micros(5);
/// Requests to the server's devices take so long at most.
pub(crate) const SERVER: Duration = Duration::from_micros(60);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    Client,
    Server,
    Both,
}

const CUTS: [Cut; 3] = [Cut::Client, Cut::Server, Cut::Both];

/// Where the power fails: after so many events.
#[derive(Clone, Copy, Debug)]
struct At {
    event: usize,
    cut: Cut,
}

/// What is left of the last writes.
pub(crate) fn left(seed: u64, event: usize) -> Shape {
    let seed = seed.wrapping_mul(1009).wrapping_add(event as u64);
    match seed % 4 {
        0 => Shape::Nothing,
        1 => Shape::Everything,
        2 => Shape::Subset(seed),
        _ => Shape::Torn(seed),
    }
}

/// Requests to the devices, and messages, so far.
fn events(scene: &Scene, machine: &Journaled) -> usize {
    let messages = scene.network.total().writes;
    machine.position() + scene.position() + usize::try_from(messages).unwrap()
}

/// Returns when there were so many events since `before`, or the task has ended; how many there were.
async fn watch<T>(
    env: &Env,
    (scene, machine): (&Scene, &Journaled),
    before: usize,
    most: usize,
    task: &Task<T>,
) -> usize {
    loop {
        let now = events(scene, machine) - before;
        if now >= most || task.is_finished() {
            return now;
        }
        env.sleep(TICK).await;
    }
}

/// A program in the directory `d`, with what it has come to.
pub(crate) struct Script {
    pub(crate) client: Client,
    directory: Ino,
    pub(crate) inodes: BTreeMap<&'static str, Ino>,
    state: State,
    pub(crate) history: Arc<Mutex<History>>,
}

impl Script {
    /// Mounts, and makes the directory.
    pub(crate) async fn begin(scene: &Scene, machine: &Journaled, top: Ino) -> Script {
        let client = machine.mount(scene, true).await.unwrap();
        client.find(Ino::ROOT, b"top").await.unwrap();
        client.reference(top);
        let directory = make(&client, top, "d", Node::Directory).await;
        client.reference(directory);
        client.sync_all().await.unwrap();
        let history = Arc::new(Mutex::new(History::default()));
        history.lock().states.push(State::new());
        let (inodes, state) = Default::default();
        Script { client, directory, inodes, state, history }
    }

    fn begins(&self) {
        self.history.lock().states.push(self.state.clone());
    }

    /// All changes so far are synced.
    pub(crate) fn synced(&self) {
        let mut history = self.history.lock();
        history.synced = history.states.len() - 1;
        history.syncs += 1;
    }

    async fn create(&mut self, name: &'static str) {
        self.state.insert(name.to_owned(), Some(Arc::default()));
        self.begins();
        let ino = make(&self.client, self.directory, name, Node::File).await;
        self.client.reference(ino);
        self.inodes.insert(name, ino);
    }

    async fn write(&mut self, name: &'static str, at: usize, byte: u8, len: usize) {
        self.try_write(name, at, byte, len).await.unwrap();
    }

    pub(crate) async fn try_write(
        &mut self,
        name: &'static str,
        at: usize,
        byte: u8,
        len: usize,
    ) -> Result<(), FsError> {
        let bytes = Arc::make_mut(self.state.get_mut(name).unwrap().as_mut().unwrap());
        bytes.resize(bytes.len().max(at + len), 0);
        bytes[at..at + len].fill(byte);
        self.begins();
        let data = vec![Bytes::from(vec![byte; len])];
        let at = WriteAt::Offset(at as u64);
        self.client.write(self.inodes[name], at, data, WriteHow::default()).await.map(|_| ())
    }

    async fn sync(&self, name: &str) {
        self.client.sync(self.inodes[name], false).await.unwrap();
        self.synced();
    }

    async fn rename(&mut self, from: &'static str, to: &'static str) {
        let content = self.state.remove(from).unwrap();
        self.state.insert(to.to_owned(), content);
        self.begins();
        let names = ((self.directory, from.as_bytes()), (self.directory, to.as_bytes()));
        self.client.rename(names.0, names.1, Rename::Replace).await.unwrap();
        let ino = self.inodes.remove(from).unwrap();
        self.inodes.insert(to, ino);
    }

    async fn unlink(&mut self, name: &'static str) {
        self.state.remove(name);
        self.begins();
        self.client.unlink(self.directory, name.as_bytes()).await.unwrap();
        self.inodes.remove(name);
    }

    /// Before another client wants anything.
    pub(crate) async fn first(&mut self) {
        self.create("x").await;
        self.write("x", 0, 1, 3000).await;
        self.sync("x").await;
        self.rename("x", "y").await;
        self.write("y", 1000, 2, 5000).await;
        self.create("z").await;
        self.write("z", 0, 3, 100).await;
        self.sync("z").await;
        self.client.drain().await.unwrap();
        self.synced();
        self.write("z", 50, 4, 100).await;
        self.write("y", 0, 5, 10).await;
        self.sync("y").await;
        self.create("w").await;
        self.rename("w", "y").await;
        self.client.sync(self.directory, false).await.unwrap();
        self.synced();
        self.write("y", 0, 6, 600).await;
    }

    /// Another client has looked at everything.
    async fn second(&mut self) {
        self.write("z", 20, 7, 10).await;
        self.sync("z").await;
        self.unlink("y").await;
        self.create("v").await;
        self.client.sync_all().await.unwrap();
        self.synced();
        self.write("v", 0, 8, 50).await;
    }

    /// After the journal was mounted again.
    async fn third(&mut self) {
        self.client.find(Ino::ROOT, b"top").await.unwrap();
        let top = self.client.find(Ino::ROOT, b"top").await.unwrap().ino;
        self.client.reference(top);
        self.client.find(top, b"d").await.unwrap();
        self.client.reference(self.directory);
        for (name, ino) in &self.inodes {
            self.client.find(self.directory, name.as_bytes()).await.unwrap();
            self.client.reference(*ino);
        }
        self.create("u").await;
        self.write("u", 0, 9, 200).await;
        self.sync("u").await;
        self.rename("u", "z").await;
    }
}

/// The machines of a life, before it.
struct Stage {
    env: Env,
    seed: u64,
    scene: Scene,
    machine: Journaled,
    other: Client,
    top: Ino,
    /// Which the other client may still be asked for.
    _visitor: Machine,
    history: Arc<Mutex<History>>,
}

impl Stage {
    async fn new(env: &Env, seed: u64) -> Stage {
        let scene = Scene::slow(env, SERVER).await;
        let (visitor, top) = bystander(&scene).await;
        let machine = Journaled::new(&scene, "a").await;
        let (env, other) = (env.clone(), visitor.client.clone());
        let history = Arc::default();
        Stage { env, seed, scene, machine, other, top, _visitor: visitor, history }
    }

    async fn script(&mut self) -> Script {
        let script = Script::begin(&self.scene, &self.machine, self.top).await;
        self.history = script.history.clone();
        script
    }

    /// What the script does. Another client looks at everything in its middle.
    fn work(&self, mut script: Script, whole: bool) -> Task<()> {
        let (other, top) = (self.other.clone(), self.top);
        let again = [(); 20].map(|()| self.machine.mounting(&self.scene, true));
        let env = self.env.clone();
        self.machine.process.env().spawn(async move {
            script.first().await;
            if !whole {
                return;
            }
            let now = look(&other, top).await;
            assert_eq!(now, script.state, "another client misses something");
            script.second().await;
            // As umount does.
            script.client.drain().await.unwrap();
            script.synced();
            script.client.close().await;
            // The server may be away at the moment.
            for again in again {
                if let Some(client) = mounted(again.await) {
                    script.client = client;
                    return script.third().await;
                }
                env.sleep(TICK).await;
            }
            panic!("the journal cannot be mounted");
        })
    }

    /// The power fails. Returns whether the client is still there.
    async fn cut(&mut self, At { event, cut }: At) -> bool {
        let (ours, theirs) = (left(self.seed, event), left(self.seed + 1, event));
        if cut != Cut::Server {
            self.machine.crash(ours);
        }
        if cut != Cut::Client {
            self.scene.crash(theirs).await;
        }
        cut == Cut::Server
    }

    /// The journal is mounted again, with a cut meanwhile; how many events there were. The client when it is there.
    async fn recover(&mut self, at: Option<At>) -> (usize, Client) {
        let before = events(&self.scene, &self.machine);
        let env = self.machine.process.env().clone();
        let mounting = env.spawn(self.machine.mounting(&self.scene, true));
        let most = at.map_or(usize::MAX, |at| at.event);
        let places = (&self.scene, &self.machine);
        let count = watch(&self.env, places, before, most, &mounting).await;
        if let Some(at) = at {
            let goes_on = self.cut(at).await;
            if goes_on && let Some(client) = mounted(mounting.await.unwrap()) {
                return (count, client);
            }
            return (count, self.machine.mount(&self.scene, true).await.unwrap());
        }
        (count, mounting.await.unwrap().unwrap())
    }

    async fn check(&self, what: &dyn Debug) {
        let now = look(&self.other, self.top).await;
        let what = format!("seed {}, {what:?}", self.seed);
        check((&what, false), &self.history.lock(), &now, &mut Tally::default());
    }
}

/// The client, unless the server was lost meanwhile.
fn mounted(mounted: Result<Client, AttachError>) -> Option<Client> {
    match mounted {
        Ok(client) => Some(client),
        Err(AttachError::Lost(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// What another client finds.
pub(crate) async fn look(other: &Client, top: Ino) -> State {
    let directory = other.find(top, b"d").await.unwrap().ino;
    other.reference(directory);
    found(other, directory).await
}

/// A life with a cut, and another one while its client recovers; how many events there were of each.
fn live(seed: u64, first: Option<At>, second: Option<At>) -> (usize, usize) {
    run(seed, move |env| async move {
        let mut stage = Stage::new(&env, seed).await;
        let script = stage.script().await;
        let before = events(&stage.scene, &stage.machine);
        let working = stage.work(script, true);
        let most = first.map_or(usize::MAX, |at| at.event);
        let places = (&stage.scene, &stage.machine);
        let count = watch(&env, places, before, most, &working).await;
        let goes_on = match first {
            Some(at) => stage.cut(at).await,
            None => true,
        };
        let mut recovery = 0;
        let mut client = None;
        if goes_on {
            working.await.unwrap();
        } else {
            let recovered = stage.recover(second).await;
            recovery = recovered.0;
            client = Some(recovered.1);
        }
        stage.check(&(first, second)).await;
        drop(client);
        (count, recovery)
    })
}

/// The life of a client that is away while another one reads a file of it, and a cut while it is back; how many events that has.
fn live_away(seed: u64, at: Option<At>) -> usize {
    run(seed, move |env| async move {
        let mut stage = Stage::new(&env, seed).await;
        let script = stage.script().await;
        stage.work(script, false).await.unwrap();
        stage.machine.crash(left(seed, 1));
        let directory = stage.other.find(stage.top, b"d").await.unwrap().ino;
        stage.other.reference(directory);
        let file = stage.other.find(directory, b"z").await.unwrap().ino;
        stage.other.reference(file);
        let seen = stage.other.read(file, 0, 1000).await.unwrap().concat();
        let (count, client) = stage.recover(at).await;
        let sets = lists(&client).await;
        assert!(sets.len() == 1, "seed {seed}, {at:?}: {sets:?}");
        let now = stage.other.read(file, 0, 1000).await.unwrap().concat();
        assert!(now == seen, "seed {seed}, {at:?}: what another client has read is changed");
        let all = merged(&stage.other, directory, &sets, None).await;
        check_all(&format!("seed {seed}, {at:?}"), &stage.history.lock(), all);
        count
    })
}

/// Each event and each cut, or in a short run some of them in turns.
fn places(count: usize, step: usize) -> impl Iterator<Item = At> {
    let all = (1..=count).flat_map(|event| CUTS.map(|cut| At { event, cut }));
    all.step_by(step)
}

/// One of how many places is taken, in a short run and in a long one. No multiple of the number of cuts, so that each cut is there.
pub(crate) fn step(short: usize, long: usize) -> usize {
    if campaign::length() > 1 { long } else { short }
}

#[test]
fn a_cut_at_each_flush_and_message_loses_nothing_synced() {
    let mut lives = 0;
    for seed in campaign::seeds(1) {
        let (count, _) = live(seed, None, None);
        assert!(count > 100, "{count} events");
        for at in places(count, step(4, 1)) {
            live(seed, Some(at), None);
            lives += 1;
        }
    }
    println!("{lives} lives with a cut");
}

#[test]
fn a_cut_at_each_flush_and_message_of_a_recovery_loses_nothing_synced() {
    let mut lives = 0;
    for seed in campaign::seeds(1) {
        let (count, _) = live(seed, None, None);
        for first in places(count, step(83, 7)).filter(|at| at.cut != Cut::Server) {
            let (_, recovery) = live(seed, Some(first), None);
            for second in places(recovery, step(7, 2)) {
                live(seed, Some(first), Some(second));
                lives += 1;
            }
        }
    }
    println!("{lives} lives with a cut and another one in the recovery");
}

#[test]
fn a_cut_at_each_flush_and_message_of_a_return_loses_nothing_synced() {
    let mut lives = 0;
    for seed in campaign::seeds(1) {
        let count = live_away(seed, None);
        for at in places(count, step(5, 1)) {
            live_away(seed, Some(at));
            lives += 1;
        }
    }
    println!("{lives} lives with a cut in a return");
}
