//! The messages between a client whose mount moves to another machine, and that machine, which receives it.
//!
//! After the hellos the client offers its journal. Then it sends what that has, in its order, while programs go on. When little is left they
//! wait: the client sends the rest, and what it holds in memory of the session. After [`MoveCall::Prepare`] the receiver has all of it on its
//! drive. So the client may hand the session over to it, at the server, which alone says whose the session is. [`MoveCall::Switched`] tells the receiver.

use serde::{Deserialize, Serialize};
use thalweg_fs::Ino;
use thalweg_fs::session_table::JournalPosition;
use thalweg_net::hello::Hello;
use thalweg_net::keys::Squash;
use uuid::Uuid;

/// The first bytes that each side sends.
pub const HELLO: Hello = Hello { magic: *b"thwg-mov", version: 3 };
/// Longest payload of a call in bytes.
pub const MAX_PAYLOAD: usize = 8 << 20;
/// Longest [`MoveCall::State`] in bytes, all of it.
pub const MAX_STATE: usize = 1 << 30;

/// The mount that is to move.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Its session at the server.
    pub from: Uuid,
    /// The session that its journal had before, of which the server has everything.
    pub before: Option<Uuid>,
    /// The name that the session gets when it is handed over.
    pub to: Uuid,
    /// The position before the first change that is sent.
    pub after: JournalPosition,
    /// Bytes that these take in its journal.
    pub used: u64,
    /// What both see of the server.
    pub sight: Sight,
}

/// What a client sees of a server. Two that see the same may have a session one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sight {
    /// The server's incarnation.
    pub server: Uuid,
    /// The directory that the client sees as its root.
    pub root: Ino,
    /// Changes are refused.
    pub read_only: bool,
    /// The users that act as the user nobody.
    pub squash: Squash,
}

/// What a client wants of a receiver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MoveCall {
    /// It begins.
    Begin(Offer),
    /// Changes with the next positions. The payload is a list of runs, as in a record of a journal.
    Changes {
        /// The position before the first one.
        after: JournalPosition,
    },
    /// The next part of what the client holds in memory of the session, as the payload.
    State,
    /// Everything was sent, up to this position. When this is answered, it is on the receiver's drive.
    Prepare {
        /// The position of the last change.
        end: JournalPosition,
    },
    /// The session was handed over. When this is answered, the mount is at the receiver.
    Switched,
    /// The mount does not move.
    Cancel,
}

/// A receiver's answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MoveAnswer {
    /// It is so.
    Done,
    /// It is not.
    Refused(MoveRefusal),
}

/// Why a receiver does not do what a client wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum MoveRefusal {
    /// Another mount has moved there, or is about to.
    #[error("it waits for no mount: another one is there, or is on its way")]
    InUse,
    /// Its journal is smaller than what the client's has.
    #[error("its journal of {size} bytes is too small for this one, which has {used} bytes")]
    TooSmall {
        /// Bytes that its journal takes.
        size: u64,
        /// Bytes that are to be there.
        used: u64,
    },
    /// It sees another server.
    #[error("it mounts another server, or the server has just started again")]
    OtherServer,
    /// It sees another directory of the server.
    #[error("it mounts another directory of the server")]
    OtherDirectory,
    /// It may do less, or more, than the client at the server.
    #[error(
        "its key has other rights at the server: the paths, `ro` and `squash` of both have to be the same"
    )]
    OtherRights,
    /// The request is none that a client makes now.
    #[error("it does not understand the client")]
    Invalid,
    /// Its journal, or the server.
    #[error("{0}")]
    Failed(String),
}
