//! Answers requests through a transaction manager.
//!
//! To the manager a connection is a process: when it ends, the transactions that it did not release are
//! aborted. A commit that has begun by then runs to its end, with either outcome.

mod beginnings;
mod questions;

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use thalweg_env::connection::Stream;
use thalweg_env::{Env, HashMap, Task, watch};
use thalweg_net::accept::signalled;
use thalweg_net::channel::{Channel, Handler, Incoming, Limits, Side};
use thalweg_net::keys::Access;
use thalweg_net::serving::{Reply, Serving};
use thalweg_store::block::{Lba, StoreError};
use thalweg_store::device::FrameBuf;
use thalweg_store::txn::{Client, Handle, Transact, Transaction, TransactionManager, TxnError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::{Answer, HELLO, MAX_REQUEST_PAYLOAD, MAX_RUN, Request, UNANSWERED, Welcome};
use crate::{SOCKET, socket};

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
    service: Service,
    _accept: Task<()>,
    _stop: watch::Sender<bool>,
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
        let (stop, stopped) = watch::channel(false);
        let service = Service::new(env, manager, config, stopped.clone());
        let accepting = service.clone();
        let accept = async move {
            thalweg_net::accept(&accepting.env, listener, stopped, |stream| {
                let (service, seat) = (accepting.clone(), accepting.seat());
                Some(accepting.env.spawn(async move {
                    let talk =
                        service.converse(stream, UnixStream::into_split, seat, Access::Write);
                    if let Err(error) = talk.await {
                        tracing::debug!(%error, "a connection for transactions failed");
                    }
                }))
            })
            .await;
        };
        Ok(Server { path: folder.join(SOCKET), service, _accept: env.spawn(accept), _stop: stop })
    }

    /// Its transactions, for connections of other kinds. They end with the server, too.
    pub fn service(&self) -> &Service {
        &self.service
    }
}

/// The transactions of a [`Server`], for connections of any kind. Clones are the same service.
#[derive(Clone, Debug)]
pub struct Service {
    env: Env,
    manager: TransactionManager,
    config: Arc<Config>,
    seats: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
    /// Of a service without a server: nothing stops it.
    _stop: Option<Arc<watch::Sender<bool>>>,
}

/// A connection's share of [`Config::max_connections`].
type Seat = OwnedSemaphorePermit;

impl Service {
    fn new(
        env: &Env,
        manager: &TransactionManager,
        config: Config,
        stopped: watch::Receiver<bool>,
    ) -> Service {
        let seats = Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS)));
        let (env, manager, config) = (env.clone(), manager.clone(), Arc::new(config));
        Service { env, manager, config, seats, stopped, _stop: None }
    }

    /// The transactions of `manager` without a socket, for connections that come another way.
    pub fn without_socket(env: &Env, manager: &TransactionManager, config: Config) -> Service {
        let (stop, stopped) = watch::channel(false);
        Service { _stop: Some(Arc::new(stop)), ..Service::new(env, manager, config, stopped) }
    }

    fn seat(&self) -> Option<Seat> {
        self.seats.clone().try_acquire_owned().ok()
    }

    /// Serves a client over a stream until the client ends the connection, or the server ends. Dropping the future
    /// ends the connection, too.
    ///
    /// # Errors
    /// Errors of the connection, and a client that breaks the protocol.
    pub async fn serve<S: Stream>(&self, stream: S, access: Access) -> io::Result<()> {
        let mut stopped = self.stopped.clone();
        tokio::select! {
            biased;
            () = signalled(&mut stopped) => Ok(()),
            result = self.converse(stream, tokio::io::split, self.seat(), access) => result,
        }
    }

    /// A connection from its hello to its end. Without a seat it is refused.
    async fn converse<S: Stream, R, W>(
        &self,
        mut stream: S,
        split: impl FnOnce(S) -> (R, W),
        seat: Option<Seat>,
        access: Access,
    ) -> io::Result<()>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Send + Unpin + 'static,
    {
        let greeted = self.env.timeout(self.config.patience, HELLO.exchange(&mut stream)).await;
        greeted.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))?;
        let (reader, writer) = split(stream);
        let limits = Limits {
            payload: MAX_REQUEST_PAYLOAD,
            unread: self.config.unread,
            ..Limits::default()
        };
        let channel = Channel::new(&self.env, Side::Accepting, limits, writer);
        let welcome = match &seat {
            None => Welcome::Busy,
            Some(_) => Welcome::Ready {
                blocks: self.manager.client().blocks(),
                max_writes: self.manager.options().max_writes as u64,
            },
        };
        channel.tell(&welcome, &[]).map_err(io::Error::other)?;
        channel.flush_soon();
        if seat.is_none() {
            channel.shutdown().await;
            return Ok(());
        }
        let connection = Connection {
            client: self.manager.client(),
            serving: Serving::new(&self.env, channel.clone(), self.config.budget),
            transactions: Arc::default(),
            access,
        };
        channel.run(reader, &connection).await
    }
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

