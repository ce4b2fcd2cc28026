//! Volumes on a real Ceph cluster.

mod direct;
mod journaled;
mod scene;
mod shared;
mod standby;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::files::{can_mount, wait_until};
use crate::mini_cluster::MiniCluster;
use crate::run::{Home, bad, good, json, thalweg, umount};

/// A volume on images of a cluster, with a place to mount it on.
struct Rig<'a> {
    mini: &'a MiniCluster,
    home: Home,
    /// The volume's name on the command line.
    volume: String,
    images: &'a [&'a str],
}

/// A mount that this test serves. Killed at the end.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rig<'_> {
    fn thalweg(&self, args: &[&str]) -> Command {
        on(self.mini, args)
    }

    fn root(&self) -> PathBuf {
        self.home.path("mnt")
    }

    fn mount(&self) -> Served {
        let root = self.root();
        let mut mount = self.thalweg(&["mount", "--foreground", &self.volume]);
        // A mount whose server was killed lists nothing, whatever the kernel remembers of it.
        let device =
            || fs::read_dir(&root).and_then(|_| fs::metadata(&root)).map(|found| found.dev()).ok();
        let before = fs::metadata(self.home.path("")).unwrap().dev();
        let served = Served(mount.arg(&root).spawn().unwrap());
        wait_until(|| device().is_some_and(|now| now != before));
        served
    }
}

fn on(mini: &MiniCluster, args: &[&str]) -> Command {
    let mut command = thalweg(args);
    command.env("CEPH_CONF", mini.conf()).env_remove("CEPH_ARGS");
    command
}

/// All scenarios share one cluster, which takes seconds to start.
#[test]
fn on_a_real_cluster() {
    if !can_mount() {
        return;
    }
    let Some(mini) = MiniCluster::start() else { return };
    let home = Home::empty();
    let volume = home.volume().display().to_string();
    let images = &["rados:test/one", "rados:test/two"];
    let chained = Rig { mini: &mini, home, volume, images };
    let links = ["--link", images[0], "--link", images[1]];
    good(chained.thalweg(&["volume", "create", &chained.volume, "--size", "64M"]).args(links));
    good(&mut chained.thalweg(&["mkfs", &chained.volume]));
    copies_are_refused_while_it_is_mounted(&chained);
    killed_mounts_lose_nothing(&chained);
    good(&mut chained.thalweg(&["volume", "destroy", &chained.volume, "--yes"]));
    images_are_destroyed(&chained);

    let images = &["rados:test/space/place"];
    let volume = images[0].to_owned();
    let in_place = Rig { mini: &mini, home: Home::empty(), volume, images };
    good(&mut in_place.thalweg(&["mkfs", "--in-place", &in_place.volume, "--size", "64M"]));
    killed_mounts_lose_nothing(&in_place);
    good(&mut in_place.thalweg(&["resize", &in_place.volume, "80M"]));
    images_are_destroyed(&in_place);
    shared::contents_are_objects(&mini);
    standby::standbys_decide_by_themselves(&mini);
    errors_are_clear(&mini);
}

/// On a cluster of its own, whose object servers are killed.
#[test]
fn clients_reach_contents_on_a_real_cluster() {
    if !can_mount() {
        return;
    }
    let Some(mini) = MiniCluster::start() else { return };
    direct::contents_agree_and_stay(&mini);
}

#[test]
fn mounts_with_journals_on_a_real_cluster() {
    if !can_mount() {
        return;
    }
    let Some(mini) = MiniCluster::start() else { return };
    journaled::mounts_with_journals_are_as_others(&mini);
}

fn copies_are_refused_while_it_is_mounted(rig: &Rig<'_>) {
    fs::create_dir(rig.root()).unwrap();
    let served = rig.mount();
    // Another folder has no socket to the server, as on another machine.
    let copy = rig.home.path("copy");
    fs::create_dir(&copy).unwrap();
    fs::copy(rig.home.path("vol/volume.toml"), copy.join("volume.toml")).unwrap();
    let other = rig.home.path("other");
    fs::create_dir(&other).unwrap();
    let copy = copy.display().to_string();
    for command in [&["fsck", "-n", &copy][..], &["mount", &copy, other.to_str().unwrap()]] {
        let code = if command[0] == "fsck" { 8 } else { 1 };
        let said = bad(&mut rig.thalweg(command), code);
        let holder = format!("process {} on", served.0.id());
        assert!(said.contains("in use") && said.contains(&holder), "{said}");
    }
    fs::write(rig.root().join("file"), "still served").unwrap();
    umount(rig.thalweg(&["umount"]), &rig.root());
    fs::remove_dir(rig.root()).unwrap();
}

fn killed_mounts_lose_nothing(rig: &Rig<'_>) {
    fs::create_dir(rig.root()).unwrap();
    let mut killed = Vec::new();
    for round in 0..3 {
        let mut served = rig.mount();
        for earlier in 0..round {
            let read = fs::read(rig.root().join(format!("f{earlier}"))).unwrap();
            assert!(read == vec![earlier; 100_000], "round {round}: f{earlier}");
        }
        let file = rig.root().join(format!("f{round}"));
        fs::write(&file, vec![round; 100_000]).unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
        served.0.kill().unwrap();
        // It stays a zombie, which has ended all the same.
        killed.push(served);
        wait_until(|| fs::read_dir(rig.root()).is_err());
    }
    let mut served = rig.mount();
    umount(rig.thalweg(&["umount"]), Path::new(&rig.volume));
    assert!(served.0.wait().unwrap().success());
    drop(killed);
    good(&mut rig.thalweg(&["fsck", "--data", &rig.volume]));
    let status = json(&mut rig.thalweg(&["volume", "status", &rig.volume, "--json"]));
    let shown = status.to_string();
    for image in rig.images {
        assert!(shown.contains(image), "{shown}");
        good(&mut rig.thalweg(&["dump", image, "--json"]));
        let said = good(&mut rig.thalweg(&["image", "break-lock", image, "--yes"]));
        assert!(said.contains("is not open"), "a command left a lock: {said}");
    }
    // Three were killed, and no command that ended by itself was stopped.
    let list = rig.mini.ceph(&["osd", "blocklist", "ls"]);
    rig.mini.ceph(&["osd", "blocklist", "clear"]);
    assert_eq!(list.lines().filter(|line| line.contains(":0/")).count(), 3, "{list}");
    fs::remove_dir(rig.root()).unwrap();
}

fn images_are_destroyed(rig: &Rig<'_>) {
    for image in rig.images {
        bad(&mut rig.thalweg(&["image", "destroy", image]), 1);
        good(&mut rig.thalweg(&["image", "destroy", image, "--yes"]));
        let said = bad(&mut rig.thalweg(&["dump", image]), 1);
        assert!(said.contains("no such image"), "{said}");
    }
}

fn errors_are_clear(mini: &MiniCluster) {
    let says = |command: &mut Command, words: &str| {
        let said = bad(command, 1);
        assert!(said.contains(words), "{said}");
    };
    let status = ["volume", "status", "rados:test/i"];
    says(&mut on(mini, &["mkfs", "rados:other/i"]), "no pool other");
    says(&mut on(mini, &status), "no such image");
    says(on(mini, &status).env("CEPH_CONF", "/nowhere"), "CEPH_CONF");
    says(on(mini, &status).env("CEPH_ARGS", "--mon-host 127.0.0.1:1"), "no monitor answered in");
    says(on(mini, &status).env("CEPH_ARGS", "--id nobody"), "key");
}
