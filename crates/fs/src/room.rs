//! Room for changes that a client makes by itself, and that the filesystem applies later.
//!
//! A server promises room to a session before the session needs it ([`Promises::promise`]). The client
//! charges each change that it makes with the most that the change can take ([`Room::of_new`], [`Room::of_bytes`]), and makes a change by itself only
//! while what it was promised covers that. So no change that a caller was told of fails later for want of space or quota. No
//! other change takes what is promised.

use std::ops::Range;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::attributes::Ino;
use crate::error::FsError;
use crate::node::Node;

/// Bytes in a block.
const BLOCK: u64 = 4096;
/// Bytes of the records of a new inode at most, beside its name and the target of a symbolic link.
const BYTES_OF_AN_INODE: u64 = 224;
/// Bytes of the record of a name at most, beside the name.
const BYTES_OF_A_NAME: u64 = 64;
/// Places among the records at which those of a new inode are: its own ones, its name, and that of a subdirectory.
const PLACES_OF_AN_INODE: u64 = 3;
/// Bytes of the record of a run of blocks at most. In the worst case each block is a run.
const BYTES_OF_A_RUN: u64 = 48;

/// Room for changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Room {
    /// Blocks of data, of 4 KiB.
    pub blocks: u64,
    /// New inodes.
    pub inodes: u64,
    /// Places among the records of metadata at which new ones are inserted: a place may be in a full block.
    pub places: u64,
    /// Bytes of these records.
    pub bytes: u64,
}

impl Room {
    /// No room.
    pub const NONE: Room = Room { blocks: 0, inodes: 0, places: 0, bytes: 0 };

    /// The most that a new inode with this name takes.
    pub fn of_new(name: &[u8], node: &Node) -> Room {
        let target = match node {
            Node::Symlink(target) => target.len(),
            _ => 0,
        };
        let bytes = BYTES_OF_AN_INODE + (name.len() + target) as u64;
        Room { blocks: 0, inodes: 1, places: PLACES_OF_AN_INODE, bytes }
    }

    /// The most that a further name of an inode takes.
    pub fn of_name(name: &[u8]) -> Room {
        Room { blocks: 0, inodes: 0, places: 1, bytes: BYTES_OF_A_NAME + name.len() as u64 }
    }

    /// The most that bytes take for which a file gets so many blocks.
    pub fn of_bytes(blocks: u64) -> Room {
        // The records of a file's runs follow one another.
        Room { blocks, inodes: 0, places: blocks.min(1), bytes: blocks * BYTES_OF_A_RUN }
    }

    /// The most that an extended attribute takes that gets a value of so many bytes. One before it may be freed later.
    pub fn of_xattr(name: &[u8], value: usize) -> Room {
        Room {
            blocks: 0,
            inodes: 0,
            places: 1,
            bytes: BYTES_OF_A_NAME + (name.len() + value) as u64,
        }
    }

    /// Whether there is less of something than a third of this.
    pub fn is_below_third(self, of: Room) -> bool {
        let below = |own: u64, of: u64| own < of / 3;
        below(self.blocks, of.blocks)
            || below(self.inodes, of.inodes)
            || below(self.places, of.places)
            || below(self.bytes, of.bytes)
    }

    /// Whether nothing fits.
    pub fn is_none(self) -> bool {
        self == Room::NONE
    }

    /// What is left when `part` is taken, if all of that is there.
    pub fn checked_sub(self, part: Room) -> Option<Room> {
        Some(Room {
            blocks: self.blocks.checked_sub(part.blocks)?,
            inodes: self.inodes.checked_sub(part.inodes)?,
            places: self.places.checked_sub(part.places)?,
            bytes: self.bytes.checked_sub(part.bytes)?,
        })
    }

