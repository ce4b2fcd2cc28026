//! A filesystem behind a server, as its clients see it.
//!
//! - [`address`]: where it is;
//! - `cache`: what the client may use without a call;
//! - `delegation`: what it changes by itself; `queue`, `record`, `writeback`: how the server gets that;
//! - `link`: connections, one after the other; `notices`: what the server calls;
//! - [`Recover`]: what follows when the server has ended the session;
//! - `users`: the users of calls; `call`: a call that outlives connections; `reclaim_state`, `reclaim`: what outlives the server;
//! - `direct`: contents that it reads and writes past the server;
//! - `level`: how far the changes of a file have come;
//! - `opening`: the open files; `opens`: the calls about them; `locks`: those about locks;
//! - `names`, `content`: the other calls of [`Filesystem`](thalweg_fs::Filesystem).
//!
//! A client that loses its connection connects again, and its calls wait. They fail when the server cannot be reached
//! for [`Options::retry`], or at once when it does not let the client in any more. If the server has ended the session in the meantime, everything that was open is stale, which
//! is logged; a new session begins by itself, or none with [`Recover::No`].

pub mod address;
mod cache;
mod call;
mod content;
mod delegated;
mod delegation;
mod dentries;
mod direct;
mod filesystem;
mod level;
mod link;
mod locks;
mod names;
mod notices;
mod opening;
mod opens;
mod queue;
mod reclaim;
mod reclaim_state;
mod record;
mod recover;
mod room;
mod size_records;
mod users;
mod writeback;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use thalweg_env::connection::Connector;
use thalweg_env::{Env, Task, watch};
use thalweg_fs::access::AccessLists;
use thalweg_fs::{Action, ContentsFinder, Failure, FsError, Ino, Watcher};
use thalweg_net::Traffic;
use thalweg_net::keys::Squash;
use tokio::sync::Notify;
use uuid::Uuid;

use cache::Cache;
use call::Numbers;
use direct::Direct;
use link::Link;
use reclaim_state::ReclaimState;
pub use recover::Recover;
use users::User;

/// How a client treats its server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time for the first connection.
    pub patience: Duration,
    /// How long calls wait for a server that cannot be reached; `None` for any time.
    pub retry: Option<Duration>,
    /// The pause before a connection is tried again; up to four times as long after many failures.
    pub pause: Duration,
    /// After so many new names in a directory the client asks for its delegation, to make further ones by itself; `None`: never.
    pub exclusive: Option<u32>,
    /// The client looks so often for changes of its own that the server should have; at most 20 times a second.
    pub writeback: Duration,
    /// Changes of its own wait for others, to be sent together, for so long.
    pub expire: Duration,
    /// Finds the contents of files where the server keeps them elsewhere; without it, the server reads and writes them.
    pub contents: Option<Arc<dyn ContentsFinder>>,
    /// What it does when the server has ended its session.
    pub recover: Recover,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            patience: Duration::from_secs(10),
            retry: Some(Duration::from_secs(300)),
            pause: Duration::from_millis(50),
            exclusive: Some(1),
            writeback: Duration::from_millis(250),
            expire: Duration::from_secs(1),
            contents: None,
            recover: Recover::Clean,
        }
    }
}

/// Why a client does not begin.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The server cannot be reached, or does not let this client in.
    #[error("the server cannot be used: {0}")]
    Lost(#[source] io::Error),
    /// The directory that the client is to see is not there.
    #[error(transparent)]
    Refused(FsError),
}

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
enum LinkError {
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the server does not let this client in any more: {0}")]
    Refused(String),
    #[error("the server has ended the session of this client while the call was under way")]
    Evicted,
    #[error(
        "the server has ended the session of this client, which begins no other one: mount it again"
    )]
    Ended,
    #[error("changes that this client has made by itself were lost")]
    Lost,
    #[error("the server cannot be reached, and the caller waits no longer; the call was not sent")]
    GivenUp,
    #[error("the client is closed")]
    Closed,
    #[error("the server's answer does not fit the call")]
    Unexpected,
}

impl From<LinkError> for FsError {
    fn from(error: LinkError) -> FsError {
        FsError::Store(Failure::new(Action::Reconnect, error))
    }
}

/// A filesystem behind a server. Clones are the same client; its session ends with [`Client::close`], or when the server
/// has not heard it for long enough.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    _life: Arc<Life>,
    /// The user that its calls are made for.
    user: User,
}

/// Ends the connection with the last clone of a client.
#[derive(Debug)]
struct Life {
    shared: Arc<Shared>,
    _tasks: [Task<()>; 4],
}

