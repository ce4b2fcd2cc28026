//! A log that is opened with its records kept: what is found after crashes, and what never is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use thalweg_env::Env;
use thalweg_sim::content::Content;
use thalweg_sim::crash::Policy;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_sim::scribble::reseal;
use thalweg_store::device::{DeviceRef, Geometry, MemoryDevice, Purpose};
use thalweg_store::journal::format::{
    COPIES, COPY, FORMAT_ONE_IN_FLIGHT, FORMAT_VERSION, MAX_EPOCHS, RING,
};
use thalweg_store::journal::log::{FoundRecord, Log, LogRecord, LogRecovery, RecordPlace, Scanned};
use thalweg_store::journal::{End, JournalError, Lost, Note};

use crate::journal_support::{ID, OWNER, scribble_at};

pub(crate) const GEOMETRY: Geometry = Geometry { size: 300 << 10, sector: 512 };
/// Where fields of a superblock lie.
const FORMAT: u64 = 8;
const EPOCH: u64 = 72;
const OLDEST_EPOCH: u64 = 104;
const KEPT_BEFORE: u64 = 112;

pub(crate) async fn open(env: &Env, device: &DeviceRef) -> (LogRecovery, Scanned<FoundRecord>) {
    LogRecovery::open(env, device.clone(), OWNER, true, Some).await.unwrap()
}

pub(crate) async fn created(env: &Env, device: &DeviceRef, in_flight: usize) -> Log {
    Log::create(device, ID, OWNER).await.unwrap();
    open(env, device).await.0.begin(in_flight).await.unwrap()
}

async fn kept(env: &Env, device: &DeviceRef) -> Log {
    open(env, device).await.0.keep(2).await.unwrap()
}

fn small(stamp: u64) -> LogRecord {
    let body = vec![Bytes::from(vec![stamp as u8; 300])];
    LogRecord { stamp, header: stamp.to_le_bytes().to_vec(), body, blocks: Vec::new() }
}

pub(crate) fn is_same(found: &FoundRecord, record: &LogRecord) -> bool {
    (found.stamp, &found.header[..]) == (record.stamp, &record.header[..])
        && found.body == record.body.concat()
}

fn stamps(scanned: &Scanned<FoundRecord>) -> Vec<u64> {
    scanned.records.iter().map(|found| found.stamp).collect()
}

/// A place on the device of a ring that has not wrapped.
fn on_device(place: RecordPlace) -> u64 {
    RING + place.offset
}

/// Appends 1 and 2; then 3 and 4 at once, of which a crash leaves the latter alone.
async fn stale_fourth(env: &Env, device: &DeviceRef) -> (RecordPlace, Bytes) {
    let log = created(env, device, 2).await;
    for stamp in 1..=2 {
        log.append(&small(stamp)).await.unwrap();
    }
    let (three, four) = (small(3), small(4));
    let (three, four) = futures::future::join(log.append(&three), log.append(&four)).await;
    let (three, four) = (three.unwrap().place, four.unwrap().place);
    drop(log);
    let zeros = Bytes::from(vec![0; 512]);
    device.write(on_device(three), vec![zeros], Purpose::Journal).await.unwrap();
    let stale = device.read(on_device(four), 512, Purpose::Journal).await.unwrap();
    let (_, scanned) = open(env, device).await;
    assert_eq!((stamps(&scanned), scanned.end), (vec![1, 2], End::Clean));
    (four, stale)
}

fn recorded(env: &Env) -> DeviceRef {
    Recorder::with_latency(env, Duration::from_micros(300)).device("log", GEOMETRY)
}

