//! The messages and their layout.
//!
//! Both sides send a hello first ([`thalweg_net::hello`]). A server that speaks another version sends its hello
//! and closes the connection. Frames follow ([`thalweg_net::frame`]).
//!
//! The first frame is the server's [`Welcome`]. Then the client sends requests, and the server answers in any
//! order; the requests of one transaction take effect in the order in which they were sent. Requests with the
//! number 0 are not answered: writes, marks and hints. If one fails, its error is the answer to the next
//! request of its transaction that has an answer, the commit at the latest.

use serde::{Deserialize, Serialize};
use thalweg_net::hello::Hello;
use thalweg_store::block::{
    BLOCK_SIZE, BlockVersion, Class, Epoch, EpochVersion, Position, Version,
};
use thalweg_store::stale::{Cost, Needs, Standing, VersionRange};
use thalweg_store::txn::{Begin, Durability, Handle, Seen};

pub use thalweg_net::channel::UNANSWERED;
pub use thalweg_net::frame::{Frame, MAX_HEAD, decode, encode};

use crate::failure::WireError;

/// The first bytes that each side sends.
pub const HELLO: Hello = Hello { magic: *b"thwg-txn", version: 10 };
/// Maximum number of blocks in a read.
pub const MAX_RUN: u64 = 256;
/// Longest payload of a request in bytes: the block that it writes.
pub const MAX_REQUEST_PAYLOAD: usize = BLOCK_SIZE;
/// Longest payload of an answer in bytes.
pub const MAX_ANSWER_PAYLOAD: usize = MAX_RUN as usize * BLOCK_SIZE;

/// Maximum number of contents in an answer about a block's versions: the newest ones.
pub const MAX_VERSIONS: usize = MAX_ANSWER_PAYLOAD / VERSION_BYTES;
/// Bytes of each: oldest and newest version, little-endian, and 1 if something is stored, else 0.
const VERSION_BYTES: usize = 17;

/// The payload of [`Answer::Versions`].
pub fn encode_versions(versions: &[BlockVersion]) -> Vec<u8> {
    let newest = &versions[versions.len().saturating_sub(MAX_VERSIONS)..];
    let encode = |it: &BlockVersion| {
        let numbers = [it.oldest, it.newest].map(|version| version.0.to_le_bytes());
        numbers.concat().into_iter().chain([u8::from(it.stored)])
    };
    newest.iter().flat_map(encode).collect()
}

/// The contents in the payload of [`Answer::Versions`]; `None` if it is invalid.
pub fn decode_versions(payload: &[u8]) -> Option<Vec<BlockVersion>> {
    let (versions, []) = payload.as_chunks::<VERSION_BYTES>() else { return None };
    let decode = |bytes: &[u8; VERSION_BYTES]| {
        let ([oldest, newest], [stored]) = bytes.as_chunks::<8>() else { return None };
        let [oldest, newest] = [oldest, newest].map(|bytes| Version(u64::from_le_bytes(*bytes)));
        Some(BlockVersion { oldest, newest, stored: *stored != 0 })
    };
    versions.iter().map(decode).collect()
}

/// Maximum number of contents in an answer about their costs: the newest ones.
pub const MAX_CONTENTS: usize = MAX_ANSWER_PAYLOAD / CONTENT_BYTES;
/// Bytes of each: oldest version, newest version and cost, little-endian.
const CONTENT_BYTES: usize = 24;

/// The payload of [`Answer::Contents`].
pub fn encode_contents(contents: &[(VersionRange, Cost)]) -> Vec<u8> {
    let newest = &contents[contents.len().saturating_sub(MAX_CONTENTS)..];
    let mut payload = Vec::with_capacity(newest.len() * CONTENT_BYTES);
    for (range, cost) in newest {
        let words = [range.low.0.to_le_bytes(), range.up.0.to_le_bytes(), cost.0.to_le_bytes()];
        payload.extend_from_slice(words.as_flattened());
    }
    payload
}

/// The contents in the payload of [`Answer::Contents`]; `None` if it is invalid.
pub fn decode_contents(payload: &[u8]) -> Option<Vec<(VersionRange, Cost)>> {
    let (contents, []) = payload.as_chunks::<CONTENT_BYTES>() else { return None };
    let decode = |bytes: &[u8; CONTENT_BYTES]| {
        let ([low, up, cost], []) = bytes.as_chunks::<8>() else { return None };
        let [low, up] = [low, up].map(|bytes| Version(u64::from_le_bytes(*bytes)));
        Some((VersionRange { low, up }, Cost(i64::from_le_bytes(*cost))))
    };
    contents.iter().map(decode).collect()
}

