//! A log of opaque records by itself: no tags, no volume.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::crash::Policy;
use thalweg_sim::faults::Faulty;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::device::{DeviceRef, Geometry, MemoryDevice, Purpose};
use thalweg_store::journal::log::{Callers, FoundRecord, Log, LogRecord, LogRecovery, Scanned};
use thalweg_store::journal::{End, JournalError, Lost, Note};

use crate::journal_support::{ID, OWNER, bytes, scribble_at};

async fn open(env: &Env, device: &DeviceRef) -> (LogRecovery, Scanned<FoundRecord>) {
    LogRecovery::open(env, device.clone(), OWNER, true, Some).await.unwrap()
}

async fn created(env: &Env, device: &DeviceRef, in_flight: usize) -> Log {
    Log::create(device, ID, OWNER).await.unwrap();
    let (log, scanned) = open(env, device).await;
    assert!(scanned.records.is_empty() && scanned.end == End::Clean);
    log.begin(in_flight).await.unwrap()
}

fn record(rng: &mut Rng, stamp: u64) -> LogRecord {
    let mut some = |most: usize| {
        let len = rng.random_range(0..most);
        bytes(rng, len)
    };
    let (header, body) = (some(900).to_vec(), vec![some(700), some(3)]);
    let blocks = (0..rng.random_range(0..3)).map(|_| bytes(rng, BLOCK_SIZE)).collect();
    LogRecord { stamp, header, body, blocks }
}

/// Checks that a record came back whole.
async fn check(log: &LogRecovery, found: &FoundRecord, record: &LogRecord) {
    assert_eq!((found.stamp, &found.header[..]), (record.stamp, &record.header[..]));
    assert_eq!(found.body, record.body.concat());
    assert_eq!(found.blocks as usize, record.blocks.len());
    for (offset, block) in (found.blocks_at..).step_by(BLOCK_SIZE).zip(&record.blocks) {
        assert!(log.read_block(offset).await.unwrap() == block);
    }
}

#[test]
fn opaque_records_come_back_until_they_are_released() {
    run(1, |env| async move {
        let device: DeviceRef = Arc::new(MemoryDevice::new(300 << 10));
        let (mut log, mut rng) = (created(&env, &device, 1).await, env.rng());
        for round in 0..20 {
            let records: Vec<LogRecord> = (0..9).map(|stamp| record(&mut rng, stamp)).collect();
            let mut first = None;
            for record in &records {
                first.get_or_insert(log.append(record).await.unwrap().sequence);
            }
            let released = round % records.len();
            log.release(first.unwrap() + released as u64);
            log.forget().await.unwrap();
            drop(log);
            let (opened, scanned) = open(&env, &device).await;
            assert_eq!((scanned.records.len(), scanned.end), (9 - released, End::Clean));
            for (found, record) in scanned.records.iter().zip(&records[released..]) {
                check(&opened, found, record).await;
            }
            log = opened.begin(1).await.unwrap();
            assert_eq!(log.room(), log.size());
        }
    });
}

#[test]
fn a_record_that_its_user_does_not_understand_is_damaged() {
    run(2, |env| async move {
        let device: DeviceRef = Arc::new(MemoryDevice::new(300 << 10));
        let (log, mut rng) = (created(&env, &device, 1).await, env.rng());
        for stamp in 1..=5 {
            log.append(&record(&mut rng, stamp)).await.unwrap();
        }
        drop(log);
        for bad in 1..=5 {
            let decode = |record: FoundRecord| (record.stamp != bad).then_some(());
            let opened = LogRecovery::open(&env, device.clone(), OWNER, true, decode).await;
            let (_, scanned) = opened.unwrap();
            assert_eq!((scanned.records.len() as u64, scanned.stamp), (bad - 1, bad - 1));
            let rotten = End::Rotten { sequence: bad, later: bad + 1 };
            assert_eq!(scanned.end, if bad < 5 { rotten } else { End::Torn });
        }
    });
}

