//! A volume's filesystem: made, mounted, changed by transactions.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use thalweg_env::Env;
use thalweg_store::pool::{OpenOptions, Pool};
use thalweg_store::tree::Store;

use crate::block_device::kill_server;
use crate::run::{Home, bad, good, thalweg, umount};

/// Whether this machine can mount; prints a message if not.
pub(crate) fn can_mount() -> bool {
    // SAFETY: the call only reads the process's identity.
    let root = unsafe { libc::geteuid() } == 0;
    let there = Path::new("/dev/fuse").exists();
    if !(root && there) {
        eprintln!("SKIPPED: mounting needs root and /dev/fuse");
    }
    root && there
}

/// A volume with a mounted filesystem. Unmounted at the end.
pub(crate) struct Mount {
    pub(crate) home: Home,
    pub(crate) root: PathBuf,
}

impl Mount {
    /// `None`, with a message, if this machine cannot mount.
    pub(crate) fn new(options: &[&str]) -> Option<Mount> {
        Mount::of(false, "96M", options)
    }

    /// On a volume of this size, a chained one or one that is updated in place.
    pub(crate) fn of(in_place: bool, size: &str, options: &[&str]) -> Option<Mount> {
        if !can_mount() {
            return None;
        }
        let home = Home::empty();
        let root = home.path("mnt");
        fs::create_dir(&root).unwrap();
        let kind: &[&str] = if in_place { &["--in-place"] } else { &[] };
        let mut mkfs = thalweg(["mkfs", "--quiet", "--size", size]);
        good(mkfs.args(kind).arg(home.volume()));
        let mount = Mount { home, root };
        mount.mount(options);
        Some(mount)
    }

    pub(crate) fn mount(&self, options: &[&str]) {
        good(thalweg(["mount"]).arg(self.home.volume()).arg(&self.root).args(options));
    }

    pub(crate) fn umount(&self) {
        umount(thalweg(["umount"]), &self.root);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// `thalweg tx MOUNT [options] -- sh -c SCRIPT`, in the mount's root.
    pub(crate) fn tx(&self, options: &[&str], script: &str) -> Command {
        let mut command = thalweg(["tx"]);
        command.arg(&self.root).args(options).args(["--", "sh", "-ec", script]);
        command.current_dir(&self.root);
        command
    }

    /// The line of the mount table, if it is mounted.
    pub(crate) fn shown(&self) -> Option<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = self.root.display().to_string();
        table.lines().rfind(|line| line.split(' ').nth(4) == Some(&root)).map(str::to_owned)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.shown().is_some() {
            let _ = thalweg(["umount", "--lazy"]).arg(&self.root).output();
        }
    }
}

#[test]
fn a_log_in_the_folder_of_another_user_is_not_written() {
    let Some(mount) = Mount::new(&[]) else { return };
    mount.umount();
    let elsewhere = mount.home.path("elsewhere");
    let log = mount.home.volume().join("mount.log");
    // As a malicious owner would leave it; and in a folder of this user's own.
    for owner in [Some(12_345), None] {
        let _ = fs::remove_file(&log);
        symlink(&elsewhere, &log).unwrap();
        std::os::unix::fs::chown(mount.home.volume(), owner.or(Some(0)), None).unwrap();
        mount.mount(&[]);
        mount.umount();
        assert!(!elsewhere.exists(), "owner {owner:?}: the link was followed");
    }
    // Nor is a file with a second link.
    fs::remove_file(&log).unwrap();
    fs::write(&elsewhere, "precious").unwrap();
    fs::hard_link(&elsewhere, &log).unwrap();
    let mut command = thalweg(["mount"]);
    good(command.env("THALWEG_LOG", "debug").arg(mount.home.volume()).arg(&mount.root));
    mount.umount();
    assert_eq!(text(&elsewhere), "precious");
}

/// Waits until `is_so` holds, for a limited time.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..200 {
        if is_so() {
            return;
        }
        good(Command::new("sleep").arg("0.05"));
    }
    panic!("it does not happen");
}

