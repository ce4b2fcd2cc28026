//! The two ends of a stream, and how they meet.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use thalweg_env::Time;
use thalweg_env::connection::{BoxStream, Connecting, Connector, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Mutex, mpsc};

use super::pipe::Pipe;
use super::{CONNECT, Host, Network, RETRY};

/// One end of a stream. Dropped, it ends the stream; what it did not read is lost, and the other end's writes fail.
pub struct SimStream {
    network: Network,
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
}

impl fmt::Debug for SimStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStream").field("ends", &self.outgoing.ends()).finish_non_exhaustive()
    }
}

impl SimStream {
    /// The name of the host at the other end.
    pub fn peer(&self) -> String {
        self.network.shared.state.lock().hosts.names[self.outgoing.ends().1].clone()
    }

    /// When the other end hears of what happens now.
    fn heard(&self) -> Time {
        let shared = &self.network.shared;
        let (from, to) = self.outgoing.ends();
        shared.env.now() + shared.state.lock().link(from, to).spec.latency
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        let at = self.heard();
        self.outgoing.end(at);
        self.incoming.abandon(at);
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.incoming.poll_read(cx, into)
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let shared = &self.network.shared;
        let now = shared.env.now();
        let (from, to) = self.outgoing.ends();
        let mut state = shared.state.lock();
        self.outgoing.poll_write(cx, bytes, |count| state.send(now, from, to, count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.outgoing.end(self.heard());
        Poll::Ready(Ok(()))
    }
}

/// Connects from one host to a port of another.
#[derive(Clone, Debug)]
pub struct SimConnector {
    from: Host,
    to: Host,
    port: u16,
}

impl SimConnector {
    pub(super) fn new(from: Host, to: Host, port: u16) -> SimConnector {
        SimConnector { from, to, port }
    }

    /// Connects.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when the host does not answer, [`io::ErrorKind::ConnectionRefused`] when no task
    /// listens.
    pub async fn open(&self) -> io::Result<SimStream> {
        let env = &self.from.network.shared.env;
        match env.timeout(CONNECT, self.reach()).await {
            None => Err(io::ErrorKind::TimedOut.into()),
            Some(()) => self.meet(),
        }
    }

    /// Waits for an answer of the host.
    async fn reach(&self) {
        let shared = &self.from.network.shared;
        let (from, to) = (self.from.number, self.to.number);
        loop {
            let (spans, mut passes) = {
                let mut state = shared.state.lock();
                let (there, back) =
                    (state.link(from, to).spec.latency, state.link(to, from).spec.latency);
                let passes = state.passes(from, to);
                (there + back, passes)
            };
            for passes in &mut passes {
                // The network holds the other half.
                let _ = passes.wait_for(|passes| *passes).await;
            }
            shared.env.sleep(spans).await;
            if !shared.state.lock().hosts.down[to] {
                return;
            }
            shared.env.sleep(RETRY).await;
        }
    }

    fn meet(&self) -> io::Result<SimStream> {
        let network = &self.from.network;
        let (from, to) = (self.from.number, self.to.number);
        let mut state = network.shared.state.lock();
        let listener = state.hosts.listeners.get(&(to, self.port)).cloned();
        let listener = listener.ok_or(io::ErrorKind::ConnectionRefused)?;
        let windows = [(from, to), (to, from)].map(|(from, to)| state.link(from, to).spec.window);
        let passes = state.passes(from, to);
        let [there, back] = Pipe::pair(&network.shared.env, [from, to], windows, passes, RETRY);
        state.pipes.extend([Arc::downgrade(&there), Arc::downgrade(&back)]);
        state.link(from, to).tally.connections += 1;
        drop(state);
        let network = network.clone();
        let far =
            SimStream { network: network.clone(), incoming: there.clone(), outgoing: back.clone() };
        let near = SimStream { network, incoming: back, outgoing: there };
        match listener.send(far) {
            Ok(()) => Ok(near),
            Err(_) => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }
}

impl Connector for SimConnector {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async { Ok(Box::new(self.open().await?) as BoxStream) })
    }
}

/// A port of a host. Dropped, it refuses connections; those that were not accepted end.
#[derive(Debug)]
pub struct SimListener {
    arriving: Mutex<mpsc::UnboundedReceiver<SimStream>>,
}

impl SimListener {
    pub(super) fn new(arriving: mpsc::UnboundedReceiver<SimStream>) -> SimListener {
        SimListener { arriving: Mutex::new(arriving) }
    }
}

impl Listener for SimListener {
    type Stream = SimStream;

    async fn accept(&self) -> io::Result<SimStream> {
        // The sender is dropped when the host loses its power.
        self.arriving.lock().await.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}
