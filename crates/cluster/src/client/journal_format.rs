//! The layout of a client's journal: records of a [log](thalweg_store::journal::log).
//!
//! ```text
//! header   the version of the format (u8), Head
//! body     runs of mutations, each of one user
//! stamp    the position of the last mutation so far
//! ```
//!
//! Header and body are in postcard's encoding. Positions count the mutations of a session from 1 on. Each record has the hash
//! ([`journal_runs`](super::journal_runs)) before its mutations, which is that of the record before, and the one behind them.
//!
//! A copy at a keeper ([`crate::keeper`]) has the same records, and marks beside them, which have no body:
//!
//! ```text
//! header   the version of marks (u8), Head, Mark
//! stamp    the position before the head's
//! ```

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use thalweg_fs::session_table::JournalPosition;
use thalweg_store::journal::log::{LogRecord, RecordPlace};
use uuid::{Uuid, uuid};

/// The owner that all logs of clients' journals name.
pub const OWNER: Uuid = uuid!("5ac1e4d0-93f5-4be2-8f5e-2d6a7c0b91aa");

/// The version of the format.
pub(super) const FORMAT: u8 = 6;
/// The same of a body with whole pages ([`journal_pages`](super::journal_pages)).
pub(super) const FORMAT_OF_PAGES: u8 = 7;
/// The same of marks.
const FORMAT_OF_MARKS: u8 = 4;

/// Where the mutations of a record stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The session at the server.
    pub(crate) session: Uuid,
    /// The position of the first mutation.
    pub(crate) first: u64,
    /// The hash up to the mutation before it.
    #[serde(with = "postcard::fixint::le")]
    pub(crate) before: u64,
    /// The hash up to the last mutation.
    #[serde(with = "postcard::fixint::le")]
    pub(crate) hash: u64,
    /// The server had made everything up to this position durable when the record was written.
    pub(crate) durable: u64,
}

impl Head {
    /// Of a mark behind a position.
    pub(crate) fn of_mark(session: Uuid, after: JournalPosition, durable: u64) -> Head {
        let JournalPosition { position, hash } = after;
        Head { session, first: position + 1, before: hash, hash, durable }
    }

    /// The position before the first mutation.
    pub(crate) fn after(&self) -> JournalPosition {
        JournalPosition { position: self.first - 1, hash: self.before }
    }

    /// That of a mark before the record that has this one.
    pub(crate) fn begins(self) -> Head {
        Head { hash: self.before, ..self }
    }
}

/// What a mark in a copy says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Mark {
    /// The copy begins with the head's position: what is before it in the copy does not count.
    Begins,
    /// The copy was taken over: nothing follows.
    Sealed,
    /// What follows is that of another machine's mount, which is to move here, and there is that of the session with this name. It begins with
    /// the head's position, as after [`Mark::Begins`].
    Arrives(Uuid),
    /// The mount has moved here.
    Arrived,
}

impl Mark {
    pub(crate) fn encode(self, head: Head) -> LogRecord {
        let header = postcard::to_allocvec(&(FORMAT_OF_MARKS, head, self));
        let header = header.expect("memory takes a head");
        LogRecord { stamp: head.first - 1, header, body: Vec::new(), blocks: Vec::new() }
    }
}

/// What a record says of its place among the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) head: Head,
    /// The position of the last mutation.
    pub(crate) last: u64,
    pub(crate) mark: Option<Mark>,
}

/// The format of a record that is none of these, for a program that is older or newer.
pub(crate) fn unknown_format(header: &[u8]) -> Option<u8> {
    header
        .first()
        .copied()
        .filter(|format| !matches!(*format, FORMAT | FORMAT_OF_MARKS | FORMAT_OF_PAGES))
}

/// Why a journal is not read that another release of this program has written.
#[derive(Debug, thiserror::Error)]
#[error(
    "its records have format {0}, which this release does not read: the one that wrote it can write it back, `cluster journal create` gives it up"
)]
pub(crate) struct UnknownFormat(pub(crate) u8);

impl Entry {
    /// Of a record with this stamp and header; `None` if no client and no keeper has written it.
    pub(crate) fn decode(last: u64, header: &[u8]) -> Option<Entry> {
        let (format, rest) = postcard::take_from_bytes::<u8>(header).ok()?;
        let (head, rest) = postcard::take_from_bytes::<Head>(rest).ok()?;
        let mark = match format {
            FORMAT | FORMAT_OF_PAGES => None,
            FORMAT_OF_MARKS => Some(postcard::take_from_bytes::<Mark>(rest).ok()?.0),
            _ => return None,
        };
        let before = head.first.checked_sub(1)?;
        let fits = if mark.is_some() { last == before } else { last >= before };
        let is_empty = last == before;
        let fits = fits && (!is_empty || head.hash == head.before) && head.durable <= before;
        fits.then_some(Entry { head, last, mark })
    }

