//! The records of a client's journal that have mutations.

use thalweg_fs::session_table::JournalPosition;
use thalweg_store::journal::log::{FoundRecord, LogRecord};
use uuid::Uuid;

use super::journal_format::{FORMAT, FORMAT_OF_PAGES, Head};
use super::journal_pages;
use super::journal_runs::{Run, hashes, last_hash};

/// A record of a journal. One without mutations begins a mount.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct JournalRecord {
    pub(super) head: Head,
    pub(super) runs: Vec<Run>,
}

impl JournalRecord {
    /// Of mutations behind a position; the hash up to each.
    pub(super) fn new(
        session: Uuid,
        after: JournalPosition,
        durable: u64,
        runs: Vec<Run>,
    ) -> (JournalRecord, Vec<u64>) {
        let hashes: Vec<u64> = hashes(after.hash, &runs).collect();
        let mut head = Head::of_mark(session, after, durable);
        head.hash = hashes.last().copied().unwrap_or(after.hash);
        (JournalRecord { head, runs }, hashes)
    }

    /// The position of its last mutation, with the hash.
    pub(super) fn end(&self) -> JournalPosition {
        JournalPosition { position: self.last(), hash: self.head.hash }
    }

    /// The position of its last mutation.
    pub(super) fn last(&self) -> u64 {
        let count: usize = self.runs.iter().map(|run| run.mutations.len()).sum();
        self.head.first + count as u64 - 1
    }

    /// Its bytes of files as whole pages, if that is wanted.
    pub(super) fn encode(&self, has_pages: bool) -> LogRecord {
        let (format, body) = match has_pages {
            true => (FORMAT_OF_PAGES, journal_pages::encode(&self.runs)),
            false => {
                (FORMAT, postcard::to_allocvec(&self.runs).expect("memory takes any mutation"))
            }
        };
        let header = postcard::to_allocvec(&(format, self.head)).expect("memory takes a head");
        LogRecord { stamp: self.last(), header, body: vec![body.into()], blocks: Vec::new() }
    }

    /// A record of a log; `None` for one that no client has written.
    pub(super) fn decode(found: &FoundRecord) -> Option<JournalRecord> {
        let (format, head): (u8, Head) = postcard::from_bytes(&found.header).ok()?;
        let runs: Vec<Run> = match format {
            FORMAT => postcard::from_bytes(&found.body).ok()?,
            FORMAT_OF_PAGES => journal_pages::decode(&found.body)?,
            _ => return None,
        };
        let count: usize = runs.iter().map(|run| run.mutations.len()).sum();
        let last = head.first.checked_add(count as u64)?.checked_sub(1)?;
        let is_whole = found.blocks == 0 && head.first > 0 && last == found.stamp;
        let is_whole = is_whole && last_hash(head.before, &runs) == head.hash;
        is_whole.then_some(JournalRecord { head, runs })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use thalweg_fs::mutation::{Mutation, MutationKind};
    use thalweg_fs::{Ino, Rename, Timestamp};

    use super::super::journal_format::Entry;
    use super::super::journal_runs::JournaledMutation;
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
        let after = JournalPosition { position: 8, hash: 0x0102 };
        let runs = vec![Run { user: None, mutations: vec![mutation] }];
        JournalRecord::new(Uuid::from_u128(7), after, 5, runs).0
    }

    #[test]
    fn the_layout_stays() {
        let record = write().encode(false);
        let hex = |bytes: &[u8]| bytes.iter().map(|it| format!("{it:02x}")).collect::<String>();
        assert_eq!(record.stamp, 9);
        let head = "061000000000000000000000000000000007 09 0201000000000000 068032f9408b778b 05";
        assert_eq!(hex(&record.header), head.replace(' ', ""));
        assert_eq!(hex(&record.body.concat()), "01000180c49fd50c0502ac0280200464617461000102");
        assert_eq!(JournalRecord::decode(&found(record)), Some(write()));
    }

    #[test]
    fn the_layout_of_the_others_stays() {
        let (parent, name, ino) = (Ino(300), Bytes::from_static(b"a"), Ino(301));
        let (from, to) = ((parent, name.clone()), (parent, Bytes::from_static(b"b")));
        let (how, there) = (Rename::Replace, Some(Ino(302)));
        let kinds = [
            (MutationKind::Unlink { parent, name: name.clone(), ino }, "04ac020161ad02"),
            (MutationKind::RemoveDirectory { parent, name: name.clone(), ino }, "05ac020161ad02"),
            (MutationKind::Rename { from, to, how, ino, there }, "06ac020161ac02016200ad0201ae02"),
            (MutationKind::Link { parent, name: name.clone(), ino }, "07ac020161ad02"),
            (
                MutationKind::Reserve { ino, offset: 4096, len: 300, keep_size: true },
                "08ad028020ac0201",
            ),
            (
                MutationKind::SetXattr { ino, name: name.clone(), value: "v".into() },
                "09ad0201610176",
            ),
            (MutationKind::RemoveXattr { ino, name }, "0aad020161"),
        ];
        for (kind, expected) in kinds {
            let body = of(kind).encode(false).body.concat();
            let hex = body.iter().map(|it| format!("{it:02x}")).collect::<String>();
            assert_eq!(hex, format!("01000180c49fd50c05{expected}0102"));
        }
    }

    #[test]
    fn a_record_that_no_client_wrote_is_refused() {
        let record = write().encode(false);
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
            let _ = Entry::decode(record.stamp, &record.header);
            let _ = JournalRecord::decode(&found(record));
        }
    }
}
