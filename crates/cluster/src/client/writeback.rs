//! Write-back: sends what this client has made by itself, many mutations at a time and in their order.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::HashMap;
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{FsError, Ino};

use super::base::ClientBase;
use super::batch::{Batch, Part};
use super::direct_io::DirectIo;
use super::error::{AttachError, LinkError};
use super::journaling::{Committed, Journaling};
use super::options::SyncTo;
use super::rpc::Rpc;
use super::sender::{BatchSender, NotSent, Sending};
use super::user::User;
use crate::protocol::{BatchPositions, JournalState, Needs, Reply, Request};

/// The right to send the next batch.
pub(super) type SendGuard = tokio::sync::OwnedMutexGuard<()>;

pub(super) struct Writeback {
    pub(super) base: Arc<ClientBase>,
    rpc: Arc<Rpc>,
    direct_io: Arc<DirectIo>,
    pub(super) journaling: Journaling,
    pub(super) sender: BatchSender,
    /// One batch at a time, so that they count in their order.
    pub(super) sending: Arc<tokio::sync::Mutex<()>>,
    /// A commit has begun because the journal lacks much.
    pub(super) is_committing: AtomicBool,
    /// It is not to be sent any more.
    pub(super) is_set_aside: AtomicBool,
    /// The client was away for so long that other clients may have used what its journal is about.
    has_lapsed: AtomicBool,
}

impl Writeback {
    pub(super) fn new(base: Arc<ClientBase>, rpc: Arc<Rpc>, direct_io: Arc<DirectIo>) -> Writeback {
        let journaling = Journaling::new(base.clone(), rpc.clone());
        let sender = BatchSender::new(base.clone(), rpc.clone());
        let (sending, is_committing, is_set_aside, has_lapsed) = Default::default();
        Writeback {
            base,
            rpc,
            direct_io,
            journaling,
            sender,
            sending,
            is_committing,
            is_set_aside,
            has_lapsed,
        }
    }

    /// Keeps batches from being sent, until the guard is dropped.
    pub(super) async fn hold(&self) -> SendGuard {
        self.sending.clone().lock_owned().await
    }

    /// Returns when the server has every mutation that was made before.
    pub(super) async fn send_all(self: &Arc<Self>) -> Result<(), FsError> {
        self.send_batches(true, true).await
    }

    /// Sends the mutations that wait while there are too many; with `all`, as [`Writeback::send_all`]. Unless it is `urgent`, the link rests between
    /// batches, for the calls of programs.
    pub(super) async fn send_batches(
        self: &Arc<Self>,
        all: bool,
        urgent: bool,
    ) -> Result<(), FsError> {
        let last = self.base.queue.last();
        loop {
            let turn = self.hold().await;
            let is_set_aside = self.is_set_aside.load(Ordering::Relaxed);
            let queue = &self.base.queue;
            let is_wanted = all || queue.is_over_full();
            if is_set_aside || queue.has(last) || !is_wanted {
                return Ok(());
            }
            self.send_batch(turn, None, if urgent { last } else { 0 }).await?;
        }
    }

    /// The mutations of a journal that the server does not have are given up: other clients get what they are about without them.
    pub(super) fn set_aside(&self) {
        self.is_set_aside.store(true, Ordering::Relaxed);
    }

    /// Writes back queued mutations and makes them durable, sharing a batch with concurrent callers. Returns false if nothing was
    /// queued: the caller must then sync by a call.
    async fn sync_queued(self: &Arc<Self>) -> Result<bool, FsError> {
        // In this order: what waits is in no batch that was sent before, and is one of the mutations up to the last one.
        let waits = self.base.queue.has_waiting();
        let last = self.base.queue.last();
        loop {
            let turn = self.hold().await;
            if self.base.queue.has(last) {
                // A batch that was under way before may not cover a call that was answered meanwhile.
                return Ok(waits && self.base.queue.is_synced(last));
            }
            if self.send_batch(turn, Some(last), last).await? {
                return Ok(true);
            }
        }
    }

