//! A cluster on this machine for the length of a benchmark.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::BenchError;
use crate::rig::failed;

/// Names the program that starts clusters: `PROGRAM start FOLDER --store KIND` makes one with a pool `test` and its
/// `ceph.conf` in the folder, `PROGRAM stop FOLDER` ends it.
const VARIABLE: &str = "THALWEG_MINI_CLUSTER";

/// A running cluster; stopped when dropped.
pub(super) struct Cluster {
    program: PathBuf,
    folder: TempDir,
}

impl Cluster {
    /// Starts a cluster whose servers keep objects in `store`.
    pub(super) fn start(store: &str) -> Result<Cluster, BenchError> {
        let program = std::env::var_os(VARIABLE).map(PathBuf::from);
        let program = program.ok_or_else(|| {
            BenchError::Invalid(format!(
                "{VARIABLE} has to name a program that starts a Ceph cluster"
            ))
        })?;
        // A socket's path is short.
        let folder = tempfile::tempdir_in("/tmp").map_err(failed)?;
        let cluster = Cluster { program, folder };
        let started = cluster.command("start").args(["--store", store]).output();
        let started = started.map_err(failed)?;
        match started.status.success() {
            true => Ok(cluster),
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
    pub(super) fn conf(&self) -> PathBuf {
        self.folder.path().join("c/ceph.conf")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let stopped = self.command("stop").output();
        if !stopped.is_ok_and(|output| output.status.success()) {
            eprintln!("the cluster in {} does not stop", self.folder.path().display());
        }
    }
}
