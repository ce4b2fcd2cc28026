//! A volume whose `volume.toml` is lost is made whole again, and no command advises to write over what has a label.

use std::fs;
use std::path::Path;

use crate::run::{Home, bad, good, json, thalweg};

/// What a command says that must fail, which advises nothing that loses what the labels name.
fn says(command: &mut std::process::Command, words: &[&str]) {
    let is_fsck = command.get_args().next().is_some_and(|word| word == "fsck");
    let said = bad(command, if is_fsck { 8 } else { 1 });
    for wrong in ["volume create", "create-in-place", "mkfs", "--force", "use force"] {
        assert!(!said.contains(wrong), "{command:?}: {wrong} in {said}");
    }
    for word in words {
        assert!(said.contains(word), "{command:?}: {word} is not in {said}");
    }
}

#[test]
fn a_lost_volume_toml_is_made_again_from_the_labels() {
    let home = Home::with_volume("64M", &[]);
    let volume = home.volume().display().to_string();
    good(&mut thalweg(["kv", &volume, "create", "names"]));
    good(&mut thalweg(["kv", &volume, "put", "names", "alice", "1"]));
    fs::remove_file(home.volume().join("volume.toml")).unwrap();
    let link = |number: usize| home.volume().join(format!("link{number}")).display().to_string();
    let snapshot = format!("{volume}@monday");
    let advice = format!("thalweg volume assemble {} {}", link(0), link(1));
    for command in [
        &["status", &volume][..],
        &["volume", "scrub", &volume],
        &["kv", &volume, "list"],
        &["serve", &volume],
        &["mount", &volume, "/nowhere"],
        &["mount", &snapshot, "/nowhere"],
        &["fsck", &volume],
        &["attach", &volume],
        &["replica", "status", &volume],
        &["cluster", "serve", &volume],
    ] {
        says(&mut thalweg(command), &["devices of the volume vol", &advice]);
    }
    says(&mut thalweg(["volume", "destroy", "--yes", &volume]), &["thalweg volume assemble"]);
    for make in [
        &["volume", "create", &volume, "--size", "64M"][..],
        &["mkfs", &volume, "--size", "64M"],
        &["cluster", "create", &volume, "--size", "64M"],
    ] {
        says(&mut thalweg(make), &["belongs to the volume vol", "volume assemble"]);
    }
    says(&mut thalweg(["volume", "assemble", &link(1)]), &["are missing", "the map"]);
    says(&mut thalweg(["volume", "assemble", &link(0)]), &["are missing", "link 1"]);
    let other = Home::with_volume("64M", &["--link", "vol/a:100M"]);
    let foreign = other.volume().join("a").display().to_string();
    let both = ["volume", "assemble", &link(0), &link(1), &foreign, "--folder", &volume];
    says(&mut thalweg(both), &["do not belong to one volume", "vol ("]);
    let apart = ["volume", "assemble", &link(0), &foreign];
    says(&mut thalweg(apart), &["--folder"]);
    let said = good(&mut thalweg(["volume", "assemble", &link(1), &link(0)]));
    assert!(said.contains("the volume vol") && said.contains("2 devices"), "{said}");
    assert_eq!(good(&mut thalweg(["kv", &volume, "get", "names", "alice"])), "1");
    good(&mut thalweg(["status", &volume]));
    // The same with the folder alone; and again, over one that is there.
    fs::remove_file(home.volume().join("volume.toml")).unwrap();
    let made = json(&mut thalweg(["volume", "assemble", &volume, "--json"]));
    assert_eq!((&made["name"], &made["devices"]), (&"vol".into(), &2.into()));
    good(&mut thalweg(["volume", "assemble", &volume]));
    let server = home.serve(&[]);
    says(&mut thalweg(["volume", "assemble", &volume]), &["is served"]);
    assert_eq!(good(&mut thalweg(["kv", &volume, "get", "names", "alice"])), "1");
    server.end();
}

#[test]
fn a_part_of_a_volume_is_told_whose_it_is() {
    let home = Home::with_volume("64M", &["--map", "vol/map"]);
    let part = |name: &str| home.volume().join(name).display().to_string();
    for (name, role) in
        [("link0", "the link of the volume vol"), ("map", "the map of the volume vol")]
    {
        let (part, folder) = (part(name), home.volume().display().to_string());
        let root = home.path("").display().to_string();
        for command in [&["status", &part][..], &["mount", &part, &root], &["fsck", &part]] {
            says(&mut thalweg(command), &[role, &folder]);
        }
        says(&mut thalweg(["mkfs", &part]), &["a part of a chained volume"]);
        says(&mut thalweg(["volume", "create-in-place", &part]), &["a part of a chained volume"]);
        let new = home.path("new").display().to_string();
        let create = ["volume", "create", &new, "--size", "32M", "--link", &part];
        says(&mut thalweg(create), &["belongs to the volume vol"]);
    }
}

#[test]
fn what_is_no_volume_is_told_what_it_is() {
    let home = Home::empty();
    let (data, log) = (home.volume(), home.path("log"));
    fs::File::create(&log).unwrap().set_len(32 << 20).unwrap();
    let mut create = thalweg(["volume", "create-in-place", "--size", "64M", "--journal-dev"]);
    good(create.arg(&log).arg(&data));
    let text = |path: &Path| path.display().to_string();
    says(&mut thalweg(["status", &text(&log)]), &["is a journal, and no volume", "--journal-dev"]);
    says(&mut thalweg(["mkfs", &text(&log)]), &["the journal of a volume"]);
    says(&mut thalweg(["mkfs", &text(&data)]), &["a volume that is updated in place"]);
    let disk = home.path("disk");
    let mut bytes = vec![0; 1 << 20];
    bytes[..4].copy_from_slice(b"XFSB");
    fs::write(&disk, bytes).unwrap();
    says(&mut thalweg(["status", &text(&disk)]), &["an XFS filesystem"]);
    // Where nothing is, a volume may be made.
    let empty = home.path("empty");
    fs::File::create(&empty).unwrap().set_len(32 << 20).unwrap();
    assert!(bad(&mut thalweg(["status", &text(&empty)]), 1).contains("thalweg mkfs"));
}
