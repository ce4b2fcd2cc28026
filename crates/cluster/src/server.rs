//! A filesystem, served to clients on other machines.
//!
//! The server keeps nothing about names or inodes: that is the [`Filesystem`]'s. It adds:
//!
//! - `session`: a client's session, with the inodes that it knows, its open files and its locks;
//! - `capabilities`: what each client caches; `recall`: a change invalidates that first;
//! - `connection`: the calls of a connection; `calls`: each is carried out once; `context`: one of them; `outcome`: what it has come to;
//! - `batch`: directories that are one client's alone, and what that client has made there;
//! - `commit_on_share`: changes that may not survive a crash yet, which other clients do not see before they do;
//! - `recovery`: the sessions of the server before this one go on; `replay`: its calls that come again;
//! - `status`, `report`: what an administrator sees; `counters`, `recalls`: what is counted for that;
//! - `names`, `attributes`, `content`, `opens`: the calls by what they are about;
//! - `moves`: what is moved out of the directory that a client sees;
//! - `permits`: what the users of a client may do that is not trusted with that;
//! - `inode_limit`: clients that know too much are asked to forget some of it.
//!
//! A client that is silent for the time of its lease cannot use what it caches any more. If a change waits for its
//! answer, it is evicted then: its session ends, and what it held is released. Otherwise its session goes on for
//! [`Options::expire`].

mod attributes;
mod authorize;
mod batch;
mod calls;
mod capabilities;
mod commit_on_share;
mod connection;
mod content;
mod context;
mod counters;
mod execute;
mod inode_limit;
mod inode_tokens;
mod level;
mod moves;
mod names;
mod open_files;
mod opens;
mod page_turn;
mod pages;
mod recall;
mod recalls;
mod recovery;
mod releases;
mod replay;
mod report;
mod response;
mod room;
mod session;
mod settling;
mod status;

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::connection::Stream;
use thalweg_env::{Env, HashMap, Task, Tenure, Time, watch};
use thalweg_fs::access::AccessLists;
use thalweg_fs::{DirectContents, Filesystem, FsError, Ino, Kind};
use thalweg_net::channel::{Channel, Limits, Side};
use thalweg_net::keys::{Access, Squash};
use thalweg_net::serving::Serving;
use uuid::Uuid;

use crate::protocol::{HELLO, MAX_PAYLOAD};
use capabilities::Capabilities;
use commit_on_share::CommitOnShare;
use connection::Connection;
pub use counters::CallCounts;
use counters::Counters;
use inode_limit::InodeLimit;
use moves::Moves;
use open_files::OpenFiles;
use recall::NameLocks;
use recalls::Recalls;
use recovery::{Recovery, info_of};
use releases::Releases;
use replay::Replay;
pub use report::{HolderReport, InodeReport, InvalidationReport, LockReport};
use room::RoomRecalls;
use session::Session;
pub use status::{InvalidationCounts, ServerStatus, SessionStatus};

/// Limits and times.
#[derive(Clone, Debug)]
pub struct Options {
    /// A client may use what it caches for so long after the last call that was answered.
    pub lease: Duration,
    /// A client that is silent for so long has lost its session.
    pub expire: Duration,
    /// Most sessions.
    pub sessions: usize,
    /// Calls of one connection that run at a time, those that wait for locks not counted.
    pub budget: u32,
    /// Time within which a new connection must send its hello.
    pub patience: Duration,
    /// Changes are durable after so long at the latest.
    pub commit: Duration,
    /// A directory that one client had to itself, and another one has used, can be one client's alone again after so long.
    pub share: Duration,
    /// While it has run out, no answer is sent: another server may serve the filesystem.
    pub tenure: Option<Tenure>,
    /// Inodes that the clients may know together, counted for each client, before the server asks for some back. Each takes
    /// about [`KNOWN_BYTES`] of memory.
    pub known: usize,
}

/// Bytes of memory that an inode takes which a client knows, about.
pub const KNOWN_BYTES: usize = 256;

impl Default for Options {
    fn default() -> Options {
        Options {
            lease: Duration::from_secs(10),
            expire: Duration::from_secs(60),
            sessions: 4096,
            budget: 4096,
            patience: Duration::from_secs(10),
            commit: Duration::from_secs(1),
            share: Duration::from_secs(5),
            tenure: None,
            known: (1 << 30) / KNOWN_BYTES,
        }
    }
}

/// A client, as its key says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visitor {
    /// Its name.
    pub name: String,
    /// The directory that it is to see as its root: a path from the filesystem's root.
    pub path: String,
    /// What it may do.
    pub access: Access,
    /// Its users that act as the user nobody. Unless that is none, permissions are checked here.
    pub squash: Squash,
}

/// Serves a filesystem. Clones are the same server; the sessions end with the last of them.
#[derive(Clone, Debug)]
pub struct Server {
    shared: Arc<Shared>,
    _tasks: Arc<Vec<Task<()>>>,
}