    /// The position of the last mutation.
    pub(crate) fn end(&self) -> JournalPosition {
        JournalPosition { position: self.last, hash: self.head.hash }
    }
}

/// What the records of a journal are about, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    /// The session of the records so far.
    pub(crate) session: Option<Uuid>,
    /// The positions of the first mutation, and behind the last one.
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// The hashes before the first mutation, and up to the last one.
    pub(crate) before: u64,
    pub(crate) hash: u64,
    /// The server had made everything up to this position durable when the last record was written.
    pub(crate) durable: u64,
    /// It was taken over.
    pub(crate) is_sealed: bool,
    /// It is that of a mount which is to move here from another machine, where it is that of this session.
    pub(crate) arrives_from: Option<Uuid>,
}

impl Default for Chain {
    fn default() -> Chain {
        let (before, hash, durable) = (0, 0, 0);
        let (session, is_sealed, arrives_from) = (None, false, None);
        Chain { session, first: 1, next: 1, before, hash, durable, is_sealed, arrives_from }
    }
}

impl Chain {
    /// Takes the next record.
    ///
    /// # Errors
    /// It does not follow the one before.
    pub(crate) fn take(&mut self, Entry { head, last, mark }: Entry) -> Result<(), NotNext> {
        let Head { session, first, before, hash, durable } = head;
        let is_next = self.session == Some(session) && first == self.next;
        let follows = is_next && before == self.hash;
        let begins = match mark {
            Some(Mark::Begins | Mark::Arrives(_)) => true,
            Some(Mark::Sealed) if follows => {
                self.is_sealed = true;
                false
            }
            // What was before it has been written back.
            Some(Mark::Sealed) if self.session.is_none() => {
                self.is_sealed = true;
                true
            }
            Some(Mark::Arrived) if self.session.is_none() => true,
            Some(Mark::Arrived) | None if follows && !self.is_sealed => false,
            // Records without mutations begin a mount.
            None if self.first == self.next && !is_next && !self.is_sealed => true,
            _ => return Err(NotNext { first, has_diverged: is_next && !self.is_sealed }),
        };
        if begins {
            (self.first, self.before, self.durable) = (first, before, 0);
        }
        match mark {
            Some(Mark::Begins) => (self.is_sealed, self.arrives_from) = (false, None),
            Some(Mark::Arrives(from)) => (self.is_sealed, self.arrives_from) = (false, Some(from)),
            Some(Mark::Arrived) => self.arrives_from = None,
            Some(Mark::Sealed) | None => {}
        }
        (self.session, self.next, self.hash) = (Some(session), last + 1, hash);
        // Records before the first one are released when the server has made them durable.
        self.durable = self.durable.max(durable).max(self.first - 1);
        Ok(())
    }

    /// The position before the first mutation.
    pub(crate) fn after(&self) -> JournalPosition {
        JournalPosition { position: self.first - 1, hash: self.before }
    }

    /// The position of the last mutation.
    pub(crate) fn end(&self) -> JournalPosition {
        JournalPosition { position: self.next - 1, hash: self.hash }
    }
}

/// A record does not follow the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("mutations from {first} on do not follow those before")]
pub(crate) struct NotNext {
    first: u64,
    /// It has the next position, and other mutations are before it.
    pub(crate) has_diverged: bool,
}

/// A record that is in no log yet, as it is sent to a keeper.
pub(crate) fn sent_record(stamp: u64, header: Vec<u8>, body: bytes::Bytes) -> LogRecord {
    LogRecord { stamp, header, body: vec![body], blocks: Vec::new() }
}

/// Where a record of a log lies, and where its mutations stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedRecord {
    pub(crate) place: RecordPlace,
    /// The position before the first mutation.
    pub(crate) after: JournalPosition,
    /// That of the last one.
    pub(crate) end: JournalPosition,
}

/// The records of a log that are not released.
#[derive(Debug, Default)]
pub(crate) struct Places(VecDeque<PlacedRecord>);

