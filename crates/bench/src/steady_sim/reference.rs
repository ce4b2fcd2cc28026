//! Reference simulators of log cleaning: segments and counters, without contents and I/O.
//!
//! - *Greedy*: one open segment for user writes and moved blocks; the victim is the segment with the
//!   fewest live blocks.
//! - *SepBIT* (Wang et al., "Separating Data via Block Invalidation Time Inference", FAST 2022): six
//!   open segments. A user write goes to class 1 when the block that it overwrites lived for less than
//!   `l` user writes, else to class 2. Cleaning moves blocks of class 1 to class 3, and all other blocks
//!   to class 4, 5 or 6 by their age, with borders at `4l` and `16l`. `l` is the mean lifespan of the
//!   last 16 segments of class 1 that were cleaned.
//!
//! Both clean as late as possible: when more segments are closed than the geometry allows.

/// Segments of class 1 whose mean lifespan is `l`.
const LIFESPANS: u32 = 16;
/// Borders between classes 4, 5 and 6 in multiples of `l`.
const AGE_BORDERS: [f64; 2] = [4.0, 16.0];
/// Open segments of SepBIT.
const SEPBIT_CLASSES: usize = 6;
const NOWHERE: u32 = u32::MAX;

/// The space of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Segments on all links.
    pub(crate) segments: u32,
    pub(crate) segment_blocks: u32,
    /// Segments that are open or free when cleaning is idle.
    pub(crate) reserved: u32,
}

/// How a log chooses the open segment of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// One open segment takes all blocks.
    Single,
    /// Six open segments, by inferred invalidation time.
    SepBit,
}

impl Placement {
    /// Open segments.
    pub(crate) fn classes(self) -> usize {
        match self {
            Placement::Single => 1,
            Placement::SepBit => SEPBIT_CLASSES,
        }
    }
}

/// How a log chooses the segment to clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The fewest live blocks.
    Greedy,
    /// The greatest `garbage * age / (1 - garbage)`.
    CostBenefit,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    class: usize,
    /// The time of its first block.
    created: u64,
    /// The time when it became full.
    sealed: u64,
    live: u32,
    /// The logical block in each used slot.
    blocks: Vec<u32>,
}

/// A log under one policy.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    geometry: Geometry,
    placement: Placement,
    selection: Selection,
    segments: Vec<Segment>,
    /// The open segment of each class.
    open: Vec<usize>,
    closed: Vec<usize>,
    /// Empty segments.
    empty: Vec<usize>,
    /// The slot of each logical block: segment times blocks in a segment, plus offset.
    slots: Vec<u32>,
    last_write: Vec<u64>,
    /// The time in user writes.
    now: u64,
    moved: u64,
    lifespan: Lifespan,
}

/// The mean lifespan of cleaned segments of class 1.
#[derive(Clone, Copy, Debug)]
struct Lifespan {
    mean: f64,
    sum: u64,
    count: u32,
}

impl Lifespan {
    fn add(&mut self, lifespan: u64) {
        self.sum += lifespan;
        self.count += 1;
        if self.count == LIFESPANS {
            self.mean = self.sum as f64 / f64::from(self.count);
            (self.sum, self.count) = (0, 0);
        }
    }
}

impl Log {
    /// An empty log for logical blocks below `blocks`.
    pub(crate) fn new(
        geometry: Geometry,
        placement: Placement,
        selection: Selection,
        blocks: u32,
    ) -> Log {
        let segments: Vec<Segment> =
            (0..placement.classes()).map(|class| Segment { class, ..Segment::default() }).collect();
        Log {
            geometry,
            placement,
            selection,
            open: (0..segments.len()).collect(),
            segments,
            closed: Vec::new(),
            empty: Vec::new(),
            slots: vec![NOWHERE; blocks as usize],
            last_write: vec![0; blocks as usize],
            now: 0,
            moved: 0,
            lifespan: Lifespan { mean: f64::INFINITY, sum: 0, count: 0 },
        }
    }

