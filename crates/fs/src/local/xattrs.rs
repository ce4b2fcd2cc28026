//! Extended attributes; access control lists are some of them, and go with the mode.

use bytes::Bytes;

use super::format::{HAS_ACL, HAS_DEFAULT_ACL, HAS_XATTRS, InodeRecord, Tag, key, key_behind};
use super::fs_call::FsCall;
use super::quota;
use super::records::kind_of;
use crate::acl::Acl;
use crate::attributes::Kind;
use crate::error::FsError;
use crate::filesystem::{MAX_XATTR_VALUE, SetXattr};
use crate::xattr_name::{ACCESS_ACL, DEFAULT_ACL, check_name};

/// Most bytes of all attribute names of an inode: the limit of a list of them.
const MAX_NAMES: usize = 65536;

/// The key of an attribute.
pub(super) fn xattr_key(ino: u64, name: &[u8]) -> Vec<u8> {
    key(ino, Tag::Xattr, name)
}

impl FsCall<'_> {
    pub(super) async fn xattr(&mut self, ino: u64, name: &[u8]) -> Result<Bytes, FsError> {
        let record = self.inode(ino).await?;
        if quota::is_attribute(name) {
            return self.quota_attribute(ino, name).await;
        }
        match check_name(kind_of(ino, &record)?, name) {
            // It cannot have been set.
            Err(FsError::NotPermitted) => return Err(FsError::NoAttribute),
            checked => checked?,
        }
        if record.flags & HAS_XATTRS == 0 {
            return Err(FsError::NoAttribute);
        }
        self.get(&xattr_key(ino, name)).await?.ok_or(FsError::NoAttribute)
    }

    pub(super) async fn xattrs(&mut self, ino: u64) -> Result<Vec<Bytes>, FsError> {
        let record = self.inode(ino).await?;
        if record.flags & HAS_XATTRS == 0 {
            return Ok(Vec::new());
        }
        let range = key(ino, Tag::Xattr, &[])..key_behind(ino, Tag::Xattr);
        let found = self.range(range, usize::MAX).await?;
        Ok(found.into_iter().map(|(key, _)| key.slice(9.min(key.len())..)).collect())
    }

    pub(super) async fn set_xattr(
        &mut self,
        ino: u64,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
    ) -> Result<(), FsError> {
        let mut record = self.inode(ino).await?;
        let kind = kind_of(ino, &record)?;
        check_name(kind, name)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(FsError::AttributeTooLarge);
        }
        let key = xattr_key(ino, name);
        let there = self.get(&key).await?.is_some();
        match how {
            SetXattr::Create if there => return Err(FsError::Exists),
            SetXattr::Replace if !there => return Err(FsError::NoAttribute),
            _ => {}
        }
        let value = match name {
            ACCESS_ACL | DEFAULT_ACL => self.take_acl(&mut record, kind, name, &value)?,
            _ => Some(value),
        };
        self.touch(ino, &mut record);
        match value {
            Some(value) => {
                // It may take many blocks, and sessions were promised some.
                self.grows = true;
                if !there {
                    self.check_names(ino, name).await?;
                }
                record.flags |= HAS_XATTRS;
                self.put(key, value);
            }
            None => self.delete(key),
        }
        self.set_inode(ino, record);
        Ok(())
    }

    /// Checks that one more name fits into a list of all.
    async fn check_names(&mut self, ino: u64, name: &[u8]) -> Result<(), FsError> {
        let names = self.xattrs(ino).await?;
        let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
        if bytes + name.len() < MAX_NAMES { Ok(()) } else { Err(FsError::AttributeTooLarge) }
    }

    /// Applies an access control list to the inode; returns the value to store.
    fn take_acl(
        &self,
        record: &mut InodeRecord,
        kind: Kind,
        name: &[u8],
        value: &[u8],
    ) -> Result<Option<Bytes>, FsError> {
        let acl = Acl::decode(value)?;
        let (flag, stored) = if name == ACCESS_ACL {
            if !acl.is_empty() {
                record.mode = acl.mode(record.mode.get()).into();
            }
            (HAS_ACL, !acl.is_mode())
        } else {
            if kind != Kind::Directory && !acl.is_empty() {
                return Err(FsError::NotPermitted);
            }
            (HAS_DEFAULT_ACL, !acl.is_empty())
        };
        if stored {
            record.flags |= flag
        } else {
            record.flags &= !flag
        }
        Ok(stored.then(|| acl.encode().into()))
    }

    pub(super) async fn remove_xattr(&mut self, ino: u64, name: &[u8]) -> Result<(), FsError> {
        let mut record = self.inode(ino).await?;
        check_name(kind_of(ino, &record)?, name)?;
        let key = xattr_key(ino, name);
        if self.get(&key).await?.is_none() {
            return Err(FsError::NoAttribute);
        }
        self.delete(key);
        match name {
            ACCESS_ACL => record.flags &= !HAS_ACL,
            DEFAULT_ACL => record.flags &= !HAS_DEFAULT_ACL,
            _ => {}
        }
        self.touch(ino, &mut record);
        self.set_inode(ino, record);
        Ok(())
    }

    /// The mode of an inode changes, and its access control list with it.
    pub(super) async fn change_mode(
        &mut self,
        ino: u64,
        record: &mut InodeRecord,
        mode: u16,
    ) -> Result<(), FsError> {
        record.mode = (mode & 0o7777).into();
        if record.flags & HAS_ACL == 0 {
            return Ok(());
        }
        let key = xattr_key(ino, ACCESS_ACL);
        let damaged = || FsError::Damaged(format!("the access control list of inode {ino}"));
        let stored = self.get(&key).await?.ok_or_else(damaged)?;
        let mut acl = Acl::decode(&stored).map_err(|_| damaged())?;
        acl.set_mode(mode);
        self.put(key, acl.encode());
        Ok(())
    }
}
