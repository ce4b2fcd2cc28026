//! How paths become devices: files and block devices, or what a test puts in their place.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use crate::device::{Access, DeviceError, DeviceRef, FileDevice, FileOptions, Operation, Overlay};

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

/// Where devices and manifests are found: as much of a file system as a volume needs. A file's
/// content is durable once it was synced, its name once its folder was; a rename is atomic.
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

    /// Makes a device of `size` bytes at `path`, where nothing is. It is durable with its name when
    /// this returns, and after a crash it is there as a whole or not at all.
    async fn create(&self, path: &Path, size: u64, sector: Option<u32>) -> Result<(), DeviceError>;

    /// Makes a folder, and those that it is in, durably; it may be there.
    async fn make_folder(&self, folder: &Path) -> io::Result<()>;

    /// The text in the file at `path`; `None` when there is none.
    async fn read_text(&self, path: &Path) -> io::Result<Option<String>>;

    /// Makes a file of `text` at `path`, over what is there.
    async fn write_text(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Makes the content of the file at `path` durable.
    async fn sync(&self, path: &Path) -> io::Result<()>;

    /// Gives a file another name, in place of what has it.
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; there may be none.
    async fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in `folder` durable.
    async fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// What another `Media` finds, for reading alone: devices are opened read-only, and what is written to
/// them stays in memory; files and folders cannot be changed.
#[derive(Debug)]
pub(super) struct ReadOnlyMedia(pub(super) Arc<dyn Media>);

impl ReadOnlyMedia {
    fn refused<T>() -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the volume is open read-only"))
    }
}

#[async_trait]
impl Media for ReadOnlyMedia {
    async fn find(&self, path: &Path) -> io::Result<Option<Found>> {
        self.0.find(path).await
    }

    async fn open(
        &self,
        path: &Path,
        _access: Access,
        sector: Option<u32>,
    ) -> Result<Opened, DeviceError> {
        let Opened { device, file } = self.0.open(path, Access::ReadOnly, sector).await?;
        Ok(Opened { device: Arc::new(Overlay::new(device)), file })
    }

    async fn create(
        &self,
        path: &Path,
        _size: u64,
        _sector: Option<u32>,
    ) -> Result<(), DeviceError> {
        let name = path.display().to_string();
        ReadOnlyMedia::refused().map_err(|error| DeviceError::io(&name, Operation::Create, error))
    }

    async fn make_folder(&self, _folder: &Path) -> io::Result<()> {
        ReadOnlyMedia::refused()
    }

    async fn read_text(&self, path: &Path) -> io::Result<Option<String>> {
        self.0.read_text(path).await
    }

    async fn write_text(&self, _path: &Path, _text: &str) -> io::Result<()> {
        ReadOnlyMedia::refused()
    }

    async fn sync(&self, _path: &Path) -> io::Result<()> {
        ReadOnlyMedia::refused()
    }

    async fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        ReadOnlyMedia::refused()
    }

    async fn remove(&self, _path: &Path) -> io::Result<()> {
        ReadOnlyMedia::refused()
    }

    async fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        ReadOnlyMedia::refused()
    }
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
    let Some(metadata) = if_there(std::fs::metadata(path))? else { return Ok(None) };
    let is_block_device = metadata.file_type().is_block_device();
    let identity = match is_block_device {
        // No file has the inode that stands here for "by device number".
        true => (metadata.rdev(), u64::MAX),
        false => (metadata.dev(), metadata.ino()),
    };
    Ok(Some(Found { identity, is_block_device }))
}

/// Makes `folder` and what it lacks above it, each durable in the one above.
fn make_folder(folder: &Path) -> io::Result<()> {
    let ancestors = folder.ancestors().filter(|folder| !folder.as_os_str().is_empty());
    let missing: Vec<&Path> = ancestors.take_while(|folder| !folder.is_dir()).collect();
    std::fs::create_dir_all(folder)?;
    for folder in missing {
        match folder.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent)?,
            Some(_) => sync_folder(Path::new("."))?,
            None => {}
        }
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}

/// Makes a new file in place of what has the name: a symbolic link that another user left in the
/// folder is removed, not followed.
fn write_text(path: &Path, text: &str) -> io::Result<()> {
    if_there(std::fs::remove_file(path))?;
    std::fs::File::create_new(path)?.write_all(text.as_bytes())
}

/// That nothing is there is no failure.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
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

    async fn make_folder(&self, folder: &Path) -> io::Result<()> {
        let folder = folder.to_owned();
        blocking(move || make_folder(&folder)).await
    }

    async fn read_text(&self, path: &Path) -> io::Result<Option<String>> {
        let path = path.to_owned();
        blocking(move || if_there(std::fs::read_to_string(path))).await
    }

    async fn write_text(&self, path: &Path, text: &str) -> io::Result<()> {
        let (path, text) = (path.to_owned(), text.to_owned());
        blocking(move || write_text(&path, &text)).await
    }

    async fn sync(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || std::fs::File::open(path)?.sync_all()).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        blocking(move || std::fs::rename(from, to)).await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || if_there(std::fs::remove_file(path)).map(drop)).await
    }

    async fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let folder = folder.to_owned();
        blocking(move || sync_folder(&folder)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_text_is_not_written_by_way_of_a_symbolic_link() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, path) = (folder.path().join("victim"), folder.path().join("text"));
        std::fs::write(&victim, "old").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        FileMedia.write_text(&path, "new").await.unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "old");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        FileMedia.write_text(&path, "newer").await.unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "newer");
    }
}
