//! Random requests, and how they are run against the model.

use std::panic::AssertUnwindSafe;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use rand::{RngExt, SeedableRng};
use thalweg_env::Rng;
use thalweg_store::device::{Device, Purpose, QueueDepth};

use super::is_aligned;
use super::model::ByteModel;
use crate::campaign;

/// Maximum number of runs to shorten a sequence that fails.
const SHORTENING: usize = 300;

/// A request, in sectors. Numbers are taken modulo what fits the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A read.
    Read {
        /// First sector.
        first: u64,
        /// Sectors.
        count: usize,
    },
    /// A gathered write.
    Write {
        /// First sector.
        first: u64,
        /// Sectors of each buffer.
        counts: Vec<usize>,
        /// What the buffers are filled from.
        fill: u8,
        /// Every second buffer is not aligned in memory.
        misaligned: bool,
        /// Whether it is durable when it returns.
        durably: bool,
    },
    /// A flush.
    Flush,
    /// A discard.
    Discard {
        /// First sector.
        first: u64,
        /// Sectors.
        count: u64,
    },
    /// Growth.
    Grow {
        /// Sectors to add.
        more: u64,
    },
    /// Requests at once, each on a part of the device of its own.
    Together(Vec<Request>),
}

/// Which requests random sequences have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mix {
    /// Growth, in which new bytes are zeros.
    pub grow: bool,
}

impl Request {
    /// A random request.
    fn draw(rng: &mut Rng, mix: Mix) -> Request {
        match rng.random_range(0..14) {
            0 if mix.grow => Request::Grow { more: rng.random_range(0..40) },
            0..2 => {
                let count = rng.random_range(2..6);
                Request::Together((0..count).map(|_| Request::draw_one(rng)).collect())
            }
            _ => Request::draw_one(rng),
        }
    }

    fn draw_one(rng: &mut Rng) -> Request {
        let first = rng.random();
        match rng.random_range(0..11) {
            0..4 => Request::Read { first, count: rng.random_range(1..40) },
            4..9 => {
                let buffers = rng.random_range(1..6);
                Request::Write {
                    first,
                    counts: (0..buffers).map(|_| rng.random_range(1..8)).collect(),
                    fill: rng.random(),
                    misaligned: rng.random(),
                    durably: rng.random(),
                }
            }
            9 => Request::Flush,
            _ => Request::Discard { first, count: rng.random_range(1..64) },
        }
    }
}

/// Runs `test` with random sequences of requests, `cases` times as long as the campaign is. Shortens a sequence for
/// which it panics.
///
/// # Panics
/// When `test` does, with the shortest sequence that was found.
pub async fn explore(cases: u64, mix: Mix, test: impl AsyncFn(Vec<Request>)) {
    for seed in campaign::seeds(cases) {
        let mut rng = Rng::seed_from_u64(seed);
        let count = rng.random_range(1..40);
        let requests: Vec<Request> = (0..count).map(|_| Request::draw(&mut rng, mix)).collect();
        if fails(&test, &requests).await {
            let shortest = shorten(&test, requests).await;
            panic!("seed {seed}: the device fails at the last of these requests: {shortest:#?}");
        }
    }
}

async fn fails(test: &impl AsyncFn(Vec<Request>), requests: &[Request]) -> bool {
    AssertUnwindSafe(test(requests.to_vec())).catch_unwind().await.is_err()
}

/// Leaves out requests, first many at once, as long as the rest fails.
async fn shorten(test: &impl AsyncFn(Vec<Request>), requests: Vec<Request>) -> Vec<Request> {
    let (mut shortest, mut step) = (requests.clone(), requests.len().div_ceil(2));
    let (mut at, mut runs) = (0, 0);
    while runs < SHORTENING {
        if at >= shortest.len() {
            if step == 1 {
                break;
            }
            (at, step) = (0, step.div_ceil(2));
            continue;
        }
        let mut shorter = shortest.clone();
        shorter.drain(at..(at + step).min(shortest.len()));
        runs += 1;
        match !shorter.is_empty() && fails(test, &shorter).await {
            true => shortest = shorter,
            false => at += step,
        }
    }
    shortest
}

