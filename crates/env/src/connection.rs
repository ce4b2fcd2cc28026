//! Byte streams between processes. Code that talks to a peer takes a [`Connector`] or a [`Listener`] and
//! does not know what is below: a Unix socket, TCP, or a simulated network.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::process::ClosedInChildren;

/// A byte stream in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// A stream of any kind.
pub type BoxStream = Box<dyn Stream>;

/// A connection that is being made.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<BoxStream>> + Send + 'a>>;

/// Makes connections to one peer.
pub trait Connector: fmt::Debug + Send + Sync {
    /// Makes a connection.
    ///
    /// # Errors
    /// Errors of the system or of the network: the peer cannot be reached.
    fn connect(&self) -> Connecting<'_>;
}

/// Accepts connections of peers.
pub trait Listener: Send + Sync + 'static {
    /// A connection.
    type Stream: Stream;

    /// Waits for the next connection. Dropping the future loses none.
    ///
    /// # Errors
    /// Errors of the system. Most concern one connection or pass with time, so a caller goes on.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// A socket, or a half of one, that children of this process do not share: each closes it. See [`ClosedInChildren`].
#[derive(Debug)]
pub struct Unshared<S> {
    /// Dropped before the socket is closed.
    closed: Arc<ClosedInChildren>,
    socket: S,
}

impl<S: AsFd> Unshared<S> {
    /// A socket that children close.
    pub fn new(socket: S) -> Unshared<S> {
        Unshared { closed: Arc::new(ClosedInChildren::new(&socket)), socket }
    }
}

impl Unshared<UnixStream> {
    /// The two halves.
    pub fn into_split(self) -> (Unshared<OwnedReadHalf>, Unshared<OwnedWriteHalf>) {
        let (reader, writer) = self.socket.into_split();
        let closed = self.closed;
        (Unshared { closed: closed.clone(), socket: reader }, Unshared { closed, socket: writer })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unshared<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unshared<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// The listener of a Unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnixConnector(pub PathBuf);

impl Connector for UnixConnector {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            Ok(Box::new(Unshared::new(UnixStream::connect(&self.0).await?)) as BoxStream)
        })
    }
}

/// The listener of a TCP port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpConnector(pub SocketAddr);

impl Connector for TcpConnector {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            let stream = TcpStream::connect(self.0).await?;
            prepare(&stream)?;
            Ok(Box::new(Unshared::new(stream)) as BoxStream)
        })
    }
}

/// A TCP port of a host, which the system's resolver finds. All of its addresses are tried, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConnector {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Connector for HostConnector {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            for address in tokio::net::lookup_host((&*self.host, self.port)).await? {
                match TcpConnector(address).connect().await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => failed = error,
                }
            }
            Err(failed)
        })
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixListener::accept(self).await?.0)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        prepare(&stream)?;
        Ok(stream)
    }
}

/// Small messages must not wait for acknowledgements of earlier ones, and a peer that lost power must not
/// hold a connection for ever.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_keepalive(true)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn echo(listener: impl Listener, connector: impl Connector) {
        let peer = async {
            let mut stream = listener.accept().await.unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            stream.write_all(&byte).await.unwrap();
        };
        let own = async {
            let mut stream = connector.connect().await.unwrap();
            stream.write_all(b"x").await.unwrap();
            let mut found = Vec::new();
            stream.read_to_end(&mut found).await.unwrap();
            assert_eq!(found, b"x");
        };
        tokio::join!(peer, own);
    }

    #[tokio::test]
    async fn peers_meet_over_tcp_and_over_a_unix_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        echo(listener, TcpConnector(address)).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        echo(UnixListener::bind(&path).unwrap(), UnixConnector(path)).await;
    }
}
