//! Snapshots of a filesystem: mount, check, list, roll back.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::files::{Mount, in_place, text};
use crate::run::{bad, good, has, json, thalweg, umount};

/// A mounted volume whose file `a` has changed since the snapshot `monday`.
fn changed_since_monday() -> Option<Mount> {
    let mount = Mount::new(&[])?;
    fs::write(mount.path("a"), "old").unwrap();
    fs::write(mount.path("gone"), vec![7; 1 << 20]).unwrap();
    good(&mut mount.home.on_volume(&["snapshot", "create"], &["monday"]));
    fs::write(mount.path("a"), "new").unwrap();
    fs::remove_file(mount.path("gone")).unwrap();
    Some(mount)
}

/// `VOLUME@monday`.
fn monday(mount: &Mount) -> String {
    format!("{}@monday", mount.home.volume().display())
}

#[test]
fn a_snapshot_is_mounted_beside_its_volume() {
    let Some(mount) = changed_since_monday() else { return };
    let there = mount.home.path("monday");
    fs::create_dir(&there).unwrap();
    let said = bad(thalweg(["mount", "-o", "rw"]).arg(monday(&mount)).arg(&there), 1);
    assert!(said.contains("is a snapshot"), "{said}");
    good(thalweg(["mount", "-o", "ro"]).arg(monday(&mount)).arg(&there));
    assert_eq!((text(&there.join("a")), text(&mount.path("a"))), ("old".into(), "new".into()));
    // Restore one file.
    fs::copy(there.join("gone"), mount.path("gone")).unwrap();
    assert_eq!(fs::read(mount.path("gone")).unwrap(), vec![7; 1 << 20]);
    let error = fs::write(there.join("b"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    let status = mount.home.status();
    assert_eq!(status["mounted"], mount.root.display().to_string());
    assert_eq!(status["mounted_snapshots"][0]["directory"], there.display().to_string());
    let said = good(&mut mount.home.on_volume(&["status"], &[]));
    assert!(said.contains("snapshot monday mounted on"), "{said}");
    let said = bad(&mut mount.home.on_volume(&["snapshot", "delete"], &["monday"]), 1);
    assert!(said.contains("is mounted on"), "{said}");
    let said = bad(thalweg(["tx"]).arg(&there).args(["--", "true"]), 125);
    assert!(said.contains("is a snapshot"), "{said}");
    assert!(good(thalweg(["fsck"]).arg(monday(&mount))).contains("3 inodes"));
    let found = json(thalweg(["fsck", "-d", "--json"]).arg(monday(&mount)));
    assert_eq!((&found["clean"], &found["inodes"]), (&true.into(), &3.into()));
    let said = bad(thalweg(["fsck", "-y"]).arg(monday(&mount)), 8);
    assert!(said.contains("is a snapshot"), "{said}");
    umount(thalweg(["umount"]), &there);
    assert!(!there.join("a").exists());
    fs::write(mount.path("a"), "newer").unwrap();
    good(&mut mount.home.on_volume(&["snapshot", "delete"], &["monday"]));
    let said = bad(thalweg(["mount"]).arg(monday(&mount)).arg(&there), 1);
    assert!(said.contains("monday"), "{said}");
}

#[test]
fn a_snapshot_of_a_closed_volume_is_mounted_and_no_byte_changes() {
    let Some(mount) = changed_since_monday() else { return };
    mount.umount();
    let images = || {
        let names = ["link0", "link1", "volume.toml"];
        names.map(|name| fs::read(mount.home.volume().join(name)).unwrap())
    };
    let before = images();
    good(thalweg(["mount"]).arg(monday(&mount)).arg(&mount.root));
    assert_eq!(text(&mount.path("a")), "old");
    let source = monday(&mount);
    assert!(mount.shown().unwrap().contains(&format!("fuse.thalweg {source} ro")));
    let said = bad(thalweg(["mount"]).arg(mount.home.volume()).arg(mount.home.path(".")), 1);
    assert!(said.contains("is open read-only"), "{said}");
    umount(thalweg(["umount"]), &mount.root);
    assert!(good(thalweg(["fsck", "-n"]).arg(monday(&mount))).contains("3 inodes"));
    assert!(good(&mut mount.home.on_volume(&["snapshot", "list"], &[])).contains("monday"));
    assert!(images() == before);
    let said = bad(thalweg(["mount"]).arg(format!("{source}s")).arg(&mount.root), 1);
    assert!(said.contains("mondays"), "{said}");
    mount.mount(&[]);
    assert_eq!(text(&mount.path("a")), "new");
}

#[test]
fn snapshots_are_listed_with_date_and_size() {
    let Some(mount) = changed_since_monday() else { return };
    fs::File::open(&mount.root).unwrap().sync_all().unwrap();
    let listed = good(&mut mount.home.on_volume(&["snapshot", "list"], &[]));
    let lines: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "CREATED", "SIZE", "EXCLUSIVE"]);
    assert_eq!((lines.len(), lines[1][0], lines[1].len()), (2, "monday", 8));
    let zone = Command::new("date").arg("+%Y-%m-%d").output().unwrap();
    let today = String::from_utf8(zone.stdout).unwrap();
    // Unless the test runs over midnight.
    assert!(lines[1][1] <= today.trim() && lines[1][1].len() == 10, "{listed}");
    let found = json(&mut mount.home.on_volume(&["snapshot", "list"], &["--json"]));
    let exclusive = found[0]["exclusive_blocks"].as_u64().unwrap();
    // The snapshot alone keeps the removed file, and some metadata.
    assert!((256..400).contains(&exclusive), "{found}");
    good(&mut mount.home.on_volume(&["snapshot", "create"], &["tuesday"]));
    fs::write(mount.path("a"), "newest").unwrap();
    let found = json(&mut mount.home.on_volume(&["snapshot", "list"], &["--json"]));
    assert_eq!(found[0]["exclusive_blocks"].as_u64(), Some(exclusive), "{found}");
    assert!(found[1]["exclusive_blocks"].as_u64().unwrap() < 100, "{found}");
    let Some(other) = in_place(&[]) else { return };
    let said = bad(&mut other.home.on_volume(&["snapshot", "list"], &[]), 1);
    assert!(said.contains("has no snapshots"), "{said}");
}

#[test]
fn a_rollback_asks_first() {
    let Some(mount) = changed_since_monday() else { return };
    mount.umount();
    let rollback = |more: &[&str]| {
        let mut command = mount.home.on_volume(&["snapshot", "rollback"], &["monday"]);
        command.args(more);
        command
    };
    let said = bad(&mut rollback(&[]), 1);
    assert!(said.contains("are lost") && said.contains("--yes"), "{said}");
    let content = || {
        mount.mount(&["-o", "ro"]);
        let found = text(&mount.path("a"));
        mount.umount();
        found
    };
    assert_eq!(content(), "new");
    if has("script") {
        let command = format!(
            "{} volume snapshot rollback {} monday",
            env!("CARGO_BIN_EXE_thalweg"),
            mount.home.volume().display()
        );
        let answer = |word: &str| {
            let mut terminal = Command::new("script");
            terminal.args(["-qec", &command, "/dev/null"]).stdin(Stdio::piped());
            let mut child = terminal.stdout(Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(word.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("Continue? [y/N]"), "{said}");
            output.status.success()
        };
        assert!(!answer("n\n"));
        assert_eq!(content(), "new");
        assert!(answer("y\n"));
    } else {
        good(&mut rollback(&["--yes"]));
    }
    assert_eq!(content(), "old");
    good(&mut rollback(&["--yes"]));
}
