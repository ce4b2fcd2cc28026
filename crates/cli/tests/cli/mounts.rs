//! The end of mounts: durability, messages, files left behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::block_device::{kill, server_of};
use crate::files::{Mount, can_mount, in_place, text, wait_until};
use crate::run::{Home, bad, good, has, thalweg, umount, when_free};

/// Files that are never synced.
const UNSYNCED: usize = 150;

/// A process that is killed at the end of the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

/// A process in a mount namespace of its own, with a private copy of this mount. It unmounts those of other
/// tests.
fn copy_of(mount: &Mount) -> Ended {
    let script = format!("{}echo ready; exec sleep 100", alone(mount));
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Ended(child)
}

/// A script that unmounts the copies of all mounts of volumes but one. A copy goes by itself when the directory of its
/// original is removed, which may happen at any moment here.
fn alone(mount: &Mount) -> String {
    format!(
        "grep fuse.thalweg /proc/self/mountinfo | cut -d ' ' -f 5 | grep -vx {} | \
         while read -r place; do umount -l $place || ! mountpoint -q $place; done\n",
        mount.root.display()
    )
}

/// `thalweg tx` with a command that runs until it is killed.
fn running_transaction(mount: &Mount) -> Ended {
    let ready = mount.home.path("ready");
    let _ = fs::remove_file(&ready);
    let mut tx = mount.tx(&[], &format!("touch {}; exec sleep 100", ready.display()));
    let child = Ended(tx.current_dir("/").spawn().unwrap());
    wait_until(|| ready.exists());
    child
}

/// Kills a transaction's command.
fn end_transaction(client: Ended) {
    let child = good(Command::new("pgrep").args(["-P", &client.pid()]));
    kill(child.trim());
    drop(client);
}

/// Writes files without a sync.
fn write_unsynced(mount: &Mount) {
    for number in 0..UNSYNCED {
        fs::write(mount.path(&format!("f{number}")), vec![number as u8; 5000]).unwrap();
    }
}

/// Whether a process has ended, even if it is still a zombie.
pub(crate) fn has_ended(pid: &str) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_err()
}

fn assert_all_there(mount: &Mount) {
    for number in 0..UNSYNCED {
        let content = fs::read(mount.path(&format!("f{number}"))).unwrap_or_default();
        assert!(content == vec![number as u8; 5000], "file {number} of {UNSYNCED} is lost");
    }
}

fn bind(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    good(Command::new("mount").arg("--bind").arg(from).arg(to));
}

fn is_mounted(place: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = place.display().to_string();
    table.lines().any(|line| line.split(' ').nth(4) == Some(&place))
}

/// Unmounts additional mounts of a test.
struct Extra(PathBuf);

impl Drop for Extra {
    fn drop(&mut self) {
        while is_mounted(&self.0) && good_enough(Command::new("umount").arg("-l").arg(&self.0)) {}
    }
}

fn good_enough(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
#[allow(clippy::disallowed_methods)]
fn an_unmount_goes_on_when_the_server_dies_meanwhile() {
    let Some(mount) = Mount::new(&[]) else { return };
    let server = server_of(&mount.home);
    // A stopped server accepts the connection and does not answer.
    good(Command::new("kill").args(["-STOP", &server]));
    let mut command = thalweg(["umount"]);
    let child = command.arg(&mount.root).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    kill(&server);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!is_mounted(&mount.root));
}

#[test]
fn an_unmount_beside_a_transaction_elsewhere_ends_the_mount() {
    let (Some(one), Some(other)) = (Mount::new(&[]), Mount::new(&[])) else { return };
    let transaction = running_transaction(&one);
    write_unsynced(&other);
    let server = server_of(&other.home);
    other.umount();
    wait_until(|| has_ended(&server));
    other.mount(&[]);
    assert_all_there(&other);
    other.umount();
    end_transaction(transaction);
}

#[test]
fn a_filesystem_is_not_unmounted_under_a_transaction() {
    let Some(mount) = Mount::new(&[]) else { return };
    let transaction = running_transaction(&mount);
    let said = bad(thalweg(["umount"]).arg(&mount.root), 1);
    assert!(said.contains("transaction"), "{said}");
    assert!(mount.shown().is_some());
    end_transaction(transaction);
    mount.umount();
}

