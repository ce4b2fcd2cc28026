//! What a user may do: the checks that the kernel makes for a mount.

use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::acl::Acl;
use thalweg_fs::{Attributes, Filesystem, FsError, Ino, Kind, Timestamp};

use super::error::{FileError, invalid};
use super::user::User;

/// May be read.
pub(super) const READ: u16 = 4;
/// May be changed.
pub(super) const WRITE: u16 = 2;
/// May be executed; of a directory, searched.
pub(super) const SEARCH: u16 = 1;

const STICKY: u16 = 0o1000;
/// The extended attribute with the access control list.
pub(super) const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// Inodes of which the list is cached; when there are more, all are dropped.
const CACHED: usize = 4096;

/// Access control lists by inode, each with the time of the inode's last change: no two states of an inode have the
/// same.
#[derive(Debug, Default)]
pub(super) struct AccessLists(Mutex<HashMap<Ino, (Timestamp, Option<Acl>)>>);

impl AccessLists {
    async fn of(&self, files: &dyn Filesystem, it: &Attributes) -> Result<Option<Acl>, FsError> {
        let cached = self.0.lock().get(&it.ino).cloned();
        if let Some((_, acl)) = cached.filter(|(changed, _)| *changed == it.changed) {
            return Ok(acl);
        }
        let acl = match files.xattr(it.ino, ACCESS_LIST).await {
            Ok(value) => Some(Acl::decode(&value)?),
            Err(FsError::NoAttribute | FsError::NotSupported) => None,
            Err(error) => return Err(error),
        };
        let mut all = self.0.lock();
        if all.len() >= CACHED {
            all.clear();
        }
        all.insert(it.ino, (it.changed, acl.clone()));
        Ok(acl)
    }
}

/// A filesystem as one user sees it.
#[derive(Clone, Copy)]
pub(super) struct UserView<'a> {
    pub(super) files: &'a dyn Filesystem,
    pub(super) user: &'a User,
    pub(super) lists: &'a AccessLists,
}

impl UserView<'_> {
    /// Fails unless the user may do all of `wanted`.
    ///
    /// # Errors
    /// [`FileError::Denied`]
    pub(super) async fn check(&self, it: &Attributes, wanted: u16) -> Result<(), FileError> {
        match self.permits(it, wanted).await? {
            true => Ok(()),
            false => Err(FileError::Denied),
        }
    }

    async fn permits(&self, it: &Attributes, wanted: u16) -> Result<bool, FileError> {
        let user = self.user;
        if user.is_root() {
            let executable = it.kind == Kind::Directory || it.mode & 0o111 != 0;
            return Ok(wanted & SEARCH == 0 || executable);
        }
        let bits = |shift: u16| (it.mode >> shift) & wanted == wanted;
        if user.uid == it.uid {
            return Ok(bits(6));
        }
        // With a list, the group's bits are the list's mask: without any, nothing in it permits more than the mode.
        if it.mode & 0o070 != 0
            && let Some(list) = self.lists.of(self.files, it).await?
        {
            return Ok(list.permits(user.uid, it.gid, |group| user.is_in(group), wanted));
        }
        Ok(if user.is_in(it.gid) { bits(3) } else { bits(0) })
    }

    /// As [`UserView::check`], and fails for a change of what may only be read.
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
        self.check(it, wanted).await
    }

    /// Whether the user owns an inode, or may do what its owner may.
    pub(super) fn owns(&self, it: &Attributes) -> bool {
        self.user.is_root() || self.user.uid == it.uid
    }

    /// Fails unless the user owns an inode.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`]
    pub(super) fn check_owner(&self, it: &Attributes) -> Result<(), FileError> {
        if self.owns(it) { Ok(()) } else { Err(FsError::NotPermitted.into()) }
    }

    /// Fails unless changes are permitted to all.
    ///
    /// # Errors
    /// [`FsError::ReadOnly`]
    pub(super) fn check_writable(&self) -> Result<(), FileError> {
        if self.files.is_read_only() { Err(FsError::ReadOnly.into()) } else { Ok(()) }
    }

    /// Fails unless the user may remove a name in `parent`, of an inode that has to be a directory, or no directory.
    ///
    /// # Errors
    /// [`FileError::Denied`], [`FsError::NotPermitted`] in a directory with the sticky bit,
    /// [`FsError::NotDirectory`], [`FsError::IsDirectory`].
    pub(super) async fn check_removal(
        &self,
        parent: &Attributes,
        removed: &Attributes,
        is_directory: bool,
    ) -> Result<(), FileError> {
        self.check(parent, WRITE | SEARCH).await?;
        if parent.mode & STICKY != 0 && !self.owns(removed) && !self.owns(parent) {
            return Err(FsError::NotPermitted.into());
        }
        match (is_directory, removed.kind == Kind::Directory) {
            (true, false) => Err(FsError::NotDirectory.into()),
            (false, true) => Err(FsError::IsDirectory.into()),
            _ => Ok(()),
        }
    }
}
