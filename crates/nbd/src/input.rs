//! Cuts a client's bytes into requests.
//!
//! One read of the socket may return many small requests. A payload gets memory of its own, block by block,
//! so that the volume may keep it; a long payload is read directly into that memory.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use thalweg_store::device::FrameBuf;
use tokio::io::{AsyncRead, ReadBuf};

use crate::protocol::{Errno, Limits, MAX_PAYLOAD, ProtocolError, REQUEST_LEN, Request};

/// Maximum size in bytes of one read of the socket, except for payloads that are read in place.
const BUFFER: usize = 64 * 1024;
/// Payloads with at least this many missing bytes are read in place.
const IN_PLACE: usize = 8 * 1024;
/// After a long payload, the next read takes no more than this: a header, with next to no payload
/// that would have to be copied.
const PEEK: usize = 512;
/// A refused payload up to this length in bytes is skipped; a longer one ends the connection.
const MAX_SKIP: u32 = 4 * MAX_PAYLOAD;

/// A whole request.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Its range and flags are valid; the payload is there.
    Request(Request, Vec<Bytes>),
    /// The request is refused; its payload has been skipped.
    Refused(Request, Errno, &'static str),
}

/// The part of a request that the next bytes belong to.
enum Expect {
    Header,
    Payload { request: Request, buffer: FrameBuf, filled: usize },
    Skip { request: Request, left: usize, errno: Errno, reason: &'static str },
}

/// The receiving side of a connection.
pub(crate) struct Input {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    expect: Expect,
    peek: bool,
}

impl Input {
    pub(crate) fn new() -> Input {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Input { buffer, start: 0, end: 0, expect: Expect::Header, peek: false }
    }

    /// The next whole request among the bytes received, `None` when more bytes are needed.
    /// `limits` is asked for once per request, so that a resized volume counts at once.
    pub(crate) fn next(
        &mut self,
        limits: impl FnOnce() -> Limits,
    ) -> Result<Option<Arrival>, ProtocolError> {
        if matches!(self.expect, Expect::Header) {
            let Some(header) = self.buffer[self.start..self.end].first_chunk::<REQUEST_LEN>()
            else {
                return Ok(None);
            };
            let request = Request::decode(header)?;
            self.start += REQUEST_LEN;
            self.expect = Self::expect_payload(request, limits().check(&request))?;
        }
        Ok(self.finish_payload())
    }

    fn expect_payload(
        request: Request,
        verdict: Result<(), (Errno, &'static str)>,
    ) -> Result<Expect, ProtocolError> {
        let len = request.payload_len();
        match verdict {
            Ok(()) => {
                let buffer = FrameBuf::new(len as usize);
                Ok(Expect::Payload { request, buffer, filled: 0 })
            }
            Err(_) if len > MAX_SKIP => Err(ProtocolError::Length),
            Err((errno, reason)) => Ok(Expect::Skip { request, left: len as usize, errno, reason }),
        }
    }

    /// Copies received bytes into the payload; returns the request when it is complete.
    fn finish_payload(&mut self) -> Option<Arrival> {
        let received = &self.buffer[self.start..self.end];
        match &mut self.expect {
            Expect::Header => return None,
            Expect::Payload { buffer, filled, .. } => {
                let mut received = received;
                while !received.is_empty() && *filled < buffer.len() {
                    let room = buffer.from_mut(*filled);
                    let take = received.len().min(room.len());
                    room[..take].copy_from_slice(&received[..take]);
                    received = &received[take..];
                    self.start += take;
                    *filled += take;
                }
                if *filled < buffer.len() {
                    return None;
                }
                self.peek = buffer.len() >= IN_PLACE;
            }
            Expect::Skip { left, .. } => {
                let take = received.len().min(*left);
                self.start += take;
                *left -= take;
                if *left > 0 {
                    return None;
                }
            }
        }
        match std::mem::replace(&mut self.expect, Expect::Header) {
            Expect::Header => None,
            Expect::Payload { request, buffer, .. } => {
                Some(Arrival::Request(request, buffer.into_blocks()))
            }
            Expect::Skip { request, errno, reason, .. } => {
                Some(Arrival::Refused(request, errno, reason))
            }
        }
    }

    /// Receives bytes; 0 means that the client has closed its side.
    ///
    /// Call it only after [`Input::next`] has asked for more bytes.
    pub(crate) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if let Expect::Payload { buffer, filled, .. } = &mut self.expect
            && buffer.len() - *filled >= IN_PLACE
        {
            let count = ready!(poll_read(stream, cx, buffer.from_mut(*filled)))?;
            *filled += count;
            return Poll::Ready(Ok(count));
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let peek = self.peek && matches!(self.expect, Expect::Header);
        let room = if peek { PEEK } else { self.buffer.len() };
        let count = ready!(poll_read(stream, cx, &mut self.buffer[self.end..room]))?;
        self.end += count;
        Poll::Ready(Ok(count))
    }

    /// Whether a request has arrived in part.
    pub(crate) fn is_mid_request(&self) -> bool {
        self.start < self.end || !matches!(self.expect, Expect::Header)
    }
}

fn poll_read<S: AsyncRead + Unpin>(
    stream: &mut S,
    cx: &mut Context<'_>,
    target: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut target = ReadBuf::new(target);
    ready!(Pin::new(stream).poll_read(cx, &mut target))?;
    Poll::Ready(Ok(target.filled().len()))
}
