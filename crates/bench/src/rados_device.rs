//! `rados-device`: durable writes of a device on the objects of a Ceph cluster, beside the same writes by librados alone
//! (real time).
//!
//! The program that the variable `THALWEG_MINI_CLUSTER` names starts a cluster of three servers on this machine, with
//! BlueStore and three copies of each object. Both subjects write to 16 objects of 4 MiB that are present, at the same
//! addresses, and each has a connection of its own. Their rounds are in turns.
//!
//! | figure | meaning |
//! |---|---|
//! | `write_4k_1_over_librados`, `write_4k_16_…`, `write_4m_1_…`, `write_4m_16_…` | rate of the device over that of librados: writes of 4 KiB and 4 MiB, 1 and 16 in flight; median of the rounds |
//! | `device_4k_1_us`, `librados_4k_1_us`, … | microseconds from one completed write to the next; median of the rounds |
//! | `store` | what the servers keep objects in |

use crate::rig::{self};
use crate::{BenchEntry, BenchError, Options, Report};

#[cfg(feature = "librados")]
mod measure;

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "rados-device",
    about: "durable writes of a device on a Ceph cluster, beside librados alone; needs the feature librados",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    #[cfg(feature = "librados")]
    measure::run(scale, &mut report)?;
    #[cfg(not(feature = "librados"))]
    if scale > 0.0 {
        return Err(BenchError::Invalid(
            "this program was built without librados: make build-ceph builds one with it"
                .to_owned(),
        ));
    }
    Ok(report)
}
