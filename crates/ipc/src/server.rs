//! Answers requests through a transaction manager.
//!
//! To the manager a connection is a process: when it ends, the transactions that it did not release are
//! aborted. A commit that has begun by then runs to its end, with either outcome.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use thalweg_env::{Env, HashMap, Task};
use thalweg_store::block::Lba;
use thalweg_store::device::FrameBuf;
use thalweg_store::txn::{Client, Transact, Transaction, TransactionManager, TxnError};
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::output::Output;
use crate::protocol::{
    self, Answer, Frame, HELLO, MAX_REQUEST_PAYLOAD, MAX_RUN, Request, UNANSWERED, Welcome,
};
use crate::socket::{self, SOCKET};

/// Bytes that are read from a socket at once.
const READ: usize = 128 << 10;
/// The part of a connection's budget that a request takes, beside the blocks that it reads.
const REQUEST_COST: u64 = 1;

/// Limits of clients. The number of transactions of a connection and the time that a released one waits for a
/// takeover are the manager's [`thalweg_store::txn::Options`]: `max_running` and `idle`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Maximum number of connections; further ones are refused.
    pub max_connections: usize,
    /// Budget of the running requests of one connection: 1 for each request and 1 for each block that it
    /// reads. The server stops reading from a connection that has used it up.
    pub budget: u32,
    /// Unread bytes of answers above which the server stops reading from a connection.
    pub unread: usize,
    /// Time within which a new client must send its hello.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_connections: 1024,
            budget: 4096,
            unread: 16 << 20,
            patience: Duration::from_secs(10),
        }
    }
}

const BACKLOG: u32 = 128;

/// Serves transactions on the socket in a volume's folder. Dropping it ends its connections and removes the
/// socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    _accept: Task<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "cannot remove the socket");
        }
    }
}

impl Server {
    /// Serves the transactions of `manager` on the socket in `folder`. This process holds the lock on the
    /// volume there.
    ///
    /// # Errors
    /// Errors of the system: the socket cannot be made.
    pub fn start(
        env: &Env,
        manager: &TransactionManager,
        folder: &Path,
        config: Config,
    ) -> io::Result<Server> {
        let listener = socket::listen(folder, SOCKET, BACKLOG)?;
        let host =
            Arc::new(Host { env: env.clone(), manager: manager.clone(), config, open: 0.into() });
        Ok(Server { path: folder.join(SOCKET), _accept: env.spawn(accept(host, listener)) })
    }
}

/// What the connections of a server share.
struct Host {
    env: Env,
    manager: TransactionManager,
    config: Config,
    open: AtomicUsize,
}

async fn accept(host: Arc<Host>, listener: UnixListener) {
    let mut conversations: Vec<Task<()>> = Vec::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                conversations.retain(|task| !task.is_finished());
                let host2 = host.clone();
                conversations.push(host.env.spawn(async move {
                    if let Err(error) = converse(&host2, stream).await {
                        tracing::debug!(%error, "a connection for transactions failed");
                    }
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for transactions");
                host.env.sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A seat among the connections.
struct Seat<'a>(&'a AtomicUsize);

impl<'a> Seat<'a> {
    fn take(open: &'a AtomicUsize, most: usize) -> Option<Seat<'a>> {
        let seat = Seat(open);
        (open.fetch_add(1, Ordering::Relaxed) < most).then_some(seat)
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn converse(host: &Arc<Host>, mut stream: UnixStream) -> io::Result<()> {
    let seat = Seat::take(&host.open, host.config.max_connections);
    let greeted = host.env.timeout(host.config.patience, greet(&mut stream)).await;
    greeted.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))?;
    let stream = Arc::new(stream);
    let output = Arc::new(Output::new(stream.clone()));
    let writing = output.clone();
    let _writer = host.env.spawn(async move { writing.run().await });
    if seat.is_none() {
        output.push(UNANSWERED, &Welcome::Busy, &[]);
        output.flush_soon();
        output.wait_below(0).await;
        return Ok(());
    }
    let ready = Welcome::Ready {
        blocks: host.manager.client().blocks(),
        max_writes: host.manager.options().max_writes as u64,
    };
    output.push(UNANSWERED, &ready, &[]);
    output.flush_soon();
    let connection = Connection {
        env: host.env.clone(),
        client: host.manager.client(),
        output: output.clone(),
        budget: Arc::new(Semaphore::new(host.config.budget as usize)),
        config: &host.config,
        transactions: Arc::default(),
    };
    let result = connection.run(&stream).await;
    output.close();
    result
}

async fn greet(stream: &mut UnixStream) -> io::Result<()> {
    use tokio::io::AsyncWriteExt;
    stream.write_all(&protocol::hello()).await?;
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).await?;
    protocol::check_hello(&hello).map_err(io::Error::other)
}

/// A transaction of a connection.
#[derive(Default)]
struct Entry {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    transaction: Option<Arc<dyn Transaction>>,
    /// The error of an unanswered request: the answer to all requests that follow.
    failed: Option<TxnError>,
}

impl Entry {
    /// The transaction, if none of its requests has failed so far.
    fn usable(&self) -> Result<Arc<dyn Transaction>, TxnError> {
        let state = self.state.lock();
        match &state.failed {
            Some(error) => Err(error.clone()),
            None => state.transaction.clone().ok_or(TxnError::Ended),
        }
    }

    fn note(&self, result: Result<(), TxnError>) {
        if let Err(error) = result {
            self.state.lock().failed.get_or_insert(error);
        }
    }
}

type Entries = Arc<Mutex<HashMap<u64, Arc<Entry>>>>;

/// An answer and its payload.
type Answered = Result<(Answer, Vec<Bytes>), TxnError>;

fn done(answer: Answer) -> Answered {
    Ok((answer, Vec::new()))
}

/// A connection.
struct Connection<'a> {
    env: Env,
    client: Client,
    output: Arc<Output>,
    budget: Arc<Semaphore>,
    config: &'a Config,
    transactions: Entries,
}

impl fmt::Debug for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        // A running request keeps its transaction until the request is done; no new request begins.
        self.transactions.lock().clear();
    }
}

