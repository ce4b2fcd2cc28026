//! The client as a filesystem.
//!
//! Each call asks three questions: is the answer cached, is what it changes delegated to this client, and else the server is called.
//! Here are the root's number, the user of the call, and what is checked before anything else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_fs::access::{Actor, Rules};
use thalweg_fs::filesystem::{MAX_NAME, MAX_TARGET};
use thalweg_fs::{
    Allocation, Answer as FileAnswer, AttributeChange, Caller, Cookie, Credentials, Entry,
    Filesystem, FsError, Handle, Ino, Level, Lock, LockKind, LockOwner, LockRange, Lookup, NewNode,
    Node, OpenFlags, Opened, Rename, Seek, SetXattr, Statistics, Watcher, WriteAt, WriteHow,
};
use thalweg_net::Traffic;
use thalweg_net::keys::Squash;

use super::delegation::Local;
use super::error::expect_answer;
use super::journaling::Committed;
use super::link::Link;
use super::listings::Wanted;
use super::pending::PendingReport;
use super::stages::Stages;
use super::user::{self, User};
use super::{content, durability, names, reservations, xattrs};
use crate::protocol::{Answer, Request};
use crate::squash::acting;

/// The server would refuse a longer name; one that exceeds a message would end the connection, again and again.
fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > MAX_NAME { Err(FsError::NameTooLong) } else { Ok(()) }
}

/// What a client knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ClientStatus {
    /// Whether it has a connection with a session.
    pub connected: bool,
    /// Whether its session has ended, and it begins no other one.
    pub ended: bool,
    /// Whether the mount has moved to another machine.
    pub moved: bool,
    /// Sessions that the server has ended.
    pub evictions: u64,
    /// Whether it reads and writes contents of files itself.
    pub direct: bool,
    /// Inodes that it knows.
    pub inodes: usize,
    /// Calls without an answer.
    pub calls: usize,
    /// Changes in directories that are this client's alone, which the server does not have.
    pub unsent: usize,
    /// Changes that a crash of the server would undo, and that would be made again then.
    pub kept: usize,
    /// Changes that were acknowledged, and may be lost: the server crashed, and did not get them again.
    pub lost: u64,
    /// Bytes of changes that were in memory at most while the journal of the mount before was written back.
    pub recovery_memory: usize,
}

/// A filesystem behind a server. Clones are the same client; its session ends with [`Client::close`], or when the server
/// has not heard it for long enough.
#[derive(Clone)]
pub struct Client {
    stages: Arc<Stages>,
    /// The user that its calls are made for.
    user: User,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connector = &self.stages.connections.connector;
        f.debug_struct("Client").field("connector", connector).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of these stages.
    pub(super) fn of(stages: Stages) -> Client {
        Client { stages: Arc::new(stages), user: None }
    }

    pub(super) fn stages(&self) -> &Arc<Stages> {
        &self.stages
    }

    /// Ends the session in order. Calls fail from now on.
    pub async fn close(&self) {
        self.stages.connections.close().await;
    }

    /// Has everything that it has made so far be in its journal and in the copies of that; whether it is, which takes room there, and
    /// keepers that answer.
    ///
    /// # Errors
    /// Calls were answered that are in no journal, and the server has not made them durable.
    pub async fn commit(&self) -> Result<bool, FsError> {
        Ok(self.stages.writeback.commit().await? == Committed::Everywhere)
    }

    /// Ends the connection, and leaves in the journal what the server does not have: the next mount of the journal writes it back.
    /// Calls fail from now on.
    ///
    /// # Errors
    /// It is not in the journal: the client goes on as before.
    pub async fn leave(&self) -> Result<(), FsError> {
        self.stages.connections.leave().await
    }

    /// What is not durable at the server yet.
    pub fn pending(&self) -> PendingReport {
        self.stages.base.pending()
    }

    /// Sends everything that it has made so far, and returns when it is durable at the server, and released in the journal.
    ///
    /// # Errors
    /// Those of a sync. While the server is away, the call waits.
    pub async fn drain(&self) -> Result<(), FsError> {
        self.stages.writeback.drain().await
    }

    /// What it has sent to the server.
    pub fn traffic(&self) -> &Traffic {
        &self.stages.connections.traffic
    }

    /// What it knows of itself.
    pub fn status(&self) -> ClientStatus {
        let link = self.stages.base.links.current();
        ClientStatus {
            connected: matches!(link, Link::Up(_)),
            ended: matches!(link, Link::Ended),
            moved: matches!(link, Link::Moved),
            evictions: self.stages.base.session.generation(),
            direct: self.stages.direct_io.contents().is_some(),
            inodes: self.stages.base.inodes.len(),
            calls: self.stages.base.call_numbers.pending(),
            unsent: self.stages.base.queue.len(),
            kept: self.stages.base.replay_log.len(),
            lost: self.stages.base.losses.counted(),
            recovery_memory: self.stages.base.queue.most_in_memory(),
        }
    }

