//! How much one side of a connection takes.

/// Limits of one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes that are read from the stream at once.
    pub read: usize,
    /// Longest payload of a received frame in bytes. A longer one ends the connection.
    pub payload: usize,
    /// Unwritten bytes above which no further calls are read: the peer does not read its answers.
    pub unread: usize,
    /// Unwritten bytes above which unanswered calls leave by themselves.
    pub cork: usize,
    /// Unwritten bytes above which calls fail.
    pub queued: usize,
    /// Calls without an answer above which calls fail, those whose deadline has passed included.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            read: 128 << 10,
            payload: 1 << 20,
            unread: 16 << 20,
            cork: 64 << 10,
            queued: 256 << 20,
            calls: 1 << 16,
        }
    }
}
