//! The connections to the server, one after the other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::{Task, Time};
use thalweg_fs::{Change, FsError, Ino};
use thalweg_net::channel::{Channel, Limits, Side};
use uuid::Uuid;

use super::notices::Invalidator;
use super::{AttachError, LinkError, SessionInfo, Shared};
use crate::protocol::{
    Answer, Call, HELLO, MAX_FORGOTTEN, MAX_PAYLOAD, Reply, Request, encode_list,
};

/// Pauses between attempts grow up to so many times the first one.
const LONGEST_PAUSE: u32 = 4;
/// The maximum of inode numbers in a line of the log.
const INODES_LOGGED: usize = 16;
/// Renewals in the time of a lease, which is the time between two sweeps of the cache.
const RENEWALS: u32 = 4;

/// Time between two sweeps that the server asks for: so many in the time of a lease.
const SWEEPS: u32 = 16;

/// Inodes that are gone within this time are told together.
const GONE_PAUSE: Duration = Duration::from_millis(5);

/// The way to the server.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// There is a connection, and the server knows the session.
    Up(Channel),
    /// There is none.
    Down,
    /// There is none, since the server does not let the client in, for this reason.
    Refused(String),
    /// There will be none, since the session has ended ([`Recover::No`](super::Recover::No)).
    Ended,
    /// There will be none.
    Closed,
}

/// A connection with an attached session.
pub(super) struct Connection {
    channel: Channel,
    /// Receives answers and calls, until the connection ends.
    running: Task<io::Result<()>>,
    /// The server is another one than before, and expects this client to reclaim what it held.
    new_server: Option<Uuid>,
}

impl Shared {
    /// The number of an inode for callers: all filesystems have one for the root.
    pub(super) fn ours(&self, ino: Ino) -> Ino {
        match ino == self.session.lock().root {
            true => Ino::ROOT,
            false => ino,
        }
    }

    /// A call that was sent then was answered.
    pub(super) fn renew(&self, sent: Time) {
        let lease = self.session.lock().lease;
        self.cache.lock().renew(sent, lease);
    }

