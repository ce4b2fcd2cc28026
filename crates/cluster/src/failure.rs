//! Errors of a filesystem in messages.

use serde::{Deserialize, Serialize};
use thalweg_fs::{Action, Failure, FsError};

/// Longest text of an error in bytes.
const LONGEST: usize = 1024;

/// An [`FsError`] in a message. Its kind is kept; the cause of a failure below the filesystem becomes text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the variant of `FsError` with that name")]
pub enum WireError {
    NotFound,
    Stale,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    NameTooLong,
    Invalid(String),
    TooManyLinks,
    FileTooLarge,
    NothingThere,
    NoAttribute,
    AttributeTooLarge,
    NotPermitted,
    Denied,
    NotSupported,
    ReadOnly,
    NoSpace,
    QuotaExceeded,
    CrossQuota,
    Conflict,
    Lost {
        ino: u64,
        from: u64,
        to: u64,
    },
    Damaged(String),
    Locked,
    Deadlock,
    TooManyLocks,
    NoReplicas,
    /// Any other: what the caller must do, by its number below, and the text.
    Failed(u8, String),
}

/// The actions by their numbers in a message.
const ACTIONS: [Action; 10] = [
    Action::Retry,
    Action::RetrySmaller,
    Action::Wait,
    Action::Divide,
    Action::FreeSpace,
    Action::Restore,
    Action::Repair,
    Action::Reopen,
    Action::Reconnect,
    Action::GiveUp,
];

/// A failure at the server.
#[derive(Debug, thiserror::Error)]
#[error("at the server: {0}")]
struct Remote(String);

fn short(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    text
}

fn failed(action: Action, error: &FsError) -> WireError {
    let number = ACTIONS.iter().position(|it| *it == action).unwrap_or(ACTIONS.len());
    WireError::Failed(number as u8, short(error.to_string()))
}

impl From<FsError> for WireError {
    fn from(error: FsError) -> WireError {
        match error {
            FsError::NotFound => WireError::NotFound,
            FsError::Stale => WireError::Stale,
            FsError::Exists => WireError::Exists,
            FsError::NotDirectory => WireError::NotDirectory,
            FsError::IsDirectory => WireError::IsDirectory,
            FsError::NotEmpty => WireError::NotEmpty,
            FsError::NameTooLong => WireError::NameTooLong,
            FsError::Invalid(why) => WireError::Invalid(why.to_owned()),
            FsError::TooManyLinks => WireError::TooManyLinks,
            FsError::FileTooLarge => WireError::FileTooLarge,
            FsError::NothingThere => WireError::NothingThere,
            FsError::NoAttribute => WireError::NoAttribute,
            FsError::AttributeTooLarge => WireError::AttributeTooLarge,
            FsError::NotPermitted => WireError::NotPermitted,
            FsError::Denied => WireError::Denied,
            FsError::NotSupported => WireError::NotSupported,
            FsError::ReadOnly => WireError::ReadOnly,
            FsError::NoSpace => WireError::NoSpace,
            FsError::QuotaExceeded => WireError::QuotaExceeded,
            FsError::CrossQuota => WireError::CrossQuota,
            FsError::Conflict => WireError::Conflict,
            FsError::Lost { ino, from, to } => WireError::Lost { ino, from, to },
            FsError::Damaged(why) => WireError::Damaged(short(why)),
            FsError::Locked => WireError::Locked,
            FsError::Deadlock => WireError::Deadlock,
            FsError::TooManyLocks => WireError::TooManyLocks,
            FsError::NoReplicas => WireError::NoReplicas,
            FsError::Store(ref failure) | FsError::Aborted(ref failure) => {
                failed(failure.action(), &error)
            }
            FsError::Smaller { .. }
            | FsError::NoRoom { .. }
            | FsError::Newer(_)
            | FsError::NoFilesystem(_)
            | FsError::Foreign(_)
            | FsError::ContentsElsewhere
            | FsError::ContentsWithin
            | FsError::Ended => failed(Action::GiveUp, &error),
        }
    }
}

impl From<WireError> for FsError {
    fn from(error: WireError) -> FsError {
        match error {
            WireError::NotFound => FsError::NotFound,
            WireError::Stale => FsError::Stale,
            WireError::Exists => FsError::Exists,
            WireError::NotDirectory => FsError::NotDirectory,
            WireError::IsDirectory => FsError::IsDirectory,
            WireError::NotEmpty => FsError::NotEmpty,
            WireError::NameTooLong => FsError::NameTooLong,
            // The text is the server's; its log has it.
            WireError::Invalid(why) => {
                tracing::debug!(why, "the server refuses a request");
                FsError::Invalid("the server refuses it")
            }
            WireError::TooManyLinks => FsError::TooManyLinks,
            WireError::FileTooLarge => FsError::FileTooLarge,
            WireError::NothingThere => FsError::NothingThere,
            WireError::NoAttribute => FsError::NoAttribute,
            WireError::AttributeTooLarge => FsError::AttributeTooLarge,
            WireError::NotPermitted => FsError::NotPermitted,
            WireError::Denied => FsError::Denied,
            WireError::NotSupported => FsError::NotSupported,
            WireError::ReadOnly => FsError::ReadOnly,
            WireError::NoSpace => FsError::NoSpace,
            WireError::QuotaExceeded => FsError::QuotaExceeded,
            WireError::CrossQuota => FsError::CrossQuota,
            WireError::Conflict => FsError::Conflict,
            WireError::Lost { ino, from, to } => FsError::Lost { ino, from, to },
            WireError::Damaged(why) => FsError::Damaged(why),
            WireError::Locked => FsError::Locked,
            WireError::Deadlock => FsError::Deadlock,
            WireError::TooManyLocks => FsError::TooManyLocks,
            WireError::NoReplicas => FsError::NoReplicas,
            WireError::Failed(action, text) => {
                let action = ACTIONS.get(usize::from(action)).copied().unwrap_or(Action::GiveUp);
                FsError::Store(Failure::new(action, Remote(text)))
            }
        }
    }
}
