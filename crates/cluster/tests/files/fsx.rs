//! `fsx` for two mounts: random calls on one file, each through one of two clients with a journal of its own, and what every call finds
//! compared with one model. The server's machine crashes now and then.

use std::fmt::Debug;
use std::time::Duration;

use futures::future::join;
use rand::RngExt;
use thalweg_cluster::client::{self, Client, JournaledData};
use thalweg_env::{Env, Rng};
use thalweg_fs::{
    Allocation, AttributeChange, Caller, Filesystem, FsError, Handle, Ino, Node, Seek, WriteAt,
    WriteHow,
};
use thalweg_sim::{campaign, run};

use crate::journal::Journaled;
use crate::journal_crashes::left;
use crate::scene::*;

const CALLS: usize = 150;
/// Bytes of the file at most, and of a call.
const LONGEST: usize = 300_000;
const MOST: usize = 70_000;
/// Calls that a failing test shows.
const SHOWN: usize = 30;

/// One call through one mount, or one through each.
#[derive(Clone, Debug)]
enum Call {
    Write {
        at: usize,
        byte: u8,
        len: usize,
        sync: bool,
    },
    Append {
        byte: u8,
        len: usize,
    },
    /// Both mounts at the same time, each to its half of a range.
    WriteBoth {
        at: usize,
        byte: u8,
        len: usize,
    },
    Read {
        at: usize,
        len: usize,
    },
    Size,
    Seek {
        at: usize,
        what: Seek,
    },
    Resize(usize),
    Allocate {
        at: usize,
        len: usize,
        how: Allocation,
    },
    /// Between ranges of the file that do not overlap.
    Copy {
        from: usize,
        to: usize,
        len: usize,
    },
    Sync {
        content_only: bool,
    },
    SyncAll,
    /// Opens the file if it is closed, and closes it if it is open.
    Open,
}

/// Bytes that tell where they belong.
fn filled(at: usize, byte: u8, len: usize) -> Vec<u8> {
    (at..at + len).map(|at| (at / 3) as u8 ^ byte).collect()
}

impl Call {
    fn draw(rng: &mut Rng, size: usize) -> Call {
        // Small ones are as frequent as large ones.
        let most = if rng.random() { 300 } else { MOST };
        let (at, len) = (rng.random_range(0..LONGEST - most), rng.random_range(1..most));
        let (byte, keep_size) = (rng.random(), rng.random());
        match rng.random_range(0..100) {
            0..24 => Call::Write { at, byte, len, sync: rng.random_bool(0.1) },
            24..28 if size + len <= LONGEST => Call::Append { byte, len },
            28..33 => Call::WriteBoth { at, byte, len: len + 1 },
            33..54 => Call::Read { at, len },
            54..58 => Call::Size,
            58..61 => Call::Seek { at, what: if byte % 2 == 0 { Seek::Data } else { Seek::Hole } },
            61..69 => Call::Resize(at),
            69..73 => Call::Allocate { at, len, how: Allocation::Reserve { keep_size } },
            73..77 => Call::Allocate { at, len, how: Allocation::Punch },
            77..81 => Call::Allocate { at, len, how: Allocation::Zero { keep_size } },
            81..85 => Call::draw_copy(rng, at, len),
            85..92 => Call::Sync { content_only: byte % 2 == 0 },
            92..94 => Call::SyncAll,
            _ => Call::Open,
        }
    }

    fn draw_copy(rng: &mut Rng, from: usize, len: usize) -> Call {
        let to = rng.random_range(0..LONGEST - MOST);
        match from + len <= to || to + len <= from {
            true => Call::Copy { from, to, len },
            false => Call::Read { at: from, len },
        }
    }

