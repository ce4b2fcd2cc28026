//! Calls that a server has not answered before it stopped.

use serde::{Deserialize, Serialize};
use thalweg_fs::Ino;

/// A call that the server before this one has not answered: it may have come to this there, and its client sends it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplayedCall {
    /// Its number.
    pub number: u64,
    /// Its slot.
    pub slot: u16,
    /// What it may have come to.
    pub effect: CallEffect,
}

/// What a call may have come to that was not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CallEffect {
    /// It has made an inode.
    Makes,
    /// It has replaced bytes of a file.
    Replaces {
        /// The file.
        ino: Ino,
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
        /// Its answer is this number: an offset, or the bytes that were copied.
        outcome: u64,
    },
}
