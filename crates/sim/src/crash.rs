//! The images that a crash could leave of recorded devices.
//!
//! A crash happens after a number of events. A write that ended before a flush of its device began
//! is durable once that flush has ended. Every other write that had begun may survive in any part,
//! sector by sector and in any order.

use std::fmt;
use std::sync::Arc;

use rand::seq::{IteratorRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use thalweg_env::{HashMap, Rng};
use thalweg_store::device::DeviceRef;

use crate::content::Content;
use crate::log::{Change, Event, Log};
use crate::ramdisk::RamDisk;

/// The events after which to crash.
#[derive(Clone, Debug)]
pub enum Points {
    /// Just before and just after the end of every flush, and at the end of the log.
    Flushes,
    /// After every event, and before the first.
    Every,
    /// At this many random points, and at the end of the log.
    Sampled(usize),
    /// After each of these numbers of events.
    At(Vec<usize>),
}

/// Which images to make at each crash point.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Where to crash.
    pub points: Points,
    /// Every subset is made when at most this many writes are volatile.
    pub exhaustive: usize,
    /// Maximum number of prefixes, besides nothing and everything.
    pub prefixes: usize,
    /// Maximum number of images in which a single write is missing.
    pub missing: usize,
    /// Random subsets of whole writes.
    pub subsets: usize,
    /// Random subsets of sectors.
    pub torn: usize,
    /// Random subsets in random order, so that an overwritten version may survive; half of them
    /// torn.
    pub shuffled: usize,
}

impl Policy {
    /// About fifty images around every flush.
    pub fn thorough() -> Policy {
        Policy {
            points: Points::Flushes,
            exhaustive: 4,
            prefixes: 16,
            missing: 16,
            subsets: 4,
            torn: 8,
            shuffled: 8,
        }
    }

    /// About a dozen images at each of `points` random points.
    pub fn sampled(points: usize) -> Policy {
        Policy {
            points: Points::Sampled(points),
            exhaustive: 1,
            prefixes: 2,
            missing: 2,
            subsets: 2,
            torn: 2,
            shuffled: 2,
        }
    }

    /// The same images at other points.
    pub fn at(mut self, points: Points) -> Policy {
        self.points = points;
        self
    }
}

/// Which volatile writes survive at a crash point. Writes are in the order in which they ended; those
/// in flight come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// None of them.
    Nothing,
    /// All of them.
    Everything,
    /// The first writes, this many.
    Prefix(usize),
    /// All but the write with this index.
    Missing(usize),
    /// The writes whose bit is set.
    Mask(u64),
    /// A random subset, from this seed.
    Subset(u64),
    /// A random subset of their sectors.
    Torn(u64),
    /// A random subset in a random order.
    Shuffled(u64),
    /// A random subset of their sectors in a random order.
    ShuffledTorn(u64),
}

/// The state of all devices at a point of the log.
#[derive(Clone, Debug)]
struct Replay {
    log: Arc<Log>,
    point: usize,
    durable: Vec<Content>,
    /// Changes that are not durable: first those that ended, in that order, then those in flight.
    volatile: Vec<Volatile>,
    flushes_begun: HashMap<usize, usize>,
}

#[derive(Clone, Debug)]
struct Volatile {
    number: usize,
    ended: Option<usize>,
    change: Arc<Change>,
}

impl Replay {
    fn new(log: Arc<Log>) -> Replay {
        let durable = log.origins.iter().map(|origin| origin.content.clone()).collect();
        Replay { log, point: 0, durable, volatile: Vec::new(), flushes_begun: HashMap::default() }
    }

    fn advance_to(&mut self, point: usize) {
        while self.point < point.min(self.log.events.len()) {
            let event = self.log.events[self.point];
            self.step(event);
            self.point += 1;
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::WriteBegan(number) => {
                let change = Arc::clone(&self.log.changes[number]);
                self.volatile.push(Volatile { number, ended: None, change });
            }
            Event::WriteEnded(number) => self.end_write(number),
            Event::FlushBegan { flush, .. } => {
                self.flushes_begun.insert(flush, self.point);
            }
            Event::FlushEnded { flush, device } => {
                if let Some(begun) = self.flushes_begun.remove(&flush) {
                    self.end_flush(device, begun);
                }
            }
            Event::Mark(_) => {}
        }
    }

