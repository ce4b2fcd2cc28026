//! The newest durable version, while somebody asks for it.

use crate::block::Version;

/// Rounds for which the durable version is kept although nobody asks for it.
const FOLLOWED_ROUNDS: u32 = 64;

/// The newest durable version, kept for those who read what survives a crash. A round that is under
/// way overwrites nothing that its readers need, and that costs, so it is done while somebody asks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Synced {
    /// The version that is kept.
    pub(super) version: Option<Version>,
    /// Rounds until nobody is taken to ask any more.
    pub(super) follow: u32,
}

impl Synced {
    /// Notes that somebody asks.
    pub(super) fn ask(&mut self) {
        self.follow = FOLLOWED_ROUNDS;
    }
}
