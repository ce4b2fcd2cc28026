//! The redo journal: its content after an opening, after a crash, and from a damaged device.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::crash::Policy;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Lba};
use thalweg_store::device::{DeviceRef, Geometry, MemoryDevice, Purpose};
use thalweg_store::journal::{End, Journal, JournalError, Record, Update, Void};
use uuid::Uuid;

use crate::journal_support::*;

fn random_history(seed: u64, sector: u32) {
    run(seed, |env| async move {
        let geometry = Geometry { size: 300 << 10, sector };
        let device: DeviceRef = Arc::new(MemoryDevice::with_geometry("journal", geometry));
        let mut rng = env.rng();
        let mut journal = created(&env, &device).await;
        let (mut now, mut stamp) = (Blocks::new(), 0);
        // States after each transaction that is not released, beginning with the one before them.
        let mut states = vec![(0, now.clone())];
        for step in 0..600 {
            let before = now.clone();
            let record = transaction(&mut rng, stamp + 1, &mut now);
            match journal.append(&record).await {
                Ok(appended) => {
                    stamp += 1;
                    states.push((appended.sequence, now.clone()));
                }
                Err(JournalError::Full { .. }) => {
                    now = before;
                    let keep = rng.random_range(0..states.len());
                    states.drain(..keep);
                    journal.release(states[0].0 + 1);
                }
                Err(error) => panic!("{error}"),
            }
            if step % 40 == 39 {
                drop(journal);
                let (mut opened, replay) = open(&env, &device).await;
                assert_eq!(replay.end, End::Clean);
                assert!(replay.transactions as usize >= states.len() - 1);
                assert_eq!(replay.stamp, stamp);
                // The in-place state may be the released one, or any state after it.
                for (_, state) in &states {
                    let mut home = state.clone();
                    replayed(&opened, &replay, &mut home).await;
                    assert!(home == now, "seed {seed}, step {step}");
                }
                if rng.random_bool(0.5) {
                    // A failed opening changes nothing.
                    (opened, _) = open(&env, &device).await;
                }
                journal = opened.begin().await.unwrap();
                states = vec![(journal.next_sequence() - 1, now.clone())];
            }
        }
    });
}

#[test]
fn what_was_appended_comes_back() {
    for seed in 0..6 {
        random_history(seed, if seed % 2 == 0 { 512 } else { 4096 });
    }
}

#[test]
fn a_small_change_is_one_sector_and_one_flush() {
    run(1, |env| async move {
        let device: DeviceRef = Arc::new(MemoryDevice::new(1 << 20));
        let journal = created(&env, &device).await;
        let before = device.tallies();
        let change = |at, offset, len| Update::Bytes {
            at: Lba(at),
            offset,
            bytes: Bytes::from(vec![9; len]),
            fresh: false,
        };
        let updates = vec![change(40, 300, 128), change(1000, 2000, 8)];
        journal.append(&Record { stamp: 1, updates }).await.unwrap();
        let tally = device.tallies().since(&before).of(Purpose::Journal);
        assert_eq!((tally.writes, tally.write_bytes, tally.flushes), (1, 512, 1));
        let updates = (0..64).flat_map(|n| [change(n * 9, 512, 128), change(4000 + n / 14, 8, 8)]);
        let record = Record { stamp: 2, updates: updates.collect() };
        let appended = journal.append(&record).await.unwrap();
        assert!(appended.bytes <= 64 * 128 * 13 / 10, "{} bytes", appended.bytes);
    });
}