#[test]
fn a_stale_record_never_follows_a_new_one() {
    run(1, |env| async move {
        let device = recorded(&env);
        let (four, stale) = stale_fourth(&env, &device).await;
        let log = kept(&env, &device).await;
        let third = log.append(&small(33)).await.unwrap();
        drop(log);
        assert_eq!(third.place.offset + third.bytes, four.offset);
        let there = device.read(on_device(four), 512, Purpose::Journal).await.unwrap();
        assert!(there == stale, "the old fourth is where the new one would be");
        for _ in 0..3 {
            let (opened, scanned) = open(&env, &device).await;
            assert_eq!((stamps(&scanned), scanned.end), (vec![1, 2, 33], End::Clean));
            drop(opened.keep(2).await.unwrap());
        }
        let log = kept(&env, &device).await;
        assert_eq!(log.append(&small(44)).await.unwrap().place, four);
        drop(log);
        let (opened, scanned) = open(&env, &device).await;
        assert_eq!(stamps(&scanned), [1, 2, 33, 44]);
        let epochs: Vec<u64> = scanned.records.iter().map(|found| found.epoch).collect();
        assert_eq!(epochs, [2, 2, 3, 7]);
        drop(opened.keep(2).await.unwrap());
    });
}

/// Damage that brings an old record back is damage, although its number and place are right.
#[test]
fn epochs_do_not_fall_among_kept_records() {
    run(2, |env| async move {
        let device = recorded(&env);
        let (four, stale) = stale_fourth(&env, &device).await;
        let log = kept(&env, &device).await;
        for stamp in [33, 44, 55] {
            log.append(&small(stamp)).await.unwrap();
        }
        drop(log);
        drop(kept(&env, &device).await);
        assert_eq!(stamps(&open(&env, &device).await.1), [1, 2, 33, 44, 55]);
        device.write(on_device(four), vec![stale], Purpose::Journal).await.unwrap();
        let (opened, scanned) = open(&env, &device).await;
        let rotten = End::Rotten { sequence: 4, later: 5 };
        assert_eq!((stamps(&scanned), scanned.end), (vec![1, 2, 33], rotten));
        assert!(matches!(
            opened.keep(2).await,
            Err(JournalError::Rotten { sequence: 4, later: 5, .. })
        ));
    });
}

/// The oldest record has the epoch that the superblock names, and no kept one has the current epoch.
#[test]
fn kept_records_have_the_epochs_that_the_superblock_names() {
    run(3, |env| async move {
        let device = recorded(&env);
        let log = created(&env, &device, 1).await;
        log.append(&small(1)).await.unwrap();
        drop(log);
        drop(kept(&env, &device).await);
        let original = superblocks(&device).await;
        for oldest in [1, 2] {
            set_field(&device, OLDEST_EPOCH, oldest).await;
            let (_, scanned) = open(&env, &device).await;
            let expected = if oldest == 2 { vec![1] } else { vec![] };
            assert_eq!(stamps(&scanned), expected);
            assert_eq!(scanned.end == End::Clean, oldest == 2);
            device.write(0, vec![original.clone()], Purpose::Journal).await.unwrap();
        }
        // A record of the current epoch whose number is among the kept ones.
        let log = kept(&env, &device).await;
        log.append(&small(2)).await.unwrap();
        drop(log);
        set_field(&device, KEPT_BEFORE, 3).await;
        let (_, scanned) = open(&env, &device).await;
        assert_eq!(scanned.end, End::Rotten { sequence: 2, later: 2 });
    });
}

