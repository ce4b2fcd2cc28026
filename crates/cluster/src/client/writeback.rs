//! Write-back: sends what this client has made by itself, many mutations at a time and in their order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::{HashSet, Time};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{FsError, Ino};

use super::base::ClientBase;
use super::call_numbers::Slot;
use super::direct_io::DirectIo;
use super::error::LinkError;
use super::journaling::{Committed, Journaling};
use super::queue::Batch;
use super::room::{Charge, shares_of};
use super::rpc::{Outgoing, Rpc};
use super::user::User;
use crate::protocol::{Answer, JournalState, Needs, Reply, Request, decode_list};

/// The right to send the next batch.
pub(super) type SendGuard = tokio::sync::OwnedMutexGuard<()>;

/// Mutations of one batch, each with what it takes.
type Part<'a> = (&'a [Mutation], &'a [Charge]);

/// The time between two looks for mutations that have waited for long enough, at least.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Writeback {
    base: Arc<ClientBase>,
    rpc: Arc<Rpc>,
    direct_io: Arc<DirectIo>,
    journaling: Journaling,
    /// One batch at a time, so that they count in their order.
    sending: Arc<tokio::sync::Mutex<()>>,
    /// Why the server has refused a mutation of a journal that is written back: none behind it is sent.
    refused: OnceLock<FsError>,
    /// It is not to be sent any more.
    is_set_aside: AtomicBool,
    /// The client was away for so long that other clients may have used what its journal is about.
    has_lapsed: AtomicBool,
}

impl Writeback {
    pub(super) fn new(base: Arc<ClientBase>, rpc: Arc<Rpc>, direct_io: Arc<DirectIo>) -> Writeback {
        let journaling = Journaling::new(base.clone(), rpc.clone());
        let (sending, refused, is_set_aside, has_lapsed) = Default::default();
        Writeback { base, rpc, direct_io, journaling, sending, refused, is_set_aside, has_lapsed }
    }

    /// Keeps batches from being sent, until the guard is dropped.
    pub(super) async fn hold(&self) -> SendGuard {
        self.sending.clone().lock_owned().await
    }

    /// Applies backpressure: sends mutations when many wait, and waits for that when there are too many.
    pub(super) async fn throttle(self: &Arc<Self>) -> Result<(), FsError> {
        // The journal has more room than memory.
        if self.base.queue.is_over_memory() {
            self.journaling.commit().await?;
        }
        if self.base.queue.is_over_full() {
            return self.send(false).await;
        }
        self.begin_if_full();
        Ok(())
    }

    /// Begins to send mutations if many wait; whether their maker is to wait for that.
    pub(super) fn begin_if_full(self: &Arc<Self>) -> bool {
        if self.base.queue.is_full()
            && let Ok(turn) = self.sending.clone().try_lock_owned()
        {
            let writeback = self.clone();
            let sending = async move {
                if let Err(error) = writeback.send_full(turn).await {
                    tracing::error!(%error, "changes in a directory of this client alone are lost");
                }
            };
            self.base.env.spawn(sending).detach();
        }
        self.base.queue.is_over_full()
    }

    async fn send_full(self: &Arc<Self>, mut turn: SendGuard) -> Result<(), FsError> {
        while self.base.queue.is_full() {
            self.send_batch(turn, None).await?;
            turn = self.hold().await;
        }
        Ok(())
    }

    /// Sends the mutations that wait; with `all`, returns when the server has every mutation that was made before.
    pub(super) async fn send(self: &Arc<Self>, all: bool) -> Result<(), FsError> {
        let last = self.base.queue.last();
        loop {
            let turn = self.hold().await;
            let is_set_aside = self.is_set_aside.load(Ordering::Relaxed);
            let queue = &self.base.queue;
            let is_wanted = all || queue.is_full() || queue.is_over_memory();
            if is_set_aside || queue.has(last) || !is_wanted {
                return Ok(());
            }
            self.send_batch(turn, None).await?;
        }
    }

