//! The position of a byte on a disk, and the time to reach it.
//!
//! All times are in nanoseconds, all positions in bytes. Tracks form one spiral from the outer edge,
//! so that a sequential stream never waits: the rates are the sustained ones of a data sheet, which
//! include switches of head and track.

use std::time::Duration;

use super::HardDiskSpec;
use crate::busy::Kind;

/// Number of zones of equal capacity, from the outer rate to the inner.
const ZONES: u64 = 16;

/// Seek times as data sheets state them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekTimes {
    /// To a neighbouring track.
    pub track_to_track: Duration,
    /// The mean over random pairs of tracks.
    pub average: Duration,
    /// From edge to edge.
    pub full_stroke: Duration,
}

/// Seek time as a function of distance: the square root of the distance while the arm mostly
/// accelerates, up to a third of the stroke, and linear beyond.
#[derive(Clone, Copy, Debug)]
struct SeekCurve {
    base: f64,
    root: f64,
    slope: f64,
}

/// The fraction of the stroke where the curve turns linear.
const KNEE: f64 = 1.0 / 3.0;

impl SeekCurve {
    /// The curve whose mean over random pairs is the stated average.
    ///
    /// The distance of two random points of the unit interval has the density 2(1-d). With
    /// t(d) = base + root*sqrt(d) below the knee and linear from there to the full stroke, the mean
    /// is linear in `root`, so `root` has a closed form.
    fn fit(times: SeekTimes) -> SeekCurve {
        let base = times.track_to_track.as_nanos() as f64;
        let average = times.average.as_nanos() as f64;
        let full = times.full_stroke.as_nanos() as f64;
        // Integrals of 2(1-d): over [0, knee], there weighted by sqrt(d); over [knee, 1], weighted
        // by the distance from the knee.
        let below = 1.0 - (1.0 - KNEE).powi(2);
        let roots = 2.0 * (KNEE.powf(1.5) * 2.0 / 3.0 - KNEE.powf(2.5) * 2.0 / 5.0);
        let above = (1.0 - KNEE).powi(2);
        let span = 1.0 - KNEE;
        let beyond = span.powi(3) / 3.0;
        // mean = base*below + root*roots + knee_time*above + (full - knee_time)/span*beyond
        // with knee_time = base + root*sqrt(knee).
        let weight = above - beyond / span;
        let constant = base * (below + weight) + full * beyond / span;
        let root = ((average - constant) / (roots + KNEE.sqrt() * weight)).max(0.0);
        let slope = (full - base - root * KNEE.sqrt()) / span;
        SeekCurve { base, root, slope }
    }

    /// Nanoseconds for a seek over `distance`, a fraction of the stroke above zero.
    fn nanos(&self, distance: f64) -> u64 {
        let rooted = self.base + self.root * distance.min(KNEE).sqrt();
        (rooted + self.slope * (distance - KNEE).max(0.0)).max(0.0) as u64
    }
}

/// Adjacent tracks of equal length.
#[derive(Clone, Copy, Debug)]
struct Zone {
    start: u64,
    first_track: u64,
    track_bytes: u64,
}

/// A position on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    track: u64,
    /// Rotation from the index mark, in nanoseconds.
    angle: u64,
}

/// The components of a positioning time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Positioning {
    pub(super) seek: u64,
    pub(super) rotation: u64,
}

/// The geometry and kinematics of one disk.
#[derive(Debug)]
pub(super) struct Mechanics {
    zones: Vec<Zone>,
    tracks: u64,
    pub(super) revolution: u64,
    read_curve: SeekCurve,
    write_curve: SeekCurve,
}

impl Mechanics {
    pub(super) fn new(spec: &HardDiskSpec) -> Mechanics {
        let revolution = 60_000_000_000 / u64::from(spec.rpm.max(1));
        let sector = u64::from(spec.sector.max(1));
        let zone_bytes = (spec.size / ZONES).max(sector);
        let (outer, inner) = (spec.outer_rate as f64, spec.inner_rate as f64);
        let mut tracks = 0;
        let mut zones = Vec::new();
        for i in 0..ZONES {
            let rate = outer + (inner - outer) * i as f64 / (ZONES - 1) as f64;
            let track_bytes = ((rate * revolution as f64 / 1e9) as u64).max(sector);
            zones.push(Zone { start: i * zone_bytes, first_track: tracks, track_bytes });
            tracks += zone_bytes.div_ceil(track_bytes);
        }
        Mechanics {
            zones,
            tracks,
            revolution,
            read_curve: SeekCurve::fit(spec.read_seek),
            write_curve: SeekCurve::fit(spec.write_seek),
        }
    }

