//! The second copies of a client's journal, at keepers: what an `fsync` covers is there before it returns.
//!
//! A record goes to the journal and to all keepers at the same time, by one call each, and the call says what the server has made durable. A keeper
//! that does not answer has no copy until it has got what it lacks, from the journal. Meanwhile nothing is acknowledged that
//! the server has not made durable.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use parking_lot::Mutex;
use serde::Serialize;
use thalweg_env::connection::Connector;
use thalweg_env::{Env, Task};
use thalweg_fs::session_table::JournalPosition;
use thalweg_net::Traffic;
use thalweg_net::channel::{CallError, Channel, Limits, NoCalls, Side};
use thalweg_store::journal::JournalError;
use thalweg_store::journal::log::LogRecord;
use uuid::Uuid;

use crate::protocol::keep::{HELLO, KeepAnswer, KeepCall, KeepRefusal};

/// A keeper that has not answered for so long has no copy.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest time between two calls to a keeper.
const BEAT: Duration = Duration::from_secs(2);
/// The pause before a keeper is tried again.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// A keeper of a client's journal.
#[derive(Clone, Debug)]
pub struct KeeperTarget {
    /// Its name, for people.
    pub name: String,
    /// Makes connections to it.
    pub connector: Arc<dyn Connector>,
    /// Records are on its drive before it answers, not in its memory alone.
    pub is_durable: bool,
}

/// Whether a keeper has a copy of everything that was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyState {
    /// It has.
    Current,
    /// It does not answer, or gets what it lacks.
    Away,
    /// It lets this client go on no more.
    Refused,
}

/// A copy of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// The keeper.
    pub keeper: String,
    /// Whether it has the copy on its drive, not in its memory alone.
    pub is_durable: bool,
    /// Whether it has all.
    pub state: CopyState,
    /// Why it has not.
    pub why: Option<String>,
}

/// Why a keeper has no copy.
#[derive(Debug, thiserror::Error)]
pub(super) enum CopyError {
    #[error("it does not let this client in: {0}")]
    NotPermitted(io::Error),
    #[error("the connection failed: {0}")]
    Lost(#[from] io::Error),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Refused(KeepRefusal),
    #[error("its answer does not fit the call")]
    Unexpected,
    #[error("the journal cannot be read: {0}")]
    Journal(#[from] JournalError),
    #[error("the journal has ended")]
    Ended,
}

impl CopyError {
    /// Whether it is of no use to try again.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, CopyError::Refused(KeepRefusal::TakenOver | KeepRefusal::Diverged))
    }
}

enum Link {
    Up(Attached),
    Away(String),
    Refused(String),
}

/// The copy at one keeper.
pub(super) struct KeeperLink {
    env: Env,
    target: KeeperTarget,
    link: Mutex<Link>,
    /// The position behind what the copy has.
    next: AtomicU64,
    /// The link has gone down.
    down: tokio::sync::Notify,
}

/// A connection to a keeper that has attached a copy.
pub(super) struct Attached {
    pub(super) channel: Channel,
    /// Receives answers.
    _running: Task<io::Result<()>>,
    /// The last position that the copy has.
    pub(super) end: JournalPosition,
}

impl KeeperLink {
    fn new(env: &Env, target: KeeperTarget) -> KeeperLink {
        let link = Mutex::new(Link::Away("it was not connected yet".to_owned()));
        let (next, down) = Default::default();
        KeeperLink { env: env.clone(), target, link, next, down }
    }

    pub(super) fn name(&self) -> &str {
        &self.target.name
    }

    /// Connects, and attaches the copy of a journal of so many bytes. A new one begins `after` a position.
    pub(super) async fn attach(
        &self,
        copies: &Copies,
        size: u64,
        after: JournalPosition,
    ) -> Result<Attached, CopyError> {
        let attaching = async {
            let mut stream =
                self.target.connector.connect().await.map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => CopyError::NotPermitted(error),
                    _ => CopyError::Lost(error),
                })?;
            HELLO.exchange(&mut stream).await?;
            let (reader, writer) = tokio::io::split(stream);
            let (env, traffic) = (&self.env, copies.traffic.clone());
            let channel =
                Channel::counted(env, Side::Connecting, Limits::default(), writer, traffic);
            let receiving = channel.clone();
            let _running = env.spawn(async move { receiving.run(reader, &NoCalls).await });
            let (session, before) = (copies.session, copies.before);
            let is_durable = self.target.is_durable;
            let call = KeepCall::Attach { session, before, size, is_durable, after };
            match channel.call(&call, &[]).await?.0 {
                KeepAnswer::Attached { end } => Ok(Attached { channel, _running, end }),
                KeepAnswer::Refused(refusal) => Err(CopyError::Refused(refusal)),
                KeepAnswer::Done => Err(CopyError::Unexpected),
            }
        };
        let late = || Err(CopyError::Lost(io::ErrorKind::TimedOut.into()));
        self.env.timeout(PATIENCE, attaching).await.unwrap_or_else(late)
    }

    /// The copy has everything before its next position, and gets each record from now on.
    pub(super) fn set_up(&self, attached: Attached) {
        self.next.store(attached.end.position + 1, Ordering::Release);
        *self.link.lock() = Link::Up(attached);
    }

    /// There is no copy any more.
    pub(super) fn set_down(&self, error: &CopyError) {
        let why = error.to_string();
        let next = if error.is_final() { Link::Refused(why) } else { Link::Away(why) };
        let before = std::mem::replace(&mut *self.link.lock(), next);
        if let Link::Up(Attached { channel, .. }) = before {
            channel.close("the keeper has no copy any more");
            tracing::error!(keeper = self.name(), %error, "a keeper has no copy of the journal: until it has, a sync waits for the server");
        }
        self.down.notify_one();
    }

    fn channel(&self) -> Option<Channel> {
        match &*self.link.lock() {
            Link::Up(attached) => Some(attached.channel.clone()),
            Link::Away(_) | Link::Refused(_) => None,
        }
    }

    fn has(&self, last: u64) -> bool {
        self.next.load(Ordering::Acquire) > last
    }

    /// Sends a record to a copy that has everything before it.
    async fn append(&self, call: &KeepCall, body: &Bytes, last: u64) {
        let Some(channel) = self.channel() else { return };
        match call_of(&self.env, &channel, call, body).await {
            Ok(()) => self.next.store(last + 1, Ordering::Release),
            Err(error) => self.set_down(&error),
        }
    }

    /// Tells a copy that is current what the server has made durable, now and then, until there is none.
    pub(super) async fn beat(&self, copies: &Copies) {
        while let Some(channel) = self.channel() {
            tokio::select! {
                biased;
                () = self.down.notified() => continue,
                () = channel.closed() => {
                    self.set_down(&CopyError::Lost(io::ErrorKind::ConnectionReset.into()));
                    return;
                }
                () = self.env.sleep(BEAT) => {}
            }
            let call = KeepCall::Release(copies.released());
            if let Err(error) = call_of(&self.env, &channel, &call, &Bytes::new()).await {
                self.set_down(&error);
            }
        }
    }

    fn report(&self) -> CopyReport {
        let (state, why) = match &*self.link.lock() {
            Link::Up(_) => (CopyState::Current, None),
            Link::Away(why) => (CopyState::Away, Some(why.clone())),
            Link::Refused(why) => (CopyState::Refused, Some(why.clone())),
        };
        let KeeperTarget { name, is_durable, .. } = &self.target;
        CopyReport { keeper: name.clone(), is_durable: *is_durable, state, why }
    }
}