/// An answer and its payload, or an error.
type Answered = Result<Reply<Answer>, TxnError>;

fn done(answer: Answer) -> Answered {
    Ok((answer, Vec::new()))
}

/// A connection.
struct Connection {
    client: Client,
    serving: Serving,
    transactions: Entries,
    access: Access,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A running request keeps its transaction until the request is done; no new request begins.
        self.transactions.lock().clear();
    }
}

impl Handler for Connection {
    async fn handle(&self, call: Incoming) -> io::Result<()> {
        let request = call.decode().map_err(io::Error::other)?;
        let Incoming { id, payload, .. } = call;
        let refused = || io::Error::other("invalid request: its kind does not allow its number");
        match request {
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
                self.change(txn, |it| it.write_as(Lba(lba), content, class));
                Ok(())
            }
            Request::Discard { txn, lba } => {
                self.change(txn, |it| it.discard(Lba(lba)));
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
            Request::Abort { txn } => self.abort(id, txn).await,
            _ if id == UNANSWERED => Err(refused()),
            Request::Begin { txn, .. }
            | Request::View { txn, .. }
            | Request::Takeover { txn, .. } => {
                let entry = self.enter(txn)?;
                self.begin(id, txn, entry, request).await;
                Ok(())
            }
            Request::Seen { txn } => self.seen(id, txn).await,
            Request::Read { txn, lba, count } => {
                self.read(id, txn, lba, count).await;
                Ok(())
            }
            Request::Commit { txn, durability } => {
                // The transaction ends with either outcome: a failed commit cannot be tried again.
                let entry = self.transactions.lock().remove(&txn);
                let committing = async move {
                    let usable = entry.as_ref().map(|entry| entry.usable());
                    let transaction = usable.unwrap_or(Err(TxnError::Ended))?;
                    done(Answer::At(transaction.commit(durability).await?))
                };
                self.answer(id, REQUEST_COST, committing).await;
                Ok(())
            }
            Request::Release { txn } => self.release(id, txn).await,
            question => self.ask(id, question).await,
        }
    }
}

impl Connection {
    async fn abort(&self, id: u64, txn: u64) -> io::Result<()> {
        let entry = self.transactions.lock().remove(&txn);
        let ending = async move {
            let transaction = entry.and_then(|entry| entry.state.lock().transaction.take());
            if let Some(transaction) = transaction {
                transaction.abort().await;
            }
            done(Answer::Done)
        };
        self.reply(id, ending).await
    }

    fn take_over(
        &self,
        handle: Handle,
    ) -> impl Future<Output = Result<Arc<dyn Transaction>, TxnError>> + use<> {
        let (client, access) = (self.client.clone(), self.access);
        async move {
            match access {
                // The transaction may have writes.
                Access::Read => Err(StoreError::ReadOnly.into()),
                Access::Write => client.takeover(handle).await,
            }
        }
    }

    /// Answers a request that belongs to no transaction.
    async fn reply(
        &self,
        id: u64,
        work: impl Future<Output = Answered> + Send + 'static,
    ) -> io::Result<()> {
        self.answer(id, REQUEST_COST, Box::pin(work)).await;
        Ok(())
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

    /// Carries out an unanswered request that changes blocks.
    fn change(&self, txn: u64, act: impl FnOnce(&dyn Transaction) -> Result<(), TxnError>) {
        self.at_once(txn, |transaction| match self.access {
            Access::Write => act(transaction),
            Access::Read => Err(StoreError::ReadOnly.into()),
        });
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
                    let (blocks, version) = (transaction.blocks(), transaction.version());
                    entry.state.lock().transaction = Some(transaction);
                    done(Answer::Begun { blocks, version })
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
        self.answer(id, REQUEST_COST, starting).await;
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
        self.answer(id, cost, reading).await;
    }

    async fn release(&self, id: u64, txn: u64) -> io::Result<()> {
        let entries = self.transactions.clone();
        let releasing = async move {
            let entry = entries.lock().get(&txn).cloned().ok_or(TxnError::Ended)?;
            let handle = entry.usable()?.release().await?;
            entries.lock().remove(&txn);
            done(Answer::Released(handle))
        };
        self.reply(id, releasing).await
    }

    /// Sends the answer when `work` is done.
    async fn answer(
        &self,
        id: u64,
        cost: u64,
        work: impl Future<Output = Answered> + Send + 'static,
    ) {
        let replying = async move {
            work.await.unwrap_or_else(|error| (Answer::Failed(error.into()), Vec::new()))
        };
        self.serving.answer(id, cost, replying).await;
    }
}
