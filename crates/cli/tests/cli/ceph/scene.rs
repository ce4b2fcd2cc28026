//! A filesystem that is shared from a cluster, and its clients.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::on;
use crate::mini_cluster::MiniCluster;
use crate::run::{Home, Server, good, json};

/// An image, the place of its server, and clients that mount it. They are unmounted at the end.
pub(super) struct Scene<'a> {
    mini: &'a MiniCluster,
    pub(super) home: Home,
    /// The image's name on the command line, `rados:test/NAME`.
    image: &'static str,
    place: String,
}

impl<'a> Scene<'a> {
    pub(super) fn new(mini: &'a MiniCluster, image: &'static str) -> Scene<'a> {
        Scene { mini, home: Home::empty(), image, place: "127.0.0.1:0".to_owned() }
    }

    /// A command with these keys.
    pub(super) fn thalweg(&self, keys: &str, args: &[&str]) -> Command {
        let mut command = on(self.mini, args);
        command.env("THALWEG_KEYS", self.home.path(keys));
        command
    }

    /// Starts a server, at the same place as before.
    pub(super) fn serve(&mut self, lease: &str) -> Server {
        let serve = ["cluster", "serve", self.image, "--json", "--lease", lease];
        let mut serve = self.thalweg("server", &serve);
        serve.args(["--listen", &self.place]);
        let server = Server::of(serve, self.home.path("unused"));
        let address = server.ready["addresses"][0].as_str().unwrap();
        self.place = address.strip_suffix(":/").unwrap().to_owned();
        server
    }

    /// The directory on which a client mounts.
    pub(super) fn root(&self, client: &str) -> PathBuf {
        self.home.path(&format!("mnt-{client}"))
    }

    /// Adds a client that acts as every user; the command that mounts the filesystem for it.
    pub(super) fn mount(&self, client: &str) -> Command {
        let add = ["cluster", "client", "add", client, "--path", "/", "--rw", "--squash", "none"];
        let token = good(&mut self.thalweg("server", &add)).trim().to_owned();
        fs::create_dir(self.root(client)).unwrap();
        let mut mount = self.mount_again(client);
        mount.args(["--token", &token]);
        mount
    }

    /// The command that mounts the filesystem for a client that has mounted it before.
    pub(super) fn mount_again(&self, client: &str) -> Command {
        let mut mount = self.thalweg(client, &["mount", &format!("{}:/", self.place)]);
        mount.arg(self.root(client));
        mount
    }

    pub(super) fn status(&self) -> Value {
        json(&mut self.thalweg("server", &["cluster", "status", self.image, "--json"]))
    }

    /// A command of `rados` on the pool; its output.
    pub(super) fn rados(&self, args: &[&str]) -> Vec<u8> {
        let mut command = Command::new("rados");
        command.arg("-c").arg(self.mini.conf()).args(["-p", "test"]).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// The stripes of files in the pool.
    pub(super) fn stripes(&self) -> Vec<String> {
        let names = String::from_utf8(self.rados(&["ls"])).unwrap();
        let prefix = format!("{}@fs.", self.image.rsplit('/').next().unwrap());
        names.lines().filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect()
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        let Ok(found) = fs::read_dir(self.home.path(".")) else { return };
        for path in found.flatten().map(|entry| entry.path()) {
            if path.file_name().unwrap().to_string_lossy().starts_with("mnt-") {
                let _ = on(self.mini, &["umount", "--lazy"]).arg(path).output();
            }
        }
    }
}
