//! The calls of [`Filesystem`] on a naive filesystem.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_fs::filesystem::MAX_LINKS;
use thalweg_fs::{
    Allocation, Answer, AttributeChange, Caller, Cookie, Entry, Filesystem, FsError, Handle, Ino,
    Level, Lock, LockKind, LockOwner, LockRange, Lookup, NewNode, OpenFlags, Opened, Rename, Seek,
    SetXattr, Statistics, Watcher, WriteAt, WriteHow,
};

use super::attributes::check_xattr_name;
use super::inode::Body;
use super::names::check_name;
use super::{BLOCK, BLOCKS, NaiveFiles};

#[async_trait]
impl Filesystem for NaiveFiles {
    fn is_read_only(&self) -> bool {
        self.shared.read_only.load(Ordering::SeqCst)
    }

    async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Lookup, FsError> {
        let files = self.shared.files.lock();
        match files.find(parent, name) {
            Ok(ino) => Ok(Lookup::Found(self.answer(files.get(ino)?))),
            Err(FsError::NotFound) => Ok(Lookup::Absent(self.shared.valid.lock().entry)),
            Err(error) => Err(error),
        }
    }

    async fn parent(&self, directory: Ino) -> Result<Ino, FsError> {
        match self.shared.files.lock().get(directory)?.body {
            Body::Directory { parent, .. } => Ok(parent),
            _ => Err(FsError::NotDirectory),
        }
    }

    async fn attributes(&self, ino: Ino) -> Result<Answer, FsError> {
        Ok(self.answer(self.shared.files.lock().get(ino)?))
    }

    async fn set_attributes(&self, ino: Ino, change: &AttributeChange) -> Result<Answer, FsError> {
        self.change(|files, now| files.set_attributes(ino, change, now))
            .map(|attributes| self.answer_of(attributes))
    }

    async fn create(&self, parent: Ino, name: &[u8], new: &NewNode) -> Result<Answer, FsError> {
        self.change(|files, now| files.create(parent, name, new, now))
            .map(|attributes| self.answer_of(attributes))
    }

    async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Answer, FsError> {
        self.change(|files, now| {
            if files.get(parent)?.names()?.contains_key(name) {
                return Err(FsError::Exists);
            }
            check_name(name)?;
            let inode = files.get(ino)?;
            match inode.attributes.links {
                _ if inode.is_directory() => return Err(FsError::NotPermitted),
                0 => return Err(FsError::NotFound),
                MAX_LINKS.. => return Err(FsError::TooManyLinks),
                _ if files.get(parent)?.attributes.links == 0 => return Err(FsError::NotFound),
                _ => {}
            }
            files.set_name(parent, name, ino, now)?;
            let inode = files.get_mut(ino)?;
            inode.attributes.links += 1;
            inode.attributes.changed = now;
            let answer = self.answer(inode);
            files.changed(ino, false);
            Ok(answer)
        })
    }

