//! Random calls on mounts of one directory, with and without a journal, which are killed between two calls, as the server is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use thalweg_sim::campaign;

use crate::cluster::Scene;
use crate::cluster_journal::Foreground;
use crate::random_calls::Calls;
use crate::run::{Home, good, thalweg};

/// How often something is killed.
const KILLS: usize = 8;
/// Calls before each of these times, and at the end.
const CALLS: usize = 30;
/// Names of clients, which are added when they are first used.
const NAMES: [&str; 2] = ["one", "two"];
/// So small that it is full now and then.
const JOURNAL_SIZE: &str = "8M";

/// A filesystem with a server, and what can be done with them.
pub(crate) trait Shared {
    fn home(&self) -> &Home;

    /// The command that mounts it for a client, which may be a new one.
    fn mount(&self, client: &str) -> Command;

    /// Kills the server, and starts another one.
    fn restart(&mut self);
}

impl Shared for Scene {
    fn home(&self) -> &Home {
        &self.home
    }

    fn mount(&self, client: &str) -> Command {
        let is_new = !self.home.path(client).exists();
        let mut command = self.mount_command(client, "/");
        if is_new {
            let token = self.token_with(client, &["--path", "/", "--rw", "--squash", "none"]);
            command.args(["--token", &token]);
        }
        command
    }

    fn restart(&mut self) {
        self.server.as_mut().unwrap().kill_now();
        self.serve_with(&[]);
    }
}

/// The mode of a client's journal; `None` without one.
pub(crate) type Journal = Option<&'static str>;

/// Starts the process of a mount.
pub(crate) fn start(shared: &impl Shared, client: &str, journal: Journal) -> Foreground {
    let mut command = shared.mount(client);
    if let Some(mode) = journal {
        let path = shared.home().path(&format!("journal-{client}"));
        // A journal that is there has its size.
        let size = if path.exists() { "" } else { &format!(",journal_size={JOURNAL_SIZE}") };
        command.args(["-o", &format!("journal_dev={}{size},data={mode}", path.display())]);
    }
    Foreground::start(shared.home(), &mut command, client)
}

fn root(shared: &impl Shared, client: &str) -> PathBuf {
    shared.home().path(&format!("mnt-{client}"))
}

/// Makes random calls through mounts with these journals, and kills one of them or the server now and then.
pub(crate) fn random_calls(shared: &mut impl Shared, journals: &[Journal], seed: u64) {
    let clients = &NAMES[..journals.len()];
    let mut mounts: Vec<Foreground> =
        clients.iter().zip(journals).map(|(name, journal)| start(shared, name, *journal)).collect();
    let roots: Vec<PathBuf> =
        clients.iter().map(|name| root(shared, name).join(format!("d{seed}"))).collect();
    fs::create_dir(&roots[0]).unwrap();
    let mut calls = Calls::new(seed, &roots);
    let mut lost = 0;
    for _ in 0..KILLS {
        calls.run(CALLS);
        // The server is one of those that may be killed.
        let victim = calls.choose(clients.len() + 1);
        if victim == clients.len() {
            shared.restart();
            continue;
        }
        mounts.remove(victim).kill(shared.home(), clients[victim]);
        mounts.insert(victim, start(shared, clients[victim], journals[victim]));
        lost += calls.mounted_again(victim);
    }
    calls.run(CALLS);
    calls.check();
    println!("seed {seed}, {journals:?}: {lost} calls were lost that nothing had synced");
    // Open files would keep them mounted.
    drop(calls);
    for name in clients {
        good(thalweg(["umount"]).arg(root(shared, name)));
    }
}

/// Makes random calls on a new filesystem for each of some seeds, with another mode of the journals for each.
fn on_scenes(kinds: &[fn(&'static str) -> Journal]) {
    for seed in campaign::seeds(1) {
        let Some(mut scene) = Scene::with_mounts() else { return };
        let mode = ["wasteless", "data", "selective"][(seed as usize + kinds.len()) % 3];
        let journals: Vec<Journal> = kinds.iter().map(|kind| kind(mode)).collect();
        random_calls(&mut scene, &journals, seed);
    }
}

#[test]
fn a_mount_with_a_journal_keeps_what_was_synced() {
    on_scenes(&[Some]);
}

#[test]
fn a_mount_with_a_journal_and_one_without_agree() {
    on_scenes(&[Some, |_| None]);
}

#[test]
fn two_mounts_with_journals_agree() {
    on_scenes(&[Some, Some]);
}
