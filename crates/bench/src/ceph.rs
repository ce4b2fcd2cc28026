//! A Ceph cluster on this machine for the length of a benchmark, with a CephFS if asked.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::BenchError;
use crate::peer::Peer;
use crate::rig::failed;

/// Names the program that starts clusters: `PROGRAM start FOLDER --store KIND --mds NUMBER` makes one with a pool `test`
/// and its `ceph.conf` in the folder, and a CephFS when there are metadata servers; `PROGRAM stop FOLDER` ends it.
const VARIABLE: &str = "THALWEG_MINI_CLUSTER";

/// The pool that each cluster has.
pub(crate) const POOL: &str = "test";

/// A running cluster; stopped when dropped.
pub(crate) struct Ceph {
    program: PathBuf,
    folder: TempDir,
}

impl Ceph {
    /// The program that starts clusters.
    ///
    /// # Errors
    /// [`BenchError::Invalid`] when the variable names none.
    pub(crate) fn program() -> Result<PathBuf, BenchError> {
        let program = std::env::var_os(VARIABLE).map(PathBuf::from);
        let program = program.ok_or_else(|| {
            BenchError::Invalid(format!(
                "{VARIABLE} has to name a program that starts a Ceph cluster"
            ))
        })?;
        match program.is_file() {
            true => Ok(program),
            false => Err(BenchError::Invalid(format!(
                "{VARIABLE} names {}, which is no file",
                program.display()
            ))),
        }
    }

    /// Starts a cluster whose servers keep objects in `store`, with so many metadata servers.
    pub(crate) fn start(store: &str, metadata_servers: u32) -> Result<Ceph, BenchError> {
        let program = Ceph::program()?;
        // A socket's path is short.
        let folder = tempfile::tempdir_in("/tmp").map_err(failed)?;
        let ceph = Ceph { program, folder };
        let mut start = ceph.command("start");
        start.args(["--store", store]).args(["--mds", &metadata_servers.to_string()]);
        let started = start.output().map_err(failed)?;
        match started.status.success() {
            true => Ok(ceph),
            false => {
                let said = String::from_utf8_lossy(&started.stderr).into_owned();
                Err(BenchError::Failed(format!("the cluster does not start: {said}").into()))
            }
        }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(verb).arg(self.folder.path().join("c"));
        command
    }

    /// The configuration file.
    pub(crate) fn conf(&self) -> PathBuf {
        self.folder.path().join("c/ceph.conf")
    }

    /// Mounts the CephFS on an empty folder, by `ceph-fuse` with its defaults.
    pub(crate) fn mount(&self, point: &Path) -> Result<CephMount, BenchError> {
        let log = self.folder.path().join("ceph-fuse.log");
        let output = File::options().create(true).append(true).open(&log).map_err(failed)?;
        let mut command = Command::new("ceph-fuse");
        command.arg("-f").arg("-c").arg(self.conf()).args(["--id", "admin"]).arg(point);
        command.env_remove("CEPH_ARGS").stderr(output);
        match Peer::until(&mut command, || is_mounted(point)) {
            Ok(peer) => Ok(CephMount { point: point.to_owned(), _peer: peer }),
            Err(error) => {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().last().unwrap_or_default();
                Err(BenchError::Failed(format!("{error}: {last}").into()))
            }
        }
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let stopped = self.command("stop").output();
        if !stopped.is_ok_and(|output| output.status.success()) {
            eprintln!("the cluster in {} does not stop", self.folder.path().display());
        }
    }
}

/// Whether a filesystem is mounted on `point`.
fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|place| Path::new(place) == point))
}

/// A mounted CephFS; dropping it unmounts it.
#[derive(Debug)]
pub(crate) struct CephMount {
    point: PathBuf,
    _peer: Peer,
}

impl Drop for CephMount {
    fn drop(&mut self) {
        let unmount = |options: &[&str]| {
            let done = Command::new("umount").args(options).arg(&self.point).output();
            done.is_ok_and(|output| output.status.success())
        };
        if !unmount(&[]) && !unmount(&["-l"]) {
            eprintln!("{} is still mounted", self.point.display());
        }
    }
}