pub(crate) fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn files_survive_an_unmount() {
    let Some(mount) = Mount::new(&[]) else { return };
    let table = mount.shown().unwrap();
    let source = mount.home.volume().display().to_string();
    assert!(table.contains(&format!("fuse.thalweg {source} rw")), "{table}");
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/a"), "kept").unwrap();
    fs::set_permissions(mount.path("d/a"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("d/a", mount.path("s")).unwrap();
    mount.umount();
    assert_eq!((mount.shown(), mount.path("d").exists()), (None, false));
    mount.mount(&["-o", "ro,noatime"]);
    assert_eq!(text(&mount.path("s")), "kept");
    assert_eq!(fs::metadata(mount.path("d/a")).unwrap().mode(), 0o100_640);
    let error = fs::write(mount.path("b"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    mount.umount();
    // The kernel's own umount, and the next mount right after it.
    mount.mount(&[]);
    fs::write(mount.path("b"), "more").unwrap();
    umount(Command::new("umount"), &mount.root);
    mount.mount(&[]);
    assert_eq!(text(&mount.path("b")), "more");
}

#[test]
fn a_killed_server_loses_nothing_that_was_synced() {
    let Some(mount) = Mount::new(&[]) else { return };
    let file = fs::File::create(mount.path("a")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"synced", 0).unwrap();
    file.sync_all().unwrap();
    fs::File::open(&mount.root).unwrap().sync_all().unwrap();
    let status = mount.home.status();
    assert_eq!(status["mounted"], mount.root.display().to_string());
    kill_server(&mount.home);
    drop(file);
    assert!(fs::metadata(&mount.root).is_err());
    // The dead mount is removed automatically.
    mount.mount(&[]);
    assert_eq!(text(&mount.path("a")), "synced");
    mount.umount();
}

#[test]
fn a_mounted_volume_does_everything_else_too() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::write(mount.path("a"), "x").unwrap();
    good(&mut mount.home.on_volume(&["snapshot", "create"], &["monday"]));
    let said = bad(&mut mount.home.on_volume(&["snapshot", "rollback"], &["monday", "--yes"]), 1);
    assert!(said.contains("is mounted on"), "{said}");
    let said = bad(thalweg(["mkfs"]).arg(mount.home.volume()), 1);
    assert!(said.contains("is mounted on"), "{said}");
    let other = mount.home.path("other");
    fs::create_dir(&other).unwrap();
    let said = bad(thalweg(["mount"]).arg(mount.home.volume()).arg(&other), 1);
    assert!(said.contains("mount --bind"), "{said}");
    let held = fs::File::open(mount.path("a")).unwrap();
    let said = bad(thalweg(["umount"]).arg(&mount.root), 1);
    assert!(said.contains("is in use"), "{said}");
    drop(held);
    mount.umount();
    let said = bad(thalweg(["umount"]).arg(&mount.root), 1);
    assert!(said.contains("no filesystem of a volume is mounted"), "{said}");
    let said = bad(thalweg(["mkfs"]).arg(mount.home.volume()), 1);
    assert!(said.contains("has a filesystem already"), "{said}");
    good(thalweg(["mkfs", "--force"]).arg(mount.home.volume()));
    mount.mount(&[]);
    assert_eq!(fs::read_dir(&mount.root).unwrap().count(), 0);
}

#[test]
fn options_are_checked_and_change_at_remount() {
    let Some(mount) = Mount::new(&["-o", "nosuid,noexec"]) else { return };
    assert!(mount.shown().unwrap().contains("nosuid,noexec"), "{:?}", mount.shown());
    let remount = |options: &str| {
        let mut command = thalweg(["mount", "-o", &format!("remount,{options}")]);
        command.arg(&mount.root);
        command
    };
    good(&mut remount("ro"));
    let table = mount.shown().unwrap();
    assert!(table.contains(" ro,") && table.contains("nosuid") && table.contains("noexec"));
    assert!(fs::write(mount.path("a"), "").is_err());
    good(&mut remount("rw,exec"));
    fs::write(mount.path("a"), "").unwrap();
    assert!(!mount.shown().unwrap().contains("noexec"));
    let said = bad(&mut remount("data=selective"), 1);
    assert!(said.contains("data=selective") && said.contains("chained"), "{said}");
    mount.umount();
    let mut wrong = thalweg(["mount", "-o", "frobnicate"]);
    let said = bad(wrong.arg(mount.home.volume()).arg(&mount.root), 1);
    assert!(said.contains("unknown mount option: frobnicate"), "{said}");
    let mut wrong = thalweg(["mount", "-o", "data=ordered"]);
    let said = bad(wrong.arg(mount.home.volume()).arg(&mount.root), 1);
    assert!(said.contains("data=ordered"), "{said}");
    let mut absent = thalweg(["mount"]);
    let said = bad(absent.arg(mount.home.volume()).arg(mount.home.path("absent")), 1);
    assert!(said.contains("absent"), "{said}");
}

#[test]
fn a_transaction_appears_whole_or_not_at_all() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::write(mount.path("a"), "old").unwrap();
    fs::write(mount.path("gone"), "").unwrap();
    assert!(!mount.path("new").exists());
    let outside = mount.path("a").display().to_string();
    // The view shows the new state, the mount the old one.
    let look = format!("nsenter -t {} -m cat {outside}", std::process::id());
    let script = format!(
        "echo new > a; echo more >> a; mkdir new; echo b > new/b; rm gone; cat a; echo -n :; {look}"
    );
    assert_eq!(good(&mut mount.tx(&[], &script)), "new\nmore\n:old");
    assert_eq!(text(&mount.path("a")), "new\nmore\n");
    assert_eq!(text(&mount.path("new/b")), "b\n");
    assert!(!mount.path("gone").exists());
    let before = fs::read_dir(&mount.root).unwrap().count();
    bad(&mut mount.tx(&[], "echo x > a; rm -r new; mkdir never; exit 7"), 7);
    assert_eq!(text(&mount.path("a")), "new\nmore\n");
    assert_eq!(fs::read_dir(&mount.root).unwrap().count(), before);
    bad(&mut mount.tx(&[], "rm a; kill -TERM $$"), 128 + 15);
    assert!(mount.path("a").exists());
    bad(thalweg(["tx"]).arg(&mount.root).args(["--", "/no/such/program"]), 127);
    bad(thalweg(["tx"]).arg("/proc").args(["--", "true"]), 125);
    mount.umount();
    mount.mount(&[]);
    assert_eq!(text(&mount.path("new/b")), "b\n");
}

#[test]
fn a_transaction_may_write_large_files() {
    for in_place in [false, true] {
        let Some(mount) = Mount::of(in_place, "200M", &[]) else { return };
        fs::write(mount.path("old"), vec![1; 3 << 20]).unwrap();
        let free = || -> u64 {
            let said = good(Command::new("stat").args(["-f", "-c", "%f"]).arg(&mount.root));
            said.trim().parse().unwrap()
        };
        let (before, data) = (free(), mount.home.path("data"));
        let bytes: Vec<u8> = (0..64 << 20).map(|at: u32| (at / 61 + at) as u8).collect();
        fs::write(&data, &bytes).unwrap();
        let data = data.display();
        // 1.2 MB, like a compiler's output, and 64 MiB, over the former content.
        let script = format!(
            "head -c 1200000 {data} > small; cp {data} large; cmp {data} large; \
             dd if={data} of=old bs=1M count=2 seek=1 conv=notrunc status=none; rm -f passing; \
             cp {data} passing; rm passing"
        );
        bad(&mut mount.tx(&[], &format!("{script}; exit 3")), 3);
        assert_eq!((mount.path("large").exists(), mount.path("small").exists()), (false, false));
        assert!(fs::read(mount.path("old")).unwrap() == vec![1; 3 << 20]);
        assert_eq!(free(), before);
        good(&mut mount.tx(&[], &script));
        assert_eq!(free(), before - (64 << 20) / 4096 - 1_200_000_u64.div_ceil(4096));
        mount.umount();
        good(thalweg(["fsck"]).arg(mount.home.volume()));
        mount.mount(&[]);
        assert!(fs::read(mount.path("large")).unwrap() == bytes);
        assert!(fs::read(mount.path("small")).unwrap() == bytes[..1_200_000]);
        let old = fs::read(mount.path("old")).unwrap();
        assert!(old[..1 << 20] == vec![1; 1 << 20] && old[1 << 20..] == bytes[..2 << 20]);
    }
}

#[test]
fn a_transaction_may_make_many_files() {
    many_files(2_000);
}

#[test]
#[ignore = "takes a minute"]
fn a_transaction_may_make_ten_thousand_files() {
    many_files(10_000);
}

fn many_files(count: usize) {
    for in_place in [false, true] {
        let Some(mount) = Mount::of(in_place, "400M", &[]) else { return };
        let script = format!(
            "mkdir d; i=0; while test $i -lt {count}; do echo $i > d/file-$i; i=$((i + 1)); done"
        );
        good(&mut mount.tx(&[], &script));
        assert_eq!(fs::read_dir(mount.path("d")).unwrap().count(), count);
        mount.umount();
        good(thalweg(["fsck"]).arg(mount.home.volume()));
        mount.mount(&[]);
        for number in [0, count / 2, count - 1] {
            let path = mount.path(&format!("d/file-{number}"));
            assert_eq!(text(&path), format!("{number}\n"));
        }
        // Its space is freed too.
        good(&mut mount.tx(&[], "rm -r d"));
        assert_eq!(fs::read_dir(&mount.root).unwrap().count(), 0);
    }
}

#[test]
#[ignore = "writes gigabytes"]
fn a_transaction_may_write_a_gigabyte() {
    for in_place in [false, true] {
        let Some(mount) = Mount::of(in_place, "3G", &[]) else { return };
        good(&mut mount.tx(&[], "dd if=/dev/urandom of=large bs=1M count=1024 status=none"));
        assert_eq!(fs::metadata(mount.path("large")).unwrap().len(), 1 << 30);
        mount.umount();
        good(thalweg(["fsck"]).arg(mount.home.volume()));
    }
}

#[test]
fn a_transaction_beyond_a_limit_says_so_once() {
    // A journal of 4 MiB takes half of that in one transaction; a symbolic link's target takes a block.
    let Some(mount) = Mount::of(true, "64M", &[]) else { return };
    let script = "to=$(printf 'x%.0s' $(seq 3900)); for i in $(seq 600); do ln -s $to $i; done";
    let said = bad(&mut mount.tx(&[], script), 125);
    assert!(said.contains("journal takes"), "{said}");
    assert!(said.contains("nothing was changed"), "{said}");
    assert_eq!(fs::read_dir(&mount.root).unwrap().count(), 0);
    fs::write(mount.path("later"), "works").unwrap();
}

#[test]
fn of_two_that_stand_against_each_other_one_counts() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::write(mount.path("count"), "5").unwrap();
    let root = mount.root.display();
    // Another process changes a file that the transaction has read, in the first attempt.
    let outside =
        format!("test -e {root}/seen || {{ echo 10 > {root}/count; touch {root}/seen; }}");
    let me = std::process::id();
    let script =
        format!("n=$(cat count); nsenter -t {me} -m sh -c '{outside}'; echo $((n + 1)) > count");
    let said = bad(&mut mount.tx(&[], &script), 75);
    assert!(said.contains("nothing was changed"), "{said}");
    assert_eq!(text(&mount.path("count")), "10\n");
    fs::remove_file(mount.path("seen")).unwrap();
    good(&mut mount.tx(&["--retries", "3"], &script));
    assert_eq!(text(&mount.path("count")), "11\n");
}

#[test]
fn a_killed_client_leaves_nothing_of_its_transaction() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::write(mount.path("a"), "old").unwrap();
    let ready = mount.home.path("ready");
    let script = format!("echo new > a; touch {}; exec sleep 100", ready.display());
    let mut client = mount.tx(&[], &script).spawn().unwrap();
    wait_until(|| ready.exists());
    let views = || {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let source = mount.home.volume().display().to_string();
        table.lines().filter(|line| line.contains(&format!(" {source} "))).count()
    };
    assert_eq!(views(), 2);
    let child = good(Command::new("pgrep").args(["-P", &client.id().to_string()]));
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until(|| views() == 1);
    assert_eq!(text(&mount.path("a")), "old");
    good(Command::new("kill").arg(child.trim()));
    mount.umount();
}

