//! A real cluster on the loopback interface for the length of a test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the program that starts clusters, in place of `ceph/mini-cluster` in the folder `shared` beside the project.
const VARIABLE: &str = "THALWEG_MINI_CLUSTER";

/// A running cluster; stopped when dropped.
pub(crate) struct MiniCluster {
    program: PathBuf,
    folder: tempfile::TempDir,
}

fn program() -> PathBuf {
    match std::env::var_os(VARIABLE) {
        Some(path) => path.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/ceph/mini-cluster"),
    }
}

impl MiniCluster {
    /// Starts a cluster of three object servers; `None`, and a line that says why, where that is impossible.
    pub(crate) fn start() -> Option<MiniCluster> {
        let program = program();
        if !program.exists() {
            eprintln!("SKIPPED: no {}; name the program by {VARIABLE}", program.display());
            return None;
        }
        if Command::new("ceph-osd").arg("--version").output().is_err() {
            eprintln!(
                "SKIPPED: no ceph-osd; install ceph-mon, ceph-osd, ceph-common, python3-rados"
            );
            return None;
        }
        // A socket's path is short.
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let cluster = MiniCluster { program, folder };
        cluster.run("start", &[]);
        Some(cluster)
    }

    /// Runs a command of the program.
    pub(crate) fn run(&self, verb: &str, arguments: &[&str]) {
        let mut command = Command::new(&self.program);
        command.arg(verb).arg(self.data()).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a command of Ceph; its output.
    pub(crate) fn ceph(&self, arguments: &[&str]) -> String {
        let output = Command::new("ceph").arg("-c").arg(self.conf()).args(arguments).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("c")
    }

    /// The configuration file.
    pub(crate) fn conf(&self) -> PathBuf {
        self.data().join("ceph.conf")
    }
}

impl Drop for MiniCluster {
    fn drop(&mut self) {
        let stopped = Command::new(&self.program).arg("stop").arg(self.data()).output();
        if !stopped.is_ok_and(|output| output.status.success()) {
            eprintln!("the cluster in {} does not stop", self.data().display());
        }
    }
}
