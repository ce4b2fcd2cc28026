//! An open volume, and what each thread is in the middle of.

mod blocks;
mod guard;
mod own;
mod positions;
mod raw;
mod sessions;
mod snapshots;
mod stores;

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::executor::block_on;
use parking_lot::Mutex;
use thalweg_cluster::client::AttachError;
use thalweg_env::process::{Forked, OfProcess, watch_forks};
use thalweg_env::{Env, HashMap, server_threads};
use thalweg_fs::FsError;
use thalweg_ipc::remote::RemoteError;
use thalweg_ipc::{Connection, Remote};
use thalweg_net::keys::Home;
use thalweg_replica::nodes::{self, Nodes, NodesOptions};
use thalweg_store::block::{BlockVersion, Epoch, EpochVersion, Lba};
use thalweg_store::open::{self, AnyVolume, Options, VolumePath};
use thalweg_store::tree::{Raw, RawBlocks, TreeError};
use thalweg_store::txn::nest::{Began, End, Nest};
use thalweg_store::txn::{
    Begin, Durability, Handle, Preempted, Transact, Transaction, TransactionManager, Turn, TxnError,
};
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use guard::Guarded;
use own::Own;

pub use sessions::{SessionCell, SessionError};

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The volume's server does not answer as it should.
    #[error(transparent)]
    Server(#[from] TxnError),
    /// A volume on another machine cannot be reached.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// No process serves the volume, and it cannot be opened in this one.
    #[error(transparent)]
    Volume(#[from] open::OpenError),
    /// A filesystem cannot be opened: another process has its volume open.
    #[error(
        "{} is open in another process, which mounts or serves it: use its mount, or share it with \
         `thalweg cluster serve` and open SERVER:/PATH",
        path.display()
    )]
    Served {
        /// The volume.
        path: PathBuf,
    },
    /// A filesystem cannot be opened.
    #[error(transparent)]
    Filesystem(#[from] FsError),
    /// A shared filesystem cannot be used.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The options do not go together.
    #[error("{0}")]
    Invalid(&'static str),
    /// The system cannot start threads.
    #[error("cannot start threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// How a transaction ended.
#[derive(Debug)]
pub enum Outcome {
    /// The transaction is committed and durable, as this version: the one that it read if it wrote nothing.
    /// `None` at the end of an inner pair.
    Committed(Option<EpochVersion>),
    /// None of its changes takes effect.
    Aborted(TxnError),
}

/// Errors of calls inside a transaction.
trait Fate: From<TxnError> {
    /// Why the transaction was aborted from outside, if it was.
    fn preempted(&self) -> Option<Preempted>;
}

impl Fate for TxnError {
    fn preempted(&self) -> Option<Preempted> {
        match self {
            TxnError::Preempted(why) => Some(*why),
            _ => None,
        }
    }
}

impl Fate for TreeError {
    fn preempted(&self) -> Option<Preempted> {
        match self {
            TreeError::Txn(error) => error.preempted(),
            _ => None,
        }
    }
}

/// The state of one thread: its open pairs and its transaction.
#[derive(Default)]
struct Middle {
    nest: Nest<Arc<dyn Transaction>>,
    /// Its last transaction met a conflict: the next one is most likely a retry.
    again: bool,
    /// The turn of its retry.
    turn: Turn,
    /// The raw partitions that its transaction has used so far, by identity.
    raw: Vec<(Uuid, RawBlocks)>,
    /// Its transaction is a snapshot.
    is_snapshot: bool,
}

impl Middle {
    /// Takes the turn of a transaction that is over; an empty one while an enclosing pair is open.
    fn take_turn(&mut self) -> Turn {
        match self.nest.depth() {
            0 => {
                self.raw.clear();
                self.is_snapshot = false;
                std::mem::take(&mut self.turn)
            }
            _ => Turn::default(),
        }
    }
}

/// The state of a thread, for the process that began its transaction.
type Bound = OfProcess<Mutex<Middle>>;

static VOLUMES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The state of this thread for each volume. When the thread ends, its transactions are aborted.
    static BOUND: RefCell<HashMap<u64, Arc<Bound>>> = RefCell::default();
}

/// An open volume. Dropping it aborts the transactions of all threads.
///
/// It is of the process that opened it. In a child that this process forks each call fails at once with
/// [`TxnError::Forked`]; closing and dropping it there has no effect on the volume, the parent, and its transactions.
pub struct Volume {
    id: u64,
    is_served: bool,
    transact: Arc<dyn Transact>,
    /// Its blocks, if it has no partitions.
    whole: Raw,
    own: OfProcess<Own>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume").field("transact", &self.transact).finish_non_exhaustive()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Ok(own) = self.own.get() {
            own.abort_all();
        }
    }
}

