//! A file with the locks that exclude other openers.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;

use nix::fcntl::{FcntlArg, fcntl};
use thalweg_env::process::ClosedInChildren;

use super::Access;
use crate::device::{DeviceError, Operation};

/// A file that is locked as a whole, and maybe in ranges, until this is dropped.
///
/// Dropping it releases the locks explicitly, since closing the file may not: a child that another thread has
/// forked has the same open file until it executes its program, and with it the locks. A child of a program that uses the
/// library executes no other one; it closes the file, so that the locks end with its parent.
#[derive(Debug)]
pub(super) struct Locked {
    /// Dropped before the file is closed.
    _closed: ClosedInChildren,
    file: File,
    access: Access,
}

impl Locked {
    /// Locks the whole file; compatible openers share the lock.
    pub(super) fn new(file: File, name: &str, access: Access) -> Result<Locked, DeviceError> {
        let locked = match access {
            Access::Exclusive => flock(&file, libc::LOCK_EX | libc::LOCK_NB),
            Access::Shared | Access::ReadOnly => flock(&file, libc::LOCK_SH | libc::LOCK_NB),
            Access::Reading => Ok(()),
        };
        locked.map_err(|error| locked_or_failed(name, error))?;
        Ok(Locked { _closed: ClosedInChildren::new(&file), file, access })
    }

    /// Locks a range against every other opener that locks ranges; a read-only opener excludes only writers.
    pub(super) fn lock_range(&self, name: &str, offset: u64, len: u64) -> Result<(), DeviceError> {
        let kind = if self.access.only_reads() { libc::F_RDLCK } else { libc::F_WRLCK };
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range(kind, offset, len))) {
            Ok(_) => Ok(()),
            Err(nix::Error::EAGAIN | nix::Error::EACCES) => {
                Err(DeviceError::Locked { device: name.to_owned(), holder: None })
            }
            Err(error) => Err(DeviceError::io(name, Operation::Lock, error.into())),
        }
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A length of zero means the whole file. If this fails, closing releases the locks.
        let _ = fcntl(&self.file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, 0, 0)));
        let _ = flock(&self.file, libc::LOCK_UN);
    }
}

/// The error of a lock: the file is locked by another opener, or a system error.
pub(super) fn locked_or_failed(name: &str, error: io::Error) -> DeviceError {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EWOULDBLOCK) => {
            DeviceError::Locked { device: name.to_owned(), holder: None }
        }
        _ => DeviceError::io(name, Operation::Open, error),
    }
}

fn flock(file: &File, operation: libc::c_int) -> io::Result<()> {
    // SAFETY: the call accesses no memory.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn range(kind: libc::c_int, offset: u64, len: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset as libc::off_t,
        l_len: len as libc::off_t,
        l_pid: 0,
    }
}
