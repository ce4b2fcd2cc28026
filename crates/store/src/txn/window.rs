//! The stream of recent transactions, in the order of their commit timestamps, and the decision from it alone
//! (4.2.1).

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::intent::{Intent, Verdict};

/// Slots in a chunk.
const CHUNK: u64 = 64;

/// A run of slots. The signatures lie together, so that scanning a long window reads little memory.
#[derive(Debug)]
pub(super) struct Chunk {
    first: u64,
    slots: [OnceLock<(u64, Arc<Intent>)>; CHUNK as usize],
}

/// Intention records by commit timestamp, without holes.
#[derive(Debug)]
pub(super) struct Stream {
    chunks: VecDeque<Arc<Chunk>>,
    /// The next timestamp.
    next: u64,
    /// Chunks that no window needs, until [`Stream::take_forgotten`]: dropping one frees many blocks.
    forgotten: Forgotten,
}

/// Chunks of slots that were forgotten.
pub(super) type Forgotten = SmallVec<[Arc<Chunk>; 1]>;

/// A part of the stream.
#[derive(Clone, Debug)]
pub(super) struct Window {
    chunks: SmallVec<[Arc<Chunk>; 2]>,
    /// Timestamps of the first one, and of the one after the last.
    start: u64,
    end: u64,
}

impl Stream {
    pub(super) fn new() -> Stream {
        Stream { chunks: VecDeque::new(), next: 0, forgotten: Forgotten::new() }
    }

    /// The next timestamp.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Gives `intent` its commit timestamp. Returns that and the window before it.
    pub(super) fn push(&mut self, intent: Arc<Intent>) -> (u64, Window) {
        let at = self.next;
        if self.chunks.back().is_none_or(|chunk| chunk.first + CHUNK == at) {
            let slots = std::array::from_fn(|_| OnceLock::new());
            self.chunks.push_back(Arc::new(Chunk { first: at, slots }));
        }
        let window = self.window(intent.since, at);
        if let Some(chunk) = self.chunks.back() {
            let signature = intent.written_signature();
            chunk.slots[(at - chunk.first) as usize].set((signature, intent)).ok();
        }
        self.next += 1;
        (at, window)
    }

    /// The transactions from `start` to `end` that are still remembered.
    pub(super) fn window(&self, start: u64, end: u64) -> Window {
        let overlaps = |chunk: &&Arc<Chunk>| chunk.first + CHUNK > start && chunk.first < end;
        let first = self.chunks.front().map_or(start, |chunk| chunk.first);
        let skip = (start.max(first) - first) / CHUNK;
        let chunks = self.chunks.range((skip as usize).min(self.chunks.len())..);
        Window { chunks: chunks.take_while(overlaps).cloned().collect(), start, end }
    }

    /// The intention record with a timestamp.
    pub(super) fn get(&self, at: u64) -> Option<Arc<Intent>> {
        let first = self.chunks.front()?.first;
        let chunk = self.chunks.get((at.checked_sub(first)? / CHUNK) as usize)?;
        chunk.slots[(at - chunk.first) as usize].get().map(|(_, intent)| intent.clone())
    }

    /// Forgets the transactions before `until`, in whole chunks.
    pub(super) fn forget(&mut self, until: u64) {
        while self.chunks.front().is_some_and(|chunk| chunk.first + CHUNK <= until) {
            self.forgotten.extend(self.chunks.pop_front());
        }
    }

    /// Takes the chunks that were forgotten.
    pub(super) fn take_forgotten(&mut self) -> Forgotten {
        std::mem::take(&mut self.forgotten)
    }

    /// The number of remembered slots.
    pub(super) fn len(&self) -> usize {
        self.chunks.front().map_or(0, |chunk| (self.next - chunk.first) as usize)
    }
}

impl Window {
    /// The transactions of the window that write a block of `signature`, with their timestamps,
    /// ascending.
    fn meeting(&self, signature: u64) -> impl DoubleEndedIterator<Item = (u64, &Arc<Intent>)> {
        self.chunks.iter().flat_map(move |chunk| {
            let from = self.start.saturating_sub(chunk.first).min(CHUNK);
            let to = self.end.saturating_sub(chunk.first).min(CHUNK);
            let slots = chunk.slots.iter().enumerate().take(to as usize).skip(from as usize);
            slots.filter_map(move |(at, slot)| {
                let (written, intent) = slot.get()?;
                (written & signature != 0).then_some((chunk.first + at as u64, intent))
            })
        })
    }

    /// The window without its first `count` transactions.
    #[cfg(feature = "seeded-bugs")]
    pub(super) fn without_first(self, count: u64) -> Window {
        Window { start: self.start.saturating_add(count), ..self }
    }

    /// The part of the window that belongs to the transaction with timestamp `at` in it.
    fn before(&self, at: u64, intent: &Intent) -> Window {
        Window { chunks: self.chunks.clone(), start: intent.since, end: at }
    }

    /// Decides on `intent`, whose window this is (4.2.1): it aborts if a transaction that commits changed
    /// something it is guarded against.
    ///
    /// Transactions in the window that are still open are decided along the way. That needs no waiting: the
    /// decision is a function of the stream before it, so every task reaches the same one, and the first
    /// makes it. `reach` finds the window of an older transaction.
    pub(super) fn decide(&self, intent: &Intent, reach: &impl Fn(u64, u64) -> Window) -> Verdict {
        match intent.verdict() {
            Verdict::Open => {}
            known => return known,
        }
        let stands = |(at, other): (u64, &Arc<Intent>)| {
            intent.conflicts_with(other) && {
                let window = match other.since >= self.start {
                    true => self.before(at, other),
                    false => reach(other.since, at),
                };
                window.decide(other, reach) == Verdict::Commit
            }
        };
        let verdict = match self.meeting(intent.sought_signature()).any(stands) {
            true => Verdict::Abort,
            false => Verdict::Commit,
        };
        intent.set_verdict(verdict);
        verdict
    }

    /// The transactions of the window that write a block which `intent` writes too, ascending.
    pub(super) fn sharing(&self, intent: &Intent) -> Vec<&Intent> {
        let met = self.meeting(intent.written_signature()).map(|(_, other)| &**other);
        met.filter(|other| other.meets_part_of(intent)).collect()
    }
}
