//! The records of a client's journal that have mutations.
//!
//! A hash chains these: that of each mutation is over the one before it. So two journals that have the same hash at a position have the same
//! mutations up to there.

use std::hash::Hasher;

use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use thalweg_fs::Credentials;
use thalweg_fs::mutation::Mutation;
use thalweg_fs::session_table::JournalPosition;
use thalweg_store::journal::log::{FoundRecord, LogRecord};
use uuid::Uuid;

use super::journal_format::{FORMAT, Head};

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
        let is_whole = is_whole && last_hash(head.before, &runs) == head.hash;
        is_whole.then_some(JournalRecord { head, runs })
    }
}

/// Takes what is encoded, instead of memory for it.
struct Hashing(SipHasher13);

impl Flavor for Hashing {
    type Output = u64;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.write_u8(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.write(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<u64> {
        Ok(self.0.finish())
    }
}

/// The hash up to a mutation of this user. That of none is 0.
fn hash_after(before: u64, user: Option<&Credentials>, mutation: &JournaledMutation) -> u64 {
    // It shows mistakes, and keeps nobody out: a client that lies harms itself alone. So the key is known.
    let hashing = Hashing(SipHasher13::new());
    let hash = postcard::serialize_with_flavor(&(before, user, mutation), hashing);
    hash.expect("any mutation is encoded").max(1)
}

/// The hash up to each mutation of these runs.
pub(super) fn hashes(before: u64, runs: &[Run]) -> impl Iterator<Item = u64> {
    let mutations = runs.iter().flat_map(|run| run.mutations.iter().map(|it| (&run.user, it)));
    mutations.scan(before, |hash, (user, mutation)| {
        *hash = hash_after(*hash, user.as_ref(), mutation);
        Some(*hash)
    })
}

/// The hash up to the last mutation of these runs.
fn last_hash(before: u64, runs: &[Run]) -> u64 {
    hashes(before, runs).last().unwrap_or(before)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use thalweg_fs::mutation::MutationKind;
    use thalweg_fs::{Ino, Rename, Timestamp};

    use super::super::journal_format::Entry;
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
        let record = write().encode();
        let hex = |bytes: &[u8]| bytes.iter().map(|it| format!("{it:02x}")).collect::<String>();
        assert_eq!(record.stamp, 9);
        let head = "031000000000000000000000000000000007 09 0201000000000000 068032f9408b778b 05";
        assert_eq!(hex(&record.header), head.replace(' ', ""));
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
            let _ = Entry::decode(record.stamp, &record.header);
            let _ = JournalRecord::decode(&found(record));
        }
    }
}
