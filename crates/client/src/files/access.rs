//! A filesystem as one user sees it, with the checks that the kernel makes for a mount.

use std::ops::Deref;

use thalweg_fs::access::{READ, Rules, SEARCH, WRITE};
use thalweg_fs::{Attributes, FsError, Kind};

use super::error::{FileError, invalid};

/// A filesystem as one user sees it.
#[derive(Clone, Copy)]
pub(super) struct UserView<'a> {
    pub(super) rules: Rules<'a>,
    /// Permission bits that new inodes do not get.
    pub(super) umask: u16,
}

impl<'a> Deref for UserView<'a> {
    type Target = Rules<'a>;

    fn deref(&self) -> &Rules<'a> {
        &self.rules
    }
}

impl UserView<'_> {
    /// As [`Rules::check`], and fails for a change of what may only be read.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for other bits.
    pub(super) async fn check_access(&self, it: &Attributes, wanted: u16) -> Result<(), FileError> {
        if wanted & !(READ | WRITE | SEARCH) != 0 {
            return Err(invalid("there is no such access"));
        }
        if wanted & WRITE != 0 && matches!(it.kind, Kind::File | Kind::Directory | Kind::Symlink) {
            self.check_writable()?;
        }
        Ok(self.check(it, wanted).await?)
    }

    /// Fails unless changes are permitted to all.
    ///
    /// # Errors
    /// [`FsError::ReadOnly`]
    pub(super) fn check_writable(&self) -> Result<(), FileError> {
        if self.files.is_read_only() { Err(FsError::ReadOnly.into()) } else { Ok(()) }
    }
}
