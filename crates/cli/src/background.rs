//! This program once more, in the background: it tells the one that started it what came of it, and
//! goes on.

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

/// What a process in the background tells the one that started it.
#[derive(Debug, Serialize, Deserialize)]
enum Told<T> {
    Done(T),
    Failed(Failure),
}

/// Characters of a folder's path in the name of its log elsewhere.
const LOG_PLACE: usize = 50;

/// Opens the log `name` in a volume's folder for appending, and makes it when it is missing.
///
/// Only in a folder of this user: in another user's folder the name could lead anywhere. There, and
/// where the folder takes no file, the log is in this user's directory of logs.
fn open_log(folder: &Path, name: &str) -> Outcome<(File, PathBuf)> {
    // SAFETY: the call only reads the process's identity and cannot fail.
    let user = unsafe { libc::geteuid() };
    if std::fs::metadata(folder).is_ok_and(|found| found.uid() == user) {
        let path = folder.join(name);
        match append_to(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) => tracing::debug!(%error, log = %path.display(), "the log goes elsewhere"),
        }
    }
    let place = folder.to_string_lossy().trim_matches('/').replace('/', "-");
    // A name of a file has 255 bytes at most.
    let place: String =
        place.chars().rev().take(LOG_PLACE).collect::<Vec<_>>().into_iter().rev().collect();
    let path = thalweg_fuse::state::directory("logs")?.join(format!("{place}-{name}"));
    let file = append_to(&path).map_err(|error| {
        Failure::of(&error).while_doing(format!("cannot write the log {}", path.display()))
    })?;
    Ok((file, path))
}

/// Opens a regular file that has one name, and not by way of a symbolic link.
fn append_to(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    match found.is_file() && found.nlink() == 1 {
        true => Ok(file),
        false => Err(std::io::Error::other("it is no regular file of one name")),
    }
}

/// Starts this program apart from the terminal, and waits until it says what came of it. What it
/// writes later goes to the log `name` in the volume's folder.
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
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // Under its own name, whichever this process was called by.
    command
        .arg0(crate::NAME)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(output);
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
        Err(_) => Err(Failure::new("the background process ended without a word")
            .help(format!("look into {}", log.display()))),
    }
}

/// Tells the process that started this one what came of it: one line on standard output, which is then
/// closed, for the reader waits for its end.
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
