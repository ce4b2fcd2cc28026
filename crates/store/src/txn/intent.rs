//! Intention records: transactions between `commit` and the store.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::fragments::Fragments;
use crate::block::{
    Applied, BLOCK_SIZE, Backpressure, ByteRanges, Class, Lba, Retention, StoreError, Version,
    Write,
};
use crate::device::AlignedBuf;

/// A transaction with this many times fewer blocks than another is compared block by block.
const SPARSE: usize = 16;

/// Whether a transaction commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Verdict {
    /// Not decided yet.
    Open = 0,
    /// No earlier commit conflicts with it.
    Commit = 1,
    /// A commit in its window conflicts with it.
    Abort = 2,
}

/// A block that a transaction writes.
#[derive(Debug)]
pub(super) struct IntentWrite {
    pub(super) lba: Lba,
    pub(super) fragments: Fragments,
    changed: ByteRanges,
    class: Class,
    content: Option<Bytes>,
    /// The applied content: `content`, merged with what concurrent commits changed elsewhere in the block.
    merged: OnceLock<Option<Bytes>>,
}

impl IntentWrite {
    pub(super) fn new(
        lba: Lba,
        content: Option<Bytes>,
        changed: ByteRanges,
        class: Class,
        fragments: Fragments,
    ) -> IntentWrite {
        IntentWrite { lba, fragments, changed, class, content, merged: OnceLock::new() }
    }

    /// The block with this write's changes on top of the content `latest`.
    pub(super) fn merge(&self, latest: Option<&Bytes>) -> Option<Bytes> {
        let content = self.content.as_ref()?;
        let mut merged = match latest {
            Some(latest) => AlignedBuf::copy_of(latest),
            None => AlignedBuf::zeroed(BLOCK_SIZE),
        };
        self.changed.copy(content, &mut merged);
        Some(merged.freeze())
    }

    /// Whether the write leaves some bytes of the block unchanged.
    pub(super) fn is_partial(&self) -> bool {
        self.content.is_some() && !self.changed.is_whole()
    }

    /// The applied content.
    fn applied(&self) -> Option<&Bytes> {
        self.merged.get().unwrap_or(&self.content).as_ref()
    }

    fn to_write(&self) -> Write {
        Write {
            lba: self.lba,
            content: self.applied().cloned(),
            changed: self.changed.clone(),
            class: self.class,
        }
    }
}

/// A transaction that is to commit.
#[derive(Debug)]
pub(super) struct Intent {
    /// What no commit in the window may have changed, ascending: the read-set under strict serializability,
    /// the write-set under snapshot isolation (4.2.1).
    guarded: Vec<(Lba, Fragments)>,
    /// Ascending.
    pub(super) writes: Vec<IntentWrite>,
    /// A run of blocks that is discarded as a whole, or changed as one.
    swath: Option<Range<u64>>,
    /// The timestamp at which its window begins: earlier commits are in its snapshot.
    pub(super) since: u64,
    verdict: AtomicU8,
    /// Its outcome in the store.
    outcome: OnceLock<Result<Version, StoreError>>,
    /// What the store keeps for its owner.
    retention: Retention,
    /// What its owner gets beside the version, whichever task applied it.
    applied: Mutex<Option<Applied>>,
    /// Notified when there is an outcome, and when its owner may have to apply it itself.
    pub(super) changed: Notify,
}

impl Intent {
    pub(super) fn new(
        guarded: Vec<(Lba, Fragments)>,
        writes: Vec<IntentWrite>,
        since: u64,
    ) -> Intent {
        Intent {
            guarded,
            writes,
            swath: None,
            since,
            verdict: AtomicU8::new(Verdict::Open as u8),
            outcome: OnceLock::new(),
            retention: Retention::Newest,
            applied: Mutex::new(None),
            changed: Notify::new(),
        }
    }

    /// Writes outside of transactions, which nothing conflicts with: their window is empty.
    pub(super) fn singleton(writes: Vec<IntentWrite>, retention: Retention) -> Intent {
        Intent { retention, ..Intent::new(Vec::new(), writes, u64::MAX) }
    }

    /// Whether it is a write outside of transactions.
    pub(super) fn is_singleton(&self) -> bool {
        self.since == u64::MAX
    }

    /// The content that the transaction gives `lba`: `Some(None)` if it discards it, `None` if it leaves it.
    pub(super) fn content_of(&self, lba: Lba) -> Option<Option<&Bytes>> {
        let at = self.writes.binary_search_by_key(&lba, |write| write.lba).ok()?;
        self.writes.get(at).map(|write| write.content.as_ref())
    }

    /// A change of a whole run of blocks.
    pub(super) fn of_swath(swath: Range<u64>) -> Intent {
        Intent { swath: Some(swath), ..Intent::singleton(Vec::new(), Retention::Newest) }
    }

    /// The run of blocks that it discards.
    pub(super) fn swath(&self) -> Option<Range<u64>> {
        self.swath.clone()
    }

    /// A bit for each block that it writes: without a common bit there is no common block.
    pub(super) fn written_signature(&self) -> u64 {
        match self.swath {
            Some(_) => u64::MAX,
            None => signature(self.writes.iter().map(|write| write.lba)),
        }
    }

