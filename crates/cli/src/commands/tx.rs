//! `thalweg tx`: runs a command whose changes under a mount appear all at once, or not at all.
//!
//! FUSE has no transactions. The mount's server mounts a view of the filesystem in a new transaction; the
//! command runs in a mount namespace of its own, with the view mounted over the mount. If the command
//! succeeds, the server commits, and the changes appear in the mount.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use clap::Args;
use thalweg_fuse::mounts::Mount;
use thalweg_fuse::state;

use super::mounted::{mount_around, server_folder};
use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::progress::Silent;
use crate::request::{Answer, Request, unexpected_answer};
use crate::target::Target;

/// Exit code: the transaction conflicts with another one; the caller may try again.
pub(crate) const CONFLICT: u8 = 75;
/// Exit code: this program failed, not the command.
pub(crate) const FAILED: u8 = 125;
/// Exit code: the command was found, but could not be run.
const CANNOT_RUN: u8 = 126;
/// Exit code: the command was not found.
const NOT_FOUND: u8 = 127;
/// A shell adds this to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Run a command whose changes under a mount appear all at once, or not at all
///
/// The command sees the files as they were when it began, and its own changes. If it ends with 0, these
/// appear and are durable; otherwise they are discarded. Files outside of the mount are not part of the
/// transaction. Processes that the command leaves running lose their files under the mount when it ends.
///
/// The exit code is the command's; or 75 if another process changed files that the command had read or
/// written, and 125, 126 or 127 if the transaction could not be begun, or the command could not be run, or
/// was not found. Needs root.
#[derive(Debug, Args)]
pub(crate) struct Tx {
    /// The directory where a filesystem of a volume is mounted, or one in it
    mount: PathBuf,
    /// Run the command again after a conflict, at most N times
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u32,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The result of one attempt.
enum Attempt {
    Ended(u8),
    Conflict,
}

pub(crate) async fn run(args: Tx) -> Outcome<u8> {
    let found = mount_around(&args.mount)?;
    if state::user() != 0 {
        return Err(Failure::new("a transaction from a shell needs root, for its mount namespace")
            .help("programs run transactions without root: see docs/transactions.md"));
    }
    if Target::find(&found.source).is_ok_and(|target| target.snapshot.is_some()) {
        return Err(Failure::new(format!("{} is a snapshot, which is read-only", found.source))
            .help("name a mount of the volume itself"));
    }
    let folder = server_folder(&found).await?.ok_or_else(|| no_server(&found))?;
    for left in (0..=args.retries).rev() {
        match attempt(&folder, &found, &args.command).await? {
            Attempt::Ended(code) => return Ok(code),
            Attempt::Conflict if left > 0 => {
                tracing::info!(left, "conflict; the command is run again")
            }
            Attempt::Conflict => {}
        }
    }
    eprintln!(
        "thalweg tx: conflict: another process changed files that the command had read or written; nothing was changed"
    );
    Ok(CONFLICT)
}

fn no_server(found: &Mount) -> Failure {
    Failure::new(format!("the server of {} is dead", found.source))
        .help("unmount it, and mount it again")
}

async fn attempt(folder: &Path, found: &Mount, command: &[OsString]) -> Outcome<Attempt> {
    let connect = async || Client::connect(folder).await?.ok_or_else(|| no_server(found));
    // The view ends with this connection.
    let mut holder = connect().await?;
    let (id, view) = match holder.ask(&Request::BeginView, &Silent).await? {
        Answer::View { id, directory } => (id, directory),
        _ => return Err(unexpected_answer()),
    };
    // A bind mount may show only a part of the filesystem.
    let part = view.join(found.root.strip_prefix("/").unwrap_or(&found.root));
    let code = run_in(&part, &found.mountpoint, command)?;
    let request = Request::EndView { id, commit: code == 0 };
    match connect().await?.ask(&request, &Silent).await? {
        Answer::Done => Ok(Attempt::Ended(code)),
        Answer::Conflict => Ok(Attempt::Conflict),
        _ => Err(unexpected_answer()),
    }
}

/// Runs the command with `view` mounted over `mountpoint`; returns its exit code.
fn run_in(view: &Path, mountpoint: &Path, command: &[OsString]) -> Outcome<u8> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (view, over) = (path(view)?, path(mountpoint)?);
    // A working directory below the mount is entered again, in the view.
    let here = std::env::current_dir().ok().filter(|here| here.starts_with(mountpoint));
    let here = here.as_deref().map(path).transpose()?;
    let (program, arguments) =
        command.split_first().ok_or_else(|| Failure::new("there is no command to run"))?;
    let mut child = Command::new(program);
    child.args(arguments);
    // SAFETY: between fork and exec the closure makes system calls only, on memory that exists already.
    unsafe {
        child.pre_exec(move || {
            enter(&view, &over)?;
            match &here {
                Some(here) if libc::chdir(here.as_ptr()) != 0 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
    }
    // Signals from the terminal are for the command; this process ends when the command does.
    let _signals = Ignored::new();
    match child.status() {
        Ok(status) => Ok(code_of(status)),
        Err(error) => {
            eprintln!("thalweg tx: cannot run {}: {error}", program.display());
            Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
        }
    }
}

/// Gives this process a mount namespace of its own, and mounts `view` over `place` there.
fn enter(view: &CString, place: &CString) -> io::Result<()> {
    let checked = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let nothing = std::ptr::null();
    // SAFETY: all paths are terminated strings, alive for the calls.
    unsafe {
        checked(libc::unshare(libc::CLONE_NEWNS))?;
        // An unmount outside must reach this namespace too, which would otherwise hold the filesystem.
        let slave = libc::MS_REC | libc::MS_SLAVE;
        checked(libc::mount(nothing, c"/".as_ptr(), nothing, slave, nothing.cast()))?;
        checked(libc::mount(view.as_ptr(), place.as_ptr(), nothing, libc::MS_BIND, nothing.cast()))
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

/// While it lives, SIGINT and SIGQUIT do not end this process.
struct Ignored([libc::sighandler_t; 2]);

impl Ignored {
    const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];

    fn new() -> Ignored {
        extern "C" fn nothing(_: i32) {}
        let handler = nothing as extern "C" fn(i32) as libc::sighandler_t;
        // A handler, not SIG_IGN, which the command would inherit.
        // SAFETY: the handler does nothing.
        Ignored(Ignored::SIGNALS.map(|signal| unsafe { libc::signal(signal, handler) }))
    }
}

impl Drop for Ignored {
    fn drop(&mut self) {
        for (signal, before) in Ignored::SIGNALS.into_iter().zip(self.0) {
            // SAFETY: restores the former handler.
            unsafe { libc::signal(signal, before) };
        }
    }
}
