//! Sends what this client has made by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::{HashSet, Time};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{
    Answer as FileAnswer, AttributeChange, Attributes, FsError, Ino, NewNode, Timestamp, Validity,
    WriteAt, WriteHow,
};
use tokio::sync::oneshot;

use super::cache::Cache;
use super::delegation::MAX_WRITE;
use super::queue::{Batch, Charge, Reservation, shares_of};
use super::reclaim_state::Slot;
use super::users::User;
use super::{LinkError, Shared};
use crate::protocol::{Answer, Needs, Reply, Request, decode_list};

/// The sender of the next batch.
type SendGuard = tokio::sync::OwnedMutexGuard<()>;

/// What has become of a batch.
enum Stored {
    /// Its bytes are to be sent with it.
    Not,
    /// Its bytes are stored; these mutations are left.
    Bytes(Vec<Mutation>),
    /// Its bytes are stored, and the server has the rest.
    Sent,
}

/// Bytes of a write at most that are copied under the lock of the cache.
const SMALL_WRITE: usize = 16 << 10;
/// A directory that was refused is not asked for again within this part of a lease.
const REFUSED: u32 = 10;
/// The time between two looks for mutations that have waited for long enough, at least.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

impl Shared {
    fn clocks(&self) -> (Time, Timestamp) {
        (self.env.now(), Timestamp::of_nanos(self.env.wall_nanos()))
    }

    fn delegated_answer(&self, attributes: Attributes) -> FileAnswer {
        let own = self.cache.lock().unsent(attributes.ino, self.env.now());
        let valid = own.map_or(Validity::NONE, |own| own.valid);
        FileAnswer { attributes, valid }
    }

