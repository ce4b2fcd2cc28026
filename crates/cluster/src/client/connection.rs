//! The connections to the server, one after the other, and the lease.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Task;
use thalweg_env::connection::Connector;
use thalweg_fs::mutation::Mutation;
use thalweg_fs::{FsError, Ino};
use thalweg_net::Traffic;
use thalweg_net::channel::{Channel, Limits, Side};
use uuid::Uuid;

use super::base::ClientBase;
use super::error::{AttachError, LinkError};
use super::inodes::LocalRules;
use super::journal_slot::Reopened;
use super::journaling::Committed;
use super::link::Link;
use super::open_files::OpenFiles;
use super::options::Recover;
use super::server_calls::ServerCalls;
use super::session::SessionInfo;
use super::size_records::SizeRecords;
use super::writeback::Writeback;
use crate::protocol::{
    Answer, Call, HELLO, JournalMount, MAX_FORGOTTEN, MAX_PAYLOAD, Reply, Request, encode_list,
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

/// A connection with an attached session.
pub(super) struct Connection {
    channel: Channel,
    /// Receives answers and calls, until the connection ends.
    running: Task<io::Result<()>>,
    /// The server is another one than before, and expects this client to reclaim what it held.
    new_server: Option<Uuid>,
}

/// Keeps the connection, and with it the session.
pub(super) struct Connections {
    pub(super) base: Arc<ClientBase>,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) traffic: Traffic,
    pub(super) writeback: Arc<Writeback>,
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) size_records: Arc<SizeRecords>,
}

impl Connections {
    /// Connects within the time for that, and begins or resumes the session.
    async fn attach(&self) -> Result<Connection, AttachError> {
        let late = || Err(AttachError::Lost(io::ErrorKind::TimedOut.into()));
        let attaching = self.base.env.timeout(self.base.options.patience, self.attach_now());
        attaching.await.unwrap_or_else(late)
    }

    async fn open_channel(&self) -> Result<(Channel, Task<io::Result<()>>), AttachError> {
        let mut stream = self.connector.connect().await.map_err(AttachError::Lost)?;
        HELLO.exchange(&mut stream).await.map_err(AttachError::Lost)?;
        let (reader, writer) = tokio::io::split(stream);
        let limits = Limits { payload: MAX_PAYLOAD, ..Limits::default() };
        let traffic = self.traffic.clone();
        let channel = Channel::counted(&self.base.env, Side::Connecting, limits, writer, traffic);
        let handler = ServerCalls {
            base: self.base.clone(),
            writeback: self.writeback.clone(),
            open_files: self.open_files.clone(),
            channel: channel.clone(),
        };
        let receiving = channel.clone();
        let running = self.base.env.spawn(async move { receiving.run(reader, &handler).await });
        Ok((channel, running))
    }

    async fn attach_now(&self) -> Result<Connection, AttachError> {
        let (channel, running) = self.open_channel().await?;
        let SessionInfo { id, begun, journal, server: before, .. } = self.base.session.info();
        let call = Call::outside(Request::Attach { session: id, resumes: begun, journal });
        // The numbers of calls that are made from here on are sent behind this call.
        let pending = encode_list(&self.base.call_numbers.resume());
        let sent = self.base.now();
        let answered = channel.call::<_, Reply>(&call, &[pending]).await;
        let (Reply { answer, .. }, _) = answered.map_err(AttachError::lost)?;
        let Answer::Attached {
            root,
            lease,
            read_only,
            bytes,
            contents,
            squash,
            server,
            server_number,
            durable,
            journal: state,
        } = answer
        else {
            return Err(match answer {
                Answer::Evicted | Answer::Lapsed => {
                    self.end_session(answer == Answer::Lapsed);
                    AttachError::Ended
                }
                Answer::Moved => {
                    self.base.links.set(Link::Moved);
                    AttachError::Moved
                }
                Answer::Failed(error) => AttachError::Refused(FsError::from(error)),
                _ => AttachError::lost("its answer does not fit the call"),
            });
        };
        if !self.base.session.fits(squash) {
            let why = "its users act as others now; unmount it, and mount it again";
            let refused = io::Error::new(io::ErrorKind::PermissionDenied, why);
            return Err(AttachError::Lost(refused));
        }
        // After a reboot no server is known, and what was held is reclaimed only if the server expects that.
        let has_rebooted = begun && before.is_nil();
        if begun {
            self.compare_positions(&channel, has_rebooted, state)?;
        }
        let is_new = begun && if has_rebooted { state.expected } else { before != server };
        self.base.inodes.set_rules(LocalRules { bytes, is_direct: !contents.is_empty(), squash });
        self.base.session.attach(root, |session| {
            session.begun = true;
            session.lease = Duration::from_millis(u64::from(lease));
            (session.read_only, session.contents) = (read_only, contents);
            session.squash = squash;
            session.server_number = server_number;
            session.has_returned = state.returned;
            session.journal = journal.map(|_| JournalMount::Incarnation(state.incarnation));
            // A new server counts once it has what was reclaimed.
            session.server = if is_new { session.server } else { server };
        });
        if !is_new {
            self.base.session.renew(sent);
            self.base.replay_log.set_durable(durable);
        }
        Ok(Connection { channel, running, new_server: is_new.then_some(server) })
    }