    fn end_write(&mut self, number: usize) {
        let Some(at) = self.volatile.iter().rposition(|write| write.number == number) else {
            return;
        };
        let mut write = self.volatile.remove(at);
        write.ended = Some(self.point);
        let ended = self.volatile.partition_point(|write| write.ended.is_some());
        self.volatile.insert(ended, write);
    }

    /// Makes every change on `device` durable that had ended when the flush began.
    fn end_flush(&mut self, device: usize, begun: usize) {
        let durable = &mut self.durable[device];
        self.volatile.retain(|write| {
            let kept = write.change.device != device || write.ended.is_none_or(|end| end > begun);
            if !kept {
                write.change.apply(durable);
            }
            kept
        });
    }

    /// Every device's content when the writes that `shape` selects survive.
    fn contents(&self, shape: Shape) -> Vec<Content> {
        let mut contents = self.durable.clone();
        match shape {
            Shape::Nothing => {}
            Shape::Everything => self.keep(&mut contents, |_| true),
            Shape::Prefix(count) => self.keep(&mut contents, |i| i < count),
            Shape::Missing(missing) => self.keep(&mut contents, |i| i != missing),
            Shape::Mask(mask) => self.keep(&mut contents, |i| i < 64 && mask & (1 << i) != 0),
            Shape::Subset(seed) => self.scatter(&mut contents, seed, false, false),
            Shape::Torn(seed) => self.scatter(&mut contents, seed, false, true),
            Shape::Shuffled(seed) => self.scatter(&mut contents, seed, true, false),
            Shape::ShuffledTorn(seed) => self.scatter(&mut contents, seed, true, true),
        }
        contents
    }

    fn keep(&self, contents: &mut [Content], keep: impl Fn(usize) -> bool) {
        for (i, Volatile { change, .. }) in self.volatile.iter().enumerate() {
            if keep(i) {
                change.apply(&mut contents[change.device]);
            }
        }
    }

    fn scatter(&self, contents: &mut [Content], seed: u64, shuffled: bool, torn: bool) {
        let mut rng = Rng::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..self.volatile.len()).collect();
        if shuffled {
            order.shuffle(&mut rng);
        }
        let survival = [0.1, 0.5, 0.5, 0.9][rng.random_range(0..4)];
        for i in order {
            let change = &self.volatile[i].change;
            let content = &mut contents[change.device];
            let sector = u64::from(self.log.origins[change.device].geometry.sector);
            if torn {
                change.apply_torn(content, sector, || rng.random_bool(survival));
            } else if rng.random_bool(survival) {
                change.apply(content);
            }
        }
    }

    /// The shapes to make here, without those that certainly give the same image.
    fn shapes(&self, policy: &Policy, rng: &mut Rng) -> Vec<Shape> {
        let count = self.volatile.len();
        if count == 0 {
            return vec![Shape::Nothing];
        }
        let mut shapes = vec![Shape::Nothing, Shape::Everything];
        let whole = count <= policy.exhaustive.min(16);
        if whole {
            shapes.extend((1..(1u64 << count) - 1).map(Shape::Mask));
        } else {
            shapes.extend((1..count).sample(rng, policy.prefixes).into_iter().map(Shape::Prefix));
            let missing = (0..count).sample(rng, policy.missing);
            shapes.extend(missing.into_iter().map(Shape::Missing));
            shapes.extend((0..policy.subsets).map(|_| Shape::Subset(rng.random())));
        }
        shapes.extend((0..policy.torn).map(|_| Shape::Torn(rng.random())));
        if count > 1 {
            let halves = (0..policy.shuffled).map(|i| match i % 2 {
                0 => Shape::Shuffled(rng.random()),
                _ => Shape::ShuffledTorn(rng.random()),
            });
            shapes.extend(halves);
        }
        shapes
    }

    fn image(&self, shape: Shape) -> CrashImage {
        let origins = self.log.origins.iter();
        let disks = origins.zip(self.contents(shape)).map(|(origin, content)| {
            Arc::new(RamDisk::with_content(&origin.name, origin.geometry, content))
        });
        let disks: Vec<_> = disks.collect();
        let devices = disks.iter().map(|disk| Arc::clone(disk) as DeviceRef).collect();
        CrashImage {
            devices,
            disks,
            log: Arc::clone(&self.log),
            point: self.point,
            shape,
            volatile: self.volatile.len(),
        }
    }
}

