//! Batches of a client with a journal where contents are elsewhere: a crash leaves each of them whole or not at all, also between calls
//! that change bytes in their places, and while redirected bytes are placed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::check::{Damage, How};
use thalweg_fs::local::LocalFs;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::{self, JournalPosition, RecordedCall, SlotRecord};
use thalweg_fs::{
    Allocation, AttributeChange, Contents, Cookie, Filesystem, Ino, Kind, NewNode, Node,
    SessionTable, Timestamp, WriteAt, WriteHow,
};
use thalweg_sim::contents::{STRIPE, SimContents};
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::{campaign, run};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::Mode;

use super::rig::{Rig, Volume};
use crate::support::*;

const LATENCY: Duration = Duration::from_micros(300);
/// The file with redirected bytes.
const ASIDE: Ino = Ino(1 << 63);
/// Bytes of a write to one object, and of no other one.
const IN_ONE_OBJECT: usize = 300;
const BATCHES: u64 = 7;
/// Longer than redirected bytes wait to be placed.
const STILL: Duration = Duration::from_secs(75);

/// Mode and bytes of each file.
type State = BTreeMap<Bytes, (u16, Vec<u8>)>;

/// Makes batches, and knows what they come to.
struct Maker {
    rng: Rng,
    files: BTreeMap<Bytes, Ino>,
    state: State,
    numbers: std::ops::Range<u64>,
    made: u64,
}

impl Maker {
    fn create(&mut self, batch: &mut Vec<Mutation>) {
        let number = Ino(self.numbers.next().unwrap());
        let name = Bytes::from(format!("f{}", self.made));
        self.made += 1;
        let (umask, uid, gid) = (0, 0, 0);
        let new = NewNode { node: Node::File, mode: 0o600, umask, uid, gid };
        self.files.insert(name.clone(), number);
        self.state.insert(name.clone(), (0o600, Vec::new()));
        self.push(batch, MutationKind::Create { parent: ROOT, name, new, number });
    }

    fn push(&self, batch: &mut Vec<Mutation>, kind: MutationKind) {
        let time = Timestamp { seconds: self.made as i64, nanos: batch.len() as u32 };
        batch.push(Mutation { time, kind });
    }

    fn some(&mut self) -> Bytes {
        let nth = self.rng.random_range(0..self.files.len());
        self.files.keys().nth(nth).unwrap().clone()
    }

    /// A write, which replaces bytes, leaves a hole or goes on at the end.
    fn write(&mut self, batch: &mut Vec<Mutation>, name: &Bytes) {
        let len = self.rng.random_range(1 + IN_ONE_OBJECT..3 * STRIPE as usize);
        let bytes = &mut self.state.get_mut(name).unwrap().1;
        let size = bytes.len() as u64;
        let offset = match self.rng.random_range(0..10) {
            0 => size + self.rng.random_range(0..STRIPE),
            1..3 => size,
            _ => self.rng.random_range(0..=size),
        };
        let data = pattern(self.rng.random_range(0..1 << 20), len);
        let end = offset as usize + len;
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset as usize..end].copy_from_slice(&data);
        let ino = self.files[name];
        let kind = MutationKind::Write { ino, offset, data: data.into(), clear_suid: false };
        self.push(batch, kind);
    }

    fn batch(&mut self) -> Vec<Mutation> {
        let mut batch = Vec::new();
        if self.rng.random_bool(0.2) {
            // In one object.
            let name = self.some();
            if self.state[&name].1.len() > 500 {
                let data = Bytes::from(pattern(self.rng.random_range(0..1 << 20), IN_ONE_OBJECT));
                self.state.get_mut(&name).unwrap().1[100..100 + IN_ONE_OBJECT]
                    .copy_from_slice(&data);
                let ino = self.files[&name];
                let kind = MutationKind::Write { ino, offset: 100, data, clear_suid: false };
                self.push(&mut batch, kind);
                return batch;
            }
        }
        for _ in 0..self.rng.random_range(1..8) {
            match self.rng.random_range(0..10) {
                0 => self.create(&mut batch),
                1 if self.files.len() > 2 => {
                    let name = self.some();
                    let ino = self.files.remove(&name).unwrap();
                    self.state.remove(&name);
                    self.push(&mut batch, MutationKind::Unlink { parent: ROOT, name, ino });
                }
                2 => {
                    let name = self.some();
                    let mode = self.rng.random_range(0..0o777);
                    self.state.get_mut(&name).unwrap().0 = mode;
                    let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
                    let ino = self.files[&name];
                    self.push(&mut batch, MutationKind::SetAttributes { ino, change });
                }
                _ => {
                    let name = self.some();
                    self.write(&mut batch, &name);
                }
            }
        }
        batch
    }
}

