//! How stores are told apart that hold the same volume: by positions in one history.

use super::Version;

/// How a position, or another history, relates to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// It is a state that the volume has been in, or is in now.
    Past,
    /// The volume has not come so far; it may be one of its future states.
    Future,
    /// The two have gone different ways since this version.
    Apart(Version),
    /// They have no timeline in common: another volume, or a state from before the oldest timeline that is known.
    Strange,
}
