//! Calls about bytes of files.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_fs::{
    Allocation, Caller, FsError, Handle, Ino, Lock, LockKind, LockOwner, LockRange, OpenFlags,
    Opened, PageCache, WriteAt, WriteHow,
};

use super::cache::ChangeGuard;
use super::holdings::Opening;
use super::{LinkError, Shared, users};
use crate::protocol::{Answer, Changed, MAX_PAYLOAD, Reply, Request};

/// Cuts buffers where a write ends that begins at `start`: at multiples of the longest payload, so that aligned writes
/// stay whole.
fn cut(start: u64, data: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let (mut pieces, mut piece, mut at) = (Vec::new(), Vec::new(), start);
    for mut buffer in data {
        while !buffer.is_empty() {
            let room = MAX_PAYLOAD as u64 - at % MAX_PAYLOAD as u64;
            let some = buffer.split_to((buffer.len() as u64).min(room) as usize);
            at += some.len() as u64;
            piece.push(some);
            if at.is_multiple_of(MAX_PAYLOAD as u64) {
                pieces.push(std::mem::take(&mut piece));
            }
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

impl Shared {
    pub(super) async fn read(
        self: &Arc<Self>,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Result<Vec<Bytes>, FsError> {
        let mut read = Vec::new();
        let mut done = 0;
        // A read of no bytes needs a call too: it may fail.
        loop {
            let some = (len - done).min(MAX_PAYLOAD);
            let Some(offset) = offset.checked_add(done as u64) else { break };
            let request = Request::Read { ino, offset, len: some as u32 };
            let (Answer::Bytes, bytes) = self.ask(request).await? else {
                return Err(LinkError::Unexpected.into());
            };
            done += bytes.len();
            let is_end = bytes.len() < some || done >= len;
            if !bytes.is_empty() {
                read.push(bytes);
            }
            if is_end {
                break;
            }
        }
        Ok(read)
    }

    /// Changes bytes of a file.
    async fn change(
        self: &Arc<Self>,
        ino: Ino,
        request: Request,
        payload: Vec<Bytes>,
    ) -> Result<Answer, FsError> {
        let guard = ChangeGuard::begin(self, vec![Changed::Attributes(ino)]);
        self.cache.lock().call_for_bytes(ino);
        let take = move |_: &Shared, _: &Reply, _: &Bytes| {
            let _guard = &guard;
        };
        Ok(self.call(request, payload, take).await?.0.answer)
    }

    async fn change_for_number(
        self: &Arc<Self>,
        ino: Ino,
        request: Request,
        payload: Vec<Bytes>,
    ) -> Result<u64, FsError> {
        match self.change(ino, request, payload).await? {
            Answer::Number(number) => Ok(number),
            _ => Err(LinkError::Unexpected.into()),
        }
    }

    pub(super) async fn write(
        self: &Arc<Self>,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        if let Some(went) = self.write_alone(ino, at, &data, how).await? {
            return Ok(went);
        }
        let start = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => 0,
        };
        let (mut went, mut next) = (None, at);
        let mut pieces = cut(start, data);
        if pieces.is_empty() {
            pieces.push(Vec::new());
        }
        for piece in pieces {
            let len: usize = piece.iter().map(Bytes::len).sum();
            let request = Request::Write { ino, at: next, how };
            let offset = self.change_for_number(ino, request, piece).await?;
            went.get_or_insert(offset);
            next = WriteAt::Offset(offset + len as u64);
        }
        Ok(went.unwrap_or(start))
    }

    pub(super) async fn allocate(
        self: &Arc<Self>,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
    ) -> Result<(), FsError> {
        let request = Request::Allocate { ino, offset, len, how };
        self.change(ino, request, Vec::new()).await.map(|_| ())
    }

    pub(super) async fn copy(
        self: &Arc<Self>,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    ) -> Result<u64, FsError> {
        self.change_for_number(to.0, Request::Copy { from, to, len }, Vec::new()).await
    }

    /// Changes an extended attribute.
    pub(super) async fn change_xattr(
        self: &Arc<Self>,
        ino: Ino,
        request: Request,
        payload: Vec<Bytes>,
    ) -> Result<(), FsError> {
        self.cache.lock().share_all_of(ino);
        self.change(ino, request, payload).await.map(|_| ())
    }

    pub(super) async fn open(
        self: &Arc<Self>,
        caller: Caller,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<Opened, FsError> {
        let request = Request::Open { caller, ino, flags };
        let opening = Opening { ino, user: users::current(), caller, flags };
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            if let Answer::Opened { handle, .. } = &reply.answer {
                shared.holdings.opens.lock().insert(*handle, opening.clone());
                if reply.grants.content {
                    shared.cache.lock().hold_content(ino);
                }
            }
        };
        let (reply, _) = self.call(request, Vec::new(), take).await?;
        let Answer::Opened { handle, pages, flush } = reply.answer else {
            return Err(LinkError::Unexpected.into());
        };
        let pages = if reply.grants.content { pages } else { PageCache::Bypass };
        Ok(Opened { handle, pages, flush })
    }

    /// Tells of a close of a descriptor, which releases POSIX locks. A process that ends cannot be killed while it waits for
    /// this, so it waits for no longer than a lease: by then the server may have ended the session, with its locks. The
    /// call goes on by itself.
    pub(super) async fn flush(
        self: &Arc<Self>,
        ino: Ino,
        handle: Handle,
        owner: LockOwner,
    ) -> Result<(), FsError> {
        self.holdings.locks.unlock_owner(ino, LockKind::Posix, owner);
        let request = Request::Flush { ino, handle, owner };
        let (shared, lease) = (self.clone(), self.session.lock().lease);
        let mut flushing = self.env.spawn(async move { shared.order(request).await });
        match self.env.timeout(lease, &mut flushing).await {
            Some(flushed) => flushed.unwrap_or(Err(LinkError::Closed.into())),
            None => {
                tracing::warn!(
                    "the server does not answer; locks of a closed file stay until it does"
                );
                flushing.detach();
                Ok(())
            }
        }
    }

    pub(super) async fn release(self: &Arc<Self>, ino: Ino, handle: Handle) {
        self.holdings.opens.lock().remove(&handle);
        self.holdings.locks.unlock_handle(ino, handle);
        if let Err(error) = self.order(Request::Release { ino, handle }).await {
            // A file of a session that has ended was closed with it.
            tracing::debug!(%error, "a file was not closed at the server");
        }
    }

    pub(super) async fn lock(
        self: &Arc<Self>,
        ino: Ino,
        lock: Lock,
        wait: bool,
    ) -> Result<(), FsError> {
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            // The server has decided; a claim of it is decided again.
            if reply.answer == Answer::Done
                && let Err(error) = shared.holdings.locks.try_lock(ino, &lock)
            {
                tracing::warn!(%error, "a lock will not outlive the server");
            }
        };
        match self.call(Request::Lock { ino, lock, wait }, Vec::new(), take).await?.0.answer {
            Answer::Done => Ok(()),
            _ => Err(LinkError::Unexpected.into()),
        }
    }

    pub(super) async fn unlock(
        self: &Arc<Self>,
        ino: Ino,
        kind: LockKind,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<(), FsError> {
        self.holdings.locks.unlock(ino, kind, owner, range)?;
        self.order(Request::Unlock { ino, kind, owner, range }).await
    }

    pub(super) async fn conflicting_lock(
        self: &Arc<Self>,
        ino: Ino,
        lock: Lock,
    ) -> Result<Option<Lock>, FsError> {
        match self.ask(Request::ConflictingLock { ino, lock }).await? {
            (Answer::Lock(found), _) => Ok(found),
            _ => Err(LinkError::Unexpected.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_cut_at_multiples_of_a_payload() {
        let most = MAX_PAYLOAD as u64;
        let lens = |start, data: &[usize]| -> Vec<usize> {
            let data = data.iter().map(|len| Bytes::from(vec![1; *len])).collect();
            cut(start, data).iter().map(|piece| piece.iter().map(Bytes::len).sum()).collect()
        };
        assert_eq!(lens(0, &[]), []);
        assert_eq!(lens(7, &[5, 6]), [11]);
        assert_eq!(lens(most - 4, &[3, 3]), [4, 2]);
        assert_eq!(lens(0, &[2 * MAX_PAYLOAD]), [MAX_PAYLOAD, MAX_PAYLOAD]);
    }
}
