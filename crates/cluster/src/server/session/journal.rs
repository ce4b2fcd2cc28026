//! What a session knows of its client's journal: how far the server has applied it, and what the client may have changed there.

use std::ops::Range;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use thalweg_env::{HashMap, HashSet};
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::session_table::{AllUsed, Held, JournalPosition, UsedByOthers};
use thalweg_fs::{FsError, Ino};
use tokio::sync::MutexGuard;

use super::super::foreign_use::Use;
use crate::protocol::{BatchPositions, JournalMount, conflicts_with};

/// Whether the client of a journal is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::server) enum Presence {
    /// It is, or was heard not long ago.
    Present,
    /// It has been away for too long: the journal has lapsed, and other clients go on.
    Lapsed,
    /// It is back, and writes its journal back as far as other clients have not used what that is about.
    Returned,
}

/// What the filesystem's record of a session says of its client's journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::server) struct JournalInfo {
    /// The incarnation of its last mount.
    pub(in crate::server) incarnation: u64,
    pub(in crate::server) presence: Presence,
}

/// A use of the filesystem without a server, by programs that note nothing.
#[derive(Debug, Default)]
struct AllUses {
    noted: Option<AllUsed>,
    /// Inodes that the client has made since.
    made: HashSet<Ino>,
}

impl AllUses {
    fn has(&self, ino: Ino) -> bool {
        self.noted.is_some() && !self.made.contains(&ino)
    }
}

/// What a session knows of its client's journal.
#[derive(Debug)]
pub(in crate::server) struct SessionJournal {
    /// `None` without a journal.
    info: Mutex<Option<JournalInfo>>,
    /// Inodes that other clients have used while the client was away.
    used: Mutex<HashMap<Ino, UsedByOthers>>,
    /// Whether the filesystem was used without a server meanwhile.
    all: Mutex<AllUses>,
    /// Held while such a use is noted, and while the client comes back.
    pub(in crate::server) noting: tokio::sync::Mutex<()>,
    /// The last position that was applied.
    applied: Mutex<JournalPosition>,
    /// One batch at a time: one that a client has sent before it rebooted may be under way.
    applying: tokio::sync::Mutex<()>,
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
    turn: Option<(MutexGuard<'a, ()>, JournalPosition)>,
}

impl NextBatch<'_> {
    /// Its last position, for its record; that before the first one without a journal.
    pub(in crate::server) fn end(&self) -> JournalPosition {
        self.turn.as_ref().map(|(_, end)| *end).unwrap_or_default()
    }

    pub(in crate::server) fn applied(self) {
        if let Some((_turn, end)) = self.turn {
            *self.journal.applied.lock() = end;
        }
    }
}

impl SessionJournal {
    pub(in crate::server) fn new(
        info: Option<JournalInfo>,
        applied: JournalPosition,
        Held { numbers, used, all, made, .. }: Held,
    ) -> SessionJournal {
        let all = AllUses { noted: all, made: made.into_iter().collect() };
        SessionJournal {
            all: Mutex::new(all),
            info: Mutex::new(info),
            used: Mutex::new(used.into_iter().map(|it| (it.ino, it)).collect()),
            noting: tokio::sync::Mutex::default(),
            applied: Mutex::new(applied),
            applying: tokio::sync::Mutex::default(),
            reserved: Mutex::new(numbers),
        }
    }

    pub(in crate::server) fn info(&self) -> Option<JournalInfo> {
        *self.info.lock()
    }

    /// Whether the client keeps a journal.
    pub(in crate::server) fn is_kept(&self) -> bool {
        self.info().is_some()
    }

    pub(in crate::server) fn has_lapsed(&self) -> bool {
        self.info().is_some_and(|info| info.presence == Presence::Lapsed)
    }

    /// Whether it has lapsed for this mount, which is the last one.
    pub(in crate::server) fn has_lapsed_for(&self, mount: Option<JournalMount>) -> bool {
        let latest = self.info().filter(|info| info.presence == Presence::Lapsed);
        latest.is_some_and(|it| mount == Some(JournalMount::Incarnation(it.incarnation)))
    }

    /// Whether the client was away for so long that other clients went on.
    pub(in crate::server) fn has_returned(&self) -> bool {
        self.info().is_some_and(|info| info.presence == Presence::Returned)
    }

    /// The client was away for too long; whether that is news.
    pub(in crate::server) fn lapse(&self) -> bool {
        let mut info = self.info.lock();
        let Some(info) = info.as_mut().filter(|info| info.presence != Presence::Lapsed) else {
            return false;
        };
        info.presence = Presence::Lapsed;
        true
    }

    /// The client has rebooted: whether nothing has changed since `before` was read.
    pub(in crate::server) fn reboot(&self, before: JournalInfo, next: JournalInfo) -> bool {
        assert!(next.incarnation > before.incarnation, "incarnations grow");
        let mut info = self.info.lock();
        let is_first = *info == Some(before);
        if is_first {
            *info = Some(next);
        }
        is_first
    }

    /// Returns when no batch is applied that has begun before. One that begins while the client is away is refused.
    pub(in crate::server) async fn batches_ended(&self) {
        drop(self.applying.lock().await);
    }