/// Connects to the process that serves a volume, if any, or to the nodes of a volume.
async fn connect(env: &Env, path: &Path) -> Result<Option<Arc<dyn Transact>>, OpenError> {
    if let Some(addresses) = path.to_str().and_then(nodes::several) {
        let home = Home::of_user();
        let reach = |address| nodes::node_at(env, &home, address);
        let reached = addresses.into_iter().map(reach).collect::<Result<Vec<_>, _>>()?;
        return Ok(Some(Arc::new(Nodes::connect(env, reached, NodesOptions::default()).await?)));
    }
    if let Some(remote) = path.to_str().and_then(Remote::of) {
        return Ok(Some(Arc::new(remote?.connect(env, &Home::of_user()).await?)));
    }
    let folders = match path.is_dir() {
        true => vec![path.to_owned()],
        false => {
            VolumePath::find(path)?.sockets().iter().filter(|it| it.is_dir()).cloned().collect()
        }
    };
    for folder in folders {
        if let Some(connection) = Connection::open(env, &folder).await? {
            return Ok(Some(Arc::new(connection)));
        }
    }
    Ok(None)
}

impl Volume {
    /// Opens the volume at a path, the folder of a chained one or the device or file of one that is updated
    /// in place: through its server, or in this process when no server runs. A path may be the address of a volume
    /// on another machine ([`Remote`]); or those of several nodes of a volume ([`Nodes`]), with commas between them, each
    /// the address of a server or the folder of a volume that is served.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Volume, OpenError> {
        Volume::open_with(path, &Options::default())
    }

    /// As [`Volume::open`], with options for a volume that is opened in this process.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(path: &Path, options: &Options) -> Result<Volume, OpenError> {
        watch_forks()?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (env, connection) = runtime.block_on(async {
            let env = Env::real();
            let connection = connect(&env, path).await;
            (env, connection)
        });
        if let Some(connection) = connection? {
            return Ok(Volume::new(env, connection, None, runtime));
        }
        let place = VolumePath::find(path)?;
        let threads = server_threads();
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
        let (env, opened) = runtime.block_on(async {
            let env = Env::real();
            let opened = AnyVolume::open(&env, &place, options).await;
            (env, opened)
        });
        let opened = opened?;
        let manager: TransactionManager = opened.transactions().clone();
        Ok(Volume::new(env, Arc::new(manager), Some(opened), runtime))
    }

    fn new(
        env: Env,
        transact: Arc<dyn Transact>,
        volume: Option<AnyVolume>,
        runtime: Runtime,
    ) -> Volume {
        let id = VOLUMES.fetch_add(1, Ordering::Relaxed);
        let transact: Arc<dyn Transact> = Arc::new(Guarded::new(&env, transact));
        let whole = Raw::whole(transact.clone());
        let is_served = volume.is_none();
        let own = OfProcess::new(Own { env, bound: Mutex::default(), volume, runtime });
        Volume { id, is_served, transact, whole, own }
    }

    /// What this process has of it.
    ///
    /// # Errors
    /// [`TxnError::Forked`]
    fn own(&self) -> Result<&Own, TxnError> {
        Ok(self.own.get()?)
    }

    /// Whether this process has opened it, and not a parent of this one.
    ///
    /// # Errors
    /// [`Forked`], which says which one has.
    pub fn check_process(&self) -> Result<(), Forked> {
        self.own.get().map(|_| ())
    }

    /// Aborts the transactions of all threads. A volume that this process has opened is closed and refuses
    /// writes from then on; dropping it releases its devices.
    ///
    /// # Errors
    /// Errors of a device; committed transactions are safe all the same.
    pub fn close(&self) -> Result<(), open::OpenError> {
        let Ok(own) = self.own.get() else { return Ok(()) };
        own.abort_all();
        match &own.volume {
            Some(volume) => own.runtime.block_on(volume.close()),
            None => Ok(()),
        }
    }

    /// Whether another process serves the volume.
    pub fn is_served(&self) -> bool {
        self.is_served
    }

    /// The number of blocks, of [`BLOCK_SIZE`](thalweg_store::block::BLOCK_SIZE) bytes each; 0 in a child of the process
    /// that opened it.
    pub fn blocks(&self) -> u64 {
        self.transact.blocks()
    }

    /// The volume's transactions, for async code.
    pub fn transact(&self) -> &Arc<dyn Transact> {
        &self.transact
    }

    /// Runs a task to its end. In a child of the process that opened the volume no thread drives the task: what it asks of the
    /// volume fails at once.
    pub fn wait<F: Future>(&self, task: F) -> F::Output {
        match self.own.get() {
            Ok(own) => own.runtime.block_on(task),
            Err(_) => block_on(task),
        }
    }

    /// Runs a task of this process's volume to its end.
    fn run<T, E: From<TxnError>>(&self, task: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.own()?.runtime.block_on(task)
    }

    /// What this thread is in the middle of.
    fn bound(&self) -> Result<Arc<Bound>, TxnError> {
        let own = self.own()?;
        Ok(BOUND.with_borrow_mut(|threads| {
            if let Some(bound) = threads.get(&self.id) {
                return bound.clone();
            }
            let bound = Arc::new(Bound::new(Mutex::default()));
            // Drops the entries of closed volumes: only this thread refers to them.
            threads.retain(|_, bound| Arc::weak_count(bound) > 0);
            threads.insert(self.id, bound.clone());
            let mut all = own.bound.lock();
            all.retain(|bound| bound.strong_count() > 0);
            all.push(Arc::downgrade(&bound));
            bound
        }))
    }

    /// The number of open pairs of begin and end of this thread; none in a child of the process that opened the volume.
    pub fn depth(&self) -> usize {
        let bound = self.bound();
        let depth = |bound: Arc<Bound>| Ok(bound.get()?.lock().nest.depth());
        bound.and_then(depth).unwrap_or(0)
    }

    /// Begins a transaction; inside a transaction, opens an inner pair, which changes nothing.
    ///
    /// # Errors
    /// As [`Transact::begin`], and the error that has ended the enclosing transaction. [`TxnError::Invalid`] inside
    /// a transaction that reads another version than [`Begin::at`].
    pub fn begin(&self, begin: Begin) -> Result<(), TxnError> {
        let bound = self.bound()?;
        let mut middle = bound.get().map_err(TxnError::from)?.lock();
        if let (Some(at), Some(outer)) = (begin.at, middle.nest.running()?)
            && outer.version() != at
        {
            let outer = outer.version();
            return Err(TxnError::Invalid(format!(
                "the enclosing transaction reads version {outer}, so a nested one cannot read {at}"
            )));
        }
        if middle.nest.begin()? == Began::Inner {
            return Ok(());
        }
        let turn = match std::mem::take(&mut middle.again) {
            true => self.wait(self.transact.contention().turn()),
            false => Turn::default(),
        };
        let transaction = self.run(self.transact.begin(begin))?;
        middle.turn = turn;
        middle.nest.enter(transaction)
    }

    /// Ends the innermost pair; the outermost end commits.
    ///
    /// # Errors
    /// [`TxnError::Ended`] when no pair is open. [`TxnError::Store`] and [`TxnError::Disconnected`]: whether
    /// the transaction committed is unknown.
    pub fn end(&self) -> Result<Outcome, TxnError> {
        let bound = self.bound()?;
        let (transaction, turn) = {
            let mut middle = bound.get()?.lock();
            match middle.nest.end()? {
                End::Inner => return Ok(Outcome::Committed(None)),
                End::Failed(fate) => {
                    middle.take_turn();
                    return Ok(Outcome::Aborted(fate.into()));
                }
                End::Commit(transaction) => (transaction, middle.take_turn()),
            }
        };
        match self.run(turn.commit(&*transaction, Durability::Synced)) {
            Ok(version) => Ok(Outcome::Committed(Some(version))),
            Err(error) if error.is_retryable() => {
                bound.get()?.lock().again = true;
                Ok(Outcome::Aborted(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Aborts the innermost pair, without any effect. An enclosing transaction is doomed.
    ///
    /// # Errors
    /// [`TxnError::Ended`] when nothing was begun.
    pub fn abort(&self) -> Result<(), TxnError> {
        let bound = self.bound()?;
        let (running, turn) = {
            let mut middle = bound.get()?.lock();
            (middle.nest.abort()?, middle.take_turn())
        };
        if let Some(transaction) = running {
            self.wait(transaction.abort());
        }
        drop(turn);
        Ok(())
    }

    /// Releases this thread's transaction, for another thread or process to take over. If the release fails,
    /// the transaction is aborted.
    ///
    /// # Errors
    /// [`TxnError::Ended`] when no pair is open, [`TxnError::Invalid`] inside an inner pair, and the error
    /// that has ended the transaction.
    pub fn release(&self) -> Result<Handle, TxnError> {
        let bound = self.bound()?;
        let mut middle = bound.get().map_err(TxnError::from)?.lock();
        let transaction = middle.nest.release()?;
        middle.take_turn();
        let released = self.wait(transaction.release());
        if let Err(TxnError::Preempted(why)) = &released {
            // The thread still has to end it, as any transaction that was aborted from outside.
            middle.nest.enter(transaction)?;
            middle.nest.preempt(*why);
        }
        released
    }

    /// Takes over a released transaction, as this thread's.
    ///
    /// # Errors
    /// As [`Transact::takeover`], and [`TxnError::Invalid`] inside another transaction.
    pub fn takeover(&self, handle: Handle) -> Result<(), TxnError> {
        let bound = self.bound()?;
        let mut middle = bound.get().map_err(TxnError::from)?.lock();
        middle.nest.check_outside()?;
        let transaction = self.run(self.transact.takeover(handle))?;
        middle.raw.clear();
        middle.nest.enter(transaction)
    }

    /// Runs `inside` in this thread's transaction, if it has one.
    ///
    /// # Errors
    /// The error that has ended the transaction, and the errors of `inside`.
    fn inside<T, E: Fate>(
        &self,
        inside: impl FnOnce(&Arc<dyn Transaction>) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let bound = self.bound()?;
        let mut middle = bound.get().map_err(TxnError::from)?.lock();
        let Some(transaction) = middle.nest.running()? else { return Ok(None) };
        let result = inside(transaction);
        if let Some(why) = result.as_ref().err().and_then(Fate::preempted) {
            middle.nest.preempt(why);
        }
        result.map(Some)
    }

    /// This thread's transaction.
    ///
    /// # Errors
    /// What it has come to.
    pub fn running(&self) -> Result<Option<Arc<dyn Transaction>>, TxnError> {
        self.inside(|transaction| Ok::<_, TxnError>(transaction.clone()))
    }

    /// The version that this thread's transaction reads.
    ///
    /// # Errors
    /// [`TxnError::Ended`] when no pair is open, and the error that has ended the transaction.
    pub fn version(&self) -> Result<EpochVersion, TxnError> {
        self.running()?.map(|transaction| transaction.version()).ok_or(TxnError::Ended)
    }

    /// The contents of a block that can be read, and the epoch of their versions.
    ///
    /// # Errors
    /// As [`Transact::versions`].
    pub fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError> {
        self.run(self.transact.versions(lba))
    }
}
