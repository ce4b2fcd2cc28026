//! `thalweg umount`: takes one mount of a filesystem away.
//!
//! The mount named is taken away, in the namespace of the caller, and no other one of the same
//! filesystem: a bind mount and the original go each by itself. The kernel gives the filesystem up with
//! its last mount, and its server then ends.

use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_fuse::mounts::{self, Holder, Identity, Mount as Mounted};
use thalweg_fuse::state;

use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::mount::{canonical, is_dead, mount_on, server_folder, unexpected};
use crate::mounts::VIEW;
use crate::progress::Silent;
use crate::request::{Answer, Request};

/// Unmount the filesystem of a volume
///
/// Waits until everything is durable and the process that served it has ended, or goes on serving
/// others. Of a filesystem with several mounts, bind mounts for example, the one named goes. When
/// another mount namespace still holds the filesystem, everything is durable too, and the command says
/// which process that is and ends with 1.
#[derive(Debug, Args)]
pub(crate) struct Umount {
    /// The directory where it is mounted, or the volume's folder
    #[arg(value_name = "DIRECTORY|VOLUME")]
    what: PathBuf,
    /// Also while it is in use: nobody finds it any more, and it goes when its last user does
    #[arg(short, long)]
    lazy: bool,
    /// For umount(8): these mean nothing here
    #[arg(short = 'f', hide = true)]
    force: bool,
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[arg(short = 'r', hide = true)]
    read_only: bool,
    #[arg(short = 't', hide = true)]
    kind: Option<String>,
}

pub(crate) async fn umount(args: Umount) -> Outcome<()> {
    let found = mount_on(&canonical(&args.what)?)?;
    let flags = if args.lazy { libc::MNT_DETACH } else { 0 };
    let identity = found.identity();
    let same = mounts::of(&identity)?.len();
    let (device, last, lazy) = (found.device, same == 1, args.lazy);
    // While the connection lasts, the server does not end.
    let Some((folder, hold)) = announce(&found, last, lazy).await? else {
        return without_server(&found, flags);
    };
    take_away(&found.mountpoint, flags)?;
    if !mounts::of(&identity)?.is_empty() {
        return Ok(());
    }
    let mut users = Vec::new();
    // A transaction that was just beginning is found the second time.
    for _ in 0..2 {
        leave_transactions(&identity, flags)?;
        let (client, ends, still) = ask_for_end(&folder, device, lazy).await?;
        users = still;
        if ends {
            drop(hold);
            client.closed().await;
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
        .help("the volume is free when that has ended; --lazy does not wait for it")),
    }
}

/// Tells the server of a mount that it is about to be unmounted: the server's folder and the connection.
/// `None` when the mount has no server, also when that dies meanwhile: a process that is being killed
/// still accepts connections, and resets them.
async fn announce(found: &Mounted, last: bool, lazy: bool) -> Outcome<Option<(PathBuf, Client)>> {
    let Some(folder) = server_folder(found).await? else { return Ok(None) };
    let Some(mut hold) = Client::connect(&folder).await? else { return Ok(None) };
    let request = Request::Unmounting { device: found.device, last, lazy };
    match hold.try_ask(&request, &Silent).await? {
        Ok(Answer::Unmounting) => Ok(Some((folder, hold))),
        Ok(other) => Err(unexpected(&other)),
        Err(error) => {
            tracing::debug!(%error, "the server died");
            Ok(None)
        }
    }
}

/// Asks the server what came of an unmount: whether it ends, and what still holds the filesystem.
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
        other => Err(unexpected(&other)),
    }
}

/// Takes away the mount of a server that is dead, or out of reach.
fn without_server(found: &Mounted, flags: libc::c_int) -> Outcome<()> {
    if is_dead(&found.mountpoint) {
        return take_away(&found.mountpoint, libc::MNT_DETACH);
    }
    take_away(&found.mountpoint, flags)?;
    Err(Failure::new(format!("{} is unmounted, but its server cannot be asked", found.source))
        .help("what was not synced is durable when the server has ended"))
}

/// Takes away the mount on `mountpoint`.
pub(crate) fn take_away(mountpoint: &Path, flags: libc::c_int) -> Outcome<()> {
    match mounts::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            Err(Failure::new(format!("{} is in use", mountpoint.display()))
                .help("fuser -vm DIRECTORY shows by whom; --lazy unmounts when they are done"))
        }
        Err(error) => {
            Err(Failure::of(&error).while_doing(format!("cannot unmount {}", mountpoint.display())))
        }
    }
}

/// Takes the filesystem away in the namespaces of `thalweg tx` too. These have copies of all mounts,
/// and where the system's mounts are private, an unmount does not reach them by itself.
fn leave_transactions(filesystem: &Identity, flags: libc::c_int) -> Outcome<()> {
    for holder in mounts::elsewhere(filesystem)?.iter().filter(|holder| is_transaction(holder)) {
        for mount in holder.mounts.iter().rev().filter(|mount| mount.is_of(filesystem)) {
            if let Err(error) = mounts::unmount_in(holder.process, &mount.mountpoint, flags) {
                let (pid, place) = (holder.process, mount.mountpoint.display());
                tracing::debug!(%error, pid, %place, "a transaction keeps a mount");
            }
        }
    }
    Ok(())
}

/// Whether a namespace is one of `thalweg tx`: a transaction's view is mounted there twice, in the
/// state folder and over the mount.
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
