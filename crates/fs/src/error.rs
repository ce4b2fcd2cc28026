//! Errors of a filesystem.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use thalweg_store::block::StoreError;
use thalweg_store::device::DeviceError;
use thalweg_store::tree::TreeError;
use thalweg_store::txn::{Preempted, Retry, TxnError};

/// The name of the filesystem that `thalweg mkfs` makes, the only one of most volumes.
pub(crate) const DEFAULT_NAME: &str = "fs";

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
    /// Give up: no caller is permitted to do this, or this user is not.
    #[error("operation not permitted")]
    NotPermitted,
    /// Give up: the mode or the access control list does not permit it to this user.
    #[error("permission denied")]
    Denied,
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
    /// Give up, or supply them: the contents of files are kept elsewhere.
    #[error(
        "the contents of its files are kept outside of the volume, and this program cannot reach them from here"
    )]
    ContentsElsewhere,
    /// Give up: contents were supplied for a filesystem that has its own.
    #[error("the contents of its files are kept on the volume, not outside of it")]
    ContentsWithin,
    /// Give up, or retry later: no replica of the volume is connected.
    #[error("no replica of the filesystem's volume is connected")]
    NoReplicas,
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
    /// Give up: the volume holds no filesystem of that name.
    #[error("the volume has no filesystem{}; thalweg mkfs makes one", called(.0))]
    NoFilesystem(Failure),
    /// Give up: the volume holds something else, which a filesystem would overwrite.
    #[error(transparent)]
    Foreign(Failure),
    /// The store below failed. [`Failure::action`] says what to do.
    #[error(transparent)]
    Store(Failure),
    /// The transaction around the call is aborted. [`Failure::action`] says what to do.
    #[error(transparent)]
    Aborted(Failure),
    /// Give up: the transaction around the call has ended. Its own end said why.
    #[error("the transaction has ended already")]
    Ended,
    /// Retry later: another owner holds a lock that conflicts.
    #[error("another process holds a lock that conflicts")]
    Locked,
    /// Give up, and release locks: the owners of locks would wait for each other forever.
    #[error("the lock would wait for itself: a deadlock")]
    Deadlock,
    /// Give up, or release some: an inode has at most so many locks.
    #[error("the file has too many locks")]
    TooManyLocks,
}

/// What the caller must do about a [`Failure`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Retry the whole transaction.
    Retry,
    /// Retry the whole transaction when other transactions have released memory, or do less in one.
    RetrySmaller,
    /// Wait until some transactions have ended, then retry.
    Wait,
    /// Do the work in several transactions.
    Divide,
    /// Free space, or make the volume larger.
    FreeSpace,
    /// Give up on these bytes: a block cannot be read. Restore it, or run fsck.
    Restore,
    /// Stop, and run fsck: stored structures are invalid.
    Repair,
    /// Stop until the volume is opened again for writing: it refuses writes.
    Reopen,
    /// Stop: the server cannot be reached. An unanswered commit may count or not.
    Reconnect,
    /// Give up on this request.
    GiveUp,
}

/// A failure below the filesystem: what the caller must do, and the cause.
///
/// Its message is that of the cause, which keeps the store's own type: a caller that knows the type gets the
/// details from [`Failure::cause`].
#[derive(Clone)]
pub struct Failure {
    action: Action,
    cause: Arc<dyn Error + Send + Sync>,
}

impl Failure {
    /// A failure with its cause.
    pub fn new(action: Action, cause: impl Error + Send + Sync + 'static) -> Failure {
        Failure { action, cause: Arc::new(cause) }
    }

    /// What the caller must do.
    pub fn action(&self) -> Action {
        self.action
    }

    /// The cause, if it is of this type.
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        self.cause.downcast_ref()
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {:?}", self.action, self.cause)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // Its own message is the cause's, so that the chain goes on behind the cause.
        self.cause.source()
    }
}

impl FsError {
    /// Whether parts of several changes may be taken that are refused as a whole.
    pub fn may_divide(&self) -> bool {
        match self {
            FsError::Store(failure) => {
                matches!(failure.action(), Action::Divide | Action::RetrySmaller)
            }
            _ => true,
        }
    }

    /// Whether blocks or structures of the store below are unreadable or invalid.
    pub fn is_damage_below(&self) -> bool {
        match self {
            FsError::Store(failure) | FsError::Aborted(failure) => {
                matches!(failure.action, Action::Restore | Action::Repair)
            }
            _ => false,
        }
    }

    /// The error of a transaction that is to be aborted because of it.
    pub(crate) fn aborted(error: TxnError) -> FsError {
        FsError::Aborted(Failure::new(action_after(&error), error))
    }

    /// Whether the transaction around the call cannot go on.
    pub(crate) fn ends_transaction(&self) -> bool {
        matches!(self, FsError::Aborted(_) | FsError::Ended)
    }

    /// The error as one that ends the transaction around the call.
    pub(crate) fn ending_transaction(self) -> FsError {
        match self {
            FsError::Conflict => FsError::aborted(TxnError::Conflict),
            FsError::NoSpace => FsError::aborted(TxnError::Store(StoreError::NoSpace)),
            other => other,
        }
    }
}

