//! Changes without the server, with the calls that they need: for a delegation, for inode numbers, for room.

use bytes::Bytes;
use thalweg_fs::{Answer as FileAnswer, AttributeChange, FsError, Ino, NewNode, WriteAt, WriteHow};

use super::delegation::{Local, MAX_WRITE};
use super::numbers::Reservation;
use super::stages::Stages;
use crate::protocol::{Answer, Reply, Request};

/// A directory that was refused is not asked for again within this part of a lease.
const REFUSED: u32 = 10;

/// Bytes of a write at most that are copied under the lock of its file.
const SMALL_WRITE: usize = 16 << 10;

impl Stages {
    /// Makes an inode, if the directory is this client's alone, or becomes so.
    pub(super) async fn create_locally(
        &self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Option<FileAnswer>, FsError> {
        let Some(after) = self.base.options.exclusive else { return Ok(None) };
        if self.base.wants_delegation(parent, after) {
            self.request_delegation(parent).await?;
        }
        self.complete(parent).await?;
        if self.base.inodes.has_delegation(parent) {
            self.reserve_numbers().await?;
        }
        let create = || self.base.create_delegated(parent, name, new);
        let Some(made) = self.in_room(create).await? else { return Ok(None) };
        let made = made?;
        self.writeback.throttle().await?;
        Ok(Some(self.shown(made)))
    }

    pub(super) async fn set_locally(
        &self,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<Option<FileAnswer>, FsError> {
        if change.size.is_some() && !self.base.inodes.lock(ino).rules.bytes.sizes {
            return Ok(None);
        }
        self.complete(ino).await?;
        let set = || self.base.set_delegated(ino, change);
        let Some(set) = self.in_room(set).await? else { return Ok(None) };
        self.writeback.throttle().await?;
        Ok(Some(self.shown(set)))
    }

    /// Writes bytes, if that needs neither a call nor a wait. They are copied, since the buffers may be parts of much larger ones.
    pub(super) fn write_now(
        &self,
        ino: Ino,
        at: WriteAt,
        data: &[Bytes],
        how: WriteHow,
    ) -> Local<u64> {
        let len: usize = data.iter().map(Bytes::len).sum();
        let is_small = len <= SMALL_WRITE;
        if how.sync || len > MAX_WRITE || !is_small && !self.base.inodes.has_delegation(ino) {
            return Local::NeedsCall;
        }
        // Few bytes are copied under the lock: before it is taken, most of them might be in vain.
        let copied = (!is_small).then(|| data.concat());
        let copy = || Bytes::from(copied.unwrap_or_else(|| data.concat()));
        let what = (len as u64, how.clear_suid);
        let at = match at {
            WriteAt::Offset(offset) => Some(offset),
            WriteAt::End => None,
        };
        self.base.write_delegated(ino, at, copy, what)
    }

    /// The same, with the calls that it needs.
    pub(super) async fn write_locally(
        &self,
        ino: Ino,
        at: WriteAt,
        data: &[Bytes],
        how: WriteHow,
    ) -> Result<Option<u64>, FsError> {
        self.complete(ino).await?;
        let wrote = self.in_room(|| self.write_now(ino, at, data, how)).await?;
        if wrote.is_some() {
            self.writeback.throttle().await?;
        }
        Ok(wrote)
    }

    /// Makes a change, if that is possible. One that finds too little room is tried once more, when the server has promised more.
    async fn in_room<T>(&self, change: impl Fn() -> Local<T>) -> Result<Option<T>, FsError> {
        let room = &self.base.room;
        let quota = match change() {
            Local::Made(made) => return Ok(Some(made)),
            Local::NoRoom(quota) if room.begin_request(self.base.now()) => quota,
            Local::NoRoom(_) | Local::NeedsCall => return Ok(None),
        };
        self.rpc.order(Request::Room { quota }).await?;
        let made = change();
        if !matches!(made, Local::NoRoom(_)) {
            room.request_helped();
        }
        match made {
            Local::Made(made) => Ok(Some(made)),
            Local::NoRoom(_) | Local::NeedsCall => Ok(None),
        }
    }

    async fn request_delegation(&self, directory: Ino) -> Result<(), FsError> {
        let base = self.base.clone();
        let then = move |reply: &Reply, _: &Bytes| {
            if reply.grants.delegation {
                base.inodes.grant(directory, reply.quota);
            } else {
                let until = base.now() + base.session.lease() / REFUSED;
                base.refuse_delegation(directory, until);
            }
        };
        let request = Request::RequestDelegation { ino: directory };
        match self.rpc.call(request, Vec::new(), then).await {
            Ok(_) => Ok(()),
            Err(error @ FsError::Store(_)) => Err(error),
            // The change itself says what is wrong.
            Err(_) => Ok(()),
        }
    }

    /// Has the attributes of an inode that is this client's alone.
    async fn complete(&self, ino: Ino) -> Result<(), FsError> {
        if self.base.lack_attributes(ino) {
            self.request_attributes(ino, false).await?;
        }
        Ok(())
    }

    /// Has numbers for new inodes.
    async fn reserve_numbers(&self) -> Result<(), FsError> {
        if !self.base.numbers.are_few() {
            return Ok(());
        }
        let _turn = self.base.numbers.reserve().await;
        if !self.base.numbers.are_few() {
            return Ok(());
        }
        let numbers = self.base.numbers.clone();
        let then = move |reply: &Reply, _: &Bytes| {
            if let Answer::Numbers { first, count, inode_token } = reply.answer {
                numbers.add(Reservation { first, count, inode_token });
            }
        };
        match self.rpc.call(Request::Reserve, Vec::new(), then).await {
            // The server does not let this client have more; the inodes are made by calls.
            Err(FsError::Invalid(_) | FsError::NotSupported) => Ok(()),
            done => done.map(drop),
        }
    }
}
