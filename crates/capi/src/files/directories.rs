//! Open directories for C.

use std::ffi::{CString, c_char, c_int};

use thalweg_client::Directory;

use super::attributes::type_of;
use super::{bytes_of, filesystem, room, tw_fs};
use crate::failure::{Failure, call};

/// An open directory. It must be closed before its filesystem is, and is for one thread at a time.
pub struct tw_dir {
    directory: Directory,
    /// The name that the caller's pointer refers to.
    name: CString,
}

/// A name in a directory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_entry {
    /// The inode.
    pub ino: u64,
    /// Its type: bits of S_IFMT.
    pub kind: u32,
    /// The bytes of the name.
    pub name_len: u32,
    /// The name; it is valid until the next call on the directory.
    pub name: *const c_char,
}

/// Opens a directory to list it: opendir(3). Null when that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_opendir(fs: *const tw_fs, path: *const c_char) -> *mut tw_dir {
    let mut dir = std::ptr::null_mut();
    call(|| {
        // SAFETY: as the caller says.
        let directory = unsafe { filesystem(fs)?.open_directory(bytes_of(path)?, false)? };
        dir = Box::into_raw(Box::new(tw_dir { directory, name: CString::default() }));
        Ok(0)
    });
    dir
}

/// # Safety
/// `dir` is null or came from [`tw_fs_opendir`], was not closed, and no other call uses it.
unsafe fn opened<'a>(dir: *mut tw_dir) -> Result<&'a mut tw_dir, Failure> {
    // SAFETY: as the caller says.
    let dir = unsafe { dir.as_mut() };
    dir.ok_or_else(|| Failure::new(libc::EBADF, "the directory is a null pointer".to_owned()))
}

/// The next entry: 1, or 0 at the end. `.` and `..` are not among them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_dir_read(dir: *mut tw_dir, entry: *mut tw_entry) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (dir, entry) = unsafe { (opened(dir)?, room(entry)?) };
        let Some(next) = dir.directory.next_entry()? else { return Ok(0) };
        let name_len = next.name.len() as u32;
        // No name has a zero in it.
        dir.name = CString::new(Vec::from(next.name)).unwrap_or_default();
        let (ino, kind) = (next.ino.0, type_of(next.kind));
        *entry = tw_entry { ino, kind, name_len, name: dir.name.as_ptr() };
        Ok(1)
    })
}

/// Begins at the first entry again: rewinddir(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_dir_rewind(dir: *mut tw_dir) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { opened(dir) }?.directory.rewind();
        Ok(0)
    })
}

/// Closes a directory. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_dir_close(dir: *mut tw_dir) {
    if !dir.is_null() {
        // SAFETY: it came from `tw_fs_opendir`, and no other call uses it.
        drop(unsafe { Box::from_raw(dir) });
    }
}
