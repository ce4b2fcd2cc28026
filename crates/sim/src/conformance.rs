//! The conformance suite for devices: what [`Device`] promises, checked on any of them.
//!
//! A subject is a function that makes an empty device. [`check_all`] runs everything on it; each check is also a
//! function of its own. Random sequences of requests are compared with a plain vector of bytes, and a sequence that
//! fails is shortened ([`explore`]).

mod model;
mod requests;

use bytes::Bytes;
use futures::future::join_all;
use thalweg_store::device::{
    Device, DeviceError, DeviceRef, MEMORY_ALIGNMENT, Purpose, QueueDepth, Tally,
};

pub use model::ByteModel;
pub use requests::{Mix, Request, explore, run};

/// What a device promises beyond the trait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promises {
    /// [`Device::grow_to`] takes any size, and new bytes are zeros.
    pub grows: bool,
    /// Discarded bytes read as zeros.
    pub discards_to_zeros: bool,
    /// A flush also waits for writes whose futures were dropped.
    pub flush_waits_for_dropped: bool,
}

/// Runs the whole suite, with `cases` random sequences of requests. Each device that `fresh` makes is empty.
///
/// # Panics
/// When the device does not conform.
pub async fn check_all(promises: Promises, cases: u64, fresh: impl AsyncFn() -> DeviceRef) {
    check_bounds(&*fresh().await).await;
    check_counters(&*fresh().await).await;
    check_many_at_once(&*fresh().await).await;
    check_dropped(&*fresh().await, promises).await;
    check_discards(&*fresh().await, promises).await;
    check_growth(&*fresh().await, promises).await;
    let mix = Mix { grow: promises.grows };
    explore(cases, mix, async |requests| {
        run(&*fresh().await, requests).await;
    })
    .await;
}

fn sector(device: &dyn Device) -> u64 {
    u64::from(device.geometry().sector)
}

fn filled(len: u64, fill: u8) -> Vec<Bytes> {
    vec![vec![fill; len as usize].into()]
}

async fn write(device: &dyn Device, at: u64, len: u64, fill: u8) {
    let written = device.write(at, filled(len, fill), Purpose::UserData).await;
    written.expect("a device writes");
}

async fn read(device: &dyn Device, at: u64, len: u64) -> Bytes {
    let read = device.read(at, len as usize, Purpose::UserData).await;
    let read = read.expect("a device reads");
    assert_eq!(read.len() as u64, len, "length of a read");
    read
}

async fn flush(device: &dyn Device) {
    device.flush(Purpose::UserData).await.expect("a device flushes");
}

fn all_are(bytes: &[u8], fill: u8) -> bool {
    bytes.iter().all(|byte| *byte == fill)
}

/// Requests that are not in whole sectors, or leave the device, are refused, change nothing and are not counted.
///
/// # Panics
/// When the device does not conform.
pub async fn check_bounds(device: &dyn Device) {
    let (unit, size) = (sector(device), device.geometry().size);
    assert!([512, 4096].contains(&unit) && size.is_multiple_of(unit), "a geometry: {unit}, {size}");
    let ends = [0, size - 2 * unit];
    for at in ends {
        write(device, at, 2 * unit, 7).await;
    }
    let before = device.tallies();
    let purpose = Purpose::UserData;
    for (at, len) in [(1, unit), (unit, unit - 1), (unit / 2, 1), (size - unit, unit / 2)] {
        let outcomes = [
            device.read(at, len as usize, purpose).await.map(drop),
            device.write(at, filled(len, 9), purpose).await,
            device.write_durably(at, filled(len, 9), purpose).await,
            device.discard(at, len).await,
        ];
        for outcome in outcomes {
            let refused = matches!(outcome, Err(DeviceError::Misaligned { .. }));
            assert!(refused, "{len} bytes at {at} are not whole sectors: {outcome:?}");
        }
    }
    let last = u64::MAX - (u64::MAX % unit) - unit;
    for (at, len) in [(size, unit), (size - unit, 2 * unit), (last, unit), (last, 2 * unit)] {
        let outcomes = [
            device.read(at, len as usize, purpose).await.map(drop),
            device.write(at, filled(len, 9), purpose).await,
            device.write_durably(at, filled(len, 9), purpose).await,
            device.discard(at, len).await,
        ];
        for outcome in outcomes {
            let refused = matches!(outcome, Err(DeviceError::OutOfRange { .. }));
            assert!(refused, "{len} bytes at {at} leave a device of {size}: {outcome:?}");
        }
    }
    assert_eq!(device.tallies(), before, "refused requests are not counted");
    assert_eq!(read(device, unit, 0).await.len(), 0);
    write(device, unit, 0, 9).await;
    device.discard(size, 0).await.expect("nothing is discarded anywhere");
    for at in ends {
        assert!(all_are(&read(device, at, 2 * unit).await, 7), "nothing changed at {at}");
    }
}

