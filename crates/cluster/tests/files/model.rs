//! Random calls through clients of one server, and on a naive filesystem: each client sees what the naive one holds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rand::RngExt;
use thalweg_cluster::client::{self, Client};
use thalweg_env::{Env, Rng};
use thalweg_fs::local::{self, Atime, Format, LocalFs};
use thalweg_fs::{Attributes, Cookie, Filesystem, FsError, Ino, Kind, Timestamp};
use thalweg_sim::contents::SimContents;
use thalweg_sim::files::NaiveFiles;
use thalweg_sim::versions::VersionedMemory;
use thalweg_sim::{campaign, run};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::scene::*;
use crate::steps::{self, Step, Twin, ino};

/// What a client does.
#[derive(Clone, Debug)]
enum MutationKind {
    Call(Step),
    /// It releases all its references to an inode.
    Forget(usize),
}

/// A client, by number, and what it does.
type Turn = (usize, MutationKind);

fn turn() -> impl Strategy<Value = Turn> {
    let kind = prop_oneof![
        20 => steps::step().prop_map(MutationKind::Call),
        1 => ino().prop_map(MutationKind::Forget),
    ];
    (0..6usize, kind)
}

/// The two sides read the clock at different times of the same second.
fn normalize(attributes: Attributes) -> Attributes {
    let second = |time: Timestamp| Timestamp { nanos: 0, ..time };
    Attributes {
        accessed: second(attributes.accessed),
        modified: second(attributes.modified),
        changed: second(attributes.changed),
        created: second(attributes.created),
        ..attributes
    }
}

/// What is tested.
#[derive(Clone, Copy, Debug)]
struct Plan {
    clients: usize,
    /// The server has a filesystem on a volume, not a naive one.
    on_volume: bool,
    /// Connections break at random.
    resets: bool,
}

/// A program on a client's machine. Like a kernel it has a reference to each inode that it uses.
struct Program {
    machine: Machine,
    known: BTreeSet<Ino>,
}

struct Model {
    env: Env,
    rng: Rng,
    plan: Plan,
    scene: Scene,
    programs: Vec<Program>,
    naive: NaiveFiles,
    twins: Vec<Twin>,
}

/// A volume in memory.
fn volume(env: &Env) -> Arc<dyn Transact> {
    let store = Arc::new(VersionedMemory::new(30_000));
    let options = txn::Options { max_writes: 8192, ..txn::Options::default() };
    Arc::new(TransactionManager::new(env, store, options))
}

fn format() -> Format {
    Format { metadata_blocks: Some(600), hash_bits: 4, ..Format::default() }
}

fn open_options() -> local::Options {
    local::Options { atime: Atime::Never, ..local::Options::default() }
}

/// A filesystem on a volume in memory.
pub(crate) async fn on_volume(env: &Env) -> LocalFs {
    let volume = volume(env);
    local::make(env, &volume, &format()).await.unwrap();
    LocalFs::open(env, volume, "fs", open_options()).await.unwrap()
}

/// The same, with the contents of files elsewhere.
pub(crate) async fn elsewhere(env: &Env) -> LocalFs {
    let (volume, contents) = (volume(env), SimContents::new(env));
    local::make_external(env, &volume, &format(), &*contents).await.unwrap();
    LocalFs::open_with(env, volume, "fs", open_options(), Some(contents)).await.unwrap()
}

impl Model {
    async fn new(env: &Env, plan: Plan) -> Model {
        let naive = NaiveFiles::new(env);
        let scene = match plan.on_volume {
            true => Scene::of(env, Arc::new(on_volume(env).await)).await,
            false => Scene::new(env).await,
        };
        let mut programs = Vec::new();
        for number in 0..plan.clients {
            // On a volume, a client asks for a directory before its first name there.
            let options = client::Options { exclusive: Some(0), ..patient() };
            let visitor = visitor(&format!("c{number}"));
            let machine = scene.client_with(visitor, options).await.unwrap();
            programs.push(Program { machine, known: BTreeSet::from([Ino::ROOT]) });
        }
        let twins = vec![(Ino::ROOT, Ino::ROOT)];
        let (env, rng) = (env.clone(), env.rng());
        Model { env, rng, plan, scene, programs, naive, twins }
    }