    /// A bit for each block that its decision depends on.
    pub(super) fn sought_signature(&self) -> u64 {
        signature(self.guarded.iter().map(|(lba, _)| *lba)) | self.written_signature()
    }

    /// Whether `other`, if it commits, conflicts with this one.
    pub(super) fn conflicts_with(&self, other: &Intent) -> bool {
        if let Some(swath) = &other.swath {
            return self.guarded.iter().any(|(lba, _)| swath.contains(&lba.0));
        }
        if other.writes.len() < self.guarded.len() / SPARSE {
            return other.writes.iter().any(|write| {
                let at = self.guarded.partition_point(|(lba, _)| *lba < write.lba);
                let here = self.guarded[at..].iter().take_while(|(lba, _)| *lba == write.lba);
                here.into_iter().any(|(_, fragments)| write.fragments.overlaps(fragments))
            });
        }
        let mut theirs = other.writes.iter().peekable();
        self.guarded.iter().any(|(lba, fragments)| {
            while theirs.next_if(|write| write.lba < *lba).is_some() {}
            theirs.peek().is_some_and(|w| w.lba == *lba && w.fragments.overlaps(fragments))
        })
    }

    /// Whether it changes a block of which `other` changes a part.
    pub(super) fn meets_part_of(&self, other: &Intent) -> bool {
        if self.swath.is_none() && self.writes.len() < other.writes.len() / SPARSE {
            return self.writes.iter().any(|write| {
                let at = other.writes.binary_search_by_key(&write.lba, |write| write.lba).ok();
                at.is_some_and(|at| other.writes[at].is_partial())
            });
        }
        let mut partial = other.writes.iter().filter(|write| write.is_partial());
        partial.any(|write| self.left_in(write.lba).is_some())
    }

    /// The content of `lba` after it, if it changes that block: `Some(None)` when discarded.
    fn left_in(&self, lba: Lba) -> Option<Option<&Bytes>> {
        if self.swath.as_ref().is_some_and(|swath| swath.contains(&lba.0)) {
            return Some(None);
        }
        let at = self.writes.binary_search_by_key(&lba, |write| write.lba).ok()?;
        self.writes.get(at).map(IntentWrite::applied)
    }

    pub(super) fn verdict(&self) -> Verdict {
        match self.verdict.load(Ordering::Acquire) {
            1 => Verdict::Commit,
            2 => Verdict::Abort,
            _ => Verdict::Open,
        }
    }

    /// Every task that decides reaches the same verdict.
    pub(super) fn set_verdict(&self, verdict: Verdict) {
        self.verdict.store(verdict as u8, Ordering::Release);
    }

    pub(super) fn outcome(&self) -> Option<&Result<Version, StoreError>> {
        self.outcome.get()
    }

    pub(super) fn set_outcome(&self, outcome: Result<Version, StoreError>) {
        self.outcome.set(outcome).ok();
    }

    /// Wakes the tasks that wait for the outcome.
    pub(super) fn announce(&self) {
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    /// Whether its owner wants a hold on its version.
    pub(super) fn wants_hold(&self) -> bool {
        self.retention == Retention::Hold
    }

    /// Leaves the owner's hold and the delay that it owes, before there is an outcome.
    pub(super) fn set_applied(&self, applied: Applied) {
        *self.applied.lock() = Some(applied);
    }

    /// What the owner gets for its version `version`.
    pub(super) fn take_applied(&self, version: Version) -> Applied {
        let applied = self.applied.lock().take();
        applied.unwrap_or_else(|| Applied::new(version, None, Backpressure::NONE))
    }

    /// Whether other transactions see it.
    fn is_applied(&self) -> bool {
        matches!(self.outcome.get(), Some(Ok(_)))
    }

    /// Merges what the newest of `earlier` (ascending, all settled) left in the blocks that this one writes
    /// in part (4.2.2). Otherwise the later of two transactions that change one block would undo the earlier
    /// one's changes.
    pub(super) fn merge(&self, earlier: &[&Intent]) {
        for write in self.writes.iter().filter(|write| write.is_partial()) {
            let applied = earlier.iter().rev().filter(|other| other.is_applied());
            if let Some(left) = applied.filter_map(|other| other.left_in(write.lba)).next() {
                write.merged.set(write.merge(left)).ok();
            }
        }
    }

    /// Merges the store's current content of the blocks that this one writes in part: `latest` has those
    /// blocks, in order.
    pub(super) fn merge_onto(&self, latest: &[Option<Bytes>]) {
        let partial = self.writes.iter().filter(|write| write.is_partial());
        for (write, latest) in partial.zip(latest) {
            write.merged.set(write.merge(latest.as_ref())).ok();
        }
    }

    /// The write list for the store.
    pub(super) fn to_writes(&self) -> Vec<Write> {
        self.writes.iter().map(IntentWrite::to_write).collect()
    }
}

fn signature(blocks: impl Iterator<Item = Lba>) -> u64 {
    blocks.fold(0, |bits, lba| bits | 1 << (lba.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58))
}
