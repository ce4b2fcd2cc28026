//! Names in directories, and the inodes that they lead to.

use bytes::Bytes;

use super::dir_slots::{FreeSlot, damaged_place, place_key, position_of};
use super::format::{
    DirSlot, DirectoryEntry, HAS_ACL, HAS_DEFAULT_ACL, HAS_XATTRS, InodeRecord, LOST_NAME, Tag,
    encode_kind, key, key_behind,
};
use super::fs_call::FsCall;
use super::records::{attributes_of, kind_of};
use super::xattrs;
use crate::acl::Acl;
use crate::answer::Answer;
use crate::attributes::{Attributes, Ino, Kind};
use crate::error::FsError;
use crate::filesystem::{Cookie, Entry, MAX_LINKS, MAX_NAME, MAX_TARGET, NewNode, Node, Rename};
use crate::xattr_name::{ACCESS_ACL, DEFAULT_ACL};

/// Set-group-id.
const SGID: u16 = 0o2000;

/// Checks a name that is to be looked for.
fn check_length(name: &[u8]) -> Result<(), FsError> {
    match name.len() {
        0 => Err(FsError::NotFound),
        1..=MAX_NAME => Ok(()),
        _ => Err(FsError::NameTooLong),
    }
}

/// Checks a name that is to be.
fn check_name(name: &[u8]) -> Result<(), FsError> {
    check_length(name)?;
    match name {
        b"." | b".." => Err(FsError::Invalid("the name stands for a directory already")),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => {
            Err(FsError::Invalid("a name has no slash and no zero"))
        }
        _ => Ok(()),
    }
}

/// Where a new name comes: its directory as it is, and the slot there.
#[derive(Debug)]
pub(super) struct PlaceOfNew {
    directory: InodeRecord,
    slot: FreeSlot,
}

