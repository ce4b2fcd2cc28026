//! Open files.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use thalweg_env::Env;
use thalweg_fs::filesystem::MAX_FILE;
use thalweg_fs::payload::copy_by_blocks;
use thalweg_fs::{
    Allocation, Attributes, FsError, Handle, Ino, Kind, LockKind, LockOwner, LockRange, SetXattr,
    WriteAt, WriteHow,
};

use super::Filesystem;
use super::access::UserView;
use super::attributes::{Times, check_attribute};
use super::error::{FileError, invalid};
use super::opening::{How, OpenInode};

/// Most bytes of one read or write, as of the system's calls.
const MAX_TRANSFER: usize = 0x7fff_f000;

/// A place in a file, for [`File::seek`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTo {
    /// This byte.
    Start(u64),
    /// So many bytes from the position on.
    Current(i64),
    /// So many bytes from the end on.
    End(i64),
    /// The first byte at or after this one that has storage.
    Data(u64),
    /// The first byte at or after this one that has none.
    Hole(u64),
}

/// An open file or directory. It may be used by several threads; they share its position. Dropping it closes it.
pub struct File {
    filesystem: Filesystem,
    how: How,
    inode: OpenInode,
    /// Where the next read or write begins. Held during these, so that they follow one another.
    position: Mutex<u64>,
    /// The owner of its locks.
    pub(super) owner: LockOwner,
    /// Whether capabilities of the file were looked for.
    is_plain: AtomicBool,
    is_open: AtomicBool,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("ino", &self.inode.it.ino).finish_non_exhaustive()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Errors of earlier writes are told by `close`.
        let _ = self.close();
    }
}

impl File {
    pub(super) fn new(
        filesystem: Filesystem,
        how: How,
        inode: OpenInode,
    ) -> Result<File, FileError> {
        let owner = filesystem.lock_owner()?;
        let (is_plain, is_open) = (AtomicBool::new(false), AtomicBool::new(true));
        let position = Mutex::new(0);
        Ok(File { filesystem, how, inode, position, owner, is_plain, is_open })
    }

    pub(super) fn ino(&self) -> Ino {
        self.inode.it.ino
    }

    pub(super) fn handle(&self) -> Handle {
        self.inode.handle
    }

    /// How it was opened.
    pub fn how(&self) -> How {
        self.how
    }

    /// Runs a call on the file.
    pub(super) fn run<T>(
        &self,
        work: impl AsyncFnOnce(UserView<'_>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        match self.is_open.load(Ordering::Acquire) {
            true => self.filesystem.run(work),
            false => Err(FileError::NotOpen),
        }
    }

    /// Closes the file, which ends its locks. No thread may be in a call on it.
    ///
    /// # Errors
    /// Those of earlier writes, where the filesystem delays writes. The file is closed all the same.
    pub fn close(&self) -> Result<(), FileError> {
        if !self.is_open.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let closed = self.filesystem.run(async |view| {
            let flushed = match self.inode.flush {
                true => view.files.flush(self.ino(), self.handle(), self.owner).await,
                false => Ok(()),
            };
            view.close(&self.inode).await;
            Ok(flushed?)
        });
        match closed {
            // With the filesystem all its files were closed; a child's copy is none of the open files.
            Err(FileError::Closed | FileError::Forked(_)) => Ok(()),
            closed => closed,
        }
    }

    /// As [`Filesystem::check_process`].
    pub(super) fn check_process(&self) -> Result<(), FileError> {
        Ok(self.filesystem.check_process()?)
    }

    fn check_readable(&self) -> Result<(), FileError> {
        match (self.how.read, self.inode.it.kind) {
            (false, _) => Err(FileError::NotOpen),
            (true, Kind::Directory) => Err(FsError::IsDirectory.into()),
            (true, _) => Ok(()),
        }
    }

    fn check_written(&self) -> Result<(), FileError> {
        if self.how.write { Ok(()) } else { Err(FileError::NotOpen) }
    }