/// A mount point for a volume that is updated in place.
pub(crate) fn in_place(arguments: &[&str]) -> Option<Mount> {
    if !can_mount() {
        return None;
    }
    let home = Home::empty();
    let root = home.path("mnt");
    fs::create_dir(&root).unwrap();
    let mut mkfs = thalweg(["mkfs", "--quiet", "--in-place", "--size", "64M"]);
    good(mkfs.arg(home.volume()).args(arguments));
    Some(Mount { home, root })
}

#[test]
fn a_volume_in_place_is_mounted_in_every_mode() {
    let Some(mount) = in_place(&[]) else { return };
    let source = mount.home.volume().display().to_string();
    for mode in ["writeback", "ordered", "data", "wasteless", "selective"] {
        mount.mount(&["-o", &format!("data={mode},commit=1")]);
        assert!(mount.shown().unwrap().contains(&format!("fuse.thalweg {source} ")));
        fs::write(mount.path(mode), mode).unwrap();
        mount.umount();
        let said = good(thalweg(["fsck", "-n"]).arg(mount.home.volume()));
        assert!(said.contains("inodes"), "{said}");
    }
    mount.mount(&["-o", "data=ordered"]);
    for mode in ["writeback", "ordered", "data", "wasteless", "selective"] {
        assert_eq!(text(&mount.path(mode)), mode);
    }
    let remount = |options: &str| {
        let mut command = thalweg(["mount", "-o", &format!("remount,{options}")]);
        command.arg(&mount.root);
        command
    };
    good(&mut remount("data=selective,threshold=1K,expire=7"));
    fs::write(mount.path("later"), "x").unwrap();
    let said = bad(&mut remount("journal_dev=/dev/null"), 1);
    assert!(said.contains("cannot move"), "{said}");
    good(&mut mount.tx(&[], "echo new > later"));
    assert_eq!(text(&mount.path("later")), "new\n");
    let said = bad(thalweg(["fsck", "-y"]).arg(mount.home.volume()), 8);
    assert!(said.contains("is mounted"), "{said}");
    let said = bad(thalweg(["mkfs"]).arg(mount.home.volume()), 1);
    assert!(said.contains("is mounted"), "{said}");
    mount.umount();
    let said = bad(thalweg(["mkfs"]).arg(mount.home.volume()), 1);
    assert!(said.contains("is not empty"), "{said}");
    let said = bad(thalweg(["mount", "-o", "data=all"]).arg(&source).arg(&mount.root), 1);
    assert!(said.contains("`all`"), "{said}");
}

