//! Extended attributes for C.

use std::ffi::{c_char, c_int, c_void};

use thalweg_fs::SetXattr;

use super::{TW_NOFOLLOW, bytes_of, copy_to, filesystem, follows, tw_fs};
use crate::failure::{Failure, call};
use crate::stores::bytes;

/// Of tw_fs_setxattr(): the attribute must not exist.
pub const TW_XATTR_CREATE: c_int = 1;
/// Of tw_fs_setxattr(): the attribute must exist.
pub const TW_XATTR_REPLACE: c_int = 2;

/// Copies a value to a caller's buffer of `size` bytes; how many. With 0, only how many.
///
/// # Safety
/// `to` is null or has room for `size` bytes.
unsafe fn give(value: &[u8], to: *mut c_void, size: usize) -> Result<i64, Failure> {
    if size > 0 && value.len() > size {
        let text = format!("the value has {} bytes, and the buffer {size}", value.len());
        return Err(Failure::new(libc::ERANGE, text));
    }
    if size > 0 {
        // SAFETY: it has room for `size` bytes.
        unsafe { copy_to(value, to.cast())? };
    }
    Ok(value.len() as i64)
}

/// Copies the value of an extended attribute to `value`, which has `size` bytes, and returns its length; with a size of 0,
/// only its length. Fails with -ERANGE if it does not fit, with -ENODATA if there is none. With TW_NOFOLLOW or 0:
/// getxattr(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_getxattr(
    fs: *const tw_fs,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: usize,
    flags: c_int,
) -> i64 {
    call(|| {
        let follow = follows(flags, 0)?;
        // SAFETY: as the caller says.
        let found = unsafe { filesystem(fs)?.xattr(bytes_of(path)?, follow, bytes_of(name)?)? };
        // SAFETY: as the caller says.
        unsafe { give(&found, value, size) }
    })
}

/// Sets an extended attribute; with TW_XATTR_CREATE, TW_XATTR_REPLACE or neither, and TW_NOFOLLOW: setxattr(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_setxattr(
    fs: *const tw_fs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    call(|| {
        let follow = follows(flags, TW_XATTR_CREATE | TW_XATTR_REPLACE)?;
        let how = match flags & !TW_NOFOLLOW {
            0 => SetXattr::Any,
            TW_XATTR_CREATE => SetXattr::Create,
            TW_XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Failure::invalid("the flags do not go together")),
        };
        // SAFETY: as the caller says.
        unsafe {
            let attribute = (bytes_of(name)?, bytes(value, size)?.unwrap_or_default());
            filesystem(fs)?.set_xattr(bytes_of(path)?, follow, attribute, how)?;
        }
        Ok(0)
    })
}

/// Removes an extended attribute; with TW_NOFOLLOW or 0: removexattr(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_removexattr(
    fs: *const tw_fs,
    path: *const c_char,
    name: *const c_char,
    flags: c_int,
) -> c_int {
    call(|| {
        let follow = follows(flags, 0)?;
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.remove_xattr(bytes_of(path)?, follow, bytes_of(name)?)? };
        Ok(0)
    })
}

/// Copies the names of the extended attributes, each with a zero behind it, to `list`, which has `size` bytes, and returns
/// how many bytes these are; with a size of 0, only how many. With TW_NOFOLLOW or 0: listxattr(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_listxattr(
    fs: *const tw_fs,
    path: *const c_char,
    list: *mut c_char,
    size: usize,
    flags: c_int,
) -> i64 {
    call(|| {
        let follow = follows(flags, 0)?;
        // SAFETY: as the caller says.
        let names = unsafe { filesystem(fs)?.xattrs(bytes_of(path)?, follow)? };
        let mut all = Vec::new();
        for name in names {
            all.extend_from_slice(&name);
            all.push(0);
        }
        // SAFETY: as the caller says.
        unsafe { give(&all, list.cast(), size) }
    })
}
