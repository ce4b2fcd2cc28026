//! A log on a mirror of two devices: what one device alone has after a crash, what is damaged on one of them, a device that is lost, and one that
//! comes back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::crash::Policy;
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::device::{Access, DeviceRef, Geometry, MemoryDevice, Purpose, SideState};
use thalweg_store::journal::End;
use thalweg_store::journal::log::{Log, LogRecord, LogRecovery};
use thalweg_store::pool::format::DATA_START;
use thalweg_store::pool::{DevicePair, NamedSide, PairError, lone_side};

use crate::journal_support::{ID, OWNER};
use crate::log_keep::{created, open};

const GEOMETRY: Geometry = Geometry { size: DATA_START + (300 << 10), sector: 512 };

fn record(stamp: u64, len: usize) -> LogRecord {
    let body = vec![Bytes::from(vec![stamp as u8; len])];
    LogRecord { stamp, header: stamp.to_le_bytes().to_vec(), body, blocks: Vec::new() }
}

fn present(devices: &[DeviceRef]) -> [NamedSide; 2] {
    [0, 1].map(|side| NamedSide::Present(devices[side].clone()))
}

/// One of the devices alone.
fn alone(devices: &[DeviceRef], side: usize) -> [NamedSide; 2] {
    let mut named = present(devices);
    named[1 - side] = NamedSide::Missing("the other one".to_owned());
    named
}

async fn pair(env: &Env, named: [NamedSide; 2]) -> Result<DevicePair, PairError> {
    DevicePair::open(env, named, Access::Exclusive).await
}

/// The stamps in a log, which its devices hold alike afterwards.
async fn settled(env: &Env, device: &DeviceRef) -> Vec<u64> {
    let (log, scanned) = open(env, device).await;
    assert!(matches!(scanned.end, End::Clean | End::Torn), "{:?}", scanned.end);
    log.settle().await.unwrap();
    scanned.records.iter().map(|record| record.stamp).collect()
}

/// The stamps that a device has alone.
async fn stamps_of(env: &Env, device: &DeviceRef) -> Vec<u64> {
    let side = lone_side(device).await.unwrap().unwrap();
    let (_, scanned) = open(env, &side).await;
    scanned.records.iter().map(|record| record.stamp).collect()
}

fn is_prefix_of_all(found: &[u64]) -> bool {
    let first = found.first().copied().unwrap_or(1);
    found.iter().copied().eq(first..first + found.len() as u64)
}

/// Appends records and releases some of them; the stamps of those that may be there, for each acknowledged one.
async fn append_some(log: &Log, recorder: Option<&Recorder>, rng: &mut Rng, count: u64) -> u64 {
    let mut acknowledged = 0;
    let mut sequences = Vec::new();
    for stamp in 1..=count {
        let appended = log.append(&record(stamp, rng.random_range(1..9_000))).await;
        let Ok(appended) = appended else { break };
        acknowledged = stamp;
        sequences.push(appended.sequence);
        if let Some(recorder) = recorder {
            recorder.mark(stamp);
        }
        // Room for the next ones; those that stay are what a recovery reads.
        if sequences.len() > 12 {
            let behind = sequences.drain(..6).next_back().unwrap();
            log.release(behind + 1);
        }
    }
    acknowledged
}

