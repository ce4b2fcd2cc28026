//! Growing volumes and their filesystems from the command line.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::files::{Mount, can_mount};
use crate::raw_devices::Loop;
use crate::run::{Home, bad, good, has, json, thalweg, umount};

const MIB: u64 = 1 << 20;

/// Bytes of a filesystem, and of them those that are free.
fn room(mountpoint: &Path) -> (u64, u64) {
    let said = good(Command::new("stat").args(["-f", "-c", "%b %a %S"]).arg(mountpoint));
    let found: Vec<u64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
    (found[0] * found[2], found[1] * found[2])
}

fn bytes(seed: usize, mib: u64) -> Vec<u8> {
    (0..(mib * MIB) as usize).map(|at| (at / 509 + at + seed) as u8).collect()
}

/// Writes files of 4 MiB until the filesystem is full; returns their number.
fn fill(mount: &Mount, tag: &str) -> u64 {
    let mut files = 0;
    loop {
        let path = mount.path(&format!("{tag}{files}"));
        match fs::write(&path, bytes(files as usize, 4)) {
            Ok(()) => files += 1,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                fs::remove_file(path).unwrap();
                return files;
            }
        }
    }
}

fn assert_there(mount: &Mount, tag: &str, files: u64) {
    for number in 0..files {
        let found = fs::read(mount.path(&format!("{tag}{number}"))).unwrap();
        assert!(found == bytes(number as usize, 4), "{tag}{number}");
    }
}

fn assert_sound(mount: &Mount) {
    good(thalweg(["fsck", "-d", "-n"]).arg(mount.home.volume()));
}

#[test]
fn a_mounted_filesystem_grows_with_its_chained_volume() {
    let Some(mount) = Mount::of(false, "48M", &[]) else { return };
    let volume = mount.home.volume().display().to_string();
    let files = fill(&mount, "a");
    assert!((8..12).contains(&files), "{files}");
    let (before, _) = room(&mount.root);
    // Nothing to grow into yet.
    let said = good(thalweg(["resize"]).arg(&mount.root));
    assert!(said.contains("the volume has 48 MiB, as before"), "{said}");
    assert!(said.contains("its filesystem has") && said.contains("as before"), "{said}");
    let said = bad(thalweg(["resize", &volume, "1G"]).current_dir("/"), 1);
    assert!(said.contains("add a link first"), "{said}");
    let link = mount.home.path("link2:56M").display().to_string();
    good(&mut mount.home.on_volume(&["extend"], &["--link", &link]));
    let said = good(&mut mount.home.on_volume(&["extend"], &["--size", "72M"]));
    assert!(said.contains(&format!("and may have 71.9 MiB: thalweg resize {volume}")), "{said}");
    assert_eq!(room(&mount.root).0, before);
    let said = good(&mut thalweg(["resize", &volume]));
    assert!(said.contains("its filesystem had 47.9 MiB, and has 71.9 MiB"), "{said}");
    assert!(room(&mount.root).0 > before + 22 * MIB);
    let more = fill(&mount, "b");
    assert!(more > 3, "{more}");
    // By its mount point, with a size.
    let grown = json(thalweg(["resize", "--json"]).arg(&mount.root).arg("84M"));
    assert_eq!(grown["volume"], serde_json::json!({ "before": 72 * MIB, "size": 84 * MIB }));
    assert_eq!(grown["filesystem"]["size"], 84 * MIB - 16 * 4096);
    let last = fill(&mount, "c");
    assert!(last > 1, "{last}");
    mount.umount();
    assert_sound(&mount);
    mount.mount(&["-o", "ro"]);
    for (tag, files) in [("a", files), ("b", more), ("c", last)] {
        assert_there(&mount, tag, files);
    }
    let said = bad(thalweg(["resize"]).arg(&mount.root), 1);
    assert!(said.contains("is open read-only"), "{said}");
}

#[test]
fn a_volume_in_a_file_grows_with_it() {
    let Some(mount) = Mount::of(true, "64M", &[]) else { return };
    let volume = mount.home.volume();
    let files = fill(&mount, "a");
    let said = good(thalweg(["resize"]).arg(&volume).arg("160M"));
    assert!(said.contains("its filesystem had") && said.contains("and has 15"), "{said}");
    assert_eq!(fs::metadata(&volume).unwrap().len(), 160 * MIB);
    let (size, free) = room(&mount.root);
    assert!(size > 140 * MIB && free > 80 * MIB, "{size} {free}");
    let more = fill(&mount, "b");
    assert!(more > 20, "{more}");
    // The file is enlarged from outside: once while the volume is closed, once while it is mounted.
    mount.umount();
    let file = fs::OpenOptions::new().write(true).open(&volume).unwrap();
    file.set_len(200 * MIB).unwrap();
    let grown = json(thalweg(["resize", "--json"]).arg(&volume));
    assert!(grown["filesystem"]["size"].as_u64().unwrap() > 190 * MIB, "{grown}");
    mount.mount(&[]);
    file.set_len(240 * MIB).unwrap();
    good(thalweg(["resize"]).arg(&mount.root));
    let last = fill(&mount, "c");
    assert!(last > 15, "{last}");
    for (tag, files) in [("a", files), ("b", more), ("c", last)] {
        assert_there(&mount, tag, files);
    }
    mount.umount();
    assert_sound(&mount);
    let found = json(thalweg(["status", "--json"]).arg(&volume));
    assert!(found["size"].as_u64().unwrap() > 230 * MIB, "{found}");
    let said = bad(thalweg(["resize"]).arg(&volume).arg("100M"), 1);
    assert!(said.contains("has 251658240 bytes; neither it nor its filesystem"), "{said}");
    assert_eq!(fs::metadata(&volume).unwrap().len(), 240 * MIB);
}

