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
    /// Records a request; returns the version if it is the newest durable one. `committed` is that, and `newest` the
    /// newest of all.
    pub(super) fn newest(&mut self, committed: Version, newest: Version) -> Option<Version> {
        self.follow = FOLLOWED_ROUNDS;
        let kept = self.version.filter(|version| *version == committed);
        kept.or((committed == newest).then_some(newest))
    }
}