/// A request in bytes.
enum Call {
    Read { at: u64, len: usize },
    Write { at: u64, data: Vec<Bytes>, durably: bool },
    Flush,
    Discard { at: u64, len: u64 },
}

/// Bytes that encode their offset.
fn pattern(len: usize, seed: u8, misaligned: bool) -> Bytes {
    let skip = if misaligned { 3 } else { 0 };
    let bytes: Vec<u8> = (0..len + skip).map(|i| (i / 7) as u8 ^ seed).collect();
    Bytes::from(bytes).slice(skip..)
}

/// The calls of a request, for sectors of `unit` bytes from `start` on.
fn call(request: &Request, unit: u64, start: u64, sectors: u64) -> Call {
    match request {
        Request::Read { first, count } => {
            let first = first % sectors;
            let count = (*count as u64).min(sectors - first);
            Call::Read { at: (start + first) * unit, len: (count * unit) as usize }
        }
        Request::Write { first, counts, fill, misaligned, durably } => {
            let first = first % sectors;
            let mut left = sectors - first;
            let mut data = Vec::new();
            for (i, count) in counts.iter().enumerate() {
                let count = (*count as u64).min(left);
                left -= count;
                let skewed = *misaligned && i % 2 == 0;
                data.push(pattern((count * unit) as usize, fill.wrapping_add(i as u8), skewed));
            }
            Call::Write { at: (start + first) * unit, data, durably: *durably }
        }
        Request::Discard { first, count } => {
            let first = first % sectors;
            let count = (*count).min(sectors - first);
            Call::Discard { at: (start + first) * unit, len: count * unit }
        }
        Request::Flush | Request::Grow { .. } | Request::Together(_) => Call::Flush,
    }
}

impl Call {
    /// Sends it to `device`; the bytes of a read.
    async fn send(&self, device: &dyn Device) -> Bytes {
        let purpose = Purpose::UserData;
        let sent = match self {
            Call::Read { at, len } => {
                let read = device.read(*at, *len, purpose).await.expect("a device reads");
                assert_eq!(read.len(), *len, "length of a read");
                assert!(is_aligned(&read), "a read's buffer is aligned");
                return read;
            }
            Call::Write { at, data, durably: true } => {
                device.write_durably(*at, data.clone(), purpose).await
            }
            Call::Write { at, data, durably: false } => {
                device.write(*at, data.clone(), purpose).await
            }
            Call::Flush => device.flush(purpose).await,
            Call::Discard { at, len } => device.discard(*at, *len).await,
        };
        sent.expect("a device serves requests");
        Bytes::new()
    }

    /// Applies it to the model, or compares what was read with it.
    fn apply(&self, model: &mut ByteModel, read: &[u8]) {
        match self {
            Call::Read { at, .. } => model.check(*at, read),
            Call::Write { at, data, .. } => model.write(*at, data.iter().flatten().copied()),
            Call::Flush => {}
            Call::Discard { at, len } => model.discard(*at, *len),
        }
    }
}

/// Sends `requests` to an empty `device`, compares every read with a plain vector of bytes, and returns that.
///
/// # Panics
/// When the device does not conform.
pub async fn run(device: &dyn Device, requests: Vec<Request>) -> ByteModel {
    let unit = u64::from(device.geometry().sector);
    let mut model = ByteModel::new(device.geometry().size);
    for request in requests {
        let sectors = model.size() / unit;
        let calls = match &request {
            Request::Grow { more } => {
                let wanted = model.size() + more * unit;
                let size = device.grow_to(Some(wanted)).await.expect("a device grows");
                assert_eq!(size, wanted, "its new size");
                model.grow(size);
                continue;
            }
            Request::Together(requests) => {
                let part = sectors / requests.len() as u64;
                let all = requests.iter().zip(0..);
                all.map(|(request, i)| call(request, unit, i * part, part)).collect()
            }
            request => vec![call(request, unit, 0, sectors)],
        };
        let reads = join_all(calls.iter().map(|call| call.send(device))).await;
        calls.iter().zip(reads).for_each(|(call, read)| call.apply(&mut model, &read));
    }
    let whole = device.read(0, model.size() as usize, Purpose::UserData).await;
    model.check(0, &whole.expect("a device reads"));
    assert_eq!(device.queue_depth(), QueueDepth::default(), "no request is left in the queue");
    model
}