    fn zone(&self, offset: u64) -> (usize, &Zone) {
        let index = self.zones.partition_point(|zone| zone.start <= offset).saturating_sub(1);
        (index, &self.zones[index])
    }

    fn place(&self, offset: u64) -> Place {
        let (_, zone) = self.zone(offset);
        let within = offset - zone.start;
        let angle = scale(within % zone.track_bytes, self.revolution, zone.track_bytes);
        Place { track: zone.first_track + within / zone.track_bytes, angle }
    }

    /// The time to move from `head` to `target`, starting at `start`.
    pub(super) fn position(&self, head: u64, target: u64, kind: Kind, start: u64) -> Positioning {
        let (from, to) = (self.place(head), self.place(target));
        let distance = from.track.abs_diff(to.track);
        let curve = match kind {
            Kind::Read => &self.read_curve,
            Kind::Write => &self.write_curve,
        };
        let seek = match distance {
            0 => 0,
            _ => curve.nanos(distance as f64 / self.tracks as f64),
        };
        let angle = (start + seek) % self.revolution;
        let rotation = (to.angle + self.revolution - angle) % self.revolution;
        Positioning { seek, rotation }
    }

    /// The time in which `len` bytes at `offset` pass under the head.
    pub(super) fn transfer(&self, offset: u64, len: u64) -> u64 {
        let (mut index, _) = self.zone(offset);
        let (mut at, end) = (offset, offset + len);
        let mut nanos = 0;
        while at < end {
            let next = self.zones.get(index + 1).map_or(u64::MAX, |zone| zone.start);
            let take = next.min(end) - at;
            nanos += scale(take, self.revolution, self.zones[index].track_bytes);
            at += take;
            index += 1;
        }
        nanos
    }

    /// Number of bytes that pass under the head in `nanos`, from `offset` on.
    pub(super) fn bytes_in(&self, offset: u64, nanos: u64) -> u64 {
        scale(nanos, self.zone(offset).1.track_bytes, self.revolution)
    }
}

/// `value * numerator / denominator` without overflow.
fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use thalweg_env::Rng;

    #[test]
    fn the_seek_curve_meets_the_data_sheet() {
        let millis = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        for (short, mean, full) in [(0.2, 3.4, 6.6), (0.5, 3.9, 7.0), (1.0, 8.5, 18.0)] {
            let times = SeekTimes {
                track_to_track: millis(short),
                average: millis(mean),
                full_stroke: millis(full),
            };
            let curve = SeekCurve::fit(times);
            let mut rng = Rng::seed_from_u64(1);
            let draws = 200_000;
            let sum: f64 = (0..draws)
                .map(|_| curve.nanos((rng.random::<f64>() - rng.random::<f64>()).abs()) as f64)
                .sum();
            let measured = sum / f64::from(draws) / 1e6;
            assert!((measured / mean - 1.0).abs() < 0.01, "{measured} ms instead of {mean}");
            assert!((curve.nanos(1.0) as f64 / 1e6 / full - 1.0).abs() < 0.01);
            assert!((curve.nanos(1e-9) as f64 / 1e6 - short).abs() < 0.01);
            assert!(curve.nanos(0.1) < curve.nanos(0.2) && curve.nanos(0.5) < curve.nanos(0.6));
        }
    }

    #[test]
    fn the_outer_zone_is_faster() {
        let spec = HardDiskSpec::sas_15k(64 << 30);
        let mechanics = Mechanics::new(&spec);
        let rate = |offset| (1u64 << 24) as f64 * 1e9 / mechanics.transfer(offset, 1 << 24) as f64;
        assert!((rate(0) / spec.outer_rate as f64 - 1.0).abs() < 0.01);
        assert!((rate(spec.size - (1 << 24)) / spec.inner_rate as f64 - 1.0).abs() < 0.01);
    }

    #[test]
    fn the_sector_just_passed_costs_a_revolution_and_the_next_one_nothing() {
        let mechanics = Mechanics::new(&HardDiskSpec::sas_15k(64 << 30));
        let first = mechanics.position(0, 0, Kind::Read, 0);
        assert_eq!(first, Positioning { seek: 0, rotation: 0 });
        let passed = mechanics.transfer(0, 4096);
        let again = mechanics.position(4096, 0, Kind::Read, passed);
        assert_eq!(again.rotation, mechanics.revolution - passed);
        assert!(mechanics.position(4096, 4096, Kind::Read, passed).rotation < 10);
    }
}