impl Drop for Life {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

/// A session at the server.
#[derive(Clone, Debug)]
struct SessionInfo {
    id: Uuid,
    /// Sessions of this client count from 0.
    generation: u64,
    /// The server knows it.
    begun: bool,
    root: Ino,
    lease: Duration,
    read_only: bool,
    /// Where the contents of files are; nothing if only the server reaches them.
    contents: Bytes,
    squash: Squash,
    /// The server's incarnation.
    server: Uuid,
}

struct Shared {
    env: Env,
    connector: Box<dyn Connector>,
    options: Options,
    session: Mutex<SessionInfo>,
    link: watch::Sender<Link>,
    numbers: Mutex<Numbers>,
    cache: Mutex<Cache>,
    reclaim_state: ReclaimState,
    direct: Mutex<Option<Direct>>,
    /// One task at a time finds the contents, or leaves them.
    reaching: tokio::sync::Mutex<()>,
    /// Contents are not reached any more.
    lost_contents: Notify,
    /// The server asks for inodes that are not used.
    pressed: Notify,
    /// The server is to be told of removed inodes.
    gone: Notify,
    watcher: RwLock<Option<Watcher>>,
    /// One batch of mutations at a time.
    sending: Arc<tokio::sync::Mutex<()>>,
    /// One reservation of inode numbers at a time.
    reserving: tokio::sync::Mutex<()>,
    /// The server is told of open files by one task at a time.
    telling: tokio::sync::Mutex<()>,
    /// What was sent.
    traffic: Traffic,
    /// No kernel checks what the users of this client may do.
    checks_for_kernel: AtomicBool,
    lists: AccessLists,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("connector", &self.connector).finish_non_exhaustive()
    }
}

/// What a client knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ClientStatus {
    /// Whether it has a connection with a session.
    pub connected: bool,
    /// Whether its session has ended, and it begins no other one.
    pub ended: bool,
    /// Sessions that the server has ended.
    pub evictions: u64,
    /// Whether it reads and writes contents of files itself.
    pub direct: bool,
    /// Inodes that it knows.
    pub inodes: usize,
    /// Calls without an answer.
    pub calls: usize,
    /// Changes in directories that are this client's alone, which the server does not have.
    pub unsent: usize,
    /// Changes that a crash of the server would undo, and that would be made again then.
    pub kept: usize,
    /// Changes that were acknowledged, and may be lost: the server crashed, and did not get them again.
    pub lost: u64,
}

impl Client {
    /// Connects, and begins a session.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn connect(
        env: &Env,
        connector: Box<dyn Connector>,
        options: Options,
    ) -> Result<Client, AttachError> {
        let session = SessionInfo {
            id: env.uuid(),
            generation: 0,
            begun: false,
            root: Ino::ROOT,
            lease: Duration::ZERO,
            read_only: false,
            contents: Bytes::new(),
            squash: Squash::None,
            server: Uuid::nil(),
        };
        let link = watch::Sender::new(Link::Down);
        let shared = Arc::new(Shared {
            env: env.clone(),
            connector,
            options,
            session: Mutex::new(session),
            link,
            numbers: Mutex::default(),
            cache: Mutex::default(),
            reclaim_state: ReclaimState::default(),
            direct: Mutex::default(),
            reaching: tokio::sync::Mutex::default(),
            lost_contents: Notify::new(),
            pressed: Notify::new(),
            gone: Notify::new(),
            watcher: RwLock::default(),
            sending: Arc::default(),
            reserving: tokio::sync::Mutex::default(),
            telling: tokio::sync::Mutex::default(),
            traffic: Traffic::default(),
            checks_for_kernel: AtomicBool::new(false),
            lists: AccessLists::default(),
        });
        let first = env.timeout(shared.options.patience, shared.attach()).await;
        let late = || Err(AttachError::Lost(io::ErrorKind::TimedOut.into()));
        let connection = first.unwrap_or_else(late)?;
        let (linking, tending, sending) = (shared.clone(), shared.clone(), shared.clone());
        let reaching = shared.clone();
        let tasks = [
            env.spawn(async move { linking.keep_connected(connection).await }),
            env.spawn(async move { tending.tend().await }),
            env.spawn(async move { sending.run_writeback().await }),
            env.spawn(async move { reaching.keep_contents().await }),
        ];
        let life = Life { shared: shared.clone(), _tasks: tasks };
        Ok(Client { shared, _life: Arc::new(life), user: None })
    }

    /// Ends the session in order. Calls fail from now on.
    pub async fn close(&self) {
        self.shared.detach().await;
    }

    /// What it has sent to the server.
    pub fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }

    /// What it knows of itself.
    pub fn status(&self) -> ClientStatus {
        let (inodes, unsent) = {
            let cache = self.shared.cache.lock();
            (cache.len(), cache.queue.len())
        };
        ClientStatus {
            connected: matches!(*self.shared.link.borrow(), Link::Up(_)),
            direct: self.shared.contents().is_some(),
            ended: self.shared.has_ended(),
            evictions: self.shared.session.lock().generation,
            inodes,
            calls: self.shared.numbers.lock().pending(),
            unsent,
            kept: self.shared.reclaim_state.replay_log.lock().len(),
            lost: self.shared.reclaim_state.lost.load(Ordering::Relaxed),
        }
    }
}