    /// What it does to the bytes of the file.
    fn apply(&self, bytes: &mut Vec<u8>) {
        let write = |bytes: &mut Vec<u8>, at: usize, data: &[u8]| {
            if !data.is_empty() {
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[at..at + data.len()].copy_from_slice(data);
            }
        };
        let size = bytes.len();
        match *self {
            Call::Write { at, byte, len, .. } | Call::WriteBoth { at, byte, len } => {
                write(bytes, at, &filled(at, byte, len));
            }
            Call::Append { byte, len } => write(bytes, size, &filled(size, byte, len)),
            Call::Resize(size) => bytes.resize(size, 0),
            Call::Allocate { at, len, how } => {
                let zeroed = !matches!(how, Allocation::Reserve { .. });
                let grows = Allocation::Reserve { keep_size: false };
                let grows = how == grows || how == Allocation::Zero { keep_size: false };
                bytes.resize(if grows { size.max(at + len) } else { size }, 0);
                let end = (at + len).min(bytes.len());
                if zeroed && at < end {
                    bytes[at..end].fill(0);
                }
            }
            Call::Copy { from, to, len } => {
                let copied = bytes[from.min(size)..(from + len).min(size)].to_vec();
                write(bytes, to, &copied);
            }
            Call::Read { .. } | Call::Size | Call::Seek { .. } | Call::Open => {}
            Call::Sync { .. } | Call::SyncAll => {}
        }
    }
}

/// One mount, with the file as it knows it.
struct Mount {
    _machine: Journaled,
    client: Client,
    file: Ino,
    handle: Option<Handle>,
}

impl Mount {
    async fn new(scene: &Scene, name: &str, rng: &mut Rng) -> Mount {
        let mut machine = Journaled::new(scene, name).await;
        machine.data = match rng.random_range(0..4) {
            0 | 1 => JournaledData::Wasteless,
            2 => JournaledData::Pages,
            _ => JournaledData::Selective { threshold: 4096 },
        };
        let exclusive = if rng.random() { Some(0) } else { patient().exclusive };
        let options = client::Options { exclusive, ..machine.options(rng.random_bool(0.7)) };
        let connector = Box::new(machine.host().connector(&scene.server, PORT));
        let client = Client::connect(machine.process.env(), connector, options).await.unwrap();
        Mount { _machine: machine, client, file: Ino::ROOT, handle: None }
    }

    async fn find(&mut self) {
        self.file = self.client.find(Ino::ROOT, b"file").await.unwrap().ino;
        self.client.reference(self.file);
    }

    async fn write(&self, at: WriteAt, data: Vec<u8>, sync: bool) -> u64 {
        let how = WriteHow { sync, ..WriteHow::default() };
        self.client.write(self.file, at, vec![data.into()], how).await.unwrap()
    }

