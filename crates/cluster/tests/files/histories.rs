//! Clients that change the same names and files at the same time, over a network that fails: their histories are
//! linearizable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_cluster::client::{self, Client};
use thalweg_cluster::server::Options;
use thalweg_env::{Env, Rng, Time};
use thalweg_fs::{
    Caller, Cookie, Filesystem, FsError, Ino, Lookup, Node, Opened, Rename, WriteAt, WriteHow,
};
use thalweg_sim::crash::Shape;
use thalweg_sim::files::NaiveFiles;
use thalweg_sim::{campaign, run};

use crate::linear::{Recorded, is_linearizable};
use crate::scene::*;

const CLIENTS: usize = 3;
/// Programs on the machine of each client.
const PROGRAMS: usize = 2;
/// Calls of a program; more in a life with crashes of the server.
const CALLS: usize = 8;
const CALLS_OVER_CRASHES: usize = 12;

/// A call on one of few names in a directory, with its answer.
#[derive(Clone, Debug)]
enum NameCall {
    Create(u8, Result<Ino, ()>),
    Unlink(u8, bool),
    Rename(u8, u8, bool),
    Look(u8, Option<Ino>),
}

/// A call on one of the files.
#[derive(Clone, Debug)]
enum FileCall {
    Write(u64),
    Append(u64),
    Read(u64),
    Size(u64),
}

#[derive(Default)]
struct History {
    names: Vec<Recorded<NameCall>>,
    files: BTreeMap<usize, Vec<Recorded<FileCall>>>,
}

/// A client that makes calls, and notes the answers.
struct Actor {
    env: Env,
    rng: Rng,
    calls: usize,
    number: usize,
    client: Client,
    directory: Ino,
    files: Vec<Ino>,
    history: Arc<Mutex<History>>,
    /// It lists the directory now and then: so its client knows all names, and asks for the directory.
    lists: bool,
}

/// What a life is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The network fails, for longer than a lease too.
    Network,
    /// The server's machine crashes, too.
    Crashes,
    /// As with crashes, and the clients take turns in having the directory to themselves. Changes that such a client has not sent are
    /// lost with its session, so no fault outlasts a lease.
    Alone,
}

/// Whether it is unknown if a call has taken effect.
fn is_lost(error: &FsError) -> bool {
    matches!(error, FsError::Store(_))
}

impl Actor {
    async fn run(mut self) {
        for _ in 0..self.calls {
            let pause = match self.rng.random_range(0..20) {
                0 => 300_000,
                // Another client has the directory to itself meanwhile.
                1..4 if self.lists => 30_000,
                1..4 => 3_000,
                _ => 300,
            };
            self.env.sleep(Duration::from_micros(self.rng.random_range(0..pause))).await;
            if self.rng.random_bool(0.5) {
                self.use_name().await;
            } else {
                self.use_file().await;
            }
        }
    }

    /// After an eviction the client has to find everything by its name again.
    async fn find_again(&self) {
        let Ok(found) = self.client.find(Ino::ROOT, b"d").await else { return };
        assert_eq!(found.ino, self.directory);
        for number in 0..self.files.len() {
            let _ = self.client.find(Ino::ROOT, format!("f{number}").as_bytes()).await;
        }
    }

    async fn list(&self) {
        let mut from = Cookie::START;
        while let Ok(some) = self.client.read_directory(self.directory, from, 100, false).await
            && let Some(last) = some.last()
        {
            from = last.cookie;
        }
    }

    async fn use_name(&mut self) {
        if self.lists && self.rng.random_bool(0.5) {
            self.list().await;
        }
        let (a, b) = (self.rng.random_range(0..4u8), self.rng.random_range(0..4u8));
        let (name, other) = ([b'n', b'0' + a], [b'n', b'0' + b]);
        let (client, directory, start) = (&self.client, self.directory, self.env.now());
        let (op, lost) = match self.rng.random_range(0..8) {
            0..2 => match client.create(directory, &name, &new(Node::File)).await {
                Ok(made) => (NameCall::Create(a, Ok(made.ino)), false),
                Err(FsError::Exists) => (NameCall::Create(a, Err(())), false),
                // Which inode it would have is not known: the name is not used any more.
                Err(error) if is_lost(&error) => (NameCall::Create(a, Ok(Ino(0))), true),
                Err(_) => return self.find_again().await,
            },
            2..4 => match client.unlink(directory, &name).await {
                Ok(()) => (NameCall::Unlink(a, true), false),
                Err(FsError::NotFound) => (NameCall::Unlink(a, false), false),
                Err(error) if is_lost(&error) => (NameCall::Unlink(a, true), true),
                Err(_) => return self.find_again().await,
            },
            4 if a != b => {
                let renamed = (directory, &name[..]);
                match client.rename(renamed, (directory, &other), Rename::Replace).await {
                    Ok(()) => (NameCall::Rename(a, b, true), false),
                    Err(FsError::NotFound) => (NameCall::Rename(a, b, false), false),
                    Err(error) if is_lost(&error) => (NameCall::Rename(a, b, true), true),
                    Err(_) => return self.find_again().await,
                }
            }
            _ => match client.lookup(directory, &name).await {
                Ok(Lookup::Found(found)) => (NameCall::Look(a, Some(found.ino)), false),
                Ok(Lookup::Absent(_)) => (NameCall::Look(a, None), false),
                Err(_) => return self.find_again().await,
            },
        };
        let end = (!lost).then(|| self.env.now());
        let client = self.number;
        self.history.lock().names.push(Recorded { client, start, end, op });
    }

