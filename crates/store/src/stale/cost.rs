//! The cost of a read (Yogurt 5.3.3, equations 5.2 to 5.4).

use std::fmt;
use std::time::Duration;

use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::block::Residence;
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

/// What a request costs on a device, in nanoseconds: the constants of equations 5.3 and 5.4.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Constants {
    /// A queued read, and the read itself.
    pub read: f64,
    /// A queued write.
    pub write: f64,
}

impl Constants {
    /// Of a solid-state drive.
    pub const SSD: Constants = Constants { read: 100e3, write: 300e3 };
    /// Of a rotational disk: an order of magnitude slower. A write in its queue keeps the arm at the log.
    pub const DISK: Constants = Constants { read: 8e6, write: 16e6 };

    fn of(is_rotational: bool) -> Constants {
        if is_rotational { Constants::DISK } else { Constants::SSD }
    }

    fn cost(&self, queue: QueueDepth) -> f64 {
        self.read * (queue.reads + 1) as f64 + self.write * queue.writes as f64
    }

    /// Follows what a read has taken (normalised least mean squares). The constants stay within what devices of
    /// their kind may be.
    fn learn(&mut self, initial: Constants, queue: QueueDepth, took: f64) {
        let (reads, writes) = ((queue.reads + 1) as f64, queue.writes as f64);
        let error = took - self.cost(queue);
        let step = RATE * error / (reads * reads + writes * writes);
        let within = |value: f64, initial: f64| value.clamp(initial / RANGE, initial * RANGE);
        self.read = within(self.read + step * reads, initial.read);
        self.write = within(self.write + step * writes, initial.write);
    }
}

/// The weight of the newest measurement.
const RATE: f64 = 0.05;
/// How far constants may be from their initial values, as a factor.
const RANGE: f64 = 32.0;

/// Says what reads cost.
pub trait Costs: Send + Sync + fmt::Debug {
    /// The cost of reading a content.
    fn cost(&self, residence: &Residence) -> Cost;

    /// Learns from a read that was to be from `residence`, and took so long.
    fn learn(&self, residence: &Residence, took: Duration);
}

/// The costs of reads from the devices of a store. The constants begin as those of the devices' kinds, and follow
/// what reads take.
#[derive(Debug, Default)]
pub struct CostModel {
    /// By the numbers of devices.
    devices: RwLock<SmallVec<[(u16, Constants); 8]>>,
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
        let known = devices.iter().find(|(number, _)| *number == device);
        known.map_or(Constants::of(is_rotational), |(_, constants)| *constants)
    }

}

impl Costs for CostModel {
    fn cost(&self, residence: &Residence) -> Cost {
        match residence {
            Residence::Memory => Cost::MEMORY,
            Residence::Device { device, is_rotational, queue, .. } => {
                Cost(self.constants(*device, *is_rotational).cost(*queue) as i64)
            }
        }
    }

    fn learn(&self, residence: &Residence, took: Duration) {
        let Residence::Device { device, is_rotational, queue, .. } = residence else { return };
        if self.is_fixed {
            return;
        }
        let initial = Constants::of(*is_rotational);
        let mut devices = self.devices.write();
        let place = devices.iter().position(|(number, _)| number == device);
        let place = place.unwrap_or_else(|| {
            devices.push((*device, initial));
            devices.len() - 1
        });
        if let Some((_, constants)) = devices.get_mut(place) {
            constants.learn(initial, *queue, took.as_nanos() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(device: u16, is_rotational: bool, reads: usize, writes: usize) -> Residence {
        Residence::Device { device, offset: 0, is_rotational, queue: QueueDepth { reads, writes } }
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
        let Constants { read, write } = model.constants(3, true);
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
