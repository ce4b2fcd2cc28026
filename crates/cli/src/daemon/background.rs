//! Daemons: this program starts itself again in the background; the child reports its result to the parent
//! and goes on.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::places::NAME;

/// The child's report to its parent.
#[derive(Debug, Serialize, Deserialize)]
enum Told<T> {
    Done(T),
    Failed(Failure),
}

/// How many characters of the folder's path are part of the log's name in the user's directory of logs.
const LOG_PLACE: usize = 50;

/// Opens the log `name` in a volume's folder for appending, and makes it when it is missing.
///
/// The volume's folder is used only if this user owns it, since another user could place a symbolic link
/// there. Otherwise, and if the log cannot be made there, the log is in this user's directory of logs.
fn open_log(folder: &Path, name: &str) -> Outcome<(File, PathBuf)> {
    // SAFETY: the call only reads the process's identity and cannot fail.
    let user = unsafe { libc::geteuid() };
    if std::fs::metadata(folder).is_ok_and(|found| found.uid() == user) {
        let path = folder.join(name);
        match append_to(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) => tracing::debug!(%error, log = %path.display(), "the log is elsewhere"),
        }
    }
    let place = folder.to_string_lossy().trim_matches('/').replace('/', "-");
    // NAME_MAX is 255 bytes.
    let place: String =
        place.chars().rev().take(LOG_PLACE).collect::<Vec<_>>().into_iter().rev().collect();
    let path = thalweg_fuse::state::directory("logs")?.join(format!("{place}-{name}"));
    let file = append_to(&path).map_err(|error| {
        Failure::of(&error).while_doing(format!("cannot write the log {}", path.display()))
    })?;
    Ok((file, path))
}

/// Opens a regular file with a single link, never through a symbolic link.
fn append_to(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    match found.is_file() && found.nlink() == 1 {
        true => Ok(file),
        false => Err(std::io::Error::other("it is not a regular file with a single link")),
    }
}

/// Keeps the daemon from inheriting descriptors that the caller's shell has left open: it would hold their locks, keep their
/// filesystems in use and their pipes open for as long as it serves.
fn leave_descriptors() -> std::io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if number > libc::STDERR_FILENO {
            // SAFETY: the call changes a flag of the descriptor, or fails if that is closed by now.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Starts this program again as a daemon and waits for its report. The daemon's standard error goes to the
/// log `name` in the volume's folder.
pub(crate) fn start<T: DeserializeOwned>(
    arguments: &[OsString],
    folder: &Path,
    name: &str,
) -> Outcome<T> {
    let (output, log) = open_log(folder, name)?;
    let failed = |error: std::io::Error| {
        Failure::of(&error)
            .while_doing(format!("cannot start the background process ({})", log.display()))
    };
    leave_descriptors().map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // Always under its own name, even if this process runs as mount.thalweg or the like.
    command.arg0(NAME).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(output);
    command.current_dir("/");
    // SAFETY: between fork and exec, setsid is safe to call and touches no memory of ours.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(failed)?;
    }
    match serde_json::from_str(&line) {
        Ok(Told::Done(result)) => Ok(result),
        Ok(Told::Failed(failure)) => Err(failure),
        Err(_) => Err(Failure::new("the background process ended without a report")
            .help(format!("its messages are in {}", log.display()))),
    }
}

/// Reports the result to the parent: one line on standard output. Then closes standard output, since the
/// parent waits for its end.
pub(crate) fn tell<T: Serialize>(result: &Outcome<T>) -> Outcome<()> {
    let told = match result {
        Ok(result) => Told::Done(result),
        Err(failure) => Told::Failed(failure.clone()),
    };
    println!("{}", serde_json::to_string(&told)?);
    output::flush();
    let nothing = OpenOptions::new().write(true).open("/dev/null")?;
    // SAFETY: both descriptors are open, and nothing else owns descriptor 1.
    match unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&nothing), 1) } {
        1 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}
