//! `thalweg cluster move`: a mount moves to another machine.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_env::Env;

use crate::commands::mount_status::ask_mount;
use crate::failure::{Failure, Outcome};
use crate::progress::Patient;
use crate::request::Request;

/// Move a mount with a journal to another machine, which waits for it
///
/// There thalweg mount SERVER:/PATH DIRECTORY -o journal_dev=PATH,receive waits, and lets this client in by a key: thalweg key authorize NAME
/// --token there prints a token, which thalweg key enrol HOST:7702 TOKEN uses here. The changes that the server does not have go
/// there, with what is delegated to this client. Programs go on until the last of it is sent, and the mount there goes on where this one has stopped. The mount
/// here is stale then, and is to be unmounted. If the command fails, the mount stays here; the command may be repeated.
#[derive(Debug, Args)]
pub(crate) struct Move {
    /// The directory where it is mounted
    directory: PathBuf,
    /// The machine that waits for it
    #[arg(value_name = "HOST[:PORT]")]
    target: String,
    /// Move it also while programs have files open for writing: these become stale
    #[arg(long)]
    force: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// The kernel passes on what programs have written, which it may have kept for itself.
fn pass_on(directory: &Path) -> Outcome<()> {
    let root = File::open(directory)?;
    // SAFETY: the descriptor is open, and the call keeps nothing of it.
    match unsafe { libc::syncfs(root.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(Failure::of(&std::io::Error::last_os_error())
            .while_doing(format!("cannot sync {}", directory.display()))),
    }
}

pub(super) async fn move_mount(env: &Env, args: Move) -> Outcome<()> {
    let Move { directory, target, force, json } = args;
    pass_on(&directory)?;
    let report = Patient::new(env);
    let request = Request::Move { target: target.clone(), force };
    let moved = ask_mount(&directory, &request, &report).await?;
    if json {
        println!("{moved}");
        return Ok(());
    }
    let number = |name: &str| moved[name].as_u64().unwrap_or_default();
    println!(
        "{} has moved to {target}: {} changes with {} bytes of files; calls have waited for {} ms",
        directory.display(),
        number("changes"),
        number("dirty"),
        number("pause_us").div_ceil(1000)
    );
    if moved["has_arrived"] != true {
        println!("{target} was not reached after that: the mount comes up there by itself");
    }
    println!("thalweg umount {} ends what is left here", directory.display());
    Ok(())
}
