//! Errors of a filesystem.

use thalweg_store::block::StoreError;
use thalweg_store::tree::TreeError;
use thalweg_store::txn::{Retry, TxnError};

/// Why a call failed. Adapters turn this into their own numbers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FsError {
    /// Give up: there is no such name.
    #[error("no such file or directory")]
    NotFound,
    /// Give up: there is no such inode any more.
    #[error("the inode is gone")]
    Stale,
    /// Give up: the name is taken.
    #[error("the name exists already")]
    Exists,
    /// Give up: it would have to be a directory.
    #[error("not a directory")]
    NotDirectory,
    /// Give up: it must not be a directory.
    #[error("it is a directory")]
    IsDirectory,
    /// Give up: the directory is not empty.
    #[error("the directory is not empty")]
    NotEmpty,
    /// Give up: a name has at most 255 bytes, a symbolic link's target 4,095.
    #[error("the name is too long")]
    NameTooLong,
    /// Give up: the request is invalid.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// Give up: an inode has at most so many names.
    #[error("too many links")]
    TooManyLinks,
    /// Give up: a file has at most so many bytes.
    #[error("the file would be too large")]
    FileTooLarge,
    /// Give up: there is no data or hole from there on.
    #[error("nothing there")]
    NothingThere,
    /// Give up: there is no such extended attribute.
    #[error("no such extended attribute")]
    NoAttribute,
    /// Give up: the attribute's name or value is too long, or the inode has no room for more.
    #[error("the extended attribute is too large")]
    AttributeTooLarge,
    /// Give up: no caller is permitted to do this.
    #[error("operation not permitted")]
    NotPermitted,
    /// Give up: this filesystem or this kind of inode does not do that.
    #[error("not supported")]
    NotSupported,
    /// Give up: a filesystem does not become smaller.
    #[error("the filesystem has {size} bytes, and does not become smaller")]
    Smaller {
        /// Bytes that it has.
        size: u64,
    },
    /// Give up, or make the volume larger first.
    #[error(
        "on its volume the filesystem can have at most {size} bytes; make the volume larger first"
    )]
    NoRoom {
        /// Bytes that it could have.
        size: u64,
    },
    /// Give up: it may only be read.
    #[error("the filesystem is read-only")]
    ReadOnly,
    /// Give up, or free something: there is no room. Nothing was changed.
    #[error("no space left")]
    NoSpace,
    /// Give up, or free something: the directory tree has a quota. Nothing was changed.
    #[error("the quota is used up")]
    QuotaExceeded,
    /// Give up: the names lie in directory trees with quotas of their own.
    #[error("not from one quota to another")]
    CrossQuota,
    /// Use a newer program.
    #[error("the filesystem has format version {0}, which is newer than this program")]
    Newer(u16),
    /// Retry the whole transaction: a concurrent one conflicts with it.
    #[error("a concurrent transaction conflicts with it; try again")]
    Conflict,
    /// Give up: a repair has recorded these bytes of a file as lost. A write of the whole block, or a
    /// truncation, ends that.
    #[error("bytes {from} to {to} of inode {ino} are lost")]
    Lost {
        /// The file.
        ino: u64,
        /// The first byte.
        from: u64,
        /// The byte behind the last one.
        to: u64,
    },
    /// Stop: stored structures are invalid.
    #[error("the filesystem is damaged: {0}; run fsck")]
    Damaged(String),
    /// An error of the store below.
    #[error(transparent)]
    Tree(TreeError),
    /// An error of the transaction.
    #[error(transparent)]
    Transaction(TxnError),
}

impl FsError {
    /// Whether blocks or structures of the store below are unreadable or invalid.
    pub fn is_damage_below(&self) -> bool {
        match self {
            FsError::Tree(error) => error.is_damage(),
            FsError::Transaction(error) => error.is_damage(),
            _ => false,
        }
    }
}

impl From<TxnError> for FsError {
    fn from(error: TxnError) -> FsError {
        match error {
            TxnError::Conflict => FsError::Conflict,
            TxnError::Store(StoreError::NoSpace) => FsError::NoSpace,
            TxnError::Store(StoreError::ReadOnly) => FsError::ReadOnly,
            other => FsError::Transaction(other),
        }
    }
}

impl From<TreeError> for FsError {
    fn from(error: TreeError) -> FsError {
        match error {
            TreeError::Txn(error) => error.into(),
            TreeError::Full(_) => FsError::NoSpace,
            other => FsError::Tree(other),
        }
    }
}

impl Retry for FsError {
    fn is_retryable(&self) -> bool {
        match self {
            FsError::Conflict => true,
            FsError::Transaction(error) => error.is_retryable(),
            _ => false,
        }
    }
}
