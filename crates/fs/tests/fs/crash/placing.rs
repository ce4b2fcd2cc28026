//! Redirected bytes are placed right behind their batch: a crash finds nothing of a batch that it has undone in a file, and nothing old over
//! what a client that reaches contents itself has written since. The cost of placing is counted, too.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::local::LocalFs;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::{self, JournalPosition, RecordedCall};
use thalweg_fs::{
    Contents, Filesystem, Ino, NewNode, Node, SessionTable, Timestamp, WriteAt, WriteHow,
};
use thalweg_sim::contents::{STRIPE, SimContents};
use thalweg_sim::crash::{Points, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::run;
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::Mode;

use super::rig::{Rig, Volume};
use crate::support::*;

const LATENCY: Duration = Duration::from_micros(300);
/// Bytes of a file, and of its pieces that a batch replaces.
const LEN: usize = 3 * STRIPE as usize;
const PIECE: usize = 200;
/// Longer than redirected bytes wait to be placed.
const STILL: Duration = Duration::from_secs(75);

/// What has a file's bytes placed behind their batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// A call that writes these bytes of it.
    Write,
    /// A read of a file in many pieces.
    Read,
    /// Clients reach contents themselves, and one of them writes these bytes.
    Direct,
}

/// What a call or a client that reaches contents itself writes.
const WRITTEN: std::ops::Range<usize> = 900..910;

struct Files {
    recorder: Recorder,
    contents: Arc<SimContents>,
    devices: Vec<DeviceRef>,
    _volume: Volume,
    fs: LocalFs,
    session: u64,
    made: Vec<Ino>,
}

impl Files {
    /// With so many files, which have bytes of ones.
    async fn new(env: &Env, rig: &Rig, count: u64) -> Files {
        let recorder = Recorder::with_latency(env, LATENCY);
        let devices = rig.devices(|name, geometry| recorder.device(name, geometry));
        let contents = SimContents::recorded(env, &recorder, LATENCY);
        let volume = rig.make_external(env, &devices, contents.clone()).await;
        let fs = volume.files(env).await;
        let session = fs.begin_session("a client".into()).await.unwrap();
        let made = SessionTable::reserve_numbers(&fs, count).await.unwrap().map(Ino).collect();
        let files = Files { recorder, contents, devices, _volume: volume, fs, session, made };
        let mut first = Vec::new();
        for ino in &files.made {
            let new = NewNode { node: Node::File, mode: 0o600, umask: 0, uid: 0, gid: 0 };
            let (parent, name, number) = (ROOT, format!("f{}", ino.0).into(), *ino);
            first.push(MutationKind::Create { parent, name, new, number });
            first.push(write_of(*ino, 0, 1, LEN));
        }
        files.fs.apply(&timed(first), &[], JournalPosition::default()).await.unwrap();
        files.fs.sync_all().await.unwrap();
        files
    }

    /// A batch of a client with a journal.
    async fn batch(&self, kinds: Vec<MutationKind>) {
        let call = RecordedCall { session: self.session, slot: 0, number: 1, before: None };
        let recording = self.fs.recording(Arc::new(session_table::Recorder::new(call)));
        let end = JournalPosition { position: 10, hash: 7 };
        recording.session_table().unwrap().apply(&timed(kinds), &[], end).await.unwrap();
    }

    /// Requests of all devices to make writes durable.
    fn flushes(&self) -> u64 {
        self.devices.iter().map(|device| device.tallies().total().flushes).sum()
    }

    /// Whether bytes of files are redirected.
    async fn has_redirected(&self) -> bool {
        self.contents.list().await.unwrap().contains_key(&ASIDE)
    }
}

/// The file with redirected bytes.
const ASIDE: Ino = Ino(1 << 63);

fn write_of(ino: Ino, at: usize, byte: u8, len: usize) -> MutationKind {
    let data = vec![byte; len].into();
    MutationKind::Write { ino, offset: at as u64, data, clear_suid: false }
}

/// All pieces of a file but every second one.
fn pieces_of(ino: Ino) -> impl Iterator<Item = MutationKind> {
    (0..LEN - PIECE).step_by(2 * PIECE).map(move |at| write_of(ino, at, 2, PIECE))
}

fn timed(kinds: Vec<MutationKind>) -> Vec<Mutation> {
    kinds.into_iter().map(|kind| Mutation { time: Timestamp::default(), kind }).collect()
}

