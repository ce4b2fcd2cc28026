//! This program once more, in the background: it tells the one that started it what came of it, and
//! goes on.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};

/// What a process in the background tells the one that started it.
#[derive(Debug, Serialize, Deserialize)]
enum Told<T> {
    Done(T),
    Failed(Failure),
}

/// Starts this program apart from the terminal, and waits until it says what came of it. What it
/// writes later goes to the file `log`.
pub(crate) fn start<T: DeserializeOwned>(arguments: &[OsString], log: &Path) -> Outcome<T> {
    let failed = |error: std::io::Error| {
        Failure::of(&error)
            .while_doing(format!("cannot start the background process ({})", log.display()))
    };
    let output =
        OpenOptions::new().append(true).create(true).mode(0o600).open(log).map_err(failed)?;
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
    std::io::stdout().flush()?;
    let nothing = OpenOptions::new().write(true).open("/dev/null")?;
    // SAFETY: both descriptors are open, and nothing else owns descriptor 1.
    match unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&nothing), 1) } {
        1 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}
