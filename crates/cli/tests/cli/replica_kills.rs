//! A primary and its replica, two processes over TLS, one or both of which are killed at random moments.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use thalweg_client::Volume;
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_store::tree::{Batch, Pair, Store, TreeError};

use crate::replica::{Scene, wait};
use crate::run::{Server, good, thalweg};

/// Put number `i` goes to slot `i % SLOTS`, so that each state shows which puts it has.
const SLOTS: u64 = 16;
/// What a served volume needs at most to become ready, or a replica to catch up: polls of 10 ms.
const POLLS: u32 = 6000;

/// The value of put number `i`: the number, and some more bytes that follow from it.
fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + (number * 397 % 3000) as usize, number as u8);
    value
}

/// The number of puts in a state, which must have all puts up to the last.
fn puts_in(pairs: &[Pair]) -> u64 {
    let number = |value: &[u8]| {
        let number = u64::from_le_bytes(value[..8].try_into().unwrap());
        assert_eq!(value, self::value(number), "the value of put {number} is another one");
        number
    };
    let found: Vec<u64> = pairs.iter().map(|(_, value)| number(value)).collect();
    let last = found.iter().copied().max().unwrap_or(0);
    let mut expected: Vec<u64> = (last.saturating_sub(SLOTS - 1).max(1)..=last).collect();
    expected.sort_unstable_by_key(|number| number % SLOTS);
    assert_eq!(found, expected, "not the first {last} puts");
    for (key, value) in pairs {
        assert_eq!(**key, key_of(number(value)));
    }
    last
}

fn key_of(number: u64) -> [u8; 1] {
    [(number % SLOTS) as u8]
}

/// A volume through its server.
struct Through {
    volume: Volume,
    store: Store,
}

impl Through {
    fn open(folder: &Path) -> Option<Through> {
        let volume = Volume::open(folder).ok().filter(Volume::is_served)?;
        let transact = volume.transact().clone();
        let opening = async { Store::open(&Env::real(), transact, "puts").await };
        let store = volume.wait(opening).ok()?;
        Some(Through { volume, store })
    }

    fn put(&self, number: u64) -> Result<(), TreeError> {
        let mut batch = Batch::new();
        batch.put(key_of(number).to_vec(), value(number));
        self.volume.wait(self.store.write(&batch))
    }

    /// The puts that one snapshot has.
    fn puts(&self) -> Result<u64, TreeError> {
        let pairs = self.volume.wait(async { self.store.iter().await?.collect().await })?;
        Ok(puts_in(&pairs))
    }
}

/// Both processes, and what was acknowledged.
struct Couple {
    scene: Scene,
    replica: Server,
    rng: Rng,
    acknowledged: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Primary,
    Replica,
    Both,
}

impl Couple {
    fn new(seed: u64) -> Couple {
        let scene = Scene::with(&["--ack", "1"]);
        let volume = scene.home.volume().display().to_string();
        scene.create();
        let replica = scene.run();
        good(thalweg(["kv", &volume, "create", "puts"]).stdin(Stdio::null()));
        let rng = Rng::seed_from_u64(seed);
        Couple { scene, replica, rng, acknowledged: AtomicU64::new(0) }
    }

    fn pause(&mut self, most: u64) {
        wait(Duration::from_micros(self.rng.random_range(0..1000 * most)));
    }

    fn at_primary(&self) -> Through {
        Through::open(&self.scene.home.volume()).unwrap()
    }

    fn at_replica(&self) -> Through {
        Through::open(Path::new(&self.scene.replica())).unwrap()
    }

    fn serve_command(&self, listen: &str) -> Command {
        let volume = self.scene.home.volume().display().to_string();
        let socket = self.scene.home.path("nbd.sock").display().to_string();
        let args = ["serve", &volume, "--json", "--socket", &socket, "--listen", listen];
        let mut command = self.scene.command("server", &args);
        command.args(["--ack", "1"]);
        command
    }