/// The devices as a crash could have left them.
#[derive(Debug)]
pub struct CrashImage {
    /// The devices, in the order of recording. They may be written.
    pub devices: Vec<DeviceRef>,
    disks: Vec<Arc<RamDisk>>,
    log: Arc<Log>,
    point: usize,
    shape: Shape,
    volatile: usize,
}

impl CrashImage {
    /// The image of `shape` at a crash after `point` events.
    pub fn at(log: &Arc<Log>, point: usize, shape: Shape) -> CrashImage {
        let mut replay = Replay::new(Arc::clone(log));
        replay.advance_to(point);
        replay.image(shape)
    }

    /// The same devices as RAM disks, which expose their content.
    pub fn disks(&self) -> &[Arc<RamDisk>] {
        &self.disks
    }

    /// Number of events before the crash.
    pub fn point(&self) -> usize {
        self.point
    }

    /// Which volatile writes survived.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The marks made before the crash, the newest first.
    pub fn acknowledged(&self) -> impl Iterator<Item = u64> + '_ {
        let events = self.log.events[..self.point].iter().rev();
        events.filter_map(|event| match event {
            Event::Mark(tag) => Some(*tag),
            _ => None,
        })
    }

    /// Crash point and surviving writes, for a message.
    pub fn describe(&self) -> String {
        let last = self.point.checked_sub(1).map(|i| self.name_event(self.log.events[i]));
        format!(
            "crash at point {} of {} (after {}); of {} writes not durable survived: {:?}",
            self.point,
            self.log.events.len(),
            last.unwrap_or_else(|| "nothing".to_owned()),
            self.volatile,
            self.shape
        )
    }

    fn name_event(&self, event: Event) -> String {
        let name = |device: usize| &self.log.origins[device].name;
        let write = |number: usize| {
            let Change { device, offset, len, .. } = &*self.log.changes[number];
            format!("write {number} of {len} bytes at {offset} of {}", name(*device))
        };
        match event {
            Event::WriteBegan(number) => format!("{} began", write(number)),
            Event::WriteEnded(number) => format!("{} ended", write(number)),
            Event::FlushBegan { flush, device } => {
                format!("flush {flush} of {} began", name(device))
            }
            Event::FlushEnded { flush, device } => {
                format!("flush {flush} of {} ended", name(device))
            }
            Event::Mark(tag) => format!("mark {tag}"),
        }
    }
}

/// The images of a log, from its first crash point to its last.
pub struct Images {
    replay: Replay,
    points: std::vec::IntoIter<usize>,
    shapes: std::vec::IntoIter<Shape>,
    policy: Policy,
    rng: Rng,
}

impl Images {
    /// The images of `log` that `policy` asks for.
    pub fn new(log: Arc<Log>, rng: &mut Rng, policy: &Policy) -> Images {
        let mut rng = Rng::seed_from_u64(rng.random());
        let points = points_of(&log, &policy.points, &mut rng);
        Images {
            replay: Replay::new(log),
            points: points.into_iter(),
            shapes: Vec::new().into_iter(),
            policy: policy.clone(),
            rng,
        }
    }
}

/// The crash points that `points` names, ascending and without repetition.
fn points_of(log: &Log, points: &Points, rng: &mut Rng) -> Vec<usize> {
    let end = log.events.len();
    let mut points: Vec<usize> = match points {
        Points::Every => (0..=end).collect(),
        Points::At(points) => points.iter().map(|point| *point.min(&end)).collect(),
        Points::Sampled(count) => (0..end).sample(rng, *count).into_iter().chain([end]).collect(),
        Points::Flushes => {
            let events = log.events.iter().enumerate();
            let ends = events.filter(|(_, event)| matches!(event, Event::FlushEnded { .. }));
            ends.flat_map(|(i, _)| [i, i + 1]).chain([end]).collect()
        }
    };
    points.sort_unstable();
    points.dedup();
    points
}

impl Iterator for Images {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        loop {
            if let Some(shape) = self.shapes.next() {
                return Some(self.replay.image(shape));
            }
            let point = self.points.next()?;
            self.replay.advance_to(point);
            self.shapes = self.replay.shapes(&self.policy, &mut self.rng).into_iter();
        }
    }
}

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Images(at point {} of {})", self.replay.point, self.replay.log.events.len())
    }
}

#[cfg(test)]
mod tests;
