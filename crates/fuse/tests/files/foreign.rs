//! Foreign suites: `pjdfstest`, which compares each call with POSIX, and `fsx`, which writes, truncates and
//! maps one file at random and compares.

use thalweg_fuse::mounted::MountOptions;

use crate::rig::{Make, Rig};
use crate::tools;

/// Operations of each run of `fsx`.
const OPERATIONS: u32 = 2500;

pub(crate) fn pjdfstest(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    tools::pjdfstest(&rig.root(), rig.beside());
}

/// Runs `fsx` on a file.
fn fsx(rig: &Rig, seed: u64) {
    tools::fsx(&rig.path("fsx"), rig.beside(), seed, OPERATIONS);
}

pub(crate) fn fsx_through_the_cache(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    for seed in [1, 2] {
        fsx(&rig, seed);
    }
}

pub(crate) fn fsx_with_writeback(make: Make) {
    let options = MountOptions { writeback_cache: true, ..MountOptions::default() };
    let Some(rig) = Rig::with(make, &options) else { return };
    fsx(&rig, 3);
}
