//! The queue of a client with a journal: mutations go there before they are sent, and those of an earlier mount come from there.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thalweg_env::{HashMap, Time};
use thalweg_fs::session_table::JournalPosition;
use thalweg_fs::{Ino, Timestamp};
use thalweg_store::journal::log::RecordPlace;

use super::batch::Batch;
use super::found_journal::{FoundMutation, FoundRun};
use super::journal_pages::paged_bytes;
use super::journal_runs::{JournaledMutation, Run};
use super::pending::Changes;
use super::queue::{Collected, NO_JOURNAL, SentBatch, WritebackQueue};
use super::record::{Parts, Record, SpilledWrite, Waiting, room_of};
use super::room::Charge;

/// Mutations for a record of the journal: they follow those that are there.
pub(super) struct Unjournaled {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) runs: Vec<Run>,
}

/// What the server does not have.
pub(super) struct QueueReport {
    pub(super) unsent: Changes,
    /// Those of them that are in the journal, if there is one.
    pub(super) journaled: Changes,
    /// When the oldest one was made.
    pub(super) oldest: Option<Timestamp>,
}

impl WritebackQueue {
    /// These mutations are in a record of the journal. Their bytes stay there alone while many wait.
    pub(super) fn spill(&self, numbers: RangeInclusive<u64>, place: RecordPlace) {
        if !self.limit.is_to_spill(self.in_memory()) {
            return;
        }
        let (mut freed, mut collected) = (0, self.collected.lock());
        let start = collected.waiting.partition_point(|it| it.number < *numbers.start());
        for waiting in collected.waiting.range_mut(start..) {
            if waiting.number > *numbers.end() {
                break;
            }
            freed += waiting.record.spill(place);
        }
        // Before a batch can take them.
        self.spilled.fetch_add(freed as u64, Ordering::Relaxed);
        let before = self.bytes.fetch_sub(freed, Ordering::Relaxed);
        assert!(before >= freed, "more bytes are spilled than were queued");
    }

    /// Whether less than a quarter of the journal is free.
    pub(super) fn is_journal_tight(&self) -> bool {
        self.limit.is_journal_tight()
    }

    /// Bytes that the link carries in a second.
    pub(super) fn rate(&self) -> u64 {
        self.limit.rate()
    }

    /// A batch with so many bytes of files was sent as so many.
    pub(super) fn coalesced(&self, bytes: usize, sent: usize) {
        self.limit.coalesced(bytes, sent);
    }

    /// A batch with so many bytes took so long.
    pub(super) fn sent(&self, bytes: usize, took: Duration) {
        self.limit.sent(bytes, took);
    }

    /// Whether the mutations up to this one are in the journal, or need not be.
    pub(super) fn is_journaled(&self, number: u64) -> bool {
        self.journaled.load(Ordering::Acquire) >= number
    }

    /// These mutations are in the journal; the hash up to each.
    pub(super) fn journaled(&self, numbers: RangeInclusive<u64>, hashes: &[u64]) {
        let mut collected = self.collected.lock();
        let start = collected.waiting.partition_point(|it| it.number < *numbers.start());
        for (waiting, hash) in collected.waiting.range_mut(start..).zip(hashes) {
            assert!(numbers.contains(&waiting.number), "each mutation of a record has a hash");
            waiting.hash = *hash;
        }
        // Before a batch can take them.
        self.journaled.fetch_max(*numbers.end(), Ordering::AcqRel);
    }

    /// Mutations are in the journal from here on before they are sent, and none waits; the number of the last one before.
    pub(super) fn begin_journal(&self, size: u64) -> u64 {
        assert!(!self.has_waiting(), "a journal begins while mutations wait that it lacks");
        self.limit.begin_journal(size);
        let last = self.last();
        self.reach(last, 0);
        self.sent_ends.begin(JournalPosition::default());
        self.journaled.store(last, Ordering::Release);
        last
    }

    /// The server's record of the session has its position up to this mutation.
    pub(super) fn reach(&self, number: u64, hash: u64) {
        self.reached_hash.store(hash, Ordering::Release);
        self.reached.store(number, Ordering::Release);
    }

    /// With a journal: the last mutation of which the server's record of the session has the position.
    pub(super) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// The hash up to that.
    pub(super) fn reached_hash(&self) -> u64 {
        self.reached_hash.load(Ordering::Acquire)
    }

