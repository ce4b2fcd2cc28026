//! Locks of files for C.

use std::ffi::c_int;
use std::time::Duration;

use thalweg_fs::{LockMode, LockRange};

use super::attributes::size;
use super::open_files::{opened, tw_file};
use super::room;
use crate::failure::{Failure, call};

/// A lock of a range of bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_lock {
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub kind: c_int,
    /// The process that has it, as far as that is known.
    pub pid: u32,
    /// The first byte.
    pub start: i64,
    /// How many bytes; 0 for all up to the end, wherever that is.
    pub len: i64,
}

/// Takes or releases a lock of the whole file: flock(2), with LOCK_SH, LOCK_EX or LOCK_UN, and LOCK_NB. The open file owns
/// it. On a shared filesystem it is a lock of all bytes, and excludes those of tw_file_lock(), as on a mount.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_flock(file: *const tw_file, operation: c_int) -> c_int {
    call(|| {
        let mode = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Some(LockMode::Shared),
            libc::LOCK_EX => Some(LockMode::Exclusive),
            libc::LOCK_UN => None,
            _ => return Err(Failure::invalid("there is no such operation")),
        };
        // SAFETY: as the caller says.
        unsafe { opened(file) }?.lock(mode, waits(operation & libc::LOCK_NB == 0))?;
        Ok(0)
    })
}

/// How long a call waits for a lock.
fn waits(wait: bool) -> Option<Duration> {
    if wait { None } else { Some(Duration::ZERO) }
}

fn mode(lock: &tw_lock) -> Result<Option<LockMode>, Failure> {
    match lock.kind {
        libc::F_RDLCK => Ok(Some(LockMode::Shared)),
        libc::F_WRLCK => Ok(Some(LockMode::Exclusive)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Failure::invalid("there is no such type of lock")),
    }
}

fn range(lock: &tw_lock) -> Result<LockRange, Failure> {
    let (first, len) = (size(lock.start)?, size(lock.len)?);
    // Below 2^64: both are below 2^63.
    Ok(LockRange { first, last: if len == 0 { u64::MAX } else { first + len - 1 } })
}

/// Takes or releases a lock of a range of bytes, and waits for it if `wait` is not 0: fcntl(2) with F_OFD_SETLK or
/// F_OFD_SETLKW. The open file owns it, not the process; it excludes locks of other open files, of other programs and on
/// mounts. Fails with -EAGAIN when another owner has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_lock(
    file: *const tw_file,
    lock: *const tw_lock,
    wait: c_int,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (file, lock) = unsafe { (opened(file)?, *room(lock.cast_mut())?) };
        file.lock_range(mode(&lock)?, range(&lock)?, waits(wait != 0))?;
        Ok(0)
    })
}

/// Whether a lock could be taken: `lock` becomes one of another owner that excludes it, or its type F_UNLCK: fcntl(2) with
/// F_OFD_GETLK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_test_lock(file: *const tw_file, lock: *mut tw_lock) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (file, lock) = unsafe { (opened(file)?, room(lock)?) };
        let wanted = mode(lock)?.ok_or_else(|| Failure::invalid("an unlock excludes nothing"))?;
        let Some(found) = file.conflicting_lock(wanted, range(lock)?)? else {
            lock.kind = libc::F_UNLCK;
            return Ok(0);
        };
        let LockRange { first, last } = found.range;
        let len = if last == u64::MAX { 0 } else { last - first + 1 };
        let number = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
        *lock = tw_lock {
            kind: match found.mode {
                LockMode::Shared => libc::F_RDLCK,
                LockMode::Exclusive => libc::F_WRLCK,
            },
            pid: found.pid,
            start: number(first),
            len: number(len),
        };
        Ok(0)
    })
}
