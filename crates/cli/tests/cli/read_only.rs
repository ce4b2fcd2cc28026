//! Read-only commands change no byte: of volumes that need recovery, of both kinds, and on media that refuse
//! writes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::block_device::kill_server;
use crate::files::{Mount, can_mount, in_place, text};
use crate::run::{Home, bad, good, has, json, thalweg, umount};

/// An ordinary user, whom file modes restrict.
const NOBODY: u32 = 65_534;

/// The content of every file of a volume that is a folder or a file, but for logs and sockets.
fn content(volume: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files: Vec<PathBuf> = match volume.is_dir() {
        true => fs::read_dir(volume).unwrap().map(|entry| entry.unwrap().path()).collect(),
        false => vec![volume.to_owned()],
    };
    let is_device = |path: &PathBuf| {
        path.is_file() && path.extension().is_none_or(|it| it != "log" && it != "sock")
    };
    files
        .into_iter()
        .filter(is_device)
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

/// A volume of each kind, with a file `a` that was synced before its server was killed.
fn after_crashes() -> Vec<Mount> {
    let in_place = || {
        let mount = in_place(&[])?;
        mount.mount(&[]);
        Some(mount)
    };
    let mounts: Vec<Mount> = [Mount::new(&[]), in_place()].into_iter().flatten().collect();
    for mount in &mounts {
        for nth in 0..20 {
            fs::write(mount.path(&format!("f{nth}")), vec![nth; 9000]).unwrap();
        }
        fs::write(mount.path("a"), "kept").unwrap();
        fs::File::open(mount.path("a")).unwrap().sync_all().unwrap();
        kill_server(&mount.home);
        mount.umount();
    }
    mounts
}

/// A command on a volume.
fn on(words: &[&str], volume: &Path) -> Command {
    let mut command = thalweg(&words[..1]);
    command.arg(volume).args(&words[1..]);
    command
}

#[test]
fn a_look_at_a_volume_that_needs_recovery_changes_no_byte() {
    for mount in after_crashes() {
        let volume = mount.home.volume();
        let before = content(&volume);
        let look = |words: &[&str]| {
            let said = good(&mut on(words, &volume));
            for (path, bytes) in content(&volume) {
                assert!(before[&path] == bytes, "{words:?} changed {}", path.display());
            }
            said
        };
        for fsck in [&["fsck", "-n"][..], &["fsck", "-d"], &["fsck"]] {
            let said = look(fsck);
            assert!(said.contains("22 inodes") && said.contains("recovered in memory"), "{said}");
        }
        let said = look(&["status"]);
        assert!(said.contains("NOTE: the ") && said.contains("nothing is written"), "{said}");
        let found: serde_json::Value = serde_json::from_str(&look(&["status", "--json"])).unwrap();
        assert!(found["recovery"].is_string() && found["read_only"] == true, "{found}");
        assert!(look(&["kv", "list"]).contains("fs.meta"));
        look(&["kv", "check"]);
        look(&["kv", "scan", "fs.meta"]);
        mount.mount(&["-o", "ro,strictatime"]);
        assert_eq!(text(&mount.path("a")), "kept");
        assert_eq!(fs::read_dir(&mount.root).unwrap().count(), 21);
        assert!(look(&["fsck", "-n"]).contains("22 inodes"));
        mount.umount();
        assert!(content(&volume) == before, "a read-only mount changed {}", volume.display());
        // The volume still needs recovery, and the next command finds the same.
        mount.mount(&[]);
        assert_eq!(text(&mount.path("a")), "kept");
        mount.umount();
        assert!(content(&volume) != before);
        let said = good(&mut on(&["fsck"], &volume));
        assert!(said.contains("22 inodes") && !said.contains("in memory"), "{said}");
    }
}

#[test]
fn a_dump_and_a_dry_run_change_no_byte() {
    for mount in after_crashes() {
        let volume = mount.home.volume();
        let before = content(&volume);
        for path in before.keys().filter(|path| !path.ends_with("volume.toml")) {
            good(thalweg(["dump", "--entries", "--json"]).arg(path));
        }
        if volume.is_dir() {
            good(&mut mount.home.on_volume(&["rebuild-index"], &["--dry-run"]));
            good(&mut mount.home.on_volume(&["snapshot", "list"], &[]));
        }
        assert!(content(&volume) == before, "{}", volume.display());
    }
}

#[test]
fn a_mount_read_only_stays_so_and_lets_others_look_and_none_write() {
    for mount in after_crashes() {
        let volume = mount.home.volume();
        mount.mount(&["-o", "ro"]);
        let before = content(&volume);
        let said = bad(thalweg(["mount", "-o", "remount,rw"]).arg(&mount.root), 1);
        assert!(said.contains("was mounted read-only, which a remount cannot change"), "{said}");
        good(thalweg(["mount", "-o", "remount,nosuid"]).arg(&mount.root));
        let error = fs::write(mount.path("b"), "").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        let said = bad(&mut on(&["fsck", "-y"], &volume), 8);
        assert!(said.contains("is mounted"), "{said}");
        assert!(good(&mut on(&["fsck"], &volume)).contains("22 inodes"));
        assert!(good(&mut on(&["kv", "list"], &volume)).contains("fs.meta"));
        if volume.is_dir() {
            for change in [&["snapshot", "create"][..], &["scrub"], &["set"], &["extend"]] {
                let arguments: &[&str] = match change[0] {
                    "snapshot" => &["monday"],
                    "set" => &["--ram-cache", "2M"],
                    "extend" => &["--size", "97M"],
                    _ => &[],
                };
                let said = bad(&mut mount.home.on_volume(change, arguments), 1);
                assert!(said.contains("is open read-only"), "{said}");
            }
        }
        mount.umount();
        assert!(content(&volume) == before, "{}", volume.display());
    }
}

#[test]
fn a_store_beside_a_filesystem_that_is_mounted_read_only_is_read_alone() {
    if !can_mount() {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    let (volume, root) = (home.volume(), home.path("mnt"));
    fs::create_dir(&root).unwrap();
    let kv = |words: &[&str]| {
        let mut command = thalweg(["kv"]);
        command.arg(&volume).args(words);
        command
    };
    good(&mut kv(&["create", "keys", "--size", "4M"]));
    good(&mut kv(&["put", "keys", "a", "1"]));
    good(thalweg(["mkfs"]).arg(&volume));
    good(thalweg(["mount", "-o", "ro"]).arg(&volume).arg(&root));
    let before = content(&volume);
    assert_eq!(good(&mut kv(&["get", "keys", "a"])).trim(), "1");
    for change in [&["put", "keys", "a", "2"][..], &["delete", "keys", "a"]] {
        let said = bad(&mut kv(change), 1);
        assert!(said.contains("read-only"), "{change:?}: {said}");
    }
    assert_eq!(good(&mut kv(&["get", "keys", "a"])).trim(), "1");
    umount(thalweg(["umount"]), &root);
    assert!(content(&volume) == before);
}

#[test]
fn an_ordinary_user_looks_at_files_that_may_only_be_read() {
    for mount in after_crashes() {
        let volume = mount.home.volume();
        let runtime = mount.home.path("run");
        fs::create_dir(&runtime).unwrap();
        chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
        let open_to_all = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        content(&volume).keys().for_each(|path| open_to_all(path, 0o444));
        if volume.is_dir() {
            open_to_all(&volume, 0o755);
        }
        open_to_all(volume.parent().unwrap(), 0o755);
        let before = content(&volume);
        for words in [&["fsck"][..], &["fsck", "-n"], &["status"], &["kv", "list"]] {
            let mut command = on(words, &volume);
            command.uid(NOBODY).gid(NOBODY).env("XDG_RUNTIME_DIR", &runtime);
            good(&mut command);
        }
        assert!(content(&volume) == before);
        let mut command = on(&["fsck", "-y"], &volume);
        command.uid(NOBODY).gid(NOBODY).env("XDG_RUNTIME_DIR", &runtime);
        let said = bad(&mut command, 8);
        assert!(said.to_lowercase().contains("permission denied"), "{said}");
    }
}

/// A bind mount of a folder, read-only.
struct Bound(PathBuf);

impl Bound {
    fn new(folder: &Path, at: PathBuf) -> Bound {
        fs::create_dir(&at).unwrap();
        good(Command::new("mount").arg("--bind").arg(folder).arg(&at));
        good(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&at));
        Bound(at)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

#[test]
fn a_volume_on_a_read_only_medium_is_checked_and_mounted() {
    for mount in after_crashes() {
        let other = Home::empty();
        let below = mount.home.volume();
        let bound = Bound::new(below.parent().unwrap(), other.path("medium"));
        let volume = bound.0.join("vol");
        let before = content(&below);
        let root = other.path("mnt");
        fs::create_dir(&root).unwrap();
        assert!(good(&mut on(&["fsck"], &volume)).contains("22 inodes"));
        good(&mut on(&["status"], &volume));
        good(thalweg(["mount", "-o", "ro"]).arg(&volume).arg(&root));
        assert_eq!(text(&root.join("a")), "kept");
        let status = json(&mut on(&["status", "--json"], &volume));
        assert_eq!(status["mounted"], root.display().to_string());
        umount(thalweg(["umount"]), &root);
        let said = bad(thalweg(["mount"]).arg(&volume).arg(&root), 1);
        assert!(said.contains("Read-only file system"), "{said}");
        assert!(content(&below) == before);
    }
}

/// A loop device that refuses writes.
struct Protected(String);

impl Protected {
    fn over(file: &Path) -> Option<Protected> {
        // Not blockdev --setro, which outlives the device's file.
        let losetup = ["--find", "--show", "--read-only"];
        let made = Command::new("losetup").args(losetup).arg(file).output().ok()?;
        if !made.status.success() {
            eprintln!("SKIPPED: no loop device: {}", String::from_utf8_lossy(&made.stderr));
            return None;
        }
        Some(Protected(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).output();
    }
}

#[test]
fn a_write_protected_device_is_checked_and_mounted() {
    if !has("losetup") {
        return;
    }
    for mount in after_crashes() {
        let volume = mount.home.volume();
        let before = content(&volume);
        let mut devices = Vec::new();
        // Of a chained volume each file becomes a device; the labels do not say which files they were.
        let target = match volume.is_dir() {
            false => {
                let Some(device) = Protected::over(&volume) else { return };
                let path = PathBuf::from(&device.0);
                devices.push(device);
                path
            }
            true => {
                let manifest = volume.join("volume.toml");
                let mut text = fs::read_to_string(&manifest).unwrap();
                for file in before.keys().filter(|path| **path != manifest) {
                    let Some(device) = Protected::over(file) else { return };
                    let name = file.file_name().unwrap().to_str().unwrap();
                    text = text.replace(&format!("\"{name}\""), &format!("\"{}\"", device.0));
                    devices.push(device);
                }
                fs::write(&manifest, text).unwrap();
                volume.clone()
            }
        };
        assert!(good(&mut on(&["fsck", "-d"], &target)).contains("22 inodes"));
        good(&mut on(&["status"], &target));
        good(thalweg(["mount", "-o", "ro"]).arg(&target).arg(&mount.root));
        assert_eq!(text(&mount.path("a")), "kept");
        mount.umount();
        bad(thalweg(["mount"]).arg(&target).arg(&mount.root), 1);
        drop(devices);
        let images = |all: BTreeMap<PathBuf, Vec<u8>>| -> BTreeMap<PathBuf, Vec<u8>> {
            all.into_iter().filter(|(path, _)| !path.ends_with("volume.toml")).collect()
        };
        assert!(images(content(&volume)) == images(before));
    }
}
