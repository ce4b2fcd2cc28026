//! Names in directories.
//!
//! A name lies where its hash says, in the first vacant one of 256 slots. Names with the same hash follow
//! without gaps: a removed name leaves a vacant slot if another one may follow.

use std::hash::Hasher;

use bytes::Bytes;
use siphasher::sip::SipHasher13;

use super::format::{
    DirectoryEntry, HAS_ACL, HAS_DEFAULT_ACL, HAS_XATTRS, InodeRecord, MAX_SLOTS, Place, Tag,
    encode_kind, key, key_behind,
};
use super::inner::Inner;
use super::op::{Op, attributes_of, kind_of};
use super::xattrs;
use crate::acl::Acl;
use crate::answer::Answer;
use crate::attributes::{Attributes, Ino, Kind};
use crate::error::FsError;
use crate::filesystem::{Cookie, Entry, MAX_LINKS, MAX_NAME, MAX_TARGET, NewNode, Node, Rename};

/// Set-group-id.
const SGID: u16 = 0o2000;

/// The key of a place in a directory.
pub(super) fn place_key(directory: u64, position: u64) -> Vec<u8> {
    key(directory, Tag::Entry, &position.to_be_bytes())
}

/// The place that the key of a record stands for.
pub(super) fn position_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(9..)?.try_into().ok()?))
}

impl Inner {
    /// The first slot of a name's hash.
    pub(super) fn position(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(name);
        let hash = hasher.finish() >> (64 - u32::from(self.hash_bits));
        hash.max(1) * MAX_SLOTS
    }
}

/// The result of a search for a name.
#[derive(Debug)]
struct Found {
    /// Its slot and its entry.
    entry: Option<(u64, DirectoryEntry)>,
    /// The place that it would take.
    free: Option<u64>,
}

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

fn damaged_place(directory: u64) -> FsError {
    FsError::Damaged(format!("a name in directory {directory} is invalid"))
}

