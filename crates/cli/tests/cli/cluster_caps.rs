//! The holders of files of a shared filesystem.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::cluster::Scene;
use crate::files::wait_until;
use crate::run::{bad, good, json, thalweg};

fn caps(scene: &Scene, path: &str) -> Command {
    let mut command = thalweg(["cluster", "caps"]);
    command.arg(scene.home.volume()).arg(path);
    command
}

fn holder<'a>(report: &'a Value, client: &str) -> &'a Value {
    let holders = report["holders"].as_array().unwrap();
    holders.iter().find(|it| it["client"] == client).unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn holders_of_a_file_are_shown() {
    let Some(scene) = Scene::with_mounts() else { return };
    let (one, two) = (scene.mount("one", "/", "--rw"), scene.mount("two", "/", "--rw"));
    fs::create_dir(one.join("d")).unwrap();
    let file = fs::File::create(one.join("d/f")).unwrap();
    file.lock().unwrap();
    let mut waits = Command::new("flock");
    let mut waits = waits.arg(two.join("d/f")).arg("true").spawn().unwrap();
    let report = || json(caps(&scene, "/d/f").arg("--json"));
    wait_until(|| {
        let report = report();
        let holders = report["holders"].as_array().unwrap();
        holders.iter().any(|it| it["waits"].as_array().is_some_and(|them| them.len() == 1))
    });
    let found = report();
    assert_eq!(found["kind"], "File");
    let (first, second) = (holder(&found, "one"), holder(&found, "two"));
    assert_eq!((&first["writing"], &first["connected"]), (&1.into(), &true.into()));
    assert_eq!(first["locks"][0]["mode"], "Exclusive");
    assert!(first["locks"][0]["since_ms"].is_u64() && first["open_ms"].is_u64(), "{found}");
    assert_eq!(
        (&second["waits"][0]["first"], &second["waits"][0]["last"]),
        (&0.into(), &Value::Null)
    );
    let table = good(&mut caps(&scene, "d/f"));
    for words in [
        "d/f: file, inode",
        "CACHES",
        "has    exclusive lock of the whole",
        "waits  exclusive lock",
    ] {
        assert!(table.contains(words), "{table}");
    }
    drop(file);
    assert!(waits.wait().unwrap().success());
    let table = good(&mut caps(&scene, "/"));
    assert!(table.contains("directory, inode 1") && table.contains("names"), "{table}");
    for (path, words) in [
        ("/d/absent", &["/d/absent", "no such file", "from the root"][..]),
        ("/d/f/x", &["/d/f/x", "not a directory", "from the root"]),
    ] {
        let said = bad(&mut caps(&scene, path), 1);
        assert!(words.iter().all(|word| said.contains(word)), "{path}: {said}");
    }
}