    /// The server has ended the session: another one begins with the next connection, unless there is to be none. When the journal has
    /// `lapsed`, that goes on.
    pub(super) fn end_session(&self, lapsed: bool) {
        self.base.session.end();
        let had_journal = self.base.journal.end();
        if had_journal {
            self.base.queue.interrupt_journal();
        }
        // A journal that is written back keeps what it has, and no program has used its session.
        let is_recovered = self.base.queue.is_recovered();
        if is_recovered {
            tracing::warn!("the server has ended the session of the journal");
        } else {
            tracing::error!(
                "the server has ended the session of this client: open files are stale, and locks are lost"
            );
        }
        // No other client has changed them so far.
        let mut own = self.open_files.opened();
        own.retain(|ino| self.base.inodes.has_delegation(*ino));
        // Nothing is delegated from here on, so no mutation is made any more.
        let inodes = self.base.cache.end_session();
        let (kept, mutations) = self.base.queue.end_session();
        self.base.end_session();
        self.size_records.end_session();
        let goes_on = had_journal && self.keep_for_journal(&kept, lapsed) && lapsed;
        let (_, unsent) = self.base.lose(&mutations, Some(&LinkError::Lost.into()));
        let is_lost = |ino: Ino| mutations.iter().any(|it| it.kind.inodes().any(|it| it == ino));
        self.open_files.end_session(|ino| goes_on && own.contains(&ino) && !is_lost(ino));
        let (answered, inodes_changed) = self.base.replay_log.clear();
        let mut changed: Vec<Ino> = mutations.iter().map(|mutation| mutation.kind.ino()).collect();
        changed.extend(&inodes_changed);
        self.base.losses.add_all(unsent + answered, inodes_changed);
        if answered + unsent > 0 && !is_recovered {
            changed.sort_unstable();
            changed.dedup();
            let ours = |ino: &Ino| self.base.session.ours(*ino).0;
            let first: Vec<u64> = changed.iter().take(INODES_LOGGED).map(ours).collect();
            tracing::error!(
                unsent,
                answered,
                inodes = changed.len(),
                ?first,
                "changes that were not synced may be lost: those that the server has not had, and those that it has answered"
            );
        }
        self.base.drop_from_caller(inodes);
        if self.base.options.recover == Recover::No && self.base.links.set(Link::Ended) {
            tracing::error!(
                "all calls fail until it is mounted again: recover=no lets this client begin no other session"
            );
        }
    }

    /// The mount has moved to another machine, and the session with it: nothing of it is this client's any more.
    pub(super) fn end_moved(&self) {
        if let Some(channel) = self.base.links.channel() {
            channel.close("the mount has moved");
        }
        self.base.links.set(Link::Moved);
        self.base.journal.end();
        self.base.queue.interrupt_journal();
        let inodes = self.base.cache.end_session();
        let (kept, others) = self.base.queue.end_session();
        for mutations in [kept, others] {
            self.base.lose(&mutations, None);
        }
        self.base.end_session();
        self.open_files.end_session(|_| false);
        drop(self.base.replay_log.clear());
        self.base.drop_from_caller(inodes);
    }

    /// The journal has mutations of the session that has ended. They are written back from there before the next session, or stay; whether
    /// that is to come.
    fn keep_for_journal(&self, kept: &[Mutation], lapsed: bool) -> bool {
        let (changed, _) = self.base.lose(kept, None);
        self.base.drop_from_caller(changed.clone());
        tracing::warn!(
            changes = kept.len(),
            "the journal keeps what the server does not have, and takes no more"
        );
        let goes_on = self.base.options.recover != Recover::No
            && self.base.journal.interrupt(lapsed, changed.clone());
        if !goes_on {
            self.base.losses.add_all(kept.len(), changed);
        }
        goes_on
    }

