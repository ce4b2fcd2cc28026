//! Calls and answers, in both directions over one connection.
//!
//! Calls have numbers, and an answer carries the number of its call. Those of the side that connected count
//! from 1, those of the other side from 2^63 + 1, so that a number says whether a frame is a call or an
//! answer. The number 0 is a call that is not answered. Answers come in any order.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thalweg_env::{Env, HashMap, Task, Tenure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Notify, oneshot};

use crate::frame::{self, FrameError, RawFrame};
pub use crate::limits::Limits;
use crate::output::Output;
use crate::traffic::{Traffic, name_of};

/// The number of a call that is not answered.
pub const UNANSWERED: u64 = 0;
/// The bit of the numbers of the accepting side's calls.
const ACCEPTOR: u64 = 1 << 63;

/// Which side of a connection a channel is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The side that connected.
    Connecting,
    /// The side that accepted the connection.
    Accepting,
}

impl Side {
    fn numbers(self) -> u64 {
        match self {
            Side::Connecting => 0,
            Side::Accepting => ACCEPTOR,
        }
    }

    /// Whether a received frame with this number is an answer to a call of this side.
    fn is_answer(self, id: u64) -> bool {
        id != UNANSWERED && id & ACCEPTOR == self.numbers()
    }
}

fn closed() -> CallError {
    CallError::Lost("it closed the connection".to_owned())
}

/// Why a call has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// The connection is lost, for this reason. Whether the peer carried out the call is unknown.
    #[error("{0}")]
    Lost(String),
    /// The peer did not answer in time, and may still carry out the call. The connection goes on.
    #[error("it did not answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// Too much is under way already. The call was not sent.
    #[error("{0}")]
    Overloaded(&'static str),
    /// It does not fit into a frame. The call was not sent.
    #[error("{0}")]
    TooLarge(FrameError),
}

/// A call of the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// Its number, [`UNANSWERED`] if it wants no answer.
    pub id: u64,
    /// The call, in postcard.
    pub message: Bytes,
    /// What comes with it. A slice of the receive buffer, which it keeps in memory.
    pub payload: Bytes,
}

impl Incoming {
    /// Decodes the call.
    ///
    /// # Errors
    /// [`FrameError::Message`].
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        frame::message_of(&self.message)
    }
}

/// Carries out the calls of a peer.
pub trait Handler: Send + Sync {
    /// Carries out a call, or starts it. No further call is read until this returns: so a handler applies
    /// backpressure.
    ///
    /// # Errors
    /// An error ends the connection.
    fn handle(&self, call: Incoming) -> impl Future<Output = io::Result<()>> + Send;
}

/// Refuses calls: for a side that only makes some.
#[derive(Clone, Copy, Debug)]
pub struct NoCalls;

impl Handler for NoCalls {
    async fn handle(&self, _call: Incoming) -> io::Result<()> {
        Err(io::Error::other("it sent an answer without a request"))
    }
}

type Answered = Result<(Bytes, Bytes), CallError>;

/// What a call's answer is for.
enum Waiter {
    /// The caller, which may be gone.
    Caller(oneshot::Sender<Answered>),
    /// This is done with it where frames are received; see [`Channel::call_then`].
    Then(Box<dyn FnOnce(Answered) -> Result<(), FrameError> + Send>),
}

impl Waiter {
    fn answer(self, answered: Answered) -> Result<(), FrameError> {
        match self {
            // A caller that was dropped, or whose deadline has passed, needs no answer.
            Waiter::Caller(caller) => {
                let _ = caller.send(answered);
                Ok(())
            }
            Waiter::Then(then) => then(answered),
        }
    }
}

/// The calls of this side.
#[derive(Default)]
struct Calls {
    last: u64,
    /// The calls without an answer.
    waiting: HashMap<u64, Waiter>,
    /// Why no further call is sent.
    over: Option<String>,
}

/// One side of a connection. Clones are the same side; the connection ends with the last of them.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<Shared>,
}

struct Shared {
    side: Side,
    limits: Limits,
    output: Arc<Output>,
    calls: Mutex<Calls>,
    /// A call was answered.
    answered: Notify,
    /// Counts what is sent.
    traffic: Option<Traffic>,
    _writer: Task<()>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("side", &self.shared.side).finish_non_exhaustive()
    }
}

