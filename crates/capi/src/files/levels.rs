//! How far files have come, for C.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use thalweg_fs::Level;

use super::open_files::{opened, tw_file};
use super::{bytes_of, filesystem, tw_fs};
use crate::failure::{Failure, call};

/// Some changes of the file may be lost in a crash.
pub const TW_LEVEL_MEMORY: c_int = 0;
/// All changes of the file are in the journal of a mount, on this machine's own drive, or at the server. Only mounts of a shared
/// filesystem with a journal have this level; elsewhere to wait for it is to wait for TW_LEVEL_SERVER.
pub const TW_LEVEL_JOURNAL: c_int = 1;
/// All changes of the file are on the drives of the filesystem: of its server, or of this machine.
pub const TW_LEVEL_SERVER: c_int = 2;
/// All changes of the file are on the drives of the volume's replicas, too.
pub const TW_LEVEL_REPLICAS: c_int = 3;

fn level_of(level: c_int) -> Result<Level, Failure> {
    let level = u32::try_from(level).ok().and_then(Level::of_number);
    level.ok_or_else(|| Failure::invalid("there is no such level"))
}

fn number(level: Level) -> c_int {
    match level {
        Level::Memory => TW_LEVEL_MEMORY,
        Level::Journal => TW_LEVEL_JOURNAL,
        Level::Server => TW_LEVEL_SERVER,
        Level::Replicas => TW_LEVEL_REPLICAS,
    }
}

fn time(milliseconds: i64) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// How far all changes of a file have come: a TW_LEVEL. Nothing is synced for it. Fails with -EIO when changes were lost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_level(file: *const tw_file) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let level = unsafe { opened(file) }?.level()?;
        Ok(number(level))
    })
}

/// Brings all changes of a file to a level, and waits until they have come to it: 1, or 0 when the replicas do not have them
/// within `milliseconds`. With a negative number it waits for any time. The way to TW_LEVEL_SERVER takes as long as
/// tw_file_fsync(). Fails with -ENODATA when no replica of the volume is connected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_wait_for(
    file: *const tw_file,
    level: c_int,
    milliseconds: i64,
) -> c_int {
    call(|| {
        let level = level_of(level)?;
        // SAFETY: as the caller says.
        let has_come = unsafe { opened(file) }?.wait_for(level, time(milliseconds))?;
        Ok(c_int::from(has_come))
    })
}

/// As tw_file_level(), of what a path leads to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_level(fs: *const tw_fs, path: *const c_char) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let level = unsafe { filesystem(fs)?.level(bytes_of(path)?, true)? };
        Ok(number(level))
    })
}

/// As tw_file_wait_for(), of what a path leads to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_wait_for(
    fs: *const tw_fs,
    path: *const c_char,
    level: c_int,
    milliseconds: i64,
) -> c_int {
    call(|| {
        let level = level_of(level)?;
        // SAFETY: as the caller says.
        let (fs, path) = unsafe { (filesystem(fs)?, bytes_of(path)?) };
        Ok(c_int::from(fs.wait_for(path, true, level, time(milliseconds))?))
    })
}
