//! A client with a journal: what was synced survives the death of the mount, and needs no server.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use serde_json::Value;

use crate::cluster::Scene;
use crate::files::{text, wait_until};
use crate::run::{Home, bad, good, json, thalweg};

/// The process of a mount.
pub(crate) struct Foreground(Child);

impl Foreground {
    /// Starts a mount, again while it fails: the kernel may end I/O of a killed process later, which has its journal until then.
    pub(crate) fn start(home: &Home, command: &mut Command, name: &str) -> Foreground {
        command.arg("--foreground");
        let spawn = RefCell::new(|| Foreground(command.spawn().unwrap()));
        let started = RefCell::new(spawn.borrow_mut()());
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        let mounted = home.path(&format!("mnt-{name}"));
        wait_until(|| {
            let has_ended = started.borrow_mut().0.try_wait().unwrap().is_some();
            if has_ended {
                started.replace(spawn.borrow_mut()());
            }
            device(&mounted) != device(&home.path("."))
        });
        started.into_inner()
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(self.0.id().cast_signed(), signal) }, 0);
    }

    /// Tells it to end, as a shutdown does, and waits for that.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.0.wait().unwrap()
    }

    /// As with `kill -9`.
    pub(crate) fn kill(mut self, home: &Home, name: &str) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        good(thalweg(["umount", "--lazy"]).arg(home.path(&format!("mnt-{name}"))));
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first mount of a client with a new journal; the journal, and a directory that it has made.
pub(crate) fn first_mount(scene: &Scene) -> (Foreground, PathBuf, PathBuf) {
    first_mount_with(scene, "16M")
}

/// The same, with a journal of this size.
pub(crate) fn first_mount_with(scene: &Scene, size: &str) -> (Foreground, PathBuf, PathBuf) {
    let token = scene.token_with("one", &["--path", "/", "--rw", "--squash", "none"]);
    let journal = scene.home.path("journal");
    let options = format!("journal_dev={},journal_size={size}", journal.display());
    let mut command = scene.mount_command("one", "/");
    let first = command.args(["-o", &options, "--token", &token]);
    let mount = Foreground::start(&scene.home, first, "one");
    let directory = scene.home.path("mnt-one").join("d");
    fs::create_dir(&directory).unwrap();
    (mount, journal, directory)
}

pub(crate) fn inspect(journal: &Path) -> Value {
    json(thalweg(["cluster", "journal", "inspect", "--json"]).arg(journal))
}

#[test]
fn what_was_synced_survives_the_mount_and_waits_for_no_server() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let (mount, journal, directory) = first_mount(&scene);
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
    mount.kill(&scene.home, "one");

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
    refused(&format!("{},journal_size=1M", at(&data)), "holds no journal");
    refused(&format!("{},journal_size=64K", at(&empty)), "too small");
    refused("commit=5", "are about a journal");
    refused("on_conflict=copy", "are about a journal");
    refused("on_conflict=merge", "none of copy, discard and refuse");
    refused("journal_dev=", "names no file");
    assert!(!empty.exists() && fs::read(&data).unwrap() == vec![b'x'; 4 << 20]);
    // Made on purpose, it overwrites the file.
    good(thalweg(["cluster", "journal", "create"]).arg(&data));
    let options = format!("{},journal_size=8M", at(&data));
    // A mount that was killed may have its journal for a moment.
    let mut lock = Command::new("flock").arg(&data).args(["sleep", "0.7"]).spawn().unwrap();
    wait_until(|| File::open(&data).unwrap().try_lock().is_err());
    good(scene.mount_command("one", "/").args(["-o", &options]));
    assert!(lock.wait().unwrap().success());
    let mut twice = scene.with("one", &["cluster", "journal", "create"]);
    let said = bad(twice.arg(&data), 1);
    assert!(said.contains("in use by another process"), "{said}");
    assert!(scene.umount("one", &[]).status.success());
}

