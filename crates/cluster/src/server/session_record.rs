//! What the filesystem has on record of a session, for the next server.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_net::keys::{Access, Squash};
use uuid::Uuid;

use super::options::Visitor;
use super::session::{Identity, JournalInfo};

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

/// The record of a session whose mount has moved says that behind the rest.
pub(super) fn encode(
    identity: &Identity,
    visitor: &Visitor,
    lease: Duration,
    journal: Option<JournalInfo>,
) -> Bytes {
    let Identity { id, client, moved } = identity.clone();
    let Visitor { path, access, squash, .. } = visitor.clone();
    let (writes, lease) = (access == Access::Write, lease.as_millis() as u64);
    let info = SessionInfo { id, name: client, path, writes, squash, lease, journal };
    let mut encoded = postcard::to_allocvec(&info).expect("a record in memory encodes");
    if let Some(moved) = moved {
        encoded = postcard::to_extend(&moved, encoded).expect("a record in memory encodes");
    }
    encoded.into()
}

/// The session of a record: `None` for one that does not decode.
pub(super) fn decode(info: &[u8]) -> Option<Recorded> {
    let (info, rest) = postcard::take_from_bytes::<SessionInfo>(info).ok()?;
    let moved = if rest.is_empty() { None } else { Some(postcard::from_bytes(rest).ok()?) };
    let SessionInfo { id, name, path, writes, squash, lease, journal } = info;
    let access = if writes { Access::Write } else { Access::Read };
    let identity = Identity { id, client: name.clone(), moved };
    let visitor = Visitor { name, path, access, squash };
    Some(Recorded { identity, visitor, lease: Duration::from_millis(lease), journal })
}

/// What the filesystem's record of a session has come to.
pub(super) struct Recorded {
    pub(super) identity: Identity,
    pub(super) visitor: Visitor,
    pub(super) lease: Duration,
    pub(super) journal: Option<JournalInfo>,
}
