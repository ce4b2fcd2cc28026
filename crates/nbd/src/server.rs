//! The server: exports, listeners, shutdown.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::connection::{Listener, Stream};
use thalweg_env::{Env, Task, watch};
use thalweg_net::accept::signalled;
use thalweg_net::named::{self, UnixSocketOptions};
use thalweg_store::volume::VolumeRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;

use crate::connection::{Backpressure, Connection};
use crate::error::ServerError;
use crate::export::{Export, Registry, Served};
use crate::handshake::{Agreement, HandshakeError, Negotiation, Outcome, Security, greet};
use crate::stats::ServerStats;
use crate::tls::TlsConfig;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerConfig {
    /// Maximum number of open connections on Unix sockets, and the same number on TCP: idle clients of one
    /// kind do not lock out the other. Further connections are closed at once.
    pub max_connections: usize,
    /// Time for a client to complete the handshake.
    pub handshake_timeout: Duration,
    /// Time for requests in flight to finish when the server or an export goes away.
    pub shutdown_grace: Duration,
    /// Requests in flight for each connection.
    pub max_requests: usize,
    /// Payload bytes of requests in flight for each connection. Up to three payloads of 32 MiB may exceed
    /// this: the payload that is being received, the last one admitted, and the last reply.
    pub max_bytes: usize,
    /// Payload bytes of requests in flight for all connections together, which share it equally.
    pub max_server_bytes: usize,
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            max_connections: 4096,
            handshake_timeout: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(10),
            max_requests: 256,
            max_bytes: 64 << 20,
            max_server_bytes: 4 << 30,
        }
    }
}

/// A handle to a server. Clones share it; when the last one is dropped, listeners and connections
/// end at once. [`Server::shutdown`] ends them gracefully.
#[derive(Clone, Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listeners: Arc<Mutex<Vec<Task<()>>>>,
}

#[derive(Debug)]
struct Shared {
    env: Env,
    config: ServerConfig,
    registry: Registry,
    stats: ServerStats,
    stop: watch::Sender<bool>,
    unix_slots: Arc<Semaphore>,
    tcp_slots: Arc<Semaphore>,
}

impl Server {
    /// A server without exports and listeners.
    pub fn new(env: Env, config: ServerConfig) -> Server {
        let slots = config.max_connections.min(Semaphore::MAX_PERMITS);
        let shared = Shared {
            env,
            config,
            registry: Registry::default(),
            stats: ServerStats::default(),
            stop: watch::Sender::new(false),
            unix_slots: Arc::new(Semaphore::new(slots)),
            tcp_slots: Arc::new(Semaphore::new(slots)),
        };
        Server { shared: Arc::new(shared), listeners: Arc::default() }
    }

    /// Serves an export from now on.
    ///
    /// # Errors
    /// [`ServerError::Export`] when the name is taken, or name or volume do not fit the protocol.
    pub fn add_export(&self, export: Export) -> Result<(), ServerError> {
        self.shared.registry.add(export)
    }

    /// Ends an export: requests in flight finish, its connections are closed, and the volume is
    /// flushed and returned.
    ///
    /// # Errors
    /// [`ServerError::NoExport`], or [`ServerError::Flush`].
    pub async fn remove_export(&self, name: &str) -> Result<VolumeRef, ServerError> {
        let removed = self.shared.registry.remove(name);
        let served = removed.ok_or_else(|| ServerError::NoExport(name.to_owned()))?;
        served.unused().await;
        flush(&served).await?;
        Ok(served.volume().clone())
    }

    /// The names of all exports.
    pub fn exports(&self) -> Vec<String> {
        self.shared.registry.all().iter().map(|served| served.name().to_owned()).collect()
    }

    /// The counters.
    pub fn stats(&self) -> &ServerStats {
        &self.shared.stats
    }

