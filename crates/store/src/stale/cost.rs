//! The cost of a read (Yogurt 5.3.3, equations 5.2 to 5.4).

use std::fmt;
use std::time::Duration;

use parking_lot::RwLock;
use smallvec::SmallVec;
use thalweg_env::{Env, Time};

use super::arm::{Arm, Way};
use crate::block::{Located, Residence};
use crate::device::QueueDepth;

/// The estimated time of a read in nanoseconds. Memory is cheaper than every device.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct Cost(pub i64);

impl Cost {
    /// Of content in memory (equation 5.2).
    pub const MEMORY: Cost = Cost(-1);

    /// The same read from a node that is a round trip away.
    pub fn after(self, round_trip: Duration) -> Cost {
        Cost(self.0.saturating_add(i64::try_from(round_trip.as_nanos()).unwrap_or(i64::MAX)))
    }
}

/// What a request costs on a device, in nanoseconds: the constants of equations 5.3 and 5.4, and one for the way of a
/// disk's arm.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Constants {
    /// A queued read, and the read itself.
    pub read: f64,
    /// A queued write.
    pub write: f64,
    /// A way of the arm over the whole device; times grow with the root of the way.
    pub seek: f64,
}

/// What the cost of a read depends on, as the factors of its constants.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    reads: f64,
    writes: f64,
    /// The roots of the ways of the arm.
    ways: f64,
    /// Nanoseconds for which another read has been served already.
    served: f64,
}

impl Load {
    /// Of a device that serves requests in their order.
    fn in_order(queue: QueueDepth) -> Load {
        let reads = (queue.reads + 1) as f64;
        Load { reads, writes: queue.writes as f64, ..Load::default() }
    }

    /// Of a disk. It serves what it reaches first: some of the reads that wait come before this one, and take the less the more
    /// there are to choose from. The others are later by the way to this one, which counts, too: otherwise readers would send
    /// each other's arms over longer ways than they need.
    fn of_disk(queue: QueueDepth, way: Way) -> Load {
        let waiting = queue.reads as f64;
        let (reads, ways) = (1.0 + BEFORE * waiting, way.root * (1.0 + waiting));
        Load { reads, writes: queue.writes as f64, ways, served: way.served }
    }
}

impl Constants {
    /// Of a solid-state drive.
    pub const SSD: Constants = Constants { read: 100e3, write: 300e3, seek: 0.0 };
    /// Of a rotational disk: an order of magnitude slower. A write in its queue keeps the arm at the log.
    pub const DISK: Constants = Constants { read: 6e6, write: 16e6, seek: 12e6 };

    fn of(is_rotational: bool) -> Constants {
        if is_rotational { Constants::DISK } else { Constants::SSD }
    }

    fn cost(&self, load: &Load) -> f64 {
        let queue = self.read * load.reads + self.write * load.writes;
        queue - load.served.min(self.read) + self.seek * load.ways
    }

    /// Follows what a read has taken (normalised least mean squares), but for the ways. The constants stay within what devices of
    /// their kind may be.
    fn learn(&mut self, initial: Constants, load: &Load, took: f64) {
        let error = took - self.cost(load);
        let norm = load.reads * load.reads + load.writes * load.writes;
        let step = RATE * error / norm;
        let within = |value: f64, initial: f64| value.clamp(initial / RANGE, initial * RANGE);
        self.read = within(self.read + step * load.reads, initial.read);
        self.write = within(self.write + step * load.writes, initial.write);
    }
}

/// The time of the reads that a disk serves before another one, as a share of what those that wait would take alone.
const BEFORE: f64 = 0.3;
/// The weight of the newest measurement.
const RATE: f64 = 0.02;
/// How far constants may be from their initial values, as a factor.
const RANGE: f64 = 32.0;

/// The costs of some contents.
pub type CostList = SmallVec<[Cost; 8]>;

/// Says what reads cost.
pub trait Costs: Send + Sync + fmt::Debug {
    /// The cost of reading a content.
    fn cost(&self, residence: &Residence) -> Cost;

    /// The costs of reading some contents, in their order.
    fn costs(&self, contents: &[&Located]) -> CostList {
        contents.iter().map(|content| self.cost(&content.residence)).collect()
    }

