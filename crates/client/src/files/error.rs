//! Why a call on files failed.

use thalweg_env::process::Forked;
use thalweg_fs::{FsError, errno};

/// Why a call on files failed. [`FileError::errno`] is the system's number for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FileError {
    /// The filesystem refuses it.
    #[error(transparent)]
    Filesystem(#[from] FsError),
    /// Give up: a path leads over more than 40 symbolic links, or ends at one that is not to be followed.
    #[error("too many levels of symbolic links")]
    Links,
    /// Give up: the file is not open, or not for that.
    #[error("the file is not open for this")]
    NotOpen,
    /// Give up: the root, or a path that ends with `.` or `..`, is not to be removed or renamed.
    #[error("the directory is in use")]
    InUse,
    /// Give up: pipes, sockets and devices cannot be opened here.
    #[error("it is no file or directory")]
    Special,
    /// Give up: a name has 1 to 255 bytes.
    #[error("the name is too short or too long")]
    NameRange,
    /// Give up: the filesystem was closed.
    #[error("the filesystem is closed")]
    Closed,
    /// Give up: a parent of this process has opened the filesystem; open it here.
    #[error(transparent)]
    Forked(#[from] Forked),
}

impl FileError {
    /// The errno.
    pub fn errno(&self) -> i32 {
        match self {
            FileError::Filesystem(error) => errno::of(error),
            FileError::Links => libc::ELOOP,
            FileError::NotOpen => libc::EBADF,
            FileError::InUse => libc::EBUSY,
            FileError::Special => libc::ENXIO,
            FileError::NameRange => libc::ERANGE,
            FileError::Closed => libc::ESHUTDOWN,
            FileError::Forked(_) => libc::EBADFD,
        }
    }
}

/// Invalid arguments.
pub(super) fn invalid(why: &'static str) -> FileError {
    FsError::Invalid(why).into()
}