    /// Starts a command, and kills it soon.
    fn start_and_kill(&mut self, mut command: Command) {
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        self.pause(150);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn restart_replica(&mut self) {
        if self.rng.random_range(0..4) == 0 {
            self.start_and_kill(self.scene.run_command());
        }
        self.replica = self.scene.run();
    }

    fn restart_primary(&mut self) {
        let listen = self.scene.listens();
        if self.rng.random_range(0..4) == 0 {
            self.start_and_kill(self.serve_command(&listen));
        }
        let command = self.serve_command(&listen);
        self.scene.primary = Server::of(command, self.scene.home.path("nbd.sock"));
    }

    /// Writes and reads while processes are killed; then checks what is left.
    fn round(&mut self) {
        let from = self.at_primary().puts().unwrap() + 1;
        let victim = [Victim::Primary, Victim::Replica, Victim::Both];
        let victim = victim[self.rng.random_range(0..victim.len())];
        let stop = AtomicBool::new(false);
        let acknowledged = std::mem::take(&mut self.acknowledged);
        let (primary, replica) = (self.at_primary(), self.at_replica());
        let held = std::thread::scope(|scope| {
            scope.spawn(|| write(&primary, from, &acknowledged, &stop));
            scope.spawn(|| read(&replica, &stop));
            self.pause(300);
            self.kill(victim, &acknowledged, &stop)
        });
        self.acknowledged = acknowledged;
        let acknowledged = self.acknowledged.load(Ordering::Acquire);
        // Of a primary that was not killed it is checked as well.
        let primary = self.at_primary().puts().unwrap();
        assert!(primary >= acknowledged, "{victim:?}: the primary has {primary} of {acknowledged}");
        assert!(primary >= held, "{victim:?}: the replica had {held}, and the primary {primary}");
        self.catch_up(primary);
    }

    /// Kills processes, and starts them again; returns how many puts the replica had when the primary was gone.
    fn kill(&mut self, victim: Victim, acknowledged: &AtomicU64, stop: &AtomicBool) -> u64 {
        if victim != Victim::Replica {
            self.scene.primary.kill_now();
        }
        if victim != Victim::Primary {
            self.replica.kill_now();
        }
        let certain = acknowledged.load(Ordering::Acquire);
        self.pause(100);
        if victim == Victim::Primary {
            stop.store(true, Ordering::Release);
        } else {
            self.restart_replica();
        }
        let held = self.at_replica().puts().unwrap();
        assert!(held >= certain, "{victim:?}: the replica has {held} of {certain}");
        if victim == Victim::Replica {
            // The put that waited for the replica is acknowledged.
            self.pause(50);
            stop.store(true, Ordering::Release);
            return 0;
        }
        stop.store(true, Ordering::Release);
        self.restart_primary();
        held
    }

    fn catch_up(&self, puts: u64) {
        let replica = self.at_replica();
        for _ in 0..POLLS {
            let found = replica.puts().unwrap();
            assert!(found <= puts, "the replica has {found}, and the primary {puts}");
            if found == puts {
                return;
            }
            wait(Duration::from_millis(10));
        }
        panic!("the replica does not catch up: {}", self.scene.status());
    }
}

/// Puts one number after the other, until the server is gone.
fn write(primary: &Through, from: u64, acknowledged: &AtomicU64, stop: &AtomicBool) {
    for number in from.. {
        if stop.load(Ordering::Acquire) || primary.put(number).is_err() {
            return;
        }
        acknowledged.store(number, Ordering::Release);
    }
}

/// Reads the replica's state again and again, until its server is gone. It never goes back.
fn read(replica: &Through, stop: &AtomicBool) {
    let mut last = 0;
    while !stop.load(Ordering::Acquire) {
        let Ok(found) = replica.puts() else { return };
        assert!(found >= last, "the replica went back from {last} to {found}");
        last = found;
    }
}

#[test]
fn what_was_acknowledged_is_in_both_whichever_is_killed() {
    let rounds = if campaign::length() > 1 { 10 * campaign::length() } else { 4 };
    let seed = campaign::seeds_from(20).start;
    println!("seed {seed}, {rounds} rounds");
    let mut couple = Couple::new(seed);
    for _ in 0..rounds {
        couple.round();
    }
    let puts = couple.acknowledged.load(Ordering::Acquire);
    assert!(puts > rounds, "{puts} puts in {rounds} rounds");
    couple.scene.primary.kill_now();
    couple.replica.end();
}
