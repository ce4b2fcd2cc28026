//! Our mounts in the mount table, and their servers.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thalweg_fuse::mounts::{self, Mount as Mounted};
use thalweg_fuse::state;
use thalweg_store::device::kinds::kind_of;

use crate::control::Client;
use crate::failure::{Failure, Outcome};
use crate::places::MOUNT_KIND;
use crate::target::Target;

/// The error for a mount whose server has died.
pub(crate) fn no_server(found: &Mounted) -> Failure {
    Failure::new(format!("the server of {} is dead", found.mountpoint.display()))
        .help(format!("thalweg umount {}, then mount it again", found.mountpoint.display()))
}

/// Our mount on the directory `place`, or of the volume in the folder `place`.
pub(crate) fn mount_on(place: &Path) -> Outcome<Mounted> {
    let is_it = |found: &&Mounted| {
        found.kind == MOUNT_KIND && (found.mountpoint == place || Path::new(&found.source) == place)
    };
    let all = mounts::list()?;
    all.iter().rev().find(is_it).cloned().ok_or_else(|| {
        Failure::new(format!("no filesystem of a volume is mounted on {}", place.display()))
            .help("findmnt --types fuse.thalweg lists them")
    })
}

/// The directory `place`, if a filesystem is mounted on it that another machine shares.
pub(crate) fn shared_mount(place: &Path) -> Option<PathBuf> {
    let place = canonical(place).ok()?;
    let found = mount_on(&place).ok().filter(|found| found.mountpoint == place)?;
    Target::find(&found.source).is_err().then_some(place)
}

/// Our mount that contains a path.
pub(crate) fn mount_around(path: &Path) -> Outcome<Mounted> {
    let path = canonical(path)?;
    let all = mounts::list()?;
    let around = all.iter().filter(|found| path.starts_with(&found.mountpoint));
    let innermost = around.max_by_key(|found| found.mountpoint.as_os_str().len());
    match innermost {
        Some(found) => mount_on(&found.mountpoint),
        None => mount_on(&path),
    }
}

/// The folder with the socket of a mount's server; `None` if it has none. It is found by the number of the
/// filesystem's device, so even after the volume was moved or removed.
pub(crate) async fn server_folder(found: &Mounted) -> Outcome<Option<PathBuf>> {
    let user = found.user.unwrap_or_else(state::user);
    let folders = state::folders(user).into_iter();
    let mut places: Vec<_> = folders.map(|it| it.join(mounts::name_of(found.device))).collect();
    places.extend(Target::find(&found.source).ok().map(|target| target.folder));
    let mut failure = None;
    for place in places {
        match Client::connect(&place).await {
            // The link disappears with the mount, so return what it points to.
            Ok(Some(_)) => return Ok(Some(place.canonicalize()?)),
            Ok(None) => {}
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(None), Err)
}

/// The canonical path of a directory, even if its server has died, or the name of an image.
pub(crate) fn canonical(path: &Path) -> Outcome<PathBuf> {
    if kind_of(path).is_some() {
        return Ok(path.to_owned());
    }
    match path.canonicalize() {
        // A dead mount, one that has moved to another machine, or a mounted volume that was moved.
        Err(error) if is_lost(&error) || is_stale(&error) || is_mounted(path) => {
            Ok(std::path::absolute(path)?)
        }
        Err(error) => {
            Err(Failure::of(&error).while_doing(format!("cannot find {}", path.display())))
        }
        Ok(path) => Ok(path),
    }
}

fn is_stale(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESTALE)
}

/// Whether a volume of this name is mounted.
fn is_mounted(volume: &Path) -> bool {
    let Ok(volume) = std::path::absolute(volume) else { return false };
    let ours = |found: &Mounted| found.kind == MOUNT_KIND && Path::new(&found.source) == volume;
    mounts::list().is_ok_and(|all| all.iter().any(ours))
}

/// Whether the server of the mount on `directory` has died. statfs is not cached, so it reaches the server;
/// while a server is being killed the call waits, and it fails when the process has ended.
pub(crate) fn is_dead(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return false };
    // SAFETY: all zeros are a valid value, which the call overwrites.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a terminated string, and the pointer is valid for the call.
    match unsafe { libc::statfs(path.as_ptr(), &mut found) } {
        0 => false,
        _ => is_lost(&std::io::Error::last_os_error()),
    }
}

/// Whether an error means that a mount's server has died. The first call after that may get `ECONNABORTED`.
fn is_lost(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Unmounts a mount, and no other one.
pub(crate) fn take_away(mount: &Mounted, flags: libc::c_int) -> Outcome<()> {
    let place = mount.mountpoint.display();
    match mounts::unmount(mount, flags) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            refuse_if_covered(mount)?;
            Err(Failure::new(format!("{place} is in use"))
                .help("fuser -vm DIRECTORY shows by whom; --lazy unmounts when they are done"))
        }
        Err(error) => Err(Failure::of(&error).while_doing(format!("cannot unmount {place}"))),
    }
}

/// Refuses an unmount of a mount that another one covers: the path leads to the other one.
pub(crate) fn refuse_if_covered(mount: &Mounted) -> Outcome<()> {
    if mounts::is_reached(mount)? {
        return Ok(());
    }
    let place = mount.mountpoint.display();
    Err(Failure::new(format!(
        "another filesystem is mounted over that of {} on {place}",
        mount.source
    ))
    .help("unmount the other one first; findmnt lists both"))
}
