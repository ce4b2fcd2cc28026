//! A client with a journal: what was synced survives the death of the mount, and needs no server.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command};

use serde_json::Value;

use crate::cluster::Scene;
use crate::files::{text, wait_until};
use crate::run::{bad, good, json, thalweg};

/// The process of a mount.
struct Foreground(Child);

impl Foreground {
    fn start(scene: &Scene, command: &mut Command, name: &str) -> Foreground {
        let started = Foreground(command.arg("--foreground").spawn().unwrap());
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        let mounted = scene.home.path(&format!("mnt-{name}"));
        wait_until(|| device(&mounted) != device(&scene.home.path(".")));
        started
    }

    /// As with `kill -9`.
    fn kill(mut self, scene: &Scene, name: &str) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        assert!(scene.umount(name, &["--lazy"]).status.success());
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn inspect(journal: &Path) -> Value {
    json(thalweg(["cluster", "journal", "inspect", "--json"]).arg(journal))
}

#[test]
fn what_was_synced_survives_the_mount_and_waits_for_no_server() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let token = scene.token_with("one", &["--path", "/", "--rw", "--squash", "none"]);
    let journal = scene.home.path("journal");
    let options = format!("journal_dev={},journal_size=16M", journal.display());
    let mut command = scene.mount_command("one", "/");
    let first = command.args(["-o", &options, "--token", &token]);
    let mount = Foreground::start(&scene, first, "one");
    let directory = scene.home.path("mnt-one").join("d");
    fs::create_dir(&directory).unwrap();
    let files: Vec<File> = (0..5u8)
        .map(|number| {
            let file = File::create(directory.join(format!("f{number}"))).unwrap();
            file.write_all_at(&[b'0' + number; 5000], 0).unwrap();
            file.sync_all().unwrap();
            file
        })
        .collect();
    // A database goes on with its commits while the server is away.
    scene.server.as_mut().unwrap().kill_now();
    files[0].write_all_at(b"later", 0).unwrap();
    files[0].sync_all().unwrap();
    let found = inspect(&journal);
    assert!(found["changes"].as_u64().unwrap() > 8 && found["session"].is_string(), "{found}");
    drop(files);
    mount.kill(&scene, "one");

    scene.serve_with(&[]);
    let said = bad(thalweg(["cluster", "journal", "erase"]).arg(&journal), 1);
    assert!(said.contains("changes, which would be lost"), "{said}");
    let options = format!("journal_dev={}", journal.display());
    good(scene.mount_command("one", "/").args(["-o", &options]));
    let other = scene.mount("two", "/", "--rw");
    let mut expected = "0".repeat(5000);
    expected.replace_range(0..5, "later");
    assert_eq!(text(&other.join("d/f0")), expected);
    assert_eq!(text(&directory.join("f4")), "4".repeat(5000));
    fs::write(directory.join("new"), "written back by umount").unwrap();
    assert!(scene.umount("one", &[]).status.success());
    wait_until(|| inspect(&journal)["session"].is_null());
    assert_eq!(inspect(&journal)["changes"], 0);
    assert_eq!(text(&other.join("d/new")), "written back by umount");
    good(thalweg(["cluster", "journal", "erase"]).arg(&journal));
}

#[test]
fn what_is_no_journal_is_refused() {
    let Some(scene) = Scene::with_mounts() else { return };
    let token = scene.token_with("one", &["--path", "/", "--rw", "--squash", "none"]);
    let (data, empty) = (scene.home.path("data"), scene.home.path("empty"));
    fs::write(&data, vec![b'x'; 4 << 20]).unwrap();
    let mut first = vec!["--token", token.as_str()];
    let mut refused = |options: &str, word: &str| {
        let mut command = scene.mount_command("one", "/");
        let said = bad(command.args(["-o", options]).args(first.drain(..)), 1);
        assert!(said.contains(word), "{options}: {said}");
    };
    let at = |path: &Path| format!("journal_dev={}", path.display());
    refused(&at(&data), "holds no journal");
    refused(&format!("{},journal_size=1M", at(&data)), "is there already");
    refused(&format!("{},journal_size=64K", at(&empty)), "too small");
    refused("commit=5", "are about a journal");
    refused("journal_dev=", "names no file");
    assert!(!empty.exists() && fs::read(&data).unwrap() == vec![b'x'; 4 << 20]);
    // Made on purpose, it overwrites the file.
    good(thalweg(["cluster", "journal", "create"]).arg(&data));
    good(scene.mount_command("one", "/").args(["-o", &at(&data)]));
    let mut twice = scene.with("one", &["cluster", "journal", "create"]);
    let said = bad(twice.arg(&data), 1);
    assert!(said.contains("in use by another process"), "{said}");
    assert!(scene.umount("one", &[]).status.success());
}
