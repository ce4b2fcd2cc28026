//! What clients do with inodes of which another one may have changes in its journal, that is away.
//!
//! The first use of such an inode is noted when it is taken back from the client (`recall`). Here is noted how much
//! of it was used: bytes that are written, or all of it, by any other change or a read of its bytes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_fs::Ino;
use thalweg_fs::mutation::{Mutation, MutationKind};
use thalweg_fs::ranges::Ranges;
use thalweg_fs::session_table::{MAX_WRITTEN, UsedByOthers};

use crate::protocol::{Changed, Request};

/// Whether the use of an inode was noted since the server started: before that no call asks for more.
#[derive(Debug, Default)]
pub(super) struct ForeignUses(AtomicBool);

impl ForeignUses {
    pub(super) fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A use of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Use {
    pub(super) ino: Ino,
    /// The bytes that are written; `None`: all of it counts as used.
    pub(super) written: Option<Range<u64>>,
}

impl Use {
    fn all(ino: Ino) -> Use {
        Use { ino, written: None }
    }

    fn write(ino: Ino, start: u64, end: u64) -> Use {
        // To the end, whatever that is: the size is used, too.
        Use { ino, written: (end < u64::MAX).then_some(start..end) }
    }

    /// What was used before and with this; `None` if that is the same.
    pub(super) fn widen(&self, before: &UsedByOthers) -> Option<UsedByOthers> {
        let ranges = before.written.as_ref()?;
        let written = self.written.as_ref().and_then(|range| {
            let mut all: Ranges = ranges.iter().cloned().collect();
            all.add(range.clone());
            (all.len() <= MAX_WRITTEN).then(|| all.iter().collect())
        });
        let after = UsedByOthers { written, ..before.clone() };
        (after != *before).then_some(after)
    }
}

/// What these changes use.
pub(super) fn of_changes(changes: &[Changed]) -> Vec<Use> {
    let content = |ino: Ino| {
        changes.iter().any(|it| matches!(it, Changed::Content { ino: other, .. } if *other == ino))
    };
    let used = changes.iter().filter_map(|change| match change {
        Changed::Content { ino, from, to } => Some(Use::write(*ino, *from, *to)),
        // A write changes attributes as well.
        Changed::Attributes(ino) => (!content(*ino)).then(|| Use::all(*ino)),
        _ => None,
    });
    used.collect()
}

/// What a batch uses.
pub(super) fn of_mutations(mutations: &[Mutation]) -> Vec<Use> {
    let used = mutations.iter().flat_map(|Mutation { kind, .. }| match kind {
        MutationKind::Write { ino, offset, data, .. } => {
            vec![Use::write(*ino, *offset, offset.saturating_add(data.len() as u64))]
        }
        kind => kind.subjects().map(Use::all).collect(),
    });
    used.collect()
}

/// What a call uses that changes nothing of it. A client that `is_direct` reads the bytes of open files itself.
pub(super) fn of_reads(request: &Request, is_direct: bool) -> Vec<Use> {
    match request {
        Request::Read { ino, .. } | Request::Seek { ino, .. } => vec![Use::all(*ino)],
        Request::Copy { from, .. } => vec![Use::all(from.0)],
        Request::Open { ino, .. } if is_direct => vec![Use::all(*ino)],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use thalweg_fs::Timestamp;

    use super::*;

    fn used(written: Option<Vec<Range<u64>>>) -> UsedByOthers {
        UsedByOthers { ino: Ino(7), changed: Timestamp::default(), written }
    }

    #[test]
    fn uses_are_joined_until_they_are_too_many() {
        let mut now = used(Some(Vec::new()));
        for at in 0..MAX_WRITTEN as u64 {
            now = Use::write(Ino(7), 2 * at, 2 * at + 1).widen(&now).unwrap();
        }
        assert_eq!(now.written.as_ref().unwrap().len(), MAX_WRITTEN);
        assert_eq!(Use::write(Ino(7), 0, 1).widen(&now), None);
        assert_eq!(Use::write(Ino(7), 0, 2).widen(&now).unwrap().written.unwrap()[0], 0..3);
        let all = used(None);
        assert_eq!(Use::write(Ino(7), 500, 501).widen(&now), Some(all.clone()));
        assert_eq!(Use::all(Ino(7)).widen(&now), Some(all.clone()));
        assert_eq!(Use::write(Ino(7), 0, u64::MAX).widen(&now), Some(all.clone()));
        assert_eq!(Use::all(Ino(7)).widen(&all), None);
    }

    #[test]
    fn attributes_count_unless_bytes_are_written() {
        let ino = Ino(7);
        let write = [Changed::Attributes(ino), Changed::Content { ino, from: 3, to: 5 }];
        assert_eq!(of_changes(&write), [Use::write(ino, 3, 5)]);
        assert_eq!(of_changes(&write[..1]), [Use::all(ino)]);
        assert_eq!(of_changes(&[Changed::Delegation(ino)]), []);
    }
}