pub(in crate::server) struct Shared {
    /// Itself, for tasks.
    me: Weak<Shared>,
    env: Env,
    filesystem: Arc<dyn Filesystem>,
    options: Options,
    sessions: Mutex<HashMap<Uuid, Arc<Session>>>,
    serial: AtomicU64,
    capabilities: Capabilities,
    /// Ended sessions by serial number, until the records do not have them, and their clients use nothing of their caches.
    leaving: Mutex<HashMap<u64, Leaving>>,
    recalls: Recalls,
    releases: Releases,
    room: RoomRecalls,
    commit_on_share: CommitOnShare,
    recovery: Recovery,
    replay: Replay,
    /// Tells clients this server from the one before it.
    incarnation: Uuid,
    names: NameLocks,
    moves: Moves,
    open_files: OpenFiles,
    counters: Counters,
    started: Time,
    inode_limit: Arc<InodeLimit>,
    lists: AccessLists,
}

/// An ended session.
struct Leaving {
    /// Its client's name.
    client: String,
    /// Told when it has left.
    left: watch::Receiver<()>,
}

/// How a session ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// Its client has ended it, and uses nothing any more.
    Detached,
    /// Its client may not know yet.
    Evicted(&'static str),
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("filesystem", &self.filesystem).finish_non_exhaustive()
    }
}

impl Server {
    /// A server of this filesystem, which no other program changes. If the filesystem keeps records
    /// ([`thalweg_fs::SessionTable`]), the sessions of the server before this one go on.
    ///
    /// # Errors
    /// Those of the filesystem's records.
    pub async fn start(
        env: &Env,
        filesystem: Arc<dyn Filesystem>,
        options: Options,
    ) -> Result<Server, FsError> {
        let (sessions, serial, leaving, recalls, names, open_files) = Default::default();
        let (counters, inode_limit, started) = (Counters::default(), Default::default(), env.now());
        let lists = AccessLists::default();
        let capabilities = Capabilities::new(env, 4 * options.lease);
        let (env, commit_on_share, recovery) =
            (env.clone(), CommitOnShare::default(), Recovery::new());
        let (incarnation, releases) = (env.uuid(), Releases::new(&env));
        let shared = Arc::new_cyclic(|me| Shared {
            me: me.clone(),
            env,
            filesystem,
            options,
            sessions,
            serial,
            capabilities,
            leaving,
            recalls,
            releases,
            room: RoomRecalls::default(),
            commit_on_share,
            recovery,
            replay: Replay::default(),
            incarnation,
            names,
            moves: Moves::default(),
            open_files,
            counters,
            started,
            inode_limit,
            lists,
        });
        let weak = Arc::downgrade(&shared);
        let (clock, pause) = (shared.env.clone(), shared.options.lease / 4);
        let reaper = shared.env.spawn(async move {
            loop {
                clock.sleep(pause).await;
                let Some(shared) = weak.upgrade() else { return };
                shared.expire();
                shared.request_release();
            }
        });
        let mut tasks = vec![reaper];
        if let Some(until) = shared.expect_sessions().await? {
            let recovering = shared.clone();
            tasks.push(shared.env.spawn(async move { recovering.finish_recovery(until).await }));
        }
        let committing = shared.clone();
        tasks.push(shared.env.spawn(async move { committing.keep_durable().await }));
        Ok(Server { shared, _tasks: Arc::new(tasks) })
    }

