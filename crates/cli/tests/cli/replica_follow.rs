//! Replicas that are told to follow another primary.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::replica::{Scene, wait};
use crate::run::{Server, bad, good, json, thalweg};

#[test]
fn a_replica_follows_the_promoted_one_when_it_is_told_to() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.put("alice", "1");
    scene.create();
    let second = Second::of(&scene);
    let (first, running) = (scene.run(), second.run(&scene));
    scene.catch_up();
    second.until(&scene, "alice", "1");
    // Two processes do not have one volume open.
    let said = bad(&mut second.follow(&scene, &scene.address()), 1);
    assert!(said.contains("in use"), "{said}");
    first.end();
    running.end();
    good(&mut scene.command("client", &["replica", "promote", &scene.replica(), "--force"]));
    let promoted = serve_promoted(&scene);
    let listens = promoted.ready["listen"][0].as_str().unwrap().to_owned();
    let own = good(&mut scene.command("server", &["key", "show"]));
    good(&mut scene.command("client", &["key", "trust", &listens, own.trim()]));
    good(&mut scene.kv(&scene.replica(), &["put", "names", "bob", "2"]));
    // The fenced one lets no volume follow.
    let running = second.run(&scene);
    second.in_trouble(&scene, "primary no longer");
    running.end();
    good(&mut second.follow(&scene, &format!("thalweg://{listens}/replica")));
    let running = second.run(&scene);
    second.until(&scene, "bob", "2");
    assert_eq!(good(&mut scene.kv(&second.folder, &["get", "names", "alice"])), "1");
    running.end();
    promoted.end();
    scene.primary.end();
}

#[test]
fn a_replica_that_is_told_to_follow_something_else_says_so() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.put("alice", "1");
    scene.create();
    let second = Second::of(&scene);
    let no_address = bad(&mut second.follow(&scene, "/srv/vol"), 1);
    assert!(no_address.contains("no address") && no_address.contains("thalweg://"), "{no_address}");
    for folder in [&volume, &scene.home.path("nowhere").display().to_string()] {
        let args = ["replica", "follow", folder, "--of", &scene.address()];
        let said = bad(&mut scene.command("client", &args), 1);
        assert!(["in use", "there is no volume"].iter().any(|why| said.contains(why)), "{said}");
    }
    // No server listens there, or one without the volume: it goes on as it is, and says why.
    let listens = scene.listens();
    good(&mut second.follow(&scene, &format!("thalweg://{listens}/other")));
    let running = second.run(&scene);
    second.in_trouble(&scene, "nothing called other");
    running.end();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    drop(silent);
    good(&mut second.follow(&scene, &format!("thalweg://127.0.0.1:{port}/vol")));
    let running = second.run(&scene);
    second.in_trouble(&scene, "");
    running.end();
    good(&mut second.follow(&scene, &scene.address()));
    let running = second.run(&scene);
    second.until(&scene, "alice", "1");
    running.end();
    scene.primary.end();
    let said = bad(&mut thalweg(["replica", "follow", &volume, "--of", "thalweg://a:1/vol"]), 1);
    assert!(said.contains("follows no other one"), "{said}");
}

/// A second replica of the scene's volume.
struct Second {
    folder: String,
}

impl Second {
    fn of(scene: &Scene) -> Second {
        let folder = scene.home.path("second").display().to_string();
        let address = scene.address();
        let args = ["replica", "create", &*folder, "--of", &*address, "--preallocation", "falloc"];
        good(&mut scene.command("client", &args));
        Second { folder }
    }

    fn run(&self, scene: &Scene) -> Server {
        let socket = scene.home.path("second.sock");
        let place = socket.display().to_string();
        let args = ["replica", "run", &*self.folder, "--socket", &*place, "--json"];
        Server::of(scene.command("client", &args), socket)
    }

    fn follow(&self, scene: &Scene, address: &str) -> Command {
        scene.command("client", &["replica", "follow", &self.folder, "--of", address])
    }

    fn status(&self, scene: &Scene) -> Value {
        json(&mut scene.command("client", &["replica", "status", &self.folder, "--json"]))
    }

    /// Waits until it has a value.
    fn until(&self, scene: &Scene, key: &str, value: &str) {
        for _ in 0..600 {
            let found = scene.kv(&self.folder, &["get", "names", key]).output().unwrap();
            if found.status.success() && found.stdout == value.as_bytes() {
                return;
            }
            wait(Duration::from_millis(50));
        }
        panic!("it has no {key}: {}", self.status(scene));
    }

    /// Waits until it does not follow, and says why.
    fn in_trouble(&self, scene: &Scene, why: &str) {
        for _ in 0..600 {
            let trouble = self.status(scene)["follower"]["trouble"].clone();
            if let Some(trouble) = trouble.as_str() {
                assert!(trouble.contains(why), "{trouble}");
                return;
            }
            wait(Duration::from_millis(50));
        }
        panic!("it is in no trouble: {}", self.status(scene));
    }
}

/// Serves the promoted replica with the keys of the old primary's machine.
fn serve_promoted(scene: &Scene) -> Server {
    let socket = scene.home.path("promoted.sock");
    let place = socket.display().to_string();
    let replica = scene.replica();
    let args = ["serve", &*replica, "--json", "--socket", &*place, "--listen", "127.0.0.1:0"];
    Server::of(scene.command("server", &args), socket)
}
