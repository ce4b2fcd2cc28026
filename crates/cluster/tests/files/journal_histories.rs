//! Clients with journals, and without, that change the same names and files, over partitions shorter and longer than the lease, and
//! crashes of their machines and of the server: what their programs find is what the model of histories allows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use rand::RngExt;
use thalweg_cluster::client::{self, AttachError, Client, ConflictScope};
use thalweg_cluster::conflicts::{ConflictEntry, ConflictKind};
use thalweg_env::{Env, Rng, Time};
use thalweg_fs::{Filesystem, Ino, Node, WriteAt, WriteHow};
use thalweg_sim::{campaign, run};

use crate::absence::{come_back, lists};
use crate::journal::Journaled;
use crate::journal_crashes::left;
use crate::journal_model::*;
use crate::journal_programs::{History, Kind, Program, begin, find_all, has_objects};
use crate::linear::Recorded;
use crate::scene::*;

const CLIENTS: usize = 3;
/// Programs on the machine of each client, and calls of each.
const PROGRAMS: usize = 2;
const CALLS: usize = 14;

/// What happened in a life besides its calls.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    calls: usize,
    server_crashes: usize,
    client_crashes: usize,
    cuts: usize,
    lapses: usize,
    sets: usize,
    /// Changes that the server did not have when a client was cut off, or crashed.
    unsent: usize,
    /// Syncs that were acknowledged.
    syncs: usize,
    batches: u64,
}

/// The machine of a client.
enum Slot {
    Journal { machine: Box<Journaled>, client: Option<Client> },
    Plain(Machine),
}

impl Slot {
    fn client(&self) -> Client {
        match self {
            Slot::Journal { client, .. } => client.clone().unwrap(),
            Slot::Plain(machine) => machine.client.clone(),
        }
    }

    fn env(&self) -> Env {
        match self {
            Slot::Journal { machine, .. } => machine.process.env().clone(),
            Slot::Plain(machine) => machine.process.env().clone(),
        }
    }

    fn host(&self) -> thalweg_sim::net::Host {
        match self {
            Slot::Journal { machine, .. } => machine.host(),
            Slot::Plain(machine) => machine.host.clone(),
        }
    }
}

/// Everything of a life.
struct Life {
    seed: u64,
    env: Env,
    rng: Rng,
    scene: Scene,
    slots: Vec<Slot>,
    journals: usize,
    left: Vec<Vec<Arc<AtomicUsize>>>,
    history: History,
    kind: Kind,
    /// Names of conflict sets that were seen.
    sets: BTreeSet<String>,
    tally: Tally,
}

impl Life {
    async fn new(env: &Env, seed: u64, (kind, scope): (Kind, Scope)) -> Life {
        let options =
            thalweg_cluster::server::Options { share: Duration::from_millis(1), ..options() };
        let scene = Scene::either(env, options, has_objects(seed)).await;
        let journals = 1 + (seed % 2) as usize;
        let mut slots = Vec::new();
        for number in 0..CLIENTS {
            let name = format!("c{number}");
            if number < journals {
                let mut machine = Box::new(Journaled::new(&scene, &name).await);
                machine.conflict = match scope {
                    Scope::Prefix => ConflictScope::Prefix,
                    Scope::File => ConflictScope::File,
                };
                slots.push(Slot::Journal { machine, client: None });
                continue;
            }
            let options = client::Options { exclusive: Some(0), ..patient() };
            slots.push(Slot::Plain(scene.client_with(visitor(&name), options).await.unwrap()));
        }
        let calls = || Arc::new(AtomicUsize::new(CALLS));
        let left = (0..CLIENTS).map(|_| (0..PROGRAMS).map(|_| calls()).collect()).collect();
        let (history, sets, tally) = Default::default();
        let (env, rng) = (env.clone(), env.rng());
        let mut life =
            Life { seed, env, rng, scene, slots, journals, left, history, kind, sets, tally };
        life.prepare().await;
        life
    }

