//! Mutations that this client has made under its delegations, and that the server does not have.
//!
//! A mutation is appended at the inode that it changes, under the lock of that inode's stripe, and gets its number there: the
//! order of numbers is that of changes. A sender that takes a batch first collects what the stripes have up to a number. A mutation up to that
//! one got its number under the lock of a stripe, so it is there when that lock is free.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_env::{HashMap, Time};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::{Ino, Timestamp};

use super::batch::{BATCH_BYTES, Batch, BatchLimit, Taking};
use super::dirty_limit::DirtyLimit;
use super::inodes::{Inodes, Stripe};
use super::overlay::{MAX_SEARCHED, OwnSteps};
use super::record::{Record, Waiting};
use super::sent_ends::SentEnds;
use super::user;
use crate::protocol::{MAX_RELEASES, MAX_SHARES};

/// Mutations that wait when the next batch is sent.
const FULL: u64 = 512;
/// Mutations that wait before their makers wait too, and their bytes.
const MAX_WAITING: (u64, usize) = (16384, 8 << 20);
/// With a journal, which keeps the bytes: mutations that wait when the next batch is sent.
const FULL_OF_JOURNALED: u64 = 1 << 17;
/// Without a journal all mutations may be sent.
pub(super) const NO_JOURNAL: u64 = u64::MAX;
/// With a journal: bytes of mutations that it lacks when the next commit begins.
const COMMIT_BYTES: u64 = 1 << 20;
/// Or this part of the journal.
const COMMIT_PART: u64 = 4;

/// Writes that make a file longer.
pub(super) struct Growth {
    /// Offsets and buffers that are not stored yet.
    pub(super) writes: Vec<(u64, Vec<Bytes>)>,
    /// The number of mutations that wait, all of which are about these writes or stored ones.
    pub(super) mutations: usize,
}

#[derive(Default)]
pub(super) struct Collected {
    /// In the order of their numbers.
    pub(super) waiting: VecDeque<Waiting>,
    /// Mutations that the server has, or that are lost.
    pub(super) done: u64,
    /// Mutations up to this one are durable, or lost.
    pub(super) synced: u64,
    /// Recalls of delegations that are released when the server has the mutations up to these.
    pub(super) releases: Vec<(u64, u64)>,
    /// The batch that was taken last.
    pub(super) sending: Option<SentBatch>,
}

/// A batch that has left the queue. It counts until the server has all of it.
#[derive(Clone, Copy)]
pub(super) struct SentBatch {
    pub(super) last: u64,
    pub(super) bytes: u64,
    pub(super) oldest: Timestamp,
}

/// What the client has made by itself, and the server does not have. Its lock is taken before those of stripes.
pub(super) struct WritebackQueue {
    pub(super) inodes: Arc<Inodes>,
    pub(super) collected: Mutex<Collected>,
    /// Mutations made so far, and those of them that a batch has taken.
    pub(super) made: AtomicU64,
    pub(super) taken: AtomicU64,
    /// Bytes of those that wait.
    pub(super) bytes: AtomicUsize,
    /// Bytes of mutations that wait, which are in the journal alone.
    pub(super) spilled: AtomicU64,
    /// The last mutation by which room becomes free.
    pub(super) freeing: AtomicU64,
    /// How much may wait with a journal.
    pub(super) limit: DirtyLimit,
    /// Bytes that mutations took which were made so far, and at the begin of the last commit.
    appended: AtomicU64,
    committing: AtomicU64,
    /// Bytes of mutations that were in memory at most, of a journal that is written back.
    pub(super) most_in_memory: AtomicUsize,
    /// Mutations up to this one are in the journal, and may be sent.
    pub(super) journaled: AtomicU64,
    /// Those up to this one are in the journal and all its copies since before the lease was over.
    pub(super) leased: AtomicU64,
    /// Mutations of sessions that have ended are in the journal up to this one.
    pub(super) kept: AtomicU64,
    /// With a journal: the server's record of the session has its position up to this mutation.
    pub(super) reached: AtomicU64,
    /// And the hash up to that.
    pub(super) reached_hash: AtomicU64,
    pub(super) sent_ends: SentEnds,
    /// All mutations are those of a journal that is written back.
    pub(super) is_recovered: AtomicBool,
}

impl WritebackQueue {
    pub(super) fn new(inodes: Arc<Inodes>, limit: DirtyLimit) -> WritebackQueue {
        WritebackQueue {
            inodes,
            collected: Mutex::default(),
            made: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            spilled: AtomicU64::new(0),
            freeing: AtomicU64::new(0),
            limit,
            appended: AtomicU64::new(0),
            committing: AtomicU64::new(0),
            most_in_memory: AtomicUsize::new(0),
            journaled: AtomicU64::new(NO_JOURNAL),
            leased: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            reached_hash: AtomicU64::new(0),
            sent_ends: SentEnds::default(),
            is_recovered: AtomicBool::new(false),
        }
    }