/// What a process has written and not flushed is durable before the superblock says so.
#[test]
fn records_are_durable_before_they_are_kept() {
    run(4, |env| async move {
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let device = recorder.device("log", GEOMETRY);
        drop(created(&env, &device, 1).await);
        // A process that ended before it flushed.
        let opened = LogRecovery::open(&env, device.clone(), OWNER, false, Some).await.unwrap();
        let log = opened.0.begin(1).await.unwrap();
        device.flush(Purpose::Journal).await.unwrap();
        for stamp in 1..=5 {
            log.append(&small(stamp)).await.unwrap();
        }
        drop(log);
        let begun = recorder.position();
        drop(kept(&env, &device).await);
        recorder.mark(1);
        let (mut rng, mut lost) = (env.rng(), 0);
        for image in recorder.images(&mut rng, &Policy::thorough()) {
            if image.point() < begun {
                continue;
            }
            let (_, scanned) = open(&env, &image.devices[0]).await;
            let superblocks = superblocks(&image.devices[0]).await;
            let mut copies = superblocks.chunks(COPY as usize);
            let is_kept = copies.any(|copy| copy[FORMAT as usize] == FORMAT_VERSION as u8);
            let is_whole = (scanned.records.len(), scanned.end) == (5, End::Clean);
            assert!(is_whole || !is_kept, "{:?}: {}", scanned.end, image.describe());
            assert!(is_kept || image.acknowledged().next().is_none(), "{}", image.describe());
            lost += usize::from(scanned.records.len() < 5);
        }
        assert!(lost > 0, "nothing was volatile");
    });
}

#[test]
fn records_are_read_by_their_place_until_they_are_released() {
    run(5, |env| async move {
        let device = recorded(&env);
        let log = created(&env, &device, 2).await;
        let mut places = Vec::new();
        for stamp in 1..=6 {
            places.push(log.append(&small(stamp)).await.unwrap().place);
        }
        drop(log);
        // The scan keeps the index alone.
        let decode = |found: FoundRecord| Some((found.stamp, found.place()));
        let opened = LogRecovery::open(&env, device.clone(), OWNER, true, decode).await;
        let (opened, scanned) = opened.unwrap();
        let index: Vec<(u64, RecordPlace)> = (1..).zip(places.iter().copied()).collect();
        assert_eq!(scanned.records, index);
        for (stamp, place) in index {
            assert!(is_same(&opened.read(place).await.unwrap(), &small(stamp)));
        }
        let log = opened.keep(2).await.unwrap();
        places.push(log.append(&small(7)).await.unwrap().place);
        log.release(3);
        for (stamp, place) in (1..).zip(&places) {
            match log.read(*place).await {
                Ok(found) => assert!(stamp >= 3 && is_same(&found, &small(stamp))),
                Err(JournalError::Released { sequence }) => {
                    assert!(stamp == sequence && stamp < 3);
                }
                Err(error) => panic!("{error}"),
            }
        }
        for beyond in
            [RecordPlace { sequence: 8, ..places[6] }, RecordPlace { offset: 512, ..places[5] }]
        {
            assert!(matches!(log.read(beyond).await, Err(JournalError::Released { .. })));
        }
        scribble_at(&device, on_device(places[4]) + 60, 1).await;
        let error = log.read(places[4]).await.unwrap_err();
        assert!(matches!(error, JournalError::Damaged { sequence: 5, .. }), "{error}");
    });
}

/// The tail goes over records of several epochs, and the superblock follows it.
#[test]
fn a_tail_that_moves_takes_the_oldest_epoch_along() {
    run(6, |env| async move {
        let device = recorded(&env);
        drop(created(&env, &device, 1).await);
        for stamp in 1..=4 {
            let log = kept(&env, &device).await;
            log.append(&small(stamp)).await.unwrap();
        }
        for released in 2..=5 {
            let log = kept(&env, &device).await;
            log.release(released);
            log.forget().await.unwrap();
            drop(log);
            let (_, scanned) = open(&env, &device).await;
            assert_eq!(stamps(&scanned), (released..=4).collect::<Vec<_>>());
            assert_eq!(scanned.end, End::Clean);
        }
        // A log that has been cleared keeps its format.
        drop(open(&env, &device).await.0.begin(1).await.unwrap());
        let format = superblocks(&device).await.slice(FORMAT as usize..12);
        assert_eq!(format[..], FORMAT_VERSION.to_le_bytes());
    });
}

