//! How much a message has at most.

/// Longest payload of a call or an answer in bytes, and so of a read or a write.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Most entries of a directory in an answer.
pub const MAX_ENTRIES: usize = 2048;
/// Most numbers in [`Call::answered`](super::Call::answered).
pub const MAX_ANSWERED: usize = 64;
/// Slots of a session.
pub const SLOTS: u16 = 256;
/// The slot of [`Request::Batch`](super::Request::Batch): one is under way at a time. Changes that use all other slots may wait for a batch.
pub const BATCH_SLOT: u16 = SLOTS - 1;
/// Most inodes in a [`Request::Reclaim`](super::Request::Reclaim).
pub const MAX_CLAIMS: usize = 16384;
/// Most mutations in a [`Request::Batch`](super::Request::Batch).
pub const MAX_MUTATIONS: usize = 2048;
/// Most inode numbers in an [`Answer::Numbers`](super::Answer::Numbers).
pub const MAX_NUMBERS: u64 = 4096;
/// Most mutations of a batch that is [staged](super::Request::Stage).
pub const MAX_STAGED_MUTATIONS: usize = 1 << 19;
/// Most inodes that a staged batch makes.
pub const MAX_STAGED_INODES: usize = 1 << 16;
/// Most bytes of a staged batch.
pub const MAX_STAGED: usize = 64 << 20;
/// Most numbers in [`Request::Batch`](super::Request::Batch) of inodes that are not made.
pub const MAX_SPENT: usize = 64;
/// Most recalls that one [`Request::Batch`](super::Request::Batch) releases.
pub const MAX_RELEASES: usize = 64;
/// Most quotas that the changes of one [`Request::Batch`](super::Request::Batch) count for, and the volume.
pub const MAX_SHARES: usize = 16;
/// Most inodes in a [`Request::Forget`](super::Request::Forget).
pub const MAX_FORGOTTEN: usize = 4096;