    async fn use_file(&mut self) {
        let which = self.rng.random_range(0..self.files.len());
        let (file, start) = (self.files[which], self.env.now());
        let number = self.rng.random::<u64>();
        let data = || vec![Bytes::copy_from_slice(&number.to_le_bytes())];
        let how = WriteHow::default();
        let client = &self.client;
        // A file that is open may become its client's own.
        let opens = self.lists && self.rng.random_bool(0.5);
        let opened = match opens {
            true => client.open(&Caller::default(), file, WRITING).await.ok(),
            false => None,
        };
        let (op, lost) = match self.rng.random_range(0..8) {
            0..2 => match client.write(file, WriteAt::Offset(0), data(), how).await {
                Ok(_) => (FileCall::Write(number), false),
                Err(error) if is_lost(&error) => (FileCall::Write(number), true),
                Err(_) => return self.find_again().await,
            },
            2 => match client.write(file, WriteAt::End, data(), how).await {
                Ok(at) => (FileCall::Append(at), false),
                Err(error) if is_lost(&error) => (FileCall::Append(u64::MAX), true),
                Err(_) => return self.find_again().await,
            },
            3..5 => match client.read(file, 0, 8).await {
                Ok(read) => {
                    let bytes: [u8; 8] = read.concat().try_into().unwrap();
                    (FileCall::Read(u64::from_le_bytes(bytes)), false)
                }
                Err(_) => return self.find_again().await,
            },
            _ => match client.attributes(file).await {
                Ok(found) => (FileCall::Size(found.size), false),
                Err(_) => return self.find_again().await,
            },
        };
        let end = (!lost).then(|| self.env.now());
        if let Some(Opened { handle, .. }) = opened {
            client.release(file, handle).await;
        }
        let recorded = Recorded { client: self.number, start, end, op };
        self.history.lock().files.entry(which).or_default().push(recorded);
    }
}

/// Names and inodes. A lost create has inode 0, which any lookup may find.
type Names = [Option<Ino>; 4];

fn step_names(state: &Names, call: &NameCall) -> Option<Names> {
    let mut next = *state;
    let at = |name: u8| usize::from(name);
    match call {
        NameCall::Create(name, Ok(ino)) => {
            next[at(*name)] = Some(*ino);
            state[at(*name)].is_none().then_some(next)
        }
        NameCall::Create(name, Err(())) => state[at(*name)].map(|_| next),
        NameCall::Unlink(name, true) => {
            state[at(*name)]?;
            next[at(*name)] = None;
            Some(next)
        }
        NameCall::Unlink(name, false) => state[at(*name)].is_none().then_some(next),
        NameCall::Rename(from, to, true) => {
            next[at(*to)] = Some(state[at(*from)]?);
            next[at(*from)] = None;
            Some(next)
        }
        NameCall::Rename(from, _, false) => state[at(*from)].is_none().then_some(next),
        NameCall::Look(name, found) => match (state[at(*name)], found) {
            (Some(Ino(0)), Some(found)) => {
                next[at(*name)] = Some(*found);
                Some(next)
            }
            (there, found) => (there == *found).then_some(next),
        },
    }
}

/// The first number of a file, and its size.
fn step_file(state: &(u64, u64), call: &FileCall) -> Option<(u64, u64)> {
    let (number, size) = *state;
    match call {
        FileCall::Write(number) => Some((*number, size)),
        // Lost: where it went is not known.
        FileCall::Append(u64::MAX) => Some((number, size + 8)),
        FileCall::Append(at) => (*at == size).then_some((number, size + 8)),
        FileCall::Read(found) => (*found == number).then_some(*state),
        FileCall::Size(found) => (*found == size).then_some(*state),
    }
}