#[test]
fn a_power_cut_leaves_the_same_on_both_devices_once_it_is_read() {
    let mut differed = 0;
    let mut checked = 0;
    for seed in 0..4 {
        let recorder = run(seed, |env| async move {
            let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
            let devices = ["a", "b"].map(|name| recorder.device(name, GEOMETRY));
            let pair = DevicePair::create(&env, devices).await.unwrap();
            let log = created(&env, &pair.device(), 1).await;
            recorder.mark(0);
            let mut rng = env.rng();
            append_some(&log, Some(&recorder), &mut rng, 60).await;
            recorder
        });
        let (images, unlike) = run(seed, |env| async move {
            let mut rng = env.rng();
            let (mut images, mut unlike) = (0, 0);
            for image in recorder.images(&mut rng, &Policy::sampled(60)) {
                let Some(acknowledged) = image.acknowledged().next() else { continue };
                let devices = image.devices.clone();
                let before =
                    [stamps_of(&env, &devices[0]).await, stamps_of(&env, &devices[1]).await];
                unlike += usize::from(before[0] != before[1]);
                // What was acknowledged is on each of them.
                for found in &before {
                    let last = found.last().copied().unwrap_or_default();
                    assert!(acknowledged == 0 || last >= acknowledged, "{}", image.describe());
                }
                let both = pair(&env, present(&devices)).await.unwrap();
                let found = settled(&env, &both.device()).await;
                let last = found.last().copied().unwrap_or_default();
                assert!(is_prefix_of_all(&found), "{}: {found:?}", image.describe());
                assert!(acknowledged == 0 || last >= acknowledged, "{}", image.describe());
                // Whichever device is lost now, the other one has what was read.
                for device in &devices {
                    assert_eq!(stamps_of(&env, device).await, found, "{}", image.describe());
                }
                images += 1;
            }
            (images, unlike)
        });
        checked += images;
        differed += unlike;
    }
    assert!(checked > 800, "only {checked} images");
    assert!(differed > 50, "only {differed} images had devices that were unlike");
}

/// A pair whose devices fail as they are told.
async fn faulty_pair(env: &Env) -> (Vec<DeviceRef>, Vec<Faults>, Log) {
    let (mut devices, mut faults) = (Vec::new(), Vec::new());
    for name in ["a", "b"] {
        let disk: DeviceRef = Arc::new(RamDisk::new(name, GEOMETRY));
        let (device, of_it): (Arc<Faulty>, Faults) = Faulty::wrap(env, disk);
        devices.push(device as DeviceRef);
        faults.push(of_it);
    }
    let [first, second] = [0, 1].map(|side| devices[side].clone());
    let pair = DevicePair::create(env, [first, second]).await.unwrap();
    let log = created(env, &pair.device(), 1).await;
    (devices, faults, log)
}

#[test]
fn a_device_that_was_left_behind_is_never_read() {
    let mut cut = 0;
    for seed in 0..60 {
        cut += run(seed, |env| async move {
            let mut rng = env.rng();
            let (devices, faults, log) = faulty_pair(&env).await;
            let lost = rng.random_range(0..2_usize);
            // It fails in the midst of requests, and for good.
            faults[lost].die_after(rng.random_range(1..60));
            let acknowledged = append_some(&log, None, &mut rng, 40).await;
            assert_eq!(acknowledged, 40, "one device is enough");
            drop(log);
            // The machine stops. The device that failed works again.
            faults[lost].heal();
            let behind = stamps_of(&env, &devices[lost]).await;
            let both = pair(&env, present(&devices)).await.unwrap();
            assert_eq!(both.sides()[lost].state, SideState::Stale, "seed {seed}");
            let found = settled(&env, &both.device()).await;
            assert_eq!(found.last(), Some(&40));
            let is_behind = behind != found;
            drop(both);
            // Alone it is refused, also as the only one that is there for good.
            let mut named = alone(&devices, lost);
            assert!(matches!(pair(&env, named.clone()).await, Err(PairError::LeftBehind { .. })));
            named[1 - lost] = NamedSide::Lost;
            assert!(matches!(pair(&env, named).await, Err(PairError::LeftBehind { .. })));
            // The other one knows that it is the only one.
            let other = pair(&env, alone(&devices, 1 - lost)).await.unwrap();
            assert_eq!(settled(&env, &other.device()).await, found);
            drop(other);
            // It is filled, and then each has everything.
            let both = pair(&env, present(&devices)).await.unwrap();
            assert!(both.fill().await.unwrap());
            assert!(both.sides().iter().all(|side| side.state == SideState::InSync));
            drop(both);
            for device in &devices {
                assert_eq!(stamps_of(&env, device).await, found);
            }
            usize::from(is_behind)
        });
    }
    assert!(cut > 40, "only {cut} devices lacked something");
}

