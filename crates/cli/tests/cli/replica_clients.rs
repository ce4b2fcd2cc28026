//! Clients of a volume on several nodes.

use std::cell::RefCell;
use std::path::Path;

use thalweg_client::{SessionCell, Volume};
use thalweg_store::block::Version;

use crate::files::wait_until;
use crate::replica::Scene;
use crate::run::{Home, bad, good, json, thalweg};

#[test]
fn sessions_read_at_the_nodes_of_a_volume() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.create();
    let running = scene.run();
    scene.put("alice", "1");
    scene.catch_up();
    let nodes = format!("{},{}", scene.address(), scene.replica());
    let session = scene.home.path("session").display().to_string();
    let at_nodes = |args: &[&str]| {
        let mut all = vec!["kv", &*nodes];
        all.extend(args);
        scene.command("client", &all)
    };
    let get = |read: &str| {
        at_nodes(&["get", "names", "alice", "--read", read, "--session", &session, "--json"])
    };
    good(&mut at_nodes(&["put", "names", "alice", "2", "--session", &session]));
    // Whether the replica has it already or not.
    assert_eq!(json(&mut get("read-my-writes"))["value"], "2");
    let strong = json(&mut get("strong"));
    assert_eq!((&strong["value"], &strong["node"]), (&"2".into(), &scene.address().into()));
    let text = std::fs::read_to_string(&session).unwrap();
    assert!(text.contains('@'), "{text}");
    scene.catch_up();
    // The same session at each node alone.
    let alone = |node: &str| {
        let read = ["kv", node, "get", "names", "alice", "--read", "causal", "--session", &session];
        good(&mut scene.command("client", &read))
    };
    assert_eq!((alone(&scene.replica()), alone(&scene.address())), ("2".into(), "2".into()));
    // Without its primary the volume is read.
    let Scene { home, primary } = scene;
    primary.end();
    let scene = |args: &[&str]| {
        let mut command = thalweg(args.iter().copied());
        command.env("THALWEG_KEYS", home.path("client"));
        command
    };
    let get = |read: &str| {
        let read = ["kv", &*nodes, "get", "names", "alice", "--read", read, "--session", &session];
        scene(&read)
    };
    assert_eq!(good(&mut get("monotonic-reads")), "2");
    let said = bad(&mut get("strong"), 1);
    assert!(said.contains("only the primary"), "{said}");
    let said = bad(&mut scene(&["kv", &*nodes, "put", "names", "alice", "3"]), 1);
    assert!(said.contains("only the primary"), "{said}");
    running.end();
    let said = bad(&mut get("eventual"), 1);
    assert!(said.contains("no process serves") || said.contains("refused"), "{said}");
}

/// What a read for a new session gets as soon as the replica answers it: its value, and the newest version that has it.
fn get_at_the_replica(volume: &Volume, scene: &Scene, guarantee: &str) -> (String, Version) {
    let store = volume.open_store("names").unwrap();
    let session = SessionCell::new(guarantee).unwrap();
    let found = RefCell::default();
    wait_until(|| {
        let got = volume.get_for(&mut session.lock().unwrap(), &store, b"alice").unwrap();
        let value = String::from_utf8(got.value.unwrap().to_vec()).unwrap();
        found.replace((value, got.range.up));
        got.node.as_deref() == Some(&*scene.replica())
    });
    found.into_inner()
}

#[test]
fn a_program_reads_at_the_replica_and_writes_at_the_primary() {
    let scene = Scene::new();
    let folder = scene.home.volume().display().to_string();
    good(&mut scene.kv(&folder, &["create", "names"]));
    scene.create();
    let running = scene.run();
    scene.put("alice", "1");
    scene.catch_up();
    let volume = Volume::open(Path::new(&format!("{folder},{}", scene.replica()))).unwrap();
    assert_eq!(get_at_the_replica(&volume, &scene, "eventual").0, "1");
    let store = volume.open_store("names").unwrap();
    let session = SessionCell::new("read-my-writes").unwrap();
    let written = volume.put_for(&mut session.lock().unwrap(), &store, b"alice", b"2").unwrap();
    // From wherever it comes, it is what the session has written.
    let got = volume.get_for(&mut session.lock().unwrap(), &store, b"alice").unwrap();
    assert_eq!((got.value.as_deref(), got.range.up >= written), (Some(&b"2"[..]), true));
    scene.catch_up();
    let (value, up) = get_at_the_replica(&volume, &scene, "bounded=1000s");
    assert_eq!((value.as_str(), up >= written), ("2", true));
    volume.close().unwrap();
    running.end();
}

#[test]
fn wrong_names_of_nodes_are_told() {
    let (home, other) = (Home::with_volume("64M", &[]), Home::with_volume("64M", &[]));
    let [one, two] = [&home, &other].map(|home| home.volume().display().to_string());
    let said = |nodes: String| bad(&mut thalweg(["kv", &nodes, "get", "names", "alice"]), 1);
    // Nodes are servers: a volume that no process serves is none.
    let away = said(format!("{one},{two}"));
    assert!(away.contains("no process serves"), "{away}");
    let serving = [home.serve(&[]), other.serve(&[])];
    let strange = said(format!("{one},{two}"));
    assert!(strange.contains("no replicas"), "{strange}");
    let nowhere = said(format!("{one},/nowhere"));
    assert!(nowhere.contains("/nowhere"), "{nowhere}");
    serving.into_iter().for_each(|server| server.end());
    // A folder with a comma in its name is one volume.
    let comma = home.path("a,b");
    std::fs::rename(home.volume(), &comma).unwrap();
    let comma = comma.display().to_string();
    good(&mut thalweg(["kv", &comma, "create", "names"]));
    good(&mut thalweg(["kv", &comma, "put", "names", "alice", "1"]));
    assert_eq!(good(&mut thalweg(["kv", &comma, "get", "names", "alice"])), "1");
}