/// Disturbs the network until it is stopped, and the server if its files survive that.
async fn disturb(
    env: Env,
    mut rng: Rng,
    mut scene: Scene,
    (machines, crashes): (Arc<Vec<Machine>>, Arc<AtomicU64>),
    kind: Kind,
) {
    loop {
        let pause = if scene.is_durable() { 60_000 } else { 200_000 };
        env.sleep(Duration::from_micros(rng.random_range(0..pause))).await;
        if scene.is_durable() && rng.random_bool(0.8) {
            let left = match rng.random_range(0..4) {
                0 => Shape::Nothing,
                1 => Shape::Everything,
                2 => Shape::Subset(rng.random()),
                _ => Shape::Torn(rng.random()),
            };
            scene.stop().await;
            env.sleep(Duration::from_micros(rng.random_range(0..300_000))).await;
            scene.start(left).await;
            // Connections break while clients reclaim what they held; the server may stop meanwhile, too.
            for _ in 0..rng.random_range(0..100) {
                if scene.service.expected() == 0 {
                    break;
                }
                let one = &machines[rng.random_range(0..machines.len())].host;
                scene.network.reset(one, &scene.server);
                env.sleep(Duration::from_micros(rng.random_range(0..2000))).await;
            }
            let span = [1_000, 100_000, 2_000_000][rng.random_range(0..3)];
            env.sleep(Duration::from_micros(rng.random_range(0..span))).await;
            crashes.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if scene.service.expected() > 0 {
            // What a client has done outlives the server if the client comes back.
            continue;
        }
        let one = &machines[rng.random_range(0..machines.len())].host;
        match rng.random_range(0..10) {
            0..4 => scene.network.reset(one, &scene.server),
            4..6 => scene.network.cut(one, &scene.server),
            6..8 => scene.network.cut(&scene.server, one),
            _ => scene.network.part(std::slice::from_ref(one), std::slice::from_ref(&scene.server)),
        }
        // Some faults outlast a lease, or even the session.
        let span = match rng.random_range(0..10) {
            0 if kind != Kind::Alone => 2 * EXPIRE,
            1..3 if kind != Kind::Alone => 2 * LEASE,
            _ => Duration::from_millis(200),
        };
        env.sleep(span.mul_f64(rng.random_range(0.0..1.0))).await;
        scene.network.heal();
    }
}

/// What happened in a life besides its calls.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    calls: usize,
    /// Sessions that clients lost.
    evictions: u64,
    /// Crashes of the server.
    crashes: u64,
    /// Batches of what clients have made by themselves.
    batches: u64,
}

/// The server's options in a life.
fn options_of(seed: u64, alone: bool) -> Options {
    // In a third of the lives the clients know more inodes than they may.
    let known = if seed % 3 == 1 { 8 } else { usize::MAX };
    let share = if alone { Duration::from_millis(1) } else { LEASE / 2 };
    Options { known, share, ..options() }
}

/// The calls of a life.
fn life(seed: u64, kind: Kind) -> (History, Tally) {
    let (is_durable, alone) = (kind != Kind::Network, kind == Kind::Alone);
    run(seed, |env| async move {
        let options = options_of(seed, alone);
        let scene = match is_durable {
            // Every other one has contents that the clients reach themselves.
            true => Scene::either(&env, options, seed % 2 == 1).await,
            false => Scene::with(&env, Arc::new(NaiveFiles::new(&env)), options).await,
        };
        let (crashes, network) = (Arc::new(AtomicU64::new(0)), scene.network.clone());
        let history = Arc::<Mutex<History>>::default();
        let mut machines = Vec::new();
        for number in 0..CLIENTS {
            let options = client::Options { exclusive: alone.then_some(0), ..patient() };
            let visitor = visitor(&format!("c{number}"));
            machines.push(scene.client_with(visitor, options).await.unwrap());
        }
        let machines = Arc::new(machines);
        let first = &machines[0].client;
        let directory = make(first, Ino::ROOT, "d", Node::Directory).await;
        let mut files = Vec::new();
        for number in 0..2 {
            let file = make(first, Ino::ROOT, &format!("f{number}"), Node::File).await;
            let zero = vec![Bytes::from_static(&[0; 8])];
            first.write(file, WriteAt::Offset(0), zero, WriteHow::default()).await.unwrap();
            files.push(file);
        }
        let mut actors = Vec::new();
        for (number, machine) in machines.iter().cycle().take(PROGRAMS * CLIENTS).enumerate() {
            let actor = Actor {
                env: env.clone(),
                rng: env.rng(),
                calls: if is_durable { CALLS_OVER_CRASHES } else { CALLS },
                number,
                client: machine.client.clone(),
                directory,
                files: files.clone(),
                history: history.clone(),
                lists: alone,
            };
            actor.find_again().await;
            files.iter().chain([&directory]).for_each(|ino| machine.client.reference(*ino));
            actors.push(env.spawn(actor.run()));
        }
        let acting = async {
            for actor in actors {
                actor.await;
            }
        };
        let disturbing = async {
            if kind == Kind::Network && seed.is_multiple_of(4) {
                return std::future::pending().await;
            }
            let disturbed = (machines.clone(), crashes.clone());
            disturb(env.clone(), env.rng(), scene, disturbed, kind).await;
        };
        tokio::select! {
            () = acting => {}
            () = disturbing => {}
        }
        network.heal();
        let evictions = machines.iter().map(|it| it.client.status().evictions).sum();
        let batches = machines.iter().map(|it| it.client.traffic().sent_for("Batch").messages);
        let batches = batches.sum();
        let history = std::mem::take(&mut *history.lock());
        let calls = history.names.len() + history.files.values().map(Vec::len).sum::<usize>();
        (history, Tally { calls, evictions, crashes: crashes.load(Ordering::Relaxed), batches })
    })
}