    fn client(&self, program: usize) -> Client {
        self.programs[program].machine.client.clone()
    }

    /// A program has found an inode.
    fn know(&mut self, program: usize, (ours, theirs): Twin) {
        let Program { machine, known } = &mut self.programs[program];
        if known.insert(ours) {
            machine.client.reference(ours);
            self.naive.reference(theirs);
        }
    }

    /// Has a program look for all inodes by their names, from the root on.
    async fn explore(&mut self, program: usize) {
        let client = self.client(program);
        let (mut left, mut seen) = (vec![(Ino::ROOT, Ino::ROOT)], BTreeSet::new());
        while let Some(directory) = left.pop() {
            if !seen.insert(directory.0) {
                continue;
            }
            let entries =
                self.naive.read_directory(directory.1, Cookie::START, usize::MAX, false).await;
            for entry in entries.unwrap() {
                let found = client.find(directory.0, &entry.name).await.unwrap();
                let twin = (found.ino, entry.ino);
                assert!(self.twins.contains(&twin), "{:?} in {}", entry.name, directory.0);
                self.know(program, twin);
                if entry.kind == Kind::Directory {
                    left.push(twin);
                }
            }
        }
    }

    /// A program that can use all these inodes: this one, or one that has a reference to those without names. None if they
    /// are there, and no program knows all of them: that would fail here alone.
    async fn able(&mut self, program: usize, inodes: &[Twin]) -> Option<usize> {
        let knows = |known: &BTreeSet<Ino>| inodes.iter().all(|(ino, _)| known.contains(ino));
        if knows(&self.programs[program].known) {
            return Some(program);
        }
        self.explore(program).await;
        if knows(&self.programs[program].known) {
            return Some(program);
        }
        for other in 0..self.programs.len() {
            self.explore(other).await;
        }
        let able = self.programs.iter().position(|other| knows(&other.known));
        let is_there = |ino| self.programs.iter().any(|other| other.known.contains(ino));
        // One that is gone fails in both filesystems.
        let is_gone = || inodes.iter().any(|(ino, _)| !is_there(ino));
        able.or_else(|| is_gone().then_some(program))
    }

    /// Breaks connections at random while a step is under way.
    fn disturb(&mut self) -> Option<thalweg_env::Task<()>> {
        if !self.plan.resets {
            return None;
        }
        let (network, server) = (self.scene.network.clone(), self.scene.server.clone());
        let hosts: Vec<_> = self.programs.iter().map(|it| it.machine.host.clone()).collect();
        let (env, mut rng) = (self.env.clone(), self.env.rng());
        let resets = self.rng.random_range(0..3);
        Some(self.env.spawn(async move {
            for _ in 0..resets {
                env.sleep(Duration::from_micros(rng.random_range(0..600))).await;
                network.reset(&hosts[rng.random_range(0..hosts.len())], &server);
            }
        }))
    }

    /// Sleeps until the start of a second, plus a tenth.
    async fn next_second(&self) {
        let past = u64::from(self.env.now().since(thalweg_env::Time::default()).subsec_micros());
        self.env.sleep(Duration::from_micros(1_100_000 - past)).await;
    }