    /// Whether all users of this client act as one at the server, so that a kernel, which knows them apart, cannot check what they
    /// may do. The caller is about to leave that to [`Filesystem::check_access`]: should a later session have other users, this
    /// client is refused.
    pub fn checks_for_kernel(&self) -> bool {
        self.stages.base.session.check_for_kernel()
    }

    /// What it has sent to the keepers of its journal.
    pub fn copy_traffic(&self) -> Option<Traffic> {
        self.stages.base.journal.last().map(|journal| journal.copies.traffic.clone())
    }

    fn theirs(&self, ino: Ino) -> Ino {
        self.stages.base.session.theirs(ino)
    }

    async fn act<T>(&self, call: impl Future<Output = T>) -> T {
        user::act(&self.user, call).await
    }

    async fn request(&self, request: Request) -> Result<(Answer, Bytes), FsError> {
        self.act(self.stages.request(request)).await
    }
}

#[async_trait]
impl Filesystem for Client {
    fn is_read_only(&self) -> bool {
        self.stages.base.session.info().read_only
    }

    async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Lookup, FsError> {
        check_name(name)?;
        let mut found = self.act(names::look_up(&self.stages, self.theirs(parent), name)).await?;
        if let Lookup::Found(answer) = &mut found {
            answer.attributes.ino = self.stages.base.session.ours(answer.attributes.ino);
        }
        Ok(found)
    }

    async fn parent(&self, directory: Ino) -> Result<Ino, FsError> {
        let directory = self.theirs(directory);
        let parent = match self.stages.base.parent_of(directory) {
            Some(parent) => parent,
            None => {
                let (answer, _) = self.stages.request(Request::Parent { directory }).await?;
                expect_answer!(answer, Answer::Directory(parent) => parent)?
            }
        };
        Ok(self.stages.base.session.ours(parent))
    }

    async fn attributes(&self, ino: Ino) -> Result<FileAnswer, FsError> {
        let mut answer = names::attributes(&self.stages, self.theirs(ino), false).await?;
        answer.attributes.ino = ino;
        Ok(answer)
    }

    async fn shown_attributes(&self, ino: Ino) -> Result<FileAnswer, FsError> {
        let mut answer = names::attributes(&self.stages, self.theirs(ino), true).await?;
        answer.attributes.ino = ino;
        Ok(answer)
    }

    async fn set_attributes(
        &self,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<FileAnswer, FsError> {
        let mut answer =
            self.act(names::set_attributes(&self.stages, self.theirs(ino), *change)).await?;
        answer.attributes.ino = ino;
        Ok(answer)
    }

    async fn create(&self, parent: Ino, name: &[u8], new: &NewNode) -> Result<FileAnswer, FsError> {
        check_name(name)?;
        if matches!(&new.node, Node::Symlink(target) if target.len() > MAX_TARGET) {
            return Err(FsError::NameTooLong);
        }
        self.act(names::create(&self.stages, self.theirs(parent), name, new)).await
    }

    async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<FileAnswer, FsError> {
        check_name(name)?;
        let (ino, parent) = (self.theirs(ino), self.theirs(parent));
        self.act(names::link(&self.stages, ino, (parent, name))).await
    }

    async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        self.act(names::unlink(&self.stages, self.theirs(parent), name, false)).await
    }

