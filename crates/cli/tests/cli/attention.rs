//! What needs attention: the first line of a status, its exit code, its JSON, and the metrics say the same.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::clients::{free_port, scrape, value};
use crate::files::can_mount;
use crate::replica::{Scene, wait};
use crate::run::{Home, bad, can_attach, degraded, good, json as json_of, thalweg, umount};

/// The status of a volume is degraded, and its first line has some words.
fn first_line(volume: &str, words: &[&str]) {
    let said = degraded(&mut thalweg(["status", volume]));
    let first = said.lines().next().unwrap_or_default();
    assert!(words.iter().all(|word| first.contains(word)), "{said}");
    let status = json_of(&mut thalweg(["status", volume, "--json"]));
    assert_eq!(
        Some(first),
        status["degraded"][0].as_str().map(|it| format!("DEGRADED: {it}")).as_deref()
    );
}

/// The value of the metric of a cause, once the metrics were copied again.
fn metric(port: u16, cause: &str) -> f64 {
    wait(Duration::from_millis(2200));
    value(&scrape(port), "thalweg_degraded", &format!("cause=\"{cause}\""))
}

/// Overwrites every block of `byte` in a file; returns how many there were.
fn rot(image: &std::path::Path, byte: u8) -> usize {
    let content = fs::read(image).unwrap();
    let file = fs::File::options().write(true).open(image).unwrap();
    let blocks = content.chunks(4096).enumerate();
    let found = blocks.filter(|(_, block)| block.iter().all(|it| *it == byte));
    found.map(|(number, _)| file.write_all_at(&[!byte], number as u64 * 4096).unwrap()).count()
}

#[test]
fn a_reader_that_got_an_error_is_told_by_the_status_until_a_scrub_finds_nothing() {
    if !can_mount() {
        return;
    }
    for in_place in [&["--in-place"][..], &[]] {
        let home = Home::empty();
        let volume = home.volume().display().to_string();
        good(thalweg(["mkfs", "--quiet", "--size", "64M"]).args(in_place).arg(&volume));
        let (root, port) = (home.path("mnt"), free_port());
        fs::create_dir(&root).unwrap();
        good(thalweg(["mount"]).arg(&volume).arg(&root));
        // Longer than what a cache reads ahead, and not of zeros.
        fs::write(root.join("a"), vec![b'!'; 1 << 20]).unwrap();
        good(&mut thalweg(["status", &volume]));
        umount(thalweg(["umount"]), &root);
        let images = match in_place.is_empty() {
            true => ["link0", "link1"].map(|link| home.volume().join(link)).to_vec(),
            false => vec![home.volume()],
        };
        let rotten: usize = images.iter().map(|image| rot(image, b'!')).sum();
        assert!(rotten > 0);
        // Nothing has met it yet.
        good(&mut thalweg(["status", &volume]));
        let metrics = format!("127.0.0.1:{port}");
        good(thalweg(["mount", "--metrics", &metrics]).arg(&volume).arg(&root));
        assert_eq!(fs::read(root.join("a")).unwrap_err().raw_os_error(), Some(libc::EIO));
        first_line(&volume, &["no copy is right", "thalweg scrub"]);
        assert_eq!(metric(port, "damage"), 1.0);
        umount(thalweg(["umount"]), &root);
        // Another process knows it, too.
        first_line(&volume, &["no copy is right"]);
        bad(&mut thalweg(["scrub", &volume]), 4);
        first_line(&volume, &["no copy is right"]);
        good(thalweg(["mount"]).arg(&volume).arg(&root));
        fs::remove_file(root.join("a")).unwrap();
        umount(thalweg(["umount"]), &root);
        // What this mount was too short for to free, the next one does.
        let finds_nothing = || thalweg(["scrub", &volume]).output().unwrap().status.success();
        for _ in 0..10 {
            if finds_nothing() {
                break;
            }
            good(thalweg(["mount"]).arg(&volume).arg(&root));
            wait(Duration::from_millis(200));
            umount(thalweg(["umount"]), &root);
        }
        good(&mut thalweg(["scrub", &volume]));
        good(&mut thalweg(["status", &volume]));
    }
}