    /// User writes, and blocks moved by cleaning.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.now, self.moved)
    }

    /// Writes a logical block.
    pub(crate) fn write(&mut self, lba: u32) {
        let old = self.slots[lba as usize];
        let class = match self.placement {
            Placement::Single => 0,
            Placement::SepBit if old == NOWHERE => 1,
            Placement::SepBit => {
                let lived = self.now - self.last_write[lba as usize];
                usize::from(lived as f64 >= self.lifespan.mean)
            }
        };
        if old != NOWHERE {
            self.segments[(old / self.geometry.segment_blocks) as usize].live -= 1;
        }
        self.last_write[lba as usize] = self.now;
        self.append(class, lba);
        self.now += 1;
        self.clean();
    }

    fn append(&mut self, class: usize, lba: u32) {
        let id = self.open[class];
        let per = self.geometry.segment_blocks;
        let segment = &mut self.segments[id];
        if segment.blocks.is_empty() {
            segment.created = self.now;
        }
        self.slots[lba as usize] = id as u32 * per + segment.blocks.len() as u32;
        segment.blocks.push(lba);
        segment.live += 1;
        if segment.blocks.len() as u32 == per {
            segment.sealed = self.now;
            self.closed.push(id);
            self.open[class] = self.take_empty(class);
        }
    }

    fn take_empty(&mut self, class: usize) -> usize {
        match self.empty.pop() {
            Some(id) => {
                self.segments[id].class = class;
                id
            }
            None => {
                self.segments.push(Segment { class, ..Segment::default() });
                self.segments.len() - 1
            }
        }
    }

    fn clean(&mut self) {
        let limit = (self.geometry.segments - self.geometry.reserved) as usize;
        while self.closed.len() > limit {
            let Some(nth) = self.choose() else { return };
            if self.segments[self.closed[nth]].live == self.geometry.segment_blocks {
                return;
            }
            let victim = self.closed.swap_remove(nth);
            self.collect(victim);
        }
    }

    /// The victim's index among the closed segments.
    fn choose(&self) -> Option<usize> {
        let score = |id: usize| {
            let segment = &self.segments[id];
            let live = f64::from(segment.live) / f64::from(self.geometry.segment_blocks);
            match self.selection {
                Selection::Greedy => -live,
                Selection::CostBenefit => (1.0 - live) * (self.now - segment.sealed) as f64 / live,
            }
        };
        let ids = self.closed.iter().enumerate().map(|(nth, id)| (nth, score(*id)));
        ids.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(nth, _)| nth)
    }

    fn collect(&mut self, victim: usize) {
        let segment = &mut self.segments[victim];
        let (class, created) = (segment.class, segment.created);
        let blocks = std::mem::take(&mut segment.blocks);
        segment.live = 0;
        if self.placement == Placement::SepBit && class == 0 {
            self.lifespan.add(self.now - created);
        }
        let first = victim as u32 * self.geometry.segment_blocks;
        for (slot, lba) in (first..).zip(&blocks) {
            if self.slots[*lba as usize] == slot {
                self.append(self.class_of_moved(class, *lba), *lba);
                self.moved += 1;
            }
        }
        // Freed only now: its slots told which of its blocks are live.
        self.empty.push(victim);
    }

    fn class_of_moved(&self, from: usize, lba: u32) -> usize {
        match self.placement {
            Placement::Single => 0,
            Placement::SepBit if from == 0 => 2,
            Placement::SepBit => {
                let age = (self.now - self.last_write[lba as usize]) as f64;
                let older = |border: &&f64| age >= **border * self.lifespan.mean;
                3 + AGE_BORDERS.iter().filter(older).count()
            }
        }
    }
}