impl FsCall<'_> {
    /// A directory that may get names.
    async fn living_directory(&mut self, ino: u64) -> Result<InodeRecord, FsError> {
        let record = self.directory(ino).await?;
        match record.links.get() {
            0 => Err(FsError::NotFound),
            _ => Ok(record),
        }
    }

    /// Changes the link count of a directory for its subdirectories.
    pub(super) async fn count_subdirectory(
        &mut self,
        directory: u64,
        by: i32,
    ) -> Result<(), FsError> {
        let mut record = self.directory(directory).await?;
        if by > 0 && record.links.get() >= MAX_LINKS {
            return Err(FsError::TooManyLinks);
        }
        record.links = record.links.get().saturating_add_signed(by).into();
        self.set_inode(directory, record);
        Ok(())
    }

    pub(super) async fn lookup(&mut self, parent: u64, name: &[u8]) -> Result<Attributes, FsError> {
        check_length(name)?;
        let ino = match name {
            b"." => self.directory(parent).await.map(|_| parent)?,
            b".." => self.directory(parent).await?.parent.get(),
            _ => match self.existing(parent, name).await {
                Ok(there) => there.entry.ino,
                Err(FsError::NotFound) => {
                    // Distinguishes a missing name from a parent that is no directory.
                    self.directory(parent).await?;
                    return Err(FsError::NotFound);
                }
                Err(error) => return Err(error),
            },
        };
        let record = self.named_inode(ino).await?;
        attributes_of(ino, &record)
    }

    /// Makes an inode; its number comes from outside of the transaction.
    pub(super) async fn create(
        &mut self,
        parent: u64,
        name: &[u8],
        new: &NewNode,
        ino: u64,
    ) -> Result<Attributes, FsError> {
        let place = self.place_of_new(parent, name).await?;
        self.create_at(place, (parent, name), new, ino).await
    }

    /// Where a new name of a directory comes.
    ///
    /// # Errors
    /// [`FsError::Exists`], and those of the directory.
    pub(super) async fn place_of_new(
        &mut self,
        parent: u64,
        name: &[u8],
    ) -> Result<PlaceOfNew, FsError> {
        check_name(name)?;
        let directory = self.living_directory(parent).await?;
        Ok(PlaceOfNew { directory, slot: self.absent(parent, name).await? })
    }

    /// [`FsCall::create`] in a place that was found before, in the same call.
    pub(super) async fn create_at(
        &mut self,
        PlaceOfNew { directory, slot }: PlaceOfNew,
        (parent, name): (u64, &[u8]),
        new: &NewNode,
        ino: u64,
    ) -> Result<Attributes, FsError> {
        let kind = new.node.kind();
        let (size, rdev) = match &new.node {
            Node::Symlink(target) => (target.len() as u64, 0),
            Node::BlockDevice(rdev) | Node::CharDevice(rdev) => (0, *rdev),
            Node::File | Node::Directory | Node::Fifo | Node::Socket => (0, 0),
        };
        let is_directory = kind == Kind::Directory;
        let inherits = directory.mode.get() & SGID != 0;
        let mut record = InodeRecord {
            mode: (new.mode & 0o7777).into(),
            kind: encode_kind(kind),
            flags: 0,
            links: if is_directory { 2 } else { 1 }.into(),
            modified: self.now.into(),
            changed: self.now.into(),
            size: size.into(),
            blocks: 0.into(),
            accessed: self.now.into(),
            created: self.now.into(),
            uid: new.uid.into(),
            gid: if inherits { directory.gid } else { new.gid.into() },
            rdev: rdev.into(),
            write_bound: 0.into(),
            parent: parent.into(),
            quota: directory.quota,
        };
        self.inherit(parent, &directory, ino, &mut record, new.umask).await?;
        if is_directory && inherits {
            record.mode = (record.mode.get() | SGID).into();
        }
        if let Node::Symlink(target) = &new.node {
            if target.is_empty() || target.len() > MAX_TARGET {
                return Err(FsError::NameTooLong);
            }
            self.put(key(ino, Tag::Target, &[]), target.clone());
        }
        self.charge(record.quota.get(), 0, 1).await?;
        self.set_inode(ino, record);
        self.effects.count += 1;
        self.add_name(parent, name, slot, (ino, kind)).await?;
        if is_directory {
            self.count_subdirectory(parent, 1).await?;
        }
        attributes_of(ino, &record)
    }

    /// Gives a new inode its mode and the access control lists that it inherits from the directory.
    async fn inherit(
        &mut self,
        parent: u64,
        directory: &InodeRecord,
        ino: u64,
        record: &mut InodeRecord,
        umask: u16,
    ) -> Result<(), FsError> {
        let kind = kind_of(ino, record)?;
        if kind == Kind::Symlink {
            return Ok(());
        }
        let default = if directory.flags & HAS_DEFAULT_ACL != 0 {
            self.get(&xattrs::xattr_key(parent, DEFAULT_ACL)).await?
        } else {
            None
        };
        let Some(default) = default else {
            record.mode = (record.mode.get() & !(umask & 0o777)).into();
            return Ok(());
        };
        let damaged = || FsError::Damaged(format!("the default list of directory {parent}"));
        let mut access = Acl::decode(&default).map_err(|_| damaged())?;
        let mode = access.inherit(record.mode.get());
        record.mode = mode.into();
        if !access.is_mode() {
            self.put(xattrs::xattr_key(ino, ACCESS_ACL), access.encode());
            record.flags |= HAS_XATTRS | HAS_ACL;
        }
        if kind == Kind::Directory {
            self.put(xattrs::xattr_key(ino, DEFAULT_ACL), default);
            record.flags |= HAS_XATTRS | HAS_DEFAULT_ACL;
        }
        Ok(())
    }

    pub(super) async fn link(
        &mut self,
        ino: u64,
        parent: u64,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        check_name(name)?;
        let directory = self.living_directory(parent).await?;
        let mut record = self.inode(ino).await?;
        let kind = kind_of(ino, &record)?;
        match record.links.get() {
            _ if kind == Kind::Directory => return Err(FsError::NotPermitted),
            0 => return Err(FsError::NotFound),
            MAX_LINKS.. => return Err(FsError::TooManyLinks),
            _ => {}
        }
        let slot = self.absent(parent, name).await?;
        if record.quota != directory.quota {
            return Err(FsError::CrossQuota);
        }
        record.links = (record.links.get() + 1).into();
        self.touch(ino, &mut record);
        self.set_inode(ino, record);
        self.add_name(parent, name, slot, (ino, kind)).await?;
        attributes_of(ino, &record)
    }

    pub(super) async fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<(), FsError> {
        check_length(name)?;
        self.directory(parent).await?;
        let there = self.existing(parent, name).await?;
        let ino = there.entry.ino;
        if there.entry.kind == Kind::Directory {
            return Err(FsError::IsDirectory);
        }
        self.remove_name(parent, there).await?;
        self.drop_link(ino).await
    }

    /// Removes one link of an inode that is no directory.
    async fn drop_link(&mut self, ino: u64) -> Result<(), FsError> {
        let mut record = self.named_inode(ino).await?;
        let links = record.links.get().checked_sub(1);
        let links = links.ok_or_else(|| {
            FsError::Damaged(format!("inode {ino} has a name, and its record counts no link"))
        })?;
        record.links = links.into();
        self.touch(ino, &mut record);
        if record.links.get() > 0 && record.quota.get() != 0 {
            record.flags |= LOST_NAME;
        }
        self.set_inode(ino, record);
        match record.links.get() {
            0 => self.abandon(ino).await,
            _ => Ok(()),
        }
    }

    pub(super) async fn remove_directory(
        &mut self,
        parent: u64,
        name: &[u8],
    ) -> Result<(), FsError> {
        match name {
            b"." => return Err(FsError::Invalid("a directory cannot be removed by itself")),
            b".." => return Err(FsError::NotEmpty),
            _ => check_length(name)?,
        }
        self.directory(parent).await?;
        let there = self.existing(parent, name).await?;
        let ino = there.entry.ino;
        if there.entry.kind != Kind::Directory {
            return Err(FsError::NotDirectory);
        }
        self.remove_name(parent, there).await?;
        self.count_subdirectory(parent, -1).await?;
        self.drop_directory(ino).await
    }

    /// Removes an empty directory whose name is gone.
    async fn drop_directory(&mut self, ino: u64) -> Result<(), FsError> {
        let mut record = self.named_inode(ino).await?;
        if record.size.get() > 0 {
            return Err(FsError::NotEmpty);
        }
        record.links = 0.into();
        self.touch(ino, &mut record);
        self.set_inode(ino, record);
        self.abandon(ino).await
    }

    pub(super) async fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        how: Rename,
    ) -> Result<(), FsError> {
        check_name(from.1)?;
        check_name(to.1)?;
        self.directory(from.0).await?;
        let target = self.living_directory(to.0).await?;
        let old = self.existing(from.0, from.1).await?;
        let source = (old.entry.ino, old.entry.kind);
        let there = self.find(to.0, to.1).await?.found;
        match (&there, how) {
            (Some(_), Rename::NoReplace) => return Err(FsError::Exists),
            (None, Rename::Exchange) => return Err(FsError::NotFound),
            (Some(there), _) if there.entry.ino == source.0 => return Ok(()),
            _ => {}
        }
        self.check_move(source, from.0, to.0, target.quota.get()).await?;
        match there {
            Some(there) if how == Rename::Exchange => {
                let replaced = (there.entry.ino, there.entry.kind);
                let quota = self.directory(from.0).await?.quota.get();
                self.check_move(replaced, to.0, from.0, quota).await?;
                self.redirect(from.0, old, replaced).await?;
                self.redirect(to.0, there, source).await?;
                self.moved(replaced, to.0, from.0).await?;
            }
            Some(there) => {
                self.drop_replaced(&there.entry, source.1, to.0).await?;
                self.redirect(to.0, there, source).await?;
                self.remove_name(from.0, old).await?;
            }
            None => {
                self.remove_name(from.0, old).await?;
                // Searched again: the removal may have changed the slots of names with the same hash.
                let slot = self.absent(to.0, to.1).await?;
                self.add_name(to.0, to.1, slot, source).await?;
            }
        }
        self.moved(source, from.0, to.0).await
    }

    /// Drops what a renamed inode of `kind` replaces in a directory.
    async fn drop_replaced(
        &mut self,
        there: &DirectoryEntry,
        kind: Kind,
        directory: u64,
    ) -> Result<(), FsError> {
        match (kind == Kind::Directory, there.kind == Kind::Directory) {
            (true, false) => Err(FsError::NotDirectory),
            (false, true) => Err(FsError::IsDirectory),
            (true, true) => {
                self.drop_directory(there.ino).await?;
                self.count_subdirectory(directory, -1).await
            }
            (false, false) => self.drop_link(there.ino).await,
        }
    }

    /// Checks that something may go to another directory: a directory not below itself, and nothing
    /// to where it would count for another quota.
    async fn check_move(
        &mut self,
        (ino, kind): (u64, Kind),
        from: u64,
        to: u64,
        quota: u64,
    ) -> Result<(), FsError> {
        let mut record = self.named_inode(ino).await?;
        // The root of a quota counts for it in any directory; the directory has none, or another.
        if from != to && record.quota.get() != quota && record.quota.get() != ino {
            // A file counts for the quota of a name that it lost, until now.
            let strays = record.links.get() == 1 && record.flags & LOST_NAME != 0;
            if !strays || self.directory(from).await?.quota.get() != quota {
                return Err(FsError::CrossQuota);
            }
            record.flags &= !LOST_NAME;
            self.recount(ino, &mut record, quota).await?;
        }
        if kind != Kind::Directory || from == to {
            return if ino == to {
                Err(FsError::Invalid("a directory cannot go below itself"))
            } else {
                Ok(())
            };
        }
        let (mut at, mut steps) = (to, 0u64);
        while at != Ino::ROOT.0 {
            if at == ino {
                return Err(FsError::Invalid("a directory cannot go below itself"));
            }
            steps += 1;
            if steps > u64::from(MAX_LINKS) {
                return Err(FsError::Damaged(format!("no way leads from {to} to the root")));
            }
            at = self.named_inode(at).await?.parent.get();
        }
        Ok(())
    }

    /// Something got another name, perhaps in another directory.
    async fn moved(&mut self, (ino, kind): (u64, Kind), from: u64, to: u64) -> Result<(), FsError> {
        let mut record = self.named_inode(ino).await?;
        self.touch(ino, &mut record);
        if from != to {
            record.parent = to.into();
        }
        self.set_inode(ino, record);
        if kind == Kind::Directory && from != to {
            self.count_subdirectory(from, -1).await?;
            self.count_subdirectory(to, 1).await?;
        }
        Ok(())
    }

    pub(super) async fn read_link(&mut self, ino: u64) -> Result<Bytes, FsError> {
        let record = self.inode(ino).await?;
        if kind_of(ino, &record)? != Kind::Symlink {
            return Err(FsError::Invalid("it is no symbolic link"));
        }
        let target = self.get(&key(ino, Tag::Target, &[])).await?;
        target.ok_or_else(|| FsError::Damaged(format!("symbolic link {ino} has no target")))
    }

    pub(super) async fn read_directory(
        &mut self,
        ino: u64,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError> {
        self.directory(ino).await?;
        let start = place_key(ino, from.0.saturating_add(1));
        let range = start..key_behind(ino, Tag::Entry);
        let mut scan = self.scan(range)?;
        let (mut entries, mut last) = (Vec::new(), from.0);
        while entries.len() < most
            && let Some((key, value)) = self.next(&mut scan).await?
        {
            // In a damaged tree keys may not be in order: a reader that goes back would never end.
            let position = position_of(&key).filter(|at| *at > last);
            let position = position.ok_or_else(|| damaged_place(ino))?;
            last = position;
            let place = DirSlot::decode(&value).ok_or_else(|| damaged_place(ino))?;
            let DirSlot::Taken(entry) = place else { continue };
            let attributes = if attributes {
                Some(attributes_of(entry.ino, &self.named_inode(entry.ino).await?)?)
            } else {
                None
            };
            let attributes = attributes.map(Answer::until_changed);
            let (name, cookie) = (entry.name, Cookie(position));
            entries.push(Entry { name, ino: Ino(entry.ino), kind: entry.kind, cookie, attributes });
        }
        Ok(entries)
    }
}