impl Op<'_> {
    async fn place(&self, directory: u64, position: u64) -> Result<Option<Place>, FsError> {
        let value = self.get(&place_key(directory, position)).await?;
        let decode = |value| Place::decode(&value).ok_or_else(|| damaged_place(directory));
        value.map(decode).transpose()
    }

    fn put_place(&mut self, directory: u64, position: u64, place: &Place) {
        self.put(place_key(directory, position), place.encode());
    }

    async fn find(&self, directory: u64, name: &[u8]) -> Result<Found, FsError> {
        let first = self.inner.position(name);
        let mut free = None;
        for position in first..first + MAX_SLOTS {
            match self.place(directory, position).await? {
                None => return Ok(Found { entry: None, free: free.or(Some(position)) }),
                Some(Place::Vacant) => free = free.or(Some(position)),
                Some(Place::Taken(entry)) => {
                    let (found, chained) = (entry.name == name, entry.chained);
                    if found {
                        return Ok(Found { entry: Some((position, entry)), free });
                    }
                    if !chained {
                        let next = free.or(Some(position + 1));
                        let free = next.filter(|next| *next < first + MAX_SLOTS);
                        return Ok(Found { entry: None, free });
                    }
                }
            }
        }
        Ok(Found { entry: None, free })
    }

    /// The entry of a name.
    ///
    /// # Errors
    /// [`FsError::NotFound`]
    async fn entry(&self, directory: u64, name: &[u8]) -> Result<DirectoryEntry, FsError> {
        let found = self.find(directory, name).await?;
        found.entry.map(|(_, entry)| entry).ok_or(FsError::NotFound)
    }

    /// Adds a name that does not exist yet to a directory, and sets the directory's times.
    pub(super) async fn add_name(
        &mut self,
        directory: u64,
        name: &[u8],
        ino: u64,
        kind: Kind,
    ) -> Result<(), FsError> {
        let free = self.find(directory, name).await?.free.ok_or(FsError::NoSpace)?;
        if !free.is_multiple_of(MAX_SLOTS)
            && let Some(Place::Taken(before)) = self.place(directory, free - 1).await?
            && !before.chained
        {
            let before = DirectoryEntry { chained: true, ..before };
            self.put_place(directory, free - 1, &Place::Taken(before));
        }
        // Names may still follow the slot of a removed one.
        let chained = self.place(directory, free).await?.is_some();
        let name = Bytes::copy_from_slice(name);
        let entry = DirectoryEntry { ino, kind, chained, name: name.clone() };
        self.put_place(directory, free, &Place::Taken(entry));
        let mut record = self.directory(directory).await?;
        record.size = (record.size.get() + 1).into();
        self.touch_directory(directory, record);
        self.note_name(directory, &name);
        Ok(())
    }

    /// Takes a name out of a directory.
    async fn remove_name(&mut self, directory: u64, name: &[u8]) -> Result<(), FsError> {
        let found = self.find(directory, name).await?;
        let (position, entry) = found.entry.ok_or(FsError::NotFound)?;
        match entry.chained || !position.is_multiple_of(MAX_SLOTS) {
            true => self.put_place(directory, position, &Place::Vacant),
            false => self.delete(place_key(directory, position)),
        }
        let mut record = self.directory(directory).await?;
        record.size = record.size.get().saturating_sub(1).into();
        self.touch_directory(directory, record);
        self.note_name(directory, name);
        Ok(())
    }

    /// Has a name lead to another inode.
    async fn redirect(
        &mut self,
        directory: u64,
        name: &[u8],
        ino: u64,
        kind: Kind,
    ) -> Result<(), FsError> {
        let found = self.find(directory, name).await?;
        let (position, entry) = found.entry.ok_or(FsError::NotFound)?;
        self.put_place(directory, position, &Place::Taken(DirectoryEntry { ino, kind, ..entry }));
        let record = self.directory(directory).await?;
        self.touch_directory(directory, record);
        self.note_name(directory, name);
        Ok(())
    }

    fn touch_directory(&mut self, directory: u64, mut record: InodeRecord) {
        (record.modified, record.changed) = (self.now.into(), self.now.into());
        self.set_inode(directory, record);
    }

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
            _ => match self.entry(parent, name).await {
                Ok(entry) => entry.ino,
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
        check_name(name)?;
        let directory = self.living_directory(parent).await?;
        if self.find(parent, name).await?.entry.is_some() {
            return Err(FsError::Exists);
        }
        let (kind, size, rdev) = match &new.node {
            Node::File => (Kind::File, 0, 0),
            Node::Directory => (Kind::Directory, 0, 0),
            Node::Symlink(target) => (Kind::Symlink, target.len() as u64, 0),
            Node::BlockDevice(rdev) => (Kind::BlockDevice, 0, *rdev),
            Node::CharDevice(rdev) => (Kind::CharDevice, 0, *rdev),
            Node::Fifo => (Kind::Fifo, 0, 0),
            Node::Socket => (Kind::Socket, 0, 0),
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
            spare: 0.into(),
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
        self.add_name(parent, name, ino, kind).await?;
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
        let default = match directory.flags & HAS_DEFAULT_ACL != 0 {
            true => self.get(&xattrs::xattr_key(parent, xattrs::DEFAULT_ACL)).await?,
            false => None,
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
            self.put(xattrs::xattr_key(ino, xattrs::ACCESS_ACL), access.encode());
            record.flags |= HAS_XATTRS | HAS_ACL;
        }
        if kind == Kind::Directory {
            self.put(xattrs::xattr_key(ino, xattrs::DEFAULT_ACL), default);
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
        if self.find(parent, name).await?.entry.is_some() {
            return Err(FsError::Exists);
        }
        if record.quota != directory.quota {
            return Err(FsError::CrossQuota);
        }
        record.links = (record.links.get() + 1).into();
        record.changed = self.now.into();
        self.set_inode(ino, record);
        self.add_name(parent, name, ino, kind).await?;
        attributes_of(ino, &record)
    }

    pub(super) async fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<(), FsError> {
        check_length(name)?;
        self.directory(parent).await?;
        let entry = self.entry(parent, name).await?;
        if entry.kind == Kind::Directory {
            return Err(FsError::IsDirectory);
        }
        self.remove_name(parent, name).await?;
        self.drop_link(entry.ino).await
    }

    /// Removes one link of an inode that is no directory.
    async fn drop_link(&mut self, ino: u64) -> Result<(), FsError> {
        let mut record = self.named_inode(ino).await?;
        record.links = record.links.get().saturating_sub(1).into();
        record.changed = self.now.into();
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
        let entry = self.entry(parent, name).await?;
        if entry.kind != Kind::Directory {
            return Err(FsError::NotDirectory);
        }
        self.remove_name(parent, name).await?;
        self.count_subdirectory(parent, -1).await?;
        self.drop_directory(entry.ino).await
    }

    /// Removes an empty directory whose name is gone.
    async fn drop_directory(&mut self, ino: u64) -> Result<(), FsError> {
        let mut record = self.named_inode(ino).await?;
        if record.size.get() > 0 {
            return Err(FsError::NotEmpty);
        }
        record.links = 0.into();
        record.changed = self.now.into();
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
        let source = self.entry(from.0, from.1).await?;
        let there = self.find(to.0, to.1).await?.entry.map(|(_, entry)| entry);
        match (&there, how) {
            (Some(_), Rename::NoReplace) => return Err(FsError::Exists),
            (None, Rename::Exchange) => return Err(FsError::NotFound),
            (Some(there), _) if there.ino == source.ino => return Ok(()),
            _ => {}
        }
        self.check_move(source.ino, source.kind, from.0, to.0, target.quota.get()).await?;
        if let (Some(there), Rename::Exchange) = (&there, how) {
            let quota = self.directory(from.0).await?.quota.get();
            self.check_move(there.ino, there.kind, to.0, from.0, quota).await?;
            self.redirect(from.0, from.1, there.ino, there.kind).await?;
            self.redirect(to.0, to.1, source.ino, source.kind).await?;
            self.moved(there.ino, there.kind, to.0, from.0).await?;
            return self.moved(source.ino, source.kind, from.0, to.0).await;
        }
        match there {
            None => {
                self.remove_name(from.0, from.1).await?;
                self.add_name(to.0, to.1, source.ino, source.kind).await?;
            }
            Some(there) => {
                let kinds = (source.kind == Kind::Directory, there.kind == Kind::Directory);
                match kinds {
                    (true, false) => return Err(FsError::NotDirectory),
                    (false, true) => return Err(FsError::IsDirectory),
                    (true, true) => {
                        self.drop_directory(there.ino).await?;
                        self.count_subdirectory(to.0, -1).await?;
                    }
                    (false, false) => self.drop_link(there.ino).await?,
                }
                self.redirect(to.0, to.1, source.ino, source.kind).await?;
                self.remove_name(from.0, from.1).await?;
            }
        }
        self.moved(source.ino, source.kind, from.0, to.0).await
    }

    /// Checks that something may go to another directory: a directory not below itself, and nothing
    /// to where it would count for another quota.
    async fn check_move(
        &mut self,
        ino: u64,
        kind: Kind,
        from: u64,
        to: u64,
        quota: u64,
    ) -> Result<(), FsError> {
        let record = self.named_inode(ino).await?;
        // The root of a quota counts for it in any directory; the directory has none, or another.
        if from != to && record.quota.get() != quota && record.quota.get() != ino {
            return Err(FsError::CrossQuota);
        }
        if kind != Kind::Directory || from == to {
            return match ino == to {
                true => Err(FsError::Invalid("a directory cannot go below itself")),
                false => Ok(()),
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
    async fn moved(&mut self, ino: u64, kind: Kind, from: u64, to: u64) -> Result<(), FsError> {
        let mut record = self.named_inode(ino).await?;
        record.changed = self.now.into();
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
        let mut iter = self.inner.tree.range_in(self.txn.clone(), range)?;
        let mut entries = Vec::new();
        while entries.len() < most
            && let Some((key, value)) = iter.next().await?
        {
            let position = position_of(&key).ok_or_else(|| damaged_place(ino))?;
            let place = Place::decode(&value).ok_or_else(|| damaged_place(ino))?;
            let Place::Taken(entry) = place else { continue };
            let attributes = match attributes {
                true => Some(attributes_of(entry.ino, &self.named_inode(entry.ino).await?)?),
                false => None,
            };
            let attributes = attributes.map(Answer::until_changed);
            let (name, cookie) = (entry.name, Cookie(position));
            entries.push(Entry { name, ino: Ino(entry.ino), kind: entry.kind, cookie, attributes });
        }
        Ok(entries)
    }
}
