//! How paths become devices: files and block devices, or what a test puts in their place.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::manifest;
use crate::device::{Access, DeviceError, DeviceRef, FileDevice, FileOptions};

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Equal for two paths of one device.
    pub identity: (u64, u64),
    /// Whether it is a block device.
    pub is_block_device: bool,
}

/// An open device, and the locks on its ranges.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The whole device.
    pub device: DeviceRef,
    /// Who keeps ranges apart; nobody needs to where devices cannot be shared.
    file: Option<Arc<FileDevice>>,
}

impl Opened {
    /// A device without locks.
    pub fn unlocked(device: DeviceRef) -> Opened {
        Opened { device, file: None }
    }

    /// Locks a range against every other open; see [`FileDevice::lock_range`].
    ///
    /// # Errors
    /// [`DeviceError::Locked`] when another open holds a part of it.
    pub fn lock_range(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.file.as_ref().map_or(Ok(()), |file| file.lock_range(offset, len))
    }
}

/// Where devices and manifests are found.
#[async_trait]
pub trait Media: Send + Sync + fmt::Debug {
    /// What is at `path`; `None` when nothing is.
    async fn find(&self, path: &Path) -> io::Result<Option<Found>>;

    /// Opens the device at `path`, with sectors of `sector` bytes instead of its own.
    async fn open(
        &self,
        path: &Path,
        access: Access,
        sector: Option<u32>,
    ) -> Result<Opened, DeviceError>;

    /// Makes a device of `size` bytes at `path`, where nothing is.
    async fn create(&self, path: &Path, size: u64, sector: Option<u32>) -> Result<(), DeviceError>;

    /// Removes what [`Media::create`] made.
    async fn remove(&self, path: &Path) -> io::Result<()>;

    /// The manifest in `folder`; `None` when there is none.
    async fn read_manifest(&self, folder: &Path) -> io::Result<Option<String>>;

    /// Replaces the manifest in `folder`, durably and as a whole; `None` removes it.
    async fn write_manifest(&self, folder: &Path, text: Option<&str>) -> io::Result<()>;
}

/// Files and block devices of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileMedia;

/// Runs `work` on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn found(path: &Path) -> io::Result<Option<Found>> {
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata?,
    };
    let is_block_device = metadata.file_type().is_block_device();
    let identity = match is_block_device {
        // No file has the inode that stands here for "by device number".
        true => (metadata.rdev(), u64::MAX),
        false => (metadata.dev(), metadata.ino()),
    };
    Ok(Some(Found { identity, is_block_device }))
}

/// The new text is durable beside the old before it takes its name: a crash leaves either.
fn replace(folder: &Path, text: Option<&str>) -> io::Result<()> {
    let path = folder.join(manifest::FILE);
    match text {
        Some(text) => {
            std::fs::create_dir_all(folder)?;
            let mut file = tempfile(folder)?;
            file.1.write_all(text.as_bytes())?;
            file.1.sync_all()?;
            std::fs::rename(&file.0, &path)?;
        }
        None => match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        },
    }
    std::fs::File::open(folder)?.sync_all()
}

fn tempfile(folder: &Path) -> io::Result<(PathBuf, std::fs::File)> {
    let path = folder.join(format!("{}.new", manifest::FILE));
    let file = std::fs::File::create(&path)?;
    Ok((path, file))
}

#[async_trait]
impl Media for FileMedia {
    async fn find(&self, path: &Path) -> io::Result<Option<Found>> {
        let path = path.to_owned();
        blocking(move || found(&path)).await
    }

    async fn open(
        &self,
        path: &Path,
        access: Access,
        sector: Option<u32>,
    ) -> Result<Opened, DeviceError> {
        let options = FileOptions { access, sector, ..FileOptions::default() };
        let file = Arc::new(FileDevice::open(path, &options).await?);
        Ok(Opened { device: file.clone(), file: Some(file) })
    }

    async fn create(&self, path: &Path, size: u64, sector: Option<u32>) -> Result<(), DeviceError> {
        let options = FileOptions { sector, ..FileOptions::default() };
        FileDevice::create(path, size, &options).await.map(drop)
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || std::fs::remove_file(path)).await
    }

    async fn read_manifest(&self, folder: &Path) -> io::Result<Option<String>> {
        let path = folder.join(manifest::FILE);
        blocking(move || match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text.map(Some),
        })
        .await
    }

    async fn write_manifest(&self, folder: &Path, text: Option<&str>) -> io::Result<()> {
        let (folder, text) = (folder.to_owned(), text.map(str::to_owned));
        blocking(move || replace(&folder, text.as_deref())).await
    }
}
