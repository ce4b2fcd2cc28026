//! Names of a naive filesystem: they come, go, and change places.

use bytes::Bytes;
use thalweg_fs::filesystem::{MAX_NAME, MAX_TARGET};
use thalweg_fs::{Attributes, Change, FsError, Ino, NewNode, Node, Rename, Timestamp};

use super::Files;
use super::attributes::inherit;
use super::inode::{Body, Inode};

pub(super) fn check_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        [] | b"." | b".." => Err(FsError::Invalid("such a name cannot be given")),
        _ if name.contains(&b'/') || name.contains(&0) => {
            Err(FsError::Invalid("a name has neither slash nor zero"))
        }
        _ if name.len() > MAX_NAME => Err(FsError::NameTooLong),
        _ => Ok(()),
    }
}

impl Files {
    pub(super) fn get(&self, ino: Ino) -> Result<&Inode, FsError> {
        self.inodes.get(&ino).ok_or(FsError::Stale)
    }

    pub(super) fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode, FsError> {
        self.inodes.get_mut(&ino).ok_or(FsError::Stale)
    }

    pub(super) fn find(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        let names = self.get(parent)?.names()?;
        if name.len() > MAX_NAME {
            return Err(FsError::NameTooLong);
        }
        names.get(name).map(|(ino, _)| *ino).ok_or(FsError::NotFound)
    }

    pub(super) fn changed(&mut self, ino: Ino, content: bool) {
        let content = content.then_some(0..u64::MAX);
        self.changes.push(Change::Inode { ino, content });
    }

    /// Sets the inode of a name; an existing name is redirected.
    pub(super) fn set_name(
        &mut self,
        parent: Ino,
        name: &[u8],
        ino: Ino,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let directory = self.get_mut(parent)?;
        directory.touch(now);
        let Body::Directory { names, next_cookie, .. } = &mut directory.body else {
            return Err(FsError::NotDirectory);
        };
        let name = Bytes::copy_from_slice(name);
        let cookie = names.get(&name).map(|(_, cookie)| *cookie);
        *next_cookie += u64::from(cookie.is_none());
        names.insert(name.clone(), (ino, cookie.unwrap_or(*next_cookie)));
        self.changed(parent, false);
        self.changes.push(Change::Name { parent, name });
        Ok(())
    }

    pub(super) fn take_name(
        &mut self,
        parent: Ino,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        let directory = self.get_mut(parent)?;
        directory.touch(now);
        if let Body::Directory { names, .. } = &mut directory.body {
            names.remove(name);
        }
        self.changed(parent, false);
        self.changes.push(Change::Name { parent, name: Bytes::copy_from_slice(name) });
        Ok(())
    }

    /// An inode has lost a name, a directory its only one.
    pub(super) fn drop_link(&mut self, ino: Ino, now: Timestamp) -> Result<(), FsError> {
        let inode = self.get_mut(ino)?;
        inode.attributes.links = match inode.is_directory() {
            true => 0,
            false => inode.attributes.links - 1,
        };
        inode.attributes.changed = now;
        self.changed(ino, false);
        self.reap(ino);
        Ok(())
    }

