//! The newest durable version, while readers ask for it.

use crate::block::Version;

/// Rounds for which the durable version is kept after the last request for it.
const FOLLOWED_ROUNDS: u32 = 64;

/// The newest durable version, held for readers that need a version which survives a crash. The hold makes
/// every round keep the content that it overwrites, so it is taken only while readers ask.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Synced {
    /// The version that is kept.
    pub(super) version: Option<Version>,
    /// Rounds until the hold ends without a further request.
    pub(super) follow: u32,
}

impl Synced {
    /// Records a request; returns the newest durable version, `committed`, if that can be read.
    pub(super) fn newest(&mut self, committed: Version, is_readable: bool) -> Option<Version> {
        self.follow = FOLLOWED_ROUNDS;
        (is_readable || self.version == Some(committed)).then_some(committed)
    }
}