    /// Connects, and begins or resumes the session.
    pub(super) async fn attach(self: &Arc<Self>) -> Result<Connection, AttachError> {
        let mut stream = self.connector.connect().await.map_err(AttachError::Lost)?;
        HELLO.exchange(&mut stream).await.map_err(AttachError::Lost)?;
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: MAX_PAYLOAD, ..Limits::default() };
        let traffic = self.traffic.clone();
        let channel = Channel::counted(&self.env, Side::Connecting, limits, writer, traffic);
        let handler = Invalidator(self.clone(), channel.clone());
        let receiving = channel.clone();
        let running = self.env.spawn(async move { receiving.run(reader, &handler).await });
        let SessionInfo { id, begun, server: before, .. } = self.session.lock().clone();
        let request = Request::Attach { session: id, resumes: begun };
        let call = Call::outside(request);
        // The numbers of calls that are made from here on are sent behind this call.
        let pending = encode_list(&self.numbers.lock().resume());
        let sent = self.env.now();
        let lost = |error| AttachError::Lost(io::Error::other(error));
        let answer = channel.call::<_, Reply>(&call, &[pending]).await.map_err(lost)?.0.answer;
        match answer {
            Answer::Attached {
                root,
                lease,
                read_only,
                bytes,
                contents,
                squash,
                server,
                durable,
            } => {
                if !self.fits(squash) {
                    let why = "its users act as others now; unmount it, and mount it again";
                    let refused = io::Error::new(io::ErrorKind::PermissionDenied, why);
                    return Err(AttachError::Lost(refused));
                }
                let lease = Duration::from_millis(u64::from(lease));
                let is_new = begun && before != server;
                {
                    let mut cache = self.cache.lock();
                    cache.squash = squash;
                    cache.set_bytes(bytes, !contents.is_empty());
                    let mut session = self.session.lock();
                    let known = session.clone();
                    *session = SessionInfo {
                        begun: true,
                        root,
                        lease,
                        read_only,
                        contents,
                        squash,
                        server: if is_new { known.server } else { server },
                        ..known
                    };
                }
                if !is_new {
                    self.cache.lock().renew(sent, lease);
                    self.reclaim_state.replay_log.lock().durable(durable);
                }
                Ok(Connection { channel, running, new_server: is_new.then_some(server) })
            }
            Answer::Evicted => {
                self.forget_session();
                Err(AttachError::Lost(io::Error::other("the server has ended the session")))
            }
            Answer::Failed(error) => Err(AttachError::Refused(FsError::from(error))),
            _ => Err(AttachError::Lost(io::Error::other("its answer does not fit the call"))),
        }
    }

    /// The server has ended the session: another one begins with the next connection.
    pub(super) fn forget_session(&self) {
        {
            let mut session = self.session.lock();
            let generation = session.generation + 1;
            let id = self.env.uuid();
            (session.id, session.generation, session.begun) = (id, generation, false);
        }
        tracing::error!(
            "the server has ended the session of this client: open files are stale, and locks are lost"
        );
        let (inodes, unsent, mut changed) = {
            let mut cache = self.cache.lock();
            let mutations = cache.queue.clear();
            let (_, unsent) = cache.lose(&mutations, &LinkError::Lost.into());
            self.reclaim_state.lose(unsent);
            let changed: Vec<Ino> = mutations.iter().map(|mutation| mutation.kind.ino()).collect();
            (cache.clear(), unsent, changed)
        };
        let (answered, inodes_changed) = self.reclaim_state.clear();
        if answered > 0 {
            changed.extend(&inodes_changed);
            self.cache.lock().fail(inodes_changed);
        }
        if answered + unsent > 0 {
            changed.sort_unstable();
            changed.dedup();
            let numbers: Vec<u64> =
                changed.iter().take(INODES_LOGGED).map(|ino| self.ours(*ino).0).collect();
            tracing::error!(
                unsent,
                answered,
                inodes = changed.len(),
                first = ?numbers,
                "changes that were not synced may be lost: those that the server has not had, and those that it has answered"
            );
        }
        self.tell_watcher(inodes);
        self.end_unless_clean();
    }

    /// What the caller caches of these is wrong. Nothing waits for its cache: what it may still have of these was to be used
    /// until the lease ended.
    pub(super) fn tell_watcher(&self, inodes: Vec<Ino>) {
        if let Some(watcher) = &*self.watcher.read() {
            inodes.into_iter().for_each(|ino| drop(watcher(Change::content(self.ours(ino)))));
        }
    }

    /// Keeps a connection, until the client is closed.
    pub(super) async fn keep_connected(self: &Arc<Self>, first: Connection) {
        let mut next = Some(first);
        loop {
            let Connection { channel, running, .. } = match next.take() {
                Some(connection) => connection,
                None => match self.reconnect().await {
                    Some(connection) => connection,
                    None => return,
                },
            };
            if !self.set_link(Link::Up(channel.clone())) {
                return;
            }
            // A server that stands still does not end its side of the connection.
            let ended = tokio::select! {
                biased;
                ended = running => ended,
                () = channel.closed() => None,
            };
            channel.close("the connection to the server was lost");
            if !self.set_link(Link::Down) {
                return;
            }
            match ended {
                Some(Err(error)) => tracing::warn!(%error, "the connection to the server was lost"),
                Some(Ok(())) => tracing::warn!("the server has closed the connection"),
                None => tracing::warn!("the server did not answer in time"),
            }
        }
    }

    /// Sets the way to the server; whether there may be one.
    pub(super) fn set_link(&self, next: Link) -> bool {
        self.link.send_if_modified(|link| {
            let is_open = !matches!(link, Link::Closed | Link::Ended);
            if is_open {
                *link = next;
            }
            is_open
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(*self.link.borrow(), Link::Closed)
    }

    /// Another connection; `None` if there will be none.
    async fn reconnect(self: &Arc<Self>) -> Option<Connection> {
        let mut factor = 1;
        let mut has_warned = false;
        loop {
            let attached = self.env.timeout(self.options.patience, self.attach()).await;
            let attached = match attached {
                Some(Ok(connection)) => match connection.new_server {
                    None => Some(Ok(connection)),
                    Some(server) => {
                        let reclaimed = self.reclaim_all(&connection.channel).await;
                        // Before that it would have to reclaim again.
                        Some(reclaimed.map(|()| {
                            self.session.lock().server = server;
                            connection
                        }))
                    }
                },
                attached => attached,
            };
            let error = match attached {
                Some(Ok(connection)) => {
                    tracing::info!("the server is connected again");
                    return Some(connection);
                }
                Some(Err(error)) => error,
                None => AttachError::Lost(io::ErrorKind::TimedOut.into()),
            };
            let refusal = match &error {
                AttachError::Lost(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    Some(error.to_string())
                }
                _ => None,
            };
            if !self.set_link(refusal.map_or(Link::Down, Link::Refused)) {
                return None;
            }
            if !std::mem::replace(&mut has_warned, true) {
                tracing::warn!(%error, "connecting to the server failed; it is tried again");
            }
            self.env.sleep(self.options.pause * factor).await;
            factor = (2 * factor).min(LONGEST_PAUSE);
        }
    }

    /// Renews the lease, and forgets inodes that are not used.
    pub(super) async fn tend(self: &Arc<Self>) {
        let (mut renewals, mut sweeps) = (0, 0);
        loop {
            let lease = self.session.lock().lease.max(Duration::from_millis(1));
            let pause = if sweeps > 0 { lease / SWEEPS } else { lease / RENEWALS };
            tokio::select! {
                biased;
                () = self.gone.notified() => {
                    // Many are often removed one after the other.
                    self.env.sleep(GONE_PAUSE).await;
                    self.tell_gone();
                    continue;
                }
                // The first sweep may find nothing unused. Callers refer to what they use before the second one.
                () = self.pressed.notified() => sweeps = 2,
                () = self.env.sleep(pause) => {}
            }
            if self.is_closed() {
                return;
            }
            let Link::Up(channel) = self.link.borrow().clone() else { continue };
            renewals += 1;
            let generation = self.session.lock().generation;
            let is_pressed = sweeps > 0 && self.cache.lock().is_too_large();
            sweeps = if is_pressed { sweeps - 1 } else { 0 };
            let mut gone = self.cache.lock().take_told_gone();
            gone.extend(self.forget_unused(&channel, is_pressed || renewals % RENEWALS == 0));
            let (shared, sent) = (self.clone(), self.env.now());
            let call = Call::outside(Request::Renew);
            // A server that has answered nothing for a lease is not there: the connection is made again.
            let renewing =
                channel.call_then("Renew", &call, &[], move |_: Reply, _| shared.renew(sent));
            match self.env.timeout(lease.saturating_sub(pause), renewing).await {
                // The server has read what came before this call.
                Some(Ok(())) => continue,
                Some(Err(_)) => {}
                None => channel.close("the server did not answer in time"),
            }
            let mut cache = self.cache.lock();
            // With its session the server has forgotten all inodes.
            if self.session.lock().generation == generation {
                cache.put_back_gone(gone);
            }
        }
    }

    /// Tells the server of removed inodes that are not used any more.
    fn tell_gone(&self) {
        let Link::Up(channel) = self.link.borrow().clone() else { return };
        let gone = self.forget_unused(&channel, false);
        channel.flush_soon();
        self.cache.lock().told_gone(gone);
    }

    /// Tells the server of inodes that are not used any more; which these are.
    fn forget_unused(&self, channel: &Channel, sweeps: bool) -> Vec<(Ino, u64)> {
        // Under the lock, so that an answer that names one of them anew is looked at later.
        let mut cache = self.cache.lock();
        if sweeps {
            cache.sweep();
        }
        let gone = cache.take_gone();
        for some in gone.chunks(MAX_FORGOTTEN) {
            let call = Call::outside(Request::Forget);
            // If this connection breaks, they are told again on another one.
            let _ = channel.tell_for("Forget", &call, &[encode_list(some)]);
        }
        gone
    }

    /// Ends the session in order.
    pub(super) async fn detach(self: &Arc<Self>) {
        let sent = self.env.timeout(self.options.patience, self.send_mutations(true)).await;
        if !matches!(sent, Some(Ok(()))) {
            let changes = self.cache.lock().queue.len();
            tracing::error!(changes, "changes in directories of this client alone were not sent");
        }
        let Link::Up(channel) = self.link.send_replace(Link::Closed) else { return };
        let kept = self.reclaim_state.replay_log.lock().len();
        if kept > 0 {
            // After this call nothing would make these again.
            let call = Call::outside(Request::SyncAll);
            let patience = self.options.patience;
            let synced = channel.call_within::<_, Reply>(&self.env, patience, &call, &[]).await;
            if !matches!(&synced, Ok((reply, _)) if reply.answer == Answer::Done) {
                tracing::warn!(changes = kept, "changes may not be durable");
            }
        }
        let call = Call::outside(Request::Detach);
        let patience = self.options.patience;
        let _ = channel.call_within::<_, Reply>(&self.env, patience, &call, &[]).await;
        channel.close("the client is closed");
    }

    /// Ends the session, and does not wait for the server. If it does not hear that, it ends the session when it has not
    /// heard this client for long enough.
    pub(super) fn abandon(&self) {
        if let Link::Up(channel) = self.link.send_replace(Link::Closed) {
            let call = Call::outside(Request::Detach);
            if channel.tell_for("Detach", &call, &[]).is_ok() {
                channel.flush();
            }
            channel.close("the client is closed");
        }
    }
}
