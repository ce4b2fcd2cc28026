//! A volume behind a socket.
//!
//! Writes, marks and hints are queued, and leave with the next request that waits: a read, a commit.
//! What the client knows itself it says at once, without asking: a block outside of the volume, one
//! write too many, a mark of a block that was not accessed. Reads wait, but for those of a transaction
//! whose reads nobody tracks: its snapshot does not change, and a block is read once.
//!
//! All threads of a process share one connection. To the server it is the process: when it ends, the
//! transactions that were not released are aborted.

mod transaction;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use thalweg_store::env::{Env, HashMap, Task};
use thalweg_store::txn::{Begin, Contention, Handle, Transact, Transaction, TxnError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use self::transaction::RemoteTransaction;
use crate::output::Output;
use crate::protocol::{
    self, Answer, Frame, HELLO, MAX_ANSWER_PAYLOAD, Request, UNANSWERED, Welcome,
};
use crate::socket::{self, SOCKET};

/// Bytes that are read from the socket at once.
const READ: usize = 256 << 10;
/// A server that listens says hello within this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Queued bytes that leave without waiting for a request that waits.
const CORK: usize = 64 << 10;
/// Queued bytes that a server which does not read may leave here.
const MAX_QUEUED: usize = 256 << 20;

/// A volume behind a socket. Clones are the same connection; it ends with the last of them and the last
/// of its transactions.
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
    /// Connects to whoever serves the volume in `folder`; `None` when nobody does.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`] says why not.
    pub async fn open(env: &Env, folder: &Path) -> Result<Option<Connection>, TxnError> {
        match socket::connect(folder, SOCKET).await.map_err(lost)? {
            Some(stream) => Connection::over(env, stream).await.map(Some),
            None => Ok(None),
        }
    }

    /// The volume at the other end of a socket.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`]: the other side is no server, or speaks another version, or has too
    /// many connections.
    pub async fn over(env: &Env, mut stream: UnixStream) -> Result<Connection, TxnError> {
        let greeted = env.timeout(PATIENCE, greet(&mut stream)).await;
        let (ready, input) =
            greeted.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())).map_err(lost)?;
        let Welcome::Ready { blocks, max_writes } = ready else {
            return Err(TxnError::Disconnected("it has too many connections".to_owned()));
        };
        let stream = Arc::new(stream);
        let output = Arc::new(Output::new(stream.clone()));
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let writing = output.clone();
        let reading = (output.clone(), waiting.clone());
        let tasks = [
            env.spawn(async move { writing.run().await }),
            env.spawn(async move { receive(&stream, input, &reading.0, &reading.1).await }),
        ];
        Ok(Connection {
            link: Arc::new(Link {
                output,
                waiting,
                blocks: blocks.into(),
                max_writes: usize::try_from(max_writes).unwrap_or(usize::MAX),
                transactions: 0.into(),
                contention: Contention::new(env),
                _tasks: tasks,
            }),
        })
    }

    async fn start(
        &self,
        begin: Option<Begin>,
        request: impl FnOnce(u64) -> Request,
    ) -> Result<Arc<dyn Transaction>, TxnError> {
        let txn = self.link.transactions.fetch_add(1, Ordering::Relaxed);
        // Aborts it at the server should the caller not wait for the answer.
        let transaction = RemoteTransaction::new(self.link.clone(), txn, begin);
        match self.link.ask(&request(txn)).await {
            Ok((Answer::Begun { blocks }, _)) => {
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

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        self.start(None, |txn| Request::Takeover { txn, handle }).await
    }

    fn contention(&self) -> &Contention {
        &self.link.contention
    }
}

fn lost(error: io::Error) -> TxnError {
    TxnError::Disconnected(error.to_string())
}

fn unexpected() -> TxnError {
    TxnError::Disconnected("it answered what was not asked".to_owned())
}

async fn greet(stream: &mut UnixStream) -> io::Result<(Welcome, BytesMut)> {
    stream.write_all(&protocol::hello()).await?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).await?;
    protocol::check_hello(&hello).map_err(io::Error::other)?;
    let mut input = BytesMut::new();
    loop {
        if let Some(frame) = protocol::decode(&mut input, 0).map_err(io::Error::other)? {
            return Ok((frame.message, input));
        }
        if stream.read_buf(&mut input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

type Answered = Result<(Answer, Bytes), TxnError>;

/// Those who wait for an answer.
#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    callers: HashMap<u64, oneshot::Sender<Answered>>,
    /// Why no more answers come.
    lost: Option<String>,
}

/// What the transactions of a connection share.
#[derive(Debug)]
struct Link {
    output: Arc<Output>,
    waiting: Arc<Mutex<Waiting>>,
    blocks: AtomicU64,
    max_writes: usize,
    transactions: AtomicU64,
    contention: Contention,
    _tasks: [Task<()>; 2],
}

impl Link {
    /// Sends a request, and waits for the answer.
    async fn ask(&self, request: &Request) -> Result<(Answer, Bytes), TxnError> {
        let (sender, answer) = oneshot::channel();
        let is_alone = {
            let mut waiting = self.waiting.lock();
            if let Some(why) = &waiting.lost {
                return Err(TxnError::Disconnected(why.clone()));
            }
            waiting.last += 1;
            let id = waiting.last;
            waiting.callers.insert(id, sender);
            // With the lock, so that requests leave in the order of their numbers.
            self.output.push(id, request, &[]);
            waiting.callers.len() == 1
        };
        match is_alone {
            true => self.output.flush(),
            // Others are about to wait, too: one write for all of them.
            false => self.output.flush_soon(),
        }
        match answer.await.unwrap_or_else(|_| Err(unexpected()))? {
            (Answer::Failed(error), _) => Err(error.into()),
            answered => Ok(answered),
        }
    }

    /// Queues a request that nobody waits for.
    fn tell(&self, request: &Request, payload: &[Bytes]) -> Result<(), TxnError> {
        if let Some(why) = &self.waiting.lock().lost {
            return Err(TxnError::Disconnected(why.clone()));
        }
        let queued = self.output.pending();
        if queued > MAX_QUEUED {
            return Err(TxnError::Disconnected("it does not read what is sent to it".to_owned()));
        }
        self.output.push(UNANSWERED, request, payload);
        if queued > CORK {
            self.output.flush_soon();
        }
        Ok(())
    }
}

/// Hands answers to those who wait for them, until the server hangs up.
async fn receive(
    stream: &UnixStream,
    mut input: BytesMut,
    output: &Output,
    waiting: &Mutex<Waiting>,
) {
    let why = loop {
        match take_all(&mut input, waiting) {
            Err(error) => break error.to_string(),
            Ok(()) => input.reserve(READ),
        }
        if let Err(error) = stream.readable().await {
            break error.to_string();
        }
        match stream.try_read_buf(&mut input) {
            Ok(0) => break "it hung up".to_owned(),
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => break error.to_string(),
        }
    };
    output.close();
    let callers = {
        let mut waiting = waiting.lock();
        waiting.lost = Some(why.clone());
        std::mem::take(&mut waiting.callers)
    };
    for (_, caller) in callers {
        // Whoever does not wait any more need not know.
        let _ = caller.send(Err(TxnError::Disconnected(why.clone())));
    }
}

fn take_all(input: &mut BytesMut, waiting: &Mutex<Waiting>) -> io::Result<()> {
    while let Some(frame) =
        protocol::decode::<Answer>(input, MAX_ANSWER_PAYLOAD).map_err(io::Error::other)?
    {
        let Frame { id, message, payload } = frame;
        let caller = waiting.lock().callers.remove(&id);
        let caller = caller.ok_or_else(|| io::Error::other("it answered what was not asked"))?;
        let _ = caller.send(Ok((message, payload)));
    }
    Ok(())
}
