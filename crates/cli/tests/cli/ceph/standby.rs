//! Standbys of a filesystem on a cluster: the server dies on what looks like another machine, or stands still.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use super::on;
use crate::files::wait_until;
use crate::mini_cluster::MiniCluster;
use crate::run::{Home, good};

const IMAGE: &str = "rados:test/standby";

/// A server, or a standby. Killed at the end.
struct Node {
    child: Child,
    place: String,
    ready: Receiver<String>,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Node {
    /// Starts it under a host name of its own: a process of the same machine would be known to have ended.
    fn start(mini: &MiniCluster, home: &Home, host: &str) -> Node {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = free.local_addr().unwrap().to_string();
        drop(free);
        let serve = ["cluster", "serve", IMAGE, "--json", "--lease", "4", "--standby"];
        let thalweg = on(mini, &serve);
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", host]);
        command.arg(thalweg.get_program()).args(thalweg.get_args()).args(["--listen", &place]);
        for (name, value) in thalweg.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("THALWEG_KEYS", home.path("server")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (sender, ready) = mpsc::channel();
        let reading = move || {
            let mut line = String::new();
            if output.read_line(&mut line).is_ok_and(|len| len > 0) {
                let _ = sender.send(line);
            }
        };
        std::thread::Builder::new().name("ready".to_owned()).spawn(reading).unwrap();
        Node { child, place, ready }
    }

    fn serves(&self) -> bool {
        self.ready.try_recv().is_ok()
    }

    fn signal(&self, signal: &str) {
        good(Command::new("kill").args([signal, &self.child.id().to_string()]));
    }
}

fn put(root: &Path, name: &str) {
    fs::write(root.join(name), name).unwrap();
}

fn check(root: &Path, names: &[&str]) {
    for name in names {
        assert_eq!(fs::read_to_string(root.join(name)).unwrap(), *name);
    }
}

/// Three servers one after the other, by the standbys' own decision.
#[allow(clippy::disallowed_methods)]
pub(super) fn standbys_decide_by_themselves(mini: &MiniCluster) {
    let home = Home::empty();
    let keyed = |keys: &str, args: &[&str]| {
        let mut command = on(mini, args);
        command.env("THALWEG_KEYS", home.path(keys));
        command
    };
    good(&mut keyed("server", &["cluster", "create", IMAGE]));
    let first = Node::start(mini, &home, "first");
    first.ready.recv().unwrap();
    let mut standbys = vec![Node::start(mini, &home, "a"), Node::start(mini, &home, "b")];
    let add = ["cluster", "client", "add", "alice", "--path", "/", "--rw", "--squash", "none"];
    let token = good(&mut keyed("server", &add)).trim().to_owned();
    let root = home.path("mnt");
    fs::create_dir(&root).unwrap();
    let from = format!("{},{},{}:/", first.place, standbys[0].place, standbys[1].place);
    good(keyed("alice", &["mount", &from, "--token", &token]).arg(&root));

    put(&root, "synced");
    fs::File::open(root.join("synced")).unwrap().sync_all().unwrap();
    put(&root, "not synced");
    // The server stands still. Its connection stays open, and its port is connected to.
    let mut server = first;
    server.signal("-STOP");
    let begun = Instant::now();
    put(&root, "after a stop");
    println!("after SIGSTOP, with a lease of 4 s: {:.1} s", begun.elapsed().as_secs_f64());
    check(&root, &["synced", "not synced", "after a stop"]);
    let winner = standbys.iter().position(Node::serves).unwrap();
    let second = standbys.swap_remove(winner);
    let third = standbys.swap_remove(0);
    assert!(!third.serves(), "two standbys serve");
    server.signal("-CONT");
    assert!(!server.child.wait().unwrap().success(), "it has lost the image");
    check(&root, &["synced", "not synced", "after a stop"]);

    // The next server dies.
    server = second;
    put(&root, "not synced either");
    server.signal("-KILL");
    let begun = Instant::now();
    put(&root, "after a kill");
    println!("after SIGKILL, with a lease of 4 s: {:.1} s", begun.elapsed().as_secs_f64());
    check(&root, &["synced", "not synced", "not synced either", "after a stop", "after a kill"]);
    wait_until(|| third.serves());
    good(keyed("alice", &["umount"]).arg(&root));
    third.signal("-TERM");
    let mut third = third;
    assert!(third.child.wait().unwrap().success());
    good(&mut on(mini, &["fsck", IMAGE]));
    good(&mut on(mini, &["image", "destroy", IMAGE, "--yes"]));
    mini.ceph(&["osd", "blocklist", "clear"]);
}
