//! What of a mount's changes is not at the server: it is shown, sent on demand, and left in the journal.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use thalweg_env::Env;

use crate::clients::{free_port, scrape, value};
use crate::cluster::Scene;
use crate::cluster_journal::{first_mount, inspect};
use crate::files::{Mount, text, wait_until};
use crate::run::{bad, good, json, thalweg};

/// A client with a journal, its first mount, and a file that the server does not have.
struct Client {
    scene: Scene,
    journal: PathBuf,
    root: PathBuf,
}

impl Client {
    fn new(arguments: &[&str]) -> Option<Client> {
        let scene = Scene::with_mounts()?;
        let token = scene.token_with("one", &["--path", "/", "--rw", "--squash", "none"]);
        let journal = scene.home.path("journal");
        let mut command = scene.mount_command("one", "/");
        let options = format!("journal_dev={},journal_size=16M", journal.display());
        good(command.args(["-o", &options, "--token", &token]).args(arguments));
        let root = scene.home.path("mnt-one");
        let client = Client { scene, journal, root };
        fs::create_dir(client.path("d")).unwrap();
        // The next ones are made without calls.
        (0..3).for_each(|number| drop(File::create(client.path(&format!("d/{number}"))).unwrap()));
        good(thalweg(["cluster", "drain"]).arg(&client.root));
        client.write("synced");
        Some(client)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write(&self, text: &str) {
        let file = File::create(self.path("d/file")).unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    }

    fn mount_again(&self) {
        let options = format!("journal_dev={}", self.journal.display());
        good(self.scene.mount_command("one", "/").args(["-o", &options]));
    }

    fn pending(&self) -> Value {
        json(thalweg(["cluster", "pending", "--json"]).arg(&self.root))["pending"].clone()
    }

    fn umount(&self, options: &[&str]) -> String {
        let output = self.scene.umount("one", options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        said
    }
}

fn level(file: &Path) -> String {
    let said = good(thalweg(["wait", "--ask"]).arg(file));
    said.split_whitespace().next().unwrap().to_owned()
}

fn wait(level: &str, file: &Path) -> Command {
    let mut command = thalweg(["wait", "--for", level]);
    command.arg(file);
    command
}

#[test]
fn what_waits_in_a_journal_is_seen_and_drained() {
    let port = free_port();
    let Some(client) = Client::new(&["--metrics", &format!("127.0.0.1:{port}")]) else { return };
    let (root, file) = (&client.root, client.path("d/file"));
    let pending = client.pending();
    let count = |name: &str| pending[name].as_u64().unwrap();
    assert!(count("changes") >= 2 && count("bytes") == 6 && count("files") >= 2, "{pending}");
    assert!(count("oldest_ms") < 60_000, "{pending}");
    assert_eq!(pending["in_journal"]["changes"], pending["changes"]);
    let journal = &pending["journal"];
    assert_eq!(journal["incarnation"], 1, "{pending}");
    assert!(journal["used"].as_u64().unwrap() >= 1024 && journal["size"].as_u64() > Some(15 << 20));
    assert_eq!(level(&file), "journal");
    good(&mut wait("journal", &file));
    assert_eq!(level(&file), "journal");
    let shown = good(thalweg(["status"]).arg(root));
    assert!(shown.contains("connected") && shown.contains("incarnation 1"), "{shown}");
    assert!(good(thalweg(["cluster", "pending"]).arg(root)).contains("in journal"));
    assert_eq!(json(thalweg(["status", "--json"]).arg(root))["pending"]["bytes"], 6);
    wait_until(|| value(&scrape(port), "thalweg_client_pending_bytes", "address=") == 6.0);
    let page = scrape(port);
    assert!(value(&page, "thalweg_client_journaled_changes", "address=") >= 2.0);
    assert!(value(&page, "thalweg_client_journal_used_bytes", "address=") >= 1024.0);
    let metric = |name: &str| value(&page, &format!("thalweg_client_{name}"), "address=");
    assert_eq!(metric("journaled_bytes"), 6.0);
    assert!(metric("pending_changes") >= 2.0 && metric("pending_files") >= 2.0);
    assert!((0.0..60.0).contains(&metric("pending_oldest_seconds")));
    assert!(metric("journal_size_bytes") > 15e6);
    for name in ["refused", "journal_failed", "undurable_calls", "journal_copies"] {
        assert_eq!(metric(name), 0.0, "{name}");
    }
    assert_eq!(metric("journal_copies_missing"), 0.0);

    good(thalweg(["cluster", "drain"]).arg(root));
    let pending = client.pending();
    assert_eq!((&pending["changes"], &pending["undurable"]), (&Value::from(0), &Value::from(0)));
    assert_eq!(
        (&pending["journal"]["records"], &pending["oldest_ms"]),
        (&Value::from(1), &Value::Null)
    );
    assert_eq!(level(&file), "server");
    let other = client.scene.mount("two", "/", "--rw");
    assert_eq!(text(&other.join("d/file")), "synced");
    client.write("another");
    good(&mut wait("server", &file));
    assert_eq!(level(&file), "server");

    let dump = good(thalweg(["dump"]).arg(&client.journal));
    assert!(dump.contains("journal's superblock at 4096") && dump.contains("record "), "{dump}");
    let dump = json(thalweg(["dump", "--json"]).arg(&client.journal));
    let superblock = &dump["client_journal"]["superblocks"][0]["superblock"];
    assert!(superblock["kept_before"].is_u64() && superblock["oldest_epoch"].is_u64(), "{dump}");
    client.umount(&[]);
}

#[test]
fn an_umount_may_leave_the_rest_in_the_journal() {
    let Some(client) = Client::new(&[]) else { return };
    let said = client.umount(&["--leave"]);
    assert!(said.contains("changes stay in the journal"), "{said}");
    let left = inspect(&client.journal);
    assert!(left["changes"].as_u64().unwrap() >= 2 && left["bytes"] == 6, "{left}");
    client.mount_again();
    let other = client.scene.mount("two", "/", "--rw");
    assert_eq!(text(&other.join("d/file")), "synced");
    let said = client.umount(&[]);
    assert!(!said.contains("stay in the journal"), "{said}");
    assert_eq!(inspect(&client.journal)["changes"], 0);
    let refused = client.scene.umount("two", &["--leave"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("has no journal"), "{said}");
    assert_eq!(text(&other.join("d/file")), "synced");
}

/// The server is away for longer than the lease.
#[test]
fn an_umount_without_the_server_leaves_the_rest_in_the_journal() {
    let Some(mut client) = Client::new(&[]) else { return };
    client.scene.server.as_mut().unwrap().kill_now();
    let mut drain = thalweg(["cluster", "drain", "--timeout", "3s"]);
    let said = bad(drain.arg(&client.root), 1);
    assert!(said.contains("waiting for") && said.contains("not drained within 3 s"), "{said}");
    let shown = good(thalweg(["status"]).arg(&client.root));
    assert!(shown.contains("AWAY"), "{shown}");
    let said = client.umount(&[]);
    assert!(said.contains("waiting for") && said.contains("changes stay in the journal"), "{said}");
    client.scene.serve_with(&[]);
    client.mount_again();
    assert_eq!(text(&client.path("d/file")), "synced");
    client.umount(&[]);
}

/// As at a shutdown of the machine: it waits for a server that is away as an unmount does, and no longer.
#[test]
fn a_mount_that_is_told_to_end_leaves_the_rest_in_the_journal() {
    for is_away in [false, true] {
        let Some(mut scene) = Scene::with_mounts() else { return };
        let (mount, journal, directory) = first_mount(&scene);
        // The last ones are made without calls.
        for number in 0..3 {
            File::create(directory.join(number.to_string())).unwrap();
        }
        let file = File::create(directory.join("synced")).unwrap();
        file.write_all_at(b"kept", 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        if is_away {
            scene.server.as_mut().unwrap().kill_now();
        }
        let clock = Env::real();
        let begun = clock.now();
        let status = mount.end();
        let took = clock.now().since(begun);
        assert!(status.success() && took < Duration::from_secs(20), "{status} after {took:?}");
        let left = inspect(&journal);
        assert_eq!(left["changes"].as_u64().unwrap() > 0, is_away, "{left}");
        if is_away {
            scene.serve_with(&[]);
        }
        let other = scene.mount("two", "/", "--rw");
        if is_away {
            let options = format!("journal_dev={}", journal.display());
            good(scene.mount_command("one", "/").args(["-o", &options]));
        }
        assert_eq!(text(&other.join("d/synced")), "kept");
        if is_away {
            assert!(scene.umount("one", &[]).status.success());
        }
    }
}

#[test]
fn what_has_no_server_elsewhere_has_nothing_to_send() {
    let Some(mount) = Mount::new(&[]) else { return };
    for command in ["pending", "drain"] {
        let said = bad(thalweg(["cluster", command]).arg(&mount.root), 1);
        assert!(said.contains("is a volume of this machine"), "{said}");
        let said = bad(thalweg(["cluster", command]).arg("/"), 1);
        assert!(said.contains("no filesystem of a volume is mounted"), "{said}");
    }
    let said = bad(thalweg(["umount", "--leave"]).arg(&mount.root), 1);
    assert!(said.contains("is a volume of this machine"), "{said}");
    mount.umount();
}

#[test]
fn a_mount_of_a_journal_waits_in_the_background_for_its_server() {
    let Some(mut client) = Client::new(&[]) else { return };
    client.umount(&["--leave"]);
    let before = inspect(&client.journal)["changes"].clone();
    assert!(before.as_u64().unwrap() >= 2, "{before}");
    client.scene.server.as_mut().unwrap().kill_now();
    let options = format!("journal_dev={},bg", client.journal.display());
    let output = client.scene.mount_command("one", "/").args(["-o", &options]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("in the background"), "{said}");
    // The journal is kept until the server is there.
    assert_eq!(inspect(&client.journal)["changes"], before);
    client.scene.serve_with(&[]);
    wait_until(|| client.path("d/file").exists());
    assert_eq!(text(&client.path("d/file")), "synced");
    client.umount(&[]);
}
