//! Contents of files that are kept outside of the filesystem with their names.
//!
//! The filesystem has names, sizes and times, and makes them durable in its own time. The bytes lie in a store of
//! objects, for example, which acknowledges what is durable.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::attributes::{Ino, Timestamp};
use crate::error::FsError;

/// What is stored of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// Its objects.
    pub objects: u64,
    /// The first byte that the last of them may hold.
    pub last: u64,
    /// The byte behind those.
    pub end: u64,
}

/// How a file ends: it is stored with the last bytes, so that they need no other record at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeRecord {
    /// The byte behind the last one.
    pub end: u64,
    /// Last change of the content.
    pub modified: Timestamp,
}

/// How full the store is, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Of everything.
    pub size: u64,
    /// Of what is free.
    pub free: u64,
}

/// The contents of the files of one filesystem, by inode number.
///
/// A byte that was never written reads as zero. A change is durable when its call returns. A call that fails, or whose
/// future is dropped, may have changed any part of its range. Of calls on the same bytes at the same time, the caller
/// keeps all but reads apart.
#[async_trait]
pub trait Contents: Send + Sync + fmt::Debug + 'static {
    /// Where they are, for messages.
    fn name(&self) -> String;

    /// Bytes of a file from a multiple of it on, as many as it says, are changed together by one call of [`Contents::write_all`].
    fn unit(&self) -> u64;

    /// `len` bytes from `offset` on.
    ///
    /// # Errors
    /// Those of the store.
    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Bytes, FsError>;

    /// Writes buffer after buffer from `offset` on.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], and those of the store.
    async fn write(&self, ino: Ino, offset: u64, data: &[Bytes]) -> Result<(), FsError>;

    /// Makes writes in their order, each an offset and buffers: those to one object together, and objects at the same time. Objects
    /// that begin at `absent_from` or behind are absent, as far as the caller knows.
    ///
    /// # Errors
    /// As for [`Contents::write`].
    async fn write_all(
        &self,
        ino: Ino,
        writes: &[(u64, Vec<Bytes>)],
        absent_from: u64,
    ) -> Result<(), FsError>;

    /// Makes writes in their order, each an offset and buffers, and has the file end with `size_record`, behind which none of them goes.
    /// The last bytes and the size record are stored together, after everything else.
    ///
    /// # Errors
    /// [`FsError::NotSupported`]; as for [`Contents::write`].
    async fn write_with_size_record(
        &self,
        _ino: Ino,
        _writes: &[(u64, Vec<Bytes>)],
        _size_record: SizeRecord,
    ) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    /// The furthest size record that was stored with bytes of the range, and that no [`Contents::truncate`] has removed since. All of a file
    /// from the start of the range up to that size record has been written.
    ///
    /// # Errors
    /// Those of the store.
    async fn size_record(
        &self,
        _ino: Ino,
        _range: Range<u64>,
    ) -> Result<Option<SizeRecord>, FsError> {
        Ok(None)
    }

    /// Has a range read as zeros. The bytes around it stay.
    ///
    /// # Errors
    /// Those of the store.
    async fn zero(&self, ino: Ino, range: Range<u64>) -> Result<(), FsError>;

    /// Removes all bytes from `size` to `end`, behind which there are none, with the size records there.
    ///
    /// # Errors
    /// Those of the store.
    async fn truncate(&self, ino: Ino, end: u64, size: u64) -> Result<(), FsError>;

    /// Removes all bytes of a file, of which none lie behind `end`. Removing them again is harmless.
    ///
    /// # Errors
    /// Those of the store.
    async fn remove(&self, ino: Ino, end: u64) -> Result<(), FsError> {
        self.truncate(ino, end, 0).await
    }

    /// What is stored of each file. This may take long.
    ///
    /// # Errors
    /// Those of the store.
    async fn list(&self) -> Result<BTreeMap<Ino, Stored>, FsError>;

    /// Returns when no change is under way, also none whose future was dropped.
    ///
    /// # Errors
    /// Those of the store.
    async fn settle(&self) -> Result<(), FsError>;

    /// How full the store is; `None` if it does not say.
    ///
    /// # Errors
    /// Those of the store.
    async fn space(&self) -> Result<Option<Space>, FsError>;

    /// Where programs on other machines find them ([`ContentsFinder`]); `None` if they cannot.
    fn location(&self) -> Option<Bytes> {
        None
    }

    /// The address of this program at the store.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] if it has none; those of the store.
    async fn address(&self) -> Result<String, FsError> {
        Err(FsError::NotSupported)
    }

    /// Has the store refuse the program with this address from now on; also what it has sent before, and was not carried
    /// out when this returns.
    ///
    /// # Errors
    /// Those of the store.
    async fn shut_out(&self, _address: &str) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }
}

/// Finds contents whose filesystem is open on another machine.
#[async_trait]
pub trait ContentsFinder: Send + Sync + fmt::Debug {
    /// The contents at this [location](Contents::location). If `is_fresh`, their [address](Contents::address) is one that this
    /// program did not have before.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for a location that is not one; those of the store.
    async fn find(&self, location: &[u8], is_fresh: bool) -> Result<Arc<dyn Contents>, FsError>;
}

/// Finds contents beside a device that has a name, such as `rados:POOL/IMAGE`.
#[async_trait]
pub trait ContentsKind: Send + Sync + fmt::Debug {
    /// The contents of the filesystem `filesystem` of the volume on `device`, which this program has open; `None` when
    /// no contents can be beside it.
    ///
    /// # Errors
    /// Those of the store.
    async fn beside(
        &self,
        device: &Path,
        filesystem: &str,
    ) -> Result<Option<Arc<dyn Contents>>, FsError>;
}

/// Removes the contents of all files.
///
/// # Errors
/// Those of the store.
pub async fn empty(contents: &dyn Contents) -> Result<(), FsError> {
    for (ino, stored) in contents.list().await? {
        contents.remove(ino, stored.end).await?;
    }
    contents.settle().await
}