    /// Appends a mutation of an inode of this stripe, which is locked; its number.
    pub(super) fn append(&self, stripe: &mut Stripe, record: Record, quota: u64, now: Time) -> u64 {
        self.bytes.fetch_add(record.bytes(), Ordering::Relaxed);
        self.appended.fetch_add(record.bytes() as u64, Ordering::Relaxed);
        let number = self.made.fetch_add(1, Ordering::AcqRel) + 1;
        stripe.stage(Waiting { number, made: now, hash: 0, record, quota, user: user::current() });
        number
    }

    /// Mutations that the server does not have.
    pub(super) fn len(&self) -> usize {
        let done = self.collected.lock().done;
        let made = self.last();
        assert!(done <= made, "the server has mutations that were not made");
        (made - done) as usize
    }

    pub(super) fn last(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// Whether the server has the mutations up to this one.
    pub(super) fn has(&self, number: u64) -> bool {
        self.collected.lock().done >= number
    }

    /// By this mutation room becomes free.
    pub(super) fn frees(&self, number: u64) {
        self.freeing.fetch_max(number, Ordering::AcqRel);
    }

    /// Whether the server lacks a mutation by which room becomes free.
    pub(super) fn is_to_free(&self) -> bool {
        !self.has(self.freeing.load(Ordering::Acquire))
    }

    /// Blocks that files get by becoming longer, of what waits.
    pub(super) fn growth_blocks(&self) -> u64 {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        collected.waiting.iter().map(|waiting| waiting.record.growth_blocks()).sum()
    }

    /// Whether mutations wait that are in no batch.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting() > 0
    }

    /// Whether everything became durable with the batch of this mutation, or with a later one.
    pub(super) fn is_synced(&self, number: u64) -> bool {
        self.collected.lock().synced >= number
    }

    /// The mutations that the server has are durable.
    pub(super) fn synced(&self) {
        let mut collected = self.collected.lock();
        collected.synced = collected.done;
    }

    pub(super) fn has_journal(&self) -> bool {
        self.journaled.load(Ordering::Acquire) != NO_JOURNAL
    }

    /// Whether a batch is to be sent.
    pub(super) fn is_full(&self) -> bool {
        if self.has_journal() {
            return self.waiting() >= FULL_OF_JOURNALED
                || self.dirty() >= self.limit.bytes()
                || self.is_memory_short()
                || self.limit.is_journal_short();
        }
        self.waiting() >= FULL || self.in_memory() >= BATCH_BYTES
    }

    /// Whether the makers of mutations have to wait.
    pub(super) fn is_over_full(&self) -> bool {
        if self.has_journal() {
            let is_far_over = self.dirty() >= self.limit.most_bytes();
            return is_far_over || self.waiting() >= 2 * FULL_OF_JOURNALED || self.is_over_memory();
        }
        self.waiting() >= MAX_WAITING.0 || self.in_memory() >= MAX_WAITING.1
    }

    /// Whether the bytes of mutations take more memory than they may, which the journal can keep.
    pub(super) fn is_over_memory(&self) -> bool {
        self.has_journal() && self.in_memory() >= self.limit.memory()
    }

