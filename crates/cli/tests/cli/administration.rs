//! Changes of volumes, idle and served.

use std::io::{Seek, SeekFrom, Write};
use std::process::Command;

use crate::files::can_mount;
use crate::run::{Home, bad, bad_json, degraded, good, has, json, thalweg, umount};

/// Writes random bytes through the server, for tests that do not need `nbdcopy` or `qemu-img`.
fn fill(home: &Home, socket_uri: &str, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> =
        (0..len).map(|at| ((at * 2_654_435_761) >> 7) as u8 ^ (at >> 12) as u8).collect();
    std::fs::write(home.path("in"), &bytes).unwrap();
    good(Command::new("nbdcopy").arg("--flush").arg(home.path("in")).arg(socket_uri));
    bytes
}

fn content(home: &Home, uri: &str) -> Vec<u8> {
    good(Command::new("nbdcopy").arg(uri).arg(home.path("out")));
    std::fs::read(home.path("out")).unwrap()
}

#[test]
fn a_volume_that_is_not_in_use_says_how_much_of_it_is_free() {
    let home = Home::with_volume("256M", &[]);
    let new = home.status()["chain"].clone();
    // Each log has a segment open.
    let most = new["segments"].as_u64().unwrap() - 2;
    assert!(new["free_segments"].as_u64().unwrap() >= most, "{new}");
    assert!(new["links"][0]["free_segments"].as_u64().unwrap() > 0, "{new}");
    let server = home.serve(&[]);
    assert_eq!(home.status()["chain"]["free_segments"], new["free_segments"]);
    server.end();
    assert_eq!(home.status()["chain"]["free_segments"], new["free_segments"]);
}

#[test]
fn a_volume_grows_and_shrinks_idle_and_served() {
    let home = Home::with_volume(
        "64M",
        &["--map", "vol/map", "--link", "vol/a:60M", "--link", "vol/b:60M"],
    );
    let size = |home: &Home| home.status()["size"].as_u64().unwrap() >> 20;
    good(&mut home.on_volume(&["extend"], &["--link", "vol/c:60M", "--size", "100M"]));
    assert_eq!(size(&home), 100);
    good(&mut home.on_volume(&["shrink"], &["--size", "64M"]));
    let server = home.serve(&[]);
    let bytes = has("nbdcopy").then(|| fill(&home, &server.uri("vol"), 64 << 20));
    good(&mut home.on_volume(&["extend"], &["--link", "vol/d:60M", "--size", "128M"]));
    assert_eq!(size(&home), 128);
    if has("nbdinfo") {
        let seen = good(Command::new("nbdinfo").args(["--size", &server.uri("vol")]));
        assert_eq!(seen.trim(), (128 << 20).to_string());
    }
    good(&mut home.on_volume(&["shrink"], &["--size", "64M"]));
    good(&mut home.on_volume(&["shrink"], &["--link", "vol/a"]));
    assert_eq!(home.status()["chain"]["links"].as_array().unwrap().len(), 3);
    if let Some(bytes) = &bytes {
        assert!(content(&home, &server.uri("vol")) == *bytes);
        let said = bad(&mut home.on_volume(&["shrink"], &["--size", "32M"]), 1);
        assert!(said.contains("stored"), "{said}");
    }
    server.end();
    let server = home.serve(&[]);
    if let Some(bytes) = bytes {
        assert!(content(&home, &server.uri("vol")) == bytes);
    }
    server.end();
}

#[test]
fn a_volume_without_a_checkpoint_names_the_way_on() {
    let home = Home::with_volume("64M", &["--map", "vol/map"]);
    let server = home.serve(&[]);
    let bytes = has("nbdcopy").then(|| fill(&home, &server.uri("vol"), 64 << 20));
    let said = bad(&mut home.on_volume(&["rebuild-index"], &[]), 1);
    assert!(said.contains("served"), "{said}");
    server.end();
    let map = home.volume().join("map");
    let mut file = std::fs::read(&map).unwrap();
    let heads: Vec<usize> = file
        .chunks(512)
        .enumerate()
        .filter(|(_, sector)| sector.starts_with(b"THALWEGC") || sector.starts_with(b"THALWEGW"))
        .map(|(number, _)| number * 512)
        .collect();
    assert!(!heads.is_empty());
    heads.iter().for_each(|at| file[*at] ^= 1);
    std::fs::write(&map, file).unwrap();
    let said = bad(&mut home.on_volume(&["status"], &[]), 1);
    assert!(said.contains("rebuild-index"), "{said}");
    let plan = json(&mut home.on_volume(&["rebuild-index"], &["--dry-run", "--json"]));
    assert_eq!(plan["written"], false);
    assert_eq!(plan["lost_blocks"], 0);
    bad(&mut home.on_volume(&["status"], &[]), 1);
    good(&mut home.on_volume(&["rebuild-index"], &[]));
    let server = home.serve(&[]);
    if let Some(bytes) = bytes {
        assert!(content(&home, &server.uri("vol")) == bytes);
    }
    server.end();
}

