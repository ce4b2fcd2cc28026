//! Filesystems that two clients on this machine mount: ours with a server of its own, where the first client or both may have a
//! journal, and a CephFS; and one that is mounted without a server.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::BenchError;
use crate::ceph::{Ceph, CephMount, POOL};
use crate::loops::LoopDevice;
use crate::machine::{Machine, Mount, output};
use crate::peer::Peer;
use crate::rig::failed;

/// Bytes of a volume in a folder, unless a benchmark needs less. They are allocated at once.
const SIZE: &str = "8G";
/// Bytes of a client's journal.
const JOURNAL: u64 = 512 << 20;
/// The port is the system's choice.
const LISTEN: &str = "127.0.0.1:0";

/// A kind of filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A CephFS, with a `ceph-fuse` for each client.
    CephFuse,
    /// Ours on the Ceph cluster, with contents in objects.
    Rados,
    /// Ours on a volume in a folder of the server's machine.
    Embedded,
    /// The same volume mounted without a server: both clients use the one mount.
    Local,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::CephFuse => "ceph_fuse",
            Kind::Rados => "rados",
            Kind::Embedded => "embedded",
            Kind::Local => "local",
        }
    }

    /// A filesystem that is named after its kind.
    pub(crate) fn subject(self) -> Subject {
        Subject { name: self.name(), kind: self, journals: 0, size: SIZE }
    }
}

/// A filesystem that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// In figures, and of its folder and volume.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// How many of the clients of ours have a journal, on a loop device each: none, the first one, or both.
    pub(crate) journals: usize,
    /// Bytes of a volume in a folder.
    pub(crate) size: &'static str,
}

impl Subject {
    /// A CephFS, ours on the same cluster and on a volume in a folder with journals for so many clients, and a volume that is mounted without
    /// a server.
    pub(crate) fn with_journals(journals: usize) -> [Subject; 4] {
        [Kind::CephFuse, Kind::Rados, Kind::Embedded, Kind::Local].map(|kind| {
            let subject = Subject { size: "2G", ..kind.subject() };
            Subject { journals: if subject.is_ours() { journals } else { 0 }, ..subject }
        })
    }

    /// Whether it is ours and shared.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self.kind, Kind::Rados | Kind::Embedded)
    }
}

/// A filesystem and its mounts; dropping it unmounts it and ends its server. Fields are dropped in order.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) subject: Subject,
    /// Where each client has the root directory.
    pub(crate) roots: [PathBuf; 2],
    _ours: Vec<Mount>,
    _cephfs: Vec<CephMount>,
    server: Option<Server>,
    /// Of the first clients.
    journals: Vec<LoopDevice>,
}

impl Site {
    /// Makes the filesystem, starts its server, and mounts it.
    pub(crate) fn start(
        subject: Subject,
        machine: &Machine,
        ceph: &Ceph,
    ) -> Result<Site, BenchError> {
        let folder = machine.folder.path().join(subject.name);
        let mut site = Site::on([folder.join("one"), folder.join("two")], subject)?;
        for client in 0..subject.journals {
            let folder = folder.join(format!("journal-{client}"));
            fs::create_dir(&folder).map_err(failed)?;
            let journal = LoopDevice::create_written(&folder, JOURNAL)?;
            let create: [&OsStr; 3] = ["cluster".as_ref(), "journal".as_ref(), "create".as_ref()];
            machine.thalweg(&[&create[..], &[journal.path().as_os_str()]].concat())?;
            site.journals.push(journal);
        }
        let volume = folder.join("volume");
        match subject.kind {
            Kind::CephFuse => {
                for root in &site.roots {
                    site._cephfs.push(ceph.mount(root)?);
                }
            }
            Kind::Rados => {
                let image = PathBuf::from(format!("rados:{POOL}/{}", subject.name));
                site.serve(Server::start(machine, ceph, image, &folder, None)?, machine)?;
            }
            Kind::Embedded => {
                site.serve(
                    Server::start(machine, ceph, volume, &folder, Some(subject.size))?,
                    machine,
                )?;
            }
            Kind::Local => {
                let keys = folder.join("keys");
                let mut create = thalweg(machine, ceph, &keys, &["cluster", "create"]);
                output(create.arg(&volume).args(["--size", subject.size]))?;
                site._ours.push(Mount::new(machine, &volume, &site.roots[0], None)?);
                site.roots[1] = site.roots[0].clone();
            }
        }
        Ok(site)
    }

    /// A filesystem that is mounted on these folders, or will be.
    pub(crate) fn on(roots: [PathBuf; 2], subject: Subject) -> Result<Site, BenchError> {
        for root in &roots {
            fs::create_dir_all(root)
                .map_err(|source| BenchError::Io { path: root.clone(), source })?;
        }
        let (_ours, _cephfs) = (Vec::new(), Vec::new());
        Ok(Site { subject, roots, _ours, _cephfs, server: None, journals: Vec::new() })
    }