    async fn turn(&mut self, (program, kind): &Turn) {
        let program = program % self.programs.len();
        match kind {
            MutationKind::Call(step) => {
                let step = &steps::aim::aim(step, &self.naive, &self.twins).await;
                let inodes: Vec<Twin> =
                    step.inodes().into_iter().map(|it| steps::pick(&self.twins, it)).collect();
                self.next_second().await;
                let Some(program) = self.able(program, &inodes).await else { return };
                self.next_second().await;
                let client = self.client(program);
                let disturbing = self.disturb();
                let both = (&client as &dyn Filesystem, Some(&self.naive as &dyn Filesystem));
                let named = steps::apply(step, both, &self.twins, normalize).await;
                if let Some(disturbing) = disturbing {
                    disturbing.await;
                }
                if let Some(twin) = named {
                    if matches!(step, Step::Create(..)) {
                        self.twins.push(twin);
                    }
                    assert!(self.twins.contains(&twin), "{step:?} names another inode");
                    self.know(program, twin);
                }
                self.glance(&inodes).await;
            }
            MutationKind::Forget(number) => {
                let (ours, theirs) = steps::pick(&self.twins, *number);
                let Program { machine, known } = &mut self.programs[program];
                if ours != Ino::ROOT && known.remove(&ours) {
                    machine.client.unreference(ours, 1);
                    self.naive.unreference(theirs, 1);
                }
                let disturbing = self.disturb();
                // The client tells the server soon.
                self.env.sleep(LEASE).await;
                drop(disturbing);
            }
        }
    }

    /// Compares the attributes that the clients may cache of these inodes, and has them cached.
    async fn glance(&self, inodes: &[Twin]) {
        for Program { machine, known } in &self.programs {
            for (ours, theirs) in inodes.iter().filter(|(ours, _)| known.contains(ours)) {
                let of = async |fs: &dyn Filesystem, ino| {
                    steps::answer(fs.attributes(ino).await, |it| steps::shown(it, normalize))
                };
                assert_eq!(of(&machine.client, *ours).await, of(&self.naive, *theirs).await);
            }
        }
    }

    /// Compares everything that there is, through every client.
    async fn compare(&mut self) {
        for program in 0..self.programs.len() {
            self.explore(program).await;
            let (mut usable, client) = (Vec::new(), self.client(program));
            for twin in self.twins.clone() {
                match self.programs[program].known.contains(&twin.0) {
                    true => usable.push(twin),
                    false => {
                        let found = client.attributes(twin.0).await;
                        assert!(matches!(found, Err(FsError::Stale)), "{}: {found:?}", twin.0);
                    }
                }
            }
            steps::compare((&client, &self.naive), &usable, normalize).await;
            let used = client.statistics().await.unwrap();
            assert_eq!(used.inodes.0, self.naive.inodes() as u64, "inodes in use");
            assert_eq!(client.status().evictions, 0);
        }
    }
}

fn compare_after(plan: Plan, seed: u64, turns: &[Turn]) {
    run(seed, |env| async move {
        let mut model = Model::new(&env, plan).await;
        for (number, turn) in turns.iter().enumerate() {
            model.turn(turn).await;
            if number % 12 == 0 {
                model.compare().await;
            }
        }
        model.compare().await;
    });
}

/// Runs random turns; the same ones for the same seed of the campaign.
fn explore(plan: Plan, cases: u32) {
    let cases = cases * campaign::length() as u32;
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let first = campaign::seeds(1).start;
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&first.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let turns = prop::collection::vec(turn(), 1..100);
    let tested = TestRunner::new_with_rng(config, rng).run(&turns, |turns| {
        compare_after(plan, first, &turns);
        Ok(())
    });
    if let Err(failed) = tested {
        panic!("{plan:?}: {failed}");
    }
}

#[test]
fn one_client_does_what_the_naive_one_does() {
    for on_volume in [false, true] {
        explore(Plan { clients: 1, on_volume, resets: false }, 25);
    }
}

#[test]
fn clients_do_together_what_the_naive_one_does() {
    for (clients, on_volume) in [(2, false), (3, true), (3, false)] {
        explore(Plan { clients, on_volume, resets: false }, 25);
    }
}

#[test]
fn calls_count_once_over_connections_that_break() {
    for (clients, on_volume) in [(1, false), (2, true)] {
        explore(Plan { clients, on_volume, resets: true }, 40);
    }
}