impl Maker {
    /// A call that changes bytes of a file in their place, or its size.
    async fn call(&mut self, fs: &LocalFs) -> InPlace {
        let name = self.some();
        let ino = self.files[&name];
        let size = self.state[&name].1.len() as u64;
        let (offset, len) = (self.rng.random_range(0..=size), self.rng.random_range(1..2 * STRIPE));
        let bytes = &mut self.state.get_mut(&name).unwrap().1;
        match self.rng.random_range(0..4) {
            0 => {
                let change = AttributeChange { size: Some(offset), ..AttributeChange::default() };
                fs.set_attributes(ino, &change).await.unwrap();
                bytes.truncate(offset as usize);
                InPlace { name, offset, bytes: Vec::new() }
            }
            1 => {
                fs.allocate(ino, offset, len, Allocation::Punch).await.unwrap();
                let end = (offset + len).min(size) as usize;
                bytes[offset as usize..end].fill(0);
                InPlace { name, offset, bytes: vec![0; end - offset as usize] }
            }
            _ => {
                let data = pattern(self.rng.random_range(0..1 << 20), len as usize);
                let end = offset as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset as usize..end].copy_from_slice(&data);
                let how = WriteHow::default();
                let written = Bytes::from(data.clone());
                fs.write(ino, WriteAt::Offset(offset), vec![written], how).await.unwrap();
                InPlace { name, offset, bytes: data }
            }
        }
    }
}

/// Bytes that a call has stored in their place. They are there before its transaction is durable, and before earlier ones are.
struct InPlace {
    name: Bytes,
    offset: u64,
    bytes: Vec<u8>,
}

impl InPlace {
    fn of(kind: &MutationKind, files: &BTreeMap<Bytes, Ino>) -> Option<InPlace> {
        let MutationKind::Write { ino, offset, data, .. } = kind else { return None };
        let (name, _) = files.iter().find(|(_, it)| *it == ino)?;
        Some(InPlace { name: name.clone(), offset: *offset, bytes: data.to_vec() })
    }

    fn has(&self, name: &Bytes, at: usize, byte: u8) -> bool {
        let at = (at as u64).checked_sub(self.offset);
        self.name == *name && at.is_some_and(|at| self.bytes.get(at as usize) == Some(&byte))
    }
}

/// What differs of two states.
fn differences(found: &State, wanted: &State) -> String {
    let mut told = String::new();
    for (name, (mode, bytes)) in wanted {
        let Some((other, of)) = found.get(name) else {
            told += &format!("{name:?} is missing; ");
            continue;
        };
        let at = bytes.iter().zip(of).position(|(a, b)| a != b);
        let last = bytes.iter().zip(of).rposition(|(a, b)| a != b);
        if mode != other || bytes.len() != of.len() || at.is_some() {
            told += &format!(
                "{name:?}: mode {other:o} for {mode:o}, {} bytes for {}, differs in {at:?}..={last:?}; ",
                of.len(),
                bytes.len()
            );
        }
    }
    told
}

/// Whether a batch only writes bytes of one object that its file has, and sets attributes of that.
fn is_in_one_object(batch: &[Mutation], before: &State, files: &BTreeMap<Bytes, Ino>) -> bool {
    let Some(ino) = batch.first().map(|it| it.kind.ino()) else { return false };
    let Some((name, _)) = files.iter().find(|(_, it)| **it == ino) else { return false };
    let Some((_, bytes)) = before.get(name) else { return false };
    let mut objects = BTreeSet::new();
    batch.iter().all(|mutation| match &mutation.kind {
        MutationKind::Write { ino: of, offset, data, .. } => {
            let end = offset + data.len() as u64;
            objects.extend([offset / STRIPE, (end - 1) / STRIPE]);
            *of == ino && end <= bytes.len() as u64
        }
        MutationKind::SetAttributes { ino: of, .. } => *of == ino,
        _ => false,
    }) && objects.len() == 1
}