/// Another client uses a file while the first one is away: that one's changes are beside the file, and can be applied.
#[test]
fn what_others_have_used_is_in_conflict_copies() {
    let Some(scene) = Scene::with_mounts() else { return };
    let (mount, journal, directory) = first_mount(&scene);
    let shown = scene.home.path("mnt-one").display().to_string();
    for name in ["read", "changed", "apart"] {
        fs::write(directory.join(name), format!("{name} before")).unwrap();
    }
    for name in ["read", "changed", "apart"] {
        good(thalweg(["wait", "--for", "server"]).arg(directory.join(name)));
    }
    for name in ["apart", "read", "changed", "new"] {
        let file = File::create(directory.join(name)).unwrap();
        file.write_all_at(format!("{name} after").as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    }
    mount.kill(&scene.home, "one");
    let other = scene.mount("two", "/", "--rw");
    assert_eq!(text(&other.join("d/read")), "read before");
    fs::write(other.join("d/changed"), "changed by another client").unwrap();
    let mut command = scene.with("server", &["cluster", "status"]);
    let status = good(command.arg(scene.home.volume()));
    assert!(status.contains("AWAY") && status.contains("away with its journal"), "{status}");

    let options = format!("journal_dev={}", journal.display());
    good(scene.mount_command("one", "/").args(["-o", &options]));
    // No other client has used it, and it came before what another one has used.
    assert_eq!(text(&other.join("d/apart")), "apart after");
    assert_eq!(text(&other.join("d/read")), "read before");
    assert_eq!(text(&other.join("d/changed")), "changed by another client");
    let conflicts = |words: &[&str]| {
        let mut command = thalweg(["cluster", "conflicts"]);
        command.args(words);
        command
    };
    let sets = json(&mut conflicts(&["list", "--json", &shown]));
    let set = sets[0]["name"].as_str().unwrap().to_owned();
    let entries = sets[0]["entries"].as_array().unwrap();
    let kinds: Vec<_> = entries.iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["complete", "ranges", "new"], "{sets}");
    let said = good(&mut conflicts(&["show", &shown, &set]));
    assert!(
        said.contains("/d/read.conflict-") && said.contains("of a file that others have changed"),
        "{said}"
    );
    let exported = scene.home.path("exported");
    good(conflicts(&["export", &shown, &set]).arg(&exported));
    let copy = format!("d/new.conflict-{set}");
    assert_eq!(text(&exported.join(&copy)), "new after");
    // The copy of a file that was changed since is left.
    fs::write(other.join("d/new"), "made meanwhile").unwrap();
    let said = bad(&mut conflicts(&["apply", &shown, &set]), 1);
    assert!(said.contains("/d/new: the name is another file's by now"), "{said}");
    assert_eq!(text(&other.join("d/read")), "read after");
    assert!(text(&other.join("d/changed")).starts_with("changed after"));
    good(&mut conflicts(&["drop", &shown, &set]));
    assert!(!other.join(copy).exists() && !other.join(".thalweg-conflicts").exists());
    bad(&mut conflicts(&["show", &shown, &set]), 1);
    assert!(scene.umount("one", &[]).status.success());
}

