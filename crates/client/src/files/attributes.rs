//! Calls about attributes.

use thalweg_fs::access::{ACCESS_LIST, WRITE};
use thalweg_fs::filesystem::{MAX_FILE, MAX_XATTR_NAME, MAX_XATTR_VALUE};
use thalweg_fs::{AttributeChange, Attributes, FsError, Ino, Kind, SetXattr, TimeChange};

use bytes::Bytes;

use super::access::UserView;
use super::error::{FileError, invalid};

/// The extended attribute with the capabilities of a program.
const CAPABILITIES: &[u8] = b"security.capability";
const SET_GROUP_ID: u16 = 0o2000;

/// Times to set; `None` keeps one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// The last read.
    pub accessed: Option<TimeChange>,
    /// The last change of the content.
    pub modified: Option<TimeChange>,
}

impl Times {
    /// Both the time of the call.
    pub const NOW: Times =
        Times { accessed: Some(TimeChange::Now), modified: Some(TimeChange::Now) };
}

/// Fails for an extended attribute that no inode may have, before the path is looked at.
///
/// # Errors
/// [`FileError::NameRange`], [`FsError::AttributeTooLarge`].
pub(super) fn check_attribute(name: &[u8], value: &[u8]) -> Result<(), FileError> {
    if name.is_empty() || name.len() > MAX_XATTR_NAME {
        return Err(FileError::NameRange);
    }
    match value.len() > MAX_XATTR_VALUE {
        true => Err(FsError::AttributeTooLarge.into()),
        false => Ok(()),
    }
}

/// Whether it is the list that new inodes in a directory get, of what is no directory.
fn is_default_of_no_directory(it: &Attributes, name: &[u8]) -> bool {
    name == b"system.posix_acl_default" && !matches!(it.kind, Kind::Directory | Kind::Symlink)
}

impl UserView<'_> {
    async fn set(&self, ino: Ino, change: AttributeChange) -> Result<(), FileError> {
        self.files.set_attributes(ino, &change).await?;
        Ok(())
    }

    pub(super) async fn change_mode(&self, it: &Attributes, mode: u16) -> Result<(), FileError> {
        self.check_writable()?;
        if it.kind == Kind::Symlink {
            return Err(FsError::NotSupported.into());
        }
        let mode = Some(self.mode_to_set(it, mode)?);
        self.set(it.ino, AttributeChange { mode, ..AttributeChange::default() }).await
    }

    pub(super) async fn change_owner(
        &self,
        it: &Attributes,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), FileError> {
        self.check_writable()?;
        self.check_owner_change(it, uid, gid)?;
        let clears = it.kind != Kind::Directory;
        if clears {
            self.clear_capabilities(it.ino).await?;
        }
        let change = AttributeChange { uid, gid, clear_suid: clears, ..AttributeChange::default() };
        self.set(it.ino, change).await
    }

    pub(super) async fn change_times(
        &self,
        it: &Attributes,
        times: Times,
    ) -> Result<(), FileError> {
        if times == Times::default() {
            return Ok(());
        }
        self.check_writable()?;
        let Times { accessed, modified } = times;
        self.check_times(it, accessed, modified).await?;
        self.set(it.ino, AttributeChange { accessed, modified, ..AttributeChange::default() }).await
    }

    /// Changes the size of a file, which the user may write.
    pub(super) async fn set_size(&self, ino: Ino, size: u64) -> Result<(), FileError> {
        if size > MAX_FILE {
            return Err(FsError::FileTooLarge.into());
        }
        self.clear_capabilities(ino).await?;
        let clear_suid = !self.user.is_root();
        let change = AttributeChange { size: Some(size), clear_suid, ..AttributeChange::default() };
        self.set(ino, change).await
    }

    /// Takes set-user-id and set-group-id away after a change of the content, unless root made it.
    pub(super) async fn clear_suid(&self, ino: Ino) -> Result<(), FileError> {
        match self.user.is_root() {
            true => Ok(()),
            false => {
                self.set(ino, AttributeChange { clear_suid: true, ..AttributeChange::default() })
                    .await
            }
        }
    }

    pub(super) async fn truncate(&self, path: &[u8], size: u64) -> Result<(), FileError> {
        let it = self.resolve(path, true).await?;
        match it.kind {
            Kind::File => {}
            Kind::Directory => return Err(FsError::IsDirectory.into()),
            _ => return Err(invalid("it is no file")),
        }
        self.check_writable()?;
        self.check(&it, WRITE).await?;
        self.set_size(it.ino, size).await
    }

    /// Takes capabilities away, before a change of the content.
    pub(super) async fn clear_capabilities(&self, ino: Ino) -> Result<(), FileError> {
        match self.files.xattr(ino, CAPABILITIES).await {
            Ok(_) => {}
            Err(FsError::NoAttribute | FsError::NotSupported) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        match self.files.remove_xattr(ino, CAPABILITIES).await {
            Ok(()) | Err(FsError::NoAttribute) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn xattr(&self, it: &Attributes, name: &[u8]) -> Result<Bytes, FileError> {
        self.check_xattr(it, name, false).await?;
        Ok(self.files.xattr(it.ino, name).await?)
    }

    pub(super) async fn set_xattr(
        &self,
        it: &Attributes,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), FileError> {
        if is_default_of_no_directory(it, name) {
            self.check_writable()?;
            return Err(FsError::Denied.into());
        }
        self.check_writable()?;
        self.check_xattr(it, name, true).await?;
        // As the kernel: a list is set whether there is one or not.
        let how = if name.starts_with(b"system.posix_acl_") { SetXattr::Any } else { how };
        self.files.set_xattr(it.ino, name, Bytes::copy_from_slice(value), how).await?;
        if name == ACCESS_LIST && it.mode & SET_GROUP_ID != 0 && !self.may_keep_set_group_id(it) {
            let it = self.files.attributes(it.ino).await?;
            let mode = Some(it.mode & !SET_GROUP_ID);
            self.set(it.ino, AttributeChange { mode, ..AttributeChange::default() }).await?;
        }
        Ok(())
    }

    pub(super) async fn remove_xattr(&self, it: &Attributes, name: &[u8]) -> Result<(), FileError> {
        if is_default_of_no_directory(it, name) {
            return self.check_writable();
        }
        self.check_writable()?;
        self.check_xattr(it, name, true).await?;
        match self.files.remove_xattr(it.ino, name).await {
            // As the kernel: a list that is not there may be removed.
            Err(FsError::NoAttribute) if name.starts_with(b"system.posix_acl_") => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// The names that the user may know.
    pub(super) async fn xattrs(&self, it: &Attributes) -> Result<Vec<Bytes>, FileError> {
        let mut names = self.files.xattrs(it.ino).await?;
        names.retain(|name| self.may_know(name));
        Ok(names)
    }
}