async fn see(fs: &LocalFs) -> State {
    let mut state = State::new();
    let entries = fs.read_directory(ROOT, Cookie::START, 1000, false).await.unwrap();
    for entry in entries {
        if entry.kind == Kind::File {
            let mode = attributes(fs, entry.ino).await.mode;
            state.insert(entry.name, (mode, content(fs, entry.ino).await));
        }
    }
    state
}

/// The last batch that the filesystem has of the session.
async fn position(fs: &LocalFs, session: u64) -> u64 {
    let sessions = fs.sessions().await.unwrap();
    let found = sessions.iter().find(|it| it.session == session).unwrap();
    let slot = found.slots.first();
    let is_right = |it: &SlotRecord| it.outcome == 10 * it.number && it.hash == 7 * it.number;
    assert!(slot.is_none_or(is_right), "{slot:?}");
    slot.map_or(0, |it| it.number)
}

#[derive(Default, Debug)]
struct Tally {
    images: u64,
    /// Those that have redirected bytes.
    redirected: u64,
    recoveries: u64,
}

struct History {
    rig: Rig,
    recorder: Recorder,
    contents: Arc<SimContents>,
    session: u64,
    /// The batches of each state, and the state behind each batch and call.
    states: Vec<(u64, State)>,
    /// What calls have stored, and batches in one object, each with the state behind it.
    calls: Vec<(usize, InPlace)>,
    begun: usize,
}

impl History {
    async fn new(env: &Env, rig: Rig) -> History {
        let recorder = Recorder::with_latency(env, LATENCY);
        let devices = rig.devices(|name, geometry| recorder.device(name, geometry));
        let contents = SimContents::recorded(env, &recorder, LATENCY);
        let volume = rig.make_external(env, &devices, contents.clone()).await;
        let fs = volume.files(env).await;
        let session = fs.begin_session("a client".into()).await.unwrap();
        let numbers = SessionTable::reserve_numbers(&fs, 1000).await.unwrap();
        let (files, state) = Default::default();
        let mut maker = Maker { rng: env.rng(), files, state, numbers, made: 0 };
        let mut first = Vec::new();
        for _ in 0..3 {
            maker.create(&mut first);
        }
        for name in maker.files.keys().cloned().collect::<Vec<_>>() {
            maker.write(&mut first, &name);
        }
        fs.apply(&first, &[], JournalPosition::default()).await.unwrap();
        fs.sync_all().await.unwrap();
        let begun = recorder.position();
        recorder.mark(0);
        let mut states = vec![(0, maker.state.clone())];
        let mut calls = Vec::new();
        for number in 1..=BATCHES {
            let batch = maker.batch();
            if is_in_one_object(&batch, &states[states.len() - 1].1, &maker.files) {
                // They are there before the times.
                let in_place = batch.iter().filter_map(|it| InPlace::of(&it.kind, &maker.files));
                calls.extend(in_place.map(|it| (states.len(), it)));
            }
            let call = RecordedCall { session, slot: 0, number, before: None };
            let recording = fs.recording(Arc::new(session_table::Recorder::new(call)));
            let table = recording.session_table().unwrap();
            let end = JournalPosition { position: 10 * number, hash: 7 * number };
            table.apply(&batch, &[], end).await.unwrap();
            states.push((number, maker.state.clone()));
            for _ in 0..2 {
                if maker.rng.random_bool(0.3) {
                    fs.sync_all().await.unwrap();
                    recorder.mark(states.len() as u64 - 1);
                }
                match maker.rng.random_range(0..10) {
                    0..2 => env.sleep(Duration::from_millis(maker.rng.random_range(0..900))).await,
                    2 => env.sleep(STILL).await,
                    3..6 => {
                        assert_eq!(see(&fs).await, maker.state);
                        calls.push((states.len(), maker.call(&fs).await));
                        states.push((number, maker.state.clone()));
                    }
                    _ => {}
                }
            }
        }
        assert_eq!(see(&fs).await, maker.state);
        History { rig, recorder, contents, session, states, calls, begun }
    }

    /// Whether this is a state, with any of the bytes that later calls have stored.
    fn is_state(&self, found: &State, at: usize) -> bool {
        let state = &self.states[at].1;
        let is_of = |name: &Bytes, wanted: &[u8], at_byte: usize, byte: u8| {
            let mut later = self.calls.iter().filter(|(behind, _)| *behind > at);
            wanted[at_byte] == byte || later.any(|(_, call)| call.has(name, at_byte, byte))
        };
        found.keys().eq(state.keys())
            && found.iter().all(|(name, (mode, bytes))| {
                let (wanted_mode, wanted) = &state[name];
                mode == wanted_mode
                    && bytes.len() == wanted.len()
                    && bytes.iter().enumerate().all(|(at, byte)| is_of(name, wanted, at, *byte))
            })
    }

