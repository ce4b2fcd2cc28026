//! Names of extended attributes.

use crate::attributes::Kind;
use crate::error::FsError;
use crate::filesystem::MAX_XATTR_NAME;

/// The access control list.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The default access control list, for new inodes in a directory.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Whether an attribute is an access control list: it goes with the mode of its inode, or with those of new inodes in it.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// Checks that an inode of this type can have an attribute of that name.
///
/// # Errors
/// [`FsError::AttributeTooLarge`] for a longer name, [`FsError::NotSupported`], [`FsError::NotPermitted`] for one of a user where
/// only files and directories have such ones, [`FsError::Invalid`].
pub fn check_name(kind: Kind, name: &[u8]) -> Result<(), FsError> {
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.len() > MAX_XATTR_NAME {
        return Err(FsError::AttributeTooLarge);
    }
    if is_acl(name) {
        return match kind {
            Kind::Symlink => Err(FsError::NotSupported),
            _ => Ok(()),
        };
    }
    let space = spaces.iter().find(|space| name.starts_with(space));
    let space = space.ok_or(FsError::NotSupported)?;
    if name.len() == space.len() || name.contains(&0) {
        return Err(FsError::Invalid("an attribute needs a name"));
    }
    // As in the kernel: only files and directories have attributes of users.
    if *space == b"user." && !matches!(kind, Kind::File | Kind::Directory) {
        Err(FsError::NotPermitted)
    } else {
        Ok(())
    }
}