    /// Has changes be durable: those that this call names, with those that wait here.
    pub(super) async fn sync(self: &Arc<Self>, request: Request) -> Result<(), FsError> {
        if self.sync_queued().await? {
            return Ok(());
        }
        self.order(request).await
    }

    /// The same, in the journal, if there is one; changes of a file that is not this client's alone, at the server.
    pub(super) async fn sync_here(
        self: &Arc<Self>,
        ino: Option<Ino>,
        request: Request,
    ) -> Result<(), FsError> {
        let inodes = &self.base.inodes;
        let is_here = self.base.options.sync == SyncTo::Journal;
        let is_own =
            is_here && ino.is_none_or(|ino| inodes.has_delegation(ino) || inodes.is_unsent(ino));
        // Without the lease nothing is made that a later commit would have to cover.
        let (session, queue) = (&self.base.session, &self.base.queue);
        // A program that syncs what the server has refused hears of that.
        let is_refused = self.base.refusals.concern(ino);
        let was_committed = is_own
            && !is_refused
            && !session.is_leased()
            && self.base.journal.live().is_some()
            && !self.base.replay_log.has_calls()
            && queue.is_committed_leased(ino);
        if was_committed {
            return Ok(());
        }
        // After the lease another client may have used the file.
        let is_committed = is_own && self.journaling.commit().await? == Committed::Everywhere;
        if is_committed && !is_refused && self.base.session.is_leased() {
            return Ok(());
        }
        self.sync(request).await
    }

    /// Has the server make everything durable that was made so far, and releases it in the journal.
    pub(super) async fn drain(self: &Arc<Self>) -> Result<(), FsError> {
        self.sync(Request::SyncAll).await?;
        self.journaling.release_durable(true).await;
        Ok(())
    }

    /// Whether all mutations so far are in the journal and in its copies, by one commit.
    pub(super) async fn commit(&self) -> Result<Committed, FsError> {
        self.journaling.commit().await
    }

    /// After a reboot the server has some of the mutations of the journal. The others keep the room that they have taken.
    ///
    /// # Errors
    /// [`AttachError::Diverged`]: it has others.
    pub(super) fn resume(&self, state: JournalState) -> Result<(), AttachError> {
        let JournalState { incarnation, applied, returned: has_lapsed, .. } = state;
        self.has_lapsed.store(has_lapsed, Ordering::Relaxed);
        self.base.call_numbers.begin_behind(incarnation);
        let is_same = self.base.queue.skip(applied);
        self.base.room.recover(&self.base.queue.charges());
        self.base.queue.sent_ends.begin(applied);
        if is_same { Ok(()) } else { Err(AttachError::Diverged) }
    }

    /// Whether other clients may have used what a journal is about that is written back.
    pub(super) fn has_lapsed(&self) -> bool {
        self.has_lapsed.load(Ordering::Relaxed)
    }

    /// Of a journal that is written back: the last position that the server has.
    pub(super) fn reached(&self) -> u64 {
        self.base.queue.reached()
    }

    /// The same, with the hash.
    pub(super) fn reached_position(&self) -> JournalPosition {
        let (position, hash) = (self.base.queue.reached(), self.base.queue.reached_hash());
        JournalPosition { position, hash }
    }

    /// Of a journal that is written back: why the server has refused a mutation, and the last position that it has.
    pub(super) fn refused(&self) -> Option<(FsError, u64)> {
        Some((self.base.refusals.current()?, self.base.queue.reached()))
    }

