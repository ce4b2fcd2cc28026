//! Filesystems for C: calls on paths.

pub mod attributes;
pub mod directories;
pub mod levels;
pub mod locks;
pub mod open_files;
pub mod xattrs;

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bytes::Bytes;
use thalweg_client::{FilesOptions, Filesystem, User};
use thalweg_fs::{Node, Rename};

use crate::failure::{Failure, call};

/// A symbolic link at the end of the path is not followed.
pub const TW_NOFOLLOW: c_int = 0x100;
/// Of tw_fs_link(): a symbolic link at the end of the old path is followed.
pub const TW_FOLLOW: c_int = 0x400;
/// Of tw_fs_rename2(): the new name must not exist.
pub const TW_RENAME_NOREPLACE: c_int = 1;
/// Of tw_fs_rename2(): the two names are exchanged.
pub const TW_RENAME_EXCHANGE: c_int = 2;

/// An open filesystem, as one user sees it.
pub struct tw_fs {
    files: Filesystem,
    /// It came from `tw_fs_open`.
    opened: bool,
}

/// How a filesystem is opened. All zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_fs_options {
    /// The name of the filesystem on its volume; null for the one that `thalweg mkfs` makes.
    pub name: *const c_char,
    /// The journal's device, if the journal is outside of a volume that is updated in place; or null.
    pub journal: *const c_char,
    /// For SERVER:/PATH, the first time: the token that `thalweg cluster client add` printed; or null.
    pub token: *const c_char,
    /// For SERVER:/PATH: the folder with the keys; null for this user's.
    pub keys: *const c_char,
    /// Not 0: changes are refused, and no byte of the volume changes.
    pub read_only: c_int,
}

/// The filesystem that a caller named.
///
/// # Safety
/// `fs` is null or came from [`tw_fs_open`] or [`tw_fs_as_user`], and was not closed.
pub(crate) unsafe fn filesystem<'a>(fs: *const tw_fs) -> Result<&'a Filesystem, Failure> {
    // SAFETY: as the caller says.
    let fs = unsafe { fs.as_ref() };
    fs.map(|it| &it.files).ok_or_else(|| Failure::invalid("the filesystem is a null pointer"))
}

/// The bytes of a path or a name.
///
/// # Safety
/// `text` is null or a string that ends with a zero.
pub(crate) unsafe fn bytes_of<'a>(text: *const c_char) -> Result<&'a [u8], Failure> {
    match text.is_null() {
        true => Err(Failure::new(libc::EFAULT, "the path or name is a null pointer".to_owned())),
        // SAFETY: as the caller says.
        false => Ok(unsafe { CStr::from_ptr(text) }.to_bytes()),
    }
}

/// Whether symbolic links at a path's end are followed.
pub(crate) fn follows(flags: c_int, known: c_int) -> Result<bool, Failure> {
    match flags & !(TW_NOFOLLOW | known) {
        0 => Ok(flags & TW_NOFOLLOW == 0),
        _ => Err(Failure::invalid("there is no such flag")),
    }
}

/// The permission bits of a mode.
pub(crate) fn bits(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// An optional text of [`tw_fs_options`].
unsafe fn optional<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller gives a string that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::invalid("an option is not UTF-8"))
}

unsafe fn options(options: *const tw_fs_options) -> Result<FilesOptions, Failure> {
    // SAFETY: as the caller of the library says.
    let Some(it) = (unsafe { options.as_ref() }) else { return Ok(FilesOptions::default()) };
    let path = |text: *const c_char| {
        // SAFETY: the caller gives strings that end with a zero.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
        text.map(|text| PathBuf::from(OsStr::from_bytes(text.to_bytes())))
    };
    // SAFETY: as above.
    let (name, token) = unsafe { (optional(it.name)?, optional(it.token)?) };
    let token = token.map(str::parse).transpose();
    Ok(FilesOptions {
        name: name.map(str::to_owned),
        read_only: it.read_only != 0,
        journal: path(it.journal),
        token: token.map_err(|error| Failure::new(libc::EINVAL, format!("{error}")))?,
        keys: path(it.keys),
        user: None,
    })
}

/// Opens a filesystem. `place` is a volume as for tw_open(), which no other process may have open, and which this process
/// opens; or SERVER:/PATH or SERVER:PORT:/PATH, a directory of a filesystem that a server shares, as for `thalweg
/// mount`. `options` may be null. Calls act for the user, the groups and the umask that the calling thread has now; see
/// tw_fs_as_user(). Null when that fails; tw_errno() and tw_error() say why: ENOENT when there is no such
/// volume, or no filesystem on it, EBUSY when another process mounts or serves the volume, EACCES when keys are missing or
/// refused, ENOTCONN when the server cannot be reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_open(
    place: *const c_char,
    options: *const tw_fs_options,
) -> *mut tw_fs {
    let mut fs = std::ptr::null_mut();
    call(|| {
        // SAFETY: as the caller says.
        let (place, options) = unsafe { (optional(place)?, self::options(options)?) };
        let place = place.ok_or_else(|| Failure::invalid("the place is a null pointer"))?;
        let files = Filesystem::open(place, &options)?;
        fs = Box::into_raw(Box::new(tw_fs { files, opened: true }));
        Ok(0)
    });
    fs
}

