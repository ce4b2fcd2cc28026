//! One direction of a stream.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use thalweg_env::{Env, Time, watch};
use tokio::io::ReadBuf;
use tokio::sync::Notify;

/// One direction of a stream: what was written and not yet read.
pub(super) struct Pipe {
    env: Env,
    from: usize,
    to: usize,
    window: usize,
    /// Whether bytes pass in this direction, and in the opposite one.
    passes: [watch::Receiver<bool>; 2],
    /// The longest time until what waited for a link is sent again.
    retry: Duration,
    state: Mutex<PipeState>,
    /// Something was sent, or the pipe ended.
    sent: Notify,
    opposite: OnceLock<Weak<Pipe>>,
}

#[derive(Default)]
struct PipeState {
    under_way: VecDeque<(Time, Bytes)>,
    arrived: BytesMut,
    /// Bytes that take room in the window: written, and not acknowledged.
    taken: usize,
    /// Bytes that were read and are not acknowledged: the acknowledgement waits for the opposite direction.
    read: usize,
    /// The writer has ended the stream, and the reader knows.
    ended: bool,
    end_arrived: bool,
    /// Why the stream is broken.
    broken: Option<io::ErrorKind>,
    /// An end has lost its power: nothing arrives any more.
    vanished: bool,
    /// That end has its power again, and does not know the stream.
    forgotten: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl PipeState {
    fn wake_reader(&mut self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    fn wake_writer(&mut self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }

    fn break_with(&mut self, why: io::ErrorKind) {
        self.broken.get_or_insert(why);
        self.under_way.clear();
        self.wake_reader();
        self.wake_writer();
    }
}

/// What a pipe's pump does next.
enum Next {
    Deliver(Time),
    Wait,
    Stop,
}

impl Pipe {
    /// The two directions between two hosts: from the first to the second, and back. `passes` says whether these
    /// directions of the link are whole.
    pub(super) fn pair(
        env: &Env,
        [one, other]: [usize; 2],
        windows: [usize; 2],
        passes: [watch::Receiver<bool>; 2],
        retry: Duration,
    ) -> [Arc<Pipe>; 2] {
        let [there, back] = passes;
        let pipe = |from, to, window, passes| {
            Arc::new(Pipe {
                env: env.clone(),
                from,
                to,
                window,
                passes,
                retry,
                state: Mutex::default(),
                sent: Notify::new(),
                opposite: OnceLock::new(),
            })
        };
        let pair = [
            pipe(one, other, windows[0], [there.clone(), back.clone()]),
            pipe(other, one, windows[1], [back, there]),
        ];
        for (pipe, opposite) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let _ = pipe.opposite.set(Arc::downgrade(opposite));
            env.spawn(pipe.clone().pump()).detach();
        }
        pair
    }

    pub(super) fn ends(&self) -> (usize, usize) {
        (self.from, self.to)
    }

    pub(super) fn is_between(&self, one: usize, other: usize) -> bool {
        (self.from, self.to) == (one, other) || (self.from, self.to) == (other, one)
    }

    pub(super) fn touches(&self, host: usize) -> bool {
        self.from == host || self.to == host
    }

    /// Delivers what was sent when its time has come.
    async fn pump(self: Arc<Pipe>) {
        loop {
            let mut sent = std::pin::pin!(self.sent.notified());
            sent.as_mut().enable();
            match self.next() {
                Next::Stop => return,
                Next::Wait => sent.await,
                Next::Deliver(at) => {
                    self.env.sleep_until(at).await;
                    self.pass(0).await;
                    self.deliver();
                }
            }
        }
    }

    fn next(&self) -> Next {
        let state = self.state.lock();
        if state.broken.is_some() || state.vanished {
            return Next::Stop;
        }
        match state.under_way.front() {
            Some((at, _)) => Next::Deliver(*at),
            None if state.ended => Next::Stop,
            None => Next::Wait,
        }
    }

    /// Waits until a direction of the link is whole: 0 is this one, 1 the opposite.
    async fn pass(&self, direction: usize) {
        let mut passes = self.passes[direction].clone();
        if *passes.borrow() {
            return;
        }
        // The network outlives the run's streams, or no one waits.
        let _ = passes.wait_for(|passes| *passes).await;
        let retry = self.retry.as_micros() as u64;
        let wait = rand::RngExt::random_range(&mut self.env.rng(), 0..=retry);
        self.env.sleep(Duration::from_micros(wait)).await;
    }

    fn deliver(&self) {
        let mut state = self.state.lock();
        if state.vanished {
            return;
        }
        if let Some((_, bytes)) = state.under_way.pop_front() {
            state.arrived.extend_from_slice(&bytes);
            state.end_arrived = state.ended && state.under_way.is_empty();
            state.wake_reader();
        }
    }

    /// Sends as much as there is room for. `send` counts it, and says when it arrives.
    pub(super) fn poll_write(
        self: &Arc<Pipe>,
        cx: &mut Context<'_>,
        bytes: &[u8],
        send: impl FnOnce(usize) -> Time,
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        if let Some(why) = state.broken {
            return Poll::Ready(Err(why.into()));
        }
        if state.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = self.window.saturating_sub(state.taken).min(bytes.len());
        if count == 0 && !bytes.is_empty() {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let at = send(count);
        state.taken += count;
        if state.vanished {
            let forgotten = state.forgotten;
            drop(state);
            if forgotten {
                self.refuse_later(at, true);
            }
            return Poll::Ready(Ok(count));
        }
        let at = state.under_way.back().map_or(at, |(last, _)| at.max(*last));
        state.under_way.push_back((at, Bytes::copy_from_slice(&bytes[..count])));
        drop(state);
        self.sent.notify_one();
        Poll::Ready(Ok(count))
    }

    /// Reads what has arrived; nothing at the end of the stream.
    pub(super) fn poll_read(
        self: &Arc<Pipe>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        let count = state.arrived.len().min(into.remaining());
        if count > 0 {
            into.put_slice(&state.arrived[..count]);
            state.arrived.advance(count);
            state.read += count;
            drop(state);
            self.acknowledge();
            return Poll::Ready(Ok(()));
        }
        match state.broken {
            Some(why) => Poll::Ready(Err(why.into())),
            None if state.end_arrived || into.remaining() == 0 => Poll::Ready(Ok(())),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Gives the writer room for what was read, when the opposite direction is whole.
    fn acknowledge(self: &Arc<Pipe>) {
        let free = |pipe: &Pipe| {
            let mut state = pipe.state.lock();
            state.taken -= std::mem::take(&mut state.read);
            state.wake_writer();
        };
        if *self.passes[1].borrow() {
            return free(self);
        }
        let pipe = self.clone();
        let waiting = async move {
            pipe.pass(1).await;
            free(&pipe);
        };
        self.env.spawn(waiting).detach();
    }

    /// The writer has no more to send, which the reader hears at `at`.
    pub(super) fn end(&self, at: Time) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.ended, true) && !state.vanished && state.broken.is_none() {
            let at = state.under_way.back().map_or(at, |(last, _)| at.max(*last));
            state.under_way.push_back((at, Bytes::new()));
        }
        drop(state);
        self.sent.notify_one();
    }

    /// The reader is gone: writes fail from `at` on.
    pub(super) fn abandon(self: &Arc<Pipe>, at: Time) {
        let is_over = {
            let state = self.state.lock();
            state.vanished || state.broken.is_some() || state.end_arrived
        };
        if !is_over {
            self.refuse_later(at, false);
        }
    }

    /// Breaks this direction, or both, at `at`, as soon as its writer hears of it.
    fn refuse_later(self: &Arc<Pipe>, at: Time, both: bool) {
        let pipe = self.clone();
        let refusing = async move {
            pipe.env.sleep_until(at).await;
            pipe.pass(1).await;
            pipe.refuse();
            if let Some(opposite) = pipe.opposite.get().filter(|_| both).and_then(Weak::upgrade) {
                opposite.refuse();
            }
        };
        self.env.spawn(refusing).detach();
    }

    fn refuse(&self) {
        self.state.lock().break_with(io::ErrorKind::ConnectionReset);
        self.sent.notify_one();
    }

    /// Breaks the direction. The first part of what is under way arrives, by its share `keep`.
    pub(super) fn break_after(&self, keep: f64, why: io::ErrorKind) {
        let mut state = self.state.lock();
        let under_way: usize = state.under_way.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut left = (under_way as f64 * keep) as usize;
        while left > 0
            && let Some((_, bytes)) = state.under_way.pop_front()
        {
            let count = left.min(bytes.len());
            state.arrived.extend_from_slice(&bytes[..count]);
            left -= count;
        }
        state.break_with(why);
        drop(state);
        self.sent.notify_one();
    }

    /// An end loses its power.
    pub(super) fn vanish(&self) {
        let mut state = self.state.lock();
        state.vanished = true;
        state.under_way.clear();
        drop(state);
        self.sent.notify_one();
    }

    /// That end has its power again. Bytes that wait for an acknowledgement are sent once more, and refused.
    pub(super) fn forget(self: &Arc<Pipe>) {
        let waits = {
            let mut state = self.state.lock();
            state.forgotten = state.vanished;
            state.forgotten && state.taken > 0
        };
        if waits {
            self.refuse_later(self.env.now() + self.retry, true);
        }
    }
}
