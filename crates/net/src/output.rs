//! The send queue: frames that are queued during a write leave together with the next write.
//!
//! A caller with an urgent frame writes it itself unless another task is writing ([`Output::flush`]); this
//! saves a lone caller a task switch. The writer task ([`Output::run`]) sends the rest when the stream does not
//! accept all bytes at once.

use std::collections::VecDeque;
use std::fmt;
use std::io::{ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use serde::Serialize;
use thalweg_env::Tenure;
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use crate::frame::{self, FrameError};

/// Maximum number of slices in one write.
const SLICES: usize = 64;

type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The send queue of a connection.
pub(crate) struct Output {
    queue: Mutex<Queue>,
    /// Locked by the task that writes. `None` once the connection is broken.
    writer: Mutex<Option<Writer>>,
    ready: Arc<Ready>,
    /// Nothing is written while it has run out.
    tenure: OnceLock<Tenure>,
    /// Bytes were written, or the connection is broken.
    drained: Notify,
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

/// Wakes the writer task: frames are queued, or the stream accepts bytes again. It is the waker of every
/// write, whichever task makes it.
#[derive(Default)]
struct Ready(Notify);

impl Wake for Ready {
    fn wake(self: Arc<Ready>) {
        self.0.notify_one();
    }
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Bytes>,
    /// Messages behind the last chunk.
    tail: BytesMut,
    /// Number of bytes that have not been written.
    bytes: usize,
    state: State,
    /// All bytes are written, and the stream is still to be flushed.
    unflushed: bool,
    broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// No task writes.
    #[default]
    Idle,
    /// One task writes; no other may.
    Busy,
    /// The stream did not accept all bytes; the writer task goes on.
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

    fn is_done(&self) -> bool {
        self.chunks.is_empty() && self.tail.is_empty() && !self.unflushed
    }
}

impl Output {
    pub(crate) fn new(writer: Writer) -> Output {
        let (queue, ready, tenure, drained) = Default::default();
        Output { queue, writer: Mutex::new(Some(writer)), ready, tenure, drained }
    }

    /// Writes nothing from now on while `tenure` has run out.
    pub(crate) fn hold(&self, tenure: Tenure) {
        let _ = self.tenure.set(tenure);
    }

    fn may_write(&self) -> bool {
        self.tenure.get().is_none_or(Tenure::holds)
    }

    /// Waits until the tenure holds, or the connection is broken.
    async fn wait_for_tenure(&self) {
        let Some(tenure) = self.tenure.get() else { return };
        let broken = async {
            loop {
                let drained = self.drained.notified();
                if self.queue.lock().broken {
                    return;
                }
                drained.await;
            }
        };
        tokio::select! {
            biased;
            () = tenure.held() => {}
            () = broken => {}
        }
    }

    /// Queues a frame; returns its bytes, none when the connection is broken.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`]; then nothing is queued.
    pub(crate) fn push<T: Serialize>(
        &self,
        id: u64,
        message: &T,
        payload: &[Bytes],
    ) -> Result<usize, FrameError> {
        let len = payload.iter().map(Bytes::len).sum();
        let mut queue = self.queue.lock();
        if queue.broken {
            return Ok(0);
        }
        let before = queue.tail.len();
        frame::encode(id, message, len, &mut queue.tail)?;
        let bytes = queue.tail.len() - before + len;
        queue.bytes += bytes;
        if len > 0 {
            let head = queue.tail.split().freeze();
            queue.chunks.push_back(head);
            queue.chunks.extend(payload.iter().cloned());
        }
        Ok(bytes)
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
        if self.write_from(State::Idle).is_pending() {
            // The stream may have become writable before the queue said that bytes are left.
            self.ready.0.notify_one();
        }
    }

    /// Wakes the writer task, which writes all frames that are queued by the time it runs.
    pub(crate) fn flush_soon(&self) {
        self.ready.0.notify_one();
    }

    /// The writer task. It ends when the stream fails.
    pub(crate) async fn run(&self) {
        loop {
            self.ready.0.notified().await;
            self.wait_for_tenure().await;
            if self.write_from(State::Left).is_ready() {
                let _ = self.write_from(State::Idle);
            }
            if self.queue.lock().broken {
                return;
            }
        }
    }

    /// Drops all unwritten frames and ignores later ones. The peer sees the end of the stream.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        *queue = Queue { broken: true, ..Queue::default() };
        drop(queue);
        // Dropped without the lock.
        let writer = self.writer.lock().take();
        drop(writer);
        self.drained.notify_waiters();
        self.ready.0.notify_one();
    }

    /// Writes all frames, then ends this direction of the stream.
    pub(crate) async fn finish(&self) {
        self.flush_soon();
        self.wait_below(0).await;
        std::future::poll_fn(|cx| match &mut *self.writer.lock() {
            Some(writer) => Pin::new(writer).poll_shutdown(cx).map(drop),
            None => Poll::Ready(()),
        })
        .await;
        self.close();
    }

    /// Writes the queue if its state is `expected`; pending when the stream does not accept all bytes now.
    fn write_from(&self, expected: State) -> Poll<()> {
        let mut expected = expected;
        loop {
            let chunks = {
                let mut queue = self.queue.lock();
                if queue.state != expected || queue.is_done() {
                    return Poll::Ready(());
                }
                queue.state = State::Busy;
                queue.take()
            };
            if self.write(chunks).is_pending() {
                return Poll::Pending;
            }
            expected = State::Idle;
        }
    }

    /// Writes `chunks`. Bytes that the stream does not accept now return to the queue.
    fn write(&self, mut chunks: VecDeque<Bytes>) -> Poll<()> {
        let waker = Waker::from(self.ready.clone());
        let mut cx = Context::from_waker(&waker);
        let mut guard = self.writer.lock();
        let Some(writer) = guard.as_mut() else { return Poll::Ready(()) };
        while !chunks.is_empty() {
            // Asked last of all: an answer that leaves later was true when the tenure held.
            if !self.may_write() {
                self.put_back(chunks);
                self.ready.0.notify_one();
                return Poll::Pending;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = chunks.len().min(SLICES);
            for (slice, chunk) in slices.iter_mut().zip(&chunks) {
                *slice = IoSlice::new(chunk);
            }
            match Pin::new(&mut *writer).poll_write_vectored(&mut cx, &slices[..count]) {
                Poll::Ready(Ok(written)) if written > 0 => self.note(&mut chunks, written),
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Poll::Ready(_) => {
                    drop(guard);
                    self.close();
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    self.put_back(chunks);
                    return Poll::Pending;
                }
            }
        }
        let flushed = Pin::new(writer).poll_flush(&mut cx);
        let mut queue = self.queue.lock();
        queue.unflushed = flushed.is_pending();
        queue.state = if flushed.is_pending() { State::Left } else { State::Idle };
        flushed.map(drop)
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
        queue.state = State::Left;
    }
}