#[test]
fn the_journal_may_have_a_device_of_its_own() {
    if !can_mount() {
        return;
    }
    let home = Home::empty();
    let journal = home.path("journal");
    fs::File::create(&journal).unwrap().set_len(8 << 20).unwrap();
    let root = home.path("mnt");
    fs::create_dir(&root).unwrap();
    let mut mkfs = thalweg(["mkfs", "--quiet", "--in-place", "--size", "64M", "--journal-dev"]);
    good(mkfs.arg(&journal).arg(home.volume()));
    let mount = Mount { home, root };
    let said = bad(thalweg(["mount"]).arg(mount.home.volume()).arg(&mount.root), 1);
    assert!(said.contains("journal_dev=PATH"), "{said}");
    let with = format!("journal_dev={}", journal.display());
    mount.mount(&["-o", &with]);
    fs::write(mount.path("a"), "x").unwrap();
    mount.umount();
    let said = bad(thalweg(["fsck"]).arg(mount.home.volume()), 8);
    assert!(said.contains("--journal-dev"), "{said}");
    good(thalweg(["fsck", "--data", "--journal-dev"]).arg(&journal).arg(mount.home.volume()));
    mount.mount(&["-o", &format!("{with},data=data")]);
    assert_eq!(text(&mount.path("a")), "x");
}