/// Makes a call that is answered with nothing but success.
async fn call_of(
    env: &Env,
    channel: &Channel,
    call: &KeepCall,
    body: &Bytes,
) -> Result<(), CopyError> {
    let body = std::slice::from_ref(body);
    match channel.call_within(env, PATIENCE, call, body).await?.0 {
        KeepAnswer::Done => Ok(()),
        KeepAnswer::Refused(refusal) => Err(CopyError::Refused(refusal)),
        KeepAnswer::Attached { .. } => Err(CopyError::Unexpected),
    }
}

/// All copies of a journal.
pub(super) struct Copies {
    env: Env,
    session: Uuid,
    /// The session before, of which the server has everything.
    pub(super) before: Option<Uuid>,
    pub(super) links: Vec<KeeperLink>,
    /// The server has made everything up to here durable.
    released: AtomicU64,
    /// The journal has ended in order.
    has_ended: AtomicBool,
    pub(super) traffic: Traffic,
}

impl Copies {
    pub(super) fn new(
        env: &Env,
        session: Uuid,
        before: Option<Uuid>,
        targets: Vec<KeeperTarget>,
    ) -> Copies {
        let links = targets.into_iter().map(|target| KeeperLink::new(env, target)).collect();
        let (released, has_ended, traffic) = Default::default();
        Copies { env: env.clone(), session, before, links, released, has_ended, traffic }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Whether all copies have everything up to this position.
    pub(super) fn have(&self, last: u64) -> bool {
        self.links.iter().all(|link| link.has(last))
    }

    /// The server has made everything up to this position durable.
    pub(super) fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    pub(super) fn release(&self, position: u64) {
        self.released.fetch_max(position, Ordering::AcqRel);
    }

    /// Sends a record to all copies that are current, and returns when they have it.
    pub(super) async fn append(&self, record: &LogRecord) {
        if self.is_empty() {
            return;
        }
        let (call, body) = self.call_with(record.stamp, &record.header, &record.body, false);
        join_all(self.links.iter().map(|link| link.append(&call, &body, record.stamp))).await;
    }

    fn call_with(
        &self,
        stamp: u64,
        header: &[u8],
        body: &[Bytes],
        anew: bool,
    ) -> (KeepCall, Bytes) {
        let body = match body {
            [one] => one.clone(),
            parts => parts.concat().into(),
        };
        let header = Bytes::copy_from_slice(header);
        (KeepCall::Append { stamp, header, released: self.released(), anew }, body)
    }

    /// Sends a record of the journal to a copy that lacks it, or begins that anew.
    pub(super) async fn send(
        &self,
        channel: &Channel,
        (stamp, header, body): (u64, &[u8], Bytes),
        anew: bool,
    ) -> Result<(), CopyError> {
        let (call, body) = self.call_with(stamp, header, &[body], anew);
        call_of(&self.env, channel, &call, &body).await
    }

    /// Whether the journal has ended in order, so that no copy is attached any more.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// The journal has ended in order: the copies go.
    pub(super) async fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        join_all(self.links.iter().map(|link| self.end_copy(link, link.channel()))).await;
    }

    /// Has a keeper remove its copy.
    pub(super) async fn end_copy(&self, link: &KeeperLink, channel: Option<Channel>) {
        let ended = match channel {
            Some(channel) => {
                let ended = call_of(&self.env, &channel, &KeepCall::End, &Bytes::new()).await;
                channel.close("the client is closed");
                ended
            }
            None => Err(CopyError::Lost(io::ErrorKind::NotConnected.into())),
        };
        if let Err(error) = ended {
            tracing::warn!(keeper = link.name(), %error, "a copy of the journal stays at a keeper; nothing of it is needed");
        }
    }

    pub(super) fn reports(&self) -> Vec<CopyReport> {
        self.links.iter().map(KeeperLink::report).collect()
    }
}

/// The pause after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.min(8)).min(LONGEST_PAUSE)
}
