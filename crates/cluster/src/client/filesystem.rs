//! The calls of a filesystem.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_fs::filesystem::{MAX_NAME, MAX_TARGET, MAX_XATTR_NAME, MAX_XATTR_VALUE};
use thalweg_fs::{
    Allocation, Answer as FileAnswer, AttributeChange, Caller, Cookie, Credentials, Entry,
    Filesystem, FsError, Handle, Ino, Level, Lock, LockKind, LockOwner, LockRange, Lookup, NewNode,
    Node, OpenFlags, Opened, Rename, Seek, SetXattr, Statistics, Watcher, WriteAt, WriteHow,
};
use thalweg_net::keys::Squash;

use super::link::Link;
use super::{Client, LinkError, users};
use crate::protocol::{Answer, MAX_PAYLOAD, Request, decode_list};
use crate::squash::acting;

/// The server would refuse a longer name; one that exceeds a message would end the connection, again and again.
fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > MAX_NAME { Err(FsError::NameTooLong) } else { Ok(()) }
}

/// The same for the name of an extended attribute.
fn check_xattr_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > MAX_XATTR_NAME { Err(FsError::AttributeTooLarge) } else { Ok(()) }
}

fn unexpected<T>() -> Result<T, FsError> {
    Err(LinkError::Unexpected.into())
}

impl Client {
    /// The number of an inode at the server: callers know the root by the number that all filesystems have for it.
    fn theirs(&self, ino: Ino) -> Ino {
        match ino {
            Ino::ROOT => self.shared.session.lock().root,
            ino => ino,
        }
    }

    /// Makes a call for its user.
    async fn act<T>(&self, call: impl Future<Output = T>) -> T {
        users::act(&self.user, call).await
    }
}

#[async_trait]
impl Filesystem for Client {
    fn is_read_only(&self) -> bool {
        self.shared.session.lock().read_only
    }

    async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Lookup, FsError> {
        check_name(name)?;
        let mut found = self.act(self.shared.look_up(self.theirs(parent), name)).await?;
        if let Lookup::Found(answer) = &mut found {
            answer.attributes.ino = self.shared.ours(answer.attributes.ino);
        }
        Ok(found)
    }

    async fn parent(&self, directory: Ino) -> Result<Ino, FsError> {
        let parent = self.shared.parent(self.theirs(directory)).await?;
        Ok(self.shared.ours(parent))
    }

    async fn attributes(&self, ino: Ino) -> Result<FileAnswer, FsError> {
        let mut answer = self.shared.attributes(self.theirs(ino), false).await?;
        answer.attributes.ino = ino;
        Ok(answer)
    }

    async fn shown_attributes(&self, ino: Ino) -> Result<FileAnswer, FsError> {
        let mut answer = self.shared.attributes(self.theirs(ino), true).await?;
        answer.attributes.ino = ino;
        Ok(answer)
    }

    async fn set_attributes(
        &self,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<FileAnswer, FsError> {
        let mut answer = self.act(self.shared.set_attributes(self.theirs(ino), *change)).await?;
        answer.attributes.ino = ino;
        Ok(answer)
    }

    async fn create(&self, parent: Ino, name: &[u8], new: &NewNode) -> Result<FileAnswer, FsError> {
        check_name(name)?;
        if matches!(&new.node, Node::Symlink(target) if target.len() > MAX_TARGET) {
            return Err(FsError::NameTooLong);
        }
        self.act(self.shared.create(self.theirs(parent), name, new)).await
    }

    async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<FileAnswer, FsError> {
        check_name(name)?;
        self.act(self.shared.link(self.theirs(ino), self.theirs(parent), name)).await
    }

    async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        self.act(self.shared.unlink(self.theirs(parent), name, false)).await
    }

