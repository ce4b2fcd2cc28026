//! Replicas: volumes that follow one on another machine.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::run::{Home, Server, bad, degraded, good, json, thalweg};

/// A primary that listens, and a machine for a replica whose key it knows.
pub(crate) struct Scene {
    pub(crate) home: Home,
    pub(crate) primary: Server,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene::with(&[])
    }

    /// As [`Scene::new`], with options for the primary's server.
    pub(crate) fn with(more: &[&str]) -> Scene {
        let home = Home::with_volume("64M", &[]);
        let scene_keys = |keys: &str, args: &[&str]| {
            let mut command = thalweg(args.iter().copied());
            command.env("THALWEG_KEYS", home.path(keys));
            good(&mut command)
        };
        scene_keys("server", &["key", "new"]);
        let theirs = scene_keys("client", &["key", "new"]);
        scene_keys("server", &["key", "authorize", "replica", theirs.trim()]);
        let keys = home.path("server").display().to_string();
        let mut args = vec!["--listen", "127.0.0.1:0", "--keys", &keys];
        args.extend(more);
        let primary = home.serve(&args);
        let scene = Scene { home, primary };
        let own = good(&mut scene.command("server", &["key", "show"]));
        good(&mut scene.command("client", &["key", "trust", &scene.listens(), own.trim()]));
        scene
    }

    pub(crate) fn listens(&self) -> String {
        self.primary.ready["listen"][0].as_str().unwrap().to_owned()
    }

    pub(crate) fn address(&self) -> String {
        format!("thalweg://{}/vol", self.listens())
    }

    pub(crate) fn command(&self, keys: &str, args: &[&str]) -> Command {
        let mut command = thalweg(args.iter().copied());
        command.env("THALWEG_KEYS", self.home.path(keys));
        command
    }

    pub(crate) fn replica(&self) -> String {
        self.home.path("replica").display().to_string()
    }

    pub(crate) fn create(&self) {
        let (replica, address) = (self.replica(), self.address());
        let args = ["replica", "create", &*replica, "--of", &*address, "--preallocation", "falloc"];
        good(&mut self.command("client", &args));
    }

    /// Runs the replica.
    pub(crate) fn run(&self) -> Server {
        Server::of(self.run_command(), self.home.path("replica.sock"))
    }

    /// The command that runs the replica.
    pub(crate) fn run_command(&self) -> Command {
        let socket = self.home.path("replica.sock").display().to_string();
        let args = ["replica", "run", &*self.replica(), "--socket", &*socket, "--json"];
        self.command("client", &args)
    }

    pub(crate) fn kv(&self, volume: &str, args: &[&str]) -> Command {
        let mut command = thalweg(["kv", volume]);
        command.args(args);
        command
    }

    pub(crate) fn put(&self, key: &str, value: &str) {
        let volume = self.home.volume().display().to_string();
        good(&mut self.kv(&volume, &["put", "names", key, value]));
    }

    pub(crate) fn status(&self) -> Value {
        json(&mut self.command("client", &["replica", "status", &self.replica(), "--json"]))
    }

    /// Waits until the replica's status is as it should be.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..600 {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            wait(Duration::from_millis(50));
        }
        panic!("it is not so that {what}: {}", self.status());
    }

    /// Waits until the replica has the primary's present state.
    pub(crate) fn catch_up(&self) {
        let volume = self.home.volume().display().to_string();
        let position =
            json(&mut thalweg(["replica", "status", &volume, "--json"]))["position"].clone();
        assert!(position.is_string(), "{position}");
        self.until("it is at the primary's position", |status| status["position"] == position);
    }
}

#[allow(clippy::disallowed_methods)]
pub(crate) fn wait(span: Duration) {
    std::thread::sleep(span);
}

