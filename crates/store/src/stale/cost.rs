//! The cost of a read (Yogurt 5.3.3, equations 5.2 to 5.4).

use std::fmt;
use std::time::Duration;

use parking_lot::RwLock;
use smallvec::SmallVec;

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
#[derive(Clone, Copy, Debug)]
struct Load {
    reads: f64,
    writes: f64,
    way: f64,
}

impl Load {
    fn new(queue: QueueDepth, way: f64) -> Load {
        Load { reads: (queue.reads + 1) as f64, writes: queue.writes as f64, way }
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

    fn cost(&self, load: Load) -> f64 {
        self.read * load.reads + self.write * load.writes + self.seek * load.way
    }

    /// Follows what a read has taken (normalised least mean squares), but for the way. The constants stay within what devices of
    /// their kind may be.
    fn learn(&mut self, initial: Constants, load: Load, took: f64) {
        let error = took - self.cost(load);
        let norm = load.reads * load.reads + load.writes * load.writes;
        let step = RATE * error / norm;
        let within = |value: f64, initial: f64| value.clamp(initial / RANGE, initial * RANGE);
        self.read = within(self.read + step * load.reads, initial.read);
        self.write = within(self.write + step * load.writes, initial.write);
    }
}

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

    /// Notes that a content is read from `residence`.
    fn begin(&self, _residence: &Residence) {}

    /// Learns from a read that was to be from `residence`, and took so long.
    fn learn(&self, _residence: &Residence, _took: Duration) {}
}

/// What is known of a device.
#[derive(Clone, Copy, Debug)]
struct Known {
    device: u16,
    constants: Constants,
    /// Where the last read went, near which the arm of a disk is.
    arm: Option<u64>,
}

/// The cost of reading a content, by what is known of all devices.
fn cost(devices: &[Known], residence: &Residence) -> Cost {
    let Residence::Device { device, offset, size, is_rotational, queue } = residence else {
        return Cost::MEMORY;
    };
    let known = devices.iter().find(|known| known.device == *device);
    let constants = known.map_or(Constants::of(*is_rotational), |known| known.constants);
    let way = match known.and_then(|known| known.arm) {
        Some(arm) => (offset.abs_diff(arm) as f64 / (*size).max(1) as f64).sqrt(),
        None => 0.0,
    };
    Cost(constants.cost(Load::new(*queue, way)) as i64)
}

/// The costs of reads from the devices of a store. The constants begin as those of the devices' kinds, and follow
/// what reads take.
#[derive(Debug, Default)]
pub struct CostModel {
    devices: RwLock<SmallVec<[Known; 8]>>,
    is_fixed: bool,
}

impl CostModel {
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

    fn change(&self, device: u16, initial: Constants, change: impl FnOnce(&mut Known)) {
        let mut devices = self.devices.write();
        match devices.iter_mut().find(|known| known.device == device) {
            Some(known) => change(known),
            None => {
                let mut known = Known { device, constants: initial, arm: None };
                change(&mut known);
                devices.push(known);
            }
        }
    }
}

impl Costs for CostModel {
    fn cost(&self, residence: &Residence) -> Cost {
        cost(&self.devices.read(), residence)
    }

    fn costs(&self, contents: &[&Located]) -> CostList {
        let devices = self.devices.read();
        contents.iter().map(|content| cost(&devices, &content.residence)).collect()
    }

    fn begin(&self, residence: &Residence) {
        if let Residence::Device { device, offset, is_rotational: true, .. } = residence {
            self.change(*device, Constants::DISK, |known| known.arm = Some(*offset));
        }
    }

    fn learn(&self, residence: &Residence, took: Duration) {
        let Residence::Device { device, is_rotational, queue, .. } = residence else { return };
        if self.is_fixed {
            return;
        }
        let initial = Constants::of(*is_rotational);
        let took = took.as_nanos() as f64;
        self.change(*device, initial, |known| {
            known.constants.learn(initial, Load::new(*queue, 0.0), took);
        });
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

    #[test]
    fn constants_follow_what_reads_take() {
        let model = CostModel::default();
        // A disk of which a read takes 5 ms, and a queued write 30 ms.
        let took = |reads: usize, writes: usize| 5 * (reads as u32 + 1) + 30 * writes as u32;
        for step in 0..2000 {
            let (reads, writes) = (step % 4, step / 4 % 3);
            let took = Duration::from_millis(took(reads, writes).into());
            model.learn(&on(3, true, reads, writes), took);
        }
        let Constants { read, write, .. } = model.constants(3, true);
        assert!((read - 5e6).abs() < 5e4 && (write - 30e6).abs() < 3e5, "{read} {write}");
        // Other devices are not concerned, and a fixed model learns nothing.
        assert_eq!(model.constants(4, true), Constants::DISK);
        let fixed = CostModel::fixed();
        fixed.learn(&on(3, true, 0, 0), Duration::from_secs(1));
        assert_eq!(fixed.constants(3, true), Constants::DISK);
    }

    #[test]
    fn one_wild_measurement_does_not_make_a_device_free_or_unusable() {
        let model = CostModel::default();
        model.learn(&on(0, false, 0, 0), Duration::from_secs(1000));
        let slow = model.constants(0, false).read;
        assert_eq!(slow, Constants::SSD.read * RANGE);
        (0..1000).for_each(|_| model.learn(&on(0, false, 0, 0), Duration::ZERO));
        assert!(model.constants(0, false).read >= Constants::SSD.read / RANGE);
    }
}
