//! Changes without the server, with the calls that they need: for a delegation, for inode numbers, for room.

use bytes::Bytes;
use thalweg_fs::{FsError, Ino, WriteAt, WriteHow};

use super::delegation::{Local, MAX_WRITE};
use super::numbers::Reservation;
use super::stages::Stages;
use crate::protocol::{Answer, Reply, Request};

/// A directory that was refused is not asked for again within this part of a lease.
const REFUSED: u32 = 10;

/// How many calls that change an inode a change waits for before it becomes one.
const MAX_WAITS: usize = 8;

/// Bytes of a write at most that are copied under the lock of its file.
const SMALL_WRITE: usize = 16 << 10;

impl Stages {
    /// Has what names need that are made in a directory without the server: the delegation, after so many names that were made by
    /// calls, and inode numbers.
    pub(super) async fn prepare_names(&self, directory: Ino, after: u32) -> Result<(), FsError> {
        // Before a call that makes a name, everything is sent that waits, which may be much with a journal.
        let after = if self.base.queue.has_journal() { 0 } else { after };
        if self.base.wants_delegation(directory, after) {
            self.request_delegation(directory).await?;
        }
        if self.base.inodes.has_delegation(directory) {
            self.reserve_numbers().await?;
        }
        Ok(())
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
        let is_call = how.sync || len > MAX_WRITE || self.is_direct(len);
        if is_call || !is_small && !self.base.inodes.has_delegation(ino) {
            return Local::NeedsCall;
        }
        // Few bytes are copied under the lock: before it is taken, most of them might be in vain.
        let copied = (!is_small).then(|| data.concat());
        let copy = || Bytes::from(copied.unwrap_or_else(|| data.concat()));
        let what = (len as u64, how.clear_suid);
        self.base.write_delegated(ino, at, copy, what)
    }

    /// Whether a write of so many bytes goes past the journal.
    pub(super) fn is_direct(&self, len: usize) -> bool {
        self.base.options.data.is_direct(len) && self.base.journal.live().is_some()
    }

    /// Makes a change of an inode, if that is possible without the server. If nothing is missing but the attributes, they are asked for
    /// first. A change that finds too little room is tried once more, when the server has promised more.
    pub(super) async fn change_locally<T>(
        &self,
        ino: Ino,
        change: impl Fn() -> Local<T>,
    ) -> Result<Option<T>, FsError> {
        self.complete_attributes(ino).await?;
        // A call would be one more that keeps others from changing it without one.
        for _ in 0..MAX_WAITS {
            match change() {
                Local::NeedsCall if self.base.cache.wait_for_change(ino).await => {}
                Local::Made(made) => return Ok(Some(made)),
                Local::NeedsCall | Local::NoRoom(_) => break,
            }
            self.complete_attributes(ino).await?;
        }
        let room = &self.base.room;
        let quota = match change() {
            Local::Made(made) => return Ok(Some(made)),
            Local::NoRoom(quota) if room.begin_request(self.base.now()) => quota,
            Local::NoRoom(_) => return self.change_with_room(&change).await,
            Local::NeedsCall => return Ok(None),
        };
        self.rpc.order(Request::Room { quota }).await?;
        let made = change();
        if !matches!(made, Local::NoRoom(_)) {
            room.request_helped();
        }
        match made {
            Local::Made(made) => Ok(Some(made)),
            Local::NoRoom(_) => self.change_with_room(&change).await,
            Local::NeedsCall => Ok(None),
        }
    }

    /// Makes a change that finds too little room as soon as the server has enough of the mutations that have taken it: a call would have to wait for all of
    /// them.
    async fn change_with_room<T>(
        &self,
        change: &impl Fn() -> Local<T>,
    ) -> Result<Option<T>, FsError> {
        let last = self.base.queue.last();
        loop {
            let turn = self.writeback.hold().await;
            match change() {
                Local::Made(made) => return Ok(Some(made)),
                Local::NoRoom(_) if !self.base.queue.has(last) => {}
                Local::NoRoom(_) | Local::NeedsCall => return Ok(None),
            }
            self.writeback.send_batch(turn, None, 0).await?;
        }
    }

    /// Asks for the attributes of an inode, if nothing else is missing to change it without the server.
    pub(super) async fn complete_attributes(&self, ino: Ino) -> Result<(), FsError> {
        if self.base.lack_attributes(ino) {
            self.request_attributes(ino, false).await?;
        }
        Ok(())
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

    async fn reserve_numbers(&self) -> Result<(), FsError> {
        if !self.base.numbers.are_few() {
            return Ok(());
        }
        let _turn = self.base.numbers.reserving.lock().await;
        if !self.base.numbers.are_few() {
            return Ok(());
        }
        let base = self.base.clone();
        let then = move |reply: &Reply, _: &Bytes| {
            if let Answer::Numbers { first, count, inode_token } = reply.answer {
                base.numbers.add(Reservation { first, count, inode_token });
            }
        };
        match self.rpc.call(Request::Reserve, Vec::new(), then).await {
            // The server does not let this client have more; the inodes are made by calls.
            Err(FsError::Invalid(_) | FsError::NotSupported) => Ok(()),
            done => done.map(drop),
        }
    }
}
