//! The self-test of two mounts of a shared filesystem.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cluster::Scene;
use crate::files::wait_until;
use crate::run::{Home, bad, bad_json, good, json, thalweg};

fn selftest(a: &Path, b: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
    let mut command = thalweg(["cluster", "selftest"]);
    command.arg(a).arg(b).args(args);
    command
}

/// Two directories, one for each side.
fn directories(home: &Home) -> [std::path::PathBuf; 2] {
    ["a", "b"].map(|name| {
        fs::create_dir(home.path(name)).unwrap();
        home.path(name)
    })
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn two_mounts_of_one_filesystem_pass() {
    let Some(scene) = Scene::with_mounts() else { return };
    let (one, two) = (scene.mount("one", "/", "--rw"), scene.mount("two", "/", "--rw"));
    let said = good(&mut selftest(&one, &two, &["--rounds", "4"]));
    assert_eq!(said.lines().count(), 17, "{said}");
    assert!(said.lines().all(|line| line.starts_with("ok ") && line.ends_with(" ms")), "{said}");
    assert!(is_empty(&one));
    let found = json(&mut selftest(&one, &two, &["--rounds", "1", "--json"]));
    assert_eq!(
        (&found["same_mount"], &found["checks"][0]["passed"]),
        (&false.into(), &true.into())
    );
    assert!(found["checks"][0]["seen_us"]["median"].is_u64(), "{found}");
    // Another directory of the same filesystem.
    fs::create_dir(one.join("sub")).unwrap();
    let said = bad(&mut selftest(&one, two.join("sub"), &[]), 1);
    assert!(said.contains("not the same directory of one filesystem"), "{said}");
    assert_eq!(fs::read_dir(&one).unwrap().count(), 1);
}

#[test]
fn one_mount_passes_with_a_warning() {
    let home = Home::empty();
    let [a, b] = directories(&home);
    let output = selftest(&a, &a, &["--rounds", "2"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("are on one mount"), "{output:?}");
    assert!(is_empty(&a));
    let said = bad(&mut selftest(&a, &b, &[]), 1);
    assert!(said.contains("not the same directory of one filesystem"), "{said}");
    for (b, words) in [
        (home.path("absent"), &["absent", "No such file"][..]),
        (home.path("file"), &["is not a directory", "the same directory"]),
    ] {
        fs::write(home.path("file"), "").unwrap();
        let said = bad(&mut selftest(&a, b, &[]), 1);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    let said = bad(&mut selftest(Path::new("host:/a"), &b, &[]), 1);
    assert!(said.contains("not a directory of this machine"), "{said}");
}

/// Two directories, of which one becomes a copy of the other again and again.
#[test]
fn a_copy_fails() {
    let home = Home::empty();
    let [a, b] = directories(&home);
    let mut copying = Command::new("sh")
        .args(["-c", "while :; do cp -r a/. b/ 2>/dev/null; sleep 0.1; done"])
        .current_dir(home.path("."))
        .spawn()
        .unwrap();
    let output = selftest(&a, &b, &["--rounds", "1"]).output().unwrap();
    let found = bad_json(&mut selftest(&a, &b, &["--rounds", "1", "--json"]), 1);
    copying.kill().unwrap();
    copying.wait().unwrap();
    let (said, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{said} {complaint}");
    assert_eq!(said.lines().filter(|line| line.starts_with("FAIL")).count(), 15, "{said}");
    let create = said.lines().next().unwrap();
    let words = ["a new file is not seen at once", "there is no such name", "it is after"];
    assert!(words.iter().all(|word| create.contains(word)), "{create}");
    assert!(said.contains("nor is it after 1 s"), "{said}");
    for words in [
        "the removal of a file is not seen",
        "a file with 50 lines that each side has appended is not seen",
        "a synced store, through a mapping is not seen",
        "an append, through a mapping is not seen",
        "an exclusive lock of the other side does not exclude",
        "a lock of the same bytes by the other side does not exclude",
        "does not block",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(complaint.contains("15 of 17 checks failed"), "{complaint}");
    assert!(found["checks"][0]["failure"].is_string(), "{found}");
    assert!(is_empty(&a));
}

#[test]
fn an_interrupted_test_cleans_up() {
    let home = Home::empty();
    let [a, _] = directories(&home);
    let mut command = selftest(&a, &a, &["--rounds", "100000"]);
    let running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(|| fs::read_dir(&a).unwrap().flatten().any(|it| !is_empty(&it.path())));
    good(Command::new("kill").args(["-INT", &running.id().to_string()]));
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(is_empty(&a));
}

/// A program `ssh` that runs the command here.
#[test]
fn the_second_mount_may_be_on_another_machine() {
    let home = Home::empty();
    let [a, b] = directories(&home);
    fs::create_dir(home.path("bin")).unwrap();
    let program = env!("CARGO_BIN_EXE_thalweg");
    let ssh = format!(
        "#!/bin/sh\n[ \"$4\" = host ] || exit 255\nshift 5\neval exec '{program}' \"$@\"\n"
    );
    fs::write(home.path("bin/ssh"), ssh).unwrap();
    fs::set_permissions(home.path("bin/ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", home.path("bin").display(), std::env::var("PATH").unwrap());
    let there = |host: &str, directory: &Path| {
        let place = format!("{host}:{}", directory.display());
        let mut command = selftest(&a, place, &["--rounds", "2"]);
        command.env("PATH", &path);
        command
    };
    let said = good(&mut there("host", &a));
    assert_eq!(said.lines().filter(|line| line.starts_with("ok ")).count(), 15, "{said}");
    let said = bad(&mut there("host", &b), 1);
    assert!(said.contains("not the same directory of one filesystem"), "{said}");
    let said = bad(&mut there("stranger", &a), 1);
    assert!(said.contains("ssh stranger thalweg --version"), "{said}");
    assert!(is_empty(&a));
}