    /// Mounts what a server serves for two new clients, the first ones with the journals.
    fn serve(&mut self, server: Server, machine: &Machine) -> Result<(), BenchError> {
        let server = self.server.insert(server);
        let mut journals = self.journals.iter();
        for (root, client) in self.roots.iter().zip(["one", "two"]) {
            let token = server.token(client)?;
            let keys = server.keys.with_file_name(format!("keys-{client}"));
            let mut mount = server.command(&keys, &["mount", "--token", &token]);
            if let Some(journal) = journals.next() {
                let mut option = OsString::from("journal_dev=");
                option.push(journal.path());
                mount.args(["-o".into(), option]);
            }
            mount.arg(format!("{}:/", server.address));
            self._ours.push(Mount::by(machine, &mut mount, root)?);
        }
        Ok(())
    }

    /// The calls that the server has had from all clients; `None` without a server of ours.
    pub(crate) fn calls(&self) -> Result<Option<u64>, BenchError> {
        self.server.as_ref().map(Server::calls).transpose()
    }

    /// Returns when the server has what is in the journals; `false` without a journal.
    pub(crate) fn drain(&self) -> Result<bool, BenchError> {
        let Some(server) = &self.server else { return Ok(false) };
        for (_, root) in self.journals.iter().zip(&self.roots) {
            let mut drain = server.command(&server.keys, &["cluster", "drain"]);
            output(drain.arg(root))?;
        }
        Ok(!self.journals.is_empty())
    }
}

/// A process `thalweg cluster serve`.
#[derive(Debug)]
struct Server {
    program: PathBuf,
    /// The configuration of the Ceph cluster.
    conf: PathBuf,
    volume: PathBuf,
    keys: PathBuf,
    address: String,
    _peer: Peer,
}

/// A command of `thalweg` on a machine with these keys.
fn thalweg(machine: &Machine, ceph: &Ceph, keys: &Path, arguments: &[&str]) -> Command {
    command(machine.program(), &ceph.conf(), keys, arguments)
}

fn command(program: &Path, conf: &Path, keys: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("CEPH_CONF", conf).env_remove("CEPH_ARGS");
    command.env("THALWEG_KEYS", keys);
    command
}

impl Server {
    /// Makes a filesystem on `volume`, and starts a server of it.
    fn start(
        machine: &Machine,
        ceph: &Ceph,
        volume: PathBuf,
        folder: &Path,
        size: Option<&str>,
    ) -> Result<Server, BenchError> {
        let keys = folder.join("keys-server");
        let mut create = thalweg(machine, ceph, &keys, &["cluster", "create"]);
        create.arg(&volume).args(size.iter().flat_map(|size| ["--size", size]));
        output(&mut create)?;
        let mut serve = thalweg(machine, ceph, &keys, &["cluster", "serve", "--json"]);
        let (peer, ready) = Peer::announced(serve.args(["--listen", LISTEN]).arg(&volume))?;
        let ready: Value = serde_json::from_str(&ready).map_err(failed)?;
        let address = ready["addresses"][0].as_str().and_then(|text| text.strip_suffix(":/"));
        let address = address.map(str::to_owned).ok_or_else(|| {
            BenchError::Failed(format!("thalweg cluster serve names no address: {ready}").into())
        })?;
        let program = machine.program().to_owned();
        Ok(Server { program, conf: ceph.conf(), volume, keys, address, _peer: peer })
    }

    fn command(&self, keys: &Path, arguments: &[&str]) -> Command {
        command(&self.program, &self.conf, keys, arguments)
    }

    /// A token for a new client, whose root is root.
    fn token(&self, client: &str) -> Result<String, BenchError> {
        let add = ["cluster", "client", "add", client, "--path", "/", "--rw", "--squash", "none"];
        let said = output(&mut self.command(&self.keys, &add))?;
        Ok(said.lines().last().unwrap_or_default().trim().to_owned())
    }

    fn calls(&self) -> Result<u64, BenchError> {
        let mut status = self.command(&self.keys, &["cluster", "status", "--json"]);
        let status = output(status.arg(&self.volume))?;
        let status: Value = serde_json::from_str(&status).map_err(failed)?;
        let kinds = status["calls"].as_array().ok_or_else(|| {
            BenchError::Failed(format!("thalweg cluster status names no calls: {status}").into())
        })?;
        Ok(kinds.iter().filter_map(|kind| kind["count"].as_u64()).sum())
    }
}

/// Makes a directory at the root of a filesystem; its path for each client.
pub(crate) fn new_folder(site: &Site, name: impl AsRef<OsStr>) -> Result<[PathBuf; 2], BenchError> {
    let name = OsString::from(name.as_ref());
    let paths = [site.roots[0].join(&name), site.roots[1].join(&name)];
    fs::create_dir(&paths[0])
        .map_err(|source| BenchError::Io { path: paths[0].clone(), source })?;
    Ok(paths)
}