/// Either copy of the superblock leads to every record that was appended.
#[test]
fn a_rotten_superblock_hides_no_record_of_a_later_opening() {
    for copy in [0, COPY] {
        run(10, |env| async move {
            let device = recorded(&env);
            drop(created(&env, &device, 1).await);
            for stamp in 1..=3 {
                let log = kept(&env, &device).await;
                log.append(&small(stamp)).await.unwrap();
                drop(log);
                scribble_at(&device, copy + 20, 4).await;
                let (_, scanned) = open(&env, &device).await;
                assert_eq!(stamps(&scanned), (1..=stamp).collect::<Vec<_>>());
                scribble_at(&device, copy + 20, 4).await;
            }
        });
    }
}

async fn superblocks(device: &DeviceRef) -> Bytes {
    device.read(0, RING as usize, Purpose::Journal).await.unwrap()
}

/// Changes a number in both superblocks, and seals them.
async fn set_field(device: &DeviceRef, at: u64, value: u64) {
    let mut content = Content::new();
    content.write(0, &superblocks(device).await);
    for copy in 0..COPIES {
        content.write(copy * COPY + at, &value.to_le_bytes());
        reseal(&mut content, copy * COPY);
    }
    let bytes = content.read(0, RING as usize);
    device.write(0, vec![bytes], Purpose::Journal).await.unwrap();
}

#[test]
fn the_superblock_has_the_kept_records() {
    run(7, |env| async move {
        let device: DeviceRef = Arc::new(MemoryDevice::new(300 << 10));
        let hex = async |device: &DeviceRef| {
            let bytes = superblocks(device).await;
            let hex: String = bytes[..128].iter().map(|byte| format!("{byte:02x}")).collect();
            // Without the checksum.
            format!("{} {}", &hex[..24], &hex[32..])
        };
        let log = created(&env, &device, 1).await;
        let body = "0000000000000000000000000000000000000009\
                    000000000000000000000000000000070090040000000000\
                    0002000000000000";
        let format_1 = "02000000000000000000000000000000010000000000000000000000000000000000000000000000\
                        00000000000000000000000000000000";
        let expected = format!("5448414c5745474a01000000 0200000000000000{}{format_1}", &body[8..]);
        assert_eq!(hex(&device).await, expected);
        assert_eq!(FORMAT_ONE_IN_FLIGHT, 1);
        log.append(&small(1)).await.unwrap();
        log.append(&small(2)).await.unwrap();
        log.release(2);
        log.forget().await.unwrap();
        drop(log);
        let log = kept(&env, &device).await;
        let format_3 = "03000000000000000002000000000000020000000000000001000000000000000200000000000000\
                        03000000000000000000000000000000";
        let expected = format!("5448414c5745474a03000000 0600000000000000{}{format_3}", &body[8..]);
        assert_eq!(hex(&device).await, expected);
        let third = log.append(&small(3)).await.unwrap();
        let sector = device.read(on_device(third.place), 512, Purpose::Journal).await.unwrap();
        assert_eq!(sector[36..40], [0, 0, 0, 0x80], "it says that older epochs may count");
    });
}

