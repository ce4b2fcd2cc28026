//! Locks of open files.
//!
//! A call waits for a lock that another owner has: for `wait`, which may be no time at all, or with `None` for any time.

use std::time::Duration;

use thalweg_fs::{FsError, Lock, LockKind, LockMode, LockRange};

use super::error::FileError;
use super::file::File;

impl File {
    fn wanted(&self, kind: LockKind, mode: LockMode, range: LockRange) -> Lock {
        let pid = std::process::id();
        Lock { kind, owner: self.owner, handle: self.handle(), pid, mode, range }
    }

    /// Takes a lock of the whole file, or with `None` releases it, as flock(2): the open file owns it. It does not
    /// exclude those of [`File::lock_range`].
    ///
    /// # Errors
    /// [`FsError::Locked`] when the time is over; [`FsError::TooManyLocks`].
    pub fn lock(&self, mode: Option<LockMode>, wait: Option<Duration>) -> Result<(), FileError> {
        self.set_lock(LockKind::Bsd, mode, LockRange::ALL, wait)
    }

    /// Takes a lock of a range of bytes, or with `None` releases it, as `F_OFD_SETLK` of fcntl(2): the open file owns it,
    /// not the process. It excludes locks of processes on mounts of the filesystem, too.
    ///
    /// # Errors
    /// [`FsError::Locked`] when the time is over; [`FsError::Deadlock`], [`FsError::TooManyLocks`]; [`FileError::NotOpen`] to be
    /// read for a shared lock, or to be written for an exclusive one.
    pub fn lock_range(
        &self,
        mode: Option<LockMode>,
        range: LockRange,
        wait: Option<Duration>,
    ) -> Result<(), FileError> {
        let may = match mode {
            Some(LockMode::Shared) => self.how().read,
            Some(LockMode::Exclusive) => self.how().write,
            None => true,
        };
        match may {
            true => self.set_lock(LockKind::Posix, mode, range, wait),
            false => Err(FileError::NotOpen),
        }
    }

    fn set_lock(
        &self,
        kind: LockKind,
        mode: Option<LockMode>,
        range: LockRange,
        wait: Option<Duration>,
    ) -> Result<(), FileError> {
        if range.first > range.last {
            return Err(FsError::Invalid("the range of the lock has no bytes").into());
        }
        let Some(mode) = mode else { return self.unlock_range(kind, range) };
        let lock = self.wanted(kind, mode, range);
        let env = self.env()?;
        self.run(async |view| {
            let locked = view.files.lock(self.ino(), &lock, wait != Some(Duration::ZERO));
            match wait {
                None | Some(Duration::ZERO) => Ok(locked.await?),
                Some(time) => {
                    Ok(env.timeout(time, locked).await.unwrap_or(Err(FsError::Locked))?)
                }
            }
        })
    }

    /// A lock of another owner that excludes the wanted one, if there is one.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub fn conflicting_lock(
        &self,
        mode: LockMode,
        range: LockRange,
    ) -> Result<Option<Lock>, FileError> {
        let lock = self.wanted(LockKind::Posix, mode, range);
        self.run(async |view| Ok(view.files.conflicting_lock(self.ino(), &lock).await?))
    }
}