#[test]
fn a_volume_on_a_device_grows_with_it() {
    if !can_mount() || !has("losetup") {
        return;
    }
    let home = Home::empty();
    let (file, root) = (home.path("disk.img"), home.path("mnt"));
    fs::create_dir(&root).unwrap();
    let Some(device) = Loop::over(&file, 64 * MIB) else { return };
    good(&mut thalweg(["mkfs", "--quiet", &device.0]));
    good(thalweg(["mount", &device.0]).arg(&root));
    fs::write(root.join("a"), bytes(3, 20)).unwrap();
    let said = bad(&mut thalweg(["resize", &device.0, "128M"]), 1);
    assert!(said.contains("has a size of its own"), "{said}");
    let before = room(&root).0;
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(128 * MIB).unwrap();
    good(Command::new("losetup").args(["--set-capacity", &device.0]));
    good(&mut thalweg(["resize", &device.0]));
    assert!(room(&root).0 > before + 50 * MIB);
    fs::write(root.join("b"), bytes(4, 70)).unwrap();
    umount(thalweg(["umount"]), &root);
    good(&mut thalweg(["fsck", "-d", "-n", &device.0]));
    good(thalweg(["mount", &device.0]).arg(&root));
    assert!(fs::read(root.join("a")).unwrap() == bytes(3, 20));
    assert!(fs::read(root.join("b")).unwrap() == bytes(4, 70));
    umount(thalweg(["umount"]), &root);
}

#[test]
fn a_filesystem_that_is_written_through_a_block_device_does_not_grow() {
    if !can_mount() {
        return;
    }
    let home = Home::with_volume("48M", &[]);
    let volume = home.volume();
    // Without a filesystem nothing prevents it.
    good(thalweg(["attach"]).arg(&volume));
    assert!(good(thalweg(["resize"]).arg(&volume)).contains("it has no filesystem"));
    good(thalweg(["detach"]).arg(&volume));
    good(thalweg(["mkfs", "--quiet"]).arg(&volume));
    good(thalweg(["attach", "--writable"]).arg(&volume));
    let said = bad(thalweg(["resize"]).arg(&volume).arg("52M"), 1);
    assert!(said.contains("is attached for writing"), "{said}");
    assert_eq!(home.status()["chain"]["blocks"], 48 * MIB / 4096);
    good(thalweg(["detach"]).arg(&volume));
    assert!(good(thalweg(["resize"]).arg(&volume).arg("52M")).contains("and has 51.9 MiB"));
}

#[test]
fn what_cannot_grow_is_said() {
    let home = Home::with_volume("32M", &[]);
    let volume = home.volume().display().to_string();
    let said = good(&mut thalweg(["resize", &volume]));
    assert_eq!(said, "the volume has 32 MiB, as before\nit has no filesystem\n");
    let said = bad(&mut thalweg(["resize", &volume, "16M"]), 1);
    assert!(said.contains("has 33554432 bytes") && said.contains("volume shrink"), "{said}");
    good(&mut home.on_volume(&["snapshot", "create"], &["monday"]));
    let said = bad(&mut thalweg(["resize", &format!("{volume}@monday")]), 1);
    assert!(said.contains("names a snapshot"), "{said}");
    let nothing = home.path("nothing").display().to_string();
    let said = bad(&mut thalweg(["resize", &nothing]), 1);
    assert!(said.contains("nothing"), "{said}");
    let empty = home.path("empty");
    fs::create_dir(&empty).unwrap();
    let said = bad(thalweg(["resize"]).arg(&empty), 1);
    assert!(said.contains("no volume"), "{said}");
    bad(&mut thalweg(["resize", &volume, "much"]), 2);
    // Key-value stores beside it keep their blocks.
    good(&mut thalweg(["kv", &volume, "create", "keys", "--size", "4M"]));
    let said = good(&mut thalweg(["resize", &volume]));
    assert!(said.contains("it has no filesystem"), "{said}");
}
