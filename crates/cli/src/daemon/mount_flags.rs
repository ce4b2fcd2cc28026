//! The flags of a mount that the kernel keeps.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::request::mount_options::{AtimeWord, MountOptions};

/// Sets the flags that the kernel keeps of a mount; options that are not given keep their values.
pub(crate) fn change_flags(mountpoint: &Path, options: &MountOptions) -> std::io::Result<()> {
    let path = CString::new(mountpoint.as_os_str().as_bytes())?;
    // SAFETY: all zeros are a valid value, which the call overwrites.
    let mut now: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a terminated string, and the pointer is valid for the call.
    if unsafe { libc::statvfs(path.as_ptr(), &mut now) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut flags = libc::MS_REMOUNT;
    for (said, shown, flag) in [
        (options.read_only, libc::ST_RDONLY, libc::MS_RDONLY),
        (options.suid.map(|it| !it), libc::ST_NOSUID, libc::MS_NOSUID),
        (options.dev.map(|it| !it), libc::ST_NODEV, libc::MS_NODEV),
        (options.exec.map(|it| !it), libc::ST_NOEXEC, libc::MS_NOEXEC),
        (options.sync, libc::ST_SYNCHRONOUS, libc::MS_SYNCHRONOUS),
    ] {
        if said.unwrap_or(now.f_flag & shown != 0) {
            flags |= flag;
        }
    }
    // If none of these is set, the kernel keeps its atime mode.
    flags |= match options.atime {
        None => 0,
        Some(AtimeWord::Relative) => libc::MS_RELATIME,
        Some(AtimeWord::Strict) => libc::MS_STRICTATIME,
        Some(AtimeWord::Never) => libc::MS_NOATIME,
    };
    let nothing = std::ptr::null();
    // SAFETY: the path is a terminated string; a remount of flags reads no other argument.
    match unsafe { libc::mount(nothing, path.as_ptr(), nothing, flags, nothing.cast()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
