//! Volumes on raw block devices: loop devices here.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Home, bad, good, has, thalweg};

/// A loop device for one test.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    /// One over a new file of `size` bytes; `None`, with a message, if this machine has none.
    pub(crate) fn over(file: &Path, size: u64) -> Option<Loop> {
        std::fs::File::create(file).unwrap().set_len(size).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        if !made.status.success() {
            eprintln!("SKIPPED: no loop device: {}", String::from_utf8_lossy(&made.stderr));
            return None;
        }
        Some(Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).output();
    }
}

fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    good(Command::new("nbdcopy").args(["--flush".as_ref(), from.as_ref(), to.as_ref()]));
}

#[test]
fn a_volume_on_block_devices_is_served_changed_and_opened_again() {
    // SAFETY: the call only reads the process's identity.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("SKIPPED: loop devices need root");
    }
    if !root || !has("losetup") || !has("nbdcopy") {
        return;
    }
    let home = Home::empty();
    let device = |name: &str, mib: u64| Loop::over(&home.path(name), mib << 20);
    let (Some(a), Some(b)) = (device("a.img", 60), device("b.img", 60)) else { return };
    let (Some(c), Some(map)) = (device("c.img", 60), device("map.img", 32)) else { return };
    let create = |force: &[&str]| {
        let mut create = thalweg(["volume", "create", "--size", "64M", "--sector", "4096"]);
        create.arg(home.volume()).args(["--link", &a.0, "--link", &b.0, "--map", &map.0]);
        create.args(force);
        create
    };
    good(&mut create(&[]));
    let bytes: Vec<u8> = (0..64 << 20).map(|at: u64| (at ^ (at >> 9)) as u8).collect();
    std::fs::write(home.path("in"), &bytes).unwrap();
    let read = |uri: String| {
        copy(uri, home.path("out"));
        std::fs::read(home.path("out")).unwrap()
    };
    let server = home.serve(&[]);
    copy(home.path("in"), PathBuf::from(server.uri("vol")));
    assert!(read(server.uri("vol")) == bytes);
    // The kernel excludes other openers too.
    let mut other = thalweg(["volume", "create", "--size", "32M", "--force", "--link", &a.0]);
    let said = bad(other.arg(home.path("other")), 1);
    assert!(said.contains("in use"), "{said}");
    server.kill();
    let server = home.serve(&[]);
    assert!(read(server.uri("vol")) == bytes, "flushed writes were lost");
    good(&mut home.on_volume(&["extend"], &["--link", &c.0]));
    good(&mut home.on_volume(&["shrink"], &["--link", &a.0]));
    server.end();
    let server = home.serve(&[]);
    assert!(read(server.uri("vol")) == bytes);
    server.end();
    // A removed device has no owner, and destroying the volume leaves nothing behind.
    let mut other = thalweg(["volume", "create", "--size", "32M", "--link", &a.0]);
    good(other.arg(home.path("other")));
    good(thalweg(["volume", "destroy", "--yes"]).arg(home.path("other")));
    good(&mut home.on_volume(&["destroy"], &["--yes"]));
    good(&mut create(&[]));
}
