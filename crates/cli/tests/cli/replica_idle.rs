//! The drives of a replica that does not run.

use std::os::unix::fs::FileExt;

use serde_json::json as value;

use crate::replica::Scene;
use crate::replica_changes::state;
use crate::run::{bad, good, json, thalweg};

/// Overwrites a block of a file that is full of `byte`; says whether there is one.
fn damage(path: &str, byte: u8) -> bool {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut block = [0; 4096];
    for at in (0..file.metadata().unwrap().len()).step_by(block.len()) {
        file.read_exact_at(&mut block, at).unwrap();
        if block == [byte; 4096] {
            file.write_all_at(&[0x5a; 4096], at).unwrap();
            return true;
        }
    }
    false
}

/// A replica with the sides `a` and `b` of a mirror, which does not run. It has `alice`, 50,000 times `1`.
fn idle_replica(scene: &Scene) -> String {
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.put("alice", &"1".repeat(50_000));
    let (replica, address) = (scene.replica(), scene.address());
    let mirror = format!("mirror:{replica}/a:100M,{replica}/b:100M");
    let args = ["replica", "create", &replica, "--of", &address, "--link", &mirror];
    let map = format!("{replica}/map");
    good(scene.command("client", &args).args(["--map", &map, "--preallocation", "falloc"]));
    let running = scene.run();
    scene.catch_up();
    running.end();
    replica
}

#[test]
fn a_replica_that_does_not_run_is_scrubbed_rebuilt_replaced_and_extended() {
    let scene = Scene::new();
    let replica = idle_replica(&scene);
    let of = |name: &str| format!("{replica}/{name}");
    // A side that misses what the replica gets meanwhile.
    std::fs::rename(of("b"), of("aside")).unwrap();
    let running = scene.run();
    scene.put("bob", &"2".repeat(50_000));
    scene.catch_up();
    running.end();
    std::fs::rename(of("aside"), of("b")).unwrap();
    assert_eq!(state(&scene, "/b"), "stale");
    good(&mut thalweg(["volume", "rebuild", &replica]));
    assert_eq!(state(&scene, "/b"), "online");
    good(&mut thalweg(["volume", "replace", &replica, &of("a"), &format!("{}:100M", of("new"))]));
    assert_eq!(state(&scene, "/new"), "online");
    // A bad copy is repaired from the good one.
    assert!(damage(&of("b"), b'1'));
    let scrubbed = json(&mut thalweg(["volume", "scrub", "--json", &replica]));
    assert_eq!((&scrubbed["repaired"], &scrubbed["damaged"]), (&value!(1), &value!(0)));
    let scrubbed = json(&mut thalweg(["volume", "scrub", "--json", &replica]));
    assert_eq!((&scrubbed["repaired"], &scrubbed["damaged"]), (&value!(0), &value!(0)));
    good(&mut thalweg(["volume", "extend", &replica, "--link", &format!("{}:100M", of("more"))]));
    assert_eq!(state(&scene, "/more"), "online");
    // It is a replica as before, and each side has everything alone.
    let running = scene.run();
    scene.put("carol", &"3".repeat(50_000));
    scene.catch_up();
    running.end();
    good(&mut thalweg(["volume", "shrink", &replica, "--link", &of("more")]));
    for gone in ["b", "new"] {
        let aside = of("aside");
        std::fs::rename(of(gone), &aside).unwrap();
        for (key, value) in [("alice", "1"), ("bob", "2"), ("carol", "3")] {
            let found = good(&mut scene.kv(&replica, &["get", "names", key]));
            assert!(found == value.repeat(50_000), "{key} without {gone}");
        }
        std::fs::rename(&aside, of(gone)).unwrap();
    }
    scene.primary.end();
}

#[test]
fn what_an_idle_replica_has_lost_is_told_and_fetched_when_it_runs() {
    let scene = Scene::new();
    let replica = idle_replica(&scene);
    for side in ["a", "b"] {
        assert!(damage(&format!("{replica}/{side}"), b'1'));
    }
    let output = thalweg(["volume", "scrub", &replica]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("No copy of 1 blocks is right"), "{said}");
    assert!(said.contains("replica run"), "{said}");
    let running = scene.run();
    scene.until("it is connected", |status| status["follower"]["connected"] == true);
    let scrubbed = json(&mut thalweg(["volume", "scrub", "--json", &replica]));
    assert_eq!(scrubbed["damaged"], 0, "{scrubbed}");
    running.end();
    let scrubbed = json(&mut thalweg(["volume", "scrub", "--json", &replica]));
    assert_eq!((&scrubbed["repaired"], &scrubbed["damaged"]), (&value!(0), &value!(0)));
    scene.primary.end();
}

#[test]
fn what_is_stored_on_an_idle_replica_stays_its_primarys() {
    let scene = Scene::new();
    let replica = idle_replica(&scene);
    for refused in [
        &["volume", "snapshot", "create", &replica, "here"][..],
        &["volume", "set", &replica, "--keep-versions", "5"],
        &["serve", &replica],
    ] {
        let said = bad(&mut thalweg(refused.iter().copied()), 1);
        assert!(said.contains("follows another one"), "{said}");
        assert!(said.contains("write at its primary") && !said.contains("promote"), "{said}");
    }
    let said = bad(&mut thalweg(["volume", "extend", &replica, "--size", "1G"]), 1);
    assert!(said.contains("the size of its primary"), "{said}");
    // It has no filesystem; one would be checked, and not be repaired.
    let said = bad(&mut thalweg(["fsck", "-y", &replica]), 8);
    assert!(said.contains("is a replica, and its filesystem"), "{said}");
    scene.primary.end();
}
