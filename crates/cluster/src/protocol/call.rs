//! A call, with what the server needs to carry it out once.

use serde::{Deserialize, Serialize};
use thalweg_fs::session_table::Committed;
use thalweg_fs::{Credentials, Ino};

use super::Request;

/// A call of a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Its number in the session.
    pub number: u64,
    /// All calls with lower numbers were answered, or their answers are not wanted: the server forgets them.
    pub oldest: u64,
    /// So were these of the later ones, which the client has not said before. At most [`MAX_ANSWERED`](super::MAX_ANSWERED).
    pub answered: Vec<u64>,
    /// Of a call that changes something: the slot that it uses, less than [`SLOTS`](super::SLOTS).
    pub slot: u16,
    /// The change was answered by a server before this one, and is made again unless the server has it.
    pub before: Option<Committed>,
    /// The user that it is made for; `None` for one that the client makes for itself. [`Answer::Attached::squash`](super::Answer::Attached::squash) says what
    /// the server makes of it.
    pub user: Option<Credentials>,
    /// What is to be done.
    pub request: Request,
}

impl Call {
    /// A call outside of the order of calls.
    pub fn outside(request: Request) -> Call {
        Call {
            number: 0,
            oldest: 0,
            answered: Vec::new(),
            slot: 0,
            before: None,
            user: None,
            request,
        }
    }
}

/// A call that the server before this one has not answered: it may have come to this there, and its client sends it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplayedCall {
    /// Its number.
    pub number: u64,
    /// Its slot.
    pub slot: u16,
    /// The first server that it was sent to: [`Answer::Attached::server_number`](super::Answer::Attached::server_number).
    pub server: u64,
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
