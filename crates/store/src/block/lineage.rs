//! How stores are told apart that hold the same volume: by positions in one history.

use async_trait::async_trait;
use uuid::Uuid;

use super::{Position, StoreError, Version};

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

/// The history of a store that replicas may follow, and its rank among them.
#[async_trait]
pub trait Lineage: Send + Sync {
    /// The name of a version on any machine; `None` for one older than the history, and for a volume that nothing has
    /// followed yet.
    fn position_of(&self, version: Version) -> Option<Position>;

    /// The timeline to which the next version will belong, if the store takes writes.
    fn timeline(&self) -> Option<Uuid>;

    /// How a position relates to the store.
    fn relation(&self, position: Position) -> Relation;

    /// Waits until the store has the state that `position` names, or a later one, and it survives a crash.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when it never will: the position is of another volume, or of one that has gone another
    /// way.
    async fn reached(&self, position: Position) -> Result<(), StoreError>;

    /// Waits until `version` survives a crash of this machine at enough replicas, too: as many as syncs wait for, or else
    /// one. Says `false` when no replica is connected that has a state of the store, and syncs wait for none.
    async fn replicated(&self, version: Version) -> bool;

    /// Number of promotions up to the primary that the store belongs to.
    fn term(&self) -> u32;

    /// Whether another primary has taken the place of this one.
    fn is_fenced(&self) -> bool;
}
