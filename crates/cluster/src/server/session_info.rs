//! What the filesystem's record of a session says.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_net::keys::{Access, Squash};
use uuid::Uuid;

use super::options::Visitor;

#[derive(Serialize, Deserialize)]
struct SessionInfo {
    id: Uuid,
    name: String,
    path: String,
    writes: bool,
    squash: Squash,
    /// Milliseconds for which its client may use what it caches.
    lease: u64,
}

/// The record of a session.
pub(super) fn encode(id: Uuid, visitor: &Visitor, lease: Duration) -> Bytes {
    let Visitor { name, path, access, squash } = visitor.clone();
    let (writes, lease) = (access == Access::Write, lease.as_millis() as u64);
    let info = SessionInfo { id, name, path, writes, squash, lease };
    postcard::to_allocvec(&info).expect("a record in memory encodes").into()
}

/// The session of a record: `None` for one that does not decode.
pub(super) fn decode(info: &[u8]) -> Option<(Uuid, Visitor, Duration)> {
    let SessionInfo { id, name, path, writes, squash, lease } = postcard::from_bytes(info).ok()?;
    let access = if writes { Access::Write } else { Access::Read };
    Some((id, Visitor { name, path, access, squash }, Duration::from_millis(lease)))
}