    /// The sum.
    pub fn plus(self, more: Room) -> Room {
        Room {
            blocks: self.blocks.saturating_add(more.blocks),
            inodes: self.inodes.saturating_add(more.inodes),
            places: self.places.saturating_add(more.places),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }

    /// One in `share` of it.
    pub fn part(self, share: u64) -> Room {
        Room {
            blocks: self.blocks / share,
            inodes: self.inodes / share,
            places: self.places / share,
            bytes: self.bytes / share,
        }
    }

    /// What a quota limits of it.
    pub fn of_quota(self) -> Room {
        Room { places: 0, bytes: 0, ..self }
    }

    /// The smaller of each.
    pub fn min(self, other: Room) -> Room {
        Room {
            blocks: self.blocks.min(other.blocks),
            inodes: self.inodes.min(other.inodes),
            places: self.places.min(other.places),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

/// Room where it counts: for the volume, or below the root of a quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RoomShare {
    /// The inode of the quota's root; 0 for the volume.
    pub quota: u64,
    /// How much.
    pub room: Room,
}

/// When a session is promised more. Each time the free room is looked up, which costs a call where contents are elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refill {
    /// When it has used half of what it may have.
    Half,
    /// When it has used some: its client may have taken all of it for what waits in a journal, and goes on with what it gets when a batch
    /// of that is applied.
    Some,
}

/// The promises of a filesystem to the sessions of its server.
#[async_trait]
pub trait Promises {
    /// Promises a session more room when it is due, so that it can make changes by itself: of the volume, and below the root of `quota`
    /// unless that is 0. Returns what is added to what it was promised before, which is nothing while it has enough, or while other calls
    /// need it.
    ///
    /// # Errors
    /// Those of the transaction.
    async fn promise(
        &self,
        session: u64,
        quota: u64,
        refill: Refill,
    ) -> Result<Vec<RoomShare>, FsError>;

    /// A session was promised this by a server before this one, and has not used it.
    fn reclaim_room(&self, session: u64, shares: &[RoomShare]);

    /// A session has used this, or never will.
    fn return_room(&self, session: u64, shares: &[RoomShare]);

    /// A session is promised nothing any more.
    fn release_room(&self, session: u64);

    /// The sessions that are promised some room.
    fn sessions_with_room(&self) -> Vec<u64>;

    /// A path of an inode from the root, for logs.
    ///
    /// # Errors
    /// [`FsError::Stale`]; those of the transactions.
    async fn path_of(&self, ino: Ino) -> Result<String, FsError>;

    /// The root of the quota that an inode counts for; 0 for none.
    ///
    /// # Errors
    /// [`FsError::Stale`]; those of the transaction.
    async fn quota_of(&self, ino: Ino) -> Result<u64, FsError>;
}

/// Adds room to a list that has each quota once.
pub fn add_share(shares: &mut Vec<RoomShare>, quota: u64, room: Room) {
    match shares.iter_mut().find(|share| share.quota == quota) {
        Some(share) => share.room = share.room.plus(room),
        None => shares.push(RoomShare { quota, room }),
    }
}

/// The number of blocks that a range of bytes touches.
pub fn blocks_of(bytes: Range<u64>) -> u64 {
    if bytes.is_empty() { 0 } else { bytes.end.div_ceil(BLOCK) - bytes.start / BLOCK }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_whole_blocks() {
        assert_eq!(blocks_of(0..1), 1);
        assert_eq!(blocks_of(4095..4097), 2);
        assert_eq!(blocks_of(4096..8192), 1);
        assert_eq!(blocks_of(5000..5000), 0);
    }

    #[test]
    fn room_is_taken_whole_or_not() {
        let room = Room { blocks: 3, inodes: 1, places: 2, bytes: 9 };
        assert_eq!(room.checked_sub(Room { blocks: 4, ..Room::NONE }), None);
        let left = room.checked_sub(Room { blocks: 3, inodes: 1, places: 1, bytes: 9 });
        assert_eq!(left, Some(Room { places: 1, ..Room::NONE }));
    }
}