    /// Accepts connections on a Unix socket.
    ///
    /// # Errors
    /// [`ServerError::Socket`].
    pub fn listen_unix(
        &self,
        path: &Path,
        options: UnixSocketOptions,
        tls: Option<TlsConfig>,
    ) -> Result<(), ServerError> {
        let listener = named::bind(&self.shared.env, path, options)?;
        self.start(listener, &self.shared.unix_slots, tls);
        Ok(())
    }

    /// Accepts connections on a TCP address, and returns the address, with the chosen port if `address` has
    /// port 0. Without `tls` nothing is encrypted.
    ///
    /// # Errors
    /// [`ServerError::Tcp`].
    pub async fn listen_tcp(
        &self,
        address: SocketAddr,
        tls: Option<TlsConfig>,
    ) -> Result<SocketAddr, ServerError> {
        let fail = |source| ServerError::Tcp { address, source };
        let listener = TcpListener::bind(address).await.map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        self.start(listener, &self.shared.tcp_slots, tls);
        Ok(address)
    }

    /// Starts to accept connections, each of which takes one of `slots`.
    fn start<L: Listener>(&self, listener: L, slots: &Arc<Semaphore>, tls: Option<TlsConfig>) {
        let (shared, slots) = (self.shared.clone(), slots.clone());
        let accepting = async move {
            let stop = shared.stop.subscribe();
            let admit = |stream| admit(&shared, &slots, stream, &tls);
            thalweg_net::accept(&shared.env, listener, stop, admit).await;
        };
        self.listeners.lock().push(self.shared.env.spawn(accepting));
    }

    /// Stops accepting, lets requests in flight finish within the grace, closes all connections,
    /// removes the Unix sockets and flushes every volume.
    ///
    /// # Errors
    /// The first [`ServerError::Flush`]; all volumes are flushed nevertheless.
    pub async fn shutdown(&self) -> Result<(), ServerError> {
        self.shared.stop.send_replace(true);
        let listeners = std::mem::take(&mut *self.listeners.lock());
        for listener in listeners {
            listener.await;
        }
        let mut result = Ok(());
        for served in self.shared.registry.all() {
            result = result.and(flush(&served).await);
        }
        result
    }
}

async fn flush(served: &Served) -> Result<(), ServerError> {
    if served.volume().is_read_only() {
        return Ok(());
    }
    let name = served.name().to_owned();
    served.volume().flush().await.map_err(|source| ServerError::Flush { name, source })
}

/// Starts a connection's task if there is a slot for it.
fn admit<S: Stream>(
    shared: &Arc<Shared>,
    slots: &Arc<Semaphore>,
    stream: S,
    tls: &Option<TlsConfig>,
) -> Option<Task<()>> {
    let Ok(slot) = slots.clone().try_acquire_owned() else {
        shared.stats.connections_refused.add(1);
        let refused = shared.stats.connections_refused.get();
        if refused.is_power_of_two() {
            let max = shared.config.max_connections;
            tracing::warn!(max, refused, "a connection was refused: the server has its maximum");
        }
        return None;
    };
    shared.stats.connections.add(1);
    let (env, shared, tls) = (shared.env.clone(), shared.clone(), tls.clone());
    Some(env.spawn(async move {
        let _slot = slot;
        let _open = OpenConnection::count(&shared.stats);
        converse(&shared, stream, tls).await;
    }))
}

/// Counts an open connection as long as it lives, also when its task is aborted.
struct OpenConnection<'a>(&'a ServerStats);

impl<'a> OpenConnection<'a> {
    fn count(stats: &'a ServerStats) -> Self {
        stats.connections_open.add(1);
        OpenConnection(stats)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.connections_open.sub(1);
    }
}

