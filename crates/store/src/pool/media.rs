//! Finds and opens devices by path: files and block devices, or a test's replacement for them.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use crate::device::{
    Access, DeviceError, DeviceKinds, DeviceRef, FileDevice, FileOptions, Operation, Overlay,
};

/// The result of a look-up of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Equal for two paths of the same device.
    pub identity: (u64, u64),
    /// Whether it is a block device.
    pub is_block_device: bool,
}

/// An open device, and the locks on its ranges.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The whole device.
    pub device: DeviceRef,
    /// Locks ranges; `None` if devices cannot be shared.
    file: Option<Arc<FileDevice>>,
}

impl Opened {
    /// A device without locks.
    pub fn unlocked(device: DeviceRef) -> Opened {
        Opened { device, file: None }
    }

    /// Locks a range against every other open of the device; see [`FileDevice::lock_range`].
    ///
    /// # Errors
    /// [`DeviceError::Locked`] when another open has locked a part of it.
    pub fn lock_range(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.file.as_ref().map_or(Ok(()), |file| file.lock_range(offset, len))
    }
}

/// The part of a file system that a volume needs, for its devices and manifests. A file's content is durable
/// after a sync of the file, its name after a sync of its folder; a rename is atomic.
#[async_trait]
pub trait Media: Send + Sync + fmt::Debug {
    /// The device or file at `path`; `None` when there is none.
    async fn find(&self, path: &Path) -> io::Result<Option<Found>>;

    /// Opens the device at `path`, with sectors of `sector` bytes if given, else with its own.
    async fn open(
        &self,
        path: &Path,
        access: Access,
        sector: Option<u32>,
    ) -> Result<Opened, DeviceError>;

    /// Makes a device of `size` bytes at `path`, which must be free. Device and name are durable when this
    /// returns; after a crash the device is complete or absent.
    async fn create(&self, path: &Path, size: u64, sector: Option<u32>) -> Result<(), DeviceError>;

    /// Makes a folder and its missing parents, durably; it may exist.
    async fn make_folder(&self, folder: &Path) -> io::Result<()>;

    /// The text in the file at `path`; `None` when it is absent.
    async fn read_text(&self, path: &Path) -> io::Result<Option<String>>;

    /// Makes a file of `text` at `path`, replacing any other.
    async fn write_text(&self, path: &Path, text: &str) -> io::Result<()>;

    /// Makes the content of the file at `path` durable.
    async fn sync(&self, path: &Path) -> io::Result<()>;

    /// Renames a file, replacing any other of that name.
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file; it may be absent.
    async fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in `folder` durable.
    async fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// The same `Media`; with `read_only`, without changes of its devices and files.
pub(super) fn for_access(media: Arc<dyn Media>, read_only: bool) -> Arc<dyn Media> {
    match read_only {
        true => Arc::new(ReadOnlyMedia(media)),
        false => media,
    }
}

/// Another `Media`, read-only: devices are opened read-only and writes to them stay in memory; files and
/// folders cannot be changed.
#[derive(Debug)]
struct ReadOnlyMedia(Arc<dyn Media>);

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

/// Files and block devices of this machine, and devices of other kinds by their names. Manifests are files.
#[derive(Clone, Debug, Default)]
pub struct NamedMedia(pub DeviceKinds);

#[async_trait]
impl Media for NamedMedia {
    async fn find(&self, path: &Path) -> io::Result<Option<Found>> {
        match self.0.find(path).map_err(io::Error::other)? {
            Some((kind, name)) => {
                let exists = kind.exists(name).await.map_err(io::Error::other)?;
                Ok(exists.then(|| Found { identity: named(path), is_block_device: false }))
            }
            None => FileMedia.find(path).await,
        }
    }

    async fn open(
        &self,
        path: &Path,
        access: Access,
        sector: Option<u32>,
    ) -> Result<Opened, DeviceError> {
        match self.0.find(path)? {
            Some((kind, name)) => Ok(Opened::unlocked(kind.open(name, access, sector).await?)),
            None => FileMedia.open(path, access, sector).await,
        }
    }

    async fn create(&self, path: &Path, size: u64, sector: Option<u32>) -> Result<(), DeviceError> {
        match self.0.find(path)? {
            Some((kind, name)) => kind.create(name, size, sector).await,
            None => FileMedia.create(path, size, sector).await,
        }
    }

    async fn make_folder(&self, folder: &Path) -> io::Result<()> {
        FileMedia.make_folder(folder).await
    }

    async fn read_text(&self, path: &Path) -> io::Result<Option<String>> {
        FileMedia.read_text(path).await
    }

    async fn write_text(&self, path: &Path, text: &str) -> io::Result<()> {
        FileMedia.write_text(path, text).await
    }

    async fn sync(&self, path: &Path) -> io::Result<()> {
        FileMedia.sync(path).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileMedia.rename(from, to).await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        match self.0.find(path).map_err(io::Error::other)? {
            Some((kind, name)) => kind.remove(name).await.map_err(io::Error::other),
            None => FileMedia.remove(path).await,
        }
    }

    async fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        FileMedia.sync_folder(folder).await
    }
}

/// The identity of a device by its name.
fn named(name: &Path) -> (u64, u64) {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    // No file has this inode number; that of a block device is another one.
    (hasher.finish(), u64::MAX - 1)
}

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
        // No file has this inode number, which here means "by device number".
        true => (metadata.rdev(), u64::MAX),
        false => (metadata.dev(), metadata.ino()),
    };
    Ok(Some(Found { identity, is_block_device }))
}

/// Makes `folder` and its missing parents, each durable in its own parent.
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

/// Replaces `path` by a new file. A symbolic link of that name, perhaps another user's, is removed, not
/// followed.
fn write_text(path: &Path, text: &str) -> io::Result<()> {
    if_there(std::fs::remove_file(path))?;
    std::fs::File::create_new(path)?.write_all(text.as_bytes())
}

/// Treats "not found" as success.
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