#[test]
fn a_lone_device_that_does_not_know_is_refused_until_the_other_one_is_given_up() {
    run(7, |env| async move {
        let (devices, faults, log) = faulty_pair(&env).await;
        let mut rng = env.rng();
        append_some(&log, None, &mut rng, 5).await;
        // The first one does not even hear that it is left behind.
        faults[0].die_after(0);
        log.append(&record(6, 100)).await.unwrap();
        drop(log);
        faults[0].heal();
        let refused = pair(&env, alone(&devices, 0)).await.unwrap_err();
        let PairError::Undecided { absent, state, .. } = &refused else { panic!("{refused}") };
        assert_eq!((&**absent, *state), ("the other one", "missing"));
        let empty: DeviceRef = Arc::new(RamDisk::new("new", GEOMETRY));
        let named = [NamedSide::Present(devices[0].clone()), NamedSide::Present(empty.clone())];
        assert!(matches!(
            pair(&env, named).await,
            Err(PairError::Undecided { state: "empty", .. })
        ));
        // Nothing was written: the second one is still the newer one.
        assert_eq!(stamps_of(&env, &devices[0]).await, [1, 2, 3, 4, 5]);
        let both = pair(&env, present(&devices)).await.unwrap();
        assert_eq!(both.sides()[0].state, SideState::Stale);
        drop(both);
        // An empty one takes the place of the first.
        let named = [NamedSide::Present(empty.clone()), NamedSide::Present(devices[1].clone())];
        let whole = pair(&env, named).await.unwrap();
        assert!(whole.fill().await.unwrap());
        drop(whole);
        assert_eq!(stamps_of(&env, &empty).await, [1, 2, 3, 4, 5, 6]);
        // What was replaced is a copy of the same side.
        let named = [devices[0].clone(), empty].map(NamedSide::Present);
        assert!(matches!(pair(&env, named).await, Err(PairError::Twice { .. })));
    });
}

#[test]
fn two_devices_that_were_each_used_alone_are_refused() {
    run(8, |env| async move {
        let (devices, _, log) = faulty_pair(&env).await;
        log.append(&record(1, 100)).await.unwrap();
        drop(log);
        for side in [0, 1] {
            let mut named = alone(&devices, side);
            named[1 - side] = NamedSide::Lost;
            let one = pair(&env, named).await.unwrap();
            let (log, _) = open(&env, &one.device()).await;
            log.keep(1).await.unwrap().append(&record(2 + side as u64, 100)).await.unwrap();
        }
        assert!(matches!(pair(&env, present(&devices)).await, Err(PairError::Diverged { .. })));
        assert_eq!(stamps_of(&env, &devices[0]).await, [1, 2]);
        assert_eq!(stamps_of(&env, &devices[1]).await, [1, 3]);
    });
}

#[test]
fn damage_on_one_device_is_read_from_the_other_and_repaired() {
    run(9, |env| async move {
        let devices = [0, 1].map(|_| Arc::new(MemoryDevice::new(GEOMETRY.size)) as DeviceRef);
        let pair_of_both = DevicePair::create(&env, devices.clone()).await.unwrap();
        let log = created(&env, &pair_of_both.device(), 1).await;
        let mut places = Vec::new();
        for stamp in 1..=6 {
            places.push(log.append(&record(stamp, 700)).await.unwrap().place);
        }
        let damage = async |side: usize, number: usize| {
            // The ring begins behind the two superblocks.
            let at = DATA_START + 8192 + places[number].offset + 512;
            let junk = Bytes::from(vec![0xEE; 512]);
            devices[side].write(at, vec![junk], Purpose::Journal).await.unwrap();
        };
        // While it is in use: both devices have damage, so one of the reads meets it, and repairs it.
        damage(0, 1).await;
        damage(1, 3).await;
        for place in [places[1], places[3]].repeat(4) {
            assert!(log.read(place).await.is_ok());
        }
        let mut repaired = 0;
        for device in &devices {
            repaired += usize::from(stamps_of(&env, device).await.len() == 6);
        }
        assert!(repaired > 0, "no read repaired what it met");
        drop(log);
        // And when it is opened: damage in different places, also of a superblock.
        damage(0, 0).await;
        damage(0, 5).await;
        damage(1, 2).await;
        let junk = Bytes::from(vec![0xEE; 8192]);
        devices[1].write(DATA_START, vec![junk], Purpose::Journal).await.unwrap();
        drop(pair_of_both);
        let both = pair(&env, present(&devices)).await.unwrap();
        assert_eq!(settled(&env, &both.device()).await, [1, 2, 3, 4, 5, 6]);
        for device in &devices {
            assert_eq!(stamps_of(&env, device).await, [1, 2, 3, 4, 5, 6]);
        }
        // The same place on both is lost, and said to be.
        damage(0, 2).await;
        damage(1, 2).await;
        let device = both.device();
        let scanned = LogRecovery::open(&env, device, OWNER, true, Some).await.unwrap().1;
        assert!(matches!(scanned.end, End::Rotten { .. }), "{:?}", scanned.end);
    });
}

