//! What a session knows of its client's journal: how far the server has applied it, and what the client may have changed there.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_fs::session_table::Held;
use thalweg_fs::{FsError, Ino};
use tokio::sync::MutexGuard;

/// What a session knows of its client's journal.
#[derive(Debug)]
pub(in crate::server) struct SessionJournal {
    /// The incarnation; `None` without a journal.
    pub(in crate::server) incarnation: Mutex<Option<u64>>,
    /// The last position that was applied.
    applied: AtomicU64,
    /// One batch at a time: one that a client has sent before it rebooted may be under way.
    applying: tokio::sync::Mutex<()>,
    /// What the records have of an earlier server.
    pub(in crate::server) held: Held,
    /// Inode numbers that were reserved for the client, also those that inodes have by now.
    reserved: Mutex<Vec<Range<u64>>>,
}

/// Where a batch stands in a journal.
pub(in crate::server) enum BatchPosition<'a> {
    /// It was applied before.
    Applied,
    Next(NextBatch<'a>),
}

/// A batch that is about to be applied.
pub(in crate::server) struct NextBatch<'a> {
    journal: &'a SessionJournal,
    /// `None` without a journal.
    turn: Option<(MutexGuard<'a, ()>, u64)>,
}

impl NextBatch<'_> {
    /// Its last position, for its record; 0 without a journal.
    pub(in crate::server) fn last(&self) -> u64 {
        self.turn.as_ref().map_or(0, |(_, last)| *last)
    }

    pub(in crate::server) fn applied(self) {
        if let Some((_turn, last)) = self.turn {
            self.journal.applied.store(last, Ordering::Release);
        }
    }
}

impl SessionJournal {
    pub(in crate::server) fn new(
        incarnation: Option<u64>,
        applied: u64,
        held: Held,
    ) -> SessionJournal {
        SessionJournal {
            incarnation: Mutex::new(incarnation),
            applied: AtomicU64::new(applied),
            applying: tokio::sync::Mutex::default(),
            reserved: Mutex::new(held.numbers.clone()),
            held,
        }
    }

    /// Whether the client keeps a journal.
    pub(in crate::server) fn is_kept(&self) -> bool {
        self.incarnation.lock().is_some()
    }

    /// The last position that was applied.
    pub(in crate::server) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Inode numbers are the client's.
    pub(in crate::server) fn reserve(&self, numbers: Range<u64>) {
        if self.is_kept() {
            self.reserved.lock().push(numbers);
        }
    }

    /// Whether an inode has a number of the client's: its journal may have changes of it, and the client no answer that told of
    /// it.
    pub(in crate::server) fn has_made(&self, ino: Ino) -> bool {
        self.reserved.lock().iter().any(|numbers| numbers.contains(&ino.0))
    }

    /// A batch with these positions is about to be applied.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when mutations are missing before it, or it has applied ones and others.
    pub(in crate::server) async fn begin(
        &self,
        positions: Option<(u64, u64)>,
    ) -> Result<BatchPosition<'_>, FsError> {
        let Some((first, last)) = positions.filter(|_| self.is_kept()) else {
            return match (positions, self.is_kept()) {
                (None, false) => Ok(BatchPosition::Next(NextBatch { journal: self, turn: None })),
                _ => Err(FsError::Invalid("a batch has positions when its client has a journal")),
            };
        };
        let turn = self.applying.lock().await;
        let applied = self.applied();
        if first > last || first.saturating_sub(1) > applied {
            return Err(FsError::Invalid("mutations are missing before the batch"));
        }
        if last <= applied {
            return Ok(BatchPosition::Applied);
        }
        if first <= applied {
            return Err(FsError::Invalid("a part of the batch was applied before"));
        }
        Ok(BatchPosition::Next(NextBatch { journal: self, turn: Some((turn, last)) }))
    }
}
