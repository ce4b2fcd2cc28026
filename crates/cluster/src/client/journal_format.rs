//! The layout of a client's journal: records of a [log](thalweg_store::journal::log).
//!
//! ```text
//! header   the version of the format (u8), Head
//! body     runs of mutations, each of one user
//! stamp    the position of the last mutation so far
//! ```
//!
//! Header and body are in postcard's encoding. Positions count the mutations of a session from 1 on.
//!
//! A copy at a keeper ([`crate::keeper`]) has the same records, and marks beside them, which have no body:
//!
//! ```text
//! header   the version of marks (u8), Head, Mark
//! stamp    the position before the head's
//! ```

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use thalweg_fs::Credentials;
use thalweg_fs::mutation::Mutation;
use thalweg_store::journal::log::{FoundRecord, LogRecord, RecordPlace};
use uuid::{Uuid, uuid};

/// The owner that all logs of clients' journals name.
pub const OWNER: Uuid = uuid!("5ac1e4d0-93f5-4be2-8f5e-2d6a7c0b91aa");

/// The version of the format.
const FORMAT: u8 = 1;
/// The same of marks.
const FORMAT_OF_MARKS: u8 = 2;

/// Where the mutations of a record stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The session at the server.
    pub(crate) session: Uuid,
    /// The position of the first mutation.
    pub(crate) first: u64,
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

impl Entry {
    /// Of a record with this stamp and header; `None` if no client and no keeper has written it.
    pub(crate) fn decode(last: u64, header: &[u8]) -> Option<Entry> {
        let (format, rest) = postcard::take_from_bytes::<u8>(header).ok()?;
        let (head, rest) = postcard::take_from_bytes::<Head>(rest).ok()?;
        let mark = match format {
            FORMAT => None,
            FORMAT_OF_MARKS => Some(postcard::take_from_bytes::<Mark>(rest).ok()?.0),
            _ => return None,
        };
        let before = head.first.checked_sub(1)?;
        let fits = if mark.is_some() { last == before } else { last >= before };
        fits.then_some(Entry { head, last, mark })
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
    /// It was taken over.
    pub(crate) is_sealed: bool,
    /// It is that of a mount which is to move here from another machine, where it is that of this session.
    pub(crate) arrives_from: Option<Uuid>,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain { session: None, first: 1, next: 1, is_sealed: false, arrives_from: None }
    }
}

impl Chain {
    /// Takes the next record.
    ///
    /// # Errors
    /// It does not follow the one before.
    pub(crate) fn take(&mut self, Entry { head, last, mark }: Entry) -> Result<(), NotNext> {
        let Head { session, first } = head;
        let follows = self.session == Some(session) && first == self.next;
        match mark {
            Some(Mark::Begins | Mark::Arrives(_)) => self.first = first,
            Some(Mark::Sealed) if follows => self.is_sealed = true,
            // What was before it has been written back.
            Some(Mark::Sealed) if self.session.is_none() => {
                (self.first, self.is_sealed) = (first, true);
            }
            Some(Mark::Arrived) if self.session.is_none() => self.first = first,
            Some(Mark::Arrived) | None if follows && !self.is_sealed => {}
            // Records without mutations begin a mount.
            None if self.first == self.next && !self.is_sealed => self.first = first,
            _ => return Err(NotNext { first }),
        }
        match mark {
            Some(Mark::Begins) => (self.is_sealed, self.arrives_from) = (false, None),
            Some(Mark::Arrives(from)) => (self.is_sealed, self.arrives_from) = (false, Some(from)),
            Some(Mark::Arrived) => self.arrives_from = None,
            Some(Mark::Sealed) | None => {}
        }
        (self.session, self.next) = (Some(session), last + 1);
        Ok(())
    }
}

/// A record does not follow the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("mutations from {first} on do not follow those before")]
pub(crate) struct NotNext {
    first: u64,
}

/// A record that is in no log yet, as it is sent to a keeper.
pub(crate) fn sent_record(stamp: u64, header: Vec<u8>, body: bytes::Bytes) -> LogRecord {
    LogRecord { stamp, header, body: vec![body], blocks: Vec::new() }
}