/// The commit order is a prefix: after any crash a state that was appended comes back, no older
/// than the acknowledged one.
#[test]
fn a_crash_leaves_a_prefix() {
    let mut torn = 0;
    for seed in 0..4 {
        torn += run(seed, |env| async move {
            let recorder = Recorder::with_latency(&env, Duration::from_micros(200));
            let sector = if seed % 2 == 0 { 512 } else { 4096 };
            let device = recorder.device("journal", Geometry { size: 300 << 10, sector });
            let mut rng = env.rng();
            let journal = created(&env, &device).await;
            let (mut now, mut states) = (Blocks::new(), Vec::new());
            let mut released = 0;
            states.push(now.clone());
            recorder.mark(0);
            let start = recorder.position();
            for stamp in 1..120_u64 {
                let record = transaction(&mut rng, stamp, &mut now);
                while let Err(error) = journal.append(&record).await {
                    assert!(matches!(error, JournalError::Full { .. }), "{error}");
                    released = (released + 5).min(stamp - 1);
                    recorder.mark(released << 32 | (stamp - 1));
                    journal.release(journal.next_sequence() - (stamp - 1 - released));
                }
                states.push(now.clone());
                recorder.mark(released << 32 | stamp);
            }
            let policy = Policy::sampled(60);
            let mut torn = 0;
            for image in recorder.images(&mut rng, &policy) {
                if image.point() < start {
                    continue;
                }
                let mark = image.acknowledged().next().unwrap();
                let (released, acknowledged) = (mark >> 32, mark & 0xffff_ffff);
                let (journal, replay) = open(&env, &image.devices[0]).await;
                assert!(!matches!(replay.end, End::Rotten { .. }), "{}", image.describe());
                torn += u64::from(replay.end == End::Torn);
                let last = replay.stamp;
                assert!(last >= acknowledged, "{last} < {acknowledged}: {}", image.describe());
                let mut home = states[released as usize].clone();
                replayed(&journal, &replay, &mut home).await;
                assert!(home == states[last as usize], "{}", image.describe());
            }
            torn
        });
    }
    assert!(torn > 10, "no crash came in the middle of a transaction");
}

/// Appends some transactions; returns their places.
async fn filled(env: &Env, device: &DeviceRef, count: u64) -> Vec<u64> {
    let journal = created(env, device).await;
    let mut places = vec![8192];
    let (mut rng, mut home) = (env.rng(), Blocks::new());
    for stamp in 0..count {
        let record = transaction(&mut rng, stamp, &mut home);
        let appended = journal.append(&record).await.unwrap();
        places.push(places.last().unwrap() + appended.bytes);
    }
    places
}

#[test]
fn a_rotten_middle_is_said_and_a_torn_end_is_not() {
    run(3, |env| async move {
        // The last place is in the length of a record's bytes: it seems to cover the next ones.
        let places = [(3, 2), (44, 2), (20, 2), (33, 1)];
        for (victim, (within, len)) in (0..20).flat_map(|n| places.map(|place| (n, place))) {
            let device: DeviceRef = Arc::new(MemoryDevice::new(1 << 20));
            let places = filled(&env, &device, 20).await;
            scribble_at(&device, places[victim] + within, len).await;
            let (_, replay) = open(&env, &device).await;
            assert_eq!(replay.transactions, victim as u64);
            match replay.end {
                End::Rotten { sequence, later } => {
                    assert!(victim < 19);
                    assert_eq!((sequence, later), (1 + victim as u64, 2 + victim as u64));
                }
                End::Torn | End::Clean => assert_eq!(victim, 19),
            }
        }
    });
}

#[test]
fn whose_a_journal_is_stands_in_it() {
    run(4, |env| async move {
        let device: DeviceRef = Arc::new(MemoryDevice::new(1 << 20));
        let opened = async |owner| Journal::<Lba>::open(&env, device.clone(), owner, true).await;
        assert!(matches!(opened(OWNER).await, Err(JournalError::NoJournal { .. })));
        created(&env, &device).await;
        let other = Uuid::from_u128(8);
        assert!(matches!(opened(other).await, Err(JournalError::Foreign { found: OWNER, .. })));
        // One copy of the superblock suffices.
        for copy in [0, 4096] {
            scribble_at(&device, copy + 20, 4).await;
            assert!(opened(OWNER).await.is_ok());
            scribble_at(&device, copy + 20, 4).await;
        }
        scribble_at(&device, 20, 4).await;
        scribble_at(&device, 4096 + 20, 4).await;
        assert!(matches!(opened(OWNER).await, Err(JournalError::NoJournal { .. })));
        let small: DeviceRef = Arc::new(MemoryDevice::new(64 << 10));
        let error = Journal::<Lba>::create(&small, ID, OWNER).await.unwrap_err();
        assert!(matches!(error, JournalError::Invalid(_)));
    });
}