/// Writers that share records and commits, as a user of the log has them: each record holds all strings since the
/// one before.
struct Shared {
    log: Log,
    callers: Callers,
    strings: Mutex<Vec<Bytes>>,
    written: Mutex<u64>,
}

impl Shared {
    fn put(&self, version_of: impl FnOnce(u64) -> Bytes) -> u64 {
        let mut written = self.written.lock();
        *written += 1;
        self.strings.lock().push(version_of(*written));
        *written
    }

    async fn commit(self: Arc<Shared>, env: Env) {
        let mut alarm = env.alarm();
        loop {
            self.callers.asked().await;
            self.callers.gather(&env, &mut alarm).await;
            let begun = env.now();
            let (stamp, body) = {
                let written = self.written.lock();
                (*written, std::mem::take(&mut *self.strings.lock()))
            };
            let header = body.iter().map(|string| string.len() as u8).collect();
            let record = LogRecord { stamp, header, body, blocks: Vec::new() };
            self.log.append(&record).await.unwrap();
            self.callers.advance(stamp);
            self.callers.ended(env.now().since(begun));
        }
    }
}

#[test]
fn callers_share_commits_and_a_crash_leaves_a_prefix() {
    const WRITERS: u64 = 16;
    const PUTS: u64 = 20;
    run(3, |env| async move {
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let device = recorder.device("log", Geometry { size: 300 << 10, sector: 512 });
        let shared = Arc::new(Shared {
            log: created(&env, &device, 1).await,
            callers: Callers::new(0),
            strings: Mutex::default(),
            written: Mutex::default(),
        });
        recorder.mark(0);
        let start = recorder.position();
        let before = device.tallies().total().flushes;
        let commits = shared.clone().commit(env.clone());
        let _commits = env.spawn_pushed(shared.callers.task(), commits);
        let writer = || {
            let (env, shared, recorder) = (env.clone(), shared.clone(), recorder.clone());
            async move {
                let mut rng = env.rng();
                for _ in 0..PUTS {
                    let version = shared.put(|version| version.to_be_bytes().to_vec().into());
                    shared.callers.wait(version, env.now(), || Ok::<_, ()>(())).await.unwrap();
                    recorder.mark(version);
                    env.sleep(Duration::from_micros(rng.random_range(0..100))).await;
                }
            }
        };
        futures::future::join_all((0..WRITERS).map(|_| writer())).await;
        let flushes = device.tallies().total().flushes - before;
        assert!(flushes < WRITERS * PUTS / 4, "{flushes} flushes");
        let mut rng = env.rng();
        for image in recorder.images(&mut rng, &Policy::sampled(40)) {
            if image.point() < start {
                continue;
            }
            let acknowledged = image.acknowledged().max().unwrap_or(0);
            let (_, scanned) = open(&env, &image.devices[0]).await;
            assert!(!matches!(scanned.end, End::Rotten { .. }), "{}", image.describe());
            assert!(scanned.stamp >= acknowledged, "{}", image.describe());
            let strings: Vec<u8> =
                scanned.records.iter().flat_map(|record| record.body.to_vec()).collect();
            let expected: Vec<u8> = (1..=scanned.stamp).flat_map(u64::to_be_bytes).collect();
            assert!(strings == expected, "{}", image.describe());
        }
    });
}

/// Writers whose appends overlap, on a device that takes a while; returns what each number was.
async fn overlapping(
    env: &Env,
    log: &Log,
    writers: u64,
    appended: impl Fn(u64),
) -> BTreeMap<u64, LogRecord> {
    let records = Mutex::new(BTreeMap::new());
    let writer = || async {
        let mut rng = env.rng();
        for stamp in 0..12 {
            let record = record(&mut rng, stamp);
            let sequence = log.append(&record).await.unwrap().sequence;
            appended(sequence);
            records.lock().insert(sequence, record);
        }
    };
    futures::future::join_all((0..writers).map(|_| writer())).await;
    records.into_inner()
}