    /// Notes that a read from `residence` begins; returns what its cost depends on.
    fn begin(&self, _residence: &Residence) -> Load {
        Load::default()
    }

    /// Learns from a read that was to be from `residence`, and took so long.
    fn learn(&self, _residence: &Residence, _load: &Load, _took: Duration) {}

    /// Notes that a read has ended, in whatever way.
    fn end(&self, _residence: &Residence) {}
}

/// A read that has begun. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    costs: &'a dyn Costs,
    residence: Residence,
    load: Load,
}

impl<'a> Reading<'a> {
    /// Begins a read.
    pub(super) fn begin(costs: &'a dyn Costs, residence: Residence) -> Reading<'a> {
        Reading { costs, residence, load: costs.begin(&residence) }
    }

    /// Has it end after so long.
    pub(super) fn learn(self, took: Duration) {
        self.costs.learn(&self.residence, &self.load, took);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.costs.end(&self.residence);
    }
}

/// What is known of a device.
#[derive(Clone, Debug)]
struct Known {
    device: u16,
    constants: Constants,
    arm: Arm,
}

/// The costs of reads from the devices of a store. The constants begin as those of the devices' kinds, and follow
/// what reads take.
#[derive(Debug, Default)]
pub struct CostModel {
    env: Option<Env>,
    devices: RwLock<SmallVec<[Known; 8]>>,
    is_fixed: bool,
}

impl CostModel {
    /// A model without any measurement yet.
    pub fn new(env: &Env) -> CostModel {
        CostModel { env: Some(env.clone()), ..CostModel::default() }
    }

    /// A model that keeps its constants, whatever reads take.
    pub fn fixed() -> CostModel {
        CostModel { is_fixed: true, ..CostModel::default() }
    }

    /// The present constants of a device.
    pub fn constants(&self, device: u16, is_rotational: bool) -> Constants {
        let devices = self.devices.read();
        let known = devices.iter().find(|known| known.device == device);
        known.map_or(Constants::of(is_rotational), |known| known.constants)
    }

    fn now(&self) -> Time {
        self.env.as_ref().map_or(Time::ZERO, Env::now)
    }

    fn change(&self, device: u16, is_rotational: bool, change: impl FnOnce(&mut Known)) {
        let mut devices = self.devices.write();
        match devices.iter_mut().find(|known| known.device == device) {
            Some(known) => change(known),
            None => {
                let constants = Constants::of(is_rotational);
                let mut known = Known { device, constants, arm: Arm::default() };
                change(&mut known);
                devices.push(known);
            }
        }
    }

    /// What the cost of a read depends on, and the constants of its device; `None` for memory.
    fn load(&self, devices: &[Known], residence: &Residence) -> Option<(Load, Constants)> {
        let Residence::Device { device, offset, size, is_rotational, queue } = residence else {
            return None;
        };
        let known = devices.iter().find(|known| known.device == *device);
        let constants = known.map_or(Constants::of(*is_rotational), |known| known.constants);
        let load = match known {
            _ if !is_rotational => Load::in_order(*queue),
            Some(known) => Load::of_disk(*queue, known.arm.way_to(*offset, *size, self.now())),
            None => Load::of_disk(*queue, Way::default()),
        };
        Some((load, constants))
    }

    fn cost_at(&self, devices: &[Known], residence: &Residence) -> Cost {
        let load = self.load(devices, residence);
        load.map_or(Cost::MEMORY, |(load, constants)| Cost(constants.cost(&load) as i64))
    }
}

impl Costs for CostModel {
    fn cost(&self, residence: &Residence) -> Cost {
        self.cost_at(&self.devices.read(), residence)
    }

    fn costs(&self, contents: &[&Located]) -> CostList {
        let devices = self.devices.read();
        contents.iter().map(|content| self.cost_at(&devices, &content.residence)).collect()
    }

    fn begin(&self, residence: &Residence) -> Load {
        let load = self.load(&self.devices.read(), residence);
        if let Residence::Device { device, offset, is_rotational: true, .. } = residence {
            let now = self.now();
            self.change(*device, true, |known| known.arm.begin(*offset, now));
        }
        load.map_or_else(Load::default, |(load, _)| load)
    }