#[test]
fn an_unmount_names_the_process_that_still_holds_the_filesystem() {
    let Some(mount) = Mount::new(&[]) else { return };
    let holder = copy_of(&mount);
    write_unsynced(&mount);
    let server = server_of(&mount.home);
    let output = when_free(thalweg(["umount"]).arg(&mount.root));
    let said = String::from_utf8_lossy(&output.stderr).replace('│', " ");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("process {}", holder.pid())), "{said}");
    assert!(!is_mounted(&mount.root));
    kill(&server);
    drop(holder);
    mount.mount(&[]);
    assert_all_there(&mount);
    // A lazy unmount does not wait.
    let holder = copy_of(&mount);
    fs::write(mount.path("lazy"), "x").unwrap();
    let server = server_of(&mount.home);
    good(thalweg(["umount", "--lazy"]).arg(&mount.root));
    kill(&server);
    drop(holder);
    mount.mount(&[]);
    assert_eq!(text(&mount.path("lazy")), "x");
}

#[test]
fn a_plain_umount_returns_when_everything_is_durable() {
    for mount in [Mount::new(&[]), in_place(&[])] {
        let Some(mount) = mount else { return };
        for _ in 0..3 {
            if mount.shown().is_none() {
                mount.mount(&[]);
            }
            fs::remove_dir_all(mount.path("gone")).ok();
            write_unsynced(&mount);
            let server = server_of(&mount.home);
            umount(Command::new("umount"), &mount.root);
            kill(&server);
            mount.mount(&[]);
            assert_all_there(&mount);
            for number in 0..UNSYNCED {
                fs::remove_file(mount.path(&format!("f{number}"))).unwrap();
            }
        }
    }
}

#[test]
fn a_bind_mount_and_the_original_are_unmounted_apart() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/a"), "kept").unwrap();
    let (whole, part) = (mount.home.path("whole"), mount.home.path("part"));
    let _extra = [Extra(whole.clone()), Extra(part.clone())];
    let helper = mount.home.path("umount.fuse.thalweg");
    symlink(env!("CARGO_BIN_EXE_thalweg"), &helper).unwrap();
    for program in [vec![env!("CARGO_BIN_EXE_thalweg"), "umount"], vec![helper.to_str().unwrap()]] {
        let command = || {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]);
            command
        };
        bind(&mount.root, &whole);
        bind(&mount.path("d"), &part);
        umount(command(), &part);
        assert!(!is_mounted(&part) && is_mounted(&whole) && is_mounted(&mount.root));
        umount(command(), &whole);
        assert!(!is_mounted(&whole));
        assert_eq!(text(&mount.path("d/a")), "kept");
    }
    // The last unmount ends the server, whichever mount it is.
    let server = server_of(&mount.home);
    bind(&mount.path("d"), &part);
    mount.umount();
    assert!(!is_mounted(&mount.root));
    assert_eq!(text(&part.join("a")), "kept");
    let said = bad(thalweg(["mount"]).arg(mount.home.volume()).arg(&mount.root), 1);
    assert!(said.contains(&part.display().to_string()), "{said}");
    umount(thalweg(["umount"]), &part);
    wait_until(|| has_ended(&server));
    mount.mount(&[]);
}

#[test]
fn a_transaction_on_a_bind_mount_sees_its_part() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::create_dir(mount.path("d")).unwrap();
    let part = mount.home.path("part");
    let _extra = Extra(part.clone());
    bind(&mount.path("d"), &part);
    let mut tx = thalweg(["tx"]);
    good(tx.arg(&part).args(["--", "sh", "-ec", "echo new > a"]).current_dir(&part));
    assert_eq!(text(&mount.path("d/a")), "new\n");
    assert!(!mount.path("a").exists());
    umount(thalweg(["umount"]), &part);
}

#[test]
fn a_volume_whose_name_is_gone_can_be_unmounted() {
    for mount in [Mount::new(&[]), in_place(&[])] {
        let Some(mount) = mount else { return };
        let moved = mount.home.path("moved");
        for options in [&[][..], &["--lazy"]] {
            if mount.shown().is_none() {
                mount.mount(&[]);
            }
            write_unsynced(&mount);
            fs::rename(mount.home.volume(), &moved).unwrap();
            let mut command = thalweg(["umount"]);
            command.args(options);
            umount(command, &mount.root);
            assert!(!is_mounted(&mount.root));
            fs::rename(&moved, mount.home.volume()).unwrap();
            mount.mount(&[]);
            assert_all_there(&mount);
            mount.umount();
        }
    }
}

/// Files that a process with this number has left in root's folder of sockets and mountpoints.
fn left_by(pid: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/thalweg") else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains(&format!("-{pid}-"))).collect()
}