impl Channel {
    /// A channel that sends to `writer`. [`Channel::run`] receives.
    pub fn new(
        env: &Env,
        side: Side,
        limits: Limits,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Channel {
        Channel::counted(env, side, limits, writer, None)
    }

    /// A channel that counts what it sends.
    pub fn counted(
        env: &Env,
        side: Side,
        limits: Limits,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        traffic: impl Into<Option<Traffic>>,
    ) -> Channel {
        let traffic = traffic.into();
        let output = Arc::new(Output::new(Box::new(writer)));
        let writing = output.clone();
        let _writer = env.spawn(async move { writing.run().await });
        let (calls, answered) = Default::default();
        let shared = Shared { side, limits, output, calls, answered, traffic, _writer };
        Channel { shared: Arc::new(shared) }
    }

    /// The same channel, which sends nothing while `tenure` has run out. Queued frames leave when it is extended.
    #[must_use]
    pub fn while_holding(self, tenure: Tenure) -> Channel {
        self.shared.output.hold(tenure);
        self
    }

    /// Whether both are the same side of the same connection.
    pub fn is_same(&self, other: &Channel) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Queues a frame and counts it.
    fn push<T: Serialize>(
        &self,
        id: u64,
        purpose: Option<&'static str>,
        message: &T,
        payload: &[Bytes],
    ) -> Result<(), FrameError> {
        let bytes = self.shared.output.push(id, message, payload)?;
        if let Some(traffic) = self.shared.traffic.as_ref().filter(|_| bytes > 0) {
            traffic.count(purpose.unwrap_or_else(|| name_of(message)), bytes);
        }
        Ok(())
    }

    /// Makes a call and waits for the answer. Dropping the future does not stop the peer.
    ///
    /// # Errors
    /// [`CallError::Lost`], [`CallError::Overloaded`], [`CallError::TooLarge`].
    pub async fn call<C: Serialize, A: DeserializeOwned>(
        &self,
        call: &C,
        payload: &[Bytes],
    ) -> Result<(A, Bytes), CallError> {
        let (sender, answer) = oneshot::channel();
        self.send(None, call, payload, Waiter::Caller(sender))?;
        let (message, payload) = answer.await.unwrap_or_else(|_| Err(closed()))?;
        match frame::message_of(&message) {
            Ok(answer) => Ok((answer, payload)),
            Err(error) => {
                self.close(&error.to_string());
                Err(CallError::Lost(error.to_string()))
            }
        }
    }

    /// As [`Channel::call`], and passes the answer through `then`, which runs where frames are received: before any frame
    /// that the peer sent after this answer is looked at, and also when the future was dropped meanwhile. So it must not
    /// block, nor call this channel's [`Channel::close`]. The call is counted for `purpose`, or else by its own name.
    ///
    /// # Errors
    /// As [`Channel::call`]; then `then` does not run.
    pub async fn call_then<C: Serialize, A: DeserializeOwned, R: Send + 'static>(
        &self,
        purpose: impl Into<Option<&'static str>>,
        call: &C,
        payload: &[Bytes],
        then: impl FnOnce(A, Bytes) -> R + Send + 'static,
    ) -> Result<R, CallError> {
        let (sender, result) = oneshot::channel();
        let take = move |answered: Answered| {
            let done = match answered {
                Ok((message, payload)) => Ok(then(frame::message_of(&message)?, payload)),
                Err(error) => Err(error),
            };
            // The caller may be gone.
            let _ = sender.send(done);
            Ok(())
        };
        self.send(purpose.into(), call, payload, Waiter::Then(Box::new(take)))?;
        result.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Sends a call.
    fn send<C: Serialize>(
        &self,
        purpose: Option<&'static str>,
        call: &C,
        payload: &[Bytes],
        waiter: Waiter,
    ) -> Result<(), CallError> {
        let shared = &self.shared;
        let is_alone = {
            let mut calls = shared.calls.lock();
            self.check(&calls)?;
            if calls.waiting.len() >= shared.limits.calls {
                return Err(CallError::Overloaded("it does not answer its calls"));
            }
            calls.last += 1;
            let id = shared.side.numbers() | calls.last;
            // Under the lock, so that calls leave in the order of their numbers.
            self.push(id, purpose, call, payload).map_err(CallError::TooLarge)?;
            calls.waiting.insert(id, waiter);
            calls.waiting.len() == 1
        };
        match is_alone {
            true => shared.output.flush(),
            // Other callers are about to wait, too: one write carries all calls.
            false => shared.output.flush_soon(),
        }
        Ok(())
    }

    /// As [`Channel::call`], with a deadline.
    ///
    /// # Errors
    /// [`CallError`]. After [`CallError::Late`] the channel ignores the answer of this call.
    pub async fn call_within<C: Serialize, A: DeserializeOwned>(
        &self,
        env: &Env,
        span: Duration,
        call: &C,
        payload: &[Bytes],
    ) -> Result<(A, Bytes), CallError> {
        let answered = env.timeout(span, self.call(call, payload)).await;
        answered.unwrap_or(Err(CallError::Late(span)))
    }

    /// Queues a call that is not answered. It leaves with the next one that is, or by itself when many bytes
    /// are queued.
    ///
    /// # Errors
    /// [`CallError::Lost`], [`CallError::Overloaded`], [`CallError::TooLarge`].
    pub fn tell<C: Serialize>(&self, call: &C, payload: &[Bytes]) -> Result<(), CallError> {
        self.tell_for(None, call, payload)
    }

    /// [`Channel::tell`], counted for another purpose than the call's name.
    ///
    /// # Errors
    /// As [`Channel::tell`].
    pub fn tell_for<C: Serialize>(
        &self,
        purpose: impl Into<Option<&'static str>>,
        call: &C,
        payload: &[Bytes],
    ) -> Result<(), CallError> {
        self.check(&self.shared.calls.lock())?;
        self.push(UNANSWERED, purpose.into(), call, payload).map_err(CallError::TooLarge)?;
        if self.shared.output.pending() > self.shared.limits.cork {
            self.flush_soon();
        }
        Ok(())
    }

    fn check(&self, calls: &Calls) -> Result<(), CallError> {
        match &calls.over {
            Some(why) => Err(CallError::Lost(why.clone())),
            None if self.shared.output.pending() > self.shared.limits.queued => {
                Err(CallError::Overloaded("it does not read its calls"))
            }
            None => Ok(()),
        }
    }

    /// Queues the answer to the peer's call `id`; nothing for one that is not answered. An answer that does not fit into a
    /// frame ends the connection: the peer would wait for it for ever.
    pub fn answer<A: Serialize>(&self, id: u64, answer: &A, payload: &[Bytes]) {
        if id == UNANSWERED {
            return;
        }
        if let Err(error) = self.push(id, None, answer, payload) {
            tracing::error!(answer = name_of(answer), %error, "an answer cannot be sent");
            self.close(&error.to_string());
        }
    }

    /// Writes queued frames here and now, as far as the stream accepts them.
    pub fn flush(&self) {
        self.shared.output.flush();
    }

    /// Has queued frames written soon, together with those that are queued until then.
    pub fn flush_soon(&self) {
        self.shared.output.flush_soon();
    }

    /// Waits until less than this many bytes are unwritten, or the channel is closed: for a side that queues more calls
    /// than the peer may read.
    pub async fn drained(&self, bytes: usize) {
        self.shared.output.wait_below(bytes).await;
    }

    /// Receives calls and answers until the peer closes the connection. Then, or on an error, the channel is
    /// closed. Dropping the future leaves it open.
    ///
    /// # Errors
    /// Errors of the connection, a peer that violates the protocol, and errors of `handler`.
    pub async fn run(
        &self,
        reader: impl AsyncRead + Unpin,
        handler: &impl Handler,
    ) -> io::Result<()> {
        let result = self.receive(reader, handler).await;
        match &result {
            Ok(()) => self.close("it closed the connection"),
            Err(error) => self.close(&error.to_string()),
        }
        result
    }

    async fn receive(
        &self,
        mut reader: impl AsyncRead + Unpin,
        handler: &impl Handler,
    ) -> io::Result<()> {
        let Shared { side, limits, output, .. } = &*self.shared;
        let mut input = BytesMut::new();
        loop {
            while let Some(frame) =
                frame::decode_raw(&mut input, limits.payload).map_err(io::Error::other)?
            {
                let RawFrame { id, message, payload } = frame;
                match side.is_answer(id) {
                    true => self.take_answer(id, message, payload)?,
                    false => handler.handle(Incoming { id, message, payload }).await?,
                }
            }
            output.flush();
            output.wait_below(limits.unread).await;
            input.reserve(limits.read);
            let read = match reader.read_buf(&mut input).await {
                // A peer that was killed says no farewell, which TLS takes for an error.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                read => read?,
            };
            if read == 0 {
                return match input.is_empty() {
                    true => Ok(()),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    fn take_answer(&self, id: u64, message: Bytes, payload: Bytes) -> io::Result<()> {
        let caller = self.shared.calls.lock().waiting.remove(&id);
        let caller =
            caller.ok_or_else(|| io::Error::other("it sent an answer without a request"))?;
        caller.answer(Ok((message, payload))).map_err(io::Error::other)?;
        self.shared.answered.notify_waiters();
        Ok(())
    }

    /// Ends the connection in order: no further call is sent, calls that were sent get their answers, queued
    /// frames are written, and then the peer sees the end of the stream.
    pub async fn shutdown(&self) {
        self.shared.calls.lock().over.get_or_insert_with(|| "it is closed".to_owned());
        self.shared.answered.notify_waiters();
        loop {
            let answered = self.shared.answered.notified();
            if self.shared.calls.lock().waiting.is_empty() {
                break;
            }
            answered.await;
        }
        self.shared.output.finish().await;
    }

    /// Returns when no further call is sent, because of [`Channel::close`] or [`Channel::shutdown`].
    pub async fn closed(&self) {
        loop {
            let answered = self.shared.answered.notified();
            if self.shared.calls.lock().over.is_some() {
                return;
            }
            answered.await;
        }
    }

    /// Ends the connection at once: calls without an answer fail for this reason, queued frames are dropped.
    pub fn close(&self, why: &str) {
        self.shared.output.close();
        let callers = {
            let mut calls = self.shared.calls.lock();
            calls.over.get_or_insert_with(|| why.to_owned());
            std::mem::take(&mut calls.waiting)
        };
        for (_, caller) in callers {
            // An error does not have to be decoded.
            let _ = caller.answer(Err(CallError::Lost(why.to_owned())));
        }
        self.shared.answered.notify_waiters();
    }
}