impl Places {
    /// The log has one more record.
    pub(crate) fn push(
        &mut self,
        place: RecordPlace,
        after: JournalPosition,
        end: JournalPosition,
    ) {
        self.0.push_back(PlacedRecord { place, after, end });
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The position before the oldest one.
    pub(crate) fn after(&self) -> Option<JournalPosition> {
        self.0.front().map(|record| record.after)
    }

    /// Takes away those up to this position, but not the last one, which names the session; the number in the log of the last one
    /// that is gone.
    pub(crate) fn release(&mut self, position: u64) -> Option<u64> {
        let others = self.0.len().saturating_sub(1);
        let is_done = |record: &&PlacedRecord| record.end.position <= position;
        let done = self.0.iter().take(others).take_while(is_done).count();
        self.0.drain(..done).next_back().map(|record| record.place.sequence)
    }

    /// The oldest record with a mutation at this position or a later one.
    pub(crate) fn from(&self, position: u64) -> Option<PlacedRecord> {
        let at = self.0.partition_point(|record| record.end.position < position);
        self.0.range(at..).find(|record| record.after.position < record.end.position).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(record: &LogRecord) -> Option<Entry> {
        Entry::decode(record.stamp, &record.header)
    }

    #[test]
    fn marks_have_a_layout_of_their_own() {
        let after = JournalPosition { position: 8, hash: 0x0102 };
        let head = Head::of_mark(Uuid::from_u128(7), after, 5);
        let from = Uuid::from_u128(6);
        let came = "021000000000000000000000000000000006";
        for (mark, last) in [
            (Mark::Begins, "00"),
            (Mark::Sealed, "01"),
            (Mark::Arrives(from), came),
            (Mark::Arrived, "03"),
        ] {
            let record = mark.encode(head);
            let hex = record.header.iter().map(|it| format!("{it:02x}")).collect::<String>();
            let expected = format!(
                "041000000000000000000000000000000007 09 0201000000000000 0201000000000000 05 {last}"
            );
            assert_eq!(hex, expected.replace(' ', ""));
            assert_eq!(entry(&record), Some(Entry { head, last: 8, mark: Some(mark) }));
            assert_eq!(unknown_format(&record.header), None);
        }
        // Those of releases before, and of a later one.
        for old in [1, 2, 3, 5, 8] {
            assert_eq!(unknown_format(&[old, 16, 0]), Some(old));
        }
    }

    #[test]
    fn records_follow_one_another_until_a_copy_begins_anew_or_is_sealed() {
        let session = Uuid::from_u128(7);
        let at = |position: u64| JournalPosition { position, hash: position * 3 };
        let of = |(first, last): (u64, u64), mark| {
            let head = Head { hash: at(last).hash, ..Head::of_mark(session, at(first - 1), 0) };
            Entry { head, last, mark }
        };
        let taken = |entries: &[Entry]| {
            let mut chain = Chain::default();
            entries.iter().try_for_each(|entry| chain.take(*entry)).map(|()| chain)
        };
        let begins = |first: u64| of((first, first - 1), Some(Mark::Begins));
        let sealed = |first: u64| of((first, first - 1), Some(Mark::Sealed));
        let record = |first, last| of((first, last), None);
        let whole = taken(&[begins(4), record(4, 6), record(7, 7), sealed(8)]).unwrap();
        let expected = Chain {
            session: Some(session),
            first: 4,
            next: 8,
            before: 9,
            hash: 21,
            durable: 3,
            is_sealed: true,
            arrives_from: None,
        };
        assert_eq!(whole, expected);
        // Of a journal that was written back the mark is left.
        assert_eq!(
            taken(&[sealed(8)]).unwrap(),
            Chain { first: 8, before: 21, durable: 7, ..expected }
        );
        let anew = taken(&[record(1, 3), begins(9), record(9, 9)]).unwrap();
        assert_eq!((anew.first, anew.next, anew.is_sealed), (9, 10, false));
        for wrong in [
            &[record(1, 3), record(5, 5)][..],
            &[record(1, 3), record(3, 4)],
            &[record(1, 3), sealed(4), record(4, 4)],
            &[record(1, 3), sealed(5)],
        ] {
            assert!(taken(wrong).is_err(), "{wrong:?}");
        }
        let mut diverged = record(4, 4);
        diverged.head.before = 1;
        let wrong = taken(&[record(1, 3), diverged]).unwrap_err();
        assert!(wrong.has_diverged);
        // Where the mount begins it is its own.
        let mut begins = record(1, 3);
        begins.head.durable = 0;
        let mut later = record(4, 4);
        later.head.durable = 2;
        assert_eq!(taken(&[begins, later]).unwrap().durable, 2);
        let mut other = record(4, 4);
        other.head.session = Uuid::from_u128(8);
        assert!(taken(&[record(1, 3), other]).is_err());
    }
}
