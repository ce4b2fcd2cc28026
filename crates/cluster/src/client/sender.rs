//! Sends parts of batches: in one message, or staged in several ones before.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::OptionFuture;
use futures::stream::{self, Stream, StreamExt, TryStreamExt};
use thalweg_env::HashSet;
use thalweg_fs::coalesce::Coalesced;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{Action, Failure, FsError, Ino};

use super::ahead::{Encoded, StagedAhead};
use super::base::ClientBase;
use super::batch::{BATCH_BYTES, Batch, BatchLimit, MOST_STAGED, Part};
use super::call_numbers::Slot;
use super::error::LinkError;
use super::journaling::Journaling;
use super::part_encoder::PartEncoder;
use super::room::shares_of;
use super::rpc::{Outgoing, Rpc};
use super::user::User;
use crate::protocol::{Answer, BatchPositions, Reply, Request, decode_list, encode_list};
use tokio::sync::mpsc;

/// Parts of a batch that are under way at once.
const PARTS_AT_ONCE: usize = 4;
/// How often a batch is staged that the server has not kept.
const ATTEMPTS: usize = 3;

/// The server has not kept the parts of a batch: smaller ones may be.
#[derive(Debug, thiserror::Error)]
#[error("the server has no room for a batch of {0} bytes")]
struct NotStaged(usize);

/// Why mutations of a batch were sent in vain.
pub(super) enum NotSent {
    /// The journal alone has bytes of them, and cannot be read.
    Unreadable(FsError),
    /// The server has not taken them, or has not answered.
    Refused(FsError),
}

impl From<FsError> for NotSent {
    fn from(error: FsError) -> NotSent {
        NotSent::Refused(error)
    }
}

/// What is sent of a part of a batch.
struct Message<'a> {
    mutations: &'a [Mutation],
    /// What all mutations of the part take.
    part: Part<'a>,
    user: &'a User,
    positions: Option<BatchPositions>,
    /// The number of the session that has these positions.
    session: u64,
    /// No name changes and no file becomes longer.
    replaces: bool,
    /// The answer comes when everything is durable.
    sync: bool,
    releases: Vec<u64>,
    /// Numbers of inodes that are not made.
    spent: Vec<Ino>,
}

impl<'a> Message<'a> {
    fn plain(
        part: Part<'a>,
        user: &'a User,
        (positions, session): (Option<BatchPositions>, u64),
    ) -> Message<'a> {
        let (replaces, sync, releases, spent) = Default::default();
        Message {
            mutations: part.0,
            part,
            user,
            positions,
            session,
            replaces,
            sync,
            releases,
            spent,
        }
    }
}

pub(super) struct BatchSender {
    base: Arc<ClientBase>,
    rpc: Arc<Rpc>,
    journaling: Journaling,
    /// Bytes of a staged batch: fewer when the server does not take so many.
    most_staged: AtomicUsize,
    ahead: StagedAhead,
}

/// How a batch is sent.
pub(super) struct Sending {
    /// The answer comes when everything is durable.
    pub(super) sync: bool,
    /// Recalls that are done with it.
    pub(super) releases: Vec<u64>,
    /// Mutations up to this one are to be sent now.
    pub(super) until: u64,
}

/// Where the parts of a batch go that are to be staged, one after the other; `None` for nowhere.
type PartSink = Option<mpsc::Sender<Bytes>>;

impl BatchSender {
    pub(super) fn new(base: Arc<ClientBase>, rpc: Arc<Rpc>) -> BatchSender {
        let journaling = Journaling::new(base.clone(), rpc.clone());
        let (most_staged, ahead) = (AtomicUsize::new(MOST_STAGED), StagedAhead::default());
        BatchSender { base, rpc, journaling, most_staged, ahead }
    }

    /// How much the next batch takes: what was sent in vain, or is staged; or with a journal what the link carries in a second.
    pub(super) fn limit(&self) -> BatchLimit {
        let limit = self.usual_limit();
        let staged = self.ahead.mutations_behind(self.base.queue.done());
        let known = self.base.refusals.mutations().or(staged);
        known.map_or(limit, |mutations| limit.again(mutations))
    }

    /// Notes what becomes of the next batch, before it is taken for want of memory.
    pub(super) fn foresee(&self) {
        self.base.queue.foresee_batch(&self.usual_limit());
    }

    fn usual_limit(&self) -> BatchLimit {
        if !self.base.session.has_journal() {
            return BatchLimit::MESSAGE;
        }
        let carried = usize::try_from(self.base.queue.rate()).unwrap_or(usize::MAX);
        let mut most = self.most_staged.load(Ordering::Relaxed).min(self.base.options.batch);
        if self.base.queue.is_recovered() {
            // Its bytes are read for it, and for the one that is staged meanwhile.
            most = most.min(self.base.options.memory / 4);
        }
        BatchLimit::staged(carried.min(most), self.coalesces())
    }

