//! What the filesystem has on record of a session, for the next server.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_net::keys::{Access, Squash};
use uuid::Uuid;

use super::options::Visitor;
use super::session::JournalInfo;

/// What the filesystem's record of a session says.
#[derive(Serialize, Deserialize)]
struct SessionInfo {
    id: Uuid,
    name: String,
    path: String,
    writes: bool,
    squash: Squash,
    /// Milliseconds for which its client may use what it caches.
    lease: u64,
    journal: Option<JournalInfo>,
}

pub(super) fn encode(
    id: Uuid,
    visitor: &Visitor,
    lease: Duration,
    journal: Option<JournalInfo>,
) -> Bytes {
    let Visitor { name, path, access, squash } = visitor.clone();
    let (writes, lease) = (access == Access::Write, lease.as_millis() as u64);
    let info = SessionInfo { id, name, path, writes, squash, lease, journal };
    postcard::to_allocvec(&info).expect("a record in memory encodes").into()
}

/// The session of a record: `None` for one that does not decode.
pub(super) fn decode(info: &[u8]) -> Option<Recorded> {
    let info: SessionInfo = postcard::from_bytes(info).ok()?;
    let SessionInfo { id, name, path, writes, squash, lease, journal } = info;
    let access = if writes { Access::Write } else { Access::Read };
    let visitor = Visitor { name, path, access, squash };
    Some(Recorded { id, visitor, lease: Duration::from_millis(lease), journal })
}

/// What the filesystem's record of a session has come to.
pub(super) struct Recorded {
    pub(super) id: Uuid,
    pub(super) visitor: Visitor,
    pub(super) lease: Duration,
    pub(super) journal: Option<JournalInfo>,
}