    fn learn(&self, residence: &Residence, load: &Load, took: Duration) {
        let Residence::Device { device, is_rotational, .. } = residence else { return };
        if self.is_fixed {
            return;
        }
        let (initial, took) = (Constants::of(*is_rotational), took.as_nanos() as f64);
        self.change(*device, *is_rotational, |known| known.constants.learn(initial, load, took));
    }

    fn end(&self, residence: &Residence) {
        if let Residence::Device { device, offset, is_rotational: true, .. } = residence {
            let now = self.now();
            self.change(*device, true, |known| known.arm.end(*offset, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(device: u16, is_rotational: bool, reads: usize, writes: usize) -> Residence {
        Residence::Device {
            device,
            offset: 0,
            size: 1,
            is_rotational,
            queue: QueueDepth { reads, writes },
        }
    }

    #[test]
    fn memory_is_cheaper_than_an_ssd_and_that_than_a_disk() {
        let model = CostModel::default();
        let [memory, ssd, disk] =
            [Residence::Memory, on(0, false, 0, 0), on(1, true, 0, 0)].map(|it| model.cost(&it));
        assert!(memory < Cost(0) && Cost(0) < ssd && ssd < disk, "{memory:?} {ssd:?} {disk:?}");
        // An SSD is avoided when an order of magnitude more requests wait for it.
        assert!(model.cost(&on(0, false, 9, 0)) < disk);
        assert!(model.cost(&on(0, false, 100, 0)) > disk);
        // Queued writes cost more than queued reads.
        for is_rotational in [false, true] {
            let cost = |reads, writes| model.cost(&on(2, is_rotational, reads, writes));
            assert!(cost(0, 1) > cost(1, 0) && cost(1, 0) > cost(0, 0));
        }
    }

    fn learn(model: &CostModel, residence: Residence, took: Duration) {
        Reading::begin(model, residence).learn(took);
    }

    #[test]
    fn constants_follow_what_reads_take() {
        let model = CostModel::default();
        // A drive of which a read takes 50 us, and a queued write 200 us.
        let took = |reads: usize, writes: usize| 50 * (reads as u32 + 1) + 200 * writes as u32;
        for step in 0..2000 {
            let (reads, writes) = (step % 4, step / 4 % 3);
            let took = Duration::from_micros(took(reads, writes).into());
            learn(&model, on(3, false, reads, writes), took);
        }
        let Constants { read, write, .. } = model.constants(3, false);
        assert!((read - 5e4).abs() < 5e2 && (write - 2e5).abs() < 2e3, "{read} {write}");
        // Other devices are not concerned, and a fixed model learns nothing.
        assert_eq!(model.constants(4, false), Constants::SSD);
        let fixed = CostModel::fixed();
        learn(&fixed, on(3, true, 0, 0), Duration::from_secs(1));
        assert_eq!(fixed.constants(3, true), Constants::DISK);
    }

    #[test]
    fn a_disk_costs_what_its_queue_and_the_way_of_its_arm_make_of_it() {
        let model = CostModel::fixed();
        let at = |offset: u64, reads: usize| Residence::Device {
            device: 5,
            offset,
            size: 100,
            is_rotational: true,
            queue: QueueDepth { reads, writes: 0 },
        };
        let Constants { read, seek, .. } = Constants::DISK;
        let is = |residence: Residence, cost: f64| {
            assert_eq!(model.cost(&residence), Cost(cost as i64), "{residence:?}");
        };
        // Nothing is known of the arm.
        is(at(64, 0), read);
        is(at(64, 2), (1.0 + 2.0 * BEFORE) * read);
        let reading = Reading::begin(&model, at(0, 0));
        // Before or behind that read.
        is(at(64, 1), (1.0 + BEFORE) * read + 2.0 * 0.8 * seek);
        drop(reading);
        is(at(64, 0), read + 0.8 * seek);
        is(at(1, 0), read + 0.1 * seek);
    }

    #[test]
    fn one_wild_measurement_does_not_make_a_device_free_or_unusable() {
        let model = CostModel::default();
        learn(&model, on(0, false, 0, 0), Duration::from_secs(1000));
        let slow = model.constants(0, false).read;
        assert_eq!(slow, Constants::SSD.read * RANGE);
        (0..1000).for_each(|_| learn(&model, on(0, false, 0, 0), Duration::ZERO));
        assert!(model.constants(0, false).read >= Constants::SSD.read / RANGE);
    }
}