/// Where the records of a log lie that are not released, with the positions of their mutations.
#[derive(Debug, Default)]
pub(crate) struct Places(VecDeque<(RecordPlace, u64, u64)>);

impl Places {
    /// The log has one more record: its first and last position.
    pub(crate) fn push(&mut self, place: RecordPlace, first: u64, last: u64) {
        self.0.push_back((place, first, last));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The first position of the oldest one.
    pub(crate) fn first(&self) -> Option<u64> {
        self.0.front().map(|(_, first, _)| *first)
    }

    /// Takes away those up to this position, but not the last one, which names the session; the number in the log of the last one
    /// that is gone.
    pub(crate) fn release(&mut self, position: u64) -> Option<u64> {
        let others = self.0.len().saturating_sub(1);
        let done = self.0.iter().take(others).take_while(|(.., last)| *last <= position).count();
        self.0.drain(..done).next_back().map(|(place, ..)| place.sequence)
    }

    /// The oldest record with a mutation at this position or a later one.
    pub(crate) fn from(&self, position: u64) -> Option<(RecordPlace, u64, u64)> {
        let at = self.0.partition_point(|(.., last)| *last < position);
        self.0.range(at..).find(|(_, first, last)| first <= last).copied()
    }
}

/// A mutation, with what its inode's owner has taken for it of the room that the server has promised.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct JournaledMutation {
    pub(super) mutation: Mutation,
    /// Blocks that the file gets.
    pub(super) blocks: u64,
    /// The root of the quota that it counts for; 0 for none.
    pub(super) quota: u64,
}

/// Mutations of one user that follow each other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) user: Option<Credentials>,
    pub(super) mutations: Vec<JournaledMutation>,
}

/// A record of a journal. One without mutations begins a mount.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct JournalRecord {
    pub(super) head: Head,
    pub(super) runs: Vec<Run>,
}

impl JournalRecord {
    /// The position of its last mutation.
    pub(super) fn last(&self) -> u64 {
        let count: usize = self.runs.iter().map(|run| run.mutations.len()).sum();
        self.head.first + count as u64 - 1
    }

    pub(super) fn encode(&self) -> LogRecord {
        let header = postcard::to_allocvec(&(FORMAT, self.head)).expect("memory takes a head");
        let body = postcard::to_allocvec(&self.runs).expect("memory takes any mutation");
        LogRecord { stamp: self.last(), header, body: vec![body.into()], blocks: Vec::new() }
    }