/// A mount of the volume without its server notes nothing of each file: all that were there count as used by others.
#[test]
fn files_that_were_there_in_a_use_without_a_server_are_in_conflict_copies() {
    let Some(mut scene) = Scene::with_mounts() else { return };
    let (mount, journal, directory) = first_mount(&scene);
    let names = ["read", "changed", "apart"];
    for name in names {
        fs::write(directory.join(name), format!("{name} before")).unwrap();
        good(thalweg(["wait", "--for", "server"]).arg(directory.join(name)));
    }
    for name in ["new", "apart", "read", "changed"] {
        let file = File::create(directory.join(name)).unwrap();
        file.write_all_at(format!("{name} after").as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    }
    mount.kill(&scene.home, "one");
    scene.server.as_mut().unwrap().kill_now();
    let alone = scene.home.path("alone");
    fs::create_dir(&alone).unwrap();
    good(thalweg(["mount"]).arg(scene.home.volume()).arg(&alone));
    assert_eq!(text(&alone.join("d/read")), "read before");
    fs::write(alone.join("d/changed"), "changed without a server").unwrap();
    good(thalweg(["umount"]).arg(&alone));

    scene.serve_with(&[]);
    let status = good(scene.with("server", &["cluster", "status"]).arg(scene.home.volume()));
    assert!(status.contains("away with its journal"), "{status}");
    let options = format!("journal_dev={}", journal.display());
    good(scene.mount_command("one", "/").args(["-o", &options]));
    // It came before the others.
    assert_eq!(text(&directory.join("new")), "new after");
    assert_eq!(text(&directory.join("read")), "read before");
    assert_eq!(text(&directory.join("apart")), "apart before");
    assert_eq!(text(&directory.join("changed")), "changed without a server");
    let shown = scene.home.path("mnt-one").display().to_string();
    let sets = json(&mut thalweg(["cluster", "conflicts", "list", "--json", &shown]));
    let entries = sets[0]["entries"].as_array().unwrap();
    let of = |it: &Value| (it["path"].as_str().unwrap().to_owned(), it["kind"].clone());
    let mut found: Vec<_> = entries.iter().map(of).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [("/d/apart", "complete"), ("/d/changed", "ranges"), ("/d/read", "complete")];
    assert_eq!(found, expected.map(|(path, kind)| (path.to_owned(), Value::from(kind))), "{sets}");
    assert!(scene.umount("one", &[]).status.success());
}

/// A journal that was given up at the server cannot be written back; what it has can be taken out of it.
#[test]
fn a_journal_that_was_given_up_is_exported() {
    let Some(scene) = Scene::with_mounts() else { return };
    let (mount, journal, directory) = first_mount(&scene);
    // The directory is the client's own after a few names in it.
    for number in 0..5 {
        File::create(directory.join(format!("f{number}"))).unwrap();
    }
    let file = File::create(directory.join("file")).unwrap();
    file.write_all_at(b"given up", 0).unwrap();
    file.write_all_at(b"far", 10_000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(inspect(&journal)["bytes"].as_u64().unwrap() >= 11);
    let forget = || {
        let mut command = scene.with("server", &["cluster", "journal", "forget"]);
        command.arg(scene.home.volume()).arg("one");
        command
    };
    let said = bad(&mut forget(), 1);
    assert!(said.contains("no lapsed journal"), "{said}");
    mount.kill(&scene.home, "one");
    let other = scene.mount("two", "/", "--rw");
    assert!(fs::read(other.join("d/file")).unwrap_or_default().is_empty());
    good(&mut forget());

    let options = format!("journal_dev={}", journal.display());
    let said = bad(scene.mount_command("one", "/").args(["-o", &options]), 1);
    assert!(said.contains("the server has ended the session"), "{said}");
    let exported = scene.home.path("exported");
    let export = || {
        let mut command = thalweg(["cluster", "journal", "export"]);
        command.arg(&journal).arg(&exported);
        command
    };
    good(&mut export());
    let said = bad(&mut export(), 1);
    assert!(said.contains("File exists"), "{said}");
    let list: Value = serde_json::from_str(&text(&exported.join("journal.json"))).unwrap();
    let has_bytes = |it: &&Value| it["size"] == 10_003;
    let found = list.as_array().unwrap().iter().find(has_bytes).unwrap();
    let bytes = fs::read(exported.join(format!("inode-{}", found["ino"]))).unwrap();
    assert_eq!(
        (bytes.len(), &bytes[..8], &bytes[10_000..]),
        (10_003, &b"given up"[..], &b"far"[..])
    );
    assert_eq!(found["ranges"], serde_json::json!([[0, 8], [10_000, 3]]));
    good(thalweg(["cluster", "journal", "erase", "--force"]).arg(&journal));
    good(scene.mount_command("one", "/").args(["-o", &options]));
    assert!(scene.umount("one", &[]).status.success());
}