/// Each request is counted once, under its purpose.
///
/// # Panics
/// When the device does not conform.
pub async fn check_counters(device: &dyn Device) {
    let unit = sector(device);
    let before = device.tallies();
    let expect = "a device serves requests";
    let gathered = || vec![Bytes::from(vec![1; unit as usize]); 3];
    device.write(unit, gathered(), Purpose::Map).await.expect(expect);
    device.write_durably(0, filled(2 * unit, 2), Purpose::Journal).await.expect(expect);
    device.read(0, 4 * unit as usize, Purpose::UserData).await.expect(expect);
    device.flush(Purpose::Journal).await.expect(expect);
    device.discard(0, unit).await.expect(expect);
    let counted = device.tallies().since(&before);
    let map = Tally { writes: 1, write_bytes: 3 * unit, ..Tally::default() };
    let journal = Tally { writes: 1, write_bytes: 2 * unit, flushes: 2, ..Tally::default() };
    let user = Tally { reads: 1, read_bytes: 4 * unit, ..Tally::default() };
    for (purpose, tally) in counted.iter() {
        let expected = match purpose {
            Purpose::Map => map,
            Purpose::Journal => journal,
            Purpose::UserData => user,
            _ => Tally::default(),
        };
        assert_eq!(tally, expected, "requests for {}", purpose.name());
    }
    assert_eq!(device.queue_depth(), QueueDepth::default(), "no request is left in the queue");
}

/// Requests at once: those on ranges of their own do not disturb each other, and of those on one sector one wins.
///
/// # Panics
/// When the device does not conform.
pub async fn check_many_at_once(device: &dyn Device) {
    let unit = sector(device);
    let count = (device.geometry().size / unit).min(256);
    let fill = |at: u64| (at % 251) as u8 + 1;
    join_all((0..count).map(|at| async move {
        let written = match at % 3 {
            0 => device.write_durably(at * unit, filled(unit, fill(at)), Purpose::UserData).await,
            _ => device.write(at * unit, filled(unit, fill(at)), Purpose::UserData).await,
        };
        written.expect("a device writes");
        if at % 16 == 0 {
            flush(device).await;
        }
    }))
    .await;
    join_all((0..2 * count).map(|i| async move {
        let at = i % count;
        let read = read(device, at * unit, unit).await;
        assert!(all_are(&read, fill(at)), "sector {at} after writes at once");
    }))
    .await;
    let sectors = count.min(8);
    join_all((1..=16).map(|fill| write(device, 0, sectors * unit, fill))).await;
    let read = read(device, 0, sectors * unit).await;
    for sector in read.chunks(unit as usize) {
        let whole = (1..=16).contains(&sector[0]) && all_are(sector, sector[0]);
        assert!(whole, "a sector has the bytes of one write");
    }
    assert_eq!(device.queue_depth(), QueueDepth::default(), "no request is left in the queue");
}

