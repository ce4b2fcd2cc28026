//! Why a client does not begin, and why its calls fail.

use std::io;
use std::sync::Arc;

use thalweg_fs::{Action, Failure, FsError};
use thalweg_store::journal::JournalError;

/// Why a client does not begin.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The server cannot be reached, or does not let this client in.
    #[error("the server cannot be used: {0}")]
    Lost(#[source] io::Error),
    /// The directory that the client is to see is not there.
    #[error(transparent)]
    Refused(FsError),
    /// The journal cannot be used.
    #[error("the journal cannot be used: {0}")]
    Journal(#[source] Arc<JournalError>),
    /// Changes of an earlier mount cannot be written back. They stay in the journal.
    #[error(
        "the journal has {mutations} changes of an earlier mount that cannot be written back: {why}"
    )]
    Pending {
        /// Their number.
        mutations: usize,
        /// Why.
        why: String,
    },
    /// A keeper does not let this client in.
    #[error("the keeper {keeper} cannot be used: {why}")]
    Keeper {
        /// The keeper.
        keeper: String,
        /// Why.
        why: io::Error,
    },
    /// The journal has what a mount of another machine has sent that was to move here, and that machine has not handed it over.
    #[error(
        "the journal is that of a mount which was to move here, and has not: `mount -o receive` waits for it, `cluster journal erase --force` gives it up"
    )]
    NotArrived,
    /// The server has other mutations of the session than the journal.
    #[error("the server has other changes of this session than the journal")]
    Diverged,
    /// The session that was to go on has ended.
    #[error("the server has ended the session")]
    Ended,
    /// The mount has moved to another machine, which has everything that the journal has.
    #[error("the mount has moved to another machine")]
    Moved,
}

impl AttachError {
    /// A connection on which something failed.
    pub(super) fn lost(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> AttachError {
        AttachError::Lost(io::Error::other(why))
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    #[error("the server does not let this client in any more: {0}")]
    Refused(String),
    #[error("the server has ended the session of this client while the call was under way")]
    Evicted,
    #[error(
        "the server has ended the session of this client, which begins no other one: mount it again"
    )]
    Ended,
    #[error("changes that this client has made by itself were lost")]
    Lost,
    #[error("the server cannot be reached, and the caller waits no longer; the call was not sent")]
    GivenUp,
    #[error("the mount has moved to another machine")]
    Moved,
    #[error("the client is closed")]
    Closed,
    #[error("the server's answer does not fit the call")]
    Unexpected,
}

impl From<LinkError> for FsError {
    fn from(error: LinkError) -> FsError {
        match error {
            // What programs have open is open no more.
            LinkError::Moved => FsError::Stale,
            error => FsError::Store(Failure::new(Action::Reconnect, error)),
        }
    }
}

/// The answer is of another kind than the call wants.
pub(super) fn unexpected<T>() -> Result<T, FsError> {
    Err(LinkError::Unexpected.into())
}

/// What an answer says, if it is of the kind that the call wants.
macro_rules! expect_answer {
    ($answer:expr, $kind:pat => $said:expr) => {
        match $answer {
            $kind => Ok($said),
            _ => $crate::client::error::unexpected(),
        }
    };
}
pub(super) use expect_answer;