    async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.change(|files, now| files.remove(parent, name, false, now))
    }

    async fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.change(|files, now| files.remove(parent, name, true, now))
    }

    async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<(), FsError> {
        self.change(|files, now| files.rename(from, to, how, now))
    }

    async fn read_link(&self, ino: Ino) -> Result<Bytes, FsError> {
        match &self.shared.files.lock().get(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(FsError::Invalid("it is no symbolic link")),
        }
    }

    async fn read_directory(
        &self,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError> {
        let files = self.shared.files.lock();
        let names = files.get(ino)?.names()?.iter();
        let mut rest: Vec<_> = names.filter(|(_, (_, cookie))| *cookie > from.0).collect();
        rest.sort_by_key(|(_, (_, cookie))| *cookie);
        rest.truncate(most);
        let entry = |(name, (ino, cookie)): (&Bytes, &(Ino, u64))| {
            let answer = self.answer(files.get(*ino)?);
            Ok(Entry {
                name: name.clone(),
                ino: *ino,
                kind: answer.kind,
                cookie: Cookie(*cookie),
                attributes: attributes.then_some(answer),
            })
        };
        rest.into_iter().map(entry).collect()
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        let bytes = self.shared.files.lock().get(ino)?.read(offset, len as u64)?;
        Ok(if bytes.is_empty() { Vec::new() } else { vec![bytes.into()] })
    }

    async fn write(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        self.change(|files, now| files.write(ino, at, &data.concat(), how, now))
    }

    async fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
    ) -> Result<(), FsError> {
        self.change(|files, now| files.allocate(ino, offset, len, how, now))
    }

    async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, FsError> {
        let files = self.shared.files.lock();
        let inode = files.get(ino)?;
        let (blocks, size) = (inode.blocks()?, inode.attributes.size);
        if offset >= size {
            return Err(FsError::NothingThere);
        }
        let mut numbers = offset / BLOCK..size.div_ceil(BLOCK);
        let found = match what {
            Seek::Data => numbers.find(|number| blocks.contains_key(number)),
            Seek::Hole => numbers.find(|number| !blocks.contains_key(number)),
        };
        match (found, what) {
            (Some(number), _) => Ok(offset.max(number * BLOCK)),
            (None, Seek::Hole) => Ok(size),
            (None, Seek::Data) => Err(FsError::NothingThere),
        }
    }

    async fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, FsError> {
        self.change(|files, now| {
            let bytes = files.get(from.0)?.read(from.1, len)?;
            files.write(to.0, WriteAt::Offset(to.1), &bytes, WriteHow::default(), now)?;
            Ok(bytes.len() as u64)
        })
    }

    async fn sync(&self, ino: Ino, _content_only: bool) -> Result<(), FsError> {
        self.shared.files.lock().get(ino).map(drop)
    }

    async fn sync_all(&self) -> Result<(), FsError> {
        Ok(())
    }

    /// Nothing crashes.
    async fn level(&self, ino: Ino) -> Result<Level, FsError> {
        self.shared.files.lock().get(ino).map(|_| Level::Server)
    }

    async fn wait_for(&self, ino: Ino, level: Level, _: Duration) -> Result<bool, FsError> {
        match level {
            Level::Replicas => Err(FsError::NoReplicas),
            level => self.level(ino).await.map(|come| come >= level),
        }
    }

    async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        check_xattr_name(name)?;
        let files = self.shared.files.lock();
        files.get(ino)?.xattrs.get(name).cloned().ok_or(FsError::NoAttribute)
    }

    async fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
    ) -> Result<(), FsError> {
        self.change(|files, now| files.set_xattr(ino, name, value, how, now))
    }

    async fn xattrs(&self, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        Ok(self.shared.files.lock().get(ino)?.xattrs.keys().cloned().collect())
    }

    async fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        check_xattr_name(name)?;
        self.change(|files, now| {
            let inode = files.get_mut(ino)?;
            inode.xattrs.remove(name).ok_or(FsError::NoAttribute)?;
            inode.attributes.changed = now;
            files.changed(ino, false);
            Ok(())
        })
    }

    async fn statistics(&self) -> Result<Statistics, FsError> {
        let files = self.shared.files.lock();
        let used: u64 = files.inodes.values().map(|inode| inode.shown().stored / BLOCK).sum();
        Ok(Statistics {
            block: BLOCK as u32,
            blocks: BLOCKS,
            free: BLOCKS.saturating_sub(used),
            inodes: (files.inodes.len() as u64, u64::from(u32::MAX)),
        })
    }

    fn reference(&self, ino: Ino) {
        if let Some(inode) = self.shared.files.lock().inodes.get_mut(&ino) {
            inode.references += 1;
        }
    }

    fn unreference(&self, ino: Ino, count: u64) {
        let mut files = self.shared.files.lock();
        if let Some(inode) = files.inodes.get_mut(&ino) {
            inode.references = inode.references.saturating_sub(count);
            files.reap(ino);
        }
    }

    async fn open(&self, _caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened, FsError> {
        self.shared.files.lock().get(ino)?;
        if flags.write && self.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        let handle = Handle(self.shared.opens.fetch_add(1, Ordering::SeqCst));
        Ok(Opened { handle, ..Opened::default() })
    }

    async fn flush(&self, ino: Ino, _handle: Handle, owner: LockOwner) -> Result<(), FsError> {
        self.shared.locks.unlock_owner(ino, LockKind::Posix, owner);
        Ok(())
    }

    async fn release(&self, ino: Ino, handle: Handle) {
        self.shared.locks.unlock_handle(ino, handle);
    }

    async fn lock(&self, ino: Ino, lock: &Lock, wait: bool) -> Result<(), FsError> {
        self.shared.locks.lock(ino, lock, wait).await
    }

    async fn unlock(
        &self,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError> {
        self.shared.locks.unlock(ino, kind, owner, range)
    }

    async fn conflicting_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>, FsError> {
        Ok(self.shared.locks.conflict(ino, lock))
    }

    fn locks(&self, ino: Ino) -> Vec<Lock> {
        self.shared.locks.held_on(ino)
    }

    fn may_change_everything(&self) -> bool {
        true
    }

    fn watch(&self, watcher: Watcher) {
        self.shared.watchers.write().insert(self.id, watcher);
    }
}
