//! Foreign suites: `pjdfstest`, which compares each call with POSIX, and `fsx`, which writes, truncates and
//! maps one file at random and compares.

use std::path::Path;
use std::process::Command;

use thalweg_fuse::mounted::MountOptions;

use crate::rig::{Make, Rig};
use crate::tools::{self, tool};

/// Operations of each run of `fsx`.
const OPERATIONS: u32 = 2500;

/// Expected failures of `pjdfstest`, with the reason.
const EXPECTED_FAILURES: [&str; 0] = [];

fn write_config(path: &Path) {
    let failures: Vec<_> = EXPECTED_FAILURES.iter().map(|name| format!("{name:?}")).collect();
    let config = format!(
        "[features]\n\
         posix_fallocate = {{}}\n\
         rename_ctime = {{}}\n\
         utimensat = {{}}\n\
         utime_now = {{}}\n\
         [settings]\n\
         naptime = 0.01\n\
         allow_remount = false\n\
         expected_failures = [{}]\n\
         [dummy_auth]\n\
         entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
        failures.join(", ")
    );
    std::fs::write(path, config).unwrap();
}

pub(crate) fn pjdfstest(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    let Some(program) = tool("pjdfstest") else { return };
    let config = rig.beside().join("pjdfstest.toml");
    write_config(&config);
    let mut command = Command::new(program);
    command.arg("-c").arg(&config).arg("-p").arg(rig.root());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    // The log shows skipped tests with the reasons.
    let skipped = said.lines().filter(|line| line.contains("skipped") || line.starts_with('\t'));
    skipped.for_each(|line| eprintln!("SKIPPED: {}", line.trim()));
    eprintln!("{}", said.lines().last().unwrap_or_default());
    let failures = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{failures}");
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