#[test]
fn a_log_that_keeps_records_is_not_rebuilt_from_them() {
    run(8, |env| async move {
        for (appended, is_cleared) in [(0, false), (1, false), (1, true)] {
            let device = recorded(&env);
            let log = created(&env, &device, 1).await;
            log.append(&small(1)).await.unwrap();
            drop(log);
            let mut note = Note { epoch: 2, first: 1, size: (GEOMETRY.size - RING) / 512 * 512 };
            // More openings than the user of the log has noted.
            for _ in 0..3 {
                drop(kept(&env, &device).await);
            }
            let log = kept(&env, &device).await;
            for stamp in 0..appended {
                log.append(&small(2 + stamp)).await.unwrap();
            }
            if is_cleared {
                note = log.note_after_clear().await;
                log.clear().await.unwrap();
            }
            let zeros = Bytes::from(vec![0; RING as usize]);
            device.write(0, vec![zeros], Purpose::Journal).await.unwrap();
            let last_epoch = note.epoch;
            let lost = Lost { id: ID, owner: OWNER, note, last_epoch, stamp: 0, is_here: true };
            match LogRecovery::open_lost(&env, device.clone(), &lost, true, Some).await {
                Ok((opened, scanned, 0)) => {
                    assert_eq!(stamps(&scanned), if is_cleared { vec![] } else { vec![1] });
                    assert!(appended == 0 || is_cleared);
                    // It can be kept again.
                    drop(opened.keep(1).await.unwrap());
                    assert_eq!(open(&env, &device).await.1.records.len(), usize::from(!is_cleared));
                }
                Err(JournalError::Invalid(why)) => {
                    assert!(appended == 1 && !is_cleared && why.contains("kept"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_record_stays_for_a_bounded_number_of_openings() {
    run(9, |env| async move {
        let device = recorded(&env);
        let log = created(&env, &device, 1).await;
        log.append(&small(1)).await.unwrap();
        drop(log);
        drop(kept(&env, &device).await);
        set_field(&device, EPOCH, 2 + MAX_EPOCHS - 1).await;
        drop(kept(&env, &device).await);
        let (opened, scanned) = open(&env, &device).await;
        assert_eq!((stamps(&scanned), scanned.end), (vec![1], End::Clean));
        assert!(matches!(opened.keep(1).await, Err(JournalError::Invalid(_))));
        set_field(&device, EPOCH, 2 + MAX_EPOCHS + 1).await;
        let opened = LogRecovery::open(&env, device.clone(), OWNER, true, Some).await;
        assert!(matches!(opened, Err(JournalError::Invalid(_))));
    });
}

/// A superblock with any numbers and a right checksum: the log is refused, or it can be opened, used and opened again.
fn any_superblock(format: u32, numbers: [u64; 7], shift: usize) {
    run(1, |env| async move {
        let content = {
            let device: DeviceRef = Arc::new(RamDisk::new("log", GEOMETRY));
            let log = created(&env, &device, 1).await;
            for stamp in 1..=4 {
                log.append(&small(stamp)).await.unwrap();
            }
            drop(log);
            drop(kept(&env, &device).await);
            let mut content = Content::new();
            content.write(0, &device.read(0, 64 << 10, Purpose::Journal).await.unwrap());
            content
        };
        let mut content = content;
        let fields = [16, EPOCH, EPOCH + 8, EPOCH + 16, EPOCH + 24, OLDEST_EPOCH, KEPT_BEFORE];
        for copy in 0..COPIES {
            content.write(copy * COPY + FORMAT, &format.to_le_bytes());
            for (nth, (at, number)) in fields.into_iter().zip(numbers).enumerate() {
                // Some fields stay as they are, so that an opening comes further.
                if nth % 3 != shift % 3 {
                    content.write(copy * COPY + at, &number.to_le_bytes());
                }
            }
            reseal(&mut content, copy * COPY);
        }
        let device: DeviceRef = Arc::new(RamDisk::with_content("log", GEOMETRY, content));
        let opened = LogRecovery::open(&env, device.clone(), OWNER, true, Some).await;
        let Ok((opened, scanned)) = opened else { return };
        let Ok(log) = opened.keep(2).await else { return };
        log.append(&small(9)).await.unwrap();
        drop(log);
        let (_, again) = open(&env, &device).await;
        // A forged epoch may come back, with what else it had.
        assert!(stamps(&again).starts_with(&[stamps(&scanned), vec![9]].concat()));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_superblock_of_any_numbers_is_decoded_or_refused(
        format in 0..5_u32,
        numbers in prop::array::uniform7(prop_oneof![0..8_u64, (0..8_u64).prop_map(|it| it * 512), any::<u64>()]),
        shift in 0..3_usize,
    ) {
        any_superblock(format, numbers, shift);
    }
}
