//! What a follower has heard of its primary.

use thalweg_env::Time;
use thalweg_store::block::{BLOCK_SIZE, Version};

use super::protocol::FromPrimary;
use super::staleness::Staleness;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) connected: bool,
    /// The primary's newest version.
    pub(super) primary: Option<Version>,
    /// The primary's count of changed bytes there.
    primary_total: u64,
    /// That count at the newest version here.
    total: Option<u64>,
    /// Blocks of a copy that are not applied yet.
    copy: Option<u64>,
    pub(super) heard: Option<Time>,
    pub(super) waiting_bytes: u64,
    pub(super) staleness: Staleness,
}

impl Seen {
    /// A connection begins: the primary may be another process, with another count.
    pub(super) fn connect(&mut self) {
        self.connected = true;
        (self.primary, self.total, self.copy) = (None, None, None);
    }

    /// The connection ended.
    pub(super) fn disconnect(&mut self) {
        (self.connected, self.waiting_bytes) = (false, 0);
        self.staleness.disconnect();
    }

    /// Notes a message that came `now`, with a payload of so many bytes.
    pub(super) fn hear(&mut self, now: Time, message: &FromPrimary, payload: u64) {
        self.heard = Some(now);
        self.waiting_bytes += payload;
        if let FromPrimary::Told { number, newest, total, .. } = message {
            self.primary = self.primary.max(Some(*newest));
            self.primary_total = *total;
            self.staleness.answer(*number, *newest);
        }
    }

    /// Notes that the payload of a message was applied, or waits among the changes that are not durable.
    pub(super) fn applied(&mut self, bytes: u64) {
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes);
    }

    /// A copy of so many blocks begins.
    pub(super) fn copy_begins(&mut self, blocks: u64) {
        (self.copy, self.total) = (Some(blocks), None);
    }

    /// Blocks of a copy are applied, if one is under way.
    pub(super) fn copied(&mut self, blocks: usize) {
        self.copy = self.copy.map(|left| left.saturating_sub(blocks as u64));
    }

    /// Notes the state that the volume has, and the primary's count there, if it is told.
    pub(super) fn reach(&mut self, version: Version, is_whole: bool, total: Option<Option<u64>>) {
        if let Some(total) = total {
            self.total = total;
        }
        if is_whole {
            self.copy = None;
            self.staleness.reach(version);
        }
    }

    /// Bytes that the primary has changed since `version`, which is the newest one here.
    pub(super) fn behind_bytes(&self, version: Version) -> Option<u64> {
        match (self.copy, self.total) {
            (Some(blocks), _) => Some(blocks.saturating_mul(BLOCK_SIZE as u64)),
            _ if version >= self.primary? => Some(0),
            (None, total) => Some(self.primary_total.saturating_sub(total?)),
        }
    }
}
