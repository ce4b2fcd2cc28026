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
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use thalweg_env::{Env, HashMap, Task};
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
/// Time within which a server must send its hello.
const PATIENCE: Duration = Duration::from_secs(10);
/// Queued bytes above which unanswered requests leave by themselves.
const CORK: usize = 64 << 10;
/// Maximum number of queued bytes while the server does not read.
const MAX_QUEUED: usize = 256 << 20;

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
            Some(stream) => Connection::over(env, stream).await.map(Some),
            None => Ok(None),
        }
    }

    /// The volume at the other end of a socket.
    ///
    /// # Errors
    /// [`TxnError::Disconnected`]: the peer is not a server, speaks another version, or has too many
    /// connections.
    pub async fn over(env: &Env, mut stream: UnixStream) -> Result<Connection, TxnError> {
        let greeted = env.timeout(PATIENCE, greet(&mut stream)).await;
        let (ready, input) =
            greeted.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())).map_err(lost)?;
        let Welcome::Ready { blocks, max_writes } = ready else {
            return Err(TxnError::Disconnected(
                "it has its maximum of connections; try again later".to_owned(),
            ));
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
        // Dropped without an answer, it aborts the transaction at the server.
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
    TxnError::Disconnected("it sent an answer without a request".to_owned())
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

/// Callers that wait for an answer.
#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    callers: HashMap<u64, oneshot::Sender<Answered>>,
    /// Why no more answers come.
    lost: Option<String>,
}

/// The state that the transactions of a connection share.
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
            // Under the lock, so that requests leave in the order of their numbers.
            self.output.push(id, request, &[]);
            waiting.callers.len() == 1
        };
        match is_alone {
            true => self.output.flush(),
            // Other callers are about to wait, too: one write carries all requests.
            false => self.output.flush_soon(),
        }
        match answer.await.unwrap_or_else(|_| Err(unexpected()))? {
            (Answer::Failed(error), _) => Err(error.into()),
            answered => Ok(answered),
        }
    }

    /// Queues an unanswered request.
    fn tell(&self, request: &Request, payload: &[Bytes]) -> Result<(), TxnError> {
        if let Some(why) = &self.waiting.lock().lost {
            return Err(TxnError::Disconnected(why.clone()));
        }
        let queued = self.output.pending();
        if queued > MAX_QUEUED {
            return Err(TxnError::Disconnected("it does not read its requests".to_owned()));
        }
        self.output.push(UNANSWERED, request, payload);
        if queued > CORK {
            self.output.flush_soon();
        }
        Ok(())
    }
}

/// Passes answers to their callers until the server closes the connection.
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
            Ok(0) => break "it closed the connection".to_owned(),
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
        // A caller that was dropped needs no answer.
        let _ = caller.send(Err(TxnError::Disconnected(why.clone())));
    }
}

fn take_all(input: &mut BytesMut, waiting: &Mutex<Waiting>) -> io::Result<()> {
    while let Some(frame) =
        protocol::decode::<Answer>(input, MAX_ANSWER_PAYLOAD).map_err(io::Error::other)?
    {
        let Frame { id, message, payload } = frame;
        let caller = waiting.lock().callers.remove(&id);
        let caller =
            caller.ok_or_else(|| io::Error::other("it sent an answer without a request"))?;
        let _ = caller.send(Ok((message, payload)));
    }
    Ok(())
}