    /// Whether parts of batches are coalesced. Not of a journal that is written back: what is left of a name that came and went is a
    /// change of its directory, which would be a conflict where other clients have used that.
    fn coalesces(&self) -> bool {
        self.base.session.has_journal() && !self.base.queue.is_recovered()
    }

    /// Sends mutations of a batch, the last of which has this number, in one transaction. The time for which some of it was sent
    /// before.
    pub(super) async fn send(
        &self,
        batch: &mut Batch,
        part: &Range<usize>,
        last: u64,
        Sending { sync, releases, until }: Sending,
    ) -> Result<Duration, NotSent> {
        let first = last + 1 - part.len() as u64;
        let encoded = match self.ahead.take(first, last) {
            Some(encoded) => encoded,
            None => self.encode(batch, part, last, None).await?,
        };
        // What was lost before it has positions, too.
        let hash = batch.hash_up_to(last);
        let session = self.base.session.generation();
        let positions = self.positions(last, hash)?;
        let (part, user) = (batch.part(part), &batch.user);
        let (staged_in, spent) = (encoded.staged_in, encoded.spent.clone());
        let mutations = &encoded.mutations[..];
        let replaces = batch.replaces;
        let message =
            Message { mutations, part, user, positions, session, replaces, sync, releases, spent };
        let sent = self.send_message(message, &encoded, last < until).await;
        if let Err(FsError::Store(failure)) = &sent
            && matches!(failure.action(), Action::Divide | Action::RetrySmaller)
        {
            let less = (self.most_staged.load(Ordering::Relaxed) / 2).max(BATCH_BYTES);
            self.most_staged.store(less, Ordering::Relaxed);
        }
        sent?;
        self.base.queue.reach(last, hash);
        Ok(staged_in.unwrap_or_default())
    }

    /// Encodes what is left of mutations of a batch, the last of which has this number. Bytes that the journal alone has are read one
    /// record after the other, and each part goes to the sink when it is complete, unless the batch is one message.
    async fn encode(
        &self,
        batch: &mut Batch,
        part: &Range<usize>,
        last: u64,
        sink: PartSink,
    ) -> Result<Encoded, NotSent> {
        let coalesced = self.coalesces().then(|| batch.coalesced(part));
        let keeps_bytes = |index| coalesced.as_ref().is_none_or(|it| it.keeps_bytes(index));
        let spilled = batch.take_spilled(part, keeps_bytes);
        let count = coalesced.as_ref().map_or(part.len(), Coalesced::len);
        let mut encoder = PartEncoder::new(count)?;
        let (mut mutations, mut parts) = (Vec::with_capacity(count), Vec::new());
        let (mut rest, mut at, mut loaded) = (&spilled[..], part.start, 0);
        while at < part.end || !rest.is_empty() {
            let until = rest.first().map_or(part.end, |it| it.index);
            let whole = &batch.mutations[at..until];
            let left = match &coalesced {
                Some(coalesced) => coalesced.apply_from(at - part.start, whole),
                None => whole.to_vec(),
            };
            for mutation in left {
                encoder.push(&mutation)?;
                mutations.push(mutation);
                for full in encoder.take_full() {
                    parts.push(full.clone());
                    put(&sink, full).await;
                }
            }
            at = until;
            // What one record of the journal has.
            let place = rest.first().map(|it| it.place);
            let of_record = rest.partition_point(|it| Some(it.place) == place);
            let (now, later) = rest.split_at(of_record);
            let read = self.journaling.load(batch, now.iter().copied()).await;
            loaded += read.map_err(NotSent::Unreadable)?;
            rest = later;
        }
        self.journaling.note_loaded(loaded);
        let end = encoder.finish();
        parts.push(end.clone());
        if part.len() == batch.mutations.len() {
            self.base.queue.coalesced(batch.bytes, parts.iter().map(Bytes::len).sum());
        }
        let gone = coalesced.as_ref().into_iter().flat_map(|it| it.gone());
        let spent = self.base.numbers.highest_of(gone);
        let first = last + 1 - part.len() as u64;
        let encoded = Encoded { first, last, mutations, parts, spent, staged_in: None };
        if !encoded.is_one() {
            put(&sink, end).await;
        }
        Ok(encoded)
    }

