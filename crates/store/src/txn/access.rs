//! The read-set and the write-set of a running transaction.

use std::ops::Range;

use bytes::Bytes;
use thalweg_env::HashMap;

use super::fragments::Fragments;
use super::intent::{Intent, IntentWrite};
use super::{Isolation, TxnError};
use crate::block::{BLOCK_SIZE, ByteRanges, Class, Lba};

/// The kind of the last access of a block, which the next mark refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Last {
    Read,
    Write,
}

/// A transaction's accesses of one block.
#[derive(Clone, Debug)]
struct Access {
    last: Last,
    /// Bytes of marked reads.
    read: Fragments,
    /// The last read is not marked yet: it counts as one of the whole block.
    read_whole: bool,
    write: Option<Written>,
}

/// A write that is buffered until the commit.
#[derive(Clone, Debug)]
struct Written {
    /// The whole block as the transaction sees it; `None` when discarded.
    content: Option<Bytes>,
    class: Class,
    /// Bytes of marked writes.
    marked: ByteRanges,
    /// The last write is not marked yet: it counts as one of the whole block.
    whole: bool,
}

impl Written {
    fn changed(&self) -> ByteRanges {
        match self.whole || self.content.is_none() {
            true => ByteRanges::whole(),
            false => self.marked.clone(),
        }
    }
}

fn check_range(range: &Range<usize>) -> Result<(), TxnError> {
    match range.start > range.end || range.end > BLOCK_SIZE {
        false => Ok(()),
        true => Err(TxnError::Invalid(format!(
            "bytes {} to {} are not in a block",
            range.start, range.end
        ))),
    }
}

/// The read-set and the write-set of a running transaction (4.2).
#[derive(Debug, Default)]
pub(super) struct Accesses {
    blocks: HashMap<u64, Access>,
    writes: usize,
    /// Bytes that no other commit may change, under either isolation. Few.
    required: Vec<(Lba, Fragments)>,
}

/// A block's content in the transaction's own writes.
pub(super) enum Own {
    /// Not written: the snapshot has it.
    Nothing,
    /// It was written.
    Content(Bytes),
    /// It was discarded.
    Discarded,
}

impl Accesses {
    /// The number of blocks that were written.
    pub(super) fn writes(&self) -> usize {
        self.writes
    }

    /// The number of blocks that were read or written.
    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The content that this transaction wrote to a block.
    pub(super) fn own(&self, lba: Lba) -> Own {
        match self.blocks.get(&lba.0).and_then(|access| access.write.as_ref()) {
            None => Own::Nothing,
            Some(Written { content: None, .. }) => Own::Discarded,
            Some(Written { content: Some(content), .. }) => Own::Content(content.clone()),
        }
    }

    /// Whether the transaction wrote every byte of a block.
    fn owns(&self, lba: Lba) -> bool {
        let write = self.blocks.get(&lba.0).and_then(|access| access.write.as_ref());
        write.is_some_and(|write| write.changed().is_whole())
    }

    /// Records a read of the whole block, until a mark narrows it. With `untracked` the read is not recorded,
    /// since the decision does not need it.
    pub(super) fn read(&mut self, lba: Lba, untracked: bool) {
        let owned = self.owns(lba);
        if untracked || owned {
            if let Some(access) = self.blocks.get_mut(&lba.0) {
                access.last = Last::Read;
            }
            return;
        }
        let access = self.blocks.entry(lba.0).or_insert(Access {
            last: Last::Read,
            read: Fragments::NONE,
            read_whole: false,
            write: None,
        });
        if access.read_whole {
            access.read = Fragments::ALL;
        }
        access.last = Last::Read;
        access.read_whole = true;
    }

    /// Records a write of the whole block, until a mark narrows it; `None` discards the block.
    ///
    /// # Errors
    /// [`TxnError::TooLarge`] beyond `most` blocks.
    pub(super) fn write(
        &mut self,
        lba: Lba,
        content: Option<Bytes>,
        class: Class,
        most: usize,
    ) -> Result<(), TxnError> {
        let is_new = self.blocks.get(&lba.0).is_none_or(|access| access.write.is_none());
        if is_new && self.writes >= most {
            return Err(TxnError::TooLarge(most));
        }
        self.writes += usize::from(is_new);
        let access = self.blocks.entry(lba.0).or_insert(Access {
            last: Last::Write,
            read: Fragments::NONE,
            read_whole: false,
            write: None,
        });
        access.last = Last::Write;
        match &mut access.write {
            Some(write) => {
                if write.whole || write.content.is_none() {
                    write.marked = ByteRanges::whole();
                }
                (write.content, write.class, write.whole) = (content, class, true);
            }
            None => {
                let marked = ByteRanges::none();
                access.write = Some(Written { content, class, marked, whole: true });
            }
        }
        Ok(())
    }

    /// Narrows the last access of a block to `range`. With `untracked` reads are not recorded.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] for a block that was not accessed and a range outside of a block.
    pub(super) fn mark(
        &mut self,
        lba: Lba,
        range: Range<usize>,
        untracked: bool,
    ) -> Result<(), TxnError> {
        check_range(&range)?;
        let owned = self.owns(lba);
        let Some(access) = self.blocks.get_mut(&lba.0) else {
            return match untracked {
                true => Ok(()),
                false => Err(TxnError::Invalid(format!(
                    "block {} was neither read nor written here",
                    lba.0
                ))),
            };
        };
        match (access.last, &mut access.write) {
            (Last::Write, Some(write)) => {
                write.whole = false;
                write.marked.add(range);
            }
            _ if untracked || owned => {}
            _ => {
                access.read_whole = false;
                access.read.add(range);
            }
        }
        Ok(())
    }

    /// Makes the commit depend on bytes of a block.
    ///
    /// # Errors
    /// [`TxnError::Invalid`] for a range outside of a block.
    pub(super) fn depend(&mut self, lba: Lba, range: Range<usize>) -> Result<(), TxnError> {
        check_range(&range)?;
        match self.required.iter_mut().find(|(known, _)| *known == lba) {
            Some((_, fragments)) => fragments.add(range),
            None => {
                let mut fragments = Fragments::NONE;
                fragments.add(range);
                self.required.push((lba, fragments));
            }
        }
        Ok(())
    }

    /// The intention record to decide on and to apply.
    pub(super) fn into_intent(self, isolation: Isolation, since: u64) -> Intent {
        let mut guarded = self.required;
        guarded.reserve(self.blocks.len());
        let mut writes = Vec::with_capacity(self.writes);
        for (lba, access) in self.blocks {
            let lba = Lba(lba);
            let write = access.write.map(|write| (write.changed(), write.content, write.class));
            if let Some((changed, content, class)) =
                write.filter(|(changed, ..)| !changed.is_empty())
            {
                let fragments = Fragments::from(&changed);
                if isolation == Isolation::Snapshot {
                    guarded.push((lba, fragments));
                }
                writes.push(IntentWrite::new(lba, content, changed, class, fragments));
            }
            if isolation == Isolation::StrictSerializable {
                let read = if access.read_whole { Fragments::ALL } else { access.read };
                if !read.is_empty() {
                    guarded.push((lba, read));
                }
            }
        }
        guarded.sort_unstable_by_key(|(lba, _)| *lba);
        writes.sort_unstable_by_key(|write: &IntentWrite| write.lba);
        Intent::new(guarded, writes, since)
    }
}
