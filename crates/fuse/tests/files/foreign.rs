//! Foreign suites: `pjdfstest`, which compares each call with POSIX, and `fsx`, which writes, truncates and
//! maps one file at random and compares.

use std::path::{Path, PathBuf};
use std::process::Command;

use thalweg_fuse::mounted::MountOptions;

use crate::rig::{Make, Rig};

/// Operations of each run of `fsx`.
const OPERATIONS: &str = "6000";

/// Expected failures of `pjdfstest`, with the reason.
const EXPECTED_FAILURES: [&str; 0] = [];

/// A tool of crates.io, installed once below the target directory; `None`, and says so, where that
/// cannot be.
fn tool(name: &str) -> Option<PathBuf> {
    static INSTALLING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = INSTALLING.lock();
    let mut target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    target.pop();
    let (root, log) = (target.join("tools"), target.join(format!("install-{name}.log")));
    let program = root.join("bin").join(name);
    if !program.exists() {
        let mut install = Command::new(env!("CARGO"));
        install.args(["install", "--quiet", "--locked", "--root"]).arg(&root).arg(name);
        // Not into the build directory of the test run.
        install.env("CARGO_TARGET_DIR", target.join("tools-build"));
        let output = install.output().unwrap();
        std::fs::write(&log, &output.stderr).unwrap();
        let _ = std::fs::remove_dir_all(target.join("tools-build"));
    }
    if !program.exists() {
        eprintln!("SKIPPED: cargo cannot install {name}; see {}", log.display());
        return None;
    }
    Some(program)
}

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

/// Runs `fsx` on a file, with the operations that this kind of mount supports.
fn fsx(rig: &Rig, seed: &str, config: &str) {
    let Some(program) = tool("fsx") else { return };
    let path = rig.beside().join("fsx.toml");
    std::fs::write(&path, config).unwrap();
    let mut command = Command::new(program);
    command.args(["-N", OPERATIONS, "-S", seed, "-f"]).arg(&path);
    command.arg("-P").arg(rig.beside()).arg(rig.path("fsx"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Everything that `fsx` knows, in pieces of all sizes.
const BUFFERED: &str = "\
flen = 262144
[opsize]
max = 65536
min = 1
align = 1
[weights]
close_open = 1.0
invalidate = 0.5
mapread = 1.0
mapwrite = 1.0
read = 2.0
write = 2.0
truncate = 1.0
fsync = 0.3
fdatasync = 0.3
posix_fallocate = 0.5
punch_hole = 1.0
sendfile = 0.5
posix_fadvise = 0.3
copy_file_range = 1.0
";

pub(crate) fn fsx_through_the_cache(make: Make) {
    let Some(rig) = Rig::new(make) else { return };
    for seed in ["1", "2"] {
        fsx(&rig, seed, BUFFERED);
    }
}

pub(crate) fn fsx_with_writeback(make: Make) {
    let options = MountOptions { writeback_cache: true, ..MountOptions::default() };
    let Some(rig) = Rig::with(make, &options) else { return };
    fsx(&rig, "3", BUFFERED);
}
