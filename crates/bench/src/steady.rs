//! `steady`: nearly full volumes and filesystems under small durable writes (real time).
//!
//! Three parts, each measured in turns with its peers on the same disk, three rounds:
//!
//! - `nbd`: random 4 KiB writes of fio over NBD to a chained volume, as `thalweg volume create` makes
//!   it, filled to 50, 80 and 95 %; the peer is `qemu-nbd --cache=none` on a file that was written once.
//! - `fs-chain`: 16 threads make 1,600 overwrites of 128 bytes a second durable with `fsync`, in a
//!   filesystem that is 94 % full: ours on a chained volume through FUSE, and ext4 on a loop device.
//! - `in-place`: the same at full speed, ours on a volume that is updated in place in mode wasteless,
//!   alone and beside a writer of 100 MiB/s and a direct reader.
//!
//! A figure with a percentile, or a rate, is the median over the rounds; a longest latency and a stall
//! are the maximum. A stall is the longest time in which no write (`nbd`) or no `fsync` completed. A
//! ratio is the median over the rounds of ratios within a round.
//!
//! It needs root, fio, qemu-nbd and FUSE, and an otherwise idle disk.

mod files;
mod nbd;
mod pace;

use crate::machine::{Machine, Need};
use crate::rig;
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "steady",
    about: "nearly full volumes and filesystems beside qemu-nbd and ext4 (real time)",
    clock: crate::Clock::Real,
    loads: || PARTS.map(|part| part.name.to_owned()).into(),
    traces: false,
    run,
};

/// Number of rounds.
const ROUNDS: usize = 3;

struct Part {
    name: &'static str,
    needs: &'static [Need],
    run: fn(&Machine, &mut Report) -> Result<(), BenchError>,
}

const PARTS: [Part; 3] = [
    Part {
        name: "nbd",
        needs: &[Need::Program("fio"), Need::Program("qemu-nbd")],
        run: nbd::measure,
    },
    Part {
        name: "fs-chain",
        needs: &[Need::Root, Need::Fuse, Need::Program("losetup"), Need::Program("mkfs.ext4")],
        run: files::measure_chain,
    },
    Part {
        name: "in-place",
        needs: &[Need::Root, Need::Fuse, Need::Program("losetup"), Need::Program("mkfs.ext4")],
        run: files::measure_in_place,
    },
];

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let parts: Vec<&Part> = PARTS.iter().filter(|part| options.runs(part.name)).collect();
    let needs = parts.iter().flat_map(|part| part.needs);
    let machine = Machine::new(options, scale, needs.copied())?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    for part in parts {
        (part.run)(&machine, &mut report)?;
    }
    Ok(report)
}

/// A latency in milliseconds, rounded to microseconds.
fn millis(seconds: f64) -> f64 {
    rig::rounded(seconds * 1e3)
}

/// The largest value.
fn maximum(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

/// The median over the rounds of the ratio of two values.
fn ratio<T>(rows: &[T], peers: &[T], value: impl Fn(&T) -> f64) -> f64 {
    let ratios = rows.iter().zip(peers).map(|(row, peer)| value(row) / value(peer).max(1e-12));
    rig::median(ratios.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let refused = run(&Options::default()).unwrap_err().to_string();
        assert!(refused.contains("the program thalweg"), "{refused}");
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        assert_eq!(ratio(&[2.0, 30.0, 8.0], &[1.0, 10.0, 2.0], |value| *value), 3.0);
    }
}
