//! A filesystem that is shared from a cluster, with contents of files in objects.

use std::fs;
use std::os::unix::fs::FileExt;

use super::on;
use super::scene::Scene;
use crate::files::wait_until;
use crate::mini_cluster::MiniCluster;
use crate::run::{bad, good, json};

const IMAGE: &str = "rados:test/shared";

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 4096 * 31 + at + seed) as u8).collect()
}

/// A server is killed under its client, and contents are as they were; those of removed files go.
pub(super) fn contents_are_objects(mini: &MiniCluster) {
    let mut scene = Scene::new(mini, IMAGE);
    creation_is_checked(&scene);
    let server = scene.serve("2");
    let root = scene.root("alice");
    good(&mut scene.mount("alice"));

    let (long, short) = (pattern(1, 9 << 20), pattern(2, 100_000));
    for (name, bytes) in [("long", &long), ("short", &short), ("removed", &long)] {
        fs::write(root.join(name), bytes).unwrap();
        fs::File::open(root.join(name)).unwrap().sync_all().unwrap();
    }
    assert_eq!(scene.stripes().len(), 3 + 1 + 3, "{:?}", scene.stripes());
    fs::remove_file(root.join("removed")).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(root.join("short")).unwrap();
    file.write_all_at(b"not synced", 200_000).unwrap();
    server.kill();

    let server = scene.serve("2");
    let mut expected = short;
    expected.resize(200_000, 0);
    expected.extend(b"not synced");
    assert!(fs::read(root.join("long")).unwrap() == long);
    assert!(fs::read(root.join("short")).unwrap() == expected);
    assert!(fs::read(root.join("removed")).is_err());
    file.set_len(150_000).unwrap();
    file.set_len(250_000).unwrap();
    expected.truncate(150_000);
    expected.resize(250_000, 0);
    assert!(fs::read(root.join("short")).unwrap() == expected, "zeros after it was shorter");
    file.sync_all().unwrap();
    wait_until(|| scene.stripes().len() == 3 + 1);
    fs::remove_file(root.join("long")).unwrap();
    fs::File::open(&root).unwrap().sync_all().unwrap();
    wait_until(|| scene.stripes().len() == 1);
    drop(file);
    good(scene.thalweg("alice", &["umount"]).arg(&root));
    server.end();
    contents_are_checked(&scene);
    good(&mut on(mini, &["mount", IMAGE, root.to_str().unwrap()]));
    assert!(fs::read(root.join("short")).unwrap() == expected);
    good(on(mini, &["umount"]).arg(&root));
    good(&mut on(mini, &["image", "destroy", IMAGE, "--yes"]));
    assert_eq!(scene.stripes(), [""; 0]);
}

fn creation_is_checked(scene: &Scene<'_>) {
    let folder = scene.home.path("vol").display().to_string();
    for command in [
        &["cluster", "create", &folder, "--size", "64M", "--contents", "objects"][..],
        &["mkfs", &folder, "--in-place", "--size", "64M", "--contents", "objects"],
    ] {
        let said = bad(&mut scene.thalweg("server", command), 1);
        assert!(said.contains("is no image"), "{said}");
        assert!(!scene.home.path("vol").exists());
    }
    let create = ["cluster", "create", IMAGE];
    good(&mut scene.thalweg("server", &create));
    good(&mut scene.thalweg("server", &create));
    let volume = ["cluster", "create", IMAGE, "--contents", "volume"];
    let said = bad(&mut scene.thalweg("server", &volume), 1);
    assert!(said.contains("already") && said.contains("in objects"), "{said}");
}

/// Objects that belong to no file are found and removed.
fn contents_are_checked(scene: &Scene<'_>) {
    let fsck = |args: &[&str], code| {
        let mut command = scene.thalweg("server", &["fsck", IMAGE, "--json"]);
        command.args(args);
        match code {
            0 => json(&mut command),
            code => crate::run::bad_json(&mut command, code),
        }
    };
    let found = fsck(&[], 0);
    assert_eq!((&found["objects"], &found["clean"]), (&1.into(), &true.into()), "{found}");
    let orphan = "shared@fs.0000000000ffffff.0000000000000000";
    scene.rados(&["put", orphan, "/etc/hostname"]);
    let found = fsck(&[], 4);
    let damage = found["findings"][0]["damage"].as_str().unwrap();
    assert!(damage.contains("belong to no file"), "{found}");
    assert_eq!(scene.stripes().len(), 2, "without -y it stays");
    fsck(&["-y"], 1);
    assert_eq!(scene.stripes().len(), 1);
    fsck(&[], 0);
}