/// Overwrites a range in the middle of a device.
fn damage(path: &std::path::Path) {
    let mut file = std::fs::File::options().write(true).open(path).unwrap();
    let len = file.metadata().unwrap().len();
    file.seek(SeekFrom::Start(len / 3)).unwrap();
    file.write_all(&vec![0x5a; (len / 4) as usize]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn scrub_repairs_a_mirror_from_its_other_side() {
    if !has("nbdcopy") {
        return;
    }
    let mirror = "mirror:vol/a:100M,vol/b:100M";
    let home = Home::with_volume("64M", &["--link", mirror, "--map", "vol/map"]);
    let server = home.serve(&[]);
    let bytes = fill(&home, &server.uri("vol"), 64 << 20);
    server.end();
    damage(&home.volume().join("b"));
    let report = json(&mut home.on_volume(&["scrub"], &["--json"]));
    assert!(report["repaired"].as_u64().unwrap() > 1000, "{report}");
    assert_eq!(report["damaged"], 0);
    let report = json(&mut home.on_volume(&["scrub"], &["--json"]));
    assert_eq!(report["repaired"], 0, "the repair did not last");
    damage(&home.volume().join("a"));
    let server = home.serve(&[]);
    assert!(content(&home, &server.uri("vol")) == bytes, "the other side was not repaired");
    let report = json(&mut home.on_volume(&["scrub"], &["--json"]));
    assert_eq!(report["damaged"], 0);
    server.end();
}

#[test]
fn a_check_says_whether_it_repaired_what_is_wrong_on_one_side() {
    if !can_mount() {
        return;
    }
    let mirror = "mirror:vol/a:100M,vol/b:100M";
    let home = Home::with_volume("64M", &["--link", mirror, "--map", "vol/map"]);
    let root = home.path("mnt");
    std::fs::create_dir(&root).unwrap();
    good(thalweg(["mkfs", "--quiet"]).arg(home.volume()));
    good(thalweg(["mount"]).arg(home.volume()).arg(&root));
    std::fs::write(root.join("a"), vec![7; 40 << 20]).unwrap();
    umount(thalweg(["umount"]), &root);
    damage(&home.volume().join("b"));
    let fsck = |words: &[&str]| {
        let mut command = thalweg(["fsck"]);
        command.args(words).arg(home.volume());
        command
    };
    let said = bad(&mut fsck(&[]), 4);
    assert!(said.contains("wrong copies, left as they are: "), "{said}");
    let said = bad(&mut fsck(&["-y"]), 1);
    assert!(said.contains("wrong copies, repaired: "), "{said}");
    assert!(!good(&mut fsck(&[])).contains("wrong"));
}

#[test]
fn damage_without_a_second_side_is_reported() {
    if !has("nbdcopy") {
        return;
    }
    let home = Home::with_volume("64M", &["--link", "vol/a:100M", "--map", "vol/map"]);
    let server = home.serve(&[]);
    fill(&home, &server.uri("vol"), 64 << 20);
    server.end();
    damage(&home.volume().join("a"));
    let report = bad_json(&mut home.on_volume(&["scrub"], &["--json"]), 4);
    assert!(report["damaged"].as_u64().unwrap() > 1000, "{report}");
    let server = home.serve(&[]);
    let read =
        Command::new("nbdcopy").arg(server.uri("vol")).arg(home.path("out")).output().unwrap();
    assert!(!read.status.success(), "damaged blocks were served");
    server.end();
}

#[test]
fn a_mirror_degrades_is_replaced_and_rebuilt() {
    if !has("nbdcopy") {
        return;
    }
    let mirror = "mirror:vol/a:100M,vol/b:100M";
    let home = Home::with_volume("64M", &["--link", mirror, "--map", "vol/map"]);
    std::fs::rename(home.volume().join("b"), home.path("aside")).unwrap();
    let server = home.serve(&[]);
    let bytes = fill(&home, &server.uri("vol"), 64 << 20);
    assert_eq!(home.state("/b"), "missing");
    assert!(!home.status()["warnings"].as_array().unwrap().is_empty());
    let text = degraded(&mut home.on_volume(&["status"], &[]));
    assert!(text.lines().next().unwrap_or_default().contains("b is missing"), "{text}");
    assert_eq!(home.status()["degraded"].as_array().unwrap().len(), 1);
    server.end();
    let output = home.on_volume(&["scrub"], &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("warning: vol is degraded"), "{said}");
    // The side returns, and has missed writes.
    std::fs::rename(home.path("aside"), home.volume().join("b")).unwrap();
    assert_eq!(home.state("/b"), "stale");
    good(&mut home.on_volume(&["rebuild"], &[]));
    assert_eq!(home.state("/b"), "online");
    assert_eq!(home.status()["degraded"], serde_json::json!([]));
    // The other side is gone for good, and is replaced while the volume is served.
    std::fs::remove_file(home.volume().join("a")).unwrap();
    let server = home.serve(&[]);
    assert!(content(&home, &server.uri("vol")) == bytes);
    good(&mut home.on_volume(&["replace"], &["vol/a", "vol/new:100M"]));
    assert_eq!(home.state("/new"), "online");
    server.end();
    std::fs::remove_file(home.volume().join("b")).unwrap();
    let server = home.serve(&[]);
    assert!(content(&home, &server.uri("vol")) == bytes, "the new side does not hold everything");
    server.end();
}

#[test]
fn status_says_the_same_idle_and_served() {
    let home = Home::with_volume("64M", &["--cache", "vol/cache:16M"]);
    let idle = home.status();
    let server = home.serve(&[]);
    let served = home.status();
    for field in ["name", "volume", "size", "folder"] {
        assert_eq!(idle[field], served[field], "{field}");
    }
    assert_eq!(idle["exports"].as_array().unwrap().len(), 0);
    assert_eq!(served["exports"].as_array().unwrap().len(), 1);
    let text = good(&mut home.on_volume(&["status"], &[]));
    assert!(good(crate::run::thalweg(["status"]).arg(home.volume())).contains("link"));
    assert!(text.contains("64 MiB") && text.contains("segments") && text.contains("purpose"));
    server.end();
}

#[test]
fn status_is_watched() {
    use std::io::{BufRead, BufReader};
    let home = Home::with_volume("64M", &[]);
    let server = home.serve(&[]);
    let mut watch = home.on_volume(&["status"], &["--watch", "--interval", "0.2", "--json"]);
    let mut child = watch.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
    for line in lines {
        let status: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(status["name"], "vol");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    server.end();
}

#[test]
fn settings_are_kept_and_can_be_changed() {
    let mirror = "mirror:vol/a:60M,vol/b:60M";
    let args = ["--link", mirror, "--link", "vol/c:60M", "--map", "vol/map", "--sector", "4096"];
    let caches = ["--ram-cache", "2M", "--body-ram-cache", "1M", "--ram-cache-max", "0"];
    let more = [&["--standby"], &caches[..]].concat();
    let home = Home::with_volume("64M", &[&args[..], &more[..]].concat());
    let kept = |home: &Home| home.status()["settings"].clone();
    let of = |standby: bool, ram: u64, body: u64| serde_json::json!({ "standby": standby, "ram_cache": ram, "body_ram_cache": body, "ram_cache_max": 0 });
    assert_eq!(kept(&home), of(true, 2 << 20, 1 << 20));
    let label = json(crate::run::thalweg(["dump", "--json"]).arg(home.volume().join("a")));
    assert!(label.to_string().contains("\"sector\":4096"), "{label}");
    let server = home.serve(&[]);
    if has("nbdcopy") {
        let bytes = fill(&home, &server.uri("vol"), 64 << 20);
        assert!(content(&home, &server.uri("vol")) == bytes);
        let status = home.status();
        assert_eq!(status["chain"]["tail_cache"]["ram_blocks"], (2 << 20) / 4096, "{status}");
    }
    good(&mut home.on_volume(&["set"], &["--standby", "false", "--ram-cache", "4M"]));
    assert_eq!(kept(&home), of(false, 4 << 20, 1 << 20));
    server.end();
    good(&mut home.on_volume(&["set"], &["--body-ram-cache", "0"]));
    let status = home.status();
    assert_eq!(status["settings"], of(false, 4 << 20, 0));
    assert!(status["chain"]["body_cache"].is_null(), "{status}");
}
