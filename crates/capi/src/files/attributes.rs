//! Attributes for C.

use std::ffi::{c_char, c_int};

use thalweg_client::Times;
use thalweg_fs::{Attributes, Kind, Statistics, TimeChange, Timestamp};

use super::{bits, bytes_of, filesystem, follows, room, tw_fs};
use crate::failure::{Failure, call};

/// In `nanos` of tw_fs_utimens(): the time of the call. The number of UTIME_NOW.
pub const TW_NOW: u32 = (1 << 30) - 1;
/// In `nanos` of tw_fs_utimens(): the time stays. The number of UTIME_OMIT.
pub const TW_OMIT: u32 = (1 << 30) - 2;

/// A point in time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_time {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds after them.
    pub nanos: u32,
}

/// The attributes of an inode, as stat(2) shows them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_stat {
    /// The number of the inode: never given to another one.
    pub ino: u64,
    /// Type (S_IFMT) and permission bits.
    pub mode: u32,
    /// Names that it has.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Of a device: its number.
    pub rdev: u32,
    /// The best size of reads and writes, in bytes.
    pub block_size: u32,
    /// Bytes.
    pub size: u64,
    /// Storage in units of 512 bytes.
    pub blocks: u64,
    /// The last read, as far as that is noted.
    pub accessed: tw_time,
    /// The last change of the content.
    pub modified: tw_time,
    /// The last change of content or attributes.
    pub changed: tw_time,
    /// When it was made.
    pub created: tw_time,
}

/// How full a filesystem is, as statvfs(3) shows it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_statfs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_max: u32,
    /// Blocks for files and metadata.
    pub blocks: u64,
    /// Free blocks of these.
    pub blocks_free: u64,
    /// The maximum of inodes.
    pub files: u64,
    /// Inodes that can still be made.
    pub files_free: u64,
    /// Not 0: changes are refused.
    pub read_only: c_int,
}

fn time(it: Timestamp) -> tw_time {
    tw_time { seconds: it.seconds, nanos: it.nanos }
}

/// The type bits of a mode.
pub(super) fn type_of(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::BlockDevice => libc::S_IFBLK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
    }
}

impl From<Attributes> for tw_stat {
    fn from(it: Attributes) -> tw_stat {
        tw_stat {
            ino: it.ino.0,
            mode: type_of(it.kind) | u32::from(it.mode),
            links: it.links,
            uid: it.uid,
            gid: it.gid,
            rdev: it.rdev,
            block_size: 4096,
            size: it.size,
            blocks: it.stored.div_ceil(512),
            accessed: time(it.accessed),
            modified: time(it.modified),
            changed: time(it.changed),
            created: time(it.created),
        }
    }
}

/// The attributes of what a path leads to: stat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_stat(
    fs: *const tw_fs,
    path: *const c_char,
    stat: *mut tw_stat,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { *room(stat)? = filesystem(fs)?.attributes(bytes_of(path)?, true)?.into() };
        Ok(0)
    })
}

/// As tw_fs_stat(), but a symbolic link at the end of the path is not followed: lstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_lstat(
    fs: *const tw_fs,
    path: *const c_char,
    stat: *mut tw_stat,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { *room(stat)? = filesystem(fs)?.attributes(bytes_of(path)?, false)?.into() };
        Ok(0)
    })
}

/// Whether the user may do all of `mode`, of R_OK, W_OK and X_OK, or for F_OK whether it is there; with TW_NOFOLLOW or 0:
/// faccessat(2). 0, or -EACCES or another errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_access(
    fs: *const tw_fs,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    call(|| {
        let follow = follows(flags, 0)?;
        let mode = u16::try_from(mode).map_err(|_| Failure::invalid("there is no such access"))?;
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.access(bytes_of(path)?, follow, mode)? };
        Ok(0)
    })
}

/// Sets the permission bits: chmod(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_chmod(fs: *const tw_fs, path: *const c_char, mode: u32) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.change_mode(bytes_of(path)?, true, bits(mode))? };
        Ok(0)
    })
}

/// An id to set; `None` for -1.
pub(super) fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// Sets owner and group, each unless it is (uint32_t)-1; with TW_NOFOLLOW or 0: fchownat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_chown(
    fs: *const tw_fs,
    path: *const c_char,
    uid: u32,
    gid: u32,
    flags: c_int,
) -> c_int {
    call(|| {
        let follow = follows(flags, 0)?;
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.change_owner(bytes_of(path)?, follow, id(uid), id(gid))? };
        Ok(0)
    })
}

/// The times at `times`: of the last read, and of the last change.
///
/// # Safety
/// `times` is null or has two times.
pub(super) unsafe fn times(times: *const tw_time) -> Result<Times, Failure> {
    if times.is_null() {
        return Ok(Times::NOW);
    }
    // SAFETY: as the caller says.
    let [accessed, modified] = unsafe { *times.cast::<[tw_time; 2]>() };
    let change = |it: tw_time| match it.nanos {
        TW_NOW => Ok(Some(TimeChange::Now)),
        TW_OMIT => Ok(None),
        nanos @ 0..1_000_000_000 => {
            Ok(Some(TimeChange::At(Timestamp { seconds: it.seconds, nanos })))
        }
        _ => Err(Failure::invalid("a time has a second of nanoseconds, or more")),
    };
    Ok(Times { accessed: change(accessed)?, modified: change(modified)? })
}

/// Sets the times of the last read, times[0], and of the last change, times[1]; null for now. `nanos` may be TW_NOW or
/// TW_OMIT. With TW_NOFOLLOW or 0: utimensat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_utimens(
    fs: *const tw_fs,
    path: *const c_char,
    times: *const tw_time,
    flags: c_int,
) -> c_int {
    call(|| {
        let follow = follows(flags, 0)?;
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.change_times(bytes_of(path)?, follow, self::times(times)?)? };
        Ok(0)
    })
}

/// A size that a caller gives.
pub(super) fn size(size: i64) -> Result<u64, Failure> {
    u64::try_from(size).map_err(|_| Failure::invalid("a size or an offset is negative"))
}

/// Sets the size of a file: truncate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_truncate(fs: *const tw_fs, path: *const c_char, size: i64) -> c_int {
    call(|| {
        let size = self::size(size)?;
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.truncate(bytes_of(path)?, size)? };
        Ok(0)
    })
}

/// How full the filesystem is: statvfs(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_statfs(fs: *const tw_fs, statfs: *mut tw_statfs) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (fs, statfs) = unsafe { (filesystem(fs)?, room(statfs)?) };
        let Statistics { block, blocks, free, inodes: (used, most) } = fs.statistics()?;
        *statfs = tw_statfs {
            block_size: block,
            name_max: thalweg_fs::filesystem::MAX_NAME as u32,
            blocks,
            blocks_free: free,
            files: most,
            files_free: most.saturating_sub(used),
            read_only: c_int::from(fs.is_read_only()?),
        };
        Ok(0)
    })
}
