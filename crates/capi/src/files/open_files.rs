//! Open files for C.

use std::ffi::{c_char, c_int, c_void};

use bytes::Bytes;
use thalweg_client::{File, How, SeekTo};
use thalweg_fs::Allocation;

use super::attributes::{id, size, times, tw_stat, tw_time};
use super::{bits, bytes_of, copy_to, filesystem, room, tw_fs};
use crate::failure::{Failure, call};
use crate::stores::bytes;

/// An open file or directory. It must be closed before its filesystem is.
pub struct tw_file {
    pub(super) file: File,
}

/// The file that a caller named.
///
/// # Safety
/// `file` is null or came from [`tw_file_open`] and was not closed.
pub(super) unsafe fn opened<'a>(file: *const tw_file) -> Result<&'a File, Failure> {
    // SAFETY: as the caller says.
    let file = unsafe { file.as_ref() };
    file.map(|it| &it.file)
        .ok_or_else(|| Failure::new(libc::EBADF, "the file is a null pointer".to_owned()))
}

/// Opens a file or a directory: open(2), with its flags. A new file gets `mode`, without the bits of the umask. O_CLOEXEC,
/// O_DIRECT, O_NOATIME and O_NONBLOCK have no effect; O_PATH and O_TMPFILE are refused. Null when that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_open(
    fs: *const tw_fs,
    path: *const c_char,
    flags: c_int,
    mode: u32,
) -> *mut tw_file {
    let mut file = std::ptr::null_mut();
    call(|| {
        let how = How::of_flags(flags)?;
        // SAFETY: as the caller says.
        let opened = unsafe { filesystem(fs)?.open_file(bytes_of(path)?, how, bits(mode))? };
        file = Box::into_raw(Box::new(tw_file { file: opened }));
        Ok(0)
    });
    file
}

/// Closes a file, which ends its locks. No thread may be in a call on it. It is closed whatever this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_close(file: *mut tw_file) -> c_int {
    call(|| {
        if file.is_null() {
            return Err(Failure::new(libc::EBADF, "the file is a null pointer".to_owned()));
        }
        // SAFETY: it came from `tw_file_open`, and no other call uses it.
        let file = unsafe { Box::from_raw(file) };
        file.file.close()?;
        Ok(0)
    })
}

/// Copies what was read to a caller's buffer; how many bytes.
///
/// # Safety
/// `to` is null or has room for them.
unsafe fn give(read: &[Bytes], to: *mut c_void) -> Result<i64, Failure> {
    let mut done = 0;
    for some in read {
        // SAFETY: as the caller says.
        unsafe { copy_to(some, to.cast::<u8>().wrapping_add(done))? };
        done += some.len();
    }
    Ok(done as i64)
}

/// The caller's bytes.
///
/// # Safety
/// `at` is null or has `len` bytes.
unsafe fn taken<'a>(at: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: as the caller says.
    Ok(unsafe { bytes(at, len)? }.unwrap_or_default())
}

/// Reads at most `len` bytes from `offset` on: how many, less than `len` only at the end, or at 2 GiB: pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_pread(
    file: *const tw_file,
    buffer: *mut c_void,
    len: usize,
    offset: i64,
) -> i64 {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { give(&opened(file)?.read_at(len, size(offset)?)?, buffer) }
    })
}

/// Writes `len` bytes from `offset` on; to the end if the file was opened with O_APPEND. How many: all of them below 2 GiB:
/// pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_pwrite(
    file: *const tw_file,
    buffer: *const c_void,
    len: usize,
    offset: i64,
) -> i64 {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { Ok(opened(file)?.write_at(taken(buffer, len)?, size(offset)?)? as i64) }
    })
}

/// As tw_file_pread(), at the file's position, which moves: read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_read(
    file: *const tw_file,
    buffer: *mut c_void,
    len: usize,
) -> i64 {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { give(&opened(file)?.read(len)?, buffer) }
    })
}