/// Writes whose futures are dropped are done or not, by whole sectors, and disturb nothing else.
///
/// # Panics
/// When the device does not conform.
pub async fn check_dropped(device: &dyn Device, promises: Promises) {
    let unit = sector(device);
    let count = (device.geometry().size / unit / 2).min(64);
    let len = 2 * count * unit;
    write(device, 0, len, 1).await;
    flush(device).await;
    for at in 0..count {
        let data = filled(unit, 2);
        let mut abandoned = device.write(2 * at * unit, data, Purpose::UserData);
        let _ = futures::poll!(&mut abandoned);
        let mut abandoned = device.read(2 * at * unit, unit as usize, Purpose::UserData);
        let _ = futures::poll!(&mut abandoned);
    }
    flush(device).await;
    let first = read(device, 0, len).await;
    for (at, sector) in first.chunks(unit as usize).enumerate() {
        let whole = all_are(sector, 1) || (at % 2 == 0 && all_are(sector, 2));
        assert!(whole, "sector {at} after a write of it was dropped");
    }
    if promises.flush_waits_for_dropped {
        write(device, 0, len, 3).await;
        flush(device).await;
        assert!(all_are(&read(device, 0, len).await, 3), "a dropped write came after a flush");
    }
    assert_eq!(device.queue_depth(), QueueDepth::default(), "no request is left in the queue");
}

/// A discard touches no byte outside of its range.
///
/// # Panics
/// When the device does not conform.
pub async fn check_discards(device: &dyn Device, promises: Promises) {
    let (unit, size) = (sector(device), device.geometry().size);
    write(device, 0, size, 5).await;
    let third = size / unit / 3 * unit;
    for (at, len) in [(third, third), (unit, unit), (0, 0), (size - unit, unit)] {
        device.discard(at, len).await.expect("a device discards");
        let read = read(device, 0, size).await;
        let (from, to) = (at as usize, (at + len) as usize);
        let outside = |range: std::ops::Range<usize>, known: &[std::ops::Range<usize>]| {
            range.filter(|at| !known.iter().any(|known| known.contains(at))).all(|at| read[at] == 5)
        };
        let discarded = [
            third as usize..2 * third as usize,
            unit as usize..2 * unit as usize,
            (size - unit) as usize..size as usize,
        ];
        assert!(outside(0..size as usize, &discarded), "bytes beside {len} discarded at {at}");
        if promises.discards_to_zeros {
            assert!(all_are(&read[from..to], 0), "{len} bytes discarded at {at}");
        }
    }
    write(device, 0, size, 6).await;
    assert!(all_are(&read(device, 0, size).await, 6), "bytes written after discards");
}

/// Growth keeps the bytes, never makes the device smaller, and shows in the geometry.
///
/// # Panics
/// When the device does not conform.
pub async fn check_growth(device: &dyn Device, promises: Promises) {
    let (unit, size) = (sector(device), device.geometry().size);
    write(device, size - unit, unit, 5).await;
    let grown = async |wanted| device.grow_to(wanted).await.expect("a device tells its size");
    assert_eq!(grown(None).await, size, "its present size");
    assert_eq!(grown(Some(unit)).await, size, "a device does not shrink");
    let larger = grown(Some(3 * size + 1)).await;
    assert_eq!(device.geometry().size, larger, "size in the geometry");
    if promises.grows {
        assert_eq!(larger, 3 * size + unit, "a new size in whole sectors");
        assert!(all_are(&read(device, size, larger - size).await, 0), "new bytes");
        write(device, larger - unit, unit, 8).await;
        assert!(all_are(&read(device, larger - unit, unit).await, 8), "the last sector");
    }
    assert!(all_are(&read(device, size - unit, unit).await, 5), "bytes from before growth");
}

/// Whether a buffer begins where every device's buffers do.
fn is_aligned(bytes: &[u8]) -> bool {
    bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(MEMORY_ALIGNMENT)
}
