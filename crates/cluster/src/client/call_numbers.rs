//! The numbers of the calls without an answer, and the slots of changes: a server keeps a record of the last change in each.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::{BATCH_SLOT, CallEffect, MAX_ANSWERED, ReplayedCall};

/// Calls of one incarnation of a client have numbers that differ below this bit.
const INCARNATION: u32 = 40;

/// A call that is to be carried out once.
struct Once {
    slot: u16,
    /// What it may have come to before it has an answer.
    effect: Option<CallEffect>,
    /// The number of the first server that it was sent to.
    server: Option<u64>,
}

#[derive(Default)]
struct Pending {
    last: u64,
    /// Those that are to be carried out once.
    once: BTreeMap<u64, Once>,
    /// The number of calls under way that may be repeated: the server keeps no answers to them.
    others: usize,
    /// Answered calls behind one without an answer, of which the server does not know that they were answered.
    answered: VecDeque<u64>,
}

impl Pending {
    /// The oldest call without an answer, or the next one.
    fn oldest(&self) -> u64 {
        self.once.first_key_value().map_or(self.last + 1, |(first, _)| *first)
    }

    fn end(&mut self, number: u64, is_once: bool) {
        if !is_once {
            assert!(self.others > 0, "a call ends that has not begun");
            self.others -= 1;
            return;
        }
        let begun = self.once.remove(&number);
        assert!(begun.is_some(), "a call ends that has not begun");
        if number > self.oldest() {
            self.answered.push_back(number);
        }
    }
}

/// The numbers of the calls without an answer.
#[derive(Clone, Default)]
pub(super) struct CallNumbers(Arc<Mutex<Pending>>);

impl CallNumbers {
    /// A number for a call in this slot.
    pub(super) fn begin(&self, is_once: bool, slot: u16, effect: Option<CallEffect>) -> Number {
        let mut pending = self.0.lock();
        pending.last += 1;
        let number = pending.last;
        if is_once {
            let before = pending.once.insert(number, Once { slot, effect, server: None });
            assert!(before.is_none(), "each call has a number of its own");
        } else {
            pending.others += 1;
        }
        Number { numbers: self.clone(), number, is_once }
    }

    /// The client has rebooted, and its calls follow those of earlier incarnations.
    pub(super) fn begin_behind(&self, incarnation: u64) {
        self.0.lock().last = incarnation << INCARNATION;
    }

    pub(super) fn pending(&self) -> usize {
        let pending = self.0.lock();
        pending.once.len() + pending.others
    }

    /// A call is about to be sent to the server of this number.
    pub(super) fn sends(&self, number: u64, server: u64) {
        if let Some(once) = self.0.lock().once.get_mut(&number) {
            once.server.get_or_insert(server);
        }
    }

    /// The calls that may have come to something before they have answers.
    pub(super) fn unanswered(&self) -> Vec<ReplayedCall> {
        let replayed = |(number, once): (&u64, &Once)| {
            let Once { slot, effect, server } = *once;
            Some(ReplayedCall { number: *number, slot, server: server?, effect: effect? })
        };
        self.0.lock().once.iter().filter_map(replayed).collect()
    }

    /// The calls that are to be carried out once, for the server on a new connection: it forgets the answers to all others.
    pub(super) fn resume(&self) -> Vec<u64> {
        let mut pending = self.0.lock();
        pending.answered.clear();
        pending.once.keys().copied().collect()
    }

    /// What the server is to know with a call that is sent now: [`Call::oldest`](crate::protocol::Call::oldest) and
    /// [`Call::answered`](crate::protocol::Call::answered).
    pub(super) fn acknowledge(&self) -> (u64, Vec<u64>) {
        let mut pending = self.0.lock();
        let oldest = pending.oldest();
        pending.answered.retain(|number| *number > oldest);
        let some = pending.answered.len().min(MAX_ANSWERED);
        (oldest, pending.answered.drain(..some).collect())
    }
}

/// The number of a call that has no answer yet.
pub(super) struct Number {
    numbers: CallNumbers,
    pub(super) number: u64,
    pub(super) is_once: bool,
}

impl Drop for Number {
    fn drop(&mut self) {
        self.numbers.0.lock().end(self.number, self.is_once);
    }
}

/// The slots of the session that no call uses.
pub(super) struct Slots {
    free: Arc<Mutex<Vec<u16>>>,
    permits: Arc<Semaphore>,
}

impl Default for Slots {
    fn default() -> Slots {
        // The lowest first: servers keep a record of each one that was used.
        let free = Arc::new(Mutex::new((0..BATCH_SLOT).rev().collect()));
        Slots { free, permits: Arc::new(Semaphore::new(usize::from(BATCH_SLOT))) }
    }
}

impl Slots {
    /// A slot, as soon as one is free.
    pub(super) async fn acquire(&self) -> Option<Arc<Slot>> {
        let permit = self.permits.clone().acquire_owned().await.ok()?;
        let number = self.free.lock().pop()?;
        Some(Arc::new(Slot { number, from: Some((self.free.clone(), permit)) }))
    }
}

/// A slot that a call uses, until its last clone is dropped.
pub(super) struct Slot {
    pub(super) number: u16,
    /// Where it goes back to; not that of batches, of which one is under way at a time.
    from: Option<(Arc<Mutex<Vec<u16>>>, OwnedSemaphorePermit)>,
}

impl Slot {
    pub(super) fn of_batch() -> Arc<Slot> {
        Arc::new(Slot { number: BATCH_SLOT, from: None })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some((free, _)) = &self.from {
            free.lock().push(self.number);
        }
    }
}
