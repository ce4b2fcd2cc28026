//! How far files on mounts have come, and what follows when a server has ended a client's session.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cluster;
use crate::files::{Mount, can_mount, text, wait_until};
use crate::replica;
use crate::run::{bad, good, json, thalweg};

fn wait(args: &[&str], path: &Path) -> Command {
    let mut command = thalweg(["wait"]);
    command.args(args).arg(path);
    command
}

/// How far a file has come.
fn level(path: &Path) -> String {
    json(&mut wait(&["--ask", "--json"], path))[0]["level"].as_str().unwrap().to_owned()
}

#[test]
fn a_file_of_a_shared_filesystem_is_asked_for_and_waited_for() {
    let Some(scene) = cluster::Scene::with_mounts() else { return };
    let root = scene.mount("one", "/", "--rw");
    let file = root.join("f");
    fs::write(&file, "text").unwrap();
    assert!(["memory", "server"].contains(&&*level(&file)));
    good(&mut wait(&["--for", "server"], &file));
    assert_eq!(level(&file), "server");
    let said = good(wait(&["--ask"], &root).arg(&file));
    let lines: Vec<Vec<&str>> =
        said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["server", file.to_str().unwrap()], "{said}");
    assert_eq!(lines.len(), 2);
    let said = bad(&mut wait(&["--for", "replicas"], &file), 1);
    assert!(said.contains("no replica of its volume is connected"), "{said}");
    let said = bad(&mut wait(&["--for", "server"], &root.join("none")), 1);
    assert!(said.contains("cannot open"), "{said}");
}

#[test]
fn files_without_a_level_and_unknown_levels_are_refused() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    for args in [&["--ask"][..], &["--for", "server"]] {
        let said = bad(&mut wait(args, &here), 1);
        assert!(said.contains("is not on a mount of a Thalweg filesystem"), "{said}");
        let said = bad(&mut wait(args, Path::new("/dev/null")), 1);
        assert!(said.contains("/dev/null is no file or directory"), "{said}");
    }
    for unknown in ["disk", "memory"] {
        let said = bad(&mut wait(&["--for", unknown], &here), 2);
        assert!(said.contains(unknown) && said.contains("replicas"), "{said}");
    }
    let said = bad(&mut wait(&[], &here), 2);
    assert!(said.contains("a volume and a position") && said.contains("--for"), "{said}");
    let said = bad(&mut thalweg(["wait", "vol", "nonsense"]), 2);
    assert!(said.contains("`nonsense` is no position"), "{said}");
    bad(&mut wait(&["--ask", "--for", "server"], &here), 2);
    bad(&mut wait(&["--json"], &here), 2);
}

#[test]
fn a_file_of_a_local_volume_comes_to_the_server_and_to_replicas() {
    let Some(mount) = Mount::new(&[]) else { return };
    let file = mount.path("f");
    fs::write(&file, "text").unwrap();
    assert_eq!(level(&file), "memory");
    // Without a journal the server's level is the next one.
    good(&mut wait(&["--for", "journal"], &file));
    assert_eq!(level(&file), "server");
    good(&mut wait(&["--for", "server"], &file));
    assert_eq!(level(&file), "server");
    let said = bad(&mut wait(&["--for", "replicas", "--timeout", "5s"], &file), 1);
    assert!(said.contains("no replica"), "{said}");
    mount.umount();
}

#[test]
fn a_file_is_at_the_replicas_when_it_was_waited_for() {
    if !can_mount() {
        return;
    }
    let scene = replica::Scene::new();
    let (volume, root) = (scene.home.volume(), scene.home.path("mnt"));
    good(thalweg(["mkfs", "--quiet"]).arg(&volume));
    fs::create_dir(&root).unwrap();
    good(thalweg(["mount"]).arg(&volume).arg(&root));
    scene.create();
    let running = scene.run();
    scene.catch_up();
    let file = root.join("f");
    fs::write(&file, "text").unwrap();
    assert_eq!(level(&file), "memory");
    good(&mut wait(&["--for", "replicas", "--timeout", "60s"], &file));
    assert_eq!(level(&file), "replicas");
    drop(running);
    fs::write(&file, "more").unwrap();
    // The primary hears of the end of the connection.
    wait_until(|| {
        let output = wait(&["--for", "replicas", "--timeout", "1s"], &file).output().unwrap();
        String::from_utf8_lossy(&output.stderr).contains("no replica")
    });
    assert_eq!(level(&file), "server");
    good(thalweg(["umount"]).arg(&root));
}

#[test]
fn a_mount_that_may_not_recover_fails_until_it_is_mounted_again() {
    let Some(scene) = cluster::Scene::with_mounts() else { return };
    let root = scene.mount("one", "/", "--rw");
    let evict = || good(scene.client(&["evict"]).arg(scene.home.volume()).arg("one"));
    fs::write(root.join("f"), "text").unwrap();
    assert!(scene.umount("one", &[]).status.success());
    let said = bad(scene.mount_command("one", "/").args(["-o", "recover=maybe"]), 1);
    assert!(said.contains("recover=maybe is neither clean nor no"), "{said}");
    let said = bad(thalweg(["mount", "-o", "recover=no"]).arg(scene.home.volume()).arg(&root), 1);
    assert!(said.contains("recover= is for shared filesystems"), "{said}");
    good(scene.mount_command("one", "/").args(["-o", "recover=no"]));
    let said = bad(thalweg(["mount", "-o", "remount,recover=clean"]).arg(&root), 1);
    assert!(said.contains("cannot change recover="), "{said}");
    assert_eq!(text(&root.join("f")), "text");
    evict();
    let failed = || fs::read_dir(&root).err().and_then(|error| error.raw_os_error());
    wait_until(|| failed() == Some(libc::EIO));
    let made = fs::write(root.join("g"), "x").unwrap_err();
    assert_eq!(made.raw_os_error(), Some(libc::EIO));
    let output = scene.umount("one", &[]);
    assert!(output.status.success(), "{output:?}");
    good(scene.mount_command("one", "/").args(["-o", "recover=clean"]));
    assert_eq!(text(&root.join("f")), "text");
    evict();
    wait_until(|| fs::read_to_string(root.join("f")).is_ok_and(|it| it == "text"));
    fs::write(root.join("g"), "x").unwrap();
}
