//! What a call has come to, and what its client may cache of that.

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use thalweg_fs::room::RoomShare;
use thalweg_fs::session_table::Committed;
use thalweg_fs::{FsError, Handle, Ino};

use super::capabilities::GrantRequest;
use super::session::OpenFile;
use crate::protocol::{Answer, ListedEntry};

/// What a call has come to, before anything is granted.
#[derive(Debug, Default)]
pub(super) struct Response {
    pub(super) answer: Answer,
    pub(super) payload: Vec<Bytes>,
    /// What the client may cache of it, if no change came between.
    pub(super) wants: GrantRequest,
    /// Entries of a directory, which become the payload.
    pub(super) entries: Option<Vec<ListedEntry>>,
    pub(super) opened: Option<(Handle, OpenFile)>,
    /// An inode that the call has taken a reference to, for the client.
    pub(super) referenced: Option<Ino>,
    pub(super) committed: Option<Committed>,
    /// Quotas below whose roots the client wants room; 0 is the volume.
    pub(super) room_for: Vec<u64>,
    /// The room that the client is promised in addition.
    pub(super) room: Vec<RoomShare>,
    /// The root of the quota of what it would like to delegate.
    pub(super) quota: u64,
    /// The inodes that its mutations have made, and whether each is a directory.
    pub(super) made: Vec<(Ino, bool)>,
}

pub(super) type Answered = Result<Response, FsError>;

impl Response {
    pub(super) fn of(answer: Answer) -> Response {
        Response { answer, ..Response::default() }
    }

    pub(super) fn done() -> Response {
        Response::default()
    }

    pub(super) fn number(number: u64) -> Response {
        Response::of(Answer::Number(number))
    }

    pub(super) fn with(answer: Answer, payload: Vec<Bytes>) -> Response {
        Response { payload, ..Response::of(answer) }
    }

    pub(super) fn tells(&self) -> SmallVec<[Ino; 2]> {
        match &self.answer {
            Answer::Inode(attributes) => smallvec![attributes.ino],
            Answer::Directory(ino) => smallvec![*ino],
            Answer::Made => self.made.iter().map(|(ino, _)| *ino).collect(),
            _ => {
                let entries = self.entries.iter().flatten();
                entries.filter(|it| it.attributes.is_some()).map(|it| it.ino).collect()
            }
        }
    }
}
