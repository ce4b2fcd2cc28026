//! The send queue for replies.
//!
//! Headers are gathered in one buffer, and payloads are queued without a copy; one vectored write sends all
//! replies that are ready.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use crate::execute::{Answer, Piece};
use crate::protocol::{
    ALLOCATION_CONTEXT_ID, Command, Request, STATE_HOLE, STATE_ZERO, chunk, put_chunk,
    put_error_chunk, put_simple_reply,
};

/// Slices in one vectored write.
const SLICES: usize = 128;
/// Payloads below this many bytes are copied behind their header: that is cheaper than a slice.
const COPY: usize = 512;

/// The sending side of a connection.
pub(crate) struct Output {
    queue: VecDeque<Bytes>,
    /// The bytes behind the queue.
    tail: BytesMut,
    len: usize,
    structured: bool,
    flushed: bool,
}

impl Output {
    pub(crate) fn new(structured: bool) -> Output {
        let tail = BytesMut::with_capacity(4096);
        Output { queue: VecDeque::new(), tail, len: 0, structured, flushed: true }
    }

    /// Bytes that the client has not accepted yet.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the client has accepted all bytes.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 && self.flushed
    }

    /// Appends the reply to a request.
    pub(crate) fn reply(&mut self, request: &Request, answer: Answer) {
        let before = self.tail.len();
        let cookie = request.cookie;
        match answer {
            Answer::Error(errno, text) if self.structured => {
                put_error_chunk(&mut self.tail, cookie, errno, &text);
            }
            Answer::Error(errno, _) => put_simple_reply(&mut self.tail, cookie, Some(errno)),
            // Once structured replies are agreed upon, only reads and block status need them.
            Answer::Done => put_simple_reply(&mut self.tail, cookie, None),
            Answer::Extents(extents) => self.put_extents(cookie, &extents),
            Answer::Data(pieces) => {
                debug_assert_eq!(request.command, Command::Read);
                self.len += self.tail.len() - before;
                return self.put_pieces(cookie, pieces);
            }
        }
        self.len += self.tail.len() - before;
    }

    fn put_extents(&mut self, cookie: u64, extents: &[(u32, bool)]) {
        // Bounded by `execute::MAX_EXTENTS`.
        let len = 4 + 8 * extents.len() as u32;
        put_chunk(&mut self.tail, cookie, true, chunk::BLOCK_STATUS, len);
        self.tail.put_u32(ALLOCATION_CONTEXT_ID);
        for (len, stored) in extents {
            self.tail.put_u32(*len);
            self.tail.put_u32(if *stored { 0 } else { STATE_HOLE | STATE_ZERO });
        }
    }

    /// Appends the content of a read. Without structured replies it is one piece.
    fn put_pieces(&mut self, cookie: u64, pieces: Vec<Piece>) {
        let last = pieces.len().saturating_sub(1);
        for (index, piece) in pieces.into_iter().enumerate() {
            let before = self.tail.len();
            let done = index == last;
            match piece {
                Piece::Hole { offset, len } => {
                    put_chunk(&mut self.tail, cookie, done, chunk::OFFSET_HOLE, 12);
                    self.tail.put_u64(offset);
                    self.tail.put_u32(len);
                    self.len += self.tail.len() - before;
                }
                Piece::Data { offset, len, buffers } => {
                    if self.structured {
                        put_chunk(&mut self.tail, cookie, done, chunk::OFFSET_DATA, 8 + len);
                        self.tail.put_u64(offset);
                    } else {
                        put_simple_reply(&mut self.tail, cookie, None);
                    }
                    self.len += self.tail.len() - before;
                    buffers.into_iter().for_each(|buffer| self.put_payload(buffer));
                }
            }
        }
    }

    fn put_payload(&mut self, payload: Bytes) {
        self.len += payload.len();
        if payload.len() < COPY {
            self.tail.put_slice(&payload);
            return;
        }
        if !self.tail.is_empty() {
            self.queue.push_back(self.tail.split().freeze());
        }
        self.queue.push_back(payload);
    }

    /// Sends the queue; ready when it is empty.
    pub(crate) fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.len > 0 {
            self.flushed = false;
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            let parts = self.queue.iter().map(Bytes::as_ref).chain([self.tail.as_ref()]);
            for (slot, part) in slices.iter_mut().zip(parts) {
                *slot = IoSlice::new(part);
                count += 1;
            }
            let sent = if count == 1 {
                ready!(Pin::new(&mut *stream).poll_write(cx, &slices[0]))?
            } else {
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]))?
            };
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(sent);
        }
        if !self.flushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut sent: usize) {
        self.len -= sent;
        while let Some(front) = self.queue.front_mut() {
            if sent < front.len() {
                front.advance(sent);
                return;
            }
            sent -= front.len();
            self.queue.pop_front();
        }
        if sent == self.tail.len() {
            self.tail.clear();
        } else {
            self.tail.advance(sent);
        }
    }
}
