//! What a client with a journal and its server say of that when they attach a session.

use serde::{Deserialize, Serialize};
use thalweg_fs::session_table::JournalPosition;

/// A client's mount of its journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JournalMount {
    /// The one that attached with this incarnation. A new session begins with incarnation 1.
    Incarnation(u64),
    /// The client has rebooted: it has no open files, locks and calls under way any more, and keeps its delegations. This is the
    /// next incarnation ([`JournalState::incarnation`]); earlier ones are refused from now on.
    Rebooted,
}

/// Where a batch stands in the journal of its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BatchPositions {
    /// The position before its first mutation.
    pub after: JournalPosition,
    /// That of its last one.
    pub end: JournalPosition,
}

/// What the server knows of a client's journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JournalState {
    /// The incarnation that has attached; 0 without a journal.
    pub incarnation: u64,
    /// The last position of the mutations that it has. A client that has others up to there sends nothing.
    pub applied: JournalPosition,
    /// It expects the client to reclaim what it held.
    pub expected: bool,
    /// The client was away, and other clients may have used what its journal is about.
    pub returned: bool,
}