    /// The server has not taken mutations of a batch, from this one on: they wait again. When the session has ended they do not, since
    /// they are written back from the journal. Whether they wait.
    pub(super) fn put_back(&self, batch: &mut Batch, from: usize) -> bool {
        let mut collected = self.collected.lock();
        if self.is_kept(batch.last) {
            return false;
        }
        assert!(
            collected.done + (batch.mutations.len() - from) as u64 == batch.last,
            "mutations wait again behind those that the server has"
        );
        let spilled = batch.spilled.drain(..).chain(batch.taken_out.drain(..));
        let spilled: HashMap<usize, SpilledWrite> = spilled.map(|it| (it.index, it)).collect();
        let (mut in_memory, mut elsewhere, first) = (0, 0, collected.done + 1);
        let of_batch = batch.mutations.drain(from..).zip(batch.charges.drain(from..));
        let again: Vec<Waiting> = of_batch
            .zip(batch.hashes.drain(from..))
            .enumerate()
            .map(|(at, ((mutation, charge), hash))| {
                let spilled = spilled.get(&(from + at)).map(|it| (it.place, it.len));
                let record = Record::again(mutation, charge.room.blocks, spilled);
                in_memory += record.bytes();
                elsewhere += record.sent_bytes() - record.bytes();
                let (number, quota, user) = (first + at as u64, charge.quota, batch.user.clone());
                // It has waited for as long as anything.
                let made = Time::default();
                Waiting { number, made, hash, record, quota, user }
            })
            .collect();
        self.bytes.fetch_add(in_memory, Ordering::Relaxed);
        self.spilled.fetch_add(elsewhere as u64, Ordering::Relaxed);
        self.taken.fetch_sub(again.len() as u64, Ordering::AcqRel);
        again.into_iter().rev().for_each(|it| collected.waiting.push_front(it));
        collected.sending = None;
        true
    }

    /// There is no journal any more: mutations are sent at once.
    pub(super) fn end_journal(&self) {
        self.journaled.store(NO_JOURNAL, Ordering::Release);
    }

    /// The same, as the session has ended: what the journal has is to be written back from there.
    pub(super) fn interrupt_journal(&self) {
        let journaled = self.journaled.swap(NO_JOURNAL, Ordering::AcqRel);
        if journaled != NO_JOURNAL {
            self.kept.fetch_max(journaled, Ordering::AcqRel);
        }
    }

    /// Whether a mutation of a session that has ended is in the journal.
    pub(super) fn is_kept(&self, number: u64) -> bool {
        self.kept.load(Ordering::Acquire) >= number
    }

    /// Mutations up to this one were committed under the lease.
    pub(super) fn committed_leased(&self, last: u64) {
        self.leased.fetch_max(last, Ordering::AcqRel);
    }

    /// Whether all mutations of an inode, or all, were committed under the lease.
    pub(super) fn is_committed_leased(&self, ino: Option<Ino>) -> bool {
        let leased = self.leased.load(Ordering::Acquire);
        let mut collected = self.collected.lock();
        if leased >= self.last() {
            return true;
        }
        let Some(ino) = ino else { return false };
        self.collect(&mut collected);
        // Those of a batch under way were in the journal before that was taken, perhaps not under the lease.
        let sending = collected.sending.filter(|batch| batch.last > collected.done);
        if sending.is_some_and(|batch| batch.last > leased) {
            return false;
        }
        let start = collected.waiting.partition_point(|it| it.number <= leased);
        let mut later = collected.waiting.range(start..).map(|it| it.record.parts());
        !later.any(|it| it.mutation.kind.inodes().any(|changed| changed == ino))
    }

    /// Whether mutations wait that are in the journal.
    pub(super) fn may_send(&self) -> bool {
        let collected = self.collected.lock();
        collected.waiting.front().is_some_and(|first| self.is_journaled(first.number))
    }

    /// The next mutations that are not in the journal, of about so many bytes at most, or with their pages.
    pub(super) fn unjournaled(&self, most: usize, has_pages: bool) -> Option<Unjournaled> {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        let start = collected.waiting.partition_point(|waiting| self.is_journaled(waiting.number));
        let first = collected.waiting.get(start)?.number;
        let (mut bytes, mut last, mut runs) = (0, first, Vec::<Run>::new());
        for Waiting { number, record, quota, user, .. } in collected.waiting.range(start..) {
            bytes += match record.write_range().filter(|_| has_pages) {
                Some((_, range)) => paged_bytes(range.start, (range.end - range.start) as usize),
                None => record.bytes(),
            };
            if bytes > most && *number > first {
                break;
            }
            let Parts { mutation, blocks, .. } = record.parts();
            let user = user.as_deref().cloned();
            let next = JournaledMutation { mutation, blocks, quota: *quota };
            match runs.last_mut().filter(|run| run.user == user) {
                Some(run) => run.mutations.push(next),
                None => runs.push(Run { user, mutations: vec![next] }),
            }
            last = *number;
        }
        Some(Unjournaled { first, last, runs })
    }

    /// Mutations of a journal are about to wait again, which have numbers behind this position.
    pub(super) fn begin_recovery(&self, after: JournalPosition) {
        let JournalPosition { position: before, hash } = after;
        let mut collected = self.collected.lock();
        assert!(
            collected.waiting.is_empty() && self.last() == 0,
            "a client recovers before it begins"
        );
        collected.done = before;
        self.is_recovered.store(true, Ordering::Relaxed);
        self.reach(before, hash);
        self.made.store(before, Ordering::Release);
        self.taken.store(before, Ordering::Release);
    }