#[test]
fn a_killed_transaction_leaves_no_mount_and_no_folder() {
    let Some(mount) = Mount::new(&[]) else { return };
    let server = server_of(&mount.home);
    let views = || left_by(&server).into_iter().filter(|it| it.starts_with("tx-")).count();
    let transaction = running_transaction(&mount);
    assert_eq!(views(), 1);
    end_transaction(transaction);
    wait_until(|| views() == 0);
    // Both leave files, which the next server to start removes: this test's, or another's.
    let transaction = running_transaction(&mount);
    kill(&server);
    end_transaction(transaction);
    mount.mount(&[]);
    assert_eq!(left_by(&server), [""; 0]);
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&format!("tx-{server}")));
    let server = server_of(&mount.home);
    mount.umount();
    assert_eq!(left_by(&server), [""; 0]);
}

#[test]
fn the_folder_of_a_volume_in_place_goes_with_its_server() {
    let Some(mount) = in_place(&[]) else { return };
    // Volumes of other tests have the same name; their places differ.
    let folders = || -> Vec<_> {
        let entries = fs::read_dir("/run/thalweg").unwrap().flatten();
        let paths = entries.map(|entry| entry.path());
        let ours = |path: &PathBuf| {
            let server = server_of(&mount.home);
            let log = path.join("mount.log");
            let held = Command::new("readlink").arg(format!("/proc/{server}/fd/2")).output();
            String::from_utf8_lossy(&held.unwrap().stdout).trim() == log.display().to_string()
        };
        paths.filter(ours).collect()
    };
    mount.mount(&[]);
    let found = folders();
    assert_eq!(found.len(), 1, "{found:?}");
    mount.umount();
    assert!(!found[0].exists(), "{found:?} stays");
    good(thalweg(["fsck"]).arg(mount.home.volume()));
    assert!(!found[0].exists(), "{found:?} is made by a check");
}

/// A user without privileges.
const USER: u32 = 65_534;

/// `thalweg` as that user, without a session.
fn as_user(arguments: &[&str]) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = thalweg(arguments);
    command.env_remove("XDG_RUNTIME_DIR").env("HOME", "/").uid(USER).gid(USER).current_dir("/");
    command
}