    /// Makes a call of a program behind what it depends on of what this client has made.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: Request,
        payload: Vec<Bytes>,
        then: impl Fn(&Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(Reply, Bytes), FsError> {
        self.send_before(&request).await?;
        self.rpc.call(request, payload, then).await
    }

    /// The same, of a call that is answered with nothing but success.
    pub(super) async fn order(self: &Arc<Self>, request: Request) -> Result<(), FsError> {
        self.send_before(&request).await?;
        self.rpc.order(request).await
    }

    /// Sends what the server must have before a call: everything, if the call changes something; what this client has made of the
    /// inodes that it names.
    pub(super) async fn send_before(self: &Arc<Self>, request: &Request) -> Result<(), FsError> {
        let is_needed = {
            let print = request.footprint(0);
            match print.needs {
                Needs::Everything => true,
                Needs::Nothing => false,
                Needs::Freed => self.base.queue.is_to_free(),
                Needs::Made => print.inodes.iter().any(|ino| self.base.inodes.is_new(*ino)),
                Needs::Named => print.inodes.iter().any(|ino| self.base.inodes.is_unsent(*ino)),
            }
        };
        if is_needed { self.send_waiting().await } else { Ok(()) }
    }

    /// Sends everything that waits, before a change by a call begins.
    pub(super) async fn send_waiting(self: &Arc<Self>) -> Result<(), FsError> {
        if self.base.queue.len() == 0 {
            return Ok(());
        }
        Box::pin(self.send_batches(true, false)).await
    }

    /// Sends one batch. With `sync`, it is durable when it has all mutations up to this one; whether it is. It goes on by itself
    /// when its caller has gone. Mutations up to `until` are to be sent soon.
    pub(super) async fn send_batch(
        self: &Arc<Self>,
        turn: SendGuard,
        sync: Option<u64>,
        until: u64,
    ) -> Result<bool, FsError> {
        let writeback = self.clone();
        let sending = async move {
            let is_durable = writeback.send_next(sync, until).await?;
            if is_durable {
                writeback.base.queue.synced();
            }
            drop(turn);
            Ok(is_durable)
        };
        self.base.run_apart(sending).await
    }

    async fn send_next(&self, sync: Option<u64>, until: u64) -> Result<bool, FsError> {
        if let Some(error) = self.base.refusals.holds(self.base.now(), sync.is_some()) {
            return Err(error);
        }
        self.rpc.limit_uncommitted().await?;
        self.journaling.before_send().await?;
        let mut batch = self.base.queue.take_batch(&self.sender.limit());
        let syncs = sync.is_some_and(|last| batch.last >= last);
        if batch.mutations.is_empty() {
            return Ok(false);
        }
        match self.store_bytes(&mut batch, syncs).await {
            Ok(true) => return Ok(syncs),
            Ok(false) => {}
            Err(error) => {
                self.lose((&batch.mutations, &batch.charges), batch.last, &error);
                return Err(error);
            }
        }
        let before = batch.last - batch.mutations.len() as u64;
        let bytes = batch.bytes;
        let begun = self.base.now();
        let (mut parts, mut position, mut is_whole) = (Vec::new(), before, true);
        let mut sent_before = Duration::ZERO;
        parts.push(0..batch.mutations.len());
        while let Some(part) = parts.pop() {
            let releases = if is_whole { batch.releases.clone() } else { Vec::new() };
            let how = Sending { sync: syncs && parts.is_empty(), releases, until };
            let last = before + part.end as u64;
            let (error, is_readable) = match self.sender.send(&mut batch, &part, last, how).await {
                Ok(before) => {
                    (position, sent_before) = (last, sent_before + before);
                    self.taken();
                    continue;
                }
                Err(NotSent::Refused(error)) => (error, true),
                Err(NotSent::Unreadable(error)) => (error, false),
            };
            is_whole = false;
            // The server is there, and refuses one of them: the others count. Or its volume does not take so much at once.
            if part.len() > 1 && error.may_divide() {
                let half = part.start + part.len() / 2;
                parts.push(half..part.end);
                parts.push(part.start..half);
                continue;
            }
            if self.base.queue.is_recovered() {
                self.base.refusals.refuse_recovered(&error);
                return Err(self.base.refusals.current().unwrap_or(error));
            }
            if is_readable && self.keep(&mut batch, &part, &error) {
                return Err(error);
            }
            self.lose(batch.part(&part), batch.last, &error);
            position = last;
            if !error.may_divide() {
                for part in parts.iter().rev() {
                    self.lose(batch.part(part), batch.last, &error);
                }
                return Err(error);
            }
        }
        if is_whole {
            self.base.queue.sent(bytes, sent_before + self.base.now().since(begun));
        } else {
            let hash = batch.hash_up_to(position);
            self.sender.pass_refused(position, hash).await?;
        }
        Ok(syncs && is_whole)
    }

    /// A part of a batch was sent in vain: it waits again, with all behind it, if the journal has it; whether it does.
    fn keep(&self, batch: &mut Batch, part: &Range<usize>, error: &FsError) -> bool {
        let refused = batch.mutations[part.clone()].to_vec();
        if self.base.journal.live().is_none() || !self.base.queue.put_back(batch, part.start) {
            return false;
        }
        if self.base.refusals.refuse(&refused, error, self.base.now()) {
            let (changes, waiting) = (refused.len(), self.base.queue.len());
            tracing::error!(
                %error, changes, waiting,
                "the server does not take changes of this client: they stay in the journal with all behind them, and are sent again"
            );
        }
        true
    }

    /// The server has taken mutations.
    fn taken(&self) {
        if self.base.refusals.end() {
            tracing::info!("the server takes what it had refused");
        }
    }

    /// Stores the bytes of a batch, as far as this client does that itself: then its mutations are about stored bytes. If they only
    /// replace others, the rest is sent at the same time; whether the server has it.
    async fn store_bytes(&self, batch: &mut Batch, syncs: bool) -> Result<bool, FsError> {
        let direct_io = &self.direct_io;
        if direct_io.contents().is_none() {
            return Ok(false);
        }
        let mut mutations = batch.mutations.clone();
        let Some(storing) = direct_io.split_bytes(&mut mutations).await? else {
            return Ok(false);
        };
        let generation = storing.reached.generation;
        let part = (&*mutations, &*batch.charges);
        let (stored, sent) = if batch.only_replaces {
            let sending = self.sender.replace(part, &batch.user, syncs);
            futures::future::join(storing.store(), sending).await
        } else {
            (storing.store().await, Err(FsError::Conflict))
        };
        match (stored, sent) {
            (Ok(()), Ok(())) => {
                self.base.complete(part, 0, &HashMap::default());
                Ok(true)
            }
            (Ok(()), Err(_)) => {
                batch.mutations = mutations;
                Ok(false)
            }
            (Err(error), _) => {
                direct_io.leave(generation, &error).await?;
                Ok(false)
            }
        }
    }

    /// Sends mutations of a journal that is written back around others: those of the positions that are not among them are skipped.
    pub(super) async fn pass(
        &self,
        part: Part<'_>,
        user: &User,
        positions: BatchPositions,
    ) -> Result<(), FsError> {
        self.sender.pass(part, user, Some(positions)).await
    }

    /// A part of a batch does not count, whose last mutation has this number.
    fn lose(&self, (batch, charges): Part<'_>, last: u64, error: &FsError) {
        // It was under way when the session ended.
        if self.base.queue.is_kept(last) && self.base.journal.live().is_some() {
            self.base.room.discharge(charges, false);
            let (wrong, _) = self.base.lose(batch, None);
            self.base.drop_from_caller(wrong);
            return;
        }
        tracing::error!(
            %error,
            changes = batch.len(),
            "changes that this client has made in a directory of its own are lost"
        );
        let is_refused = !matches!(error, FsError::Store(_));
        // The connection may come back; the change does not.
        let lost = LinkError::Lost.into();
        let error = if is_refused { error } else { &lost };
        self.base.room.discharge(charges, is_refused);
        let (wrong, changes) = self.base.lose(batch, Some(error));
        self.base.losses.count(changes);
        self.base.drop_from_caller(wrong);
    }
}