#[test]
fn an_append_is_written_while_the_one_before_is_flushed() {
    let span = |in_flight| {
        run(4, |env| async move {
            let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
            let device = recorder.device("log", Geometry { size: 1 << 20, sector: 512 });
            let log = created(&env, &device, in_flight).await;
            let (before, begun) = (device.tallies(), env.now());
            let count = overlapping(&env, &log, 3, |_| ()).await.len() as u64;
            let tally = device.tallies().since(&before).total();
            assert_eq!((tally.writes, tally.flushes), (count, count));
            env.now().since(begun)
        })
    };
    let (one, two) = (span(1), span(2));
    assert!(two < one * 4 / 5, "{two:?} with two in flight, {one:?} with one");
}

fn large(stamp: u64) -> LogRecord {
    let blocks = vec![Bytes::from(vec![stamp as u8; BLOCK_SIZE]); 8];
    LogRecord { stamp, header: Vec::new(), body: Vec::new(), blocks }
}

/// Only one of two appends at once gets the last room, and no record that is not released is overwritten.
#[test]
fn appends_at_once_do_not_share_room() {
    run(5, |env| async move {
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let device = recorder.device("log", Geometry { size: 300 << 10, sector: 512 });
        let log = created(&env, &device, 2).await;
        let needed = log.append(&large(0)).await.unwrap().bytes;
        let mut last = 0;
        while log.room() >= 2 * needed {
            last += 1;
            log.append(&large(last)).await.unwrap();
        }
        assert!(log.room() >= needed && last > 2);
        let (one, two) = (large(last + 1), large(last + 2));
        let (one, two) = futures::future::join(log.append(&one), log.append(&two)).await;
        assert!(one.is_ok(), "{one:?}");
        assert!(matches!(two, Err(JournalError::Full { .. })), "{two:?}");
        drop(log);
        let (opened, scanned) = open(&env, &device).await;
        assert_eq!(scanned.records.len() as u64, last + 2);
        for (stamp, found) in scanned.records.iter().enumerate() {
            check(&opened, found, &large(stamp as u64)).await;
        }
    });
}

/// The flush of a later append does not show that an earlier record is durable.
#[test]
fn an_append_fails_with_the_one_before_although_its_own_flush_succeeded() {
    run(6, |env| async move {
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let device = recorder.device("log", Geometry { size: 1 << 20, sector: 512 });
        let (device, faults) = Faulty::wrap(&env, device);
        let device: DeviceRef = device;
        let log = created(&env, &device, 2).await;
        faults.fail_flush_after(Duration::from_millis(5));
        let begun = env.now();
        let (one, two) = (large(0), large(1));
        let (one, two) = futures::future::join(log.append(&one), log.append(&two)).await;
        // Otherwise the second was not under way.
        assert!(env.now().since(begun) >= Duration::from_millis(5));
        assert!(matches!(one, Err(JournalError::Device(_))), "{one:?}");
        assert!(matches!(two, Err(JournalError::Poisoned(_))), "{two:?}");
    });
}

/// A new epoch may have come to the device although its superblock could not be made durable: a record of the old one would not
/// be found.
#[test]
fn a_log_that_could_not_be_cleared_takes_no_records() {
    for count in 1..=2 {
        run(7, |env| async move {
            let device: DeviceRef = Arc::new(MemoryDevice::new(1 << 20));
            let (device, faults) = Faulty::wrap(&env, device);
            let device: DeviceRef = device;
            let log = created(&env, &device, 2).await;
            log.append(&large(0)).await.unwrap();
            // That of the first copy fails, or that of the second one.
            faults.die_after(2 * count - 1);
            assert!(matches!(log.clear().await, Err(JournalError::Device(_))));
            faults.heal();
            let appended = log.append(&large(1)).await;
            drop(log);
            let (_, scanned) = open(&env, &device).await;
            let is_there = scanned.records.iter().any(|found| found.stamp == 1);
            assert!(appended.is_err() || is_there, "an acknowledged record is gone");
            assert!(matches!(appended, Err(JournalError::Poisoned(_))), "{appended:?}");
        });
    }
}

