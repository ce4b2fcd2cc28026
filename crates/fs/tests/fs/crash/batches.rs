//! Batches of a client with a journal where contents are elsewhere: a crash leaves each of them whole or not at all.

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
    AttributeChange, Cookie, Filesystem, Ino, Kind, NewNode, Node, SessionTable, Timestamp,
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
/// Bytes of a write to one object, and of no other one.
const IN_ONE_OBJECT: usize = 300;
const BATCHES: u64 = 7;

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

fn bytes_of(state: &State) -> Vec<(&Bytes, &Vec<u8>)> {
    state.iter().map(|(name, (_, bytes))| (name, bytes)).collect()
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
    /// Of which an opening had to make a batch whole.
    redone: u64,
    recoveries: u64,
}

struct History {
    rig: Rig,
    recorder: Recorder,
    contents: Arc<SimContents>,
    session: u64,
    states: Vec<State>,
    /// Batches that only write bytes of one object.
    in_one_object: BTreeSet<u64>,
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
        let mut states = vec![maker.state.clone()];
        let mut in_one_object = BTreeSet::new();
        for number in 1..=BATCHES {
            let batch = maker.batch();
            if is_in_one_object(&batch, &states[states.len() - 1], &maker.files) {
                in_one_object.insert(number);
            }
            let call = RecordedCall { session, slot: 0, number, before: None };
            let recording = fs.recording(Arc::new(session_table::Recorder::new(call)));
            let table = recording.session_table().unwrap();
            let end = JournalPosition { position: 10 * number, hash: 7 * number };
            table.apply(&batch, &[], end).await.unwrap();
            states.push(maker.state.clone());
            if maker.rng.random_bool(0.3) {
                fs.sync_all().await.unwrap();
                recorder.mark(number);
            }
            if maker.rng.random_bool(0.3) {
                env.sleep(Duration::from_millis(maker.rng.random_range(0..900))).await;
            }
        }
        assert_eq!(see(&fs).await, maker.state);
        History { rig, recorder, contents, session, states, in_one_object, begun }
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
        let least = image.acknowledged().max().unwrap_or(0);
        assert!(number >= least, "{number} < {least}: {}", image.describe());
        let (found, mut wanted) = (see(&fs).await, &self.states[number as usize]);
        let mut wanted_in_part = false;
        // The bytes of one object are there before its times.
        let next = self.states.get(number as usize + 1);
        let next = next.filter(|_| self.in_one_object.contains(&(number + 1)));
        if let Some(next) = next.filter(|next| bytes_of(next) == bytes_of(&found)) {
            (wanted, wanted_in_part) = (next, true);
        }
        for (name, file) in wanted {
            let of = (number, name, image.describe());
            let other = found.get(name).unwrap_or_else(|| panic!("no file: {of:?}"));
            let differs = other.1.iter().zip(&file.1).position(|(one, other)| one != other);
            let sizes = (other.1.len(), file.1.len());
            let is_same = other.1 == file.1 && (other.0 == file.0 || wanted_in_part);
            assert!(is_same, "{of:?} differs from {differs:?} on, {sizes:?}");
        }
        assert_eq!(found.len(), wanted.len(), "{}", image.describe());
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
        let before = contents.changes();
        let of = (&devices[..], contents.clone());
        let number = history.check(env, &image, of).await;
        tally.images += 1;
        tally.redone += u64::from(contents.changes() > before);
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
    assert!(tally.images > 150 && tally.redone > 20 && tally.recoveries > 300, "{tally:?}");
}
