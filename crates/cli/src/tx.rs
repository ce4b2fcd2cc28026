//! `thalweg tx`: a command whose changes under a mount appear all at once, or not at all.
//!
//! FUSE does not carry a transaction. The mount's server shows the filesystem a second time, as a new
//! transaction sees it; the command runs in a mount namespace of its own, where that view lies over the
//! mount. When the command succeeds, the server commits; its changes then appear in the mount.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use clap::Args;
use thalweg_fuse::mounts::Mount;
use thalweg_fuse::state;

use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::mount::{mount_around, server_folder, unexpected};
use crate::progress::Silent;
use crate::request::{Answer, Request};
use crate::target::Target;

/// Another transaction stood against this one: the caller may try again.
pub(crate) const CONFLICT: u8 = 75;
/// This program failed, not the command.
pub(crate) const FAILED: u8 = 125;
/// The command was found, and could not be run.
const CANNOT_RUN: u8 = 126;
/// The command was not found.
const NOT_FOUND: u8 = 127;
/// What a shell adds to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Run a command whose changes under a mount appear all at once, or not at all
///
/// The command sees the files as they are when it begins, and its own changes. When it ends with 0,
/// these appear and are durable; otherwise nothing of them stays. Files outside of the mount are not a
/// part of this. What the command leaves running loses the files under the mount when it ends.
///
/// Ends as the command does; with 75 when another process changed in the meantime what this one saw,
/// and with 125, 126 or 127 when it could not be begun, run, or found. Needs root.
#[derive(Debug, Args)]
pub(crate) struct Tx {
    /// The directory where a filesystem of a volume is mounted, or one in it
    mount: PathBuf,
    /// Run the command again, so often, when another process was in the way
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u32,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// How one attempt ended.
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
        return Err(Failure::new(format!("{} is a snapshot, which nothing changes", found.source))
            .help("name a mount of the volume itself"));
    }
    let folder = server_folder(&found).await?.ok_or_else(|| no_server(&found))?;
    for left in (0..=args.retries).rev() {
        match attempt(&folder, &found, &args.command).await? {
            Attempt::Ended(code) => return Ok(code),
            Attempt::Conflict if left > 0 => tracing::info!(left, "in conflict; once more"),
            Attempt::Conflict => {}
        }
    }
    eprintln!("thalweg tx: another process changed what this one saw; nothing was changed");
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
        other => return Err(unexpected(&other)),
    };
    // A bind mount may show a part of the filesystem alone.
    let part = view.join(found.root.strip_prefix("/").unwrap_or(&found.root));
    let code = run_in(&part, &found.mountpoint, command)?;
    let request = Request::EndView { id, commit: code == 0 };
    match connect().await?.ask(&request, &Silent).await? {
        Answer::Done => Ok(Attempt::Ended(code)),
        Answer::Conflict => Ok(Attempt::Conflict),
        other => Err(unexpected(&other)),
    }
}

/// Runs the command where `view` lies over `mountpoint`; its exit code.
fn run_in(view: &Path, mountpoint: &Path, command: &[OsString]) -> Outcome<u8> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let (view, over) = (path(view)?, path(mountpoint)?);
    // A working directory below the mount is found again, in the view.
    let here = std::env::current_dir().ok().filter(|here| here.starts_with(mountpoint));
    let here = here.as_deref().map(path).transpose()?;
    let (program, arguments) =
        command.split_first().ok_or_else(|| Failure::new("there is no command to run"))?;
    let mut child = Command::new(program);
    child.args(arguments);
    // SAFETY: between fork and exec only system calls are made, on memory that is there already.
    unsafe {
        child.pre_exec(move || {
            enter(&view, &over)?;
            match &here {
                Some(here) if libc::chdir(here.as_ptr()) != 0 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        });
    }
    // What is typed at the terminal is for the command; how that ends is how this ends.
    let _signals = Ignored::new();
    match child.status() {
        Ok(status) => Ok(code_of(status)),
        Err(error) => {
            eprintln!("thalweg tx: cannot run {}: {error}", program.display());
            Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
        }
    }
}

/// Gives this process mounts of its own, and puts `view` over `place` there.
fn enter(view: &CString, place: &CString) -> io::Result<()> {
    let checked = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let nothing = std::ptr::null();
    // SAFETY: all paths are terminated strings, alive for the calls.
    unsafe {
        checked(libc::unshare(libc::CLONE_NEWNS))?;
        // What is unmounted outside goes here too, or this namespace would keep it.
        let slave = libc::MS_REC | libc::MS_SLAVE;
        checked(libc::mount(nothing, c"/".as_ptr(), nothing, slave, nothing.cast()))?;
        checked(libc::mount(view.as_ptr(), place.as_ptr(), nothing, libc::MS_BIND, nothing.cast()))
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

/// While it lives, an interrupt from the terminal does not end this process.
struct Ignored([libc::sighandler_t; 2]);

impl Ignored {
    const SIGNALS: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];

    fn new() -> Ignored {
        extern "C" fn nothing(_: i32) {}
        let handler = nothing as extern "C" fn(i32) as libc::sighandler_t;
        // A handler, for the command would inherit that a signal is ignored.
        // SAFETY: the handler does nothing.
        Ignored(Ignored::SIGNALS.map(|signal| unsafe { libc::signal(signal, handler) }))
    }
}

impl Drop for Ignored {
    fn drop(&mut self) {
        for (signal, before) in Ignored::SIGNALS.into_iter().zip(self.0) {
            // SAFETY: this is what was set before.
            unsafe { libc::signal(signal, before) };
        }
    }
}
