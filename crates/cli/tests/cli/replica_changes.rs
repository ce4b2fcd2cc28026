//! Replicas of volumes that change their size, and replicas with damaged files.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json as value};

use crate::files::wait_until;
use crate::replica::{Scene, wait};
use crate::run::{bad, good, json, thalweg};

const MIB: u64 = 1 << 20;

/// Waits until the replica has so many bytes.
fn wait_for_size(scene: &Scene, size: u64) {
    let mut found = Value::Null;
    for _ in 0..600 {
        found = json(&mut thalweg(["status", &scene.replica(), "--json"]))["size"].clone();
        if found == size {
            return;
        }
        wait(Duration::from_millis(50));
    }
    panic!("the replica has {found} bytes, not {size}: {}", scene.status());
}

#[test]
fn a_copy_takes_its_time_says_how_far_it_is_and_is_not_read() {
    let scene = Scene::with(&["--copy-rate", "500k"]);
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    for number in 0..20 {
        scene.put(&format!("name{number}"), &number.to_string().repeat(40_000));
    }
    scene.create();
    let running = scene.run();
    let copying = || {
        // A copy under way needs attention.
        let status = thalweg(["replica", "status", &volume]).output().unwrap();
        String::from_utf8_lossy(&status.stdout).contains("; a copy has ")
    };
    let told = || {
        let output = scene.kv(&scene.replica(), &["get", "names", "name1"]).output().unwrap();
        String::from_utf8_lossy(&output.stderr).contains("its first copy is under way")
    };
    // Asked between two looks at a copy that is under way.
    wait_until(|| copying() && told() && copying());
    scene.catch_up();
    assert!(!copying());
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "name1"])).len(), 40_000);
    running.end();
    scene.primary.end();
    for (args, why) in [
        (&["--copy-rate", "0", "--listen", "127.0.0.1:0"][..], "a copy would never end"),
        (&["--copy-rate", "fast", "--listen", "127.0.0.1:0"], "is not a size"),
        (&["--copy-rate", "1M"], "--listen"),
    ] {
        let said = bad(thalweg(["serve", &volume]).args(args), 2);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_replica_has_its_primary_s_size_when_its_links_can_hold_it() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names", "--size", "4M"]));
    scene.put("alice", "1");
    scene.create();
    let running = scene.run();
    scene.catch_up();
    let link = |folder: &str| format!("{folder}/more:64M");
    good(&mut thalweg(["volume", "extend", &volume, "--link", &link(&volume)]));
    good(&mut thalweg(["resize", &volume, "96M"]));
    scene.put("bob", "2");
    scene.until("the replica says that it is too small", |status| {
        let trouble = status["follower"]["trouble"].as_str();
        trouble.is_some_and(|trouble| trouble.contains("the links hold up to"))
    });
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "alice"])), "1");
    bad(&mut scene.kv(&scene.replica(), &["get", "names", "bob"]), 1);
    let said = bad(&mut thalweg(["volume", "extend", &scene.replica(), "--size", "96M"]), 1);
    assert!(said.contains("the size of its primary"), "{said}");
    good(&mut thalweg(["volume", "extend", &scene.replica(), "--link", &link(&scene.replica())]));
    wait_for_size(&scene, 96 * MIB);
    scene.catch_up();
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "bob"])), "2");
    good(&mut thalweg(["volume", "shrink", &volume, "--size", "48M"]));
    wait_for_size(&scene, 48 * MIB);
    scene.put("carol", "3");
    scene.catch_up();
    running.end();
    let running = scene.run();
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "carol"])), "3");
    running.end();
    scene.primary.end();
}

/// Damages every block with a content in the files of a folder; returns their number.
fn damage(folder: &Path, content: &[u8]) -> usize {
    let mut damaged = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_file() {
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        for block in bytes.chunks_mut(4096).filter(|block| block.iter().any(|byte| *byte != 0)) {
            if let Some(at) = block.windows(content.len()).position(|it| it == content) {
                block[at] ^= 1;
                damaged += 1;
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }
    damaged
}

#[test]
fn a_damaged_block_of_a_replica_comes_from_the_primary() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    let value = "a value that fills some blocks, ".repeat(512);
    scene.put("alice", &value);
    scene.create();
    let running = scene.run();
    scene.catch_up();
    running.end();
    let unique = &value.as_bytes()[..64];
    assert!(damage(Path::new(&scene.replica()), unique) > 0);
    let said = bad(&mut scene.kv(&scene.replica(), &["get", "names", "alice"]), 1);
    assert!(said.contains("damaged"), "{said}");
    let running = scene.run();
    scene.until("it is connected", |status| status["follower"]["connected"] == true);
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "alice"])), value);
    running.end();
    assert_eq!(good(&mut scene.kv(&scene.replica(), &["get", "names", "alice"])), value);
    scene.primary.end();
}

/// The state of a device of the replica, by the end of its path.
pub(crate) fn state(scene: &Scene, path: &str) -> Value {
    let status = json(&mut thalweg(["status", &scene.replica(), "--json"]));
    fn find<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
        match value {
            Value::Object(fields) => match fields.get("path").and_then(Value::as_str) {
                Some(own) if own.ends_with(path) => fields.get("state"),
                _ => fields.values().find_map(|value| find(value, path)),
            },
            Value::Array(values) => values.iter().find_map(|value| find(value, path)),
            _ => None,
        }
    }
    find(&status, path).unwrap_or_else(|| panic!("no {path} in {status}")).clone()
}

#[test]
fn a_side_of_a_running_replica_is_rebuilt_replaced_and_scrubbed() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.put("alice", &"1".repeat(50_000));
    let (replica, address) = (scene.replica(), scene.address());
    let of = |name: &str| format!("{replica}/{name}");
    let mirror = format!("mirror:{}:100M,{}:100M", of("a"), of("b"));
    let args = ["replica", "create", &replica, "--of", &address, "--link", &mirror];
    good(scene.command("client", &args).args(["--map", &of("map"), "--preallocation", "falloc"]));
    std::fs::rename(of("b"), of("aside")).unwrap();
    let running = scene.run();
    scene.catch_up();
    running.end();
    std::fs::rename(of("aside"), of("b")).unwrap();
    let running = scene.run();
    scene.put("bob", &"2".repeat(50_000));
    good(&mut thalweg(["volume", "rebuild", &replica]));
    assert_eq!(state(&scene, "/b"), "online");
    scene.put("carol", &"3".repeat(50_000));
    good(&mut thalweg(["volume", "replace", &replica, &of("a"), &format!("{}:100M", of("new"))]));
    assert_eq!(state(&scene, "/new"), "online");
    scene.put("dave", &"4".repeat(50_000));
    scene.catch_up();
    let scrubbed = json(&mut thalweg(["volume", "scrub", "--json", &replica]));
    assert_eq!(
        (&scrubbed["repaired"], &scrubbed["damaged"]),
        (&value!(0), &value!(0)),
        "{scrubbed}"
    );
    running.end();
    // Each side has everything alone.
    for gone in ["b", "new"] {
        let aside = of("aside");
        std::fs::rename(of(gone), &aside).unwrap();
        for (key, value) in [("alice", "1"), ("bob", "2"), ("carol", "3"), ("dave", "4")] {
            let found = good(&mut scene.kv(&replica, &["get", "names", key]));
            assert!(found == value.repeat(50_000), "{key} without {gone}");
        }
        std::fs::rename(&aside, of(gone)).unwrap();
    }
    scene.primary.end();
}