/// A file after a batch, or before it.
fn expected(has_batch: bool) -> Vec<u8> {
    let is_written =
        |at: usize| has_batch && (at / PIECE).is_multiple_of(2) && at / PIECE * PIECE < LEN - PIECE;
    (0..LEN).map(|at| if is_written(at) { 2 } else { 1 }).collect()
}

/// How many images were checked, and how many had the batch.
async fn crashes(env: &Env, rig: &Rig, cause: Cause) -> (u64, u64) {
    let files = Files::new(env, rig, 1).await;
    let (fs, ino) = (&files.fs, files.made[0]);
    if cause == Cause::Direct {
        let direct = fs.session_table().unwrap().direct().unwrap();
        direct.admit(files.session, "a client's").await.unwrap();
    }
    let begun = files.recorder.position();
    files.batch(pieces_of(ino).collect()).await;
    let bytes = vec![vec![3; WRITTEN.len()].into()];
    let at = WRITTEN.start as u64;
    match cause {
        Cause::Write => {
            fs.write(ino, WriteAt::Offset(at), bytes, WriteHow::default()).await.unwrap();
        }
        Cause::Read => assert_eq!(content(fs, ino).await, expected(true)),
        Cause::Direct => {
            assert_eq!(files.contents.bytes_of(ino), expected(true), "it finds the batch");
            files.contents.write(ino, at, &bytes).await.unwrap();
            // It was told that this is durable.
            files.recorder.mark(1);
            // Everything else is what it was, for a while.
            env.sleep(Duration::from_millis(2)).await;
        }
    }
    let mut rng = env.rng();
    let points = (begun..=files.recorder.position()).collect();
    let policy =
        Policy { prefixes: 1, missing: 0, subsets: 1, torn: 0, shuffled: 0, ..Policy::sampled(1) };
    let (mut images, mut with_batch) = (0, 0);
    for image in files.recorder.images(&mut rng, &policy.at(Points::At(points))) {
        let left = files.contents.after_crash(image.point(), &mut rng);
        let (_, devices) = Recorder::from_image(env, LATENCY, &image);
        let volume = rig.open(env, &devices).await.with(Some(left));
        let fs = volume.files(env).await;
        let sessions = fs.sessions().await.unwrap();
        let session = sessions.iter().find(|it| it.session == files.session).unwrap();
        let has_batch = !session.slots.is_empty();
        let mut found = content(&fs, ino).await;
        let told = image.describe();
        let written = found.splice(WRITTEN, expected(has_batch)[WRITTEN].to_vec());
        let written: Vec<u8> = written.collect();
        if image.acknowledged().next().is_some() {
            assert_eq!(
                written,
                vec![3; WRITTEN.len()],
                "an older byte lies over a later one: {told}"
            );
        }
        assert!(found == expected(has_batch), "{cause:?}: a batch in part: {told}");
        (images, with_batch) = (images + 1, with_batch + u64::from(has_batch));
        fs.close().await.unwrap();
    }
    (images, with_batch)
}

fn crash_each(cause: Cause) {
    for seed in 0..2 {
        let rig = match seed {
            0 => Rig::chain(0),
            _ => Rig::in_place(&[Mode::Ordered], 0),
        };
        let (images, with_batch) =
            run(seed, move |env| async move { crashes(&env, &rig, cause).await });
        println!("{cause:?}: {images} images, {with_batch} with the batch");
        assert!(0 < with_batch && with_batch < images);
    }
}

#[test]
fn what_is_placed_behind_a_batch_is_of_a_durable_one() {
    crash_each(Cause::Write);
    crash_each(Cause::Read);
}

#[test]
fn what_is_placed_at_once_is_never_placed_again() {
    crash_each(Cause::Direct);
}

/// One sync for the bytes of 256 files, and no more of them than for those of one.
#[test]
fn placing_bytes_of_many_files_takes_one_sync() {
    let flushes = |count: u64| {
        run(1, move |env| async move {
            let files = Files::new(&env, &Rig::chain(0), count).await;
            files.batch(files.made.iter().map(|ino| write_of(*ino, 0, 2, LEN)).collect()).await;
            files.fs.sync_all().await.unwrap();
            let before = files.flushes();
            assert!(files.has_redirected().await);
            env.sleep(STILL).await;
            assert!(!files.has_redirected().await, "they are placed");
            for ino in &files.made {
                assert_eq!(files.contents.bytes_of(*ino), [2; LEN]);
            }
            files.flushes() - before
        })
    };
    let (one, many) = (flushes(1), flushes(256));
    println!("{one} flushes for a file, {many} for 256");
    assert!(many <= one + 4, "{many} flushes for 256 files, {one} for one");
}