    /// Opens an image, which must have all of some batches, and nothing of the others.
    async fn check(
        &self,
        env: &Env,
        image: &CrashImage,
        (devices, contents): (&[DeviceRef], Arc<SimContents>),
    ) -> u64 {
        let volume = self.rig.open(env, devices).await.with(Some(contents));
        check(env, &volume, image, How { data: true, ..How::default() }).await;
        let fs = volume.files(env).await;
        let number = position(&fs, self.session).await;
        let least = image.acknowledged().max().unwrap_or(0) as usize;
        let found = see(&fs).await;
        let mut candidates = (least..self.states.len()).filter(|at| self.states[*at].0 == number);
        let is_right = candidates.any(|at| self.is_state(&found, at));
        let told = || {
            let near =
                self.states.iter().enumerate().filter(|(_, (it, _))| it.abs_diff(number) < 2);
            near.map(|(at, (batch, state))| {
                format!("\n  state {at} of batch {batch}: {}", differences(&found, state))
            })
            .collect::<String>()
        };
        if !is_right {
            eprintln!("{}", told());
        }
        assert!(is_right, "batch {number}, state {least} or later: {}", image.describe());
        fs.close().await.unwrap();
        number
    }
}

/// Nothing is wrong but what waits to be removed.
async fn check(env: &Env, volume: &Volume, image: &CrashImage, how: How) {
    let mut report = volume.check(env, how).await;
    report.findings.retain(|finding| {
        let damage = &finding.damage;
        !matches!(damage, Damage::OrphanedContents { .. } | Damage::ContentsBehind { .. })
    });
    assert!(report.is_clean(), "{}: {:#?}", image.describe(), report.findings);
}

async fn crashes(env: &Env, rig: Rig, tally: &mut Tally) {
    let history = History::new(env, rig).await;
    let mut rng = env.rng();
    let policy = Policy { prefixes: 1, missing: 1, torn: 1, ..Policy::sampled(1) };
    let span = history.begun..=history.recorder.position();
    let points = (0..12).map(|_| rng.random_range(span.clone())).collect();
    for image in history.recorder.images(&mut rng, &policy.at(Points::At(points))) {
        let left = history.contents.after_crash(image.point(), &mut rng);
        let (recorder, devices) = Recorder::from_image(env, LATENCY, &image);
        let contents = left.recorded_copy(&recorder, LATENCY);
        if rng.random_bool(0.3) {
            // A repair takes nothing away that the batch needs.
            let volume = rig.open(env, &devices).await.with(Some(contents.clone()));
            let how = How { repair: true, ..How::default() };
            volume.check(env, how).await;
        }
        let has_redirected = contents.list().await.unwrap().contains_key(&ASIDE);
        let of = (&devices[..], contents.clone());
        let number = history.check(env, &image, of).await;
        tally.images += 1;
        tally.redirected += u64::from(has_redirected);
        if !tally.images.is_multiple_of(3) {
            continue;
        }
        // The opening is cut short, too.
        let policy = Policy { points: Points::Sampled(2), ..Policy::sampled(1) };
        for again in recorder.images(&mut rng, &policy) {
            let left = contents.after_crash(again.point(), &mut rng);
            let found = history.check(env, &again, (&again.devices, left)).await;
            assert!(found <= number, "{found} > {number}: {}", again.describe());
            tally.recoveries += 1;
        }
    }
}

#[test]
fn a_crash_leaves_batches_whole_or_not_at_all() {
    let mut tally = Tally::default();
    for seed in campaign::seeds(8) {
        let rig = match seed % 2 {
            0 => Rig::chain(seed / 2),
            _ => Rig::in_place(&[Mode::Ordered], seed / 2),
        };
        let mut so_far = std::mem::take(&mut tally);
        tally = run(seed, |env| async move {
            crashes(&env, rig, &mut so_far).await;
            so_far
        });
    }
    println!("{tally:?}");
    assert!(tally.images > 150 && tally.redirected > 60 && tally.recoveries > 300, "{tally:?}");
}