    /// The mutations of a journal that the server does not have are given up: other clients get what they are about without them.
    pub(super) fn set_aside(&self) {
        assert!(self.is_refused(), "a journal is set aside that can be written back");
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
            if self.send_batch(turn, Some(last)).await? {
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
        let is_own = ino.is_none_or(|ino| inodes.has_delegation(ino) || inodes.is_unsent(ino));
        // After the lease another client may have used the file.
        let is_committed = is_own && self.journaling.commit().await? == Committed::Everywhere;
        if is_committed && self.base.session.is_leased() {
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

    /// Whether the server has refused a mutation of a journal that is written back.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.get().is_some()
    }

    /// After a reboot the server has some of the mutations of the journal. The others keep the room that they have taken.
    pub(super) fn resume(&self, state: JournalState) {
        let JournalState { incarnation, applied, has_lapsed, .. } = state;
        self.has_lapsed.store(has_lapsed, Ordering::Relaxed);
        self.base.call_numbers.begin_behind(incarnation);
        self.base.queue.skip(applied);
        self.base.room.recover(&self.base.queue.charges());
        self.base.queue.reach(applied);
    }

    /// Whether other clients may have used what a journal is about that is written back.
    pub(super) fn has_lapsed(&self) -> bool {
        self.has_lapsed.load(Ordering::Relaxed)
    }

    /// Of a journal that is written back: the last position that the server has.
    pub(super) fn reached(&self) -> u64 {
        self.base.queue.reached()
    }

    /// Of a journal that is written back: why the server has refused a mutation, and the last position that it has.
    pub(super) fn refused(&self) -> Option<(FsError, u64)> {
        Some((self.refused.get()?.clone(), self.base.queue.reached()))
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
        Box::pin(self.send(true)).await
    }

    /// Sends mutations that have waited for long enough, again and again.
    pub(super) async fn run(self: &Arc<Self>) {
        let mut pause = self.base.options.writeback;
        if self.base.journal.live().is_some() {
            pause = pause.min(self.base.options.commit);
        }
        loop {
            self.base.env.sleep(pause.max(LEAST_PAUSE)).await;
            if self.base.links.is_closed() {
                return;
            }
            self.journaling.by_timer().await;
            let age = self.base.now().since(Time::default());
            let before = Time::default() + age.saturating_sub(self.base.options.expire);
            let is_late = self.base.queue.waits_since(before);
            if is_late && let Err(error) = self.send(true).await {
                tracing::error!(%error, "changes in a directory of this client alone are lost");
            }
        }
    }

    /// Sends one batch. With `sync`, it is durable when it has all mutations up to this one; whether it is. It goes on by itself
    /// when its caller has gone.
    async fn send_batch(
        self: &Arc<Self>,
        turn: SendGuard,
        sync: Option<u64>,
    ) -> Result<bool, FsError> {
        let writeback = self.clone();
        let sending = async move {
            let is_durable = writeback.send_next(sync).await?;
            if is_durable {
                writeback.base.queue.synced();
            }
            drop(turn);
            Ok(is_durable)
        };
        self.base.run_apart(sending).await
    }

    async fn send_next(&self, sync: Option<u64>) -> Result<bool, FsError> {
        if let Some(error) = self.refused.get() {
            return Err(error.clone());
        }
        self.rpc.limit_uncommitted().await?;
        self.journaling.before_send().await?;
        let mut batch = self.base.queue.take_batch();
        let syncs = sync.is_some_and(|last| batch.last >= last);
        if batch.mutations.is_empty() {
            return Ok(false);
        }
        if let Err(error) = self.journaling.load(&mut batch).await {
            self.lose((&batch.mutations, &batch.charges), batch.last, &error);
            return Err(error);
        }
        match self.store_bytes(&mut batch, syncs).await {
            Ok(true) => return Ok(syncs),
            Ok(false) => {}
            Err(error) => {
                self.lose((&batch.mutations, &batch.charges), batch.last, &error);
                return Err(error);
            }
        }
        let mut position = batch.last - batch.mutations.len() as u64;
        let bytes = batch.mutations.iter().map(|it| it.kind.data_len()).sum();
        let begun = self.base.now();
        let mut parts = vec![(batch.mutations, batch.charges)];
        let mut is_whole = true;
        while let Some((mut part, mut charges)) = parts.pop() {
            let releases = if is_whole { batch.releases.clone() } else { Vec::new() };
            let how = (syncs && parts.is_empty(), releases);
            let last = position + part.len() as u64;
            let Err(error) = self.send_part((&part, &charges), &batch.user, last, how).await else {
                position = last;
                continue;
            };
            is_whole = false;
            // The server is there, and refuses one of them: the others count. Or its volume does not take so much at once.
            if part.len() > 1 && error.may_divide() {
                let half = part.len() / 2;
                parts.push((part.split_off(half), charges.split_off(half)));
                parts.push((part, charges));
                continue;
            }
            if self.base.queue.is_recovered() {
                let error = self.refused.get_or_init(|| error).clone();
                return Err(error);
            }
            self.lose((&part, &charges), batch.last, &error);
            position = last;
            if !error.may_divide() {
                for (part, charges) in parts.iter().rev() {
                    self.lose((part, charges), batch.last, &error);
                }
                return Err(error);
            }
        }
        if is_whole {
            self.base.queue.sent(bytes, self.base.now().since(begun));
        } else {
            self.pass_refused(position).await?;
        }
        Ok(syncs && is_whole)
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
            let sending = self.send_call(part, &batch.user, None, (syncs, Vec::new()), |_, _| {});
            futures::future::join(storing.store(), sending).await
        } else {
            (storing.store().await, Err(FsError::Conflict))
        };
        match (stored, sent) {
            (Ok(()), Ok(())) => {
                self.base.complete(part, 0, &[]);
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

    /// Sends mutations of one user in one call.
    async fn send_part(
        &self,
        part: Part<'_>,
        user: &User,
        last: u64,
        how: (bool, Vec<u64>),
    ) -> Result<(), FsError> {
        assert!(!part.0.is_empty() && part.0.len() == part.1.len(), "each mutation has a charge");
        let (mutations, charges): (Arc<[Mutation]>, Arc<[Charge]>) = (part.0.into(), part.1.into());
        let made = mutations.iter().filter(|mutation| mutation.kind.made().is_some()).count();
        let is_complete = Arc::new(AtomicBool::new(false));
        let (completes, base) = (is_complete.clone(), self.base.clone());
        let receive = move |reply: &Reply, payload: &Bytes| {
            if reply.answer == Answer::Made
                && let Ok(inode_tokens) = decode_list::<u64>(payload, made)
                && inode_tokens.len() == made
            {
                base.complete((&mutations, &charges), reply.stamp, &inode_tokens);
                completes.store(true, Ordering::Relaxed);
            }
        };
        // What was lost before it has positions, too.
        let positions = self.positions(last)?;
        self.send_call(part, user, positions, how, receive).await?;
        self.base.queue.reach(last);
        if is_complete.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Without the inode tokens this client could not reclaim after a restart of the server what it has made.
        Err(LinkError::Unexpected.into())
    }

    /// The positions in the journal of a batch whose last mutation has this number.
    fn positions(&self, last: u64) -> Result<Option<(u64, u64)>, FsError> {
        let first = self.base.queue.reached() + 1;
        let journal = self.base.journal.live();
        let position = |number| journal.as_ref().map_or(number, |it| it.position(number));
        if position(last) == 0 {
            // It was made in a session that has ended.
            return Err(LinkError::Evicted.into());
        }
        Ok(self.base.session.has_journal().then_some((position(first), position(last))))
    }

    /// The server has refused mutations up to this one: its record of the session gets their positions, so that none is ever missing
    /// there but at a server that has lost something. The journal keeps them until then.
    async fn pass_refused(&self, last: u64) -> Result<(), FsError> {
        if !self.base.session.has_journal() || self.base.queue.reached() >= last {
            return Ok(());
        }
        let positions = self.positions(last)?;
        self.send_call((&[], &[]), &None, positions, (false, Vec::new()), |_, _| {}).await?;
        self.base.queue.reach(last);
        Ok(())
    }

    async fn send_call(
        &self,
        (part, charges): Part<'_>,
        user: &User,
        positions: Option<(u64, u64)>,
        (sync, releases): (bool, Vec<u64>),
        then: impl Fn(&Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(), FsError> {
        let named: HashSet<Ino> = part.iter().flat_map(|it| it.kind.inodes()).collect();
        let mut named: Vec<Ino> = named.into_iter().collect();
        named.sort_unstable();
        let now = self.base.now();
        for mutation in part {
            if let MutationKind::Write { ino, .. } = &mutation.kind {
                self.base.bounds.stored_by_server(*ino, now);
            }
        }
        let payload = postcard::to_allocvec(part).map_err(|_| LinkError::Unexpected)?;
        let charged = shares_of(charges);
        let request = Request::Batch { sync, charged, releases, positions };
        let mut call = Outgoing::with(request, vec![payload.into()], user.clone());
        (call.slot, call.named) = (Some(Slot::of_batch()), named.into());
        self.rpc.make(call, then, std::future::pending()).await.map(drop)
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