    async fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.client.read(self.file, at as u64, len).await.unwrap().concat()
    }

    async fn open(&mut self) {
        self.handle = match self.handle.take() {
            Some(handle) => {
                self.client.release(self.file, handle).await;
                None
            }
            None => {
                let opened = self.client.open(&Caller::default(), self.file, WRITING).await;
                Some(opened.unwrap().handle)
            }
        };
    }

    /// Makes a call of this mount alone, on a file that has these bytes.
    async fn make(&mut self, call: &Call, bytes: &[u8]) {
        let (client, file) = (&self.client, self.file);
        match *call {
            Call::Write { at, byte, len, sync } => {
                let at_byte = WriteAt::Offset(at as u64);
                assert_eq!(self.write(at_byte, filled(at, byte, len), sync).await, at as u64);
            }
            Call::Append { byte, len } => {
                let data = filled(bytes.len(), byte, len);
                assert_eq!(self.write(WriteAt::End, data, false).await, bytes.len() as u64);
            }
            Call::WriteBoth { .. } => unreachable!("both mounts make it"),
            Call::Read { at, len } => {
                let size = bytes.len();
                assert_same(&self.read(at, len).await, &bytes[at.min(size)..(at + len).min(size)]);
            }
            Call::Size => {
                let found = client.attributes(file).await.unwrap().attributes.size;
                assert_eq!(found, bytes.len() as u64);
            }
            Call::Seek { at, what } => self.seek(at, what, bytes).await,
            Call::Resize(size) => {
                let change = AttributeChange { size: Some(size as u64), ..Default::default() };
                let found = client.set_attributes(file, &change).await.unwrap();
                assert_eq!(found.attributes.size, size as u64);
            }
            Call::Allocate { at, len, how } => {
                client.allocate(file, at as u64, len as u64, how).await.unwrap();
            }
            Call::Copy { from, to, len } => self.copy(from, to, len, bytes).await,
            Call::Sync { content_only } => client.sync(file, content_only).await.unwrap(),
            Call::SyncAll => client.sync_all().await.unwrap(),
            Call::Open => self.open().await,
        }
    }

    /// A call may copy a part.
    async fn copy(&self, from: usize, to: usize, len: usize, bytes: &[u8]) {
        let end = (from + len).min(bytes.len());
        let mut done = 0;
        while from + done < end {
            let ends = [from, to].map(|at| (self.file, (at + done) as u64));
            let left = (len - done) as u64;
            let copied = self.client.copy(ends[0], ends[1], left).await.unwrap() as usize;
            assert!(copied > 0 && from + done + copied <= end, "{copied} bytes behind {done}");
            done += copied;
        }
    }

    /// Where storage is follows from no model; that nothing which a seek passes over is anything but zeros does.
    async fn seek(&self, at: usize, what: Seek, bytes: &[u8]) {
        let found = self.client.seek(self.file, at as u64, what).await;
        let passed = match (what, found) {
            (_, Err(FsError::NothingThere)) if at >= bytes.len() => 0..0,
            (Seek::Data, Err(FsError::NothingThere)) => at..bytes.len(),
            (Seek::Data, Ok(found)) => at..found as usize,
            (Seek::Hole, Ok(found)) => {
                assert!((at..=bytes.len()).contains(&(found as usize)), "a hole at {found}");
                0..0
            }
            (_, Err(error)) => panic!("{error}"),
        };
        assert!(passed.end <= bytes.len(), "data at {} of {} bytes", passed.end, bytes.len());
        assert!(bytes[passed.clone()].iter().all(|byte| *byte == 0), "no storage in {passed:?}");
    }
}

fn assert_same(found: &[u8], expected: &[u8]) {
    if found != expected {
        let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
        panic!("{} bytes for {}, which differ from {differs:?} on", found.len(), expected.len());
    }
}

/// Shows the last calls if a test fails.
struct Log {
    what: String,
    calls: Vec<(usize, Call)>,
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}; the last calls:", self.what);
            let first = self.calls.len().saturating_sub(SHOWN);
            for (nth, (mount, call)) in self.calls.iter().enumerate().skip(first) {
                eprintln!("{nth}: mount {mount}: {call:?}");
            }
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    calls: usize,
    /// Changes of the other mount that the server did not have when a mount began to use the file.
    unsent: usize,
    switches: usize,
    server_crashes: usize,
}

/// One file, and its two mounts.
struct Life {
    env: Env,
    rng: Rng,
    scene: Scene,
    mounts: [Mount; 2],
    bytes: Vec<u8>,
    log: Log,
    tally: Tally,
}

impl Life {
    async fn new(env: &Env, seed: u64, has_objects: bool) -> Life {
        // So that a file that was taken back is soon a mount's own again.
        let options =
            thalweg_cluster::server::Options { share: Duration::from_millis(1), ..options() };
        let scene = Scene::either(env, options, has_objects).await;
        let mut rng = env.rng();
        let mut mounts =
            [Mount::new(&scene, "a", &mut rng).await, Mount::new(&scene, "b", &mut rng).await];
        make(&mounts[0].client, Ino::ROOT, "file", Node::File).await;
        for mount in &mut mounts {
            mount.find().await;
        }
        let what = format!("seed {seed}, {} objects", if has_objects { "with" } else { "without" });
        let log = Log { what, calls: Vec::new() };
        let (env, bytes, tally) = (env.clone(), Vec::new(), Tally::default());
        Life { env, rng, scene, mounts, bytes, log, tally }
    }