    /// Where the next read or write begins. In a child another thread of the parent may hold the lock for ever.
    fn position(&self) -> Result<MutexGuard<'_, u64>, FileError> {
        self.filesystem.check_process()?;
        Ok(self.position.lock())
    }

    /// Reads at most `len` bytes from `offset` on: less only at the end of the file. Buffers follow one another.
    ///
    /// # Errors
    /// [`FileError::NotOpen`] to be read, [`FsError::IsDirectory`].
    pub fn read_at(&self, len: usize, offset: u64) -> Result<Vec<Bytes>, FileError> {
        self.check_readable()?;
        self.run(async |view| {
            Ok(view.files.read(self.ino(), offset, len.min(MAX_TRANSFER)).await?)
        })
    }

    /// As [`File::read_at`], from the position on, which moves.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read(&self, len: usize) -> Result<Vec<Bytes>, FileError> {
        let mut position = self.position()?;
        let read = self.read_at(len, *position)?;
        *position += read.iter().map(Bytes::len).sum::<usize>() as u64;
        Ok(read)
    }

    fn write_to(&self, at: WriteAt, data: &[u8]) -> Result<(u64, usize), FileError> {
        self.check_written()?;
        let data = &data[..data.len().min(MAX_TRANSFER)];
        let offset = match at {
            WriteAt::Offset(offset) if offset > MAX_FILE => {
                return Err(FsError::FileTooLarge.into());
            }
            WriteAt::Offset(offset) => offset,
            WriteAt::End => 0,
        };
        self.run(async |view| {
            if data.is_empty() {
                return Ok((offset, 0));
            }
            self.clear_capabilities(view).await?;
            let how = WriteHow { sync: self.how.sync, clear_suid: !view.user.is_root() };
            let data_of = copy_by_blocks(offset, data);
            Ok((view.files.write(self.ino(), at, data_of, how).await?, data.len()))
        })
    }

    async fn clear_capabilities(&self, view: UserView<'_>) -> Result<(), FileError> {
        if !self.is_plain.load(Ordering::Relaxed) {
            view.clear_capabilities(self.ino()).await?;
            self.is_plain.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes `data` from `offset` on, or to the end where the file was opened to be appended to; how much of it, which
    /// is all of it below 2 GiB.
    ///
    /// # Errors
    /// [`FileError::NotOpen`] to be written, [`FsError::FileTooLarge`], [`FsError::NoSpace`],
    /// [`FsError::QuotaExceeded`].
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, FileError> {
        let at = if self.how.append { WriteAt::End } else { WriteAt::Offset(offset) };
        Ok(self.write_to(at, data)?.1)
    }

    /// As [`File::write_at`], at the position, which moves behind the written bytes.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write(&self, data: &[u8]) -> Result<usize, FileError> {
        let mut position = self.position()?;
        let at = if self.how.append { WriteAt::End } else { WriteAt::Offset(*position) };
        let (went, len) = self.write_to(at, data)?;
        if len > 0 {
            *position = went + len as u64;
        }
        Ok(len)
    }

    /// Writes `data` to the end of the file, wherever that is when the write takes effect; where it went. The position
    /// does not move.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn append(&self, data: &[u8]) -> Result<u64, FileError> {
        Ok(self.write_to(WriteAt::End, &data[..data.len().min(MAX_TRANSFER)])?.0)
    }

    /// Moves the position, and returns it.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for a place before the start, [`FsError::NothingThere`] where no data or no hole follows.
    pub fn seek(&self, to: SeekTo) -> Result<u64, FileError> {
        let mut position = self.position()?;
        let moved = |from: u64, by: i64| {
            let to = from.checked_add_signed(by).filter(|to| i64::try_from(*to).is_ok());
            to.ok_or_else(|| invalid("the position would be before the start, or too large"))
        };
        let find = |offset, what| {
            self.run(async |view| Ok(view.files.seek(self.ino(), offset, what).await?))
        };
        *position = match to {
            SeekTo::Start(offset) => moved(offset, 0)?,
            SeekTo::Current(by) => moved(*position, by)?,
            SeekTo::End(by) => moved(self.attributes()?.size, by)?,
            SeekTo::Data(offset) => find(offset, thalweg_fs::Seek::Data)?,
            SeekTo::Hole(offset) => find(offset, thalweg_fs::Seek::Hole)?,
        };
        Ok(*position)
    }

    /// The attributes.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn attributes(&self) -> Result<Attributes, FileError> {
        self.run(async |view| Ok(view.files.attributes(self.ino()).await?.attributes))
    }

    /// Runs a call on the file's current attributes.
    fn run_on<T>(
        &self,
        work: impl AsyncFnOnce(UserView<'_>, &Attributes) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        self.run(async |view| {
            let it = view.files.attributes(self.ino()).await?.attributes;
            work(view, &it).await
        })
    }

    /// As [`Filesystem::change_mode`].
    ///
    /// # Errors
    /// As there.
    pub fn change_mode(&self, mode: u16) -> Result<(), FileError> {
        self.run_on(async |view, it| view.change_mode(it, mode).await)
    }

    /// As [`Filesystem::change_owner`].
    ///
    /// # Errors
    /// As there.
    pub fn change_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<(), FileError> {
        self.run_on(async |view, it| view.change_owner(it, uid, gid).await)
    }

    /// As [`Filesystem::change_times`].
    ///
    /// # Errors
    /// As there.
    pub fn change_times(&self, times: Times) -> Result<(), FileError> {
        self.run_on(async |view, it| view.change_times(it, times).await)
    }

    /// Sets the size: the rest is cut off, or zeros follow.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for a file that is not open to be written.
    pub fn truncate(&self, size: u64) -> Result<(), FileError> {
        if !self.how.write {
            return Err(invalid("the file is not open to be written"));
        }
        self.run(async |view| view.set_size(self.ino(), size).await)
    }

    /// Reserves, frees or zeroes storage.
    ///
    /// # Errors
    /// [`FileError::NotOpen`] to be written, [`FsError::Invalid`] for no bytes, [`FsError::FileTooLarge`].
    pub fn allocate(&self, offset: u64, len: u64, how: Allocation) -> Result<(), FileError> {
        self.check_written()?;
        self.run(async |view| {
            self.clear_capabilities(view).await?;
            view.files.allocate(self.ino(), offset, len, how).await?;
            view.clear_suid(self.ino()).await
        })
    }

    /// Returns when all changes of the file survive a crash, or of a directory, of its names; with `content_only`, its
    /// bytes and the metadata needed to read them.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn sync(&self, content_only: bool) -> Result<(), FileError> {
        self.run(async |view| Ok(view.files.sync(self.ino(), content_only).await?))
    }

    /// As [`Filesystem::xattr`].
    ///
    /// # Errors
    /// As there.
    pub fn xattr(&self, name: &[u8]) -> Result<Bytes, FileError> {
        check_attribute(name, b"")?;
        self.run_on(async |view, it| view.xattr(it, name).await)
    }

    /// As [`Filesystem::set_xattr`].
    ///
    /// # Errors
    /// As there.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), FileError> {
        check_attribute(name, value)?;
        self.run_on(async |view, it| view.set_xattr(it, name, value, how).await)
    }

    /// As [`Filesystem::remove_xattr`].
    ///
    /// # Errors
    /// As there.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<(), FileError> {
        check_attribute(name, b"")?;
        self.run_on(async |view, it| view.remove_xattr(it, name).await)
    }

    /// As [`Filesystem::xattrs`].
    ///
    /// # Errors
    /// As there.
    pub fn xattrs(&self) -> Result<Vec<Bytes>, FileError> {
        self.run_on(async |view, it| view.xattrs(it).await)
    }

    pub(super) fn env(&self) -> Result<Env, FileError> {
        Ok(self.filesystem.opened()?.env.clone())
    }

    pub(super) fn unlock_range(&self, kind: LockKind, range: LockRange) -> Result<(), FileError> {
        self.run(async |view| Ok(view.files.unlock(self.ino(), kind, self.owner, range).await?))
    }
}
