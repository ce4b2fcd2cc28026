//! A kernel block device from a volume: the file of [`disk`](mod@super::disk) under a loop device.
//!
//! **What is durable.** A flush of the block device, as `sync` on a filesystem above it makes one,
//! becomes `fsync` of the file, and that becomes `Volume::flush`. Neither the loop device (direct
//! I/O) nor FUSE keeps a copy in between, so an acknowledged `sync` is the volume's own.
//!
//! **One at a time.** The loop driver sends reads and writes without waiting for them, but waits for
//! each flush, trim and zeroing before it looks at its next request.
//!
//! **Memory.** A server whose memory runs out must not wait for its own block device to write dirty
//! pages: see [`become_io_flusher`].

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_env::{Env, watch};
use thalweg_store::volume::VolumeRef;

use super::disk::{self, FILE_NAME, MountOptions, Mounted};
pub use super::error::AttachError;
use super::error::blocking;
use super::loopdev::{self, LoopDevice, LoopOptions};
use super::probe::{Method, probe};
use super::stale::{canonical, gone, mounted};
use crate::mounts;

/// How long a device that is not mounted may stay open elsewhere before it counts as in use.
const PATIENCE: Duration = Duration::from_secs(3);
/// The largest logical block that every kernel takes.
const LARGEST_BLOCK: u32 = 4096;
/// Of `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// How a volume is attached.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// The device's logical block in bytes, 512 to 4096. By default the volume's preferred block:
    /// no request then makes the volume read before it writes. A disk image with a partition table
    /// or a filesystem made for 512-byte sectors needs 512.
    pub block_size: Option<u32>,
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Make devices of the partitions found.
    pub partition_scan: bool,
    /// Have the kernel free the device when the server dies and no program uses it. Until then `losetup -d`
    /// has no effect; use [`Attached::detach`].
    pub autoclear: bool,
    /// The volume's name, for the mount table.
    pub name: String,
}

impl Default for AttachOptions {
    fn default() -> AttachOptions {
        AttachOptions {
            block_size: None,
            threads: 2,
            partition_scan: false,
            autoclear: false,
            name: "volume".to_owned(),
        }
    }
}

/// Whether a detach waits for users of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Refuse while the device is in use.
    No,
    /// Write back as much as possible, then cut all users off: they get I/O errors.
    Yes,
}

/// An attached volume. [`Attached::detach`] it: dropping it releases the device without waiting or
/// flushing.
#[derive(Debug)]
pub struct Attached {
    /// The block device, such as `/dev/loop0`.
    pub device: PathBuf,
    /// The file underneath.
    pub file: PathBuf,
    env: Env,
    volume: VolumeRef,
    releases: watch::Receiver<u64>,
    parts: Option<Parts>,
}

/// The mount and the device, to be removed in any case. Dropping it may block for I/O.
#[derive(Debug)]
struct Parts {
    mountpoint: PathBuf,
    /// Field order: the keeper of the device is closed before the mount that serves it goes.
    device: Option<(LoopDevice, Option<File>)>,
    mounted: Option<Mounted>,
}

impl Parts {
    fn file(&self) -> PathBuf {
        self.mountpoint.join(FILE_NAME)
    }

    /// The device, as long as it is over our file.
    fn bound(&self) -> Option<LoopDevice> {
        let device = self.device.as_ref().map(|(device, _)| *device)?;
        (device.backing_file()? == self.file()).then_some(device)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if let Some(open) = self.bound().and_then(|device| device.open().ok())
            // Once open it cannot pass to another file, but before that it could.
            && self.bound().is_some()
            && let Err(error) = loopdev::clear(&open)
        {
            tracing::warn!(%error, "the loop device stays");
        }
        self.device = None;
        if let Some(mounted) = &self.mounted
            && let Err(error) = mounted.unmount(libc::MNT_DETACH)
        {
            tracing::warn!(%error, mountpoint = %self.mountpoint.display(), "the mount stays");
        }
    }
}

/// Attaches `volume` as a block device. Its file is mounted on the directory `mountpoint`, made
/// when missing; see [`state::directory`](crate::state::directory) for where. Must be called inside a tokio runtime, as root.
///
/// # Errors
/// See [`AttachError`]; nothing is left behind.
pub async fn attach(
    env: &Env,
    volume: VolumeRef,
    mountpoint: &Path,
    options: &AttachOptions,
) -> Result<Attached, AttachError> {
    let looped = probe().into_iter().find(|each| each.method == Method::Loop);
    if let Some(unusable) = looped.filter(|each| !each.usable) {
        return Err(AttachError::Unavailable(unusable.reason));
    }
    let block_size = block_size(&volume, options.block_size)?;
    let runtime = tokio::runtime::Handle::current();
    let (env, options) = (env.clone(), options.clone());
    let mountpoint = mountpoint.to_owned();
    // All of it in one blocking step: if the caller is cancelled meanwhile, the result is dropped and
    // removes everything again.
    blocking(move || {
        let mountpoint = prepare(&mountpoint)?;
        let mount = MountOptions { threads: options.threads, name: options.name.clone() };
        let mounted = disk::mount(&env, runtime, volume.clone(), &mountpoint, &mount)
            .map_err(|source| AttachError::Mount { mountpoint: mountpoint.clone(), source })?;
        let releases = mounted.releases.clone();
        let mut parts = Parts { mountpoint, device: None, mounted: Some(mounted) };
        let device = bind(&mut parts, &volume, block_size, &options)?;
        let (device, file) = (device.path(), parts.file());
        Ok(Attached { device, file, env, volume, releases, parts: Some(parts) })
    })
    .await
}

