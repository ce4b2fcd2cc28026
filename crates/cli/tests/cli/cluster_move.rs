//! A mount moves to another machine, with what the server does not have.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cluster::Scene;
use crate::cluster_journal::{first_mount, inspect};
use crate::files::{text, wait_until};
use crate::run::{bad, good, json};

/// The process of a mount that waits.
struct Waiting {
    child: Child,
    address: String,
}

impl Waiting {
    fn start(command: &mut Command) -> Waiting {
        let mut child = command.arg("--foreground").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("waits for a mount at ").expect("it waits");
        Waiting { address: address.to_owned(), child }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn device(path: &Path) -> u64 {
    fs::metadata(path).unwrap().dev()
}

/// Writes a file, and syncs it.
fn write(path: PathBuf, text: &str) -> File {
    let file = File::create(path).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
    file.sync_all().unwrap();
    file
}

#[test]
fn a_mount_moves_to_another_machine_with_what_was_synced() {
    let Some(scene) = Scene::with_mounts() else { return };
    let (_first, journal, directory) = first_mount(&scene);
    for number in 0..5 {
        drop(write(directory.join(format!("f{number}")), &"x".repeat(5000)));
    }
    let there = scene.home.path("journal-two");
    let options = format!("journal_dev={},journal_size=16M,receive=127.0.0.1:0", there.display());
    let token = scene.token_with("two", &["--path", "/", "--rw", "--squash", "none"]);
    let mut command = scene.mount_command("two", "/");
    let waiting = Waiting::start(command.args(["-o", &options, "--token", &token]));
    let (here, elsewhere) = (scene.home.path("mnt-one"), scene.home.path("mnt-two"));
    assert_eq!(device(&elsewhere), device(&scene.home.path(".")), "nothing is mounted yet");

    let moving = |args: &[&str]| {
        let mut command = scene.with("one", &["cluster", "move"]);
        command.arg(&here).arg(&waiting.address).args(args);
        command
    };
    let said = bad(&mut moving(&[]), 1);
    assert!(said.contains("does not let this client in") && said.contains("key enrol"), "{said}");
    let said = bad(scene.with("one", &["cluster", "move"]).arg(&here).arg("127.0.0.1:1"), 1);
    assert!(said.contains("the key of the server 127.0.0.1:1 is not known here"), "{said}");
    let token = good(&mut scene.with("two", &["key", "authorize", "one", "--token"]));
    good(&mut scene.with("one", &["key", "enrol", &waiting.address, token.trim()]));
    let open = write(directory.join("f0"), "later");
    let said = bad(&mut moving(&[]), 1);
    assert!(said.contains("1 files open for writing") && said.contains("--force"), "{said}");
    open.write_all_at(b"Later", 0).unwrap();
    drop(open);

    let mut moved = json(&mut moving(&["--json"]));
    assert_eq!(moved["has_arrived"].take(), true);
    assert!(moved["dirty"].as_u64().unwrap() > 20_000, "{moved}");
    wait_until(|| device(&elsewhere) != device(&scene.home.path(".")));
    assert_eq!(text(&elsewhere.join("d/f0")), "Later");
    assert_eq!(text(&elsewhere.join("d/f4")), "x".repeat(5000));
    // Here it is stale, and leaves nothing.
    let stale = fs::read(directory.join("f4")).unwrap_err();
    assert!(stale.kind() == ErrorKind::StaleNetworkFileHandle, "{stale}");
    let unmounted = scene.umount("one", &[]);
    assert!(unmounted.status.success(), "{}", String::from_utf8_lossy(&unmounted.stderr));
    assert_eq!(inspect(&journal)["changes"], 0);

    // It goes on there, and another client sees it.
    drop(write(elsewhere.join("d/f1"), "there"));
    assert!(scene.umount("two", &[]).status.success());
    let other = scene.mount("three", "/", "--rw");
    assert_eq!(text(&other.join("d/f0")), "Later");
    assert_eq!(text(&other.join("d/f1")), "there");
}
