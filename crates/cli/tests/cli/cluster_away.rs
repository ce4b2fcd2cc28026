//! Mounts of a shared filesystem whose server is away.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::cluster::Scene;
use crate::files::{Mount, text, wait_until};
use crate::run::{bad, good, thalweg};

#[test]
fn a_program_on_a_mount_without_its_server_is_killed_or_fails_as_the_mount_says() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let hard = scene.mount("hard", "/", "--rw");
    let soft = scene.home.path("mnt-soft");
    let token = scene.token_with("soft", &["--path", "/", "--rw", "--squash", "none"]);
    let options = ["-o", "soft,timeo=5,retrans=1", "--token", &token];
    good(scene.mount_command("soft", "/").args(options));
    fs::write(hard.join("a"), "kept").unwrap();
    assert_eq!(text(&soft.join("a")), "kept");
    let said = bad(thalweg(["mount", "-o", "remount,hard"]).arg(&soft), 1);
    assert!(said.contains("remount cannot change hard, soft"), "{said}");
    scene.server.as_mut().unwrap().kill_now();
    let mut waits =
        Command::new("cat").arg(hard.join("nosuch")).stderr(Stdio::null()).spawn().unwrap();
    let failed = fs::read(soft.join("nosuch")).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{failed}");
    assert_eq!(waits.try_wait().unwrap(), None, "a hard mount waits");
    waits.kill().unwrap();
    assert_eq!(waits.wait().unwrap().signal(), Some(libc::SIGKILL));
    // As df does with each mount. Without names it would wait for mounts of other tests, and it opens those that it is given.
    for mode in [&["stat", "-f"][..], &["stat"]] {
        let mut looks = Command::new("timeout");
        let looked = looks.arg("20").args(mode).args([&hard, &soft]).output().unwrap();
        assert_ne!(looked.status.code(), Some(124), "{mode:?} waits");
    }
    scene.serve_with(&[]);
    assert_eq!((text(&hard.join("a")), text(&soft.join("a"))), ("kept".into(), "kept".into()));
    for name in ["hard", "soft"] {
        assert!(scene.umount(name, &[]).status.success());
    }
}

#[test]
fn a_mount_waits_for_its_server_in_the_foreground_or_in_the_background() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let token = |name| scene.token_with(name, &["--path", "/", "--rw", "--squash", "none"]);
    let tokens = ["front", "back"].map(token);
    scene.server.as_mut().unwrap().kill_now();
    let said = bad(scene.mount_command("front", "/").args(["--token", &tokens[0]]), 1);
    assert!(said.contains("thalweg cluster serve"), "{said}");
    let mut back = scene.mount_command("back", "/");
    let output = back.args(["-o", "bg", "--token", &tokens[1]]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("in the background"), "{said}");
    let mut front = scene.mount_command("front", "/");
    let front = front.args(["-o", "retry=1", "--token", &tokens[0]]).spawn().unwrap();
    scene.serve_with(&[]);
    let front = front.wait_with_output().unwrap();
    assert!(front.status.success(), "{front:?}");
    let [front, back] = ["mnt-front", "mnt-back"].map(|name| scene.home.path(name));
    fs::write(front.join("a"), "shared").unwrap();
    wait_until(|| back.join("a").exists());
    assert_eq!(text(&back.join("a")), "shared");
    for name in ["front", "back"] {
        assert!(scene.umount(name, &[]).status.success());
    }
}

#[test]
fn a_line_of_fstab_that_a_system_cannot_start_with_is_told() {
    let Some(scene) = Scene::with_mounts() else { return };
    let token = scene.token_with("one", &["--path", "/", "--rw", "--squash", "none"]);
    let (table, place) = (scene.home.path("fstab"), scene.home.path("mnt-one"));
    let address = scene.mount_command("one", "/").get_args().nth(1).unwrap().to_owned();
    let address = address.to_str().unwrap();
    let mut first = vec!["--token", &token];
    for (options, warns) in [("defaults", true), ("_netdev,nofail", false)] {
        let line = format!("{address} {} thalweg {options} 0 0\n", place.display());
        fs::write(&table, line).unwrap();
        let mut mount = scene.mount_command("one", "/");
        let output = mount.args(first.drain(..)).env("LIBMOUNT_FSTAB", &table).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.contains("lacks _netdev"), warns, "{options}: {said}");
        assert!(scene.umount("one", &[]).status.success());
    }
}

#[test]
fn the_words_about_a_server_are_refused_where_there_is_none() {
    let Some(mount) = Mount::new(&[]) else { return };
    mount.umount();
    for word in ["soft", "hard", "disconnected=error", "timeo=5", "retry=1", "bg"] {
        let mut command = thalweg(["mount", "-o", word]);
        let said = bad(command.arg(mount.home.volume()).arg(&mount.root), 1);
        assert!(said.contains("are for shared filesystems"), "{word}: {said}");
    }
    mount.mount(&["-o", "intr"]);
    let said = bad(thalweg(["mount", "-o", "remount,timeo=0"]).arg(&mount.root), 1);
    assert!(said.contains("timeo=0 is not a number of tenths of a second"), "{said}");
}
