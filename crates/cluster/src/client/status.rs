//! What a client knows of itself.

/// What a client knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ClientStatus {
    /// Whether it has a connection with a session.
    pub connected: bool,
    /// Whether its session has ended, and it begins no other one.
    pub ended: bool,
    /// Sessions that the server has ended.
    pub evictions: u64,
    /// Whether it reads and writes contents of files itself.
    pub direct: bool,
    /// Inodes that it knows.
    pub inodes: usize,
    /// Calls without an answer.
    pub calls: usize,
    /// Changes in directories that are this client's alone, which the server does not have.
    pub unsent: usize,
    /// Changes that a crash of the server would undo, and that would be made again then.
    pub kept: usize,
    /// Changes that were acknowledged, and may be lost: the server crashed, and did not get them again.
    pub lost: u64,
}