#[test]
fn other_devices_are_refused_and_stay_as_they_are() {
    run(10, |env| async move {
        let disk = |size: u64| Arc::new(MemoryDevice::new(size)) as DeviceRef;
        let make = || [disk(GEOMETRY.size), disk(GEOMETRY.size)];
        let ([a, b], [c, d]) = (make(), make());
        for [first, second] in [[&a, &b], [&c, &d]] {
            DevicePair::create(&env, [first.clone(), second.clone()]).await.unwrap();
        }
        let refused = async |first: &DeviceRef, second: &DeviceRef| {
            let named = [first, second].map(|it| NamedSide::Present(it.clone()));
            let before = [content(first).await, content(second).await];
            let refused = pair(&env, named).await.unwrap_err();
            assert!(before == [content(first).await, content(second).await], "{refused}");
            refused
        };
        assert!(matches!(refused(&a, &c).await, PairError::OtherPair { .. }));
        assert!(matches!(refused(&a, &a).await, PairError::Twice { .. }));
        let copy = disk(GEOMETRY.size);
        copy.write(0, vec![Bytes::from(content(&a).await)], Purpose::Label).await.unwrap();
        assert!(matches!(refused(&a, &copy).await, PairError::Twice { .. }));
        let used = disk(GEOMETRY.size);
        used.write(4096, vec![Bytes::from(vec![7; 512])], Purpose::Label).await.unwrap();
        assert!(matches!(refused(&a, &used).await, PairError::OtherData { .. }));
        assert!(matches!(refused(&used, &a).await, PairError::OtherData { .. }));
        let small = disk(GEOMETRY.size - 4096);
        assert!(matches!(refused(&b, &small).await, PairError::Sizes { .. }));
        let (one, two) = (disk(GEOMETRY.size), disk(GEOMETRY.size));
        assert!(matches!(refused(&one, &two).await, PairError::NoPair { .. }));
        Log::create(&one, ID, OWNER).await.unwrap();
        assert!(matches!(refused(&b, &one).await, PairError::OtherData { .. }));
        // Sectors are those of the devices that it was made of.
        let coarse = |name| {
            let geometry = Geometry { sector: 4096, ..GEOMETRY };
            Arc::new(RamDisk::new(name, geometry)) as DeviceRef
        };
        assert!(matches!(refused(&b, &coarse("coarse")).await, PairError::Sector { .. }));
        let mixed = [disk(GEOMETRY.size), coarse("mixed")];
        let made = DevicePair::create(&env, mixed.clone()).await.unwrap();
        drop(created(&env, &made.device(), 1).await);
        let lost = [NamedSide::Present(mixed[0].clone()), NamedSide::Lost];
        drop(pair(&env, lost).await.unwrap());
        let named = [mixed[0].clone(), coarse("new")].map(NamedSide::Present);
        assert!(pair(&env, named).await.unwrap().fill().await.unwrap());
        let foreign = disk(GEOMETRY.size);
        let magic = Bytes::from([&b"XFSB"[..], &[0; 508]].concat());
        foreign.write(0, vec![magic], Purpose::Label).await.unwrap();
        let made = DevicePair::create(&env, [two, foreign]).await;
        assert!(matches!(made, Err(PairError::Pool(_))));
    });
}

