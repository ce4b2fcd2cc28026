//! Where records lie.

/// Where a record lies in a log, for as long as it is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordPlace {
    /// Its number.
    pub sequence: u64,
    /// Where it begins: bytes since the log was created.
    pub offset: u64,
}

/// The place of a transaction that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendPlace {
    pub(super) offset: u64,
    pub(super) sequence: u64,
    /// Transactions just before it that were not durable yet.
    pub(super) in_flight: u8,
}