    /// A record of a log; `None` for one that no client has written.
    pub(super) fn decode(found: &FoundRecord) -> Option<JournalRecord> {
        let (format, head): (u8, Head) = postcard::from_bytes(&found.header).ok()?;
        let runs: Vec<Run> = postcard::from_bytes(&found.body).ok()?;
        let count: usize = runs.iter().map(|run| run.mutations.len()).sum();
        let last = head.first.checked_add(count as u64)?.checked_sub(1)?;
        let is_whole =
            format == FORMAT && found.blocks == 0 && head.first > 0 && last == found.stamp;
        is_whole.then_some(JournalRecord { head, runs })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use thalweg_fs::mutation::MutationKind;
    use thalweg_fs::{Ino, Rename, Timestamp};

    use super::*;

    fn found(record: LogRecord) -> FoundRecord {
        let LogRecord { stamp, header, body, .. } = record;
        let (header, body) = (header.into(), body.concat().into());
        FoundRecord {
            sequence: 1,
            offset: 0,
            bytes: 512,
            epoch: 1,
            stamp,
            header,
            body,
            blocks_at: 512,
            blocks: 0,
        }
    }

    fn write() -> JournalRecord {
        of(MutationKind::Write {
            ino: Ino(300),
            offset: 4096,
            data: b"data"[..].into(),
            clear_suid: false,
        })
    }

    fn of(kind: MutationKind) -> JournalRecord {
        let time = Timestamp { seconds: 1_700_000_000, nanos: 5 };
        let mutation = JournaledMutation { mutation: Mutation { time, kind }, blocks: 1, quota: 2 };
        let session = Uuid::from_u128(7);
        let runs = vec![Run { user: None, mutations: vec![mutation] }];
        JournalRecord { head: Head { session, first: 9 }, runs }
    }

    #[test]
    fn the_layout_stays() {
        let record = write().encode();
        let hex = |bytes: &[u8]| bytes.iter().map(|it| format!("{it:02x}")).collect::<String>();
        assert_eq!(record.stamp, 9);
        assert_eq!(hex(&record.header), "01100000000000000000000000000000000709");
        assert_eq!(hex(&record.body.concat()), "01000180c49fd50c0502ac0280200464617461000102");
        assert_eq!(JournalRecord::decode(&found(record)), Some(write()));
    }

    #[test]
    fn the_layout_of_names_stays() {
        let (parent, name, ino) = (Ino(300), Bytes::from_static(b"a"), Ino(301));
        let (from, to) = ((parent, name.clone()), (parent, Bytes::from_static(b"b")));
        let (how, there) = (Rename::Replace, Some(Ino(302)));
        let kinds = [
            (MutationKind::Unlink { parent, name: name.clone(), ino }, "04ac020161ad02"),
            (MutationKind::RemoveDirectory { parent, name: name.clone(), ino }, "05ac020161ad02"),
            (MutationKind::Rename { from, to, how, ino, there }, "06ac020161ac02016200ad0201ae02"),
            (MutationKind::Link { parent, name, ino }, "07ac020161ad02"),
        ];
        for (kind, expected) in kinds {
            let body = of(kind).encode().body.concat();
            let hex = body.iter().map(|it| format!("{it:02x}")).collect::<String>();
            assert_eq!(hex, format!("01000180c49fd50c05{expected}0102"));
        }
    }

    fn entry(record: &LogRecord) -> Option<Entry> {
        Entry::decode(record.stamp, &record.header)
    }

    #[test]
    fn marks_have_a_layout_of_their_own() {
        let head = Head { session: Uuid::from_u128(7), first: 9 };
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
            assert_eq!(
                hex,
                format!("021000000000000000000000000000000007 09{last}").replace(' ', "")
            );
            assert_eq!(entry(&record), Some(Entry { head, last: 8, mark: Some(mark) }));
            // It has no mutations.
            assert_eq!(JournalRecord::decode(&found(record)), None);
        }
        let record = write().encode();
        assert_eq!(entry(&record), Some(Entry { head: write().head, last: 9, mark: None }));
    }

    #[test]
    fn records_follow_one_another_until_a_copy_begins_anew_or_is_sealed() {
        let session = Uuid::from_u128(7);
        let of =
            |(first, last): (u64, u64), mark| Entry { head: Head { session, first }, last, mark };
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
            is_sealed: true,
            arrives_from: None,
        };
        assert_eq!(whole, expected);
        // Of a journal that was written back the mark is left.
        assert_eq!(taken(&[sealed(8)]).unwrap(), Chain { first: 8, ..expected });
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
        let mut other = record(4, 4);
        other.head.session = Uuid::from_u128(8);
        assert!(taken(&[record(1, 3), other]).is_err());
    }

    #[test]
    fn a_record_that_no_client_wrote_is_refused() {
        let record = write().encode();
        let wrong_stamp = LogRecord { stamp: 10, ..record.clone() };
        let none_is_first = JournalRecord { head: Head { first: 0, ..write().head }, ..write() };
        let mut zeroth = record;
        zeroth.header = postcard::to_allocvec(&(FORMAT, none_is_first.head)).unwrap();
        for record in [wrong_stamp, zeroth] {
            assert_eq!(JournalRecord::decode(&found(record)), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(
            header: Vec<u8>,
            body: Vec<u8>,
            stamp: u64,
        ) {
            let record = LogRecord { stamp, header, body: vec![body.into()], blocks: Vec::new() };
            let _ = entry(&record);
            let _ = JournalRecord::decode(&found(record));
        }
    }
}
