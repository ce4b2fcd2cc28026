//! Privileges of inodes that a write clears: set-user-id, set-group-id and capabilities.
//!
//! Such a write changes the mode behind the kernel's back, and a handler of a request must not notify the kernel: it
//! may hold what the notification needs until the request is answered. So the kernel never caches the attributes of
//! a file that has set-user-id or set-group-id.

use std::future::Future;

use thalweg_fs::{AttributeChange, FsError, Ino};

use super::attributes::has_mode_privileges;
use super::served::Served;

pub(super) const CAPABILITIES: &[u8] = b"security.capability";

impl Served {
    /// Changes content, which clears privileges: the capabilities here, set-user-id and set-group-id within
    /// `change`.
    pub(super) async fn change_content<T, F>(&self, ino: Ino, change: F) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, FsError>>,
    {
        if self.known.is_plain(ino) || !self.has_privileges(ino).await? {
            return change.await;
        }
        match self.filesystem.remove_xattr(ino, CAPABILITIES).await {
            Ok(()) | Err(FsError::NoAttribute) => {}
            Err(error) => return Err(error),
        }
        change.await
    }

    /// Takes set-user-id and set-group-id away, where there is a file that may have them.
    pub(super) async fn clear_suid(&self, ino: Ino) -> Result<(), FsError> {
        if self.known.is_plain(ino) {
            return Ok(());
        }
        let change = AttributeChange { clear_suid: true, ..AttributeChange::default() };
        self.filesystem.set_attributes(ino, &change).await.map(drop)
    }

    /// Whether an inode has privileges that a write clears. A negative answer is cached.
    async fn has_privileges(&self, ino: Ino) -> Result<bool, FsError> {
        let grants = self.known.grants();
        let attributes = self.filesystem.attributes(ino).await?;
        let capable = match self.filesystem.xattr(ino, CAPABILITIES).await {
            Ok(_) => true,
            Err(FsError::NoAttribute | FsError::NotSupported) => false,
            Err(error) => return Err(error),
        };
        let privileged = capable || has_mode_privileges(&attributes);
        if !privileged {
            self.known.note_plain(ino, grants);
        }
        Ok(privileged)
    }
}
