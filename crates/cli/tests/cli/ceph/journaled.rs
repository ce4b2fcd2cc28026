//! Clients with journals of a filesystem on a cluster: `pjdfstest`, `fsx`, and random calls while mounts and the server are killed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use thalweg_sim::campaign;

use super::on;
use super::scene::Scene;
use crate::cluster_calls::{Journal, Shared, random_calls, start};
use crate::mini_cluster::MiniCluster;
use crate::run::{Home, Server, good, json, thalweg};
use crate::tools::{fsx, pjdfstest};

const IMAGE: &str = "rados:test/journaled";
/// Operations of a run of `fsx`.
const OPERATIONS: u32 = 1000;
const LEASE: &str = "2";

/// A filesystem, and its server.
struct Served<'a> {
    scene: Scene<'a>,
    server: Option<Server>,
}

impl Shared for Served<'_> {
    fn home(&self) -> &Home {
        &self.scene.home
    }

    fn mount(&self, client: &str) -> Command {
        match self.scene.root(client).exists() {
            true => self.scene.mount_again(client),
            false => self.scene.mount(client),
        }
    }

    fn restart(&mut self) {
        self.server.take().unwrap().kill();
        self.server = Some(self.scene.serve(LEASE));
    }
}

/// All of it on one image.
pub(super) fn mounts_with_journals_are_as_others(mini: &MiniCluster) {
    let mut scene = Scene::new(mini, IMAGE);
    good(&mut scene.thalweg("server", &["cluster", "create", IMAGE]));
    let server = Some(scene.serve(LEASE));
    let mut served = Served { scene, server };
    foreign_suites(&served);
    let kinds: [fn(&'static str) -> Journal; 2] = [Some, |_| None];
    for seed in campaign::seeds(3) {
        let mode = ["wasteless", "data", "selective"][(seed % 3) as usize];
        // The second mount has a journal half of the times.
        let second = kinds[(seed % 2) as usize](mode);
        random_calls(&mut served, &[Some(mode), second], seed);
    }
    served.server.take().unwrap().end();
    let found = json(&mut served.scene.thalweg("server", &["fsck", IMAGE, "--json"]));
    assert_eq!(found["clean"], true, "{found}");
    good(&mut on(mini, &["image", "destroy", IMAGE, "--yes"]));
}

fn foreign_suites(served: &Served<'_>) {
    let mount = start(served, "one", Some("wasteless"));
    let (root, beside) = (served.scene.root("one"), served.scene.home.path(""));
    // The suite acts as other users, too.
    fs::set_permissions(&beside, Permissions::from_mode(0o755)).unwrap();
    pjdfstest(&root, &beside);
    for seed in campaign::seeds(1) {
        fsx(&root.join("fsx"), &beside, seed, OPERATIONS);
    }
    good(thalweg(["umount"]).arg(&root));
    drop(mount);
}
