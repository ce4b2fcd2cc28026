//! The end of a mount where other filesystems are mounted, and what it leaves open.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::block_device::server_of;
use crate::files::{Mount, can_mount, text, wait_until};
use crate::mounts::has_ended;
use crate::run::{Home, bad, good, thalweg, umount};

/// A volume beside that of a mount.
fn another() -> Home {
    let home = Home::empty();
    good(thalweg(["mkfs", "--quiet", "--in-place", "--size", "16M"]).arg(home.volume()));
    home
}

fn is_mounted(source: &Path, root: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let (source, root) = (source.display().to_string(), root.display().to_string());
    let is_it = |line: &&str| line.contains(&format!(" {source} "));
    table.lines().filter(is_it).any(|line| line.split(' ').nth(4) == Some(&root))
}

#[test]
fn a_volume_that_ends_late_leaves_the_next_one_on_its_directory() {
    let Some(mount) = Mount::new(&[]) else { return };
    let second = another();
    fs::write(mount.path("a"), "first").unwrap();
    let (server, held) = (server_of(&mount.home), File::open(mount.path("a")).unwrap());
    good(Command::new("umount").arg("-l").arg(&mount.root));
    good(thalweg(["mount"]).arg(second.volume()).arg(&mount.root));
    fs::write(mount.path("b"), "second").unwrap();
    drop(held);
    wait_until(|| has_ended(&server));
    assert!(is_mounted(&second.volume(), &mount.root));
    fs::write(mount.path("c"), "third").unwrap();
    umount(thalweg(["umount"]), &mount.root);
    assert_eq!(fs::read_dir(&mount.root).unwrap().count(), 0, "it went to the directory below");
    good(thalweg(["mount"]).arg(second.volume()).arg(&mount.root));
    assert_eq!((text(&mount.path("b")), text(&mount.path("c"))), ("second".into(), "third".into()));
    umount(thalweg(["umount"]), &mount.root);
}

#[test]
fn an_unmount_by_name_refuses_what_another_filesystem_covers() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::write(mount.path("a"), "first").unwrap();
    let second = another();
    good(thalweg(["mount"]).arg(second.volume()).arg(&mount.root));
    let named = |lazy: &[&str]| bad(thalweg(["umount"]).args(lazy).arg(mount.home.volume()), 1);
    for lazy in [&[][..], &["--lazy"]] {
        let said = named(lazy);
        assert!(said.contains("another filesystem is mounted over"), "{said}");
        assert!(is_mounted(&second.volume(), &mount.root));
    }
    umount(thalweg(["umount"]), &mount.root);
    assert_eq!(text(&mount.path("a")), "first");
    good(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&mount.root));
    fs::write(mount.path("b"), "in memory").unwrap();
    for what in [mount.home.volume(), mount.root.clone()] {
        let said = bad(thalweg(["umount"]).arg(what), 1);
        assert!(said.contains("another filesystem is mounted over"), "{said}");
    }
    assert_eq!(text(&mount.path("b")), "in memory");
    good(Command::new("umount").arg(&mount.root));
    mount.umount();
}

#[test]
fn a_server_has_ended_when_the_unmount_returns() {
    let Some(mount) = Mount::new(&[]) else { return };
    for round in 0..10 {
        fs::write(mount.path("a"), format!("{round}")).unwrap();
        let server = server_of(&mount.home);
        mount.umount();
        assert!(has_ended(&server), "round {round}");
        mount.mount(&[]);
    }
}

#[test]
fn a_server_keeps_nothing_of_the_shell_that_mounted() {
    if !can_mount() {
        return;
    }
    let home = another();
    let (root, lock) = (home.path("mnt"), home.path("lock"));
    fs::create_dir(&root).unwrap();
    let script = format!(
        "exec 7>{lock} 8</ 9</dev/null; flock 7; exec {program} mount {volume} {root}",
        lock = lock.display(),
        program = env!("CARGO_BIN_EXE_thalweg"),
        volume = home.volume().display(),
        root = root.display(),
    );
    good(Command::new("sh").args(["-ec", &script]).env_remove("THALWEG_LOG"));
    good(Command::new("flock").arg("-n").arg(&lock).arg("true"));
    let server = server_of(&home);
    let open = fs::read_dir(format!("/proc/{server}/fd")).unwrap().flatten();
    let open: Vec<_> = open.filter_map(|it| fs::read_link(it.path()).ok()).collect();
    assert!(!open.iter().any(|it| it == &lock || it == Path::new("/")), "{open:?}");
    umount(thalweg(["umount"]), &root);
}