/// A call on each line.
fn lines<T: std::fmt::Debug>(calls: &[Recorded<T>]) -> String {
    let line =
        |it: &Recorded<T>| format!("{} {:?} {:?} {:?}\n", it.client, it.start, it.end, it.op);
    calls.iter().map(line).collect()
}

/// The calls that a checker can see: of a name that was created and lost, later answers are not understood.
fn check(seed: u64, history: &mut History) {
    let order = |start: Time, client: usize| (start, client);
    history.names.sort_by_key(|it| order(it.start, it.client));
    let names = is_linearizable([None; 4], &history.names, step_names);
    assert!(names, "seed {seed}:\n{}", lines(&history.names));
    for calls in history.files.values_mut() {
        calls.sort_by_key(|it| order(it.start, it.client));
        let file = is_linearizable((0, 8), calls, step_file);
        assert!(file, "seed {seed}:\n{}", lines(calls));
    }
}

/// Checks lives; what happened in all of them.
fn live(lives: u64, kind: Kind) -> Tally {
    let mut all = Tally::default();
    for seed in campaign::seeds(lives) {
        let (mut history, tally) = life(seed, kind);
        check(seed, &mut history);
        all.calls += tally.calls;
        all.evictions += tally.evictions;
        all.crashes += tally.crashes;
        all.batches += tally.batches;
    }
    println!("{all:?}");
    all
}

#[test]
fn histories_are_linearizable() {
    let all = live(3000, Kind::Network);
    assert!(all.evictions > 50, "{all:?}");
}

#[test]
fn histories_over_crashes_of_the_server_are_linearizable() {
    let all = live(1000, Kind::Crashes);
    assert!(all.crashes > 750, "{all:?}");
}

#[test]
fn histories_of_clients_that_are_alone_in_turns_are_linearizable() {
    let all = live(750, Kind::Alone);
    assert!(all.crashes > 500 && all.batches > 500, "{all:?}");
    assert_eq!(all.evictions, 0, "{all:?}");
}

/// Lives that were not linearizable once: bytes that a server stored again replaced later ones; what another client looked at was
/// free at the next server before its owner had sent it; bytes that a server had stored without an answer were stored again
/// by the next one, after another client had replaced them; a file that was made without an answer was removed before that came;
/// the answer to a removal came after another client had made the name again, and its client went on without it; a program saw
/// bytes that another one on its client had appended, before that one's answer, which waited for other clients.
#[test]
fn histories_that_failed_are_linearizable() {
    let alone = [
        285,
        14_080_312_082_489,
        12_202_606_067_897,
        13_878_532_539_747,
        13_878_532_505_725,
        6_941_271_131_755,
    ];
    let alone = alone.map(|seed| (seed, Kind::Alone));
    let others = [
        (13_878_532_527_701, Kind::Crashes),
        (2_099_567_932_252, Kind::Crashes),
        (2_099_567_945_586, Kind::Network),
        (10_023_463_816_001, Kind::Crashes),
    ];
    for (seed, kind) in alone.into_iter().chain(others) {
        let (mut history, _) = life(seed, kind);
        check(seed, &mut history);
    }
}