    /// Bytes of memory that mutations take which wait.
    pub(super) fn in_memory(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of mutations that wait.
    fn dirty(&self) -> u64 {
        self.in_memory() as u64 + self.spilled.load(Ordering::Relaxed)
    }

    /// Mutations that are in no batch.
    fn waiting(&self) -> u64 {
        // In this order: what is taken was made.
        let taken = self.taken.load(Ordering::Acquire);
        let made = self.last();
        assert!(taken <= made, "a batch has mutations that were not made");
        made - taken
    }

    /// Whether the oldest mutation waits since then or longer.
    pub(super) fn waits_since(&self, time: Time) -> bool {
        if !self.has_waiting() {
            return false;
        }
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        collected.waiting.front().is_some_and(|first| first.made <= time)
    }

    /// Whether so much is in no record of the journal that a commit is to begin.
    pub(super) fn is_commit_due(&self) -> bool {
        let appended = self.appended.load(Ordering::Relaxed);
        let lacks = appended - self.committing.load(Ordering::Relaxed).min(appended);
        self.has_journal() && lacks >= COMMIT_BYTES.min(self.limit.journal() / COMMIT_PART)
    }

    /// A commit begins of all mutations so far.
    pub(super) fn begin_commit(&self) {
        self.committing.store(self.appended.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Its records take so many bytes of the journal, and those of mutations that the server does not have, so many of these.
    pub(super) fn note_journal(&self, used: u64, unsent: u64) {
        self.limit.note_journal(used, unsent);
    }

    /// A recall, which has this number, is done when the server has all mutations so far.
    pub(super) fn release(&self, recall: u64) {
        let mut collected = self.collected.lock();
        if self.has_waiting() && collected.releases.len() < MAX_RELEASES {
            collected.releases.push((recall, self.last()));
        }
    }

    /// A recall was answered.
    pub(super) fn forget_release(&self, recall: u64) {
        self.collected.lock().releases.retain(|(number, _)| *number != recall);
    }

    pub(super) fn collect(&self, collected: &mut Collected) {
        let last = self.last();
        let before = collected.waiting.len();
        for mut stripe in self.inodes.stripes() {
            stripe.drain_staged(last, &mut collected.waiting);
        }
        let new = &mut collected.waiting.make_contiguous()[before..];
        new.sort_unstable_by_key(|waiting| waiting.number);
        assert!(
            collected.waiting.back().is_none_or(|waiting| waiting.number <= last),
            "a mutation is collected too early"
        );
    }

    /// What waits of the bytes of a file. The caller keeps batches from being sent, so that nothing else of it is in flight; `None`
    /// if that cannot be told soon.
    pub(super) fn steps_of(&self, file: Ino) -> Option<OwnSteps> {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        if collected.waiting.len() > MAX_SEARCHED {
            return None;
        }
        OwnSteps::of(file, collected.waiting.iter())
    }

    /// What waits, if all of it writes to this file, and makes it longer.
    pub(super) fn growth_of(&self, file: Ino) -> Option<Growth> {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        let mut writes: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let (mut grows, mut next) = (false, None);
        for waiting in &collected.waiting {
            let Record::Bytes(record) = &waiting.record else { return None };
            grows |= record.grows;
            match &record.mutation.kind {
                MutationKind::Write { ino, offset, data, clear_suid: false } if *ino == file => {
                    match writes.last_mut().filter(|_| next == Some(*offset)) {
                        Some((_, last)) => last.push(data.clone()),
                        None => writes.push((*offset, vec![data.clone()])),
                    }
                    next = Some(offset + data.len() as u64);
                }
                MutationKind::Stored { ino, clear_suid: false, .. } if *ino == file => {}
                _ => return None,
            }
        }
        grows.then_some(Growth { writes, mutations: collected.waiting.len() })
    }

    /// The bytes of so many mutations that wait are stored.
    pub(super) fn are_stored(&self, mutations: usize) {
        let mut stored = 0;
        for waiting in self.collected.lock().waiting.iter_mut().take(mutations) {
            let before = waiting.record.bytes();
            if let Record::Bytes(record) = &mut waiting.record {
                store(&mut record.mutation.kind, true);
            }
            stored += before - waiting.record.bytes();
        }
        let before = self.bytes.fetch_sub(stored, Ordering::Relaxed);
        assert!(before >= stored, "more bytes are stored than were queued");
    }

    /// How many mutations the next batch has: those of one user, within a limit.
    fn next_batch(&self, waiting: &VecDeque<Waiting>, limit: &BatchLimit) -> (usize, Taking) {
        let journaled = self.journaled.load(Ordering::Acquire);
        let (mut taking, mut count) = (Taking::default(), 0);
        let mut quotas = SmallVec::<[u64; MAX_SHARES]>::new();
        let user = waiting.front().and_then(|first| first.user.as_ref());
        for next in waiting {
            let is_new = !quotas.contains(&next.quota);
            // One share is the volume's.
            let has_share = !is_new || quotas.len() < MAX_SHARES - 1;
            let is_last = count == limit.mutations || next.number > journaled;
            if is_last
                || next.user.as_ref() != user
                || !has_share
                || !taking.add(&next.record, limit)
            {
                break;
            }
            if is_new {
                quotas.push(next.quota);
            }
            count += 1;
        }
        assert!(quotas.len() < MAX_SHARES, "one share is the volume's");
        (count, taking)
    }

    /// Whether what is in memory is to be sent in the background.
    pub(super) fn is_memory_short(&self) -> bool {
        self.limit.is_memory_short(self.in_memory())
    }

    /// Notes how much of the next batch is sent.
    pub(super) fn foresee_batch(&self, limit: &BatchLimit) {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        let (_, taking) = self.next_batch(&collected.waiting, limit);
        self.limit.coalesced(taking.bytes, taking.sent);
    }

    /// Takes the next batch. The caller sends one at a time.
    pub(super) fn take_batch(&self, limit: &BatchLimit) -> Batch {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        let Collected { waiting, done, releases, sending, .. } = &mut *collected;
        let (count, _) = self.next_batch(waiting, limit);
        let taken: Vec<Waiting> = waiting.drain(..count).collect();
        let last = *done + taken.len() as u64;
        let data_bytes = taken.iter().map(|it| it.record.data_bytes()).sum();
        let oldest = taken.first().map(|first| first.record.time());
        *sending = oldest.map(|oldest| SentBatch { last, bytes: data_bytes, oldest });
        let done = releases.iter().filter(|(_, mutation)| *mutation <= last);
        let releases = done.map(|(recall, _)| *recall).collect();
        drop(collected);
        let in_memory = taken.iter().map(|it| it.record.bytes()).sum();
        let elsewhere: usize = taken.iter().map(|it| it.record.sent_bytes()).sum();
        self.leave(taken.len(), in_memory);
        let before = self.spilled.fetch_sub((elsewhere - in_memory) as u64, Ordering::Relaxed);
        assert!(
            before >= (elsewhere - in_memory) as u64,
            "more bytes are read back than were spilled"
        );
        Batch { last, releases, ..Batch::of(taken) }
    }

    /// The batch behind the one that was taken last, which stays; `None` if mutations that are made meanwhile could still be a part of it.
    pub(super) fn peek_batch(&self, limit: &BatchLimit) -> Option<Batch> {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        let (count, _) = self.next_batch(&collected.waiting, limit);
        if count == 0 || count == collected.waiting.len() {
            return None;
        }
        let peeked = collected.waiting.range(..count).map(|it| Waiting {
            record: Record::Bytes(Box::new(it.record.parts())),
            user: it.user.clone(),
            ..*it
        });
        let spilled = collected.waiting.range(..count).enumerate();
        let spilled = spilled.filter_map(|(index, it)| it.spilled(index)).collect();
        Some(Batch { spilled, ..Batch::of(peeked.collect()) })
    }

    /// Mutations do not wait any more.
    pub(super) fn leave(&self, count: usize, bytes: usize) {
        let had_bytes = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(had_bytes >= bytes, "more bytes leave the queue than were queued");
        self.taken.fetch_add(count as u64, Ordering::AcqRel);
    }

    /// The server has mutations of a batch, and answered with this stamp and the inode tokens of what it has made; or they are lost. The
    /// number of the last one, and the inodes without names that they were the last ones of.
    pub(super) fn remove(
        &self,
        mutations: &[Mutation],
        stamp: u64,
        inode_tokens: &HashMap<Ino, u64>,
    ) -> (u64, Vec<Ino>) {
        let mut removed = Vec::new();
        for Mutation { kind, .. } in mutations {
            for ino in kind.inodes() {
                let made = (kind.made() == Some(ino)).then_some(ino);
                let token = made.and_then(|ino| inode_tokens.get(&ino));
                let known = self.inodes.with(ino, |node| {
                    node.delegation.sent();
                    if node.cached.is_removed && node.delegation.unsent() == 0 {
                        removed.push(ino);
                    }
                    token.inspect(|token| node.cached.named(stamp, **token));
                });
                assert!(known.is_some(), "an inode with mutations is known");
            }
        }
        let done = {
            let mut collected = self.collected.lock();
            collected.done += mutations.len() as u64;
            collected.done
        };
        assert!(done <= self.last(), "the server has mutations that were not made");
        (done, removed)
    }

    /// Mutations that the server has, or that are lost.
    pub(super) fn done(&self) -> u64 {
        self.collected.lock().done
    }

    /// The session has ended, and no inode is delegated any more; the mutations that the journal keeps, and those that are lost.
    pub(super) fn end_session(&self) -> (Vec<Mutation>, Vec<Mutation>) {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        let ended = std::mem::take(&mut collected.waiting);
        drop(collected);
        self.spilled.store(0, Ordering::Relaxed);
        self.leave(ended.len(), ended.iter().map(|waiting| waiting.record.bytes()).sum());
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        for Waiting { number, record, .. } in ended {
            let to = if self.is_kept(number) { &mut kept } else { &mut lost };
            to.push(record.into_parts().mutation);
        }
        (kept, lost)
    }
}

/// The bytes of a mutation are stored; with `by_size_record`, they are durable by one.
pub(super) fn store(kind: &mut MutationKind, by_size_record: bool) {
    if let MutationKind::Write { ino, offset, data, clear_suid } = kind {
        let (ino, offset, len) = (*ino, *offset, data.len() as u64);
        let clear_suid = *clear_suid;
        *kind = MutationKind::Stored { ino, offset, len, clear_suid, by_size_record };
    }
}
