//! A volume behind a socket.
//!
//! Writes, marks and hints are queued, and leave with the next request that has an answer: a read, a commit.
//! The client itself refuses invalid requests: a block outside of the volume, a write beyond the limit, a
//! mark of a block that was not accessed. A read waits for the server, except for a block that an untracked
//! transaction has read before: its snapshot does not change.
//!
//! All threads of a process share one connection. The server takes it for the process: when it ends, the
//! transactions that were not released are aborted.

mod transaction;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::connection::{Stream, Unshared};
use thalweg_env::{Env, Task};
use thalweg_net::channel::{CallError, Channel, Limits, NoCalls, Side};
use thalweg_net::frame;
use thalweg_store::block::{BlockVersion, Epoch, EpochVersion, Lba, Position, Version};
use thalweg_store::stale::{Cost, Needs, Standing, VersionRange};
use thalweg_store::txn::{Begin, Contention, Handle, Transact, Transaction, TxnError};
use tokio::io::{AsyncRead, AsyncWrite};

use self::transaction::RemoteTransaction;
use crate::protocol::{self, Answer, HELLO, MAX_ANSWER_PAYLOAD, Request, Welcome};
use crate::{SOCKET, socket};

/// Time within which a server must send its hello.
const PATIENCE: Duration = Duration::from_secs(10);
/// The client's side of a connection.
fn limits() -> Limits {
    Limits { read: 256 << 10, payload: MAX_ANSWER_PAYLOAD, ..Limits::default() }
}

/// A volume behind a socket. Clones share the connection; it ends with the last clone and the last of its
/// transactions.
#[derive(Clone)]
pub struct Connection {
    link: Arc<Link>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("blocks", &self.link.blocks).finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to the server of the volume in `folder`; `None` when no process serves it.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`] with the reason.
    pub async fn open(env: &Env, folder: &Path) -> Result<Option<Connection>, TxnError> {
        match socket::connect(folder, SOCKET).await.map_err(lost)? {
            Some(stream) => Connection::between(env, Unshared::new(stream), Unshared::into_split)
                .await
                .map(Some),
            None => Ok(None),
        }
    }

    /// The volume at the other end of a stream.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`]: the peer is not a server, speaks another version, or has too many
    /// connections.
    pub async fn over<S: Stream>(env: &Env, stream: S) -> Result<Connection, TxnError> {
        Connection::between(env, stream, tokio::io::split).await
    }

    async fn between<S: Stream, R, W>(
        env: &Env,
        mut stream: S,
        split: impl FnOnce(S) -> (R, W),
    ) -> Result<Connection, TxnError>
    where
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let greeted = env.timeout(PATIENCE, greet(&mut stream)).await;
        let welcome =
            greeted.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())).map_err(lost)?;
        let Welcome::Ready { blocks, max_writes } = welcome else {
            return Err(TxnError::Disconnected(
                "it has its maximum of connections; try again later".to_owned(),
            ));
        };
        let (reader, writer) = split(stream);
        let channel = Channel::new(env, Side::Connecting, limits(), writer);
        let receiving = channel.clone();
        let receiver = env.spawn(async move {
            if let Err(error) = receiving.run(reader, &NoCalls).await {
                tracing::debug!(%error, "the connection to a volume's server failed");
            }
        });
        Ok(Connection {
            link: Arc::new(Link {
                channel,
                blocks: blocks.into(),
                max_writes: usize::try_from(max_writes).unwrap_or(usize::MAX),
                transactions: 0.into(),
                contention: Contention::new(env),
                _receiver: receiver,
            }),
        })
    }

    async fn start(
        &self,
        begin: Option<Begin>,
        request: impl FnOnce(u64) -> Request,
    ) -> Result<Arc<dyn Transaction>, TxnError> {
        let txn = self.link.transactions.fetch_add(1, Ordering::Relaxed);
        // Dropped without an answer, it aborts the transaction at the server.
        let transaction = RemoteTransaction::new(self.link.clone(), txn, begin);
        match self.link.ask(&request(txn)).await {
            Ok((Answer::Begun { blocks, version }, _)) => {
                transaction.set_version(version);
                self.link.blocks.store(blocks, Ordering::Relaxed);
                Ok(Arc::new(transaction))
            }
            Ok(_) => Err(unexpected()),
            Err(error) => {
                transaction.forget();
                Err(error)
            }
        }
    }
}

