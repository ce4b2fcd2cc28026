//! Errors in messages.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thalweg_store::block::{BLOCK_SIZE, EpochVersion, Lba, StoreError, Version};
use thalweg_store::device::{DeviceError, Operation};
use thalweg_store::stale::Unserved;
use thalweg_store::txn::{Preempted, TxnError};

/// Longest text of an error in bytes: the message of an answer is bounded.
const LONGEST: usize = 1024;

/// A [`TxnError`] in a message. Its kind is kept; a device's error becomes text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[doc(hidden)]
pub enum WireError {
    Conflict,
    Preempted(Preempted),
    Doomed,
    Ended,
    Invalid(String),
    TooLarge(u64),
    TooMany(u64),
    UnknownHandle,
    Disconnected(String),
    StoreInvalid(String),
    NoSpace,
    Corrupt { lba: u64, detail: String },
    Poisoned(String),
    Gone(u64),
    GoneAt(EpochVersion),
    DeviceFull { device: String },
    Device { device: String, said: String },
    ReadOnly,
    Fenced(u32),
    Unreplicated(String),
    Unserved(Unserved),
}

/// Cuts a text to the length that an answer may carry.
fn short(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
    }
    text
}

impl From<TxnError> for WireError {
    fn from(error: TxnError) -> WireError {
        match error {
            TxnError::Conflict => WireError::Conflict,
            TxnError::Preempted(why) => WireError::Preempted(why),
            TxnError::Doomed => WireError::Doomed,
            TxnError::Ended => WireError::Ended,
            TxnError::Invalid(why) => WireError::Invalid(short(why)),
            TxnError::TooLarge(most) => WireError::TooLarge(most as u64),
            TxnError::TooMany(most) => WireError::TooMany(most as u64),
            TxnError::UnknownHandle => WireError::UnknownHandle,
            TxnError::Disconnected(why) => WireError::Disconnected(short(why)),
            TxnError::Gone(version) => WireError::GoneAt(version),
            TxnError::Unserved(why) => WireError::Unserved(why),
            // It is of the process that reads it, and is never sent.
            TxnError::Forked(why) => WireError::Disconnected(short(why.to_string())),
            TxnError::Store(error) => WireError::of_store(error),
        }
    }
}

impl WireError {
    fn of_store(error: StoreError) -> WireError {
        match error {
            StoreError::Invalid(why) => WireError::StoreInvalid(short(why)),
            StoreError::NoSpace => WireError::NoSpace,
            StoreError::ReadOnly => WireError::ReadOnly,
            StoreError::TooLarge { most, .. } => WireError::TooLarge(most / BLOCK_SIZE as u64),
            StoreError::Corrupt { lba, detail } => {
                WireError::Corrupt { lba: lba.0, detail: short(detail) }
            }
            StoreError::Poisoned(why) => WireError::Poisoned(short(why.to_string())),
            StoreError::Fenced(term) => WireError::Fenced(term),
            StoreError::Unreplicated(why) => WireError::Unreplicated(short(why.to_string())),
            StoreError::Gone(version) => WireError::Gone(version.0),
            StoreError::Device(DeviceError::NoSpace { device }) => {
                WireError::DeviceFull { device: short(device) }
            }
            StoreError::Device(error) => {
                let said = short(error.to_string());
                WireError::Device { device: "the server's device".to_owned(), said }
            }
        }
    }
}

impl From<WireError> for TxnError {
    fn from(error: WireError) -> TxnError {
        let store = match error {
            WireError::Conflict => return TxnError::Conflict,
            WireError::Preempted(why) => return TxnError::Preempted(why),
            WireError::Doomed => return TxnError::Doomed,
            WireError::Ended => return TxnError::Ended,
            WireError::Invalid(why) => return TxnError::Invalid(why),
            WireError::TooLarge(most) => return TxnError::TooLarge(most as usize),
            WireError::TooMany(most) => return TxnError::TooMany(most as usize),
            WireError::UnknownHandle => return TxnError::UnknownHandle,
            WireError::Disconnected(why) => return TxnError::Disconnected(why),
            WireError::GoneAt(version) => return TxnError::Gone(version),
            WireError::Unserved(why) => return TxnError::Unserved(why),
            WireError::StoreInvalid(why) => StoreError::Invalid(why),
            WireError::NoSpace => StoreError::NoSpace,
            WireError::ReadOnly => StoreError::ReadOnly,
            WireError::Corrupt { lba, detail } => StoreError::Corrupt { lba: Lba(lba), detail },
            WireError::Poisoned(why) => StoreError::Poisoned(why.into()),
            WireError::Fenced(term) => StoreError::Fenced(term),
            WireError::Unreplicated(why) => StoreError::Unreplicated(why.into()),
            WireError::Gone(version) => StoreError::Gone(Version(version)),
            WireError::DeviceFull { device } => DeviceError::NoSpace { device }.into(),
            WireError::Device { device, said } => {
                let source = Arc::new(std::io::Error::other(said));
                DeviceError::Io { device, operation: Operation::Remote, source }.into()
            }
        };
        TxnError::Store(store)
    }
}