    /// Sends mutations in one call, behind those that stage them if they are many and not staged.
    async fn send_message(
        &self,
        message: Message<'_>,
        encoded: &Encoded,
        goes_on: bool,
    ) -> Result<(), FsError> {
        let Message { mutations, part, .. } = &message;
        assert!(!part.0.is_empty() && part.0.len() == part.1.len(), "each mutation has a charge");
        let made: Vec<Ino> = mutations.iter().filter_map(|it| it.kind.made()).collect();
        let is_complete = Arc::new(AtomicBool::new(false));
        let (completes, base) = (is_complete.clone(), self.base.clone());
        let (whole, charges): (Arc<[Mutation]>, Arc<[_]>) = (part.0.into(), part.1.into());
        let receive = move |reply: &Reply, payload: &Bytes| {
            if reply.answer == Answer::Made
                && let Ok(inode_tokens) = decode_list::<u64>(payload, made.len())
                && inode_tokens.len() == made.len()
            {
                let inode_tokens = made.iter().copied().zip(inode_tokens).collect();
                base.complete((&whole, &charges), reply.stamp, &inode_tokens);
                completes.store(true, Ordering::Relaxed);
            }
        };
        match &encoded.parts[..] {
            [only] if encoded.is_one() || message.positions.is_none() => {
                self.send_call(&message, 0, only.clone(), receive).await?;
            }
            _ => self.send_staged(&message, encoded, goes_on, receive).await?,
        }
        if is_complete.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Without the inode tokens this client could not reclaim after a restart of the server what it has made.
        Err(LinkError::Unexpected.into())
    }