    /// Makes an inode without the server, if the directory is this client's alone, or becomes so.
    pub(super) async fn local_create(
        self: &Arc<Self>,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Option<FileAnswer>, FsError> {
        let Some(after) = self.options.exclusive else { return Ok(None) };
        let wants = self.cache.lock().wants(parent, after, self.env.now());
        if wants {
            self.request_delegation(parent).await?;
        }
        self.complete_delegated(parent).await?;
        if self.cache.lock().has_delegation(parent) {
            self.reserve_numbers().await?;
        }
        let make = |cache: &mut Cache| cache.make(parent, name, new, self.clocks());
        match self.in_room(make).await? {
            None => Ok(None),
            Some(made) => {
                let made = made?;
                self.pace().await?;
                Ok(Some(self.delegated_answer(made)))
            }
        }
    }

    pub(super) async fn local_set_attributes(
        self: &Arc<Self>,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<Option<FileAnswer>, FsError> {
        if change.size.is_some() && !self.cache.lock().bytes.sizes {
            return Ok(None);
        }
        self.complete_delegated(ino).await?;
        let set = |cache: &mut Cache| cache.set(ino, change, self.clocks());
        let Some(set) = self.in_room(set).await? else { return Ok(None) };
        self.pace().await?;
        Ok(Some(self.delegated_answer(set)))
    }

    pub(super) async fn local_write(
        self: &Arc<Self>,
        ino: Ino,
        at: WriteAt,
        data: &[Bytes],
        how: WriteHow,
    ) -> Result<Option<u64>, FsError> {
        let len: usize = data.iter().map(Bytes::len).sum();
        let at = match at {
            WriteAt::Offset(offset) => Some(offset),
            WriteAt::End => None,
        };
        if how.sync || len > MAX_WRITE {
            return Ok(None);
        }
        let clocks = self.clocks();
        let (wrote, is_full) = {
            let mut cache = self.cache.lock();
            if cache.bytes.end == 0 || !cache.has_delegation(ino) {
                return Ok(None);
            }
            // The usual case takes the lock once. Few bytes are copied for less than another turn at the lock costs.
            let is_small = len <= SMALL_WRITE;
            let mut write = |data| cache.write(ino, at, data, how.clear_suid, clocks);
            let wrote = is_small.then(|| write(Bytes::from(data.concat()))).flatten();
            (wrote, cache.queue.is_full())
        };
        if wrote.is_some() {
            if is_full {
                self.pace().await?;
            }
            return Ok(wrote);
        }
        self.complete_delegated(ino).await?;
        // What the caller's buffers are part of may be much larger.
        let data = Bytes::from(data.concat());
        let write =
            |cache: &mut Cache| cache.write(ino, at, data.clone(), how.clear_suid, self.clocks());
        let wrote = self.in_room(write).await?;
        if wrote.is_some() {
            self.pace().await?;
        }
        Ok(wrote)
    }

    /// Asks for a directory.
    async fn request_delegation(self: &Arc<Self>, directory: Ino) -> Result<(), FsError> {
        let lease = self.session.lock().lease;
        let take = move |shared: &Shared, reply: &Reply, _: &Bytes| {
            shared.take_inode(reply);
            let mut cache = shared.cache.lock();
            match reply.grants.delegation {
                true => cache.hold_delegation(directory, reply.quota),
                false => cache.refuse(directory, shared.env.now() + lease / REFUSED),
            }
        };
        match self.call(Request::RequestDelegation { ino: directory }, Vec::new(), take).await {
            Ok(_) => Ok(()),
            Err(error @ FsError::Store(_)) => Err(error),
            // The change itself says what is wrong.
            Err(_) => Ok(()),
        }
    }

    /// Has the attributes of an inode that is this client's alone.
    async fn complete_delegated(self: &Arc<Self>, ino: Ino) -> Result<(), FsError> {
        let lacks = self.cache.lock().lacks_attributes(ino);
        if lacks {
            self.attributes(ino, false).await?;
        }
        Ok(())
    }

    /// Has numbers for new inodes.
    async fn reserve_numbers(self: &Arc<Self>) -> Result<(), FsError> {
        let wants = || self.cache.lock().queue.wants_numbers();
        if !wants() {
            return Ok(());
        }
        let _turn = self.reserving.lock().await;
        if !wants() {
            return Ok(());
        }
        let take = |shared: &Shared, reply: &Reply, _: &Bytes| {
            if let Answer::Numbers { first, count, inode_token } = reply.answer {
                let reserved = Reservation { first, count, inode_token };
                shared.cache.lock().queue.add_numbers(reserved);
            }
        };
        match self.call(Request::Reserve, Vec::new(), take).await {
            // The server does not let this client have more; the inodes are made by calls.
            Err(FsError::Invalid(_) | FsError::NotSupported) => Ok(()),
            done => done.map(|_| ()),
        }
    }

    /// Sends mutations when many wait, and waits for that when there are too many.
    async fn pace(self: &Arc<Self>) -> Result<(), FsError> {
        let (is_full, is_over_full) = {
            let pending = &self.cache.lock().queue;
            (pending.is_full(), pending.is_over_full())
        };
        if is_over_full {
            return self.send_mutations(false).await;
        }
        if is_full && let Ok(turn) = self.sending.clone().try_lock_owned() {
            let shared = self.clone();
            let sending = async move {
                if let Err(error) = shared.send_full(turn).await {
                    tracing::error!(%error, "changes in a directory of this client alone are lost");
                }
            };
            self.env.spawn(sending).detach();
        }
        Ok(())
    }

    /// Sends batches while many mutations wait.
    async fn send_full(self: &Arc<Self>, mut turn: SendGuard) -> Result<(), FsError> {
        while self.cache.lock().queue.is_full() {
            self.send_batch(turn, None).await?;
            turn = self.sending.clone().lock_owned().await;
        }
        Ok(())
    }

    /// Sends the mutations that wait; with `all`, returns when the server has every mutation that was made before.
    pub(super) async fn send_mutations(self: &Arc<Self>, all: bool) -> Result<(), FsError> {
        let last = self.cache.lock().queue.last();
        loop {
            let turn = self.sending.clone().lock_owned().await;
            let is_done = {
                let pending = &self.cache.lock().queue;
                pending.has(last) || !(all || pending.is_full())
            };
            if is_done {
                return Ok(());
            }
            self.send_batch(turn, None).await?;
        }
    }

    /// Sends the mutations that wait, and has everything be durable with the last batch of them, or with one that another caller
    /// sends meanwhile. Whether that is so: not if nothing waited.
    pub(super) async fn sync_mutations(self: &Arc<Self>) -> Result<bool, FsError> {
        let (last, waits) = {
            let pending = &self.cache.lock().queue;
            (pending.last(), pending.has_waiting())
        };
        loop {
            let turn = self.sending.clone().lock_owned().await;
            {
                let pending = &self.cache.lock().queue;
                if pending.has(last) {
                    // A batch that was under way before may not cover a call that was answered meanwhile.
                    return Ok(waits && pending.is_synced(last));
                }
            }
            if self.send_batch(turn, Some(last)).await? {
                return Ok(true);
            }
        }
    }

    /// Has changes be durable: those that this call names, with those that wait here.
    pub(super) async fn sync(self: &Arc<Self>, request: Request) -> Result<(), FsError> {
        match self.sync_mutations().await? {
            true => Ok(()),
            false => self.order(request).await,
        }
    }

    /// Sends one batch. One is under way at a time, so that they count in their order. With `sync`, it is durable when it has
    /// all mutations up to this one; whether it is. It goes on by itself when its caller has gone.
    async fn send_batch(
        self: &Arc<Self>,
        turn: SendGuard,
        sync: Option<u64>,
    ) -> Result<bool, FsError> {
        let (told, sent) = oneshot::channel();
        let shared = self.clone();
        let sending = async move {
            let outcome = shared.send_next(sync).await;
            if let Ok(true) = outcome {
                shared.cache.lock().queue.synced();
            }
            drop(turn);
            let _ = told.send(outcome);
        };
        self.env.spawn(sending).detach();
        sent.await.unwrap_or_else(|_| Err(LinkError::Closed.into()))
    }

    async fn send_next(self: &Arc<Self>, sync: Option<u64>) -> Result<bool, FsError> {
        self.make_room().await?;
        let (batch, syncs, releases) = {
            let pending = &mut self.cache.lock().queue;
            let batch = pending.take_batch();
            let end = pending.done + batch.mutations.len() as u64;
            (batch, sync.is_some_and(|last| end >= last), pending.released_by(end))
        };
        if batch.mutations.is_empty() {
            return Ok(false);
        }
        let (mut parts, mut is_whole) = match self.store_bytes(&batch, syncs).await {
            Ok(Stored::Sent) => return Ok(syncs),
            Ok(Stored::Not) => (vec![(batch.mutations, batch.charges)], true),
            Ok(Stored::Bytes(mutations)) => (vec![(mutations, batch.charges)], true),
            Err(error) => {
                self.lose_mutations((&batch.mutations, &batch.charges), &error);
                return Err(error);
            }
        };
        let user = batch.user;
        while let Some((mut part, mut charges)) = parts.pop() {
            let releases = if is_whole { releases.clone() } else { Vec::new() };
            let how = (syncs && parts.is_empty(), releases);
            match self.send_part((&part, &charges), &user, how).await {
                Ok(()) => {}
                // The server is there, and refuses one of them: the others count. Or its volume does not take so much at once.
                Err(error) if part.len() > 1 && error.may_divide() => {
                    is_whole = false;
                    let half = part.len() / 2;
                    parts.push((part.split_off(half), charges.split_off(half)));
                    parts.push((part, charges));
                }
                Err(error) => {
                    is_whole = false;
                    self.lose_mutations((&part, &charges), &error);
                    if !error.may_divide() {
                        let rest = parts.iter().rev();
                        rest.for_each(|(part, charges)| {
                            self.lose_mutations((part, charges), &error)
                        });
                        return Err(error);
                    }
                }
            }
        }
        Ok(syncs && is_whole)
    }

    /// Stores the bytes of a batch, as far as this client does that itself. If they only replace others, the rest is sent at the
    /// same time.
    async fn store_bytes(self: &Arc<Self>, batch: &Batch, syncs: bool) -> Result<Stored, FsError> {
        let mut mutations = batch.mutations.clone();
        let Some(storing) = self.split_bytes(&mut mutations).await? else { return Ok(Stored::Not) };
        let generation = storing.generation;
        let (stored, sent) = match batch.only_replaces {
            true => {
                let sending = self.send_call(
                    (&mutations, &batch.charges),
                    &batch.user,
                    (syncs, Vec::new()),
                    |_, _, _| {},
                );
                futures::future::join(storing.store(), sending).await
            }
            false => (storing.store().await, Err(FsError::Conflict)),
        };
        match (stored, sent) {
            (Ok(()), Ok(())) => {
                let mut cache = self.cache.lock();
                cache.sent(&mutations, 0, &[]);
                cache.queue.discharge(&batch.charges, false);
                Ok(Stored::Sent)
            }
            (Ok(()), Err(_)) => Ok(Stored::Bytes(mutations)),
            (Err(error), _) => {
                self.leave_contents(generation, &error).await?;
                Ok(Stored::Not)
            }
        }
    }

    /// Sends mutations of one user in one call.
    async fn send_part(
        self: &Arc<Self>,
        (part, charges): (&[Mutation], &[Charge]),
        user: &User,
        how: (bool, Vec<u64>),
    ) -> Result<(), FsError> {
        assert!(!part.is_empty() && part.len() == charges.len(), "each mutation has a charge");
        let (mutations, taken): (Arc<[Mutation]>, Arc<[Charge]>) = (part.into(), charges.into());
        let made = part.iter().filter(|mutation| mutation.kind.made().is_some()).count();
        let is_taken = Arc::new(AtomicBool::new(false));
        let taking = is_taken.clone();
        let take = move |shared: &Shared, reply: &Reply, payload: &Bytes| {
            let inode_tokens = decode_list::<u64>(payload, made).ok();
            let inode_tokens =
                inode_tokens.filter(|it| it.len() == made && reply.answer == Answer::Made);
            if let Some(inode_tokens) = inode_tokens {
                let mut cache = shared.cache.lock();
                cache.sent(&mutations, reply.stamp, &inode_tokens);
                cache.queue.discharge(&taken, false);
                taking.store(true, Ordering::Relaxed);
            }
        };
        self.send_call((part, charges), user, how, take).await?;
        match is_taken.load(Ordering::Relaxed) {
            true => Ok(()),
            // Without the inode tokens this client could not reclaim after a restart of the server what it has made.
            false => Err(LinkError::Unexpected.into()),
        }
    }

    async fn send_call(
        self: &Arc<Self>,
        (part, charges): (&[Mutation], &[Charge]),
        user: &User,
        (sync, releases): (bool, Vec<u64>),
        take: impl Fn(&Shared, &Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(), FsError> {
        let inodes = part.iter().flat_map(|it| [Some(it.kind.ino()), it.kind.made()]);
        let named: HashSet<Ino> = inodes.flatten().collect();
        let now = self.env.now();
        for mutation in part {
            if let MutationKind::Write { ino, .. } = &mutation.kind {
                self.cache.lock().stored_by_server(*ino, now);
            }
        }
        let mut named: Vec<Ino> = named.into_iter().collect();
        named.sort_unstable();
        let payload = postcard::to_allocvec(part).map_err(|_| LinkError::Unexpected)?;
        let charged = shares_of(charges);
        let call = (Request::Batch { sync, charged, releases }, vec![payload.into()]);
        let user = (Some(Slot::of_batch()), user.clone());
        self.call_in(user, named.into(), call, take).await.map(|_| ())
    }

    /// A batch does not count.
    fn lose_mutations(&self, (batch, charges): (&[Mutation], &[Charge]), error: &FsError) {
        tracing::error!(
            %error,
            changes = batch.len(),
            "changes that this client has made in a directory of its own are lost"
        );
        let is_refused = !matches!(error, FsError::Store(_));
        // The connection may come back; the change does not.
        let lost = LinkError::Lost.into();
        let error = if is_refused { error } else { &lost };
        let (wrong, changes) = {
            let mut cache = self.cache.lock();
            cache.queue.discharge(charges, is_refused);
            cache.lose(batch, error)
        };
        self.reclaim_state.lose(changes);
        self.tell_watcher(wrong);
    }

    /// What has to be sent before a call: everything, if the call changes something; what this client has made of the inodes
    /// that it names.
    pub(super) async fn send_before(self: &Arc<Self>, request: &Request) -> Result<(), FsError> {
        let is_needed = {
            let cache = self.cache.lock();
            let print = request.footprint(0);
            match print.needs {
                Needs::Everything => true,
                Needs::Nothing => false,
                Needs::Named => print.inodes.iter().any(|ino| cache.is_unsent(*ino)),
            }
        };
        if is_needed { self.send_waiting().await } else { Ok(()) }
    }

    /// Sends everything that waits, before a change by a call begins.
    pub(super) async fn send_waiting(self: &Arc<Self>) -> Result<(), FsError> {
        let waits = self.cache.lock().queue.len() > 0;
        match waits {
            true => Box::pin(self.send_mutations(true)).await,
            false => Ok(()),
        }
    }

    /// Sends mutations that have waited for long enough, again and again.
    pub(super) async fn run_writeback(self: &Arc<Self>) {
        loop {
            self.env.sleep(self.options.writeback.max(LEAST_PAUSE)).await;
            if self.is_closed() {
                return;
            }
            let age = self.env.now().since(Time::default());
            let before = age.saturating_sub(self.options.expire);
            let is_late = self.cache.lock().queue.waits_since(Time::default() + before);
            if is_late && let Err(error) = self.send_mutations(true).await {
                tracing::error!(%error, "changes in a directory of this client alone are lost");
            }
        }
    }

    /// Names are about to move between directories by a call: what they lead to is not this client's alone, unless it stays
    /// below what is.
    pub(super) fn share_moved(&self, from: Ino, to: Ino, targets: &[Option<Ino>; 2]) {
        let mut cache = self.cache.lock();
        if from == to {
            return;
        }
        for (parent, target) in [from, to].into_iter().zip(targets) {
            // Of an unknown inode all of the directory is shared.
            cache.share_all_of(target.unwrap_or(parent));
        }
    }
}
