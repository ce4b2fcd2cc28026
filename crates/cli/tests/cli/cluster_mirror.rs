//! A journal on two files: a client goes on when one of them fails, and the other one is filled again.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::clients::{free_port, scrape, value};
use crate::cluster::Scene;
use crate::cluster_journal::{Foreground, inspect};
use crate::files::{text, wait_until};
use crate::run::{bad, good, json, thalweg};

/// A filesystem in memory of so many bytes, for a file that is to fail.
struct Small(PathBuf);

impl Small {
    fn new(folder: PathBuf, size: &str) -> Small {
        fs::create_dir(&folder).unwrap();
        let mut command = Command::new("mount");
        good(command.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(&folder));
        Small(folder)
    }

    /// Has no more room for what is not written yet.
    fn fill(&self, but: &Path) {
        // The journal has written little of its ring, which begins behind the first MiB.
        let mut punching = Command::new("fallocate");
        good(punching.args(["--punch-hole", "--offset", "1200KiB", "--length", "14MiB"]).arg(but));
        let mut file = File::create(self.0.join("full")).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("full")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn write(file: &Path, text: &str) {
    let file = File::create(file).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
    file.sync_all().unwrap();
}

fn sides(root: &Path) -> Vec<Value> {
    let pending = json(thalweg(["cluster", "pending", "--json"]).arg(root))["pending"].clone();
    pending["journal"]["sides"].as_array().unwrap().clone()
}

fn are_current(root: &Path) -> Vec<bool> {
    sides(root).iter().map(|side| side["is_current"].as_bool().unwrap()).collect()
}

#[test]
fn a_journal_on_two_files_survives_one_of_them() {
    let Some(scene) = Scene::with_mounts() else { return };
    let small = Small::new(scene.home.path("small"), "24M");
    let (one, two) = (scene.home.path("one.journal"), small.0.join("two.journal"));
    let both = format!("{}+{}", one.display(), two.display());
    let token = scene.token_with("one", &["--path", "/", "--rw", "--squash", "none"]);
    let options = format!("journal_dev={both},journal_size=16M");
    let port = free_port();
    let metrics = format!("127.0.0.1:{port}");
    let mut command = scene.mount_command("one", "/");
    let command = command.args(["-o", &options, "--token", &token, "--metrics", &metrics]);
    let mount = Foreground::start(&scene.home, command, "one");
    let root = scene.home.path("mnt-one");
    fs::create_dir(root.join("d")).unwrap();
    write(&root.join("d/file"), "on both of them");
    assert_eq!(are_current(&root), [true, true]);

    // One fails under a sync, which succeeds all the same.
    small.fill(&two);
    write(&root.join("d/large"), &"large".repeat(100_000));
    write(&root.join("d/file"), "on one of them");
    assert_eq!(are_current(&root), [true, false]);
    let status = good(thalweg(["status"]).arg(&root));
    assert!(status.contains("DEGRADED") && status.contains("two.journal"), "{status}");
    // Metrics are as of the last second.
    let missing = || value(&scrape(port), "thalweg_client_journal_devices_missing", "address=");
    wait_until(|| missing() == 1.0);
    mount.kill(&scene.home, "one");

    // The one that was left behind is not used alone.
    small.empty();
    let mount_with = |journal: &str| {
        let mut command = scene.mount_command("one", "/");
        command.args(["-o", &format!("journal_dev={journal}")]);
        command
    };
    let away = scene.home.path("away.journal");
    fs::rename(&one, &away).unwrap();
    let said = bad(&mut mount_with(&both), 1);
    assert!(said.contains("missing") && said.contains("+missing"), "{said}");
    fs::rename(&away, &one).unwrap();
    let said = bad(&mut mount_with(&two.display().to_string()), 1);
    assert!(said.contains("one of the two devices of a mirrored journal"), "{said}");
    let found = inspect(Path::new(&both));
    assert!(found["changes"].as_u64().unwrap() > 0, "{found}");
    let shown = good(thalweg(["dump"]).arg(&one));
    assert!(shown.contains("client_journal") && shown.contains("record "), "{shown}");

    // With both, the newer one is, and the other one is filled.
    good(&mut mount_with(&both));
    assert_eq!(text(&root.join("d/file")), "on one of them");
    wait_until(|| are_current(&root) == [true, true]);
    write(&root.join("d/file"), "on both of them again");
    assert!(scene.umount("one", &["--leave"]).status.success());

    // The first one is lost while it is not mounted: that has to be said, and then another file takes its place.
    wait_until(|| fs::remove_file(&one).is_ok());
    let said = bad(&mut mount_with(&both), 1);
    assert!(said.contains("is lost for good"), "{said}");
    good(&mut mount_with(&format!("missing+{}", two.display())));
    assert_eq!(text(&root.join("d/file")), "on both of them again");
    assert_eq!(are_current(&root), [false, true]);
    assert!(scene.umount("one", &["--leave"]).status.success());
    File::create(&one).unwrap().set_len(16 << 20).unwrap();
    good(&mut mount_with(&both));
    wait_until(|| are_current(&root) == [true, true]);
    assert!(scene.umount("one", &[]).status.success());
    good(&mut thalweg(["cluster", "journal", "erase", &both]));
}

#[test]
fn other_files_are_no_mirror_and_stay_as_they_are() {
    let Some(scene) = Scene::with_mounts() else { return };
    let path = |name: &str| scene.home.path(name);
    let both =
        |first: &str, second: &str| format!("{}+{}", path(first).display(), path(second).display());
    let create = |first: &str, second: &str| {
        let mut command = thalweg(["cluster", "journal", "create", "--size", "8M"]);
        command.arg(both(first, second));
        command
    };
    good(&mut create("a", "b"));
    good(&mut create("c", "d"));
    fs::write(path("data"), vec![b'x'; 8 << 20]).unwrap();
    File::create(path("small")).unwrap().set_len(6 << 20).unwrap();
    std::os::unix::fs::symlink(path("a"), path("link")).unwrap();
    let token = scene.token_with("one", &["--path", "/", "--rw", "--squash", "none"]);
    let mut first = vec!["--token", token.as_str()];
    for (one, two, word) in [
        ("a", "c", "belong to different mirrors"),
        ("a", "link", "are the same device"),
        ("a", "a", "are the same device"),
        ("a", "data", "is not empty"),
        ("a", "small", "of the same size"),
    ] {
        let before = [one, two].map(|name| fs::read(path(name)).unwrap());
        let options = format!("journal_dev={}", both(one, two));
        let mut command = scene.mount_command("one", "/");
        let said = bad(command.args(["-o", &options]).args(first.drain(..)), 1);
        assert!(said.contains(word), "{one}, {two}: {said}");
        assert!(before == [one, two].map(|name| fs::read(path(name)).unwrap()), "{one}, {two}");
    }
    let said = bad(&mut create("a", "new"), 1);
    assert!(said.contains("is there already"), "{said}");
    let inspected = inspect(Path::new(&both("a", "b")));
    assert_eq!(inspected["changes"], 0);
    good(thalweg(["cluster", "journal", "export", &both("a", "b")]).arg(path("out")));
    assert!(path("out/journal.json").exists());
}
