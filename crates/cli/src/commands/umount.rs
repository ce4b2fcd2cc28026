//! `thalweg umount`: unmounts one mount of a filesystem.
//!
//! It unmounts only the mount that is named, in the caller's namespace; bind mounts and the original are
//! independent. With its last mount the kernel releases the filesystem, and its server ends.

use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_env::Env;
use thalweg_fuse::mounts::{self, Holder, Identity, Mount as Mounted};
use thalweg_fuse::state;

use super::mounted::{canonical, is_dead, mount_on, refuse_if_covered, server_folder, take_away};
use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::places::VIEW;
use crate::progress::{Patient, Silent};
use crate::request::{Answer, Request, unexpected_answer};

/// Unmount the filesystem of a volume
///
/// Waits until everything is durable and the server of the filesystem has ended, or goes on for its other
/// volumes and mounts. Of a shared filesystem everything is sent to its server; if that takes nothing for some seconds, and the
/// mount has a journal, the rest stays there for the next mount. If the filesystem has several mounts, for example bind mounts, only the one named is
/// unmounted. If another mount namespace still holds the filesystem, everything is durable too, but the
/// command ends with 1 and names the process.
#[derive(Debug, Args)]
pub(crate) struct Umount {
    /// The directory where it is mounted, or the volume's folder
    #[arg(value_name = "DIRECTORY|VOLUME")]
    what: PathBuf,
    /// Unmount although it is in use: it disappears at once, and ends with its last user
    #[arg(short, long)]
    lazy: bool,
    /// Of a shared filesystem with a journal: do not wait for the server: the changes that it does not have stay in the
    /// journal, where the next mount of that finds them
    #[arg(long)]
    leave: bool,
    /// For umount(8): these are ignored
    #[arg(short = 'f', hide = true)]
    force: bool,
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[arg(short = 'r', hide = true)]
    read_only: bool,
    #[arg(short = 't', hide = true)]
    kind: Option<String>,
}

pub(crate) async fn umount(env: &Env, args: Umount) -> Outcome<()> {
    let found = mount_on(&canonical(&args.what)?)?;
    refuse_if_covered(&found)?;
    let flags = if args.lazy { libc::MNT_DETACH } else { 0 };
    let identity = found.identity();
    let same = mounts::of(&identity)?.len();
    let (device, last, lazy) = (found.device, same == 1, args.lazy);
    // The server does not end while this connection lasts.
    let Some((folder, hold)) = announce(env, &found, (last, lazy, args.leave)).await? else {
        return without_server(&found, flags);
    };
    take_away(&found, flags)?;
    if !mounts::of(&identity)?.is_empty() {
        return Ok(());
    }
    let mut users = Vec::new();
    // The second pass finds a transaction that was just beginning in the first.
    for _ in 0..2 {
        leave_transactions(&identity, flags)?;
        let (client, ends, still) = ask_for_end(&folder, device, lazy).await?;
        users = still;
        if ends {
            drop(hold);
            client.closed(env).await;
            return Ok(());
        }
        if users.is_empty() || lazy {
            break;
        }
    }
    match users.is_empty() || lazy {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "{} is unmounted and durable, but its filesystem is still held: {}",
            found.mountpoint.display(),
            users.join(", ")
        ))
        .help("the volume is free when these have ended; --lazy does not wait for them")),
    }
}

/// Announces an unmount to the mount's server; returns the server's folder and the connection. `None` if
/// there is no server, or if it dies meanwhile: a process that is being killed still accepts connections,
/// then resets them.
async fn announce(
    env: &Env,
    found: &Mounted,
    (last, lazy, leave): (bool, bool, bool),
) -> Outcome<Option<(PathBuf, Client)>> {
    let Some(folder) = server_folder(found).await? else { return Ok(None) };
    let Some(mut hold) = Client::connect(&folder).await? else { return Ok(None) };
    let request = Request::Unmounting { device: found.device, last, lazy, leave };
    match hold.try_ask(&request, &Patient::new(env)).await? {
        Ok(Answer::Unmounting { lost, left }) => {
            if left > 0 {
                eprintln!(
                    "{}: {left} changes stay in the journal, for the next mount of it",
                    found.source
                );
            }
            if let Some(lost) = lost {
                eprintln!("{}: unsynced writes are lost: {lost}", found.source);
            }
            Ok(Some((folder, hold)))
        }
        Ok(_) => Err(unexpected_answer()),
        Err(error) => {
            tracing::debug!(%error, "the server died");
            Ok(None)
        }
    }
}

/// Asks the server for the result of an unmount: whether the server ends, and the users that still hold the
/// filesystem.
async fn ask_for_end(
    folder: &Path,
    device: (u32, u32),
    lazy: bool,
) -> Outcome<(Client, bool, Vec<String>)> {
    let Some(mut client) = Client::connect(folder).await? else {
        return Err(Failure::new("the process that serves the volume went away")
            .help("look at its messages; thalweg fsck shows how the filesystem is"));
    };
    match client.ask(&Request::Unmounted { device, lazy }, &Silent).await? {
        Answer::Unmounted { ends, users } => Ok((client, ends, users)),
        _ => Err(unexpected_answer()),
    }
}

/// Unmounts a filesystem whose server is dead or cannot be reached.
fn without_server(found: &Mounted, flags: libc::c_int) -> Outcome<()> {
    if is_dead(&found.mountpoint) {
        return take_away(found, libc::MNT_DETACH);
    }
    take_away(found, flags)?;
    Err(Failure::new(format!("{} is unmounted, but its server cannot be asked", found.source))
        .help("unsynced writes are durable when the server has ended"))
}

/// Unmounts the filesystem in the namespaces of `thalweg tx` too. These have copies of all mounts, and if the
/// system's mounts are private, an unmount does not propagate to them.
fn leave_transactions(filesystem: &Identity, flags: libc::c_int) -> Outcome<()> {
    for holder in mounts::elsewhere(filesystem)?.iter().filter(|holder| is_transaction(holder)) {
        for mount in holder.mounts.iter().rev().filter(|mount| mount.is_of(filesystem)) {
            if let Err(error) = mounts::unmount_in(holder.process, mount, flags) {
                let (pid, place) = (holder.process, mount.mountpoint.display());
                tracing::debug!(%error, pid, %place, "a transaction keeps a mount");
            }
        }
    }
    Ok(())
}

/// Whether a namespace is one of `thalweg tx`: a transaction's view is mounted there twice, in the state
/// folder and over the mount.
fn is_transaction(holder: &Holder) -> bool {
    let is_view = |mount: &&Mounted| {
        let name = mount.mountpoint.file_name().unwrap_or_default().to_string_lossy();
        let folder = mount.mountpoint.parent();
        name.starts_with(VIEW)
            && folder.is_some_and(|it| state::folders(0).contains(&it.to_owned()))
    };
    holder.mounts.iter().filter(is_view).any(|view| {
        let mut others = holder.mounts.iter();
        others.any(|it| it.device == view.device && it.mountpoint != view.mountpoint)
    })
}
