//! A second copy of a client's journal at a keeper: what was synced survives the loss of the client's machine.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use crate::cluster::Scene;
use crate::cluster_journal::{Foreground, inspect};
use crate::files::{text, wait_until};
use crate::run::{Server, bad, good, json, thalweg};

/// A keeper on this machine.
struct Keeper {
    server: Server,
    address: String,
    folder: PathBuf,
}

impl Keeper {
    fn start(scene: &Scene, listen: &str) -> Keeper {
        let folder = scene.home.path("copies");
        let mut command = scene.with("keeper", &["cluster", "keep", "--json", "--listen", listen]);
        command.arg(&folder);
        let server = Server::of(command, scene.home.path("unused"));
        let address = server.ready["addresses"][0].as_str().unwrap().to_owned();
        Keeper { server, address, folder }
    }

    /// Lets a client in.
    fn admit(&self, scene: &Scene, name: &str) {
        let token = good(&mut scene.with("keeper", &["key", "authorize", name, "--token"]));
        good(&mut scene.with(name, &["key", "enrol", &self.address, token.trim()]));
    }

    fn copies(&self) -> Vec<PathBuf> {
        let found = fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path());
        found.filter(|path| path.extension().is_some_and(|it| it == "journal")).collect()
    }
}

fn mount(scene: &Scene, options: &str) -> Foreground {
    let mut command = scene.mount_command("one", "/");
    Foreground::start(&scene.home, command.args(["-o", options]), "one")
}

/// Writes a file, and syncs it.
fn write(path: PathBuf, text: &str) {
    let file = File::create(path).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
    file.sync_all().unwrap();
}

fn pending(scene: &Scene) -> String {
    good(thalweg(["cluster", "pending"]).arg(scene.home.path("mnt-one")))
}

fn takeover(scene: &Scene, keeper: &Keeper, client: &str) -> Command {
    let mut command = scene.with("one", &["cluster", "takeover"]);
    command.arg(&keeper.folder).arg(client).arg(scene.address());
    command
}

#[test]
fn what_was_synced_survives_the_loss_of_the_machine() {
    let Some(scene) = Scene::with_mounts() else { return };
    let keeper = Keeper::start(&scene, "127.0.0.1:0");
    let journal = scene.home.path("journal");
    let token = scene.token_with("one", &["--path", "/", "--rw", "--squash", "none"]);
    let options =
        format!("journal_dev={},journal_size=16M,replicate={}", journal.display(), keeper.address);
    let mut command = scene.mount_command("one", "/");
    let said = bad(command.args(["-o", &options, "--token", &token]), 1);
    assert!(said.contains("the keeper") && said.contains("key enrol"), "{said}");
    keeper.admit(&scene, "one");
    fs::remove_file(&journal).unwrap();
    let first = mount(&scene, &options);
    let directory = scene.home.path("mnt-one").join("d");
    fs::create_dir(&directory).unwrap();
    for number in 0..5 {
        write(directory.join(format!("f{number}")), &"x".repeat(5000));
    }
    write(directory.join("f0"), "later");
    assert!(pending(&scene).contains("copy        at 127.0.0.1"), "{}", pending(&scene));
    let [copy] = &keeper.copies()[..] else { panic!("{:?}", keeper.copies()) };
    assert_eq!(inspect(copy)["changes"], inspect(&journal)["changes"]);
    let listed = |word: &str| {
        let said = good(thalweg(["cluster", "copies"]).arg(&keeper.folder));
        assert!(said.starts_with("one-") && said.contains(word), "{said}");
    };
    listed("on the drive");
    let other = scene.mount("two", "/", "--rw");

    // The machine is lost; here its journal is only elsewhere.
    first.kill(&scene.home, "one");
    let lost = scene.home.path("lost-journal");
    fs::rename(&journal, &lost).unwrap();
    let said = bad(&mut takeover(&scene, &keeper, "stranger"), 1);
    assert!(said.contains("no copies of journals of stranger"), "{said}");
    let said = good(&mut takeover(&scene, &keeper, "one"));
    assert!(said.contains("changes were written back"), "{said}");
    assert_eq!(text(&other.join("d/f0")), "later");
    assert_eq!(text(&other.join("d/f4")), "x".repeat(5000));
    let said = good(&mut takeover(&scene, &keeper, "one"));
    assert!(said.contains("has everything"), "{said}");
    assert_eq!(inspect(copy)["taken_over"], true);
    listed("taken over");

    // It comes back, and is refused.
    let returns = format!("journal_dev={}", lost.display());
    let said = bad(scene.mount_command("one", "/").args(["-o", &returns]), 1);
    assert!(said.contains("the server has ended the session"), "{said}");
}

#[test]
fn a_keeper_that_is_away_is_told_of_and_one_in_memory_writes_its_copies_at_its_end() {
    let Some(scene) = Scene::with_mounts() else { return };
    let keeper = Keeper::start(&scene, "127.0.0.1:0");
    scene.mount("one", "/", "--rw");
    assert!(scene.umount("one", &[]).status.success());
    keeper.admit(&scene, "one");
    let address = keeper.address.clone();
    let options = format!(
        "journal_dev={},journal_size=16M,replicate={address}:memory",
        scene.home.path("journal").display()
    );
    let first = mount(&scene, &options);
    let directory = scene.home.path("mnt-one").join("d");
    fs::create_dir(&directory).unwrap();
    for number in 0..3 {
        write(directory.join(format!("f{number}")), "first");
    }
    assert!(pending(&scene).contains("in memory") && keeper.copies().is_empty());
    let said = good(thalweg(["cluster", "copies"]).arg(&keeper.folder));
    assert!(said.contains("in memory"), "{said}");
    keeper.server.end();
    wait_until(|| pending(&scene).contains("NO COPY"));
    // There is the server.
    write(directory.join("f0"), "without a keeper");
    assert!(pending(&scene).contains("pending     nothing"), "{}", pending(&scene));
    let keeper = Keeper::start(&scene, &address);
    assert_eq!(keeper.copies().len(), 1);
    wait_until(|| !pending(&scene).contains("NO COPY"));
    write(directory.join("f1"), "with a keeper");
    first.kill(&scene.home, "one");
    let Keeper { server, folder, .. } = keeper;
    server.end();
    let mut command = scene.with("one", &["cluster", "takeover", "--json"]);
    let taken = json(command.arg(&folder).arg("one").arg(scene.address()));
    assert!(taken[0]["taken"]["written"].as_u64().unwrap() > 0, "{taken}");
    let other = scene.mount("two", "/", "--rw");
    assert_eq!(text(&other.join("d/f0")), "without a keeper");
    assert_eq!(text(&other.join("d/f1")), "with a keeper");
}
