//! The messages between a client with a journal and a keeper, which has a second copy of it.
//!
//! After the hellos the client attaches a copy in its first call. Then it sends records, each with its next call, and a keeper answers
//! when it has the record: on its drive, or in its memory.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_fs::session_table::JournalPosition;
use thalweg_net::hello::Hello;
use uuid::Uuid;

/// The first bytes that each side sends.
pub const HELLO: Hello = Hello { magic: *b"thwg-kep", version: 3 };
/// Longest body of a record in bytes.
pub const MAX_BODY: usize = 8 << 20;
/// Longest header of a record in bytes.
pub const MAX_HEADER: usize = 256;

/// What a client wants of a keeper.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeepCall {
    /// Begins a copy, or goes on with it. [`KeepAnswer::Attached`].
    Attach {
        /// The session at the server that makes the journal.
        session: Uuid,
        /// The one before, of which the server has everything: its copy goes.
        before: Option<Uuid>,
        /// Bytes of the journal.
        size: u64,
        /// It is on the keeper's drive before the keeper answers.
        is_durable: bool,
        /// A new copy begins behind this position.
        after: JournalPosition,
    },
    /// A record; its body is the payload. [`KeepAnswer::Done`].
    Append {
        /// Its last position.
        stamp: u64,
        /// Its header.
        header: Bytes,
        /// The server has made everything up to here durable.
        released: u64,
        /// The copy begins with this record: the server has made everything before it durable.
        anew: bool,
    },
    /// The server has made everything up to here durable. [`KeepAnswer::Done`].
    Release(u64),
    /// The journal has ended in order, and with it the copy. [`KeepAnswer::Done`].
    End,
}

/// A keeper's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeepAnswer {
    /// The copy has all positions up to this one.
    Attached {
        /// The last one.
        end: JournalPosition,
    },
    /// It is so.
    Done,
    /// It is not.
    Refused(KeepRefusal),
}

/// Why a keeper does not do what a client wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum KeepRefusal {
    /// A take-over has begun, or has written back what the copy has. This client may not go on.
    #[error("the copy was taken over")]
    TakenOver,
    /// Another connection has attached the copy since, or none has.
    #[error("the copy is attached by another connection")]
    Displaced,
    /// A record does not follow the one before.
    #[error("the copy lacks what comes before: its next position is {next}")]
    Gap {
        /// What it lacks.
        next: u64,
    },
    /// A record has the next position, and other mutations are before it.
    #[error(
        "the copy has other changes of this session: the journal was copied, or is of an earlier time"
    )]
    Diverged,
    /// The copy has no room until the server has made more durable.
    #[error("the copy is full")]
    Full,
    /// The request is none that a client makes.
    #[error("the keeper does not understand the client")]
    Invalid,
    /// The keeper's drive, or its folder.
    #[error("{0}")]
    Failed(String),
}