#[test]
fn a_replica_follows_is_promoted_and_goes_on_alone() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.put("alice", "1");
    scene.create();
    let said = bad(&mut scene.command("client", &["serve", &scene.replica()]), 1);
    assert!(said.contains("follows another one"), "{said}");
    let running = scene.run();
    scene.put("bob", "2");
    scene.catch_up();
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "bob"])), "2");
    let said = bad(&mut scene.kv(&scene.replica(), &["put", "names", "bob", "3"]), 1);
    assert!(said.contains("read-only"), "{said}");
    let followers = json(&mut thalweg(["replica", "status", &volume, "--json"]));
    assert_eq!(followers["followers"][0]["name"], "replica");
    // The replica's question whose answer it has reached may be the next one.
    scene.until("the replica knows that it has everything", |status| {
        let follower = &status["follower"];
        let behind = ["behind_versions", "behind_bytes"].map(|of| follower[of].as_u64());
        follower["connected"] == true && behind == [Some(0); 2] && follower["behind_ms"].is_u64()
    });
    let said = good(&mut scene.command("client", &["replica", "status", &scene.replica()]));
    assert!(said.contains("behind     0 versions, 0 B, "), "{said}");
    let said = good(&mut thalweg(["replica", "status", &volume]));
    assert!(said.contains("behind 0 versions, 0 B, "), "{said}");
    // It goes on where it was.
    running.end();
    scene.put("bob", "4");
    let running = scene.run();
    scene.catch_up();
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "bob"])), "4");
    running.end();
    let promote = ["replica", "promote", &*scene.replica()];
    let said = bad(&mut scene.command("client", &promote), 1);
    assert!(said.contains("can be reached") && said.contains("--force"), "{said}");
    assert!(said.contains("this replica lacks 0 versions, 0 B, 0.0 s"), "{said}");
    let replica = scene.replica();
    let Scene { home, primary } = scene;
    primary.end();
    let mut promoted = thalweg(promote);
    promoted.env("THALWEG_KEYS", home.path("client")).arg("--json");
    let said = json(&mut promoted);
    assert!(said["position"].is_string() && said["lost"]["final"] == false, "{said}");
    // It has heard that it had everything.
    assert_eq!(
        (&said["lost"]["versions"], &said["lost"]["bytes"]),
        (&0.into(), &0.into()),
        "{said}"
    );
    assert!(said["lost"]["heard_seconds_ago"].is_u64(), "{said}");
    good(&mut thalweg(["kv", &replica, "put", "names", "carol", "5"]));
    assert_eq!(good(&mut thalweg(["kv", &replica, "get", "names", "bob"])), "4");
    let said = bad(&mut thalweg(["replica", "promote", &replica]), 1);
    assert!(said.contains("follows no other one"), "{said}");
}

#[test]
fn a_mounted_replica_shows_one_state() {
    if !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse");
        return;
    }
    let scene = Scene::new();
    let volume = scene.home.volume();
    let (files, copy) = (scene.home.path("mnt"), scene.home.path("mnt2"));
    for path in [&files, &copy] {
        std::fs::create_dir(path).unwrap();
    }
    good(thalweg(["mkfs"]).arg(&volume));
    good(thalweg(["mount"]).arg(&volume).arg(&files));
    std::fs::write(files.join("a"), "one").unwrap();
    good(Command::new("sync").arg("-f").arg(&files));
    scene.create();
    let running = scene.run();
    scene.catch_up();
    let mount = || good(thalweg(["mount", "-o", "ro", &scene.replica()]).arg(&copy));
    let read = |name: &str| std::fs::read_to_string(copy.join(name)).ok();
    mount();
    std::fs::write(files.join("b"), "two").unwrap();
    std::fs::write(files.join("a"), "three").unwrap();
    good(Command::new("sync").arg("-f").arg(&files));
    scene.catch_up();
    assert_eq!((read("a").as_deref(), read("b")), (Some("one"), None));
    assert!(std::fs::write(copy.join("c"), "").is_err());
    good(thalweg(["umount"]).arg(&copy));
    mount();
    assert_eq!((read("a").as_deref(), read("b").as_deref()), (Some("three"), Some("two")));
    good(thalweg(["umount"]).arg(&copy));
    running.end();
    // What the primary has beyond a promoted replica stays readable there.
    std::fs::write(files.join("a"), "four").unwrap();
    good(Command::new("sync").arg("-f").arg(&files));
    let replica = scene.replica();
    good(&mut scene.command("client", &["replica", "promote", &replica, "--force"]));
    let written = std::fs::File::create(files.join("c")).and_then(|file| file.sync_all());
    assert!(written.is_err(), "a file was made durable on a fenced volume");
    good(Command::new("umount").arg("-l").arg(&files));
    drop(scene.primary);
    let tail = format!("{}@fenced-1", volume.display());
    good(thalweg(["mount", "-o", "ro", &tail]).arg(&copy));
    assert_eq!(read("a").as_deref(), Some("four"));
    good(thalweg(["umount"]).arg(&copy));
    good(thalweg(["mount", &replica]).arg(&copy));
    assert_eq!(read("a").as_deref(), Some("three"));
    good(thalweg(["umount"]).arg(&copy));
}