    /// Opens a journal again whose session the server has ended: what no other client has used is written back, and the rest set aside.
    ///
    /// # Errors
    /// The server is away, which is tried again. Any other failure leaves the client without a journal.
    async fn reopen_journal(&self) -> Result<(), AttachError> {
        let Some((reopen, kept)) = self.base.journal.to_reopen() else { return Ok(()) };
        if let Some(before) = self.base.journal.last() {
            before.end().await;
        }
        match reopen(kept, self.open_files.suspended()).await {
            Ok(Reopened { mut journal, unused, .. }) => {
                self.open_files.found(unused);
                self.base.session.keep_journal(journal.session, JournalMount::Incarnation(1));
                let before = self.base.queue.begin_journal(journal.room().size);
                journal.begin_behind(before);
                self.base.journal.begin(&self.base.env, journal);
                tracing::warn!("the journal goes on in another session");
            }
            Err(AttachError::Lost(why)) if why.kind() != io::ErrorKind::PermissionDenied => {
                return Err(AttachError::Lost(why));
            }
            Err(error) => {
                let changed = self.base.journal.give_up();
                self.base.losses.add_all(changed.len(), changed);
                tracing::error!(%error, "the client goes on without its journal, which keeps what it has for the next mount");
            }
        }
        Ok(())
    }

    async fn attach_again(&self) -> Result<Connection, AttachError> {
        self.reopen_journal().await?;
        let connection = self.attach_and_reclaim().await?;
        // Before a program uses one of them.
        self.reopen_files(&connection.channel).await;
        Ok(connection)
    }

    /// Keeps a connection, until the client is closed.
    pub(super) async fn run(&self, first: Connection) {
        let mut next = Some(first);
        while let Some(Connection { channel, running, .. }) = next {
            if !self.base.links.set(Link::Up(channel.clone())) {
                return;
            }
            // A server that stands still does not end its side of the connection.
            let ended = tokio::select! {
                biased;
                ended = running => ended,
                () = channel.closed() => None,
            };
            channel.close("the connection to the server was lost");
            if !self.base.links.set(Link::Down) {
                return;
            }
            match ended {
                Some(Err(error)) => tracing::warn!(%error, "the connection to the server was lost"),
                Some(Ok(())) => tracing::warn!("the server has closed the connection"),
                None => tracing::warn!("the server did not answer in time"),
            }
            next = self.reconnect().await;
        }
    }

    /// Another connection; `None` if there will be none.
    async fn reconnect(&self) -> Option<Connection> {
        let mut factor = 1;
        let mut has_warned = false;
        loop {
            let error = match self.attach_again().await {
                Ok(connection) => {
                    tracing::info!("the server is connected again");
                    return Some(connection);
                }
                Err(error) => error,
            };
            let link = match &error {
                AttachError::Lost(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                    Link::Refused(why.to_string())
                }
                _ => Link::Down,
            };
            if !self.base.links.set(link) {
                return None;
            }
            if !std::mem::replace(&mut has_warned, true) {
                tracing::warn!(%error, "connecting to the server failed; it is tried again");
            }
            self.base.env.sleep(self.base.options.pause * factor).await;
            factor = (2 * factor).min(LONGEST_PAUSE);
        }
    }

    pub(super) async fn attach_and_reclaim(&self) -> Result<Connection, AttachError> {
        let connection = self.attach().await?;
        let Some(server) = connection.new_server else { return Ok(connection) };
        let Some(sent) = self.reclaim(&connection.channel).await? else {
            self.end_session(false);
            return Err(AttachError::lost("the server refuses the session"));
        };
        self.base.session.renew(sent);
        // Before that it would have to reclaim again.
        self.base.session.reclaimed(server);
        Ok(connection)
    }

    /// Renews the lease, and forgets inodes that are not used.
    pub(super) async fn renew_leases(&self) {
        let (mut renewals, mut sweeps) = (0, 0);
        let ClientBase { links, session, cache, .. } = &*self.base;
        loop {
            let lease = session.lease().max(Duration::from_millis(1));
            let pause = if sweeps > 0 { lease / SWEEPS } else { lease / RENEWALS };
            tokio::select! {
                biased;
                () = cache.gone.notified() => {
                    // Many are often removed one after the other.
                    self.base.env.sleep(GONE_PAUSE).await;
                    if let Some(channel) = links.channel() {
                        self.tell_forgotten(&channel);
                        channel.flush_soon();
                    }
                    continue;
                }
                // The first sweep may find nothing unused. Callers refer to what they use before the second one.
                () = cache.pressed.notified() => sweeps = 2,
                () = self.base.env.sleep(pause) => {}
            }
            if links.is_closed() {
                return;
            }
            let Some(channel) = links.channel() else { continue };
            renewals += 1;
            let is_pressed = sweeps > 0 && cache.is_too_large();
            sweeps = if is_pressed { sweeps - 1 } else { 0 };
            if is_pressed || renewals % RENEWALS == 0 {
                cache.sweep();
            }
            self.tell_forgotten(&channel);
            let (renewed, sent) = (session.clone(), self.base.now());
            let call = Call::outside(Request::Renew);
            // A server that has answered nothing for a lease is not there: the connection is made again.
            let renewing =
                channel.call_then("Renew", &call, &[], move |_: Reply, _| renewed.renew(sent));
            let renewed = self.base.env.timeout(lease.saturating_sub(pause), renewing).await;
            if renewed.is_none() {
                channel.close("the server did not answer in time");
            }
            // Once it has answered, the server has read what came before this call.
            cache.told(matches!(renewed, Some(Ok(()))));
        }
    }