#[async_trait]
impl Transact for Connection {
    fn blocks(&self) -> u64 {
        self.link.blocks.load(Ordering::Relaxed)
    }

    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        self.start(Some(begin), |txn| Request::Begin { txn, begin }).await
    }

    async fn view(&self, needs: &Needs, first: Version) -> Result<Arc<dyn Transaction>, TxnError> {
        let needs = *needs;
        self.start(Some(Begin::READ_ONLY), |txn| Request::View { txn, needs, first }).await
    }

    async fn contents(
        &self,
        lba: Lba,
        range: VersionRange,
    ) -> Result<Vec<(VersionRange, Cost)>, TxnError> {
        match self.link.ask(&Request::Contents { lba: lba.0, range }).await? {
            (Answer::Contents, payload) => {
                protocol::decode_contents(&payload).ok_or_else(unexpected)
            }
            _ => Err(unexpected()),
        }
    }

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        self.start(None, |txn| Request::Takeover { txn, handle }).await
    }

    async fn sync(&self) -> Result<EpochVersion, TxnError> {
        match self.link.ask(&Request::Sync).await? {
            (Answer::At(version), _) => Ok(version),
            _ => Err(unexpected()),
        }
    }

    async fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError> {
        match self.link.ask(&Request::Versions { lba: lba.0 }).await? {
            (Answer::Versions { epoch }, payload) => {
                let versions = protocol::decode_versions(&payload).ok_or_else(unexpected)?;
                Ok((epoch, versions))
            }
            _ => Err(unexpected()),
        }
    }

    async fn position(&self) -> Result<Option<Position>, TxnError> {
        Ok(self.standing().await?.position)
    }

    async fn standing(&self) -> Result<Standing, TxnError> {
        match self.link.ask(&Request::Standing).await? {
            (Answer::Standing(standing), _) => Ok(standing),
            _ => Err(unexpected()),
        }
    }

    async fn reached(
        &self,
        position: Position,
        within: Option<Duration>,
    ) -> Result<bool, TxnError> {
        let millis = |within: Duration| u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let within = within.map(millis);
        match self.link.ask(&Request::Reach { position, within }).await? {
            (Answer::Reached(reached), _) => Ok(reached),
            _ => Err(unexpected()),
        }
    }

    fn contention(&self) -> &Contention {
        &self.link.contention
    }
}

fn lost(error: io::Error) -> TxnError {
    TxnError::Disconnected(error.to_string())
}

fn unexpected() -> TxnError {
    TxnError::Disconnected("it sent an answer without a request".to_owned())
}

fn disconnected(error: CallError) -> TxnError {
    TxnError::Disconnected(error.to_string())
}

async fn greet(stream: &mut impl Stream) -> io::Result<Welcome> {
    HELLO.exchange(stream).await?;
    match frame::read(stream, 0).await? {
        Some(frame) => Ok(frame.message),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The state that the transactions of a connection share.
#[derive(Debug)]
struct Link {
    channel: Channel,
    blocks: AtomicU64,
    max_writes: usize,
    transactions: AtomicU64,
    contention: Contention,
    _receiver: Task<()>,
}

impl Link {
    /// Sends a request, and waits for the answer.
    async fn ask(&self, request: &Request) -> Result<(Answer, Bytes), TxnError> {
        match self.channel.call(request, &[]).await.map_err(disconnected)? {
            (Answer::Failed(error), _) => Err(error.into()),
            answered => Ok(answered),
        }
    }

    /// Queues an unanswered request.
    fn tell(&self, request: &Request, payload: &[Bytes]) -> Result<(), TxnError> {
        self.channel.tell(request, payload).map_err(disconnected)
    }
}