/// Puts a loop device over the mounted file.
fn bind(
    parts: &mut Parts,
    volume: &VolumeRef,
    block_size: u32,
    options: &AttachOptions,
) -> Result<LoopDevice, AttachError> {
    let read_only = volume.is_read_only();
    let file = OpenOptions::new()
        .read(true)
        .write(!read_only)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
        .open(parts.file())
        .map_err(|source| AttachError::Mount { mountpoint: parts.mountpoint.clone(), source })?;
    let options = LoopOptions {
        block_size,
        read_only,
        autoclear: options.autoclear,
        partition_scan: options.partition_scan,
    };
    let (device, keeper) = loopdev::configure(&file, &options)?;
    parts.device = Some((device, options.autoclear.then_some(keeper)));
    if !device.is_direct() {
        tracing::warn!(device = %device.path().display(), "the loop device has no direct I/O");
    }
    Ok(device)
}

/// The device's logical block: the requested one, or the volume's preferred block.
fn block_size(volume: &VolumeRef, asked: Option<u32>) -> Result<u32, AttachError> {
    let size = volume.size();
    let smallest = volume.min_block().max(512);
    let fits = |block: u32| {
        block.is_power_of_two()
            && (smallest..=LARGEST_BLOCK).contains(&block)
            && size.is_multiple_of(u64::from(block))
    };
    if size == 0 {
        return Err(AttachError::Invalid("the volume is empty; extend it first".to_owned()));
    }
    let wanted = asked.unwrap_or(volume.preferred_block().clamp(512, LARGEST_BLOCK));
    match fits(wanted) {
        true => Ok(wanted),
        // Not asked for: a size in odd blocks is better served by small ones than cut short.
        false if asked.is_none() && fits(smallest) => Ok(smallest),
        false => Err(AttachError::Invalid(format!(
            "a block of {wanted} bytes does not fit a volume of {size} bytes with blocks of \
             {smallest}; choose a power of two from {smallest} to {LARGEST_BLOCK} that divides it"
        ))),
    }
}

/// A directory on which nothing is mounted yet, by its canonical path.
fn prepare(mountpoint: &Path) -> Result<PathBuf, AttachError> {
    let failed = |source| AttachError::Directory { path: mountpoint.to_owned(), source };
    let Some(path) = canonical(mountpoint)? else {
        return Err(failed(io::ErrorKind::NotFound.into()));
    };
    if let Some(mount) = mounts::at(&path).map_err(AttachError::System)? {
        return Err(AttachError::Occupied { mountpoint: path, kind: mount.kind });
    }
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    path.canonicalize().map_err(failed)
}

impl Attached {
    /// Ends when the device is detached: by [`Attached::detach`], from outside (`losetup -d`), or
    /// because the mount has ended. Call [`Attached::detach`] then to take the rest away.
    pub async fn wait(&self) {
        let mut releases = self.releases.clone();
        while self.parts.as_ref().is_some_and(|parts| parts.bound().is_some()) {
            if releases.changed().await.is_err() {
                return;
            }
        }
    }

    /// Tells the kernel the volume's size again, after it was extended or shrunk.
    ///
    /// # Errors
    /// [`AttachError::System`] with the kernel's error.
    pub async fn resize(&self) -> Result<(), AttachError> {
        let Some(device) = self.parts.as_ref().and_then(Parts::bound) else { return Ok(()) };
        blocking(move || {
            device.open().and_then(|open| loopdev::resize(&open)).map_err(AttachError::System)
        })
        .await
    }

    /// Writes back the kernel's cache, flushes the volume, and removes the device and the mount. A second
    /// call does nothing.
    ///
    /// # Errors
    /// [`AttachError::Busy`] and [`AttachError::Flush`] leave the volume attached, and never occur when
    /// forced.
    pub async fn detach(&mut self, force: Force) -> Result<(), AttachError> {
        let Some(device) = self.parts.as_ref().map(Parts::bound) else { return Ok(()) };
        if let Some(device) = device {
            self.unbind(device, force).await?;
        }
        let Some(parts) = self.parts.take() else { return Ok(()) };
        let flushed = match self.volume.is_read_only() {
            true => Ok(()),
            false => self.volume.flush().await,
        };
        blocking(move || take_down(parts, force)).await?;
        Ok(flushed?)
    }