/// Changes the metadata tree of a filesystem on a chained volume that no process has open.
fn change_metadata(volume: &Path, change: impl AsyncFn(&Store)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let env = Env::real();
        let pool = Pool::open(&env, volume, &OpenOptions::default()).await.unwrap();
        let transactions = Arc::new(pool.transactions().clone());
        change(&Store::open(&env, transactions, "fs.meta").await.unwrap()).await;
        pool.close().await.unwrap();
    });
}

#[test]
fn a_check_says_by_its_exit_code_what_it_found() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::write(mount.path("a"), "x").unwrap();
    bad(thalweg(["fsck"]).arg(mount.home.volume()), 8);
    mount.umount();
    let found = good(thalweg(["fsck", "--json", "-d"]).arg(mount.home.volume()));
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found["clean"], &found["inodes"]), (&true.into(), &2.into()));
    bad(thalweg(["fsck", "-n", "-y"]).arg(mount.home.volume()), 16);
    bad(&mut thalweg(["fsck", "/no/such/volume"]), 8);
    // A record of no meaning among those of the filesystem.
    change_metadata(&mount.home.volume(), async |store| {
        store.put(b"nonsense", "here").await.unwrap()
    });
    let said = bad(thalweg(["fsck"]).arg(mount.home.volume()), 4);
    assert!(said.contains("left") && said.contains("-y repairs"), "{said}");
    let said = bad(thalweg(["fsck", "-a"]).arg(mount.home.volume()), 1);
    assert!(said.contains("repaired"), "{said}");
    good(thalweg(["fsck"]).arg(mount.home.volume()));
    mount.mount(&[]);
    assert_eq!(text(&mount.path("a")), "x");
}