    async fn prepare(&mut self) {
        for number in 0..self.journals {
            let mounted = self.mounting(number).await;
            self.mounted(number, mounted);
        }
        let first = self.slots[CLIENTS - 1].client();
        make(&first, Ino::ROOT, "d", Node::Directory).await;
        for number in 0..FILES {
            let file = make(&first, Ino::ROOT, &format!("f{number}"), Node::File).await;
            let zero = vec![Bytes::from_static(&[0; 8])];
            first.write(file, WriteAt::Offset(0), zero, WriteHow::default()).await.unwrap();
        }
        first.sync_all().await.unwrap();
        for number in 0..CLIENTS {
            self.start(number).await;
        }
    }

    fn mounting(
        &mut self,
        number: usize,
    ) -> impl Future<Output = Result<Client, AttachError>> + use<> {
        let is_lazy = self.rng.random_bool(0.7);
        let Slot::Journal { machine, .. } = &self.slots[number] else { unreachable!() };
        let options = client::Options { exclusive: Some(0), ..machine.options(is_lazy) };
        let connector = Box::new(machine.host().connector(&self.scene.server, PORT));
        let env = machine.process.env().clone();
        async move { Client::connect(&env, connector, options).await }
    }

    fn mounted(&mut self, number: usize, mounted: Result<Client, AttachError>) {
        let Slot::Journal { client, .. } = &mut self.slots[number] else { unreachable!() };
        let seed = self.seed;
        *client = Some(mounted.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    }

    async fn program(&self, number: usize, left: &Arc<AtomicUsize>) -> Program {
        let (env, client) = (self.slots[number].env(), self.slots[number].client());
        let found = find_all(&client).await;
        let (directory, files) =
            found.unwrap_or_else(|error| panic!("seed {}: {error}", self.seed));
        let (history, left, kind) = (self.history.clone(), left.clone(), self.kind);
        let rng = self.env.rng();
        Program { env, rng, machine: number, client, directory, files, history, left, kind }
    }

    /// Starts the programs of a client.
    async fn start(&self, number: usize) {
        for left in &self.left[number] {
            let program = self.program(number, left).await;
            self.slots[number].env().spawn(program.run()).detach();
        }
    }

    fn is_over(&self) -> bool {
        self.left.iter().flatten().all(|left| left.load(Ordering::Relaxed) == 0)
    }

    async fn disturb(&mut self) {
        let pause = [10_000, 100_000, 500_000][self.rng.random_range(0..3)];
        self.env.sleep(Duration::from_micros(self.rng.random_range(0..pause))).await;
        match (self.kind, self.rng.random_range(0..10)) {
            (Kind::Servers | Kind::Restarts, 0..4) | (Kind::Long, 0) => self.crash_server().await,
            (Kind::Restarts, 4..9) => self.restart(Duration::from_millis(400)).await,
            (Kind::Long, 1..4) => self.restart(3 * LEASE).await,
            (Kind::Long, 4..9) => self.cut_off().await,
            _ => self.cut().await,
        }
    }

    async fn crash_server(&mut self) {
        self.tally.server_crashes += 1;
        let left = left(&mut self.rng);
        self.scene.stop().await;
        self.env.sleep(Duration::from_micros(self.rng.random_range(0..300_000))).await;
        self.scene.start(left).await;
        if self.rng.random_bool(0.7) {
            self.reclaimed().await;
        }
    }

    /// All clients have come back to the server.
    async fn reclaimed(&self) {
        while self.scene.service.expected() > 0 {
            self.env.sleep(Duration::from_millis(5)).await;
        }
    }

    /// A short fault between a client and the server.
    async fn cut(&mut self) {
        self.reclaimed().await;
        self.tally.cuts += 1;
        let one = self.slots[self.rng.random_range(0..CLIENTS)].host();
        let server = &self.scene.server;
        match self.rng.random_range(0..6) {
            0..2 => self.scene.network.reset(&one, server),
            2 => self.scene.network.cut(&one, server),
            3 => self.scene.network.cut(server, &one),
            _ => self.scene.network.part(&[one], std::slice::from_ref(server)),
        }
        let span = LEASE.mul_f64(self.rng.random_range(0.0..0.3));
        self.env.sleep(span).await;
        self.scene.network.heal();
        self.env.sleep(LEASE / 4).await;
    }

    fn span(&mut self, most: Duration) -> Duration {
        match self.rng.random_range(0..6) {
            0 if most > LEASE => EXPIRE + most,
            _ => most.mul_f64(self.rng.random_range(0.0..1.0)),
        }
    }

    /// Time passes while a client is away; the server may crash meanwhile.
    async fn wait(&mut self, most: Duration) {
        let span = self.span(most);
        if self.kind != Kind::Short && self.rng.random_bool(0.2) {
            self.env.sleep(span / 2).await;
            let left = left(&mut self.rng);
            self.scene.crash(left).await;
            self.tally.server_crashes += 1;
        }
        self.env.sleep(span).await;
    }

    /// A client with a journal, often at a moment when there is something that the server does not have.
    async fn victim(&mut self) -> usize {
        let number = self.rng.random_range(0..self.journals);
        let client = self.slots[number].client();
        for _ in 0..self.rng.random_range(0..100) {
            if client.status().unsent > 0 {
                break;
            }
            self.env.sleep(Duration::from_millis(5)).await;
        }
        self.tally.unsent += client.status().unsent;
        number
    }

    /// The machine of a client with a journal crashes, or those of all, and mounts the journal again.
    async fn restart(&mut self, most: Duration) {
        let mut victims = vec![self.victim().await];
        if self.rng.random_bool(0.3) {
            victims = (0..self.journals).collect();
        }
        let start = self.env.now();
        for number in &victims {
            self.crash_client(*number, start);
        }
        self.wait(most).await;
        let backs: Vec<u64> = victims.iter().map(|it| self.begins_back(*it, start)).collect();
        let mounting: Vec<_> = victims.iter().map(|it| self.mounting(*it)).collect();
        for (number, mounted) in victims.iter().zip(join_all(mounting).await) {
            self.mounted(*number, mounted);
        }
        for (number, back) in victims.into_iter().zip(backs) {
            self.is_back(number, back).await;
            self.start(number).await;
        }
    }

    fn crash_client(&mut self, number: usize, now: Time) {
        let left = left(&mut self.rng);
        let crash = begin(&self.history, number, now, Op::Crash);
        self.history.lock().get_mut(&crash).unwrap().end = Some(now);
        let Slot::Journal { machine, client } = &mut self.slots[number] else { unreachable!() };
        machine.crash(left);
        *client = None;
        self.tally.client_crashes += 1;
    }

    /// A client that has crashed is about to come back.
    fn begins_back(&mut self, number: usize, start: Time) -> u64 {
        let name = format!("c{number}");
        let sessions = self.scene.service.sessions();
        let lapsed = sessions.iter().any(|it| it.client == name && it.lapsed);
        let away = self.env.now().since(start);
        assert!(!lapsed || away > LEASE / 2, "the journal has lapsed after {away:?}");
        // One that is about to lapse may do so before the mount is there.
        if lapsed || away > LEASE / 2 {
            begin(&self.history, number, start, Op::Lapse);
            self.tally.lapses += usize::from(lapsed);
        }
        begin(&self.history, number, start, Op::Back(Conflicts::default()))
    }

    /// A client with a journal is cut off, and lives on.
    async fn cut_off(&mut self) {
        let number = self.victim().await;
        let (client, host) = (self.slots[number].client(), self.slots[number].host());
        let (evictions, start) = (client.status().evictions, self.env.now());
        self.scene.network.part(&[host], std::slice::from_ref(&self.scene.server));
        self.tally.cuts += 1;
        self.wait(3 * LEASE).await;
        come_back(&self.scene, &client).await;
        client.attributes(Ino::ROOT).await.unwrap();
        if client.status().evictions == evictions {
            return;
        }
        self.tally.lapses += 1;
        let lapse = begin(&self.history, number, start, Op::Lapse);
        self.history.lock().get_mut(&lapse).unwrap().end = Some(self.env.now());
        let back = begin(&self.history, number, start, Op::Back(Conflicts::default()));
        self.is_back(number, back).await;
    }

    /// It is back, and everything that is left of it is made durable.
    async fn is_back(&mut self, number: usize, back: u64) {
        let client = self.slots[number].client();
        // Of what is lost each file says so once.
        for _ in 0..10 {
            if client.sync_all().await.is_ok() {
                break;
            }
        }
        let conflicts = self.conflicts(&client).await;
        let mut history = self.history.lock();
        let back = history.get_mut(&back).unwrap();
        (back.op, back.end) = (Op::Back(conflicts), Some(self.env.now()));
    }

    /// What conflict sets say that were not there before.
    async fn conflicts(&mut self, client: &Client) -> Conflicts {
        let mut all = Conflicts::default();
        for set in lists(client).await {
            if !self.sets.insert(set.name.clone()) {
                continue;
            }
            self.tally.sets += 1;
            for entry in &set.entries {
                let paths = entry.path.iter().chain(&entry.renamed).chain(&entry.linked);
                let named = paths.clone().fold(0, |named, path| named | set_of(path));
                // The name of a file that is gone is not known.
                all.named |= if entry.path.is_none() { (1 << NAMES) - 1 } else { named };
                if let Some(file) = (0..FILES as u8).find(|file| named & file_set(*file) != 0) {
                    read_copy(client, entry, usize::from(file), &mut all).await;
                }
            }
        }
        all
    }
}

/// What a path is about.
fn set_of(path: &str) -> Set {
    let digit = |prefix| path.strip_prefix(prefix).and_then(|rest: &str| rest.parse::<u8>().ok());
    digit("/d/n").map(name_set).or_else(|| digit("/f").map(file_set)).unwrap_or_default()
}

/// The number and the size that a copy of a file has.
async fn read_copy(client: &Client, entry: &ConflictEntry, file: usize, all: &mut Conflicts) {
    let Some(copy) = &entry.copy else { return };
    let found = client.find(Ino::ROOT, &copy.as_bytes()[1..]).await.unwrap();
    client.reference(found.ino);
    let bytes = client.read(found.ino, 0, 8).await.unwrap().concat();
    let is_whole = entry.kind == ConflictKind::Complete;
    if is_whole || entry.ranges.iter().any(|(at, len)| *at == 0 && *len >= 8) {
        all.numbers[file] = Some(u64::from_le_bytes(bytes.try_into().unwrap()));
    }
    all.sizes[file] = if is_whole { Some(found.size) } else { entry.size };
}

/// The calls of a life, in the order of their beginnings.
fn life(seed: u64, kind: Kind, scope: Scope) -> (Vec<Recorded<Op>>, usize, Tally) {
    run(seed, |env| async move {
        let mut life = Life::new(&env, seed, (kind, scope)).await;
        // So that the checker has less to try, the network is whole after a while.
        for _ in 0..6 {
            if !life.is_over() {
                life.disturb().await;
            }
        }
        life.scene.network.heal();
        while !life.is_over() {
            env.sleep(Duration::from_millis(50)).await;
        }
        env.sleep(LEASE).await;
        for number in 0..CLIENTS {
            let program = life.program(number, &life.left[number][0]).await;
            program.look_at_all().await;
        }
        let clients = life.slots.iter().map(Slot::client);
        life.tally.batches = clients.map(|it| it.traffic().sent_for("Batch").messages).sum();
        if matches!(kind, Kind::Short | Kind::Servers) {
            let evictions: u64 = life.slots.iter().map(|it| it.client().status().evictions).sum();
            let lapsed = life.scene.service.status().lapsed_journals;
            assert_eq!((evictions, lapsed), (0, 0), "seed {seed}");
        }
        let mut history: Vec<_> = std::mem::take(&mut *life.history.lock()).into_values().collect();
        history.sort_by_key(|it| (it.start, it.client));
        life.tally.calls = history.len();
        let is_sync = |it: &&Recorded<Op>| matches!(it.op, Op::Sync(_)) && it.end.is_some();
        life.tally.syncs = history.iter().filter(is_sync).count();
        (history, life.journals, life.tally)
    })
}

fn check(seed: u64, kind: Kind, scope: Scope) -> Tally {
    let (history, journals, tally) = life(seed, kind, scope);
    let line =
        |it: &Recorded<Op>| format!("{} {:?} {:?} {:?}\n", it.client, it.start, it.end, it.op);
    let is_right = is_explained(State::new(CLIENTS, journals, scope, has_objects(seed)), &history);
    assert!(
        is_right,
        "seed {seed}, {kind:?}, {scope:?}:\n{}",
        history.iter().map(line).collect::<String>()
    );
    tally
}

fn live(lives: u64, kind: Kind, scope: Scope) -> Tally {
    let mut all = Tally::default();
    for seed in campaign::seeds(lives) {
        let tally = check(seed, kind, scope);
        all.calls += tally.calls;
        all.server_crashes += tally.server_crashes;
        all.client_crashes += tally.client_crashes;
        all.cuts += tally.cuts;
        all.lapses += tally.lapses;
        all.sets += tally.sets;
        all.unsent += tally.unsent;
        all.syncs += tally.syncs;
        all.batches += tally.batches;
    }
    println!("{kind:?}, {scope:?}: {all:?}");
    all
}

#[test]
fn histories_with_journals_over_short_cuts_are_linearizable() {
    let all = live(100, Kind::Short, Scope::Prefix);
    assert!(all.cuts > 200 && all.batches > 500, "{all:?}");
}

#[test]
fn histories_with_journals_over_crashes_of_the_server_are_linearizable() {
    let all = live(100, Kind::Servers, Scope::Prefix);
    assert!(all.server_crashes > 100 && all.batches > 500, "{all:?}");
}

/// Lives in which two clients with journals waited for each other for ever: at a new server each had, on record, a delegation that it had
/// released, and the other one's batch waited for it.
#[test]
fn histories_with_journals_that_failed_are_right() {
    for (seed, kind) in [(16_777_557, Kind::Servers), (16_777_681, Kind::Restarts)] {
        check(seed, kind, Scope::Prefix);
    }
}

/// A batch that had waited for a connection when the server ended its session was sent in the next one, though its mutations had been
/// written back from the journal before that.
#[test]
fn a_batch_of_a_session_that_has_ended_is_not_sent_in_the_next() {
    check(6_173_931_603_851, Kind::Long, Scope::Prefix);
}

/// A change that was not synced may be lost with its client's machine, in the order of the changes, and nothing else.
#[test]
fn histories_with_journals_that_are_mounted_again_have_what_was_synced() {
    let all = live(100, Kind::Restarts, Scope::Prefix);
    assert!(all.client_crashes > 100 && all.server_crashes > 50 && all.syncs > 100, "{all:?}");
}

/// What is not written back is named, if it was synced, and what other clients have used is not changed by it.
#[test]
fn histories_with_journals_that_lapse_lose_nothing_unnamed() {
    let all = live(200, Kind::Long, Scope::Prefix);
    assert!(all.lapses > 100 && all.sets > 10, "{all:?}");
}

/// With `conflict=file` all is written back but changes of files that other clients use meanwhile, and what depends on these, which is named.
#[test]
fn histories_with_journals_that_lapse_file_by_file_lose_nothing_unnamed() {
    let all = live(200, Kind::Long, Scope::File);
    assert!(all.lapses > 100 && all.sets > 10, "{all:?}");
}