/// Either copy of the superblock leads to every record that was appended, or reports that it cannot.
#[test]
fn a_rotten_superblock_hides_nothing() {
    for (copy, round) in [0, 4096].into_iter().flat_map(|copy| [(copy, 1), (copy, 2), (copy, 40)]) {
        run(8, |env| async move {
            let device: DeviceRef = Arc::new(MemoryDevice::new(300 << 10));
            let journal = created(&env, &device).await;
            let (mut rng, mut home) = (env.rng(), Blocks::new());
            for stamp in 1..=round * 10 {
                let record = transaction(&mut rng, stamp, &mut home);
                while let Err(error) = journal.append(&record).await {
                    assert!(matches!(error, JournalError::Full { .. }), "{error}");
                    journal.release(journal.next_sequence() - 2);
                }
            }
            drop(journal);
            scribble_at(&device, copy + 20, 4).await;
            let (_, replay) = open(&env, &device).await;
            let is_said = matches!(replay.end, End::Rotten { .. });
            assert!(replay.stamp == round * 10 || is_said, "{copy} {round}: {:?}", replay.end);
        });
    }
}

#[test]
fn a_transaction_that_is_too_large_is_refused() {
    run(5, |env| async move {
        let device: DeviceRef = Arc::new(MemoryDevice::new(512 << 10));
        let journal = created(&env, &device).await;
        let whole = |at| Update::Whole { at: Lba(at), content: Bytes::from(vec![1; BLOCK_SIZE]) };
        let record = |count| Record { stamp: 1, updates: (0..count).map(whole).collect() };
        let error = journal.append(&record(200)).await.unwrap_err();
        assert!(matches!(error, JournalError::TooLarge { .. }));
        journal.append(&record(100)).await.unwrap();
        let error = journal.append(&record(100)).await.unwrap_err();
        assert!(matches!(error, JournalError::Full { .. }));
        journal.release(2);
        journal.append(&record(100)).await.unwrap();
        drop(journal);
        let (_, replay) = open(&env, &device).await;
        assert_eq!((replay.transactions, replay.blocks.len()), (1, 100));
    });
}

/// A torn transaction and a later one written over it are never confused.
#[test]
fn what_lies_beyond_the_end_is_never_met_again() {
    run(6, |env| async move {
        let device: DeviceRef = Arc::new(MemoryDevice::new(1 << 20));
        let places = filled(&env, &device, 9).await;
        scribble_at(&device, places[5] + 44, 1).await;
        let (journal, replay) = open(&env, &device).await;
        assert!(matches!(replay.end, End::Rotten { sequence: 6, later: 7 }));
        let journal = journal.begin().await.unwrap();
        // It ends where the seventh begins.
        let updates = (0..).map(|at| Update::Bytes {
            at: Lba(at),
            offset: 0,
            bytes: Bytes::from(vec![2; 400]),
            fresh: false,
        });
        let mut count = 1;
        let len = places[6] - places[5];
        loop {
            let record = Record { stamp: 77, updates: updates.clone().take(count).collect() };
            let room = (40 + count * 406) as u64;
            if room.next_multiple_of(512) >= len {
                journal.append(&record).await.unwrap();
                break;
            }
            count += 1;
        }
        let (_, replay) = open(&env, &device).await;
        assert_eq!((replay.transactions, replay.stamp, replay.end), (1, 77, End::Clean));
    });
}

#[test]
fn the_layout_is_what_it_was() {
    run(7, |env| async move {
        let device: DeviceRef = Arc::new(MemoryDevice::new(1 << 20));
        let journal = created(&env, &device).await;
        let small = |at, offset, fresh| Update::Bytes {
            at: Lba(at),
            offset,
            bytes: Bytes::from_static(b"thalweg"),
            fresh,
        };
        let updates = vec![
            Update::Void(Void { at: Lba(90), count: 300, note: 1 }),
            small(5, 10, false),
            small(5, 400, false),
            small(700, 0, true),
        ];
        journal.append(&Record { stamp: 3, updates }).await.unwrap();
        let sector = device.read(8192, 512, Purpose::Journal).await.unwrap();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(&sector[..4], b"TWjt");
        assert_eq!(hex(&sector[8..24]), "01000000000000000300000000000000");
        assert_eq!(hex(&sector[28..40]), "140000001500000000000000");
        let tags = "02b401ab0201\
                    00a9010a06\
                    04ff0206\
                    08ee0a0006";
        assert_eq!(hex(&sector[40..60]), tags);
        assert_eq!(&sector[60..81], b"thalwegthalwegthalweg");
    });
}
