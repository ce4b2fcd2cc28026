//! What a call has come to, and what its client may cache of that.

use bytes::Bytes;
use thalweg_fs::room::RoomShare;
use thalweg_fs::session_table::Committed;
use thalweg_fs::{Handle, Ino};

use super::capabilities::{Held, Table};
use super::session::OpenFile;
use crate::protocol::{Answer, Grants, ListedEntry};

/// What a call has come to, before anything is granted.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) answer: Answer,
    pub(super) payload: Vec<Bytes>,
    /// What the client may cache of it, if no change came between.
    pub(super) wants: GrantRequest,
    /// Entries of a directory, which become the payload.
    pub(super) entries: Option<Vec<ListedEntry>>,
    /// The file that it has opened, under the client's handle.
    pub(super) opened: Option<(Handle, OpenFile)>,
    /// An inode that the call has taken a reference to, for the client.
    pub(super) referenced: Option<Ino>,
    /// What its change has come to.
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

/// What a call would like to grant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantRequest {
    /// The stamp when it began to read.
    pub(super) since: u64,
    /// The attributes in the answer.
    pub(super) attributes: Option<Ino>,
    /// Names in this directory.
    pub(super) names: Option<Ino>,
    /// Pages of this file.
    pub(super) content: Option<Ino>,
    /// Pages of this file are cached already.
    pub(super) cached: Option<Ino>,
    /// A delegation of this directory or file.
    pub(super) delegation: Option<Ino>,
}

impl Response {
    pub(super) fn of(answer: Answer) -> Response {
        Response {
            answer,
            payload: Vec::new(),
            wants: GrantRequest::default(),
            entries: None,
            opened: None,
            referenced: None,
            committed: None,
            room_for: Vec::new(),
            room: Vec::new(),
            quota: 0,
            made: Vec::new(),
        }
    }

    pub(super) fn done() -> Response {
        Response::of(Answer::Done)
    }

    pub(super) fn with(answer: Answer, payload: Vec<Bytes>) -> Response {
        Response { payload, ..Response::of(answer) }
    }

    /// The inodes that the client learns of.
    pub(super) fn tells(&self) -> Vec<Ino> {
        match &self.answer {
            Answer::Inode(attributes) => vec![attributes.ino],
            Answer::Directory(ino) => vec![*ino],
            Answer::Made => self.made.iter().map(|(ino, _)| *ino).collect(),
            _ => {
                let entries = self.entries.iter().flatten();
                entries.filter(|it| it.attributes.is_some()).map(|it| it.ino).collect()
            }
        }
    }
}

/// Grants what a call would like to grant, as far as no change came between.
pub(super) fn grant(table: &mut Table, session: u64, outcome: &mut Response) -> Grants {
    let wants = outcome.wants;
    let mut grant = |ino: Option<Ino>, what| {
        ino.is_some_and(|ino| table.grant(session, ino, what, wants.since))
    };
    if let Some(entries) = &outcome.entries {
        let shown = |entry: &ListedEntry| entry.attributes.is_some().then_some(entry.ino);
        let kept = entries.iter().map(|entry| u8::from(grant(shown(entry), Held::ATTRIBUTES)));
        outcome.payload.push(kept.collect());
    }
    let grants = Grants {
        attributes: grant(wants.attributes, Held::ATTRIBUTES),
        names: grant(wants.names, Held::NAMES),
        content: grant(wants.content, Held::CONTENT),
        delegation: false,
    };
    if let Some(ino) = wants.cached {
        table.reclaim(session, ino, Held::CONTENT);
    }
    for (ino, is_directory) in &outcome.made {
        table.reclaim(session, *ino, Held { names: *is_directory, ..Held::ATTRIBUTES });
    }
    let delegation = wants.delegation.is_some_and(|ino| table.acquire(session, ino, wants.since));
    // A change that came between may have made the file shorter.
    if let Answer::Opened { write_bound, .. } = &mut outcome.answer
        && !(delegation && wants.delegation.is_some_and(|ino| table.is_steady(ino, wants.since)))
    {
        *write_bound = 0;
    }
    Grants { delegation, ..grants }
}
