//! Unmounts of a filesystem on a directory that has further mounts.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::Command;

use thalweg_fuse::mounts;

use crate::rig::{Rig, naive};

fn is_busy(outcome: &io::Result<()>) -> bool {
    matches!(outcome, Err(error) if error.kind() == ErrorKind::ResourceBusy)
}

fn run(words: &[&str], path: &Path) {
    let output = Command::new(words[0]).args(&words[1..]).arg(path).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

#[test]
fn a_filesystem_that_ends_late_leaves_what_is_mounted_there_since() {
    let Some(mut rig) = Rig::new(naive) else { return };
    fs::write(rig.path("a"), "first").unwrap();
    let held = File::open(rig.path("a")).unwrap();
    run(&["umount", "-l"], &rig.root());
    let second = rig.mount_another(naive);
    fs::write(rig.path("b"), "second").unwrap();
    assert_ne!(second.device(), rig.mounted().device());
    // Its last user is gone, and so the first one ends.
    drop(held);
    let first = rig.take_mounted();
    rig.block_on(first.ended());
    first.unmount(true).unwrap();
    drop(first);
    assert_eq!(fs::read_to_string(rig.path("b")).unwrap(), "second");
    let at = mounts::at(&rig.root()).unwrap().unwrap();
    assert_eq!(at.device, second.device());
    second.unmount(true).unwrap();
    assert!(!rig.path("b").exists() && fs::read_dir(rig.root()).unwrap().next().is_none());
}

#[test]
fn a_filesystem_is_dropped_while_it_lives_on_below_another_one() {
    let Some(mut rig) = Rig::new(naive) else { return };
    fs::write(rig.path("a"), "first").unwrap();
    let held = File::open(rig.path("a")).unwrap();
    run(&["umount", "-l"], &rig.root());
    let second = rig.mount_another(naive);
    fs::write(rig.path("b"), "second").unwrap();
    drop(rig.take_mounted());
    assert_eq!(fs::read_to_string(rig.path("b")).unwrap(), "second");
    drop(held);
    second.unmount(true).unwrap();
}

#[test]
fn a_covered_filesystem_stays_and_so_does_what_covers_it() {
    let Some(mut rig) = Rig::new(naive) else { return };
    fs::write(rig.path("a"), "first").unwrap();
    let second = rig.mount_another(naive);
    fs::write(rig.path("b"), "second").unwrap();
    for detach in [false, true] {
        assert!(is_busy(&rig.mounted().unmount(detach)), "{detach}");
    }
    assert_eq!(fs::read_to_string(rig.path("b")).unwrap(), "second");
    let covered = mounts::of(rig.mounted().identity()).unwrap();
    assert_eq!(covered, [rig.root()]);
    second.unmount(true).unwrap();
    // Below a directory that another filesystem covers.
    run(&["mount", "-t", "tmpfs", "none"], rig.beside());
    fs::create_dir(rig.root()).unwrap();
    run(&["mount", "-t", "tmpfs", "none"], &rig.root());
    fs::write(rig.path("c"), "third").unwrap();
    for detach in [false, true] {
        assert!(is_busy(&rig.mounted().unmount(detach)), "{detach}");
    }
    assert_eq!(fs::read_to_string(rig.path("c")).unwrap(), "third");
    run(&["umount", "-l"], &rig.root());
    run(&["umount", "-l"], rig.beside());
    assert_eq!(fs::read_to_string(rig.path("a")).unwrap(), "first");
    rig.unmount();
}
