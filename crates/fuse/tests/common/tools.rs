//! Programs of crates.io that test a mounted filesystem.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Those that [`tool`] knows.
const TOOLS: [&str; 2] = ["fsx", "pjdfstest"];

/// A tool of crates.io. All of them are installed once below the target directory; `None`, and says so, where that
/// cannot be.
fn tool(name: &str) -> Option<PathBuf> {
    static INSTALLING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = INSTALLING.lock();
    let mut target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    target.pop();
    let (root, log) = (target.join("tools"), target.join("install-tools.log"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        let mut install = Command::new(env!("CARGO"));
        // Without optimisation: they wait for the filesystem.
        install
            .args(["install", "--quiet", "--locked", "--debug", "--root"])
            .arg(&root)
            .args(TOOLS);
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

/// Runs `fsx` on a file, which it makes, with that many operations. Its settings go to the folder `beside`.
pub(crate) fn fsx(file: &Path, beside: &Path, seed: u64, operations: u32) {
    let Some(program) = tool("fsx") else { return };
    let path = beside.join(format!("fsx-{seed}.toml"));
    std::fs::write(&path, BUFFERED).unwrap();
    let mut command = Command::new(program);
    command.args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-f"]).arg(&path);
    let output = command.arg("-P").arg(beside).arg(file).output().unwrap();
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

/// Runs `pjdfstest` in a directory of a mount that every user may enter. Its settings go to the folder `beside`.
pub(crate) fn pjdfstest(root: &Path, beside: &Path) {
    let Some(program) = tool("pjdfstest") else { return };
    let config = beside.join("pjdfstest.toml");
    write_config(&config);
    let mut command = Command::new(program);
    command.arg("-c").arg(&config).arg("-p").arg(root);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    // The log shows skipped tests with the reasons.
    let skipped = said.lines().filter(|line| line.contains("skipped") || line.starts_with('\t'));
    skipped.for_each(|line| eprintln!("SKIPPED: {}", line.trim()));
    eprintln!("{}", said.lines().last().unwrap_or_default());
    let failures = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{failures}");
}