#[test]
fn flushes_that_wait_for_replicas_are_told_by_the_status() {
    let port = free_port();
    let metrics = format!("127.0.0.1:{port}");
    let scene = Scene::with(&["--ack", "1", "--metrics", &metrics]);
    let volume = scene.home.volume().display().to_string();
    // Before any flush waits: the next one would.
    first_line(&volume, &["flushes wait for 1 replicas", "0 are connected"]);
    let mut create = scene.kv(&volume, &["create", "names"]);
    let mut waits = create.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait(Duration::from_millis(500));
    first_line(&volume, &["1 flushes wait"]);
    let said = degraded(&mut scene.command("server", &["replica", "status", &volume]));
    assert!(said.contains("flushes    wait for 1 replicas"), "{said}");
    assert_eq!(metric(port, "too_few_replicas"), 1.0);
    let text = scrape(port);
    assert_eq!(value(&text, "thalweg_replica_flushes_waiting", ""), 1.0);
    assert_eq!(value(&text, "thalweg_replica_ack_needed", ""), 1.0);
    scene.create();
    let replica = scene.replica();
    // Made, and not run.
    first_line(&replica, &["does not follow", "thalweg replica run"]);
    let running = scene.run();
    assert!(waits.wait().unwrap().success());
    scene.catch_up();
    good(&mut thalweg(["status", &volume]));
    good(&mut thalweg(["status", &replica]));
    assert_eq!(metric(port, "too_few_replicas"), 0.0);
    let text = scrape(port);
    assert_eq!(value(&text, "thalweg_replica_followers", ""), 1.0);
    let of_it = "follower=\"replica\"";
    assert!(text.contains("thalweg_replica_follower_behind_seconds{"), "{text}");
    assert_eq!(value(&text, "thalweg_replica_follower_behind_versions", of_it), 0.0);
    running.end();
    first_line(&volume, &["0 are connected"]);
    let status = json_of(&mut thalweg(["status", &volume, "--json"]));
    let lost = status["degraded"][1].as_str().unwrap_or_default();
    assert!(lost.contains("the replica replica is not connected any more"), "{status}");
    assert_eq!(metric(port, "replica_lost"), 1.0);
    first_line(&replica, &["does not follow"]);
}

#[test]
fn a_replica_without_its_primary_is_told_by_the_status() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.create();
    let (port, replica) = (free_port(), scene.replica());
    let mut command = scene.run_command();
    command.args(["--metrics", &format!("127.0.0.1:{port}")]);
    let running = crate::run::Server::of(command, scene.home.path("replica.sock"));
    scene.catch_up();
    scene.until("all is well", |status| status["degraded"] == json!([]));
    assert_eq!(metric(port, "not_following"), 0.0);
    assert_eq!(value(&scrape(port), "thalweg_replica_connected", ""), 1.0);
    let Scene { home: _home, primary } = scene;
    primary.end();
    wait(Duration::from_secs(2));
    first_line(&replica, &["not connected to its primary", "goes on trying"]);
    assert_eq!(metric(port, "not_following"), 1.0);
    assert_eq!(value(&scrape(port), "thalweg_replica_connected", ""), 0.0);
    running.end();
}

#[test]
fn a_volume_whose_place_a_replica_has_taken_is_told_by_the_status() {
    let scene = Scene::new();
    let volume = scene.home.volume().display().to_string();
    good(&mut scene.kv(&volume, &["create", "names"]));
    scene.create();
    let running = scene.run();
    scene.catch_up();
    running.end();
    let replica = scene.replica();
    good(&mut scene.command("client", &["replica", "promote", &replica, "--force"]));
    // Served, and idle.
    first_line(&volume, &["was fenced", "term 1", "fenced-1"]);
    if can_attach() {
        let said = bad(&mut thalweg(["attach", &volume]), 1);
        assert!(said.contains("was fenced") && said.contains("@fenced-1"), "{said}");
    }
    let Scene { home: _home, primary } = scene;
    primary.end();
    first_line(&volume, &["was fenced"]);
    good(&mut thalweg(["status", &replica]));
}

#[test]
fn the_device_of_a_replica_is_read_only_because_it_is_one() {
    if !can_attach() {
        return;
    }
    let scene = Scene::new();
    scene.create();
    let running = scene.run();
    let replica = scene.replica();
    let output = thalweg(["attach", &replica]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let is_right = said.contains("is a replica of thalweg://") && !said.contains("partitions");
    assert!(is_right && !said.contains("--writable"), "{said}");
    let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let flag = format!("/sys/block/{}/ro", device.trim_start_matches("/dev/"));
    assert_eq!(fs::read_to_string(flag).unwrap().trim(), "1");
    good(&mut thalweg(["detach", &device]));
    let said = bad(&mut thalweg(["attach", "--writable", &replica]), 1);
    assert!(said.contains("is a replica of thalweg://") && said.contains("promote"), "{said}");
    running.end();
}

#[test]
fn a_full_filesystem_is_told_by_the_status() {
    if !can_mount() {
        return;
    }
    let home = Home::empty();
    let volume = home.volume().display().to_string();
    good(&mut thalweg(["mkfs", "--quiet", "--in-place", "--size", "32M", &volume]));
    let root = home.path("mnt");
    fs::create_dir(&root).unwrap();
    good(thalweg(["mount"]).arg(&volume).arg(&root));
    let fill = format!("of={}", root.join("a").display());
    let filled = Command::new("dd").args(["if=/dev/zero", &fill, "bs=64k"]).output().unwrap();
    assert!(!filled.status.success());
    let filled = Command::new("dd")
        .args(["if=/dev/zero", &fill, "bs=4k", "oflag=append", "conv=notrunc"])
        .output();
    assert!(!filled.unwrap().status.success());
    first_line(&volume, &["the filesystem is full"]);
    fs::remove_file(root.join("a")).unwrap();
    wait(Duration::from_secs(2));
    good(&mut thalweg(["status", &volume]));
    umount(thalweg(["umount"]), &root);
}
