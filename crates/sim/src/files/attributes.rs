//! Attributes and bytes of a naive filesystem.

use bytes::Bytes;
use thalweg_fs::filesystem::{MAX_XATTR_NAME, MAX_XATTR_VALUE};
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, FsError, Ino, Kind, SetXattr, TimeChange, Timestamp,
    WriteAt, WriteHow,
};

use super::inode::{Inode, end_of};
use super::{ACCESS_ACL, DEFAULT_ACL, Files, SETGID};
use crate::acl::Acl;

impl Files {
    pub(super) fn set_attributes(
        &mut self,
        ino: Ino,
        change: &AttributeChange,
        now: Timestamp,
    ) -> Result<Attributes, FsError> {
        let inode = self.get_mut(ino)?;
        if let Some(size) = change.size {
            inode.resize(size)?;
            inode.touch(now);
        }
        if let Some(mode) = change.mode {
            inode.attributes.mode = mode & 0o7777;
            if let Some(mut acl) = inode.acl(ACCESS_ACL) {
                acl.set_mode(mode);
                inode.set_access_acl(&acl);
            }
        }
        let attributes = &mut inode.attributes;
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        let time = |change| match change {
            TimeChange::Now => now,
            TimeChange::At(time) => time,
        };
        attributes.accessed = change.accessed.map_or(attributes.accessed, time);
        attributes.modified = change.modified.map_or(attributes.modified, time);
        attributes.changed = now;
        if change.clear_suid {
            inode.clear_suid();
        }
        let shown = inode.shown();
        self.changed(ino, change.size.is_some());
        Ok(shown)
    }

    pub(super) fn allocate(
        &mut self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let inode = self.get_mut(ino)?;
        if len == 0 {
            return Err(FsError::Invalid("nothing to allocate"));
        }
        let keep_size = match how {
            Allocation::Punch => {
                inode.punch(offset, offset.saturating_add(len))?;
                true
            }
            Allocation::Reserve { keep_size } => {
                inode.reserve(offset, end_of(offset, len)?)?;
                keep_size
            }
            Allocation::Zero { keep_size } => {
                let end = end_of(offset, len)?;
                inode.punch(offset, end)?;
                inode.reserve(offset, end)?;
                keep_size
            }
        };
        if !keep_size {
            inode.attributes.size = inode.attributes.size.max(offset + len);
        }
        inode.touch(now);
        self.changed(ino, true);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        ino: Ino,
        at: WriteAt,
        data: &[u8],
        how: WriteHow,
        now: Timestamp,
    ) -> Result<u64, FsError> {
        let inode = self.get_mut(ino)?;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => inode.attributes.size,
        };
        inode.blocks()?;
        end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(offset);
        }
        inode.write(offset, data)?;
        inode.touch(now);
        if how.clear_suid {
            inode.clear_suid();
        }
        self.changed(ino, true);
        Ok(offset)
    }

    pub(super) fn set_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
        now: Timestamp,
    ) -> Result<(), FsError> {
        check_xattr_name(name)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(FsError::AttributeTooLarge);
        }
        let inode = self.get_mut(ino)?;
        match (how, inode.xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(FsError::Exists),
            (SetXattr::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        match name {
            ACCESS_ACL | DEFAULT_ACL => {
                let acl = Acl::decode(&value).ok_or(FsError::Invalid("no access control list"))?;
                match name {
                    ACCESS_ACL => inode.set_access_acl(&acl),
                    _ if !inode.is_directory() => return Err(FsError::NotPermitted),
                    _ => drop(inode.xattrs.insert(Bytes::copy_from_slice(name), value)),
                }
            }
            _ => drop(inode.xattrs.insert(Bytes::copy_from_slice(name), value)),
        }
        inode.attributes.changed = now;
        self.changed(ino, false);
        Ok(())
    }
}

/// Sets what a new inode inherits from its directory: the group, set-group-id, and access control lists.
pub(super) fn inherit(inode: &mut Inode, directory: &Inode, umask: u16) {
    if directory.attributes.mode & SETGID != 0 {
        inode.attributes.gid = directory.attributes.gid;
        if inode.is_directory() {
            inode.attributes.mode |= SETGID;
        }
    }
    if inode.attributes.kind == Kind::Symlink {
        return;
    }
    match directory.acl(DEFAULT_ACL) {
        None => inode.attributes.mode &= !(umask & 0o777),
        Some(default) => {
            let mut access = default.clone();
            access.mask_with(inode.attributes.mode);
            inode.set_access_acl(&access);
            if inode.is_directory() {
                inode.xattrs.insert(Bytes::from_static(DEFAULT_ACL), default.encode());
            }
        }
    }
}

pub(super) fn check_xattr_name(name: &[u8]) -> Result<(), FsError> {
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let in_space = |space: &&[u8]| name.len() > space.len() && name.starts_with(space);
    if name == ACCESS_ACL || name == DEFAULT_ACL || spaces.iter().any(in_space) {
        return if name.len() > MAX_XATTR_NAME { Err(FsError::AttributeTooLarge) } else { Ok(()) };
    }
    Err(FsError::NotSupported)
}
