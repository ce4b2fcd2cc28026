//! A batch that is staged while the server applies the one before it, so that the link does not rest meanwhile.
//!
//! Its mutations stay in the queue. The next batch has just these, and need not be encoded and staged again. Should it not
//! come, nothing is lost: the server drops what it was sent.

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_fs::Ino;
use thalweg_fs::mutation::Mutation;

use crate::protocol::MAX_MUTATIONS;

/// What is sent of the mutations with these numbers.
pub(super) struct Encoded {
    pub(super) first: u64,
    pub(super) last: u64,
    /// What is left of them, for which their bytes do not matter any more.
    pub(super) mutations: Vec<Mutation>,
    /// Its parts, each but the last one as long as it can be.
    pub(super) parts: Vec<Bytes>,
    /// Numbers of inodes that are not made.
    pub(super) spent: Vec<Ino>,
    /// The server has it, and has got it in this time.
    pub(super) staged_in: Option<Duration>,
}

#[derive(Default)]
pub(super) struct StagedAhead(Mutex<Option<Encoded>>);

impl Encoded {
    /// Whether it goes in one message.
    pub(super) fn is_one(&self) -> bool {
        self.parts.len() == 1 && self.mutations.len() <= MAX_MUTATIONS
    }

    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

impl StagedAhead {
    pub(super) fn set(&self, encoded: Encoded) {
        *self.0.lock() = Some(encoded);
    }

    /// How many mutations the next batch has, behind those up to this one; `None` if nothing was staged of it.
    pub(super) fn mutations_behind(&self, done: u64) -> Option<usize> {
        let mut ahead = self.0.lock();
        // Another session may have gone on behind it.
        ahead.take_if(|it| it.first <= done);
        let ahead = ahead.as_ref().filter(|it| it.first == done + 1);
        ahead.map(|it| (it.last - done) as usize)
    }

    /// What was staged of the batch with these numbers.
    pub(super) fn take(&self, first: u64, last: u64) -> Option<Encoded> {
        self.0.lock().take_if(|it| (it.first, it.last) == (first, last))
    }
}
