//! Transmission: one task for each connection.
//!
//! Each request is polled once on arrival. A request that is done at once, such as a write that only touches
//! memory, costs no task switch; any other joins the requests in flight, and later requests may overtake it.
//! Replies that are ready together leave together.
//!
//! A request in flight always runs to its end: when the client disconnects or vanishes, the connection stops
//! reading, and ends after its last request.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{FuturesUnordered, Stream};
use thalweg_env::{Env, Time};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::execute::{Answer, execute};
use crate::export::{Served, Usage};
use crate::handshake::Agreement;
use crate::input::{Arrival, Input};
use crate::output::Output;
use crate::patience::Patience;
use crate::protocol::{Command, ProtocolError, Request};
use crate::stats::ServerStats;

/// Bytes of unsent replies above which no request is admitted: replies leave before more are made, and the
/// server stops reading from a client that accepts none.
const BATCH_BYTES: usize = 256 * 1024;

/// Limits of the requests in flight of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backpressure {
    /// Requests in flight.
    pub(crate) requests: usize,
    /// Payload bytes of requests in flight. The last request admitted may exceed it.
    pub(crate) bytes: usize,
    /// The limit in bytes for all open connections together: each has an equal share.
    pub(crate) server_bytes: usize,
}

impl Backpressure {
    /// Payload bytes that one of `open` connections may have in flight.
    fn share(self, open: u64) -> usize {
        let open = usize::try_from(open.max(1)).unwrap_or(usize::MAX);
        self.bytes.min(self.server_bytes / open).max(1)
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("connection lost: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("the client vanished in the middle of a request, which was not carried out")]
    Vanished,
}

impl ConnectionError {
    /// Whether the client violated the protocol (a broken network is no fault of the client).
    pub(crate) fn is_clients_fault(&self) -> bool {
        matches!(self, ConnectionError::Protocol(_))
    }
}

/// The context of a connection's requests, shared by the requests in flight.
struct Session {
    env: Env,
    served: Arc<Served>,
    structured: bool,
    _usage: Option<Usage>,
}

/// A request that has been carried out.
struct Done {
    request: Request,
    started: Time,
    answer: Answer,
}

type Running = Pin<Box<dyn Future<Output = Done> + Send>>;

/// A connection in transmission.
pub(crate) struct Connection<'a, S> {
    stream: &'a mut S,
    session: Arc<Session>,
    stats: &'a ServerStats,
    backpressure: Backpressure,
    allocation: bool,
    input: Input,
    output: Output,
    /// The time of the oldest unsent reply.
    unsent_since: Option<Time>,
    running: FuturesUnordered<Running>,
    running_bytes: usize,
    /// Waits for the client, and for the volume.
    patience: [Patience; 2],
    /// Whether requests are still accepted.
    is_open: bool,
    /// The first failure. After it nothing is sent.
    failure: Option<ConnectionError>,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    pub(crate) fn new(
        stream: &'a mut S,
        env: Env,
        agreement: Agreement,
        stats: &'a ServerStats,
        backpressure: Backpressure,
    ) -> Self {
        let Agreement { served, structured, allocation } = agreement;
        Connection {
            stream,
            session: Arc::new(Session { env, _usage: served.enter(), served, structured }),
            stats,
            backpressure,
            allocation,
            input: Input::new(),
            output: Output::new(structured),
            unsent_since: None,
            running: FuturesUnordered::new(),
            running_bytes: 0,
            patience: Default::default(),
            is_open: true,
            failure: None,
        }
    }

    /// Serves requests until the client disconnects or `stop` is ready.
    pub(crate) async fn run(
        mut self,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ConnectionError> {
        let mut stop = std::pin::pin!(stop);
        std::future::poll_fn(|cx| {
            loop {
                let mut progress = self.collect(cx);
                progress |= self.admit(cx);
                progress |= self.send(cx);
                if self.is_over() {
                    return Poll::Ready(());
                }
                if progress {
                    self.patience.iter_mut().for_each(|wait| wait.ends(&self.session.env));
                    continue;
                }
                // Polled last: a completed future must not be polled again.
                if self.is_open && stop.as_mut().poll(cx).is_ready() {
                    self.is_open = false;
                    continue;
                }
                let wait = usize::from(!self.running.is_empty());
                self.patience[wait].goes_on(&self.session.env, cx);
                return Poll::Pending;
            }
        })
        .await;
        self.failure.map_or(Ok(()), Err)
    }

    fn is_over(&self) -> bool {
        let sent = self.output.is_empty() || self.failure.is_some();
        !self.is_open && self.running.is_empty() && sent
    }

    fn fail(&mut self, failure: ConnectionError) {
        self.is_open = false;
        self.failure.get_or_insert(failure);
    }

    /// Collects the results of requests that were not done at once.
    fn collect(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Poll::Ready(Some(done)) = Pin::new(&mut self.running).poll_next(cx) {
            self.running_bytes -= held_bytes(&done.request);
            self.reply(done);
            progress = true;
        }
        progress
    }

    fn has_room(&self) -> bool {
        self.running.len() < self.backpressure.requests
            && self.running_bytes < self.backpressure.share(self.stats.connections_open.get())
            && self.output.len() < BATCH_BYTES
    }

    /// Starts the received requests.
    fn admit(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while self.is_open && self.has_room() {
            let limits = || self.session.served.limits(self.session.structured, self.allocation);
            match self.input.next(limits) {
                Ok(Some(arrival)) => self.start(arrival, cx),
                Ok(None) => match self.fill(cx) {
                    Poll::Ready(()) => {}
                    Poll::Pending => return progress,
                },
                Err(error) => self.fail(error.into()),
            }
            progress = true;
        }
        progress
    }

    /// Receives bytes. Replies go out first: the client may be waiting for them.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.send(cx);
        match self.input.poll_fill(self.stream, cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(0)) if self.input.is_mid_request() => {
                self.fail(ConnectionError::Vanished);
            }
            Poll::Ready(Ok(0)) => self.is_open = false,
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(error)) => self.fail(error.into()),
        }
        Poll::Ready(())
    }

    fn start(&mut self, arrival: Arrival, cx: &mut Context<'_>) {
        let started = self.session.env.now();
        let (request, payload) = match arrival {
            Arrival::Request(request, payload) => (request, payload),
            Arrival::Refused(request, errno, reason) => {
                let answer = Answer::Error(errno, reason.to_owned());
                return self.reply(Done { request, started, answer });
            }
        };
        if request.command == Command::Disconnect {
            self.is_open = false;
            return;
        }
        let mut future = Box::pin(carry_out(self.session.clone(), request, payload, started));
        match future.as_mut().poll(cx) {
            Poll::Ready(done) => self.reply(done),
            Poll::Pending => {
                self.running_bytes += held_bytes(&request);
                self.running.push(future);
            }
        }
    }

    fn reply(&mut self, Done { request, started, answer }: Done) {
        let now = self.session.env.now();
        let latency = now.since(started);
        let stats = self.stats.command(request.command);
        stats.record(u64::from(request.len), answer.is_error(), latency);
        if self.failure.is_none() {
            self.unsent_since.get_or_insert(now);
            self.output.reply(&request, answer);
        }
    }

    /// Sends replies; returns whether any bytes were sent.
    fn send(&mut self, cx: &mut Context<'_>) -> bool {
        if self.failure.is_some() || self.output.is_empty() {
            return false;
        }
        let before = self.output.len();
        match self.output.poll_send(self.stream, cx) {
            Poll::Pending => self.output.len() < before,
            Poll::Ready(Ok(())) => {
                if let Some(since) = self.unsent_since.take() {
                    self.stats.send.add(self.session.env.now().since(since));
                }
                true
            }
            Poll::Ready(Err(error)) => {
                self.fail(error.into());
                true
            }
        }
    }
}

/// Bytes that a request holds in memory while it is in flight.
fn held_bytes(request: &Request) -> usize {
    match request.command {
        Command::Read | Command::Write => request.len as usize,
        _ => 0,
    }
}

async fn carry_out(
    session: Arc<Session>,
    request: Request,
    payload: Vec<Bytes>,
    started: Time,
) -> Done {
    let volume = session.served.volume().as_ref();
    let answer = execute(volume, request, payload, session.structured).await;
    Done { request, started, answer }
}