    fn tell_forgotten(&self, channel: &Channel) {
        // An answer that names one of them anew has a later stamp, which the server compares.
        for some in self.base.cache.tell().chunks(MAX_FORGOTTEN) {
            let call = Call::outside(Request::Forget);
            // If this connection breaks, they are told again on another one.
            let _ = channel.tell_for("Forget", &call, &[encode_list(some)]);
        }
    }

    /// Leaves what the server does not have in the journal, and the session for the next mount of that.
    pub(super) async fn leave(&self) -> Result<(), FsError> {
        // No change is made without the server from here on: it would be in no record.
        self.base.session.end_lease();
        self.base.inodes.barrier();
        let committing = self.base.env.timeout(self.base.options.patience, self.writeback.commit());
        match committing.await {
            // No sync relies on a copy that lacks some of it.
            Some(Ok(Committed::Everywhere | Committed::Here)) => {}
            Some(Ok(Committed::Nowhere)) => {
                return Err(FsError::Invalid("there is no journal with room for the rest"));
            }
            Some(Err(error)) => return Err(error),
            // Calls were answered that are in no journal, and the server is away.
            None => {
                let why = "it has answered calls that are in no journal";
                return Err(LinkError::Unreachable(why.to_owned()).into());
            }
        }
        if let Some(channel) = self.base.links.close() {
            channel.close("the client leaves the rest in its journal");
        }
        Ok(())
    }

    /// Sends everything, for as long as the server takes it; whether it has all.
    async fn send_rest(&self) -> bool {
        loop {
            let before = self.base.queue.done();
            let sending = self.writeback.send_all();
            match self.base.env.timeout(self.base.options.patience, sending).await {
                Some(sent) => return sent.is_ok(),
                None if self.base.queue.done() > before => {
                    let changes = self.base.queue.len();
                    tracing::warn!(changes, "still sending changes to the server");
                }
                None => return false,
            }
        }
    }

    /// Ends the session in order.
    pub(super) async fn close(&self) {
        if matches!(self.base.links.current(), Link::Moved) {
            return;
        }
        if !self.send_rest().await {
            let changes = self.base.queue.len();
            tracing::error!(changes, "changes in directories of this client alone were not sent");
        }
        let Some(channel) = self.base.links.close() else { return };
        let kept = self.base.replay_log.len();
        // After this call nothing would make these again.
        let is_durable =
            kept == 0 || self.last_call(&channel, Request::SyncAll).await == Some(Answer::Done);
        if !is_durable {
            tracing::warn!(changes = kept, "changes may not be durable");
        }
        if let Some(journal) = self.base.journal.live() {
            // What is not at the server is for the next mount. The journal is empty before the server forgets its position.
            let is_empty = is_durable && self.base.queue.len() == 0;
            let cleared = if is_empty {
                journal.clear().await.map_err(|it| it.to_string())
            } else {
                Err("some changes were not sent".into())
            };
            if let Err(error) = cleared {
                tracing::error!(error, "the journal is kept for the next mount");
                return channel.close("the client is closed");
            }
        }
        self.last_call(&channel, Request::Detach).await;
        channel.close("the client is closed");
    }

    async fn last_call(&self, channel: &Channel, request: Request) -> Option<Answer> {
        let call = Call::outside(request);
        let answered = channel
            .call_within::<_, Reply>(&self.base.env, self.base.options.patience, &call, &[])
            .await;
        answered.ok().map(|(reply, _)| reply.answer)
    }

    /// Ends the session, and does not wait for the server. If it does not hear that, it ends the session when it has not
    /// heard this client for long enough.
    pub(super) fn abandon(&self) {
        if let Some(channel) = self.base.links.close() {
            let call = Call::outside(Request::Detach);
            // The next mount goes on with the session of a journal.
            let has_journal = self.base.session.has_journal();
            if !has_journal && channel.tell_for("Detach", &call, &[]).is_ok() {
                channel.flush();
            }
            channel.close("the client is closed");
        }
    }
}