    /// Sends a batch that is staged, or to be staged first. If it `goes_on` behind that, the next one is staged meanwhile.
    async fn send_staged(
        &self,
        message: &Message<'_>,
        encoded: &Encoded,
        goes_on: bool,
        then: impl Fn(&Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<(), FsError> {
        let batch = message.positions.map_or(0, |it| it.after.position + 1);
        let staged = u32::try_from(encoded.parts.len()).expect("a batch has few parts");
        let made = message.mutations.iter().filter_map(|it| it.kind.made_node());
        let made = encode_list(&made.collect::<Vec<(Ino, bool)>>());
        // A server that begins meanwhile has none of the parts.
        for attempt in 0..ATTEMPTS {
            let is_ready = encoded.staged_in.is_some() && attempt == 0;
            let parts = stream::iter(encoded.parts.iter().cloned());
            if !is_ready && !self.stage((batch, message.replaces), parts).await? {
                continue;
            }
            let sending = self.send_call(message, staged, made.clone(), then.clone());
            let staging = OptionFuture::from(goes_on.then(|| self.stage_ahead()));
            let (answer, _) = futures::future::join(sending, staging).await;
            if answer? != Answer::Unstaged {
                return Ok(());
            }
        }
        Err(FsError::Store(Failure::new(Action::Divide, NotStaged(encoded.len()))))
    }

    /// Sends the parts of a batch; whether the server keeps all of them.
    async fn stage(
        &self,
        (batch, replaces): (u64, bool),
        parts: impl Stream<Item = Bytes>,
    ) -> Result<bool, FsError> {
        let session = self.base.session.generation();
        let staging = parts.enumerate().map(|(part, bytes)| {
            let part = u32::try_from(part).expect("a batch has few parts");
            let request = Request::Stage { part: (batch, part), replaces };
            let mut call = Outgoing::with(request, vec![bytes], None);
            call.of_session = Some(session);
            self.rpc.make(call, |_, _| {}, std::future::pending())
        });
        let answers: Vec<(Reply, Bytes)> = staging.buffered(PARTS_AT_ONCE).try_collect().await?;
        Ok(!answers.is_empty() && answers.iter().all(|(reply, _)| reply.answer == Answer::Done))
    }

    /// Stages the batch behind the one that was taken last.
    async fn stage_ahead(&self) {
        let ClientBase { queue, refusals, .. } = &*self.base;
        if refusals.current().is_some() || !self.base.session.has_journal() {
            return;
        }
        let Some(mut batch) = queue.peek_batch(&self.usual_limit()) else { return };
        let (count, last) = (batch.mutations.len(), batch.last);
        let first = last + 1 - count as u64;
        let (begun, replaces) = (self.base.now(), batch.replaces);
        // What is read of the journal goes while more is read.
        let (sink, parts) = mpsc::channel(PARTS_AT_ONCE);
        let parts = stream::unfold(parts, async |mut parts| Some((parts.recv().await?, parts)));
        let all = 0..count;
        let both = futures::future::join(
            self.encode(&mut batch, &all, last, Some(sink)),
            self.stage((self.position(first), replaces), parts),
        );
        let (encoded, staged) = tokio::select! {
            both = both => both,
            // While the mount may move, the batch before must not wait for this one.
            () = self.base.links.held() => return,
        };
        drop(batch);
        // An error here is found when the batch is sent.
        let Ok(mut encoded) = encoded else { return };
        let is_staged = staged.unwrap_or(false) && !encoded.is_one();
        if !is_staged {
            return;
        }
        for mutation in &mut encoded.mutations {
            if let MutationKind::Write { data, .. } = &mut mutation.kind {
                *data = Bytes::new();
            }
        }
        encoded.staged_in = Some(self.base.now().since(begun));
        self.ahead.set(encoded);
    }

    /// The position of a mutation in the journal.
    fn position(&self, number: u64) -> u64 {
        self.base.journal.live().map_or(number, |it| it.position(number))
    }

    /// Sends mutations that only replace bytes, which this client stores itself.
    pub(super) async fn replace(
        &self,
        part: Part<'_>,
        user: &User,
        sync: bool,
    ) -> Result<(), FsError> {
        let message = Message { sync, ..Message::plain(part, user, (None, 0)) };
        self.send_plain(&message).await
    }

    /// Sends mutations with these positions; the others are skipped.
    pub(super) async fn pass(
        &self,
        part: Part<'_>,
        user: &User,
        positions: Option<BatchPositions>,
    ) -> Result<(), FsError> {
        let of = (positions, self.base.session.generation());
        self.send_plain(&Message::plain(part, user, of)).await
    }

    async fn send_plain(&self, message: &Message<'_>) -> Result<(), FsError> {
        let payload =
            postcard::to_allocvec(message.mutations).map_err(|_| LinkError::Unexpected)?;
        self.send_call(message, 0, payload.into(), |_, _| {}).await.map(drop)
    }

    /// The positions in the journal of a batch that ends with the mutation of this number and hash.
    fn positions(&self, last: u64, hash: u64) -> Result<Option<BatchPositions>, FsError> {
        let before = (self.base.queue.reached(), self.base.queue.reached_hash());
        if self.position(last) == 0 {
            // It was made in a session that has ended.
            return Err(LinkError::Evicted.into());
        }
        let of = |(number, hash)| JournalPosition { position: self.position(number), hash };
        let positions = BatchPositions { after: of(before), end: of((last, hash)) };
        Ok(self.base.session.has_journal().then_some(positions))
    }

    /// The server has refused mutations up to this one: its record of the session gets their positions, so that none is ever missing
    /// there but at a server that has lost something. The journal keeps them until then.
    pub(super) async fn pass_refused(&self, last: u64, hash: u64) -> Result<(), FsError> {
        if !self.base.session.has_journal() || self.base.queue.reached() >= last {
            return Ok(());
        }
        let positions = self.positions(last, hash)?;
        self.pass((&[], &[]), &None, positions).await?;
        self.base.queue.reach(last, hash);
        Ok(())
    }

    async fn send_call(
        &self,
        message: &Message<'_>,
        staged: u32,
        payload: Bytes,
        then: impl Fn(&Reply, &Bytes) + Clone + Send + Sync + 'static,
    ) -> Result<Answer, FsError> {
        let Message { mutations, part, user, positions, sync, releases, spent, .. } = message;
        let named: HashSet<Ino> = mutations.iter().flat_map(|it| it.kind.inodes()).collect();
        let mut named: Vec<Ino> = named.into_iter().collect();
        named.sort_unstable();
        let now = self.base.now();
        for mutation in *mutations {
            if let MutationKind::Write { ino, .. } = &mutation.kind {
                self.base.bounds.stored_by_server(*ino, now);
            }
        }
        let (charged, positions, releases) = (shares_of(part.1), *positions, releases.clone());
        let (sync, spent) = (*sync, spent.clone());
        if let Some(positions) = positions {
            self.base.queue.sent_ends.push(positions.end);
        }
        let request = Request::Batch { sync, charged, releases, positions, staged, spent };
        let mut call = Outgoing::with(request, vec![payload], (*user).clone());
        (call.slot, call.named) = (Some(Slot::of_batch()), named.into());
        // A position is another mutation's in the next session: this one would be applied a second time there, over what other clients have written.
        call.of_session = positions.map(|_| message.session);
        let (reply, _) = self.rpc.make(call, then, std::future::pending()).await?;
        Ok(reply.answer)
    }
}

/// Hands a part to the stage that sends it, if that goes on.
async fn put(sink: &PartSink, part: Bytes) {
    if let Some(sink) = sink {
        let _ = sink.send(part).await;
    }
}
