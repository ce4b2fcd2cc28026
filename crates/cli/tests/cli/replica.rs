//! Replicas: volumes that follow one on another machine.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::run::{Home, Server, bad, good, json, thalweg};

/// A primary that listens, and a machine for a replica whose key it knows.
struct Scene {
    home: Home,
    primary: Server,
}

impl Scene {
    fn new() -> Scene {
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
        let primary = home.serve(&["--listen", "127.0.0.1:0", "--keys", &keys]);
        let scene = Scene { home, primary };
        let own = good(&mut scene.command("server", &["key", "show"]));
        good(&mut scene.command("client", &["key", "trust", &scene.listens(), own.trim()]));
        scene
    }

    fn listens(&self) -> String {
        self.primary.ready["listen"][0].as_str().unwrap().to_owned()
    }

    fn address(&self) -> String {
        format!("thalweg://{}/vol", self.listens())
    }

    fn command(&self, keys: &str, args: &[&str]) -> Command {
        let mut command = thalweg(args.iter().copied());
        command.env("THALWEG_KEYS", self.home.path(keys));
        command
    }

    fn replica(&self) -> String {
        self.home.path("replica").display().to_string()
    }

    fn create(&self) {
        let (replica, address) = (self.replica(), self.address());
        let args = ["replica", "create", &*replica, "--of", &*address, "--preallocation", "falloc"];
        good(&mut self.command("client", &args));
    }

    /// Runs the replica.
    fn run(&self) -> Server {
        let socket = self.home.path("replica.sock");
        let place = socket.display().to_string();
        let args = ["replica", "run", &*self.replica(), "--socket", &*place, "--json"];
        Server::of(self.command("client", &args), socket)
    }

    fn kv(&self, volume: &str, args: &[&str]) -> Command {
        let mut command = thalweg(["kv", volume]);
        command.args(args);
        command
    }

    fn put(&self, key: &str, value: &str) {
        let volume = self.home.volume().display().to_string();
        good(&mut self.kv(&volume, &["put", "names", key, value]));
    }

    fn status(&self) -> Value {
        json(&mut self.command("client", &["replica", "status", &self.replica(), "--json"]))
    }

    /// Waits until the replica's status is as it should be.
    fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
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
    fn catch_up(&self) {
        let volume = self.home.volume().display().to_string();
        let position =
            json(&mut thalweg(["replica", "status", &volume, "--json"]))["position"].clone();
        assert!(position.is_string(), "{position}");
        self.until("it is at the primary's position", |status| status["position"] == position);
    }
}

#[allow(clippy::disallowed_methods)]
fn wait(span: Duration) {
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
    let replica = scene.replica();
    let Scene { home, primary } = scene;
    primary.end();
    let mut promoted = thalweg(promote);
    promoted.env("THALWEG_KEYS", home.path("client")).arg("--json");
    let said = json(&mut promoted);
    assert!(said["position"].is_string() && said["lost_versions"].is_null(), "{said}");
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
    good(thalweg(["umount"]).arg(&files));
    running.end();
    scene.primary.end();
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
