//! The layout of a client's journal: records of a [log](thalweg_store::journal::log).
//!
//! ```text
//! header   the version of the format (u8), Head
//! body     runs of mutations, each of one user
//! stamp    the position of the last mutation so far
//! ```
//!
//! Header and body are in postcard's encoding. Positions count the mutations of a session from 1 on.

use serde::{Deserialize, Serialize};
use thalweg_fs::Credentials;
use thalweg_fs::mutation::Mutation;
use thalweg_store::journal::log::{FoundRecord, LogRecord};
use uuid::{Uuid, uuid};

/// The owner that all logs of clients' journals name.
pub const OWNER: Uuid = uuid!("5ac1e4d0-93f5-4be2-8f5e-2d6a7c0b91aa");

/// The version of the format.
const FORMAT: u8 = 1;

/// Where the mutations of a record stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    /// The session at the server.
    pub(super) session: Uuid,
    /// The position of the first mutation.
    pub(super) first: u64,
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
            let _ = JournalRecord::decode(&found(record));
        }
    }
}