/// Physical blocks that a log writes for each user write.
pub(crate) fn amplification((user, moved): (u64, u64)) -> f64 {
    1.0 + moved as f64 / (user as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::addresses::{Addresses, Load};
    use super::*;

    /// The larger solution of `w * exp(w) = x` for `-1/e < x < 0`.
    fn lambert(x: f64) -> f64 {
        let mut w = 0.0;
        for _ in 0..200 {
            let e = f64::exp(w);
            w -= (w * e - x) / (e * (w + 1.0));
        }
        w
    }

    /// Greedy cleaning of uniform writes (Desnoyers, "Analytic Models of SSD Write Performance", 2014).
    fn desnoyers(fill: f64, per: f64) -> f64 {
        let spare = 1.0 / fill;
        let factor = 1.0 + 1.0 / (2.0 * per);
        let live = 0.5 - per / spare * lambert(-factor * spare * f64::exp(-factor * spare));
        per / (per - (live - 1.0))
    }

    fn measure(log: &mut Log, addresses: &mut Addresses, live: u32) -> f64 {
        (0..live).for_each(|lba| log.write(lba));
        (0..8 * live).for_each(|_| log.write(addresses.draw()));
        let before = log.counts();
        (0..4 * live).for_each(|_| log.write(addresses.draw()));
        let after = log.counts();
        amplification((after.0 - before.0, after.1 - before.1))
    }

    const GEOMETRY: Geometry = Geometry { segments: 264, segment_blocks: 64, reserved: 8 };

    fn live(percent: u32) -> u32 {
        (GEOMETRY.segments - GEOMETRY.reserved) * GEOMETRY.segment_blocks * percent / 100
    }

    fn run(placement: Placement, selection: Selection, load: Load, percent: u32) -> f64 {
        let live = live(percent);
        let mut log = Log::new(GEOMETRY, placement, selection, live);
        measure(&mut log, &mut Addresses::new(load, live, 7).unwrap(), live)
    }

    #[test]
    fn greedy_cleaning_of_uniform_writes_is_as_predicted() {
        for percent in [70, 80, 90, 95] {
            let measured = run(Placement::Single, Selection::Greedy, Load::Uniform, percent);
            // The open segment holds blocks too.
            let segments = GEOMETRY.segments - GEOMETRY.reserved + 1;
            let fill = f64::from(live(percent)) / f64::from(segments * GEOMETRY.segment_blocks);
            let predicted = desnoyers(fill, f64::from(GEOMETRY.segment_blocks));
            let error = (measured / predicted - 1.0).abs();
            assert!(error < 0.04, "{percent}: {measured} is not {predicted}");
        }
    }

    #[test]
    fn sequential_overwrites_move_nothing() {
        let live = 10_000;
        for placement in [Placement::Single, Placement::SepBit] {
            for selection in [Selection::Greedy, Selection::CostBenefit] {
                let mut log = Log::new(GEOMETRY, placement, selection, live);
                (0..5 * live).for_each(|at| log.write(at % live));
                let amplification = amplification(log.counts());
                assert!(amplification < 1.02, "{placement:?} {selection:?}: {amplification}");
            }
        }
    }

    #[test]
    fn separation_helps_where_some_blocks_are_hot() {
        let greedy = run(Placement::Single, Selection::Greedy, Load::Zipf, 80);
        let sepbit = run(Placement::SepBit, Selection::CostBenefit, Load::Zipf, 80);
        assert!(sepbit < 0.8 * greedy, "{sepbit} is not below {greedy}");
        let greedy = run(Placement::Single, Selection::Greedy, Load::Uniform, 80);
        let sepbit = run(Placement::SepBit, Selection::Greedy, Load::Uniform, 80);
        assert!((0.8..1.2).contains(&(sepbit / greedy)), "{sepbit} is far from {greedy}");
    }

    #[test]
    fn live_blocks_are_counted_once() {
        let live = 12_000;
        let mut log = Log::new(GEOMETRY, Placement::SepBit, Selection::CostBenefit, live);
        measure(&mut log, &mut Addresses::new(Load::Zipf, live, 3).unwrap(), live);
        let counted: u32 = log.segments.iter().map(|segment| segment.live).sum();
        assert_eq!(counted, live);
        assert!(log.closed.len() <= (GEOMETRY.segments - GEOMETRY.reserved) as usize);
    }
}