/// The extents of `a` are gone from the tree: its content is reported as lost, does not read as zeros, and is
/// reported until it is written anew.
#[test]
fn a_file_that_has_lost_bytes_is_told_by_every_check() {
    let Some(mount) = Mount::new(&[]) else { return };
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/a"), vec![7; 5000]).unwrap();
    let ino = fs::metadata(mount.path("dir/a")).unwrap().ino();
    mount.umount();
    let key = [&ino.to_be_bytes()[..], &[5, 0, 0, 0, 0]].concat();
    change_metadata(&mount.home.volume(), async |store| {
        assert!(store.delete(&key).await.unwrap());
    });
    let said = bad(thalweg(["fsck", "-n"]).arg(mount.home.volume()), 4);
    assert!(said.contains("/dir/a") && said.contains("-y repairs"), "{said}");
    let said = bad(thalweg(["fsck", "-y"]).arg(mount.home.volume()), 4);
    assert!(said.contains("/dir/a: bytes 0 to 5000 are lost") && said.contains("delete"), "{said}");
    let output = thalweg(["fsck", "--json"]).arg(mount.home.volume()).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lost = serde_json::json!([{ "path": "/dir/a", "inode": ino, "from": 0, "to": 5000 }]);
    assert_eq!((&found["lost"], &found["clean"]), (&lost, &false.into()));
    assert_eq!(found["findings"], serde_json::json!([]));
    // A system starts all the same.
    let said = bad(thalweg(["fsck", "-a"]).arg(mount.home.volume()), 1);
    assert!(said.contains("/dir/a: bytes 0 to 5000 are lost"), "{said}");
    mount.mount(&[]);
    let read = fs::read(mount.path("dir/a")).unwrap_err();
    assert_eq!(read.raw_os_error(), Some(libc::EIO));
    fs::write(mount.path("dir/a"), vec![8; 5000]).unwrap();
    assert_eq!(fs::read(mount.path("dir/a")).unwrap(), vec![8; 5000]);
    mount.umount();
    good(thalweg(["fsck"]).arg(mount.home.volume()));
}