/// The same filesystem for another user, with `count` further groups at `groups`, and a umask: for servers that act for
/// several users. The program itself may open the whole filesystem, so these checks bind no one but the program.
/// Close it before the filesystem that it came from. Null when that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_as_user(
    fs: *const tw_fs,
    uid: u32,
    gid: u32,
    groups: *const u32,
    count: usize,
    umask: u32,
) -> *mut tw_fs {
    let mut other = std::ptr::null_mut();
    call(|| {
        let groups = match (groups.is_null(), count) {
            (_, 0) => &[],
            (true, _) => return Err(Failure::invalid("the groups are a null pointer")),
            // SAFETY: the caller has `count` groups there.
            (false, _) => unsafe { std::slice::from_raw_parts(groups, count) },
        };
        let user = User { uid, gid, groups: groups.to_vec(), umask: bits(umask) & 0o777 };
        // SAFETY: as the caller says.
        let files = unsafe { filesystem(fs) }?.as_user(user);
        other = Box::into_raw(Box::new(tw_fs { files, opened: false }));
        Ok(0)
    });
    other
}

/// Makes everything durable, and closes a filesystem. Files, directories and other users of it must be closed before, and
/// no thread may be in a call on it. It is closed whatever this returns. One that came from tw_fs_as_user() is released,
/// and the filesystem stays open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_close(fs: *mut tw_fs) -> c_int {
    call(|| {
        if fs.is_null() {
            return Err(Failure::invalid("the filesystem is a null pointer"));
        }
        // SAFETY: it came from this library, and no other call uses it.
        let fs = unsafe { Box::from_raw(fs) };
        if fs.opened {
            fs.files.close()?;
        }
        Ok(0)
    })
}

/// Makes a directory: mkdir(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_mkdir(fs: *const tw_fs, path: *const c_char, mode: u32) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.make(bytes_of(path)?, &Node::Directory, bits(mode))? };
        Ok(0)
    })
}

/// Makes a named pipe, the name of a socket, a device or an empty file: mknod(2). Only their names are of use here: they
/// cannot be opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_mknod(
    fs: *const tw_fs,
    path: *const c_char,
    mode: u32,
    device: u32,
) -> c_int {
    call(|| {
        let node = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => Node::File,
            libc::S_IFIFO => Node::Fifo,
            libc::S_IFSOCK => Node::Socket,
            libc::S_IFBLK => Node::BlockDevice(device),
            libc::S_IFCHR => Node::CharDevice(device),
            _ => return Err(Failure::invalid("mknod makes no such inode")),
        };
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.make(bytes_of(path)?, &node, bits(mode))? };
        Ok(0)
    })
}

/// Removes an empty directory: rmdir(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_rmdir(fs: *const tw_fs, path: *const c_char) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.remove_directory(bytes_of(path)?)? };
        Ok(0)
    })
}

/// Removes a name: unlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_unlink(fs: *const tw_fs, path: *const c_char) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.unlink(bytes_of(path)?)? };
        Ok(0)
    })
}

/// Renames atomically: rename(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_rename(
    fs: *const tw_fs,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { tw_fs_rename2(fs, from, to, 0) }
}

/// As tw_fs_rename(), with one of the flags TW_RENAME_NOREPLACE and TW_RENAME_EXCHANGE, or 0: renameat2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_rename2(
    fs: *const tw_fs,
    from: *const c_char,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    call(|| {
        let how = match flags {
            0 => Rename::Replace,
            TW_RENAME_NOREPLACE => Rename::NoReplace,
            TW_RENAME_EXCHANGE => Rename::Exchange,
            _ => return Err(Failure::invalid("there is no such flag")),
        };
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.rename(bytes_of(from)?, bytes_of(to)?, how)? };
        Ok(0)
    })
}

/// Gives an inode another name: linkat(2), with TW_FOLLOW or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_link(
    fs: *const tw_fs,
    from: *const c_char,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    call(|| {
        let follow = match flags {
            0 => false,
            TW_FOLLOW => true,
            _ => return Err(Failure::invalid("there is no such flag")),
        };
        // SAFETY: as the caller says.
        unsafe { filesystem(fs)?.link(bytes_of(from)?, bytes_of(to)?, follow)? };
        Ok(0)
    })
}

/// Makes a symbolic link to `target`: symlink(2). An absolute target begins at the filesystem's root.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_symlink(
    fs: *const tw_fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (target, path) = unsafe { (bytes_of(target)?, bytes_of(path)?) };
        let node = Node::Symlink(Bytes::copy_from_slice(target));
        // SAFETY: as the caller says.
        unsafe { filesystem(fs) }?.make(path, &node, 0o777)?;
        Ok(0)
    })
}

/// Copies the target of a symbolic link to `buffer`, at most `size` bytes of it, without a zero at the end. Returns the
/// length of the whole target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_readlink(
    fs: *const tw_fs,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> i64 {
    call(|| {
        // SAFETY: as the caller says.
        let target = unsafe { filesystem(fs)?.read_link(bytes_of(path)?)? };
        // SAFETY: the caller has room for `size` bytes there.
        unsafe { copy_to(&target[..target.len().min(size)], buffer.cast())? };
        Ok(target.len() as i64)
    })
}

/// Returns when everything survives a crash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fs_sync(fs: *const tw_fs) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { filesystem(fs) }?.sync()?;
        Ok(0)
    })
}

/// Copies bytes to a caller's buffer.
///
/// # Safety
/// `to` is null or has room for them.
pub(crate) unsafe fn copy_to(bytes: &[u8], to: *mut u8) -> Result<(), Failure> {
    if bytes.is_empty() {
        return Ok(());
    }
    if to.is_null() {
        return Err(Failure::new(libc::EFAULT, "the buffer is a null pointer".to_owned()));
    }
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    Ok(())
}

/// The place that a caller has for a result.
///
/// # Safety
/// `at` is null or may be written.
pub(crate) unsafe fn room<'a, T>(at: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: as the caller says.
    unsafe { at.as_mut() }.ok_or_else(|| {
        Failure::new(libc::EFAULT, "the place for the result is a null pointer".to_owned())
    })
}