    /// The ones of these inodes whose use was not noted yet.
    pub(in crate::server) fn unused<'a>(&self, inodes: impl Iterator<Item = &'a Ino>) -> Vec<Ino> {
        let (all, used) = (self.all.lock(), self.used.lock());
        inodes.filter(|ino| !used.contains_key(ino) && !all.has(**ino)).copied().collect()
    }

    /// A use of the filesystem without a server, while the client was away.
    pub(in crate::server) fn all_used(&self) -> Option<AllUsed> {
        self.all.lock().noted
    }

    /// The inodes that mutations make, if these are to be told from those that were there when the filesystem was used without a server.
    pub(in crate::server) fn unnoted(&self, mutations: &[Mutation]) -> Vec<Ino> {
        let all = self.all.lock();
        let made = mutations.iter().filter_map(|it| it.kind.made());
        made.filter(|ino| all.has(*ino)).collect()
    }

    /// The client is about to make these inodes.
    pub(in crate::server) fn note_made(&self, made: Vec<Ino>) {
        self.all.lock().made.extend(made);
    }

    pub(in crate::server) fn note_used(&self, used: Vec<UsedByOthers>) {
        self.used.lock().extend(used.into_iter().map(|it| (it.ino, it)));
    }

    /// The inodes that other clients have used while the client was away.
    pub(in crate::server) fn used(&self) -> Vec<UsedByOthers> {
        let mut used: Vec<_> = self.used.lock().values().cloned().collect();
        used.sort_unstable_by_key(|it| it.ino);
        used
    }

    /// What is to be noted when other clients use these inodes further, of which a use was noted before.
    pub(in crate::server) fn widened(&self, uses: &[Use]) -> Vec<UsedByOthers> {
        let (used, mut widened) = (self.used.lock(), HashMap::default());
        for it in uses {
            let Some(before) = widened.get(&it.ino).or_else(|| used.get(&it.ino)) else { continue };
            if let Some(after) = it.widen(before) {
                widened.insert(it.ino, after);
            }
        }
        let mut widened: Vec<_> = widened.into_values().collect();
        widened.sort_unstable_by_key(|it| it.ino);
        widened
    }

    /// Numbers of inodes that the client may have made.
    pub(in crate::server) fn reserved(&self) -> Vec<Range<u64>> {
        self.reserved.lock().clone()
    }

    /// [`FsError::Stale`] if other clients have used an inode that mutations change, while the client was away. A directory that they
    /// have seen is no such inode where names change in it: the inodes behind these are. A write to a file of which they have only
    /// written other bytes is none, either.
    pub(in crate::server) fn check_unused(&self, mutations: &[Mutation]) -> Result<(), FsError> {
        let (all, used) = (self.all.lock(), self.used.lock());
        let made: HashSet<Ino> = match all.noted {
            Some(_) => mutations.iter().filter_map(|it| it.kind.made()).collect(),
            None => HashSet::default(),
        };
        let is_of_all = |ino: Ino| all.has(ino) && !made.contains(&ino);
        let conflicts = |kind: &MutationKind| match kind {
            MutationKind::Write { ino, offset, data, .. } => {
                let range = *offset..offset.saturating_add(data.len() as u64);
                let widely = |it: &UsedByOthers| conflicts_with(it.written.as_deref(), &range);
                used.get(ino).map_or_else(|| is_of_all(*ino), widely)
            }
            kind => kind.subjects().any(|ino| used.contains_key(&ino) || is_of_all(ino)),
        };
        let has_conflict = mutations.iter().any(|mutation| conflicts(&mutation.kind));
        if has_conflict { Err(FsError::Stale) } else { Ok(()) }
    }

    /// The last position that was applied.
    pub(in crate::server) fn applied(&self) -> JournalPosition {
        *self.applied.lock()
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
    /// [`FsError::Invalid`] when mutations are missing before it, it has applied ones and others, or other ones were applied.
    pub(in crate::server) async fn begin(
        &self,
        positions: Option<BatchPositions>,
    ) -> Result<BatchPosition<'_>, FsError> {
        let Some(BatchPositions { after, end }) = positions.filter(|_| self.is_kept()) else {
            return match (positions, self.is_kept()) {
                (None, false) => Ok(BatchPosition::Next(NextBatch { journal: self, turn: None })),
                _ => Err(FsError::Invalid("a batch has positions when its client has a journal")),
            };
        };
        let turn = self.applying.lock().await;
        if self.has_lapsed() {
            return Err(FsError::Stale);
        }
        let applied = self.applied();
        if after.position >= end.position || after.position > applied.position {
            return Err(FsError::Invalid("mutations are missing before the batch"));
        }
        // At one position each journal of the session has one hash.
        if [after, end].iter().any(|it| it.position == applied.position && *it != applied) {
            return Err(FsError::Invalid("other mutations were applied at the batch's positions"));
        }
        if end.position <= applied.position {
            return Ok(BatchPosition::Applied);
        }
        if after.position < applied.position {
            return Err(FsError::Invalid("a part of the batch was applied before"));
        }
        Ok(BatchPosition::Next(NextBatch { journal: self, turn: Some((turn, end)) }))
    }
}