    /// The next mutations of a journal wait again.
    pub(super) fn recover(&self, runs: Vec<FoundRun>) {
        assert!(self.is_recovered(), "mutations wait again after a recovery has begun");
        let mut collected = self.collected.lock();
        let mut number = self.last();
        for FoundRun { user, mutations } in runs {
            let user = user.map(Arc::new);
            for FoundMutation { record, quota, hash } in mutations {
                number += 1;
                for ino in record.parts().mutation.kind.inodes() {
                    self.inodes.with_new(ino, |node| {
                        node.delegation.changed();
                        // Conflict copies are found by the session that has made it, also when the server has all changes of it.
                        node.cached.references += 1;
                    });
                }
                let (own, all) = (record.bytes(), record.sent_bytes());
                self.bytes.fetch_add(own, Ordering::Relaxed);
                self.spilled.fetch_add((all - own) as u64, Ordering::Relaxed);
                let user = user.clone();
                let made = Time::default();
                collected.waiting.push_back(Waiting { number, made, hash, record, quota, user });
            }
        }
        self.made.store(number, Ordering::Release);
        drop(collected);
        self.note_memory(self.in_memory());
    }

    /// So many bytes of mutations are in memory, or were.
    pub(super) fn note_memory(&self, bytes: usize) {
        self.most_in_memory.fetch_max(bytes, Ordering::Relaxed);
    }

    /// The most that was noted.
    pub(super) fn most_in_memory(&self) -> usize {
        self.most_in_memory.load(Ordering::Relaxed)
    }

    /// What was recovered goes on: it is in the journal with these mutations, of this size, which takes further ones.
    pub(super) fn go_on(&self, size: u64) {
        assert!(self.is_recovered(), "a client goes on that has recovered");
        self.limit.begin_journal(size);
        self.journaled.store(self.last(), Ordering::Release);
        self.is_recovered.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_recovered(&self) -> bool {
        self.is_recovered.load(Ordering::Relaxed)
    }

    /// What the mutations that wait have taken.
    pub(super) fn charges(&self) -> Vec<Charge> {
        let charge = |Waiting { record, quota, .. }: &Waiting| {
            let Parts { mutation, blocks, .. } = record.parts();
            Charge { quota: *quota, room: room_of(&mutation.kind, blocks) }
        };
        self.collected.lock().waiting.iter().map(charge).collect()
    }

    /// The server has the mutations of a recovered journal up to this position; whether the journal has the same, or has none up to there.
    pub(super) fn skip(
        &self,
        JournalPosition { position: applied, hash }: JournalPosition,
    ) -> bool {
        let mut collected = self.collected.lock();
        let count = collected.waiting.partition_point(|waiting| waiting.number <= applied);
        let skipped: Vec<Waiting> = collected.waiting.drain(..count).collect();
        let is_known = (self.reached()..=self.last()).contains(&applied);
        drop(collected);
        let own = skipped.last().map_or_else(|| self.reached_hash(), |it| it.hash);
        self.reach(applied, hash);
        let in_memory: usize = skipped.iter().map(|waiting| waiting.record.bytes()).sum();
        let all: usize = skipped.iter().map(|waiting| waiting.record.sent_bytes()).sum();
        let before = self.spilled.fetch_sub((all - in_memory) as u64, Ordering::Relaxed);
        assert!(before >= (all - in_memory) as u64, "more bytes are skipped than were spilled");
        self.leave(count, in_memory);
        let mutations: Vec<_> =
            skipped.into_iter().map(|waiting| waiting.record.into_parts().mutation).collect();
        self.remove(&mutations, 0, &HashMap::default());
        !is_known || own == hash
    }

    /// What the server does not have.
    pub(super) fn report(&self) -> QueueReport {
        let mut collected = self.collected.lock();
        self.collect(&mut collected);
        let journaled = self.journaled.load(Ordering::Acquire);
        let Collected { waiting, done, sending, .. } = &*collected;
        let sending = sending.filter(|batch| batch.last > *done);
        let sent = sending.map_or(Changes::default(), |SentBatch { last, bytes, .. }| Changes {
            changes: last - done,
            bytes,
        });
        // Nothing is sent that is not in the journal.
        let (mut unsent, mut in_journal) = (sent, sent);
        for Waiting { number, record, .. } in waiting {
            let bytes = record.data_bytes();
            for counted in [Some(&mut unsent), (*number <= journaled).then_some(&mut in_journal)] {
                let Some(counted) = counted else { continue };
                (counted.changes, counted.bytes) = (counted.changes + 1, counted.bytes + bytes);
            }
        }
        let oldest = sending.map(|batch| batch.oldest);
        let oldest = oldest.or_else(|| waiting.front().map(|first| first.record.time()));
        QueueReport { unsent, journaled: in_journal, oldest }
    }
}