    /// Serves a client over a stream until the connection ends. Its session goes on, so that the client may connect
    /// again.
    ///
    /// # Errors
    /// Errors of the connection, and a client that violates the protocol.
    pub async fn serve<S: Stream>(&self, mut stream: S, visitor: Visitor) -> io::Result<()> {
        let Shared { env, options, counters, .. } = &*self.shared;
        let _connected = counters.connected();
        let greeted = env.timeout(options.patience, HELLO.exchange(&mut stream)).await;
        greeted.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))?;
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: MAX_PAYLOAD, ..Limits::default() };
        let channel = Channel::new(env, Side::Accepting, limits, writer);
        let channel = match &options.tenure {
            Some(tenure) => channel.while_holding(tenure.clone()),
            None => channel,
        };
        let serving = Serving::new(env, channel.clone(), options.budget);
        let connection =
            Connection::new(self.shared.clone(), channel.clone(), Arc::new(serving), visitor);
        tokio::select! {
            biased;
            ended = channel.run(reader, &connection) => ended,
            // Its session has ended, or has another connection.
            () = channel.closed() => Ok(()),
        }
    }

    /// Whether a path from the root leads to a directory.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub async fn has_directory(&self, path: &str) -> Result<bool, FsError> {
        match self.shared.resolve(path).await {
            Ok(_) => Ok(true),
            Err(FsError::NotFound | FsError::NotDirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How many clients of the server before this one have not come back yet. Until they have, or their time is up, calls
    /// wait.
    pub fn expected(&self) -> usize {
        self.shared.recovery.missing()
    }

    /// Ends the sessions of a client; how many. Their calls fail from now on, and what they held is released.
    pub fn evict(&self, client: &str) -> usize {
        let sessions: Vec<_> = self.shared.sessions.lock().values().cloned().collect();
        let of_client = sessions.iter().filter(|session| session.visitor.name == client);
        of_client
            .map(|session| self.shared.end(session, Ending::Evicted("an administrator evicted it")))
            .count()
    }
}

impl Shared {
    /// The directories on a path, from the root on. No part of it is a symbolic link.
    async fn resolve(&self, path: &str) -> Result<Vec<Ino>, FsError> {
        let (mut ino, mut directories) = (Ino::ROOT, vec![Ino::ROOT]);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let found = self.filesystem.find(ino, name.as_bytes()).await?;
            if found.kind != Kind::Directory {
                return Err(FsError::NotDirectory);
            }
            ino = found.ino;
            directories.push(ino);
        }
        Ok(directories)
    }

    /// Ends a session, and releases what it holds.
    fn end(&self, session: &Arc<Session>, how: Ending) {
        let why = match how {
            Ending::Detached => "its client has left",
            Ending::Evicted(why) => why,
        };
        let (resources, heard) = {
            let mut state = session.state.lock();
            (state.end(why), state.heard)
        };
        let Some(resources) = resources else { return };
        counters::add(&self.counters.evictions, u64::from(matches!(how, Ending::Evicted(_))));
        let Visitor { name, path, .. } = &session.visitor;
        tracing::info!(client = name, path, why, "a session ended");
        let until = match how {
            Ending::Detached => self.env.now(),
            Ending::Evicted(_) => self.lease_end(heard),
        };
        let (leaves, left) = watch::channel(());
        let leaving = Leaving { client: name.clone(), left };
        self.leaving.lock().insert(session.serial, leaving);
        self.sessions.lock().remove(&session.id);
        session.moved.notify_waiters();
        self.forget_replays(session.serial);
        // Without a server, nothing waits for the client.
        let Some(shared) = self.me.upgrade() else { return };
        let serial = session.serial;
        let release = async move {
            if matches!(how, Ending::Evicted(_)) {
                shared.shut_out(&[serial]).await;
            }
            // Before anything is released, so that a client cannot reclaim what another one gets now.
            if let Some(session_table) = shared.filesystem.session_table()
                && let Err(error) = session_table.end_sessions(&[serial]).await
            {
                tracing::error!(%error, "the record of a client's session stays");
            }
            if let Some(session_table) = shared.filesystem.session_table() {
                session_table.release_room(serial);
            }
            for file in resources.files {
                shared.close(serial, file).await;
            }
            resources.inodes.into_iter().for_each(|ino| shared.filesystem.unreference(ino, 1));
            shared.return_numbers(resources.numbers).await;
            shared.env.sleep_until(until).await;
            shared.capabilities.drop_session(serial);
            shared.leaving.lock().remove(&serial);
            drop(leaves);
        };
        self.env.spawn(release).detach();
    }

    /// Ends the sessions of clients that are silent for too long.
    fn expire(&self) {
        let now = self.env.now();
        let is_lost =
            |session: &&Arc<Session>| now.since(session.state.lock().heard) > self.options.expire;
        let lost: Vec<_> = self.sessions.lock().values().filter(is_lost).cloned().collect();
        lost.iter().for_each(|session| {
            self.end(session, Ending::Evicted("its client was silent for too long"))
        });
    }

    /// The number of a new session, which is recorded if the filesystem keeps records.
    async fn record_session(&self, id: Uuid, visitor: &Visitor) -> Result<u64, FsError> {
        match self.filesystem.session_table() {
            Some(session_table) => {
                session_table.begin_session(info_of(id, visitor, self.options.lease)).await
            }
            None => Ok(self.next_serial()),
        }
    }

    /// What clients need that reach contents themselves.
    fn direct(&self) -> Option<&dyn DirectContents> {
        self.filesystem.session_table()?.direct()
    }

    /// Nothing of these sessions changes contents any more when this returns. Before that nothing that they had is another
    /// client's.
    async fn shut_out(&self, sessions: &[u64]) {
        let Some(direct) = self.direct() else { return };
        while let Err(error) = direct.shut_out(sessions).await {
            tracing::error!(%error, "a client cannot be shut out of the contents; it is tried again");
            self.env.sleep(self.options.lease / 4).await;
        }
    }

    /// Makes all changes durable, and tells the clients that have to know.
    async fn make_durable(&self) -> Result<(), FsError> {
        let synced = self.commit_on_share.sync(async || self.filesystem.sync_all().await).await?;
        if let Some(version) = synced {
            let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
            sessions.iter().for_each(|session| session.tell_durable(version));
        }
        Ok(())
    }

    /// Makes changes durable before long.
    async fn keep_durable(&self) {
        loop {
            self.env.sleep(self.options.commit).await;
            if self.commit_on_share.is_dirty()
                && let Err(error) = self.make_durable().await
            {
                tracing::error!(%error, "changes of clients could not be made durable");
            }
        }
    }

    fn next_serial(&self) -> u64 {
        // 0 is the machine with the filesystem.
        1 + self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// When a client that was last heard then cannot use what it caches any more. Clocks differ by less than an eighth.
    fn lease_end(&self, heard: Time) -> Time {
        heard + self.options.lease + self.options.lease / 8
    }
}