/// umount(8) leaves mounts to `umount.fuse.thalweg` where that is installed.
#[test]
fn a_fenced_volume_is_unmounted_lazily_by_either_name() {
    if !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: no /dev/fuse");
        return;
    }
    for name in ["thalweg", "umount.fuse.thalweg"] {
        let scene = Scene::new();
        let (volume, files) = (scene.home.volume(), scene.home.path("mnt"));
        std::fs::create_dir(&files).unwrap();
        good(thalweg(["mkfs"]).arg(&volume));
        good(thalweg(["mount"]).arg(&volume).arg(&files));
        scene.create();
        let running = scene.run();
        scene.catch_up();
        running.end();
        let replica = scene.replica();
        good(&mut scene.command("client", &["replica", "promote", &replica, "--force"]));
        let written = std::fs::write(files.join("c"), "lost");
        let synced = std::fs::File::open(&files).and_then(|file| file.sync_all());
        assert!(written.is_err() || synced.is_err(), "a fenced volume made a file durable");
        let link = scene.home.path(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_thalweg"), &link).unwrap();
        let mut command = Command::new(link);
        command.args((name == "thalweg").then_some("umount")).arg("-l").arg(&files);
        let output = command.env("NO_COLOR", "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        assert!(said.contains("unsynced writes are lost"), "{name}: {said}");
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(&files.display().to_string()), "{table}");
    }
}

#[test]
fn a_replica_needs_a_key_and_a_volume_that_is_there() {
    let scene = Scene::new();
    let at = |address: &str| {
        let replica = scene.replica();
        bad(&mut scene.command("client", &["replica", "create", &replica, "--of", address]), 1)
    };
    let said = at("/srv/vol");
    assert!(said.contains("no address") && said.contains("thalweg://"), "{said}");
    let said = at(&format!("thalweg://{}/other", scene.listens()));
    assert!(said.contains("nothing called other"), "{said}");
    good(&mut scene.command("server", &["key", "revoke", "replica"]));
    let said = at(&scene.address());
    assert!(said.contains("does not know the key"), "{said}");
    assert!(!scene.home.path("replica").exists());
    let volume = scene.home.volume().display().to_string();
    let said = bad(&mut thalweg(["replica", "promote", &volume]), 1);
    assert!(said.contains("locked") || said.contains("in use") || said.contains("open"), "{said}");
    scene.primary.end();
    let said = bad(&mut thalweg(["replica", "run", &volume]), 1);
    assert!(said.contains("follows no other one"), "{said}");
}

#[test]
fn a_promoted_replica_fences_the_old_primary_whose_tail_stays_readable() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.put("alice", "1");
    scene.create();
    let running = scene.run();
    scene.catch_up();
    running.end();
    scene.put("bob", "2");
    scene.put("carol", "3");
    let promote = |args: &[&str]| {
        let replica = scene.replica();
        let mut command = scene.command("client", &["replica", "promote", &replica]);
        command.args(args);
        command
    };
    let said = bad(&mut promote(&[]), 1);
    assert!(said.contains("this replica lacks") && said.contains("--force"), "{said}");
    for bound in [&["--max-versions", "0"][..], &["--max-bytes", "1"], &["--max-seconds", "0"]] {
        let said = bad(promote(bound).arg("--force"), 1);
        assert!(said.contains("more would be lost than allowed"), "{said}");
    }
    // A refusal leaves the primary as it is.
    scene.put("dave", "4");
    let said = json(promote(&["--max-seconds", "3600"]).args(["--force", "--json"]));
    let lost = &said["lost"];
    assert_eq!(lost["final"], true, "{said}");
    assert!(lost["versions"].as_u64().is_some_and(|lost| lost >= 3), "{said}");
    assert!(lost["bytes"].as_u64().is_some_and(|lost| lost > 0), "{said}");
    let said = bad(&mut scene.kv(&volume, &["put", "names", "eve", "5"]), 1);
    assert!(said.contains("was promoted"), "{said}");
    let status = json(&mut thalweg(["replica", "status", &volume, "--json"]));
    assert_eq!(status["fenced"]["term"], 1, "{status}");
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "alice"])), "1");
    bad(&mut scene.kv(&scene.replica(), &["get", "names", "bob"]), 1);
    good(&mut scene.kv(&scene.replica(), &["put", "names", "bob", "6"]));
    let Scene { home, primary } = scene;
    primary.end();
    let said = bad(thalweg(["serve", &volume]).arg("--socket").arg(home.path("x.sock")), 1);
    assert!(said.contains("was fenced") && said.contains("fenced-1"), "{said}");
    let snapshots = good(&mut thalweg(["volume", "snapshot", "list", &volume]));
    assert!(snapshots.contains("fenced-1"), "{snapshots}");
    assert_eq!(good(&mut thalweg(["kv", &volume, "get", "names", "dave"])), "4");
}