/// A crash leaves a prefix that holds everything acknowledged, with and without superblocks, although what was in
/// flight with the first incomplete record may be whole.
#[test]
fn a_crash_among_several_appends_leaves_a_prefix() {
    let mut beyond = 0;
    for seed in 0..2 {
        beyond += run(seed, |env| async move {
            let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
            let device = recorder.device("log", Geometry { size: 1 << 20, sector: 512 });
            let log = created(&env, &device, 2).await;
            recorder.mark(0);
            let start = recorder.position();
            let records = overlapping(&env, &log, 3, |sequence| recorder.mark(sequence)).await;
            let (mut rng, mut beyond) = (env.rng(), 0);
            for image in recorder.images(&mut rng, &Policy::thorough()) {
                if image.point() < start {
                    continue;
                }
                let acknowledged = image.acknowledged().max().unwrap_or(0);
                let device = &image.devices[0];
                let (opened, scanned) = open(&env, device).await;
                assert!(!matches!(scanned.end, End::Rotten { .. }), "{}", image.describe());
                let count = scanned.records.len() as u64;
                assert!(count >= acknowledged, "{count} < {acknowledged}: {}", image.describe());
                for (found, (sequence, record)) in scanned.records.iter().zip(&records) {
                    assert_eq!(found.sequence, *sequence);
                    check(&opened, found, record).await;
                }
                beyond += u64::from(is_in_ring(device, count + 2).await);
                let zeros = Bytes::from(vec![0; 8192]);
                device.write(0, vec![zeros], Purpose::Journal).await.unwrap();
                let note = Note { epoch: 2, first: 1, size: log.size() };
                let (last_epoch, stamp, is_here) = (2, 0, true);
                let lost = Lost { id: ID, owner: OWNER, note, last_epoch, stamp, is_here };
                let opened = LogRecovery::open_lost(&env, device.clone(), &lost, true, Some).await;
                let (_, found, missing) = opened.unwrap();
                assert_eq!((found.records.len() as u64, missing), (count, 0));
            }
            beyond
        });
    }
    assert!(beyond > 10, "no record was whole behind an incomplete one");
}

/// Whether the ring holds the beginning of a record.
async fn is_in_ring(device: &DeviceRef, sequence: u64) -> bool {
    let ring = device.read(8192, 512 << 10, Purpose::Journal).await.unwrap();
    ring.chunks(512)
        .any(|sector| sector.starts_with(b"TWjt") && sector[8..16] == sequence.to_le_bytes())
}

#[test]
fn rot_is_told_from_an_end_where_a_record_proves_it() {
    for victim in 1..=6 {
        run(5, |env| async move {
            let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
            let device = recorder.device("log", Geometry { size: 300 << 10, sector: 512 });
            let (log, mut rng) = (created(&env, &device, 2).await, env.rng());
            for stamp in 1..=4 {
                log.append(&record(&mut rng, stamp)).await.unwrap();
            }
            // Two more, of which the second is sent before the first is durable.
            let (fifth, sixth) = (record(&mut rng, 5), record(&mut rng, 6));
            let (fifth, sixth) = futures::join!(log.append(&fifth), log.append(&sixth));
            assert_eq!(sixth.unwrap().sequence, fifth.unwrap().sequence + 1);
            drop(log);
            let (_, scanned) = open(&env, &device).await;
            assert_eq!((scanned.records.len(), scanned.end), (6, End::Clean));
            scribble_at(&device, 8192 + scanned.records[victim - 1].offset + 44, 2).await;
            let (_, scanned) = open(&env, &device).await;
            assert_eq!(scanned.records.len(), victim - 1);
            let is_rotten = matches!(scanned.end, End::Rotten { .. });
            // The sixth says nothing of the fifth, and none follows the sixth.
            assert_eq!(is_rotten, victim < 5, "record {victim}: {:?}", scanned.end);
        });
    }
}
