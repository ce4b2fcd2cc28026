//! What the records of a client's journal have.
//!
//! A hash chains mutations: that of each one is over the one before it. So two journals that have the same hash at a position have the same
//! mutations up to there.

use std::hash::Hasher;

use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use thalweg_fs::Credentials;
use thalweg_fs::mutation::Mutation;

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
    // It shows mistakes, not malice: a client that lies harms itself alone. So the key is known.
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
pub(super) fn last_hash(before: u64, runs: &[Run]) -> u64 {
    hashes(before, runs).last().unwrap_or(before)
}