#[test]
fn a_promoted_replica_tells_the_old_primary_when_it_comes_back() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.create();
    let running = scene.run();
    scene.catch_up();
    running.end();
    let (replica, address) = (scene.replica(), scene.listens());
    let Scene { home, primary } = scene;
    primary.end();
    let client = home.path("client");
    let said = bad(
        thalweg(["replica", "promote", &replica, "--max-seconds", "0"])
            .env("THALWEG_KEYS", &client),
        1,
    );
    assert!(said.contains("more would be lost than allowed"), "{said}");
    let said = good(thalweg(["replica", "promote", &replica]).env("THALWEG_KEYS", &client));
    assert!(said.contains("cannot be reached") && said.contains("0 versions, 0 B"), "{said}");
    let socket = home.path("promoted.sock");
    let mut command = thalweg(["serve", &replica, "--json", "--socket"]);
    command.arg(&socket).env("THALWEG_KEYS", &client);
    let promoted = Server::of(command, socket);
    // The old one comes back at its address.
    let keys = home.path("server").display().to_string();
    let primary = home.serve(&["--listen", &address, "--keys", &keys]);
    for attempt in 0.. {
        let status = json(&mut thalweg(["replica", "status", &volume, "--json"]));
        if status["fenced"].is_object() {
            break;
        }
        assert!(attempt < 600, "{status}");
        wait(Duration::from_millis(50));
    }
    let said = bad(&mut thalweg(["kv", &volume, "put", "names", "alice", "1"]), 1);
    assert!(said.contains("was promoted"), "{said}");
    good(&mut thalweg(["kv", &replica, "put", "names", "alice", "1"]));
    primary.end();
    promoted.end();
}

#[test]
fn flushes_wait_for_replicas_and_the_server_ends_all_the_same() {
    let scene = Scene::with(&["--ack", "1"]);
    let volume = scene.home.volume().display().to_string();
    scene.create();
    let running = scene.run();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.put("alice", "1");
    let status = json(&mut thalweg(["replica", "status", &volume, "--json"]));
    assert_eq!(status["ack"]["needed"], 1, "{status}");
    // What was acknowledged is there, wherever the replica is now.
    running.end();
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "alice"])), "1");
    let mut waiting = scene.kv(&volume, &["put", "names", "bob", "2"]).spawn().unwrap();
    for attempt in 0.. {
        let status = json(&mut thalweg(["replica", "status", &volume, "--json"]));
        if status["ack"]["waiting"].as_u64() > Some(0) {
            break;
        }
        assert!(attempt < 600, "{status}");
        wait(Duration::from_millis(50));
    }
    let said = degraded(&mut thalweg(["replica", "status", &volume]));
    assert!(said.contains("wait for 1 replicas; 0 connected"), "{said}");
    assert!(waiting.try_wait().unwrap().is_none());
    scene.primary.end();
    assert!(!waiting.wait().unwrap().success());
    let said = bad(&mut thalweg(["serve", &volume, "--ack", "1"]), 2);
    assert!(said.contains("--listen"), "{said}");
}

#[test]
fn a_program_waits_for_a_position_at_a_replica() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    let said = bad(&mut thalweg(["replica", "position", &volume]), 1);
    assert!(said.contains("no position"), "{said}");
    scene.create();
    let running = scene.run();
    scene.put("alice", "1");
    scene.catch_up();
    let position = good(&mut thalweg(["replica", "position", &volume])).trim().to_owned();
    let remote = good(&mut scene.command("client", &["replica", "position", &scene.address()]));
    assert_eq!(remote.trim(), position);
    let waited =
        |volume: &str, position: &str| thalweg(["wait", volume, position, "--timeout", "60s"]);
    good(&mut waited(&scene.replica(), &position));
    good(&mut waited(&volume, &position));
    let (state, version) = position.rsplit_once(':').unwrap();
    let future = format!("{state}:{}", version.parse::<u64>().unwrap() + 2);
    let said = bad(&mut thalweg(["wait", &scene.replica(), &future, "--timeout", "100ms"]), 1);
    assert!(said.contains("within 0.1 s"), "{said}");
    let mut waiting = waited(&scene.replica(), &future).spawn().unwrap();
    scene.put("bob", "2");
    scene.put("carol", "3");
    assert!(waiting.wait().unwrap().success());
    let other = format!("{}{}", "0".repeat(8), &position[8..]);
    let said = bad(&mut waited(&scene.replica(), &other), 1);
    assert!(said.contains("another volume"), "{said}");
    let said = bad(&mut waited(&volume, "1:2:3"), 2);
    assert!(said.contains("no position"), "{said}");
    running.end();
    good(&mut waited(&scene.replica(), &position));
    let far = format!("{state}:{}", version.parse::<u64>().unwrap() + 1000);
    let said = bad(&mut waited(&scene.replica(), &far), 1);
    assert!(said.contains("no process serves it"), "{said}");
    scene.primary.end();
}