/// A connection from greeting to end.
async fn converse<S>(shared: &Shared, stream: S, tls: Option<TlsConfig>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut stop = shared.stop.subscribe();
    let handshake =
        shared.env.timeout(shared.config.handshake_timeout, negotiate(shared, stream, tls));
    let negotiated = tokio::select! {
        biased;
        () = signalled(&mut stop) => return,
        negotiated = handshake => negotiated,
    };
    match negotiated {
        Some(Ok(Negotiated::Plain(stream, agreement))) => transmit(shared, stream, agreement).await,
        Some(Ok(Negotiated::Tls(stream, agreement))) => transmit(shared, stream, agreement).await,
        Some(Ok(Negotiated::Ended)) => {}
        Some(Err(error)) => {
            shared.stats.handshakes_failed.add(1);
            tracing::debug!(%error, "handshake failed");
        }
        None => {
            shared.stats.handshakes_failed.add(1);
            tracing::debug!("handshake took too long");
        }
    }
}

/// A stream that is ready for transmission.
enum Negotiated<S> {
    Plain(S, Agreement),
    Tls(Box<TlsStream<S>>, Agreement),
    Ended,
}

async fn negotiate<S>(
    shared: &Shared,
    mut stream: S,
    tls: Option<TlsConfig>,
) -> Result<Negotiated<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let security = match &tls {
        None => Security::Plain,
        Some(tls) if tls.is_required() => Security::TlsRequired,
        Some(_) => Security::TlsOffered,
    };
    let registry = &shared.registry;
    let flags = greet(&mut stream).await?;
    match (Negotiation::new(&mut stream, registry, security, flags).run().await?, tls) {
        (Outcome::Serve(agreement), _) => Ok(Negotiated::Plain(stream, agreement)),
        (Outcome::StartTls, Some(tls)) => {
            let mut stream = Box::new(tls.acceptor().accept(stream).await?);
            let negotiation = Negotiation::new(&mut stream, registry, Security::Tls, flags);
            match negotiation.run().await? {
                Outcome::Serve(agreement) => Ok(Negotiated::Tls(stream, agreement)),
                _ => {
                    close(shared, &mut stream).await;
                    Ok(Negotiated::Ended)
                }
            }
        }
        _ => {
            close(shared, &mut stream).await;
            Ok(Negotiated::Ended)
        }
    }
}

/// The transmission phase. When the server or the export goes away, it ends within the grace.
async fn transmit<S>(shared: &Shared, mut stream: S, agreement: Agreement)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let export_stop = agreement.served.stop();
    if *export_stop.borrow() {
        return;
    }
    let ServerConfig { max_requests, max_bytes, max_server_bytes, shutdown_grace, .. } =
        shared.config;
    let backpressure = Backpressure {
        requests: max_requests.max(1),
        bytes: max_bytes,
        server_bytes: max_server_bytes,
    };
    let (env, stats) = (shared.env.clone(), &shared.stats);
    let connection = Connection::new(&mut stream, env, agreement, stats, backpressure);
    let deadline = async {
        stopped(shared.stop.subscribe(), export_stop.clone()).await;
        shared.env.sleep(shutdown_grace).await;
    };
    let stop = stopped(shared.stop.subscribe(), export_stop.clone());
    tokio::select! {
        biased;
        result = connection.run(stop) => {
            if let Err(error) = result {
                stats.protocol_errors.add(u64::from(error.is_clients_fault()));
                tracing::debug!(%error, "connection failed");
            }
        }
        () = deadline => tracing::warn!("a connection did not end within the grace and is closed"),
    }
    close(shared, &mut stream).await;
}

/// Closes the stream in order, if the client takes part.
async fn close<S: AsyncWrite + Unpin>(shared: &Shared, stream: &mut S) {
    let patience = shared.config.handshake_timeout;
    if let Some(Err(error)) = shared.env.timeout(patience, stream.shutdown()).await {
        tracing::trace!(%error, "the client was gone before the connection was closed");
    }
}

async fn stopped(mut server: watch::Receiver<bool>, mut export: watch::Receiver<bool>) {
    tokio::select! {
        biased;
        () = signalled(&mut server) => {}
        () = signalled(&mut export) => {}
    }
}