    /// Has the kernel release the file, or, forced, cuts the device off from it.
    async fn unbind(&mut self, device: LoopDevice, force: Force) -> Result<(), AttachError> {
        let open = blocking(move || quiesce(device, force)).await?;
        // Every handle of the device, ours included, must be closed before the kernel releases it.
        let kept = self.parts.as_mut().and_then(|parts| parts.device.as_mut());
        let keeper = kept.and_then(|(_, keeper)| keeper.take());
        let autoclear = keeper.is_some();
        blocking(move || {
            drop((keeper, open));
            Ok(())
        })
        .await?;
        if gone(&self.env, device, &self.file, PATIENCE).await || force == Force::Yes {
            return Ok(());
        }
        let keeper = blocking(move || stay(device, autoclear)).await?;
        if let Some(parts) = &mut self.parts {
            parts.device = Some((device, keeper));
        }
        Err(AttachError::Busy { device: device.path(), mounts: mounted(device) })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        // Closing the device waits for its writes, which tasks of the runtime serve: not on a thread
        // that may be one of theirs.
        let thread = std::thread::Builder::new().name("thalweg-detach".to_owned());
        if let Err(error) = thread.spawn(move || drop(parts)) {
            tracing::warn!(%error, "the loop device and its mount stay");
        }
    }
}

/// Writes back the kernel's cache of the device, and marks the device to be released when the returned
/// handle, and every other, is closed.
fn quiesce(device: LoopDevice, force: Force) -> Result<File, AttachError> {
    let open = match (device.open_exclusive(), force) {
        (Ok(open), _) => open,
        (Err(_), Force::Yes) => device.open().map_err(AttachError::System)?,
        (Err(error), Force::No) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(AttachError::Busy { device: device.path(), mounts: mounted(device) });
        }
        (Err(error), Force::No) => return Err(AttachError::System(error)),
    };
    if force == Force::Yes {
        mounted(device).iter().for_each(|mountpoint| sync_filesystem(mountpoint));
    }
    match (open.sync_all(), force) {
        (Err(source), Force::No) => {
            return Err(AttachError::Flush { device: device.path(), source });
        }
        (Err(error), Force::Yes) => tracing::error!(%error, "the last writes are lost"),
        (Ok(()), _) => {}
    }
    match loopdev::clear(&open) {
        Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(AttachError::System(error)),
        _ => Ok(open),
    }
}

/// Takes a detach back: the device stays, even when its present user closes it.
fn stay(device: LoopDevice, autoclear: bool) -> Result<Option<File>, AttachError> {
    let open = device.open().map_err(AttachError::System)?;
    if autoclear {
        return Ok(Some(open));
    }
    match loopdev::keep(&open) {
        Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(AttachError::System(error)),
        _ => Ok(None),
    }
}

/// Best effort, before the filesystem is cut off from its device.
fn sync_filesystem(mountpoint: &Path) {
    let Ok(directory) = File::open(mountpoint) else { return };
    // SAFETY: the descriptor is open for the call.
    if unsafe { libc::syncfs(directory.as_raw_fd()) } != 0 {
        let error = io::Error::last_os_error();
        tracing::error!(%error, mountpoint = %mountpoint.display(), "the last writes are lost");
    }
}

/// Takes the mount away and waits for its threads.
fn take_down(mut parts: Parts, force: Force) -> Result<(), AttachError> {
    let Some(mounted) = parts.mounted.take() else { return Ok(()) };
    let cut = parts.bound().is_some() && force == Force::Yes;
    // With MNT_FORCE the kernel ends the connection: pending requests fail.
    let flags = if cut { libc::MNT_FORCE | libc::MNT_DETACH } else { 0 };
    match mounted.unmount(flags) {
        Ok(()) => {}
        // Another program has the file open beside the loop device.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            let forced = mounted.unmount(libc::MNT_FORCE | libc::MNT_DETACH);
            forced.map_err(AttachError::Unmount)?;
        }
        // It was unmounted from outside. If something still holds the file, it is served on.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            if mounted.releases.has_changed().is_ok() {
                return Ok(());
            }
        }
        Err(error) => return Err(AttachError::Unmount(error)),
    }
    parts.device = None;
    if let Err(error) = mounted.join() {
        tracing::warn!(%error, "a thread that served the kernel failed");
    }
    // It may have been there before us, or hold files: then it stays.
    let _ = std::fs::remove_dir(&parts.mountpoint);
    Ok(())
}

/// Tells the kernel that this thread, and every thread that it starts later, serves a block
/// device: when memory is short, it does not wait for the device to write dirty pages. Call it
/// first in `main`, before the runtime starts. Needs `CAP_SYS_RESOURCE`.
///
/// # Errors
/// `EPERM` without the capability, `EINVAL` before Linux 5.6.
pub fn become_io_flusher() -> io::Result<()> {
    // SAFETY: the request takes plain integers.
    match unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