    async fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        self.act(self.shared.unlink(self.theirs(parent), name, true)).await
    }

    async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<(), FsError> {
        check_name(from.1).and_then(|()| check_name(to.1))?;
        let (from, to) = ((self.theirs(from.0), from.1), (self.theirs(to.0), to.1));
        self.act(self.shared.rename(from, to, how)).await
    }

    async fn read_link(&self, ino: Ino) -> Result<Bytes, FsError> {
        match self.shared.ask(Request::ReadLink { ino }).await? {
            (Answer::Bytes, target) => Ok(target),
            _ => unexpected(),
        }
    }

    async fn read_directory(
        &self,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError> {
        self.act(self.shared.list(self.theirs(ino), from, most, attributes)).await
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        self.act(self.shared.read(self.theirs(ino), offset, len, false)).await
    }

    async fn read_cached(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        self.act(self.shared.read(self.theirs(ino), offset, len, true)).await
    }

    async fn write(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        self.act(self.shared.write(self.theirs(ino), at, data, how)).await
    }

    async fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
    ) -> Result<(), FsError> {
        self.act(self.shared.allocate(self.theirs(ino), offset, len, how)).await
    }

    async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, FsError> {
        let ino = self.theirs(ino);
        match self.act(self.shared.ask(Request::Seek { ino, offset, what })).await? {
            (Answer::Number(at), _) => Ok(at),
            _ => unexpected(),
        }
    }

    async fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, FsError> {
        let (from, to) = ((self.theirs(from.0), from.1), (self.theirs(to.0), to.1));
        self.act(self.shared.copy(from, to, len)).await
    }

    async fn sync(&self, ino: Ino, content_only: bool) -> Result<(), FsError> {
        self.shared.sync_inode(self.theirs(ino), content_only).await
    }

    async fn sync_all(&self) -> Result<(), FsError> {
        self.shared.sync(Request::SyncAll).await
    }

    async fn level(&self, ino: Ino) -> Result<Level, FsError> {
        self.shared.level(self.theirs(ino)).await
    }

    async fn wait_for(&self, ino: Ino, level: Level, within: Duration) -> Result<bool, FsError> {
        self.shared.wait_for(self.theirs(ino), level, within).await
    }

    async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        check_xattr_name(name)?;
        let ino = self.theirs(ino);
        if self.shared.cache.lock().is_bare(ino, self.shared.env.now()) {
            return Err(FsError::NoAttribute);
        }
        let request = Request::Xattr { ino, name: Bytes::copy_from_slice(name) };
        match self.act(self.shared.ask(request)).await? {
            (Answer::Bytes, value) => Ok(value),
            _ => unexpected(),
        }
    }

    async fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
    ) -> Result<(), FsError> {
        check_xattr_name(name)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(FsError::AttributeTooLarge);
        }
        let ino = self.theirs(ino);
        let request = Request::SetXattr { ino, name: Bytes::copy_from_slice(name), how };
        self.act(self.shared.change_xattr(ino, request, vec![value])).await
    }

    async fn xattrs(&self, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        match self.act(self.shared.ask(Request::Xattrs { ino: self.theirs(ino) })).await? {
            (Answer::Names, names) => {
                decode_list(&names, MAX_PAYLOAD).map_err(|_| LinkError::Unexpected.into())
            }
            _ => unexpected(),
        }
    }

    async fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        check_xattr_name(name)?;
        let ino = self.theirs(ino);
        let request = Request::RemoveXattr { ino, name: Bytes::copy_from_slice(name) };
        self.act(self.shared.change_xattr(ino, request, Vec::new())).await
    }

    async fn statistics(&self) -> Result<Statistics, FsError> {
        match self.shared.ask(Request::Statistics).await? {
            (Answer::Statistics(found), _) => Ok(found),
            _ => unexpected(),
        }
    }

    fn reference(&self, ino: Ino) {
        self.shared.cache.lock().reference(self.theirs(ino));
    }

    fn unreference(&self, ino: Ino, count: u64) {
        let is_gone = self.shared.cache.lock().unreference(self.theirs(ino), count);
        if is_gone {
            self.shared.gone.notify_one();
        }
    }

    async fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened, FsError> {
        self.act(self.shared.open(*caller, self.theirs(ino), flags)).await
    }

    async fn flush(&self, ino: Ino, handle: Handle, owner: LockOwner) -> Result<(), FsError> {
        self.shared.flush(self.theirs(ino), handle, owner).await
    }

    async fn release(&self, ino: Ino, handle: Handle) {
        self.shared.release(self.theirs(ino), handle).await;
    }

    async fn lock(&self, ino: Ino, lock: &Lock, wait: bool) -> Result<(), FsError> {
        self.shared.lock(self.theirs(ino), *lock, wait).await
    }

    async fn unlock(
        &self,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError> {
        self.shared.unlock(self.theirs(ino), kind, owner, range).await
    }

    async fn conflicting_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>, FsError> {
        self.shared.conflicting_lock(self.theirs(ino), *lock).await
    }

    fn locks(&self, ino: Ino) -> Vec<Lock> {
        self.shared.reclaim_state.locks.held_on(self.theirs(ino))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn is_away(&self) -> bool {
        matches!(*self.shared.link.borrow(), Link::Down)
    }

    fn checks_users(&self) -> bool {
        self.shared.session.lock().squash != Squash::None
    }

    fn for_user(&self, user: &Arc<Credentials>) -> Option<Arc<dyn Filesystem>> {
        self.checks_users().then(|| {
            let own: Arc<dyn Filesystem> =
                Arc::new(Client { user: Some(user.clone()), ..self.clone() });
            own
        })
    }

    fn acting(&self, user: &Credentials) -> Option<Credentials> {
        acting(self.shared.session.lock().squash, Some(user))
    }

    async fn check_access(&self, ino: Ino, wanted: u16) -> Result<(), FsError> {
        self.act(self.shared.check_access(self, self.theirs(ino), wanted)).await
    }

    fn watch(&self, watcher: Watcher) {
        *self.shared.watcher.write() = Some(watcher);
    }
}
