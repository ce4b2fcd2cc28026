//! Where the parts of a store lie in its partition.

use std::ops::Range;

use uuid::Uuid;

use super::catalogue::Partition;
use super::error::TreeError;
use super::format::{
    BITS_PER_PAGE, BLOCKS_PER_DIRECTORY, DIRECTORY_ENTRIES, Kind, MAX_BLOCKS, MIN_BLOCKS, tag,
};
use super::space::Window;
use crate::block::Lba;

/// A store's partition and its parts, as numbers of blocks in it.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) uuid: Uuid,
    pub(super) tag: u32,
    pub(super) blocks: u64,
    first: u64,
    bitmaps: u32,
    directories: u32,
    /// Where free blocks are looked for first.
    pub(super) window: Window,
}

/// Where the bitmap begins.
const BITMAP: u32 = 1;

impl Area {
    /// The parts of a partition for a store.
    ///
    /// # Errors
    /// [`TreeError::Invalid`] when it is too small or too large for one.
    pub(super) fn new(partition: &Partition) -> Result<Area, TreeError> {
        let blocks = partition.blocks;
        if !(MIN_BLOCKS..=MAX_BLOCKS).contains(&blocks) {
            return Err(TreeError::Invalid(format!(
                "a store has from {MIN_BLOCKS} to {MAX_BLOCKS} blocks, not {blocks}"
            )));
        }
        let rest = (blocks - 1) as u32;
        let directories = match partition.kind {
            Kind::Hash => rest.div_ceil(BLOCKS_PER_DIRECTORY),
            Kind::Btree | Kind::Raw => 0,
        };
        Ok(Area {
            name: partition.name.clone(),
            kind: partition.kind,
            uuid: partition.uuid,
            tag: tag(&partition.uuid),
            blocks,
            first: partition.first,
            bitmaps: rest.div_ceil(BITS_PER_PAGE),
            directories,
            window: Window::default(),
        })
    }

    /// The volume's block behind a block of the partition.
    pub(super) fn lba(&self, block: u32) -> Lba {
        Lba(self.first + u64::from(block))
    }

    /// The pages that must be zeros when the store is made.
    pub(super) fn prepared(&self) -> Range<u32> {
        0..self.data().start
    }

    /// The pages of the bitmap.
    pub(super) fn bitmaps(&self) -> Range<u32> {
        BITMAP..BITMAP + self.bitmaps
    }

    /// The pages of a hash table's directory.
    pub(super) fn directories(&self) -> Range<u32> {
        let start = BITMAP + self.bitmaps;
        start..start + self.directories
    }

    /// The number of a hash table's directory entries.
    pub(super) fn directory_entries(&self) -> u64 {
        u64::from(self.directories) * u64::from(DIRECTORY_ENTRIES)
    }

    /// The root of a B-tree: it never moves.
    pub(super) fn root(&self) -> u32 {
        BITMAP + self.bitmaps
    }

    /// The blocks that the bitmap is about.
    pub(super) fn data(&self) -> Range<u32> {
        let start = match self.kind {
            Kind::Hash => self.directories().end,
            Kind::Btree | Kind::Raw => self.root() + 1,
        };
        start..((self.blocks - 1) as u32).saturating_add(1).max(start)
    }
}