async fn content(device: &DeviceRef) -> Vec<u8> {
    let size = device.geometry().size as usize;
    device.read(0, size, Purpose::Label).await.unwrap().to_vec()
}

#[test]
fn a_power_cut_while_a_device_is_filled_leaves_one_that_is_filled_again() {
    let mut partly = 0;
    for seed in 0..3 {
        let (recorder, found) = run(seed, |env| async move {
            let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
            let devices: Vec<DeviceRef> =
                ["a", "b", "new"].map(|name| recorder.device(name, GEOMETRY)).into();
            let [a, b] = [0, 1].map(|side| devices[side].clone());
            let both = DevicePair::create(&env, [a.clone(), b]).await.unwrap();
            let log = created(&env, &both.device(), 1).await;
            append_some(&log, None, &mut env.rng(), 9).await;
            drop((log, both));
            let named = [NamedSide::Present(a.clone()), NamedSide::Lost];
            drop(pair(&env, named).await.unwrap());
            recorder.mark(0);
            let named = [a, devices[2].clone()].map(NamedSide::Present);
            let whole = pair(&env, named).await.unwrap();
            let (log, scanned) = open(&env, &whole.device()).await;
            let log = log.keep(1).await.unwrap();
            let filling = whole.clone();
            let filling = env.spawn(async move { filling.fill().await });
            let mut rng = env.rng();
            for stamp in 10..=20 {
                log.append(&record(stamp, rng.random_range(1..9_000))).await.unwrap();
                recorder.mark(stamp);
            }
            assert!(filling.await.unwrap().unwrap());
            (recorder, scanned.records.len())
        });
        assert_eq!(found, 9);
        partly += run(seed, |env| async move {
            let (mut rng, mut partly) = (env.rng(), 0);
            for image in recorder.images(&mut rng, &Policy::sampled(60)) {
                let Some(acknowledged) = image.acknowledged().next() else { continue };
                let devices = [image.devices[0].clone(), image.devices[2].clone()];
                let whole = pair(&env, present(&devices)).await.unwrap();
                let is_filled = whole.sides()[1].state == SideState::InSync;
                let found = settled(&env, &whole.device()).await;
                assert!(found.last().copied() >= Some(acknowledged.max(9)), "{}", image.describe());
                assert_eq!(whole.fill().await.unwrap(), !is_filled);
                partly += usize::from(!is_filled);
                for device in &devices {
                    assert_eq!(stamps_of(&env, device).await, found, "{}", image.describe());
                }
            }
            partly
        });
    }
    assert!(partly > 50, "only {partly} images had a device that was not filled");
}

#[test]
fn an_append_is_one_flush_of_each_device_at_the_same_time() {
    run(11, |env| async move {
        let wait = Duration::from_millis(5);
        let recorder = Recorder::with_latency(&env, wait);
        let devices = ["a", "b"].map(|name| recorder.device(name, GEOMETRY));
        let both = DevicePair::create(&env, devices.clone()).await.unwrap();
        let log = created(&env, &both.device(), 1).await;
        let alone = recorder.device("alone", GEOMETRY);
        let single = created(&env, &alone, 1).await;
        let flushes = || devices.each_ref().map(|it| it.tallies().total().flushes);
        let before = flushes();
        let begun = env.now();
        for stamp in 1..=10 {
            single.append(&record(stamp, 100)).await.unwrap();
        }
        let of_one = env.now().since(begun);
        let begun = env.now();
        for stamp in 1..=10 {
            log.append(&record(stamp, 100)).await.unwrap();
        }
        // The latency of each request is random: one after the other they would take twice the time.
        assert!(env.now().since(begun) < of_one * 3 / 2, "the devices work at the same time");
        assert_eq!(flushes(), before.map(|flushes| flushes + 10));
    });
}
