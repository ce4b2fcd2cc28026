//! A volume as a block device of the kernel, with a real filesystem on it, also across the death of
//! its server.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Home, bad, can_attach, good, has, json, thalweg, umount, when_free};

/// A filesystem mounted for one test.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &str, at: PathBuf) -> Mounted {
        std::fs::create_dir_all(&at).unwrap();
        good(Command::new("mount").arg(device).arg(&at));
        Mounted(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let lazily = || Command::new("umount").arg("-l").arg(&self.0).output();
        // Do not wait for files that a failing test has open.
        let _ = match std::thread::panicking() {
            true => lazily(),
            false => Ok(when_free(Command::new("umount").arg(&self.0))),
        };
    }
}

fn attach(home: &Home) -> String {
    good(thalweg(["attach"]).arg(home.volume())).trim().to_owned()
}

fn mkfs(device: &str) {
    good(Command::new("mkfs.ext4").args(["-q", device]));
}

/// The process that serves the volume in the background, by its working directory and command line.
pub(crate) fn server_of(home: &Home) -> String {
    let wanted = home.volume().display().to_string();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let path = entry.unwrap().path();
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let args: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        if args.iter().any(|arg| *arg == wanted) && args.iter().any(|arg| arg == "--foreground") {
            return path.file_name().unwrap().to_string_lossy().into_owned();
        }
    }
    panic!("nobody serves {wanted}");
}

/// Kills the process that serves the volume, and waits until it has ended.
pub(crate) fn kill_server(home: &Home) {
    kill(&server_of(home));
}

