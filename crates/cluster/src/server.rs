//! A filesystem, served to clients on other machines.
//!
//! The server keeps nothing about names or inodes: that is the [`Filesystem`]'s. A call passes through stages, of which each owns
//! its state and its lock (`stages`; `base` has what all of them know):
//!
//! - `connection`: the calls of a connection; `session`, `sessions`: a client's session, with the inodes that it knows, its open
//!   files, and the answers to its calls that are carried out once;
//! - `authorize`: what the users of a client may do that is not trusted with that;
//! - `recall`: a change invalidates first what other clients cache; `capabilities`: what each caches;
//! - `pipeline`, `ops`: the operations; `replay`: calls of the server before this one that come again;
//! - `commit_on_share`: changes that may not survive a crash yet, which other clients do not see before they do;
//! - `reply`: what is granted with an answer, and in which order answers are sent.
//!
//! Beside these: `grace_period`: the sessions of the server before this one go on; `moves`: what is moved out of the directory
//! that a client sees; `without`: the filesystem is used without a server; `room`: what clients are promised; `inode_limit`: clients that know too much are asked to forget some of
//! it; `report`, `counters`: what an administrator sees.
//!
//! A client that is silent for the time of its lease cannot use what it caches any more. If a change waits for its
//! answer, it is evicted then: its session ends, and what it held is released. Otherwise its session goes on for
//! [`Options::expire`].

mod authorize;
mod base;
mod capabilities;
mod commit_on_share;
mod conflict_files;
mod connection;
mod context;
mod counters;
mod foreign_use;
mod grace_period;
mod inode_limit;
mod journaled;
mod moves;
mod open_files;
mod ops;
mod options;
mod pipeline;
mod recall;
mod replay;
mod reply;
mod report;
mod room;
mod session;
mod session_record;
mod sessions;
mod stages;
mod use_notes;
mod without;

use std::io::{self, ErrorKind};
use std::sync::Arc;

use thalweg_env::connection::Stream;
use thalweg_env::{Env, Task};
use thalweg_fs::{Filesystem, FsError};
use thalweg_net::channel::{Channel, Limits, Side};

use crate::protocol::{HELLO, MAX_PAYLOAD};
use base::resolve;
use connection::Connection;
pub use counters::CallCounts;
pub use options::{KNOWN_BYTES, Options, Visitor};
pub use report::{
    HolderReport, InodeReport, InvalidationCounts, InvalidationReport, LockReport, ServerStatus,
    SessionStatus,
};
use stages::Stages;
pub use without::{SessionsWithoutServer, use_without_server};

/// Serves a filesystem. Clones are the same server; the sessions end with the last of them.
#[derive(Clone, Debug)]
pub struct Server {
    stages: Arc<Stages>,
    _tasks: Arc<Vec<Task<()>>>,
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
        let stages = Arc::new(Stages::new(env, filesystem, options));
        let (clock, pause) = (env.clone(), stages.options.lease / 4);
        let sessions = stages.sessions.clone();
        let mut tasks = vec![env.spawn(async move {
            loop {
                clock.sleep(pause).await;
                sessions.expire();
                sessions.request_release();
            }
        })];
        if let Some(until) = stages.grace_period.begin().await? {
            let grace_period = stages.grace_period.clone();
            tasks.push(env.spawn(async move { grace_period.run(until).await }));
        }
        let commit_on_share = stages.commit_on_share.clone();
        tasks.push(env.spawn(async move { commit_on_share.run().await }));
        Ok(Server { stages, _tasks: Arc::new(tasks) })
    }

    /// Serves a client over a stream until the connection ends. Its session goes on, so that the client may connect
    /// again.
    ///
    /// # Errors
    /// Errors of the connection, and a client that violates the protocol.
    pub async fn serve<S: Stream>(&self, mut stream: S, visitor: Visitor) -> io::Result<()> {
        let Stages { env, options, counters, .. } = &*self.stages;
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
        let connection = Connection::new(&self.stages, &channel, visitor);
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
        match resolve(&*self.stages.files, path).await {
            Ok(_) => Ok(true),
            Err(FsError::NotFound | FsError::NotDirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// How many clients of the server before this one have not come back yet. Until they have, or their time is up, calls
    /// wait.
    pub fn expected(&self) -> usize {
        self.stages.grace_period.missing()
    }

    /// Ends the sessions of a client; how many. Their calls fail from now on, and what they held is released.
    pub fn evict(&self, client: &str) -> usize {
        self.stages.sessions.evict(client)
    }

    /// Gives up the journals of a client that have lapsed; how many. Their changes are refused when the client comes back.
    pub fn forget_journals(&self, client: &str) -> usize {
        self.stages.sessions.forget_journals(client)
    }

    /// The server and its sessions.
    pub fn status(&self) -> ServerStatus {
        report::status_of(&self.stages)
    }

    /// The sessions, by the names of their clients.
    pub fn sessions(&self) -> Vec<SessionStatus> {
        report::sessions_of(&self.stages)
    }

    /// The holders of the inode of a path. The path is one from the filesystem's root; a symbolic link at its end is
    /// not followed.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::NotDirectory`] when something in the middle of the path is not a directory.
    pub async fn inode(&self, path: &str) -> Result<InodeReport, FsError> {
        report::report_of(&self.stages, path).await
    }
}