/// What a mount says where only root can open the device.
fn without_device(home: &Home, volume: &str, root: &str) -> String {
    let (device, program) = (home.path("fuse"), env!("CARGO_BIN_EXE_thalweg"));
    let script = format!(
        "rm -f {device}; cp -a /dev/fuse {device}; chmod 600 {device}; mount --bind {device} /dev/fuse\n\
         exec setpriv --reuid={USER} --regid={USER} --clear-groups {program} mount {volume} {root}",
        device = device.display(),
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", &script]).env_remove("XDG_RUNTIME_DIR").env("HOME", "/");
    bad(&mut command, 1)
}

#[test]
fn an_ordinary_user_mounts_and_unmounts() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    if !can_mount() || !has("fusermount3") || !has("setpriv") {
        return;
    }
    // As udev sets it; without udev only root can open the device.
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).unwrap();
    // Root's folder exists, and other users cannot enter it.
    drop(Mount::new(&[]));
    let home = Home::empty();
    fs::set_permissions(home.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let own = home.path("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(USER), Some(USER)).unwrap();
    let (volume, root) = (own.join("vol"), own.join("mnt"));
    let (volume, root) = (volume.to_str().unwrap(), root.to_str().unwrap());
    let shell = |script: &str| {
        use std::os::unix::process::CommandExt;
        good(Command::new("sh").args(["-ec", script]).uid(USER).gid(USER).current_dir("/"))
    };
    shell(&format!("mkdir {root}"));
    for make in
        [&["mkfs", "-q", "--in-place", "--size", "64M"][..], &["mkfs", "-q", "--size", "96M"]]
    {
        good(as_user(make).arg(volume));
        assert!(without_device(&home, volume, root).contains("chmod 666 /dev/fuse"));
        good(&mut as_user(&["mount", volume, root]));
        let owner = shell(&format!("stat -c %u:%g {root}; echo kept > {root}/a"));
        assert_eq!(owner.trim(), format!("{USER}:{USER}"));
        let said = bad(&mut as_user(&["tx", root, "--", "true"]), 125);
        assert!(said.contains("root"), "{said}");
        good(&mut as_user(&["mount", "-o", "remount,noatime", root]));
        good(&mut as_user(&["status", volume]));
        umount(as_user(&["umount"]), Path::new(root));
        assert!(!is_mounted(Path::new(root)));
        good(&mut as_user(&["mount", volume, root]));
        assert_eq!(shell(&format!("cat {root}/a")), "kept\n");
        // Root can unmount another user's mount.
        umount(thalweg(["umount"]), Path::new(root));
        shell(&format!("rm -r {volume}"));
    }
    let folder = fs::symlink_metadata(format!("/tmp/thalweg-{USER}")).unwrap();
    assert_eq!((folder.uid(), folder.mode() & 0o777, folder.is_dir()), (USER, 0o700, true));
}

/// Runs a script in a mount namespace whose `/sbin` has links to the program, as the manual says, and which
/// has no mount of a volume other than that on `root`.
fn with_links(mount: &Mount, links: &[&str], script: &str) -> String {
    let home = &mount.home;
    let (real, sbin) = (home.path("real"), home.path("sbin"));
    fs::create_dir_all(&real).unwrap();
    fs::create_dir_all(&sbin).unwrap();
    for entry in fs::read_dir("/usr/sbin").unwrap().flatten() {
        let _ = symlink(real.join(entry.file_name()), sbin.join(entry.file_name()));
    }
    for name in links {
        let _ = symlink(env!("CARGO_BIN_EXE_thalweg"), sbin.join(name));
    }
    let (real, sbin) = (real.display(), sbin.display());
    let script = format!(
        "{alone}mount --bind /usr/sbin {real}\n\
         mount --bind {sbin} /usr/sbin\n{script}",
        alone = alone(mount),
    );
    good(Command::new("unshare").args(["-m", "sh", "-ec", &script]))
}

const LINKS: [&str; 6] = [
    "mount.thalweg",
    "mount.fuse.thalweg",
    "umount.thalweg",
    "umount.fuse.thalweg",
    "mkfs.thalweg",
    "fsck.thalweg",
];

#[test]
fn mount_changes_a_mount_by_its_directory_alone() {
    let Some(mount) = in_place(&[]) else { return };
    mount.mount(&["-o", "noatime,data=ordered"]);
    let root = mount.root.display();
    let options = |list: &str| format!("findmnt -n -o OPTIONS {root} | grep -c {list}\n");
    let script = format!(
        "{noatime}mount -o remount,ro {root}\n{ro}! touch {root}/a 2>/dev/null\n\
         mount -o remount,rw,relatime,data=selective {root}\ntouch {root}/a\n{relatime}\
         mount -o remount,strictatime {root}\n{strict}umount {root}\n",
        noatime = options("rw,noatime"),
        ro = options("ro,noatime"),
        relatime = options("rw,relatime"),
        strict = options("rw,user_id"),
    );
    assert_eq!(with_links(&mount, &LINKS, &script), "1\n1\n1\n1\n");
}

#[test]
fn fuse3_mounts_the_type_by_the_programs_name() {
    if !has("mount.fuse3") {
        return;
    }
    let Some(mount) = Mount::new(&[]) else { return };
    let (root, volume) = (mount.root.display(), mount.home.volume());
    let script =
        format!("mount -o remount,ro {root}\nfindmnt -n -o OPTIONS {root} | grep -c ^ro\n");
    assert_eq!(with_links(&mount, &["thalweg"], &script), "1\n");
    mount.umount();
    let script = format!(
        "mount -t fuse.thalweg {} {root}\ntouch {root}/a\nls {root}\numount {root}\n",
        volume.display()
    );
    assert_eq!(with_links(&mount, &["thalweg"], &script), "a\n");
    mount.mount(&[]);
}

#[test]
fn a_line_of_fstab_is_enough() {
    let Some(mount) = Mount::new(&[]) else { return };
    mount.umount();
    let (volume, root) = (mount.home.volume(), mount.root.display());
    let (volume, fstab) = (volume.display(), mount.home.path("fstab"));
    fs::write(&fstab, format!("{volume} {root} thalweg defaults,nosuid 0 0\n")).unwrap();
    let script = format!(
        "mount -T {fstab} -a\n\
         mount -T {fstab} -a\n\
         grep -c ' {root} ' /proc/self/mountinfo\n\
         echo hello > {root}/a\n\
         mount -T {fstab} -o remount,ro {root}\n\
         ! touch {root}/a 2>/dev/null\n\
         umount {root}\n\
         mount -t thalweg -o ro {volume} {root}\n\
         cat {root}/a\n\
         umount {root}\n\
         mount -t thalweg -o nonsense {volume} {root} 2>/dev/null || echo code $?\n",
        fstab = fstab.display(),
    );
    assert_eq!(with_links(&mount, &LINKS, &script), "1\nhello\ncode 32\n");
}
