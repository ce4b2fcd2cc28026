//! What users of a mount of a shared filesystem may do.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::cluster::Scene;
use crate::files::{text, wait_until};
use crate::run::{good, has, json};

/// The user and group that squashed users are.
const NOBODY: u32 = 65534;
/// A user, and two groups.
const USER: u32 = 4001;
const TEAM: u32 = 4040;

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Makes a file or directory with this owner and mode.
fn owned(path: &Path, (uid, gid): (u32, u32), mode: u32) {
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Runs a script in a directory as a user with a supplementary group; whether it succeeds.
fn as_user(directory: &Path, group: u32, script: &str) -> bool {
    let mut command = Command::new("setpriv");
    let (user, group) = (format!("--reuid={USER}"), format!("--groups={group}"));
    command.args([&user, &format!("--regid={USER}"), &group, "sh", "-ec", script]);
    command.current_dir(directory).output().unwrap().status.success()
}

/// A filesystem with what tests need, at the mount of a client that acts as every user.
fn furnish(office: &Path) {
    for (name, mode) in [("secret", 0o600), ("shown", 0o644), ("program", 0o711)] {
        fs::copy("/bin/true", office.join(name)).unwrap();
        owned(&office.join(name), (0, 0), mode);
    }
    for (name, owner, mode) in [
        ("open", (0, 0), 0o777),
        ("sticky", (0, 0), 0o1777),
        ("home", (USER, USER), 0o700),
        ("team", (0, TEAM), 0o770),
    ] {
        fs::create_dir(office.join(name)).unwrap();
        owned(&office.join(name), owner, mode);
    }
    fs::write(office.join("sticky/roots"), "x").unwrap();
}

#[test]
fn root_of_a_mount_is_nobody_unless_it_is_trusted() {
    let Some(scene) = Scene::with_mounts() else { return };
    let office = scene.mount("office", "/", "--rw");
    furnish(&office);
    let token = scene.token_with("guest", &["--path", "/", "--rw"]);
    let guest = scene.mount_with("guest", "/", &token);
    let refused = [
        (libc::EACCES, errno(fs::read(guest.join("secret")))),
        (libc::EACCES, errno(fs::write(guest.join("shown"), "x"))),
        (libc::EACCES, errno(fs::write(guest.join("new"), "x"))),
        (libc::EACCES, errno(fs::write(guest.join("home/new"), "x"))),
        (libc::EACCES, errno(fs::read_dir(guest.join("home")))),
        (libc::EACCES, errno(fs::remove_file(guest.join("shown")))),
        (libc::EPERM, errno(fs::remove_file(guest.join("sticky/roots")))),
        (libc::EPERM, errno(chown(guest.join("shown"), Some(USER), None))),
        (
            libc::EPERM,
            errno(fs::set_permissions(guest.join("shown"), Permissions::from_mode(0o777))),
        ),
    ];
    for (number, (expected, found)) in refused.into_iter().enumerate() {
        assert_eq!(found, Some(expected), "refusal {number}");
    }
    let device = Command::new("mknod").arg(guest.join("open/null")).args(["c", "1", "3"]).output();
    let said = String::from_utf8(device.unwrap().stderr).unwrap();
    assert!(said.contains("Operation not permitted"), "{said}");
    // Its files are those of the user nobody, which can work with them.
    assert_eq!(fs::read(guest.join("shown")).unwrap(), fs::read("/bin/true").unwrap());
    fs::create_dir(guest.join("open/tree")).unwrap();
    for number in 0..50 {
        fs::write(guest.join(format!("open/tree/{number}")), "by nobody").unwrap();
    }
    fs::write(guest.join("open/tree/0"), "again").unwrap();
    fs::set_permissions(guest.join("open/tree/1"), Permissions::from_mode(0o600)).unwrap();
    for name in ["tree", "tree/0", "tree/49"] {
        for mount in [&guest, &office] {
            let it = fs::metadata(mount.join("open").join(name)).unwrap();
            assert_eq!((it.uid(), it.gid()), (NOBODY, NOBODY), "{name}");
        }
    }
    assert_eq!(text(&office.join("open/tree/0")), "again");
    fs::remove_dir_all(guest.join("open/tree")).unwrap();
    // Root of the trusted client is root.
    fs::write(office.join("shown"), "changed").unwrap();
    chown(office.join("shown"), Some(USER), Some(TEAM)).unwrap();
    let it = fs::metadata(guest.join("shown")).unwrap();
    assert_eq!((it.uid(), it.gid(), it.len()), (USER, TEAM, 7));
}

#[test]
fn users_of_a_mount_are_themselves_with_all_their_groups() {
    let Some(scene) = Scene::with_mounts() else { return };
    if !has("setpriv") {
        return;
    }
    fs::set_permissions(scene.home.path("."), Permissions::from_mode(0o755)).unwrap();
    furnish(&scene.mount("office", "/", "--rw"));
    let token = scene.token_with("guest", &["--path", "/", "--rw"]);
    let guest = scene.mount_with("guest", "/", &token);
    assert!(as_user(&guest, TEAM, "echo x >team/file; cat team/file; chmod 640 team/file"));
    assert!(!as_user(&guest, USER, "cat team/file"));
    assert_eq!(fs::metadata(guest.join("team")).unwrap().mode() & 0o7777, 0o770);
    // A file that its maker may only read afterwards, a program that may only be run, a file that is passed on.
    let script = "
        (umask 333; echo x >home/file); cat home/file
        ./program
        mkdir home/d; for n in 1 2 3 4 5 6 7 8; do echo $n >home/d/$n; done
        ln home/d/1 home/l; mv home/d/2 home/m; rm -r home/d
        (chmod 0 home/m; cat) <home/m
        dd if=/dev/zero of=home/z bs=64k count=4 conv=fsync; truncate -s 5 home/z
        chgrp 4040 home/z; touch home/z";
    assert!(as_user(&guest, TEAM, script));
    for script in ["chgrp 7 home/z", "chown 7 home/z", "rm sticky/roots", "cat secret", "echo x >n"]
    {
        assert!(!as_user(&guest, TEAM, script), "{script}");
    }
    let clients = json(&mut scene.client(&["list", "--json"]));
    let found: Vec<_> = clients.as_array().unwrap().iter().map(|it| &it["squash"]).collect();
    assert_eq!(found, ["none", "root"]);
    assert_eq!(clients[1]["nobody"], "65534:65534");
}

#[test]
fn a_user_can_use_what_it_has_made_where_all_are_one() {
    let Some(scene) = Scene::with_mounts() else { return };
    if !has("setpriv") {
        return;
    }
    fs::set_permissions(scene.home.path("."), Permissions::from_mode(0o755)).unwrap();
    let office = scene.mount("office", "/", "--rw");
    furnish(&office);
    let all = ["--path", "/", "--rw", "--squash", "all"];
    let guest = scene.mount_with("guest", "/", &scene.token_with("guest", &all));
    let script = "
        cd open
        echo 1 >f; echo 2 >>f; cat f; chmod 600 f; cat f; truncate -s 1 f; touch f; mv f g; ln g h
        (umask 77; mkdir d); echo 1 >d/f; mkdir d/e; mv d/f d/e/g; ls d/e; (cd d/e; cat g; test -r g; test ! -x g)
        cp /bin/true program; ./program";
    assert!(as_user(&guest, TEAM, script));
    // What a user has made, every other one can use, and so can root.
    assert_eq!(fs::read(guest.join("open/d/e/g")).unwrap(), b"1\n");
    fs::write(guest.join("open/g"), "by root").unwrap();
    assert!(as_user(&guest, USER, "grep -q 'by root' open/h"));
    for name in ["g", "d", "program"] {
        let it = fs::metadata(office.join("open").join(name)).unwrap();
        assert_eq!((it.uid(), it.gid()), (NOBODY, NOBODY), "{name}");
    }
    // What the user nobody may not do, none of them may, whatever is cached: also the one that it would belong to.
    let office_script = "chmod 0 open/g; mkdir -m 700 open/private; echo x >open/private/f";
    let mut command = Command::new("sh");
    good(command.args(["-ec", office_script]).current_dir(&office));
    for script in [
        "cat open/g",
        "echo x >>open/g",
        "cat secret",
        "test -r secret",
        "cat home/x",
        "ls home",
        "cd home",
        "echo x >shown",
        "rm shown",
        "rm sticky/roots",
        "ls open/private",
        "cat open/private/f",
        "echo x >new",
        "mkdir team/d",
        "chown 4001 open/h",
        "mknod open/n c 1 3",
    ] {
        for _ in 0..2 {
            assert!(!as_user(&guest, TEAM, script), "{script}");
        }
    }
    assert!(as_user(
        &guest,
        TEAM,
        "./program; cat shown >/dev/null; test -r shown; test ! -w shown"
    ));
    assert_eq!(errno(fs::read(guest.join("secret"))), Some(libc::EACCES));
    no_device_is_opened_and_no_other_user_is_trusted(&scene, &office, &guest);
}

fn no_device_is_opened_and_no_other_user_is_trusted(scene: &Scene, office: &Path, guest: &Path) {
    good(Command::new("mknod").arg(office.join("open/zero")).args(["-m", "666", "c", "1", "5"]));
    assert_eq!(errno(fs::read(guest.join("open/zero"))), Some(libc::EACCES));
    // With other users, nothing that the kernel has not checked is done.
    good(&mut scene.client(&["revoke", "guest"]));
    let key = good(&mut scene.with("guest", &["key", "show"]));
    let line = format!("{} guest / rw squash=none\n", key.trim());
    let clients = scene.home.path("server").join("authorized_clients");
    fs::write(&clients, format!("{}{line}", text(&clients))).unwrap();
    wait_until(|| {
        let found = errno(fs::read(guest.join("secret")));
        assert!(found.is_some(), "it was read");
        found == Some(libc::EIO)
    });
}

#[test]
fn the_administrator_hears_who_is_squashed() {
    let scene = Scene::new();
    for (args, words) in [
        (&["one"][..], "root of one will act as user and group 65534:65534 here"),
        (
            &["two", "--squash", "all", "--nobody", "7:8"],
            "all users of two will act as user and group 7:8",
        ),
        (&["three", "--squash", "none"], ""),
    ] {
        let mut command = scene.client(&["add", "--path", "/", "--rw"]);
        let output = command.args(args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{said}");
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 1);
    }
    assert_eq!(good(&mut scene.client(&["list"])), "");
}
