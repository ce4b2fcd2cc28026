//! The send queue: frames that are queued during a write leave together with the next write.
//!
//! A caller with an urgent frame writes it itself unless another task is writing ([`Output::flush`]); this
//! saves a lone caller a task switch. The writer task ([`Output::run`]) sends the rest when the socket does
//! not accept all bytes at once.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::net::UnixStream;
use tokio::sync::Notify;

use crate::protocol;

/// Maximum number of slices in one write.
const SLICES: usize = 64;

/// The send queue of a connection.
#[derive(Debug)]
pub(crate) struct Output {
    stream: Arc<UnixStream>,
    queue: Mutex<Queue>,
    /// Frames are queued.
    ready: Notify,
    /// Bytes were written, or the connection is broken.
    drained: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Bytes>,
    /// Messages behind the last chunk.
    tail: BytesMut,
    /// Number of bytes that have not been written.
    bytes: usize,
    writer: Writer,
    broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Writer {
    /// No task writes.
    #[default]
    Idle,
    /// One task writes; no other may.
    Busy,
    /// The socket did not accept all bytes; the writer task goes on.
    Left,
}

impl Queue {
    fn take(&mut self) -> VecDeque<Bytes> {
        let mut chunks = std::mem::take(&mut self.chunks);
        if !self.tail.is_empty() {
            chunks.push_back(self.tail.split().freeze());
        }
        chunks
    }

    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.tail.is_empty()
    }
}

impl Output {
    pub(crate) fn new(stream: Arc<UnixStream>) -> Output {
        let (queue, ready, drained) = Default::default();
        Output { stream, queue, ready, drained }
    }

    /// Queues a frame.
    pub(crate) fn push<T: Serialize>(&self, id: u64, message: &T, payload: &[Bytes]) {
        let len = payload.iter().map(Bytes::len).sum();
        let mut queue = self.queue.lock();
        if queue.broken {
            return;
        }
        let before = queue.tail.len();
        protocol::encode(id, message, len, &mut queue.tail);
        queue.bytes += queue.tail.len() - before + len;
        if len > 0 {
            let head = queue.tail.split().freeze();
            queue.chunks.push_back(head);
            queue.chunks.extend(payload.iter().cloned());
        }
    }

    /// The number of bytes that have not been written.
    pub(crate) fn pending(&self) -> usize {
        self.queue.lock().bytes
    }

    /// Waits until at most `bytes` bytes are unwritten.
    pub(crate) async fn wait_below(&self, bytes: usize) {
        loop {
            let drained = self.drained.notified();
            if self.pending() <= bytes {
                return;
            }
            drained.await;
        }
    }

    /// Writes the queue. A task that is writing already writes the new frames, too.
    pub(crate) fn flush(&self) {
        while let Some(chunks) = self.begin(Writer::Idle) {
            if !self.write(chunks) {
                return;
            }
        }
    }

    /// Wakes the writer task, which writes all frames that are queued by the time it runs.
    pub(crate) fn flush_soon(&self) {
        self.ready.notify_one();
    }

    /// The writer task. It ends when the socket fails.
    pub(crate) async fn run(&self) {
        loop {
            self.ready.notified().await;
            self.flush();
            while self.is_left() {
                if self.stream.writable().await.is_err() {
                    return self.close();
                }
                if let Some(chunks) = self.begin(Writer::Left)
                    && self.write(chunks)
                {
                    self.flush();
                }
            }
            if self.queue.lock().broken {
                return;
            }
        }
    }

    /// Drops all unwritten frames and ignores later ones.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        *queue = Queue { broken: true, ..Queue::default() };
        drop(queue);
        self.drained.notify_waiters();
    }

    /// Takes the queue if the writer's state is `expected`; the caller must write it now.
    fn begin(&self, expected: Writer) -> Option<VecDeque<Bytes>> {
        let mut queue = self.queue.lock();
        if queue.writer != expected || queue.is_empty() {
            return None;
        }
        queue.writer = Writer::Busy;
        Some(queue.take())
    }

    fn is_left(&self) -> bool {
        let queue = self.queue.lock();
        queue.writer == Writer::Left && !queue.broken
    }

    /// Writes `chunks`. False when the socket does not accept all of them now; the rest returns to the queue.
    fn write(&self, mut chunks: VecDeque<Bytes>) -> bool {
        while !chunks.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = chunks.len().min(SLICES);
            for (slice, chunk) in slices.iter_mut().zip(&chunks) {
                *slice = IoSlice::new(chunk);
            }
            match self.stream.try_write_vectored(&slices[..count]) {
                Ok(written) if written > 0 => self.note(&mut chunks, written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.put_back(chunks);
                    return false;
                }
                _ => {
                    self.close();
                    return false;
                }
            }
        }
        self.queue.lock().writer = Writer::Idle;
        true
    }

    fn note(&self, chunks: &mut VecDeque<Bytes>, written: usize) {
        let mut left = written;
        while let Some(first) = chunks.front_mut() {
            if left < first.len() {
                first.advance(left);
                break;
            }
            left -= first.len();
            chunks.pop_front();
        }
        let mut queue = self.queue.lock();
        queue.bytes = queue.bytes.saturating_sub(written);
        drop(queue);
        self.drained.notify_waiters();
    }

    fn put_back(&self, mut left: VecDeque<Bytes>) {
        let mut queue = self.queue.lock();
        if queue.broken {
            return;
        }
        left.append(&mut queue.chunks);
        queue.chunks = left;
        queue.writer = Writer::Left;
        drop(queue);
        self.ready.notify_one();
    }
}
