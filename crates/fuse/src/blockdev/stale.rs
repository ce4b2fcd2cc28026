//! Cleans up after a server that was killed.
//!
//! When the server of an attached volume dies, the kernel ends the FUSE connection: the mount answers
//! "Transport endpoint is not connected", and the loop device above it answers I/O errors. Both stay until
//! they are removed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_env::Env;

use super::disk::{FILE_NAME, SOURCE};
use super::error::{AttachError, blocking};
use super::loopdev::{self, LoopDevice};
use crate::mounts::{self, Mount};

/// How long the kernel may take to release a file.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a clean-up found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Whether a dead mount was removed.
    pub unmounted: bool,
    /// Loop devices that are free again.
    pub detached: Vec<PathBuf>,
    /// Loop devices that are still in use, and where they are mounted. They answer I/O errors, and vanish
    /// with their last user; unmount them.
    pub in_use: Vec<(PathBuf, Vec<PathBuf>)>,
}

/// Removes the dead mount on `mountpoint` and the loop devices above it, so that a volume can be attached
/// there again. It does nothing where nothing is mounted.
///
/// # Errors
/// [`AttachError::Occupied`] when a live server, or something else, is mounted there.
pub async fn recover_stale(env: &Env, mountpoint: &Path) -> Result<Recovered, AttachError> {
    let mountpoint = mountpoint.to_owned();
    let Some((mount, devices)) = blocking(move || find(&mountpoint)).await? else {
        return Ok(Recovered::default());
    };
    let mut recovered = Recovered::default();
    let file = mount.mountpoint.join(FILE_NAME);
    for device in devices {
        let over = file.clone();
        blocking(move || release(device, &over)).await?;
        match gone(env, device, &file, PATIENCE).await {
            true => recovered.detached.push(device.path()),
            false => recovered.in_use.push((device.path(), mounted(device))),
        }
    }
    // The loop devices were found by the mount's path, so the mount goes last.
    let unmount = move || mounts::unmount(&mount, libc::MNT_DETACH).map_err(AttachError::Unmount);
    blocking(unmount).await?;
    recovered.unmounted = true;
    Ok(recovered)
}

/// The dead mount on `mountpoint` and the loop devices over its file.
fn find(mountpoint: &Path) -> Result<Option<(Mount, Vec<LoopDevice>)>, AttachError> {
    let Some(mountpoint) = canonical(mountpoint)? else { return Ok(None) };
    let Some(mount) = mounts::at(&mountpoint).map_err(AttachError::System)? else {
        return Ok(None);
    };
    let dead = std::fs::metadata(&mountpoint)
        .is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
    let ours = mount.kind.starts_with("fuse") && mount.source.starts_with(SOURCE);
    if !dead || !ours {
        return Err(AttachError::Occupied { mountpoint, kind: mount.kind });
    }
    let devices = loopdev::over(&mountpoint.join(FILE_NAME)).map_err(AttachError::System)?;
    Ok(Some((mount, devices)))
}

/// The canonical form of a path whose last component may be a dead mount, on which every call fails; `None`
/// when there is no such directory.
pub(crate) fn canonical(path: &Path) -> Result<Option<PathBuf>, AttachError> {
    let absolute = std::path::absolute(path).map_err(AttachError::System)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Ok(Some(absolute));
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(AttachError::System(error)),
    }
}

/// Asks the kernel to release `file`. The device is checked again once it is open: until then another
/// program could take it.
fn release(device: LoopDevice, file: &Path) -> Result<(), AttachError> {
    let open = device.open().map_err(AttachError::System)?;
    if device.backing_file().as_deref() == Some(file) {
        match loopdev::clear(&open) {
            Err(error) if error.raw_os_error() != Some(libc::ENXIO) => {
                return Err(AttachError::System(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Where the device is mounted, as far as this process can see.
pub(crate) fn mounted(device: LoopDevice) -> Vec<PathBuf> {
    device.number().and_then(|number| mounts::of_device(number).ok()).unwrap_or_default()
}

/// Waits until the device has released `file`; false when it has not within `patience`.
pub(crate) async fn gone(env: &Env, device: LoopDevice, file: &Path, patience: Duration) -> bool {
    let deadline = env.now() + patience;
    while device.backing_file().as_deref() == Some(file) {
        if env.now() >= deadline {
            return false;
        }
        env.sleep(Duration::from_millis(2)).await;
    }
    true
}
