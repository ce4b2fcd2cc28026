//! Calls about bytes of files.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_fs::{Allocation, FsError, Ino, WriteAt, WriteHow};

use super::cache::ChangeGuard;
use super::delegation::MAX_WRITE;
use super::{LinkError, Shared};
use crate::protocol::{Answer, MAX_PAYLOAD, Reply, Request};

/// Cuts buffers where a write ends that begins at `start`: at multiples of `most` bytes, so that aligned writes stay whole.
fn cut(start: u64, data: Vec<Bytes>, most: usize) -> Vec<Vec<Bytes>> {
    let (mut pieces, mut piece, mut at) = (Vec::new(), Vec::new(), start);
    for mut buffer in data {
        while !buffer.is_empty() {
            let room = most as u64 - at % most as u64;
            let some = buffer.split_to((buffer.len() as u64).min(room) as usize);
            at += some.len() as u64;
            piece.push(some);
            if at.is_multiple_of(most as u64) {
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
    /// Reads bytes of a file; with `pages`, for the caller's cache. The server has to know of that before.
    pub(super) async fn read(
        self: &Arc<Self>,
        ino: Ino,
        offset: u64,
        len: usize,
        pages: bool,
    ) -> Result<Vec<Bytes>, FsError> {
        let is_known = !pages || self.cache.lock().holds_content(ino);
        if is_known && let Some(read) = self.read_directly(ino, offset, len).await {
            return Ok(read);
        }
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            if pages && reply.answer == Answer::Bytes {
                shared.cache.lock().hold_content(ino);
            }
        };
        let mut read = Vec::new();
        let mut done = 0;
        // A read of no bytes needs a call too: it may fail.
        loop {
            let some = (len - done).min(MAX_PAYLOAD);
            let Some(offset) = offset.checked_add(done as u64) else { break };
            assert!(u32::try_from(some).is_ok(), "a payload is smaller than 4 GiB");
            let request = Request::Read { ino, offset, len: some as u32, pages };
            let (reply, bytes) = self.call(request, Vec::new(), take).await?;
            if reply.answer != Answer::Bytes {
                return Err(LinkError::Unexpected.into());
            }
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
        // While the change is under way, the bytes of mutations would go to the server, too.
        self.send_before(&request).await?;
        let bytes = payload.iter().map(Bytes::len).sum();
        let guard = ChangeGuard::begin(self, request.footprint(bytes).changed());
        self.cache.lock().call_for_bytes(ino, self.env.now());
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
        let start = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => 0,
        };
        let (mut went, mut next) = (None, at);
        let is_long = data.iter().map(Bytes::len).sum::<usize>() > MAX_WRITE;
        let most =
            if is_long && self.cache.lock().has_delegation(ino) { MAX_WRITE } else { MAX_PAYLOAD };
        let mut pieces = cut(start, data, most);
        if pieces.is_empty() {
            pieces.push(Vec::new());
        }
        for piece in pieces {
            let len: usize = piece.iter().map(Bytes::len).sum();
            let offset = match self.local_write(ino, next, &piece, how).await? {
                Some(offset) => offset,
                None => {
                    let request = Request::Write { ino, at: next, how };
                    self.change_for_number(ino, request, piece).await?
                }
            };
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_cut_at_multiples_of_a_payload() {
        let most = MAX_PAYLOAD as u64;
        let lens = |start, data: &[usize]| -> Vec<usize> {
            let data = data.iter().map(|len| Bytes::from(vec![1; *len])).collect();
            cut(start, data, MAX_PAYLOAD)
                .iter()
                .map(|piece| piece.iter().map(Bytes::len).sum())
                .collect()
        };
        assert_eq!(lens(0, &[]), []);
        assert_eq!(lens(7, &[5, 6]), [11]);
        assert_eq!(lens(most - 4, &[3, 3]), [4, 2]);
        assert_eq!(lens(0, &[2 * MAX_PAYLOAD]), [MAX_PAYLOAD, MAX_PAYLOAD]);
    }
}