    async fn run(&mut self, crashes: bool) {
        // A mount with a few calls in a row gets the file to itself.
        let row = self.rng.random_range(1..20);
        let mut mount = 0;
        for _ in 0..CALLS {
            if self.rng.random_range(0..row) == 0 {
                mount = self.rng.random_range(0..2);
                self.tally.unsent += self.mounts[1 - mount].client.status().unsent;
                self.tally.switches += 1;
                // A file that one mount alone has open becomes its own.
                for (mount, opens) in [(1 - mount, false), (mount, true)] {
                    let is_open = self.mounts[mount].handle.is_some();
                    if is_open != opens && self.rng.random_bool(0.8) {
                        self.make(mount, Call::Open).await;
                    }
                }
            }
            let call = Call::draw(&mut self.rng, self.bytes.len());
            self.make(mount, call).await;
            let pause = [0, 0, 2_000, 300_000][self.rng.random_range(0..4)];
            self.env.sleep(Duration::from_micros(self.rng.random_range(0..=pause))).await;
            if crashes && self.rng.random_bool(0.02) {
                let left = left(&mut self.rng);
                self.scene.crash(left).await;
                self.tally.server_crashes += 1;
            }
        }
        for mount in [0, 1] {
            self.make(mount, Call::Read { at: 0, len: LONGEST }).await;
            self.make(mount, Call::Size).await;
        }
    }

    async fn make(&mut self, mount: usize, call: Call) {
        // A failing call is among those that are shown.
        self.log.calls.push((mount, call.clone()));
        self.tally.calls += 1;
        match call {
            Call::WriteBoth { at, byte, len } => self.write_both(mount, at, byte, len).await,
            _ => self.mounts[mount].make(&call, &self.bytes).await,
        }
        call.apply(&mut self.bytes);
    }

    async fn write_both(&self, mount: usize, at: usize, byte: u8, len: usize) {
        let middle = at + len / 2;
        let half = async |mount: usize, at: usize, end: usize| {
            let data = filled(at, byte, end - at);
            let written = self.mounts[mount].write(WriteAt::Offset(at as u64), data, false).await;
            assert_eq!(written, at as u64);
        };
        join(half(mount, at, middle), half(1 - mount, middle, at + len)).await;
    }
}

fn live(seed: u64, has_objects: bool) -> Tally {
    run(seed, move |env| async move {
        let mut life = Life::new(&env, seed, has_objects).await;
        life.run(seed % 3 == 2).await;
        // This client has no copy in memory.
        let visitor = life.scene.client("other").await;
        let file = visitor.client.find(Ino::ROOT, b"file").await.unwrap().ino;
        visitor.client.reference(file);
        let found = visitor.client.read(file, 0, LONGEST).await.unwrap();
        assert_same(&found.concat(), &life.bytes);
        std::mem::take(&mut life.tally)
    })
}

fn live_all(lives: u64, has_objects: bool) {
    let mut all = Tally::default();
    for seed in campaign::seeds(lives) {
        let tally = live(seed, has_objects);
        all.calls += tally.calls;
        all.unsent += tally.unsent;
        all.switches += tally.switches;
        all.server_crashes += tally.server_crashes;
    }
    println!("{all:?}");
    assert!(all.unsent > 100 && all.switches > 1000 && all.server_crashes > 20, "{all:?}");
}

#[test]
fn two_mounts_with_journals_agree_on_a_file() {
    live_all(60, false);
}

#[test]
fn two_mounts_with_journals_agree_on_a_file_of_objects() {
    live_all(60, true);
}
