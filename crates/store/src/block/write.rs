//! Blocks that a transaction writes.

use bytes::Bytes;

use super::ranges::ByteRanges;

/// A logical block address.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Lba(pub u64);

/// The kind of a block that is written. Stores with weaker data modes treat the two kinds differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub enum Class {
    /// A user's bytes.
    #[default]
    Data,
    /// Structure that other blocks depend on.
    Metadata,
}

/// One block of a transaction.
#[derive(Clone, Debug)]
pub struct Write {
    /// The block.
    pub lba: Lba,
    /// Its whole new content, [`BLOCK_SIZE`](super::BLOCK_SIZE) bytes; `None` discards the block, which then reads
    /// as zeros.
    pub content: Option<Bytes>,
    /// The bytes that may differ from the content before. A store may leave the other bytes unwritten, so
    /// `content` must repeat what is stored there.
    pub changed: ByteRanges,
    /// Data or metadata.
    pub class: Class,
}

impl Write {
    /// A write of a whole data block.
    pub fn block(lba: Lba, content: Bytes) -> Write {
        Write { lba, content: Some(content), changed: ByteRanges::whole(), class: Class::Data }
    }
}

/// What a store keeps of the versions before and after a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Retention {
    /// The new version is readable until the next one; older versions as long as they are held.
    #[default]
    Newest,
    /// The new version is held from the start.
    Hold,
    /// No reader of an older version needs the former content of the blocks, since they held nothing. Such
    /// a reader may find the new content instead, so the store need not remember when they were written.
    Unversioned,
}