impl Connection<'_> {
    /// Answers requests until the client hangs up.
    async fn run(&self, stream: &UnixStream) -> io::Result<()> {
        let mut input = BytesMut::new();
        loop {
            input.reserve(READ);
            stream.readable().await?;
            match stream.try_read_buf(&mut input) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            }
            while let Some(frame) =
                protocol::decode(&mut input, MAX_REQUEST_PAYLOAD).map_err(io::Error::other)?
            {
                self.take(frame).await?;
            }
            self.output.flush();
            self.output.wait_below(self.config.unread).await;
        }
    }

    /// Carries out a request, or starts it.
    async fn take(&self, frame: Frame<Request>) -> io::Result<()> {
        let Frame { id, message, payload } = frame;
        let refused = || io::Error::other("invalid request: its kind does not allow its number");
        match message {
            Request::Write { .. }
            | Request::Discard { .. }
            | Request::Mark { .. }
            | Request::Depend { .. }
                if id != UNANSWERED =>
            {
                Err(refused())
            }
            Request::Write { txn, lba, class } => {
                // Copied: the block must not keep the whole receive buffer in memory.
                let content = FrameBuf::copy_block(&payload);
                self.at_once(txn, |it| it.write_as(Lba(lba), content, class));
                Ok(())
            }
            Request::Discard { txn, lba } => {
                self.at_once(txn, |it| it.discard(Lba(lba)));
                Ok(())
            }
            Request::Mark { txn, lba, start, end } => {
                let range = usize::from(start)..usize::from(end);
                self.at_once(txn, |it| it.mark_accessed(Lba(lba), range));
                Ok(())
            }
            Request::Depend { txn, lba, start, end } => {
                let range = usize::from(start)..usize::from(end);
                self.at_once(txn, |it| it.depend(Lba(lba), range));
                Ok(())
            }
            Request::PleaseCache { txn, lba } => {
                self.at_once(txn, |it| {
                    it.please_cache(Lba(lba));
                    Ok(())
                });
                Ok(())
            }
            Request::Abort { txn } => {
                let entry = self.transactions.lock().remove(&txn);
                let ending = async move {
                    let transaction = entry.and_then(|entry| entry.state.lock().transaction.take());
                    if let Some(transaction) = transaction {
                        transaction.abort().await;
                    }
                    done(Answer::Done)
                };
                self.answer(id, REQUEST_COST, Box::pin(ending)).await;
                Ok(())
            }
            _ if id == UNANSWERED => Err(refused()),
            Request::Begin { txn, begin } => {
                let (entry, client) = (self.enter(txn)?, self.client.clone());
                let beginning = async move { client.begin(begin).await };
                self.start(id, txn, entry, Box::pin(beginning)).await;
                Ok(())
            }
            Request::Takeover { txn, handle } => {
                let (entry, client) = (self.enter(txn)?, self.client.clone());
                let taking = async move { client.takeover(handle).await };
                self.start(id, txn, entry, Box::pin(taking)).await;
                Ok(())
            }
            Request::Read { txn, lba, count } => {
                self.read(id, txn, lba, count).await;
                Ok(())
            }
            Request::Commit { txn, durability } => {
                // The transaction ends with either outcome: a failed commit cannot be tried again.
                let entry = self.transactions.lock().remove(&txn);
                let committing = async move {
                    let usable = entry.as_ref().map(|entry| entry.usable());
                    usable.unwrap_or(Err(TxnError::Ended))?.commit(durability).await?;
                    done(Answer::Done)
                };
                self.answer(id, REQUEST_COST, Box::pin(committing)).await;
                Ok(())
            }
            Request::Release { txn } => {
                self.release(id, txn).await;
                Ok(())
            }
        }
    }

    fn entry(&self, txn: u64) -> Result<Arc<Entry>, TxnError> {
        self.transactions.lock().get(&txn).cloned().ok_or(TxnError::Ended)
    }

    /// Carries out an unanswered request.
    fn at_once(&self, txn: u64, act: impl FnOnce(&dyn Transaction) -> Result<(), TxnError>) {
        // A request of an ended transaction has no effect.
        if let Ok(entry) = self.entry(txn) {
            entry.note(entry.usable().and_then(|transaction| act(&*transaction)));
        }
    }

    /// Registers a transaction that is about to begin.
    fn enter(&self, txn: u64) -> io::Result<Arc<Entry>> {
        let entry = Arc::<Entry>::default();
        match self.transactions.lock().insert(txn, entry.clone()) {
            None => Ok(entry),
            Some(_) => Err(io::Error::other("invalid request: two transactions with one number")),
        }
    }

    async fn start(
        &self,
        id: u64,
        txn: u64,
        entry: Arc<Entry>,
        beginning: BoxFuture<'static, Result<Arc<dyn Transaction>, TxnError>>,
    ) {
        // A weak reference: when the connection has ended, the new transaction is dropped.
        let entries = Arc::downgrade(&self.transactions);
        let starting = async move {
            match beginning.await {
                Ok(transaction) => {
                    let blocks = transaction.blocks();
                    entry.state.lock().transaction = Some(transaction);
                    done(Answer::Begun { blocks })
                }
                Err(error) => {
                    if let Some(entries) = entries.upgrade() {
                        let mut entries = entries.lock();
                        // The client may have aborted it and begun another under the same number.
                        if entries.get(&txn).is_some_and(|there| Arc::ptr_eq(there, &entry)) {
                            entries.remove(&txn);
                        }
                    }
                    Err(error)
                }
            }
        };
        self.answer(id, REQUEST_COST, Box::pin(starting)).await;
    }

    async fn read(&self, id: u64, txn: u64, lba: u64, count: u64) {
        let entry = self.entry(txn);
        let cost = REQUEST_COST + count.min(MAX_RUN);
        let reading = async move {
            if count > MAX_RUN {
                let why = format!("a request reads at most {MAX_RUN} blocks");
                return Err(TxnError::Invalid(why));
            }
            let blocks = entry?.usable()?.read_run(Lba(lba), count).await?;
            Ok((Answer::Blocks, blocks))
        };
        self.answer(id, cost, Box::pin(reading)).await;
    }

    async fn release(&self, id: u64, txn: u64) {
        let entries = self.transactions.clone();
        let releasing = async move {
            let entry = entries.lock().get(&txn).cloned().ok_or(TxnError::Ended)?;
            let handle = entry.usable()?.release().await?;
            entries.lock().remove(&txn);
            done(Answer::Released(handle))
        };
        self.answer(id, REQUEST_COST, Box::pin(releasing)).await;
    }

    /// Sends the answer when `work` is done; most work is done at the first poll.
    async fn answer(&self, id: u64, cost: u64, mut work: BoxFuture<'static, Answered>) {
        let permit = self.afford(cost).await;
        match futures::poll!(&mut work) {
            std::task::Poll::Ready(answered) => push(&self.output, id, answered),
            std::task::Poll::Pending => {
                let output = self.output.clone();
                let task = self.env.spawn(async move {
                    let answered = work.await;
                    push(&output, id, answered);
                    output.flush_soon();
                    drop(permit);
                });
                // Work that has begun runs to its end when the client disconnects.
                task.detach();
            }
        }
    }

    /// Waits until the connection's budget covers `cost`.
    async fn afford(&self, cost: u64) -> Option<OwnedSemaphorePermit> {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX).min(self.config.budget);
        if let Ok(permit) = self.budget.clone().try_acquire_many_owned(cost) {
            return Some(permit);
        }
        self.output.flush();
        self.budget.clone().acquire_many_owned(cost).await.ok()
    }
}

fn push(output: &Output, id: u64, answered: Answered) {
    if id == UNANSWERED {
        return;
    }
    match answered {
        Ok((answer, payload)) => output.push(id, &answer, &payload),
        Err(error) => output.push(id, &Answer::Failed(error.into()), &[]),
    }
}