/// The server's first message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Welcome {
    /// Requests may come.
    Ready {
        /// Blocks of the volume.
        blocks: u64,
        /// Blocks that a transaction may write.
        max_writes: u64,
    },
    /// There are too many connections.
    Busy,
}

/// A client's request. The client numbers its transactions.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Begins transaction `txn`. [`Answer::Begun`].
    Begin {
        /// A number that no running transaction of the connection has.
        txn: u64,
        /// How it begins.
        begin: Begin,
    },
    /// Begins transaction `txn` as a view of old versions. [`Answer::Begun`].
    View {
        /// A number that no running transaction of the connection has.
        txn: u64,
        /// What it needs.
        needs: Needs,
        /// No older version.
        first: Version,
    },
    /// Asks which versions the reads of a transaction are of. [`Answer::Seen`].
    Seen {
        /// The transaction.
        txn: u64,
    },
    /// Takes over a released transaction, as `txn`. [`Answer::Begun`].
    Takeover {
        /// A number that no running transaction of the connection has.
        txn: u64,
        /// The handle that its release returned.
        handle: Handle,
    },
    /// Reads at most [`MAX_RUN`] blocks. [`Answer::Blocks`].
    Read {
        /// The transaction.
        txn: u64,
        /// The first block.
        lba: u64,
        /// How many.
        count: u64,
    },
    /// Writes the block that is the payload.
    Write {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
        /// Data or metadata.
        class: Class,
    },
    /// Discards a block.
    Discard {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
    },
    /// Narrows the last access of a block to some of its bytes.
    Mark {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
        /// The first byte.
        start: u16,
        /// The byte after the last one.
        end: u16,
    },
    /// Declares that the commit depends on bytes of a block.
    Depend {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
        /// The first byte.
        start: u16,
        /// The byte after the last one.
        end: u16,
    },
    /// Asks for a block to be kept in memory.
    PleaseCache {
        /// The transaction.
        txn: u64,
        /// The block.
        lba: u64,
    },
    /// Commits. [`Answer::At`].
    Commit {
        /// The transaction.
        txn: u64,
        /// When to answer.
        durability: Durability,
    },
    /// Aborts. [`Answer::Done`], also when the transaction had ended already.
    Abort {
        /// The transaction.
        txn: u64,
    },
    /// Releases. [`Answer::Released`].
    Release {
        /// The transaction.
        txn: u64,
    },
    /// Makes everything that was acknowledged survive a crash. [`Answer::At`].
    Sync,
    /// Asks for the contents of a block that can be read. [`Answer::Versions`].
    Versions {
        /// The block.
        lba: u64,
    },
    /// Asks for the contents of a block in a range of versions, and what they cost to read. [`Answer::Contents`].
    Contents {
        /// The block.
        lba: u64,
        /// The versions.
        range: VersionRange,
    },
    /// Asks what the node is and how far it has come. [`Answer::Standing`].
    Standing,
    /// Waits until the volume has durably reached a position. [`Answer::Reached`].
    Reach {
        /// The position.
        position: Position,
        /// For how long, in milliseconds; `None` for any time.
        within: Option<u64>,
    },
}

/// A server's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Success.
    Done,
    /// The transaction runs.
    Begun {
        /// Blocks of the volume: it may have grown.
        blocks: u64,
        /// The version that it reads.
        version: EpochVersion,
    },
    /// Success, up to this version.
    At(EpochVersion),
    /// The transaction waits for a takeover with this handle.
    Released(Handle),
    /// The blocks are the payload.
    Blocks,
    /// It failed.
    Failed(WireError),
    /// The contents that can be read are the payload ([`encode_versions`]), at most [`MAX_VERSIONS`].
    Versions {
        /// The epoch of all versions.
        epoch: Epoch,
    },
    /// The versions that the reads are of.
    Seen(Seen),
    /// The contents are the payload ([`encode_contents`]), at most [`MAX_CONTENTS`].
    Contents,
    /// What the node is.
    Standing(Standing),
    /// Whether the volume has reached the position.
    Reached(bool),
}