/// The same for a process by its number; it may have ended already.
#[allow(clippy::disallowed_methods)]
pub(crate) fn kill(pid: &str) {
    let _ = Command::new("kill").args(["-KILL", pid]).output();
    while !has_released_files(pid) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Whether a process has ended, or is a zombie without other threads: the threads of a zombie may still have
/// its files open.
fn has_released_files(pid: &str) -> bool {
    let Ok(threads) = std::fs::read_dir(Path::new("/proc").join(pid).join("task")) else {
        return true;
    };
    threads.count() <= 1 && state_of(pid).is_none_or(|state| state == 'Z')
}

fn state_of(pid: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn write_durably(path: &Path, bytes: &[u8]) {
    let mut file = std::fs::File::create(path).unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn files_survive_a_detach() {
    if !can_attach() || !has("mkfs.ext4") {
        return;
    }
    let home = Home::with_volume("128M", &[]);
    let device = json(thalweg(["attach", "--json"]).arg(home.volume()))["device"].clone();
    let device = device.as_str().unwrap();
    assert_eq!(home.status()["attached"][0]["device"], device);
    let said = bad(thalweg(["attach"]).arg(home.volume()), 1);
    assert!(said.contains("attached already"), "{said}");
    mkfs(device);
    let mounted = Mounted::new(device, home.path("files"));
    std::fs::write(mounted.0.join("a"), b"not synced, only unmounted").unwrap();
    let said = bad(&mut thalweg(["detach", device]), 1);
    assert!(said.contains("in use") && said.contains("unmount"), "{said}");
    umount(Command::new("umount"), &mounted.0);
    good(&mut thalweg(["detach", device]));
    assert!(!home.volume().join("control.sock").exists(), "the background process goes on");
    let device = attach(&home);
    let mounted = Mounted::new(&device, home.path("files"));
    assert_eq!(std::fs::read(mounted.0.join("a")).unwrap(), b"not synced, only unmounted");
    drop(mounted);
    good(thalweg(["detach"]).arg(home.volume()));
    let said = bad(thalweg(["detach"]).arg(home.volume()), 1);
    assert!(said.contains("not attached"), "{said}");
}

#[test]
fn what_was_synced_survives_the_death_of_the_server() {
    if !can_attach() || !has("mkfs.ext4") {
        return;
    }
    let home = Home::with_volume("128M", &["--cache", "vol/cache:16M"]);
    let device = attach(&home);
    mkfs(&device);
    let mounted = Mounted::new(&device, home.path("files"));
    let file = |number: u32| (format!("file{number}"), vec![number as u8 + 1; 50_000]);
    for number in 0..60 {
        let (name, bytes) = file(number);
        write_durably(&mounted.0.join(name), &bytes);
    }
    std::fs::File::open(&mounted.0).unwrap().sync_all().unwrap();
    // Unsynced writes are in progress.
    std::fs::write(mounted.0.join("loose"), vec![9; 20 << 20]).unwrap();
    kill_server(&home);
    drop(mounted);
    let device = attach(&home);
    // The journal is replayed first; then fsck must find nothing to repair.
    let replay = Command::new("fsck.ext4").args(["-p", &device]).status().unwrap();
    assert!(matches!(replay.code(), Some(0 | 1)), "{replay}");
    good(Command::new("fsck.ext4").args(["-f", "-n", &device]));
    let mounted = Mounted::new(&device, home.path("files"));
    for number in 0..60 {
        let (name, bytes) = file(number);
        assert!(std::fs::read(mounted.0.join(&name)).unwrap() == bytes, "{name}");
    }
    drop(mounted);
    good(thalweg(["detach"]).arg(home.volume()));
}

#[test]
fn detach_takes_away_what_a_dead_server_left() {
    if !can_attach() {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    let device = attach(&home);
    kill_server(&home);
    good(&mut thalweg(["detach", &device]));
    let number = device.trim_start_matches("/dev/");
    let backing = Path::new("/sys/block").join(number).join("loop/backing_file");
    let ours = home.volume().display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!backing.exists() || !mounts.contains(&ours), "the mount or the device stays");
    home.status();
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !can_attach() || !has("fio") {
        return;
    }
    let links = ["--link", "vol/a:64M", "--link", "vol/b:64M", "--link", "vol/c:64M"];
    let home = Home::with_volume("128M", &links);
    let fio = |device: &str, more: &[&str]| {
        let mut fio = Command::new("fio");
        fio.args(["--name=verify", "--filename", device, "--size=124M", "--bs=16k"]);
        fio.args(["--rw=randwrite", "--direct=1", "--ioengine=libaio", "--iodepth=16"]);
        fio.args(["--fsync=64", "--verify=crc32c", "--verify_fatal=1"]).args(more);
        good(fio.current_dir(home.path("")));
    };
    let device = attach(&home);
    // Each pass in another order, so that blocks all over the log's segments die.
    for _ in 0..4 {
        fio(&device, &["--randrepeat=0"]);
    }
    let status = home.status();
    let counts = &status["chain"]["counts"];
    assert!(counts["segments_cleaned"].as_u64().unwrap() > 0, "nothing was cleaned: {counts}");
    fio(&device, &["--do_verify=0"]);
    good(thalweg(["detach"]).arg(home.volume()));
    let device = attach(&home);
    fio(&device, &["--verify_only"]);
    good(thalweg(["detach"]).arg(home.volume()));
}

#[test]
fn a_served_volume_is_attached_by_its_server() {
    if !can_attach() || !has("mkfs.ext4") {
        return;
    }
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    let device = attach(&home);
    mkfs(&device);
    good(&mut home.on_volume(&["snapshot", "create"], &["made"]));
    let snapshot = format!("{}@made", home.volume().display());
    let read_only = good(&mut thalweg(["attach", &snapshot])).trim().to_owned();
    let mounted = home.path("files");
    std::fs::create_dir(&mounted).unwrap();
    good(Command::new("mount").args(["-o", "ro,noload", &read_only]).arg(&mounted));
    assert!(mounted.join("lost+found").exists());
    umount(Command::new("umount"), &mounted);
    let said = bad(&mut home.on_volume(&["snapshot", "rollback"], &["made", "--yes"]), 1);
    assert!(said.contains("attached"), "{said}");
    good(&mut thalweg(["detach", &snapshot]));
    good(&mut thalweg(["detach", &device]));
    assert_eq!(home.status()["attached"].as_array().unwrap().len(), 0);
    good(&mut home.on_volume(&["snapshot", "rollback"], &["made", "--yes"]));
    server.end();
}
