//! Mini-logs after a crash: fragments become slots again.
//!
//! A replay notes for each slot the location of its base and the fragments over it; the bases are read once
//! all logs are replayed, for the slots that are left.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use thalweg_env::HashMap;

use super::super::format::{Kind, MapEntry, Position, block_checksum};
use super::super::index::{Location, Place, is_slot};
use super::super::read::{Verified, read_verified};
use super::super::{ChainError, State};
use super::format::{Fragment, open};
use super::slots::{Overlay, Slot};
use crate::block::{BLOCK_SIZE, Lba, Version};
use crate::device::{AlignedBuf, Purpose};

/// Reads at a time.
const READS: usize = 32;

/// The fragments in mini-log blocks, by physical block.
pub(in super::super) type Minis = HashMap<u32, Vec<Fragment>>;

/// The fragments of one mini-log block; `None` when no copy of it can be read or is whole.
pub(in super::super) async fn read_mini(
    state: &State,
    block: u32,
    entry: &MapEntry,
) -> Option<Vec<Fragment>> {
    let (link, offset) = state.segments.place(block)?;
    let device = &state.segments.links[link].device;
    let right = |content: &[u8]| open(entry, &Bytes::copy_from_slice(content)).is_some();
    match read_verified(device, offset, BLOCK_SIZE, Purpose::UserData, right).await {
        Ok(Verified::Whole { content, .. }) => open(entry, &content),
        _ => None,
    }
}

/// The fragments in the mini-log blocks among a log's entries.
///
/// # Errors
/// [`ChainError::Damaged`] when a block is damaged: its content was durable.
pub(in super::super) async fn read_minis(
    state: &State,
    entries: &[(Position, u32, MapEntry)],
) -> Result<Minis, ChainError> {
    let entries = entries.iter().filter(|(_, _, entry)| entry.kind == Kind::Mini);
    let reads = entries.map(|(_, block, entry)| async move {
        let fragments = read_mini(state, *block, entry).await;
        fragments.map(|fragments| (*block, fragments)).ok_or_else(|| {
            ChainError::Damaged(format!(
                "block {block}, which holds parts of blocks up to version {}, is damaged, and what \
                 it held was durable",
                entry.version
            ))
        })
    });
    let reads: Vec<_> = reads.collect();
    stream::iter(reads).buffered(READS).try_collect().await
}

impl State {
    /// Applies a fragment of a log.
    pub(in super::super) fn replay_fragment(
        &mut self,
        fragment: &Fragment,
        newest: &mut HashMap<u32, Version>,
    ) {
        let (lba, version) = (fragment.lba, fragment.version);
        let outside = u64::from(lba) >= self.index.blocks();
        if outside || self.label.is_void(version, u64::from(lba)) {
            return;
        }
        newest.insert(lba, version);
        let base = self.index.get(lba, Version(u64::MAX));
        let slot = base.filter(|at| is_slot(at.block)).and_then(|at| self.slots.get(at.block));
        let mut overlay = match slot.and_then(|slot| slot.overlay.clone()) {
            Some(overlay) => overlay,
            None => Overlay::over(base),
        };
        overlay.add(fragment);
        self.put_slot(lba, version, overlay);
    }

    /// Makes `overlay` the content of `version` of a block.
    fn put_slot(&mut self, lba: u32, version: Version, overlay: Box<Overlay>) {
        let block = self.slots.take(Slot::replayed(lba, version, overlay));
        self.put(lba, version, Place::At(Location { block, check: 0 }));
    }

    /// Reads the base of every slot, and applies its fragments. A slot of whose base no copy is whole stays
    /// without content: its readers get an error.
    pub(in super::super) async fn fill_slots(&mut self) {
        let overlays = self.slots.take_overlays();
        let state = &*self;
        let reads = overlays.into_iter().map(|(slot, lba, overlay)| async move {
            let mut content = match overlay.base {
                Some(at) => AlignedBuf::copy_of(&read_base(state, lba, at).await?),
                None => AlignedBuf::zeroed(BLOCK_SIZE),
            };
            overlay.onto(&mut content);
            Some((slot, content.freeze()))
        });
        let reads: Vec<_> = reads.collect();
        let filled: Vec<_> = stream::iter(reads).buffered(READS).collect().await;
        for (slot, content) in filled.into_iter().flatten() {
            self.slots.fill(slot, content);
        }
    }

    /// The segments that hold the bases of slots which are not filled yet.
    pub(in super::super) fn base_segments(&self) -> BTreeSet<u32> {
        let bases = self.slots.bases();
        bases.map(|block| self.segments.of(block)).collect()
    }
}

async fn read_base(state: &State, lba: u32, at: Location) -> Option<Bytes> {
    let lba = Lba(u64::from(lba));
    let (link, offset) = state.segments.place(at.block)?;
    let device = &state.segments.links[link].device;
    let right = |content: &[u8]| block_checksum(lba, content) == at.check;
    match read_verified(device, offset, BLOCK_SIZE, Purpose::UserData, right).await {
        Ok(Verified::Whole { content, .. }) => Some(content),
        _ => {
            tracing::error!(
                lba = lba.0,
                "a block was written in part, and its other bytes are damaged"
            );
            None
        }
    }
}