    async fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        self.act(names::unlink(&self.stages, self.theirs(parent), name, true)).await
    }

    async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<(), FsError> {
        check_name(from.1).and_then(|()| check_name(to.1))?;
        let (from, to) = ((self.theirs(from.0), from.1), (self.theirs(to.0), to.1));
        self.act(names::rename(&self.stages, from, to, how)).await
    }

    async fn read_link(&self, ino: Ino) -> Result<Bytes, FsError> {
        let (answer, target) = self.stages.request(Request::ReadLink { ino }).await?;
        expect_answer!(answer, Answer::Bytes => target)
    }

    async fn read_directory(
        &self,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError> {
        let directory = self.theirs(ino);
        let wanted = Wanted { directory, from, most, attributes };
        self.act(names::list(&self.stages, wanted)).await
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        self.act(content::read(&self.stages, self.theirs(ino), offset, len, false)).await
    }

    async fn read_cached(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        self.act(content::read(&self.stages, self.theirs(ino), offset, len, true)).await
    }

    async fn write(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        let (ino, stages) = (self.theirs(ino), &*self.stages);
        if how.sync
            && stages.base.journal.live().is_some()
            && stages.base.inodes.has_delegation(ino)
        {
            let how = WriteHow { sync: false, ..how };
            let offset = self.act(content::write(stages, ino, at, data, how)).await?;
            durability::sync_inode(stages, ino, true).await?;
            return Ok(offset);
        }
        // The usual write of a delegated file: it makes nothing ready of the calls that other writes need.
        let wrote = user::act_now(&self.user, || stages.write_now(ino, at, &data, how));
        let Local::Made(offset) = wrote else {
            return Box::pin(self.act(content::write(stages, ino, at, data, how))).await;
        };
        if stages.writeback.begin_if_full() {
            Box::pin(stages.writeback.throttle()).await?;
        }
        Ok(offset)
    }

    async fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
    ) -> Result<(), FsError> {
        self.act(reservations::allocate(&self.stages, self.theirs(ino), (offset, len), how)).await
    }

    async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, FsError> {
        let ino = self.theirs(ino);
        let (answer, _) = self.request(Request::Seek { ino, offset, what }).await?;
        expect_answer!(answer, Answer::Number(at) => at)
    }

    async fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, FsError> {
        let (from, to) = ((self.theirs(from.0), from.1), (self.theirs(to.0), to.1));
        let request = Request::Copy { from, to, len };
        self.act(content::change_for_number(&self.stages, to.0, request, Vec::new())).await
    }

    async fn sync(&self, ino: Ino, content_only: bool) -> Result<(), FsError> {
        durability::sync_inode(&self.stages, self.theirs(ino), content_only).await
    }

    async fn sync_all(&self) -> Result<(), FsError> {
        self.stages.writeback.sync_here(None, Request::SyncAll).await
    }

    async fn level(&self, ino: Ino) -> Result<Level, FsError> {
        durability::level(&self.stages, self.theirs(ino)).await
    }

    async fn wait_for(&self, ino: Ino, level: Level, within: Duration) -> Result<bool, FsError> {
        durability::wait_for(&self.stages, self.theirs(ino), level, within).await
    }

    async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        self.act(xattrs::get(&self.stages, self.theirs(ino), name)).await
    }

    async fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
    ) -> Result<(), FsError> {
        self.act(xattrs::set(&self.stages, self.theirs(ino), (name, value), how)).await
    }

    async fn xattrs(&self, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        self.act(xattrs::list(&self.stages, self.theirs(ino))).await
    }

    async fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        self.act(xattrs::remove(&self.stages, self.theirs(ino), name)).await
    }

    async fn statistics(&self) -> Result<Statistics, FsError> {
        content::statistics(&self.stages).await
    }

    fn reference(&self, ino: Ino) {
        let inodes = &self.stages.base.inodes;
        inodes.with_new(self.theirs(ino), |node| node.cached.references += 1);
    }

    fn unreference(&self, ino: Ino, count: u64) {
        self.stages.base.cache.unreference(self.theirs(ino), count);
    }

    async fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Opened, FsError> {
        self.act(self.stages.open_files.open(*caller, self.theirs(ino), flags)).await
    }

    async fn flush(&self, ino: Ino, handle: Handle, owner: LockOwner) -> Result<(), FsError> {
        let ino = self.theirs(ino);
        // It fails if changes of the file were lost.
        let failure = self.stages.base.losses.report(ino);
        let flushed = self.stages.open_files.flush(ino, handle, owner).await;
        failure.map_or(flushed, Err)
    }

    async fn release(&self, ino: Ino, handle: Handle) {
        self.stages.open_files.release(self.theirs(ino), handle).await;
    }

    async fn lock(&self, ino: Ino, lock: &Lock, wait: bool) -> Result<(), FsError> {
        let ino = self.theirs(ino);
        // Without them the server would take this lock, and all locks of the file for as long as one is held.
        self.act(self.stages.complete_attributes(ino)).await?;
        self.stages.open_files.lock(ino, *lock, wait).await
    }

    async fn unlock(
        &self,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError> {
        self.stages.open_files.unlock(self.theirs(ino), kind, owner, range).await
    }

    async fn conflicting_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>, FsError> {
        let ino = self.theirs(ino);
        self.act(self.stages.complete_attributes(ino)).await?;
        self.stages.open_files.conflict(ino, *lock).await
    }

    fn locks(&self, ino: Ino) -> Vec<Lock> {
        self.stages.open_files.locks.held_on(self.theirs(ino))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn is_away(&self) -> bool {
        matches!(self.stages.base.links.current(), Link::Down)
    }

    fn is_disconnected(&self) -> bool {
        self.is_away() && !self.stages.base.session.is_leased()
    }

    fn checks_users(&self) -> bool {
        self.stages.base.session.squash() != Squash::None
    }

    fn for_user(&self, user: &Arc<Credentials>) -> Option<Arc<dyn Filesystem>> {
        let own = || Arc::new(Client { user: Some(user.clone()), ..self.clone() });
        self.checks_users().then(|| own() as Arc<dyn Filesystem>)
    }

    fn acting(&self, user: &Credentials) -> Option<Credentials> {
        acting(self.stages.base.session.squash(), Some(user))
    }

    async fn check_access(&self, ino: Ino, wanted: u16) -> Result<(), FsError> {
        let squash = self.stages.base.session.squash();
        let Some(user) = user::act_now(&self.user, || user::seen_as(squash)) else { return Ok(()) };
        let known = self.stages.base.cache.rights(self.theirs(ino));
        let it = match known {
            Some(known) => known,
            None => {
                self.act(names::attributes(&self.stages, self.theirs(ino), false)).await?.attributes
            }
        };
        let files: &dyn Filesystem = self;
        let rules = Rules { files, user: Actor::of(&user), lists: &self.stages.lists };
        self.act(rules.check(&it, wanted)).await
    }

    fn watch(&self, watcher: Watcher) {
        *self.stages.base.watcher.write() = Some(watcher);
    }
}