    /// Removes an inode without names and references.
    pub(super) fn reap(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|it| it.attributes.links == 0 && it.references == 0) {
            self.inodes.remove(&ino);
        }
    }

    /// A directory holds one directory more or less.
    pub(super) fn count_directory(&mut self, parent: Ino, more: bool) -> Result<(), FsError> {
        let links = &mut self.get_mut(parent)?.attributes.links;
        *links = if more { *links + 1 } else { *links - 1 };
        Ok(())
    }

    /// Whether `ino` is `ancestor` or below it.
    pub(super) fn is_below(&self, mut ino: Ino, ancestor: Ino) -> bool {
        loop {
            match self.inodes.get(&ino).map(|inode| &inode.body) {
                _ if ino == ancestor => return true,
                Some(Body::Directory { parent, .. }) if *parent != ino => ino = *parent,
                _ => return false,
            }
        }
    }

    pub(super) fn create(
        &mut self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
        now: Timestamp,
    ) -> Result<Attributes, FsError> {
        let directory = self.get(parent)?;
        if directory.names()?.contains_key(name) {
            return Err(FsError::Exists);
        }
        check_name(name)?;
        if directory.attributes.links == 0 {
            return Err(FsError::NotFound);
        }
        if matches!(&new.node, Node::Symlink(target) if target.len() > MAX_TARGET) {
            return Err(FsError::NameTooLong);
        }
        let ino = Ino(self.next);
        let mut inode = Inode::new(ino, new, now);
        inherit(&mut inode, directory, new.umask);
        if let Body::Directory { parent: up, .. } = &mut inode.body {
            *up = parent;
        }
        self.next += 1;
        let shown = inode.shown();
        if inode.is_directory() {
            self.count_directory(parent, true)?;
        }
        self.inodes.insert(ino, inode);
        self.set_name(parent, name, ino, now)?;
        Ok(shown)
    }

    pub(super) fn remove(
        &mut self,
        parent: Ino,
        name: &[u8],
        directory: bool,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let ino = self.find(parent, name)?;
        let inode = self.get(ino)?;
        match (inode.is_directory(), directory) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            (true, true) if !inode.names()?.is_empty() => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.take_name(parent, name, now)?;
        if directory {
            self.count_directory(parent, false)?;
        }
        self.drop_link(ino, now)
    }

    pub(super) fn rename(
        &mut self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let moved = self.find(from.0, from.1)?;
        check_name(to.1)?;
        let there = match self.find(to.0, to.1) {
            Ok(ino) => Some(ino),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let is_directory = self.get(moved)?.is_directory();
        if is_directory && self.is_below(to.0, moved) {
            return Err(FsError::Invalid("a directory cannot come below itself"));
        }
        if self.get(to.0)?.attributes.links == 0 {
            return Err(FsError::NotFound);
        }
        match (how, there) {
            (Rename::NoReplace, Some(_)) => return Err(FsError::Exists),
            (Rename::Exchange, None) => return Err(FsError::NotFound),
            // Two names of one inode: nothing is to be done.
            (_, Some(other)) if other == moved => return Ok(()),
            (Rename::Exchange, Some(other)) => {
                return self.exchange((from, moved), (to, other), now);
            }
            (Rename::Replace, Some(other)) => {
                let other = self.get(other)?;
                match (is_directory, other.is_directory()) {
                    (true, false) => return Err(FsError::NotDirectory),
                    (false, true) => return Err(FsError::IsDirectory),
                    (true, true) if !other.names()?.is_empty() => return Err(FsError::NotEmpty),
                    _ => {}
                }
            }
            (Rename::Replace | Rename::NoReplace, None) => {}
        }
        self.take_name(from.0, from.1, now)?;
        self.set_name(to.0, to.1, moved, now)?;
        if is_directory {
            self.count_directory(from.0, false)?;
            // A directory that was there makes room for this one.
            if there.is_none() {
                self.count_directory(to.0, true)?;
            }
        }
        if let Some(there) = there {
            self.drop_link(there, now)?;
        }
        self.arrived(moved, to.0, now)
    }

    pub(super) fn exchange(
        &mut self,
        (from, moved): ((Ino, &[u8]), Ino),
        (to, other): ((Ino, &[u8]), Ino),
        now: Timestamp,
    ) -> Result<(), FsError> {
        let directories = (self.get(moved)?.is_directory(), self.get(other)?.is_directory());
        if directories.1 && self.is_below(from.0, other) {
            return Err(FsError::Invalid("a directory cannot come below itself"));
        }
        self.set_name(from.0, from.1, other, now)?;
        self.set_name(to.0, to.1, moved, now)?;
        if directories.0 != directories.1 && from.0 != to.0 {
            self.count_directory(from.0, directories.1)?;
            self.count_directory(to.0, directories.0)?;
        }
        self.arrived(moved, to.0, now)?;
        self.arrived(other, from.0, now)
    }

    /// Updates the parent of a renamed inode, which is in `directory` now.
    pub(super) fn arrived(
        &mut self,
        ino: Ino,
        directory: Ino,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let inode = self.get_mut(ino)?;
        inode.attributes.changed = now;
        if let Body::Directory { parent, .. } = &mut inode.body {
            *parent = directory;
        }
        self.changed(ino, false);
        Ok(())
    }
}
