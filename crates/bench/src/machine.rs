//! A benchmark's requirements of the machine: programs, rights, mounts.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::ceph::Ceph;
use crate::{BenchError, Options};

/// A requirement of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A program in the search path.
    Program(&'static str),
    /// A program of Ceph, or one that `scripts/setup ceph` installs.
    CephProgram(&'static str),
    /// A program that a package of the system has, which nothing here installs.
    Packaged {
        program: &'static str,
        package: &'static str,
    },
    /// The program that starts Ceph clusters.
    MiniCluster,
    /// A build with librados.
    Librados,
    /// A build with LevelDB.
    LevelDb,
    Root,
    Fuse,
    /// Loop devices in the kernel.
    LoopDevices,
}

/// Whether a program is in the search path.
fn installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut folders = std::env::split_paths(&path).chain(system);
    folders.any(|folder| folder.join(name).is_file())
}

impl Need {
    /// Says what is missing and what to do about it; `None` when the requirement is met.
    fn missing(self) -> Option<String> {
        match self {
            Need::Program(name) => (!installed(name))
                .then(|| format!("the program {name} (install it with `make setup`)")),
            Need::CephProgram(name) => (!installed(name))
                .then(|| format!("the program {name} (install it with `scripts/setup ceph`)")),
            Need::Packaged { program, package } => (!installed(program))
                .then(|| format!("the program {program} (it is in the package {package})")),
            Need::MiniCluster => Ceph::program().err().map(|error| error.to_string()),
            Need::Librados => (!cfg!(feature = "librados"))
                .then(|| "librados in this program (`make build-ceph` builds one with it)".into()),
            Need::LevelDb => (!cfg!(feature = "leveldb")).then(|| {
                "LevelDB in this program (`make build-ceph` builds one with it, of the package libleveldb-dev)"
                    .into()
            }),
            Need::Root => {
                // SAFETY: the call only reads the process's identity and cannot fail.
                let user = unsafe { libc::geteuid() };
                (user != 0).then(|| "root, for loop devices and mounts".to_owned())
            }
            Need::Fuse => (!Path::new("/dev/fuse").exists())
                .then(|| "/dev/fuse (load the module fuse)".into()),
            Need::LoopDevices => (!Path::new("/dev/loop-control").exists())
                .then(|| "/dev/loop-control (load the module loop)".into()),
        }
    }
}

/// This machine in a few words.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    let memory = kib.map_or(String::new(), |kib| format!(", {} GiB of memory", (kib >> 20) + 1));
    let system = said("uname", &["-sr"]).map_or(String::new(), |system| format!(", {system}"));
    format!("{cores} cores{memory}{system}")
}

/// The first line that a program prints; `None` when it fails.
pub(crate) fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    text.lines().next().map(str::to_owned)
}

/// The machine, and the settings of a run.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The program `thalweg`.
    program: PathBuf,
    /// The folder for all files.
    pub(crate) folder: TempDir,
    pub(crate) scale: f64,
    pub(crate) seed: u64,
}

impl Machine {
    /// Checks that the requirements of the parts are met.
    pub(crate) fn new(
        options: &Options,
        scale: f64,
        needs: impl Iterator<Item = Need>,
    ) -> Result<Machine, BenchError> {
        let mut missing: Vec<String> = needs.filter_map(Need::missing).collect();
        missing.sort_unstable();
        missing.dedup();
        let program = options.program.clone();
        if program.is_none() {
            missing.push("the program thalweg beside thalweg-bench (make build)".to_owned());
        }
        let (Some(program), true) = (program, missing.is_empty()) else {
            return Err(BenchError::Invalid(format!("missing: {}", missing.join("; "))));
        };
        let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let folder = tempfile::tempdir_in(&parent)
            .map_err(|source| BenchError::Io { path: parent, source })?;
        Ok(Machine { program, folder, scale, seed: options.seed })
    }

    /// A size at this run's scale, a multiple of 1 MiB.
    pub(crate) fn size(&self, bytes: u64, least: u64) -> u64 {
        ((bytes as f64 * self.scale) as u64).max(least).next_multiple_of(1 << 20)
    }

    /// Seconds at this run's scale.
    pub(crate) fn seconds(&self, seconds: f64) -> f64 {
        (seconds * self.scale).max(1.0)
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Runs a command of `thalweg`.
    pub(crate) fn thalweg<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<(), BenchError> {
        execute(&self.program, arguments)
    }
}

/// Runs a program to its end.
pub(crate) fn execute<S: AsRef<OsStr>>(program: &Path, arguments: &[S]) -> Result<(), BenchError> {
    output(Command::new(program).args(arguments)).map(drop)
}

/// Runs a program to its end; returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String, BenchError> {
    let name = Path::new(command.get_program()).display().to_string();
    let failed = |why: String| BenchError::Failed(format!("{name}: {why}").into());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// A filesystem of ours that is mounted until this is dropped.
#[derive(Debug)]
pub(crate) struct Mount {
    program: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// Mounts the filesystem of `volume` on `point`.
    pub(crate) fn new(
        machine: &Machine,
        volume: &Path,
        point: &Path,
        options: Option<&str>,
    ) -> Result<Mount, BenchError> {
        let mut arguments: Vec<OsString> = vec!["mount".into(), volume.into(), point.into()];
        if let Some(options) = options {
            arguments.extend(["-o".into(), options.into()]);
        }
        machine.thalweg(&arguments)?;
        Ok(Mount { program: machine.program.clone(), point: point.to_owned() })
    }

    /// Runs a command of `thalweg` that mounts a filesystem on `point`.
    pub(crate) fn by(
        machine: &Machine,
        command: &mut Command,
        point: &Path,
    ) -> Result<Mount, BenchError> {
        output(command.arg(point))?;
        Ok(Mount { program: machine.program.clone(), point: point.to_owned() })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmount = |options: &[&str]| {
            let mut arguments: Vec<&OsStr> = vec!["umount".as_ref()];
            arguments.extend(options.iter().map(OsStr::new));
            arguments.push(self.point.as_os_str());
            execute(&self.program, &arguments)
        };
        if unmount(&[]).is_err() && unmount(&["--lazy"]).is_err() {
            let arguments = ["-l".as_ref(), self.point.as_os_str()];
            if let Err(error) = execute(Path::new("umount"), &arguments) {
                eprintln!("{} is still mounted: {error}", self.point.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_missing_is_named_at_once() {
        let needs = [Need::Program("no-such-program"), Need::Program("sh")];
        let refused = Machine::new(&Options::default(), 1.0, needs.into_iter()).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("no-such-program") && refused.contains("thalweg"), "{refused}");
        assert!(!refused.contains("program sh"), "{refused}");
    }

    #[test]
    fn sizes_and_times_follow_the_scale() {
        let options = Options { program: Some("thalweg".into()), ..Options::default() };
        let machine = Machine::new(&options, 0.5, std::iter::empty()).unwrap();
        assert_eq!(machine.size(1 << 30, 1 << 20), 512 << 20);
        assert_eq!(machine.size(1 << 20, 8 << 20), 8 << 20);
        assert_eq!((machine.seconds(10.0), machine.seconds(1.0)), (5.0, 1.0));
        assert!(execute(Path::new("no-such-program"), &["x"]).is_err());
    }
}