/// As tw_file_pwrite(), at the file's position, which moves: write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_write(
    file: *const tw_file,
    buffer: *const c_void,
    len: usize,
) -> i64 {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { Ok(opened(file)?.write(taken(buffer, len)?)? as i64) }
    })
}

/// Writes all `len` bytes, below 2 GiB, to the end of the file, wherever that is when the write takes effect. Returns the
/// offset of the first one. The position does not move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_append(
    file: *const tw_file,
    buffer: *const c_void,
    len: usize,
) -> i64 {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { Ok(opened(file)?.append(taken(buffer, len)?)? as i64) }
    })
}

/// Moves the position, from SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE, and returns it: lseek(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_lseek(file: *const tw_file, offset: i64, whence: c_int) -> i64 {
    call(|| {
        let beyond = || Failure::new(libc::ENXIO, "the offset is negative".to_owned());
        let start = u64::try_from(offset);
        let to = match whence {
            libc::SEEK_SET => SeekTo::Start(size(offset)?),
            libc::SEEK_CUR => SeekTo::Current(offset),
            libc::SEEK_END => SeekTo::End(offset),
            libc::SEEK_DATA => SeekTo::Data(start.map_err(|_| beyond())?),
            libc::SEEK_HOLE => SeekTo::Hole(start.map_err(|_| beyond())?),
            _ => return Err(Failure::invalid("there is no such place to seek from")),
        };
        // SAFETY: as the caller says.
        Ok(unsafe { opened(file) }?.seek(to)? as i64)
    })
}

/// The attributes of an open file: fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_stat(file: *const tw_file, stat: *mut tw_stat) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { *room(stat)? = opened(file)?.attributes()?.into() };
        Ok(0)
    })
}

/// Sets the permission bits of an open file: fchmod(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_chmod(file: *const tw_file, mode: u32) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { opened(file) }?.change_mode(bits(mode))?;
        Ok(0)
    })
}

/// Sets owner and group of an open file, each unless it is (uint32_t)-1: fchown(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_chown(file: *const tw_file, uid: u32, gid: u32) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { opened(file) }?.change_owner(id(uid), id(gid))?;
        Ok(0)
    })
}

/// Sets the times of an open file, as tw_fs_utimens(): futimens(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_utimens(file: *const tw_file, times: *const tw_time) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { opened(file)?.change_times(self::times(times)?)? };
        Ok(0)
    })
}

/// Sets the size of a file that is open to be written: ftruncate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_truncate(file: *const tw_file, size: i64) -> c_int {
    call(|| {
        let size = self::size(size)?;
        // SAFETY: as the caller says.
        unsafe { opened(file) }?.truncate(size)?;
        Ok(0)
    })
}

/// Returns when all changes of a file survive a crash, or those of the names in a directory: fsync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_fsync(file: *const tw_file) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { opened(file) }?.sync(false)?;
        Ok(0)
    })
}

/// As tw_file_fsync(), of the content and the attributes that are needed to read it: fdatasync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_fdatasync(file: *const tw_file) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { opened(file) }?.sync(true)?;
        Ok(0)
    })
}

/// Reserves storage, or with FALLOC_FL_PUNCH_HOLE or FALLOC_FL_ZERO_RANGE frees or zeroes it; with FALLOC_FL_KEEP_SIZE
/// the file does not grow: fallocate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_file_fallocate(
    file: *const tw_file,
    mode: c_int,
    offset: i64,
    len: i64,
) -> c_int {
    call(|| {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocation::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero { keep_size },
            _ => {
                let text = "files have no such storage".to_owned();
                return Err(Failure::new(libc::EOPNOTSUPP, text));
            }
        };
        let (offset, len) = (size(offset)?, size(len)?);
        // SAFETY: as the caller says.
        unsafe { opened(file) }?.allocate(offset, len, how)?;
        Ok(0)
    })
}