/// What to do after an error of a transaction.
fn action_after(error: &TxnError) -> Action {
    match error {
        TxnError::Preempted(Preempted::Memory) => Action::RetrySmaller,
        TxnError::Conflict | TxnError::Preempted(_) => Action::Retry,
        TxnError::TooMany(_) => Action::Wait,
        TxnError::TooLarge(_) | TxnError::Store(StoreError::TooLarge { .. }) => Action::Divide,
        TxnError::Store(StoreError::NoSpace | StoreError::Device(DeviceError::NoSpace { .. })) => {
            Action::FreeSpace
        }
        TxnError::Store(StoreError::ReadOnly | StoreError::Poisoned(_) | StoreError::Fenced(_)) => {
            Action::Reopen
        }
        TxnError::Disconnected(_) => Action::Reconnect,
        error if error.is_damage() => Action::Restore,
        _ => Action::GiveUp,
    }
}

/// The name of a filesystem that a volume lacks, for a message: its users know it, and not those of its partitions. Nothing for
/// the only one that most volumes have.
fn called(missing: &Failure) -> String {
    let name = match missing.cause() {
        Some(TreeError::Missing(partition)) => partition.rsplit_once('.').map(|(name, _)| name),
        _ => None,
    };
    match name {
        Some(name) if name != DEFAULT_NAME => format!(" called {name}"),
        _ => String::new(),
    }
}

impl From<TxnError> for FsError {
    fn from(error: TxnError) -> FsError {
        match error {
            TxnError::Conflict => FsError::Conflict,
            TxnError::Ended => FsError::Ended,
            TxnError::Store(StoreError::NoSpace) => FsError::NoSpace,
            TxnError::Store(StoreError::ReadOnly) => FsError::ReadOnly,
            other => FsError::aborted(other),
        }
    }
}

impl From<TreeError> for FsError {
    fn from(error: TreeError) -> FsError {
        match error {
            TreeError::Txn(error) => error.into(),
            TreeError::Full(_) => FsError::NoSpace,
            TreeError::NoCatalogue | TreeError::Missing(_) => {
                FsError::NoFilesystem(Failure::new(Action::GiveUp, error))
            }
            TreeError::Foreign(_) => FsError::Foreign(Failure::new(Action::GiveUp, error)),
            TreeError::Damaged { .. } => FsError::Store(Failure::new(Action::Repair, error)),
            other => FsError::Store(Failure::new(Action::GiveUp, other)),
        }
    }
}

impl Retry for FsError {
    fn is_retryable(&self) -> bool {
        match self {
            FsError::Conflict => true,
            FsError::Aborted(failure) => {
                matches!(failure.action, Action::Retry | Action::RetrySmaller)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_store::block::Lba;

    use super::*;

    #[test]
    fn errors_below_say_what_to_do() {
        let store = |error| FsError::from(TxnError::Store(error));
        let action = |error: &FsError| match error {
            FsError::Store(failure) | FsError::Aborted(failure) => Some(failure.action()),
            _ => None,
        };
        let retry = FsError::from(TxnError::Preempted(Preempted::Idle));
        let smaller = FsError::from(TxnError::Preempted(Preempted::Memory));
        assert_eq!(
            [&retry, &smaller].map(action),
            [Some(Action::Retry), Some(Action::RetrySmaller)]
        );
        assert!(retry.is_retryable() && smaller.is_retryable() && FsError::Conflict.is_retryable());
        let large = FsError::from(TxnError::TooLarge(12));
        assert_eq!((action(&large), large.is_retryable()), (Some(Action::Divide), false));
        let FsError::Aborted(failure) = &large else { panic!("{large:?}") };
        assert!(matches!(failure.cause(), Some(TxnError::TooLarge(12))));
        assert_eq!(failure.to_string(), TxnError::TooLarge(12).to_string());
        let poisoned = store(StoreError::Poisoned("x".into()));
        assert_eq!((action(&poisoned), poisoned.ends_transaction()), (Some(Action::Reopen), true));
        let corrupt = StoreError::Corrupt { lba: Lba(7), detail: "x".to_owned() };
        assert_eq!(action(&store(corrupt.clone())), Some(Action::Restore));
        assert!(store(corrupt).is_damage_below());
        let damaged = TreeError::Damaged { what: "x".to_owned(), detail: "y".to_owned() };
        let damaged = FsError::from(damaged);
        assert!(damaged.is_damage_below() && !damaged.ends_transaction());
        assert_eq!(action(&damaged), Some(Action::Repair));
        for full in [TreeError::Full("x".to_owned()), StoreError::NoSpace.into()] {
            let full = FsError::from(full);
            assert!(matches!(full, FsError::NoSpace) && !full.ends_transaction());
            assert_eq!(action(&full.ending_transaction()), Some(Action::FreeSpace));
        }
        assert_eq!(action(&FsError::Conflict.ending_transaction()), Some(Action::Retry));
        assert!(FsError::from(TxnError::Ended).ends_transaction());
        let missing = |name: &str| FsError::from(TreeError::Missing(name.to_owned()));
        assert!(matches!(missing("fs.meta"), FsError::NoFilesystem(_)));
        for error in [missing("fs.meta"), TreeError::NoCatalogue.into()] {
            assert!(error.to_string().starts_with("the volume has no filesystem;"), "{error}");
        }
        let other = missing("my.files.meta").to_string();
        assert!(other.contains("no filesystem called my.files;"), "{other}");
    }
}
