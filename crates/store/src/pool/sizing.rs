//! Default sizes.

use super::format::DATA_START;
use super::spec::{LinkSpec, NewVolume};
use crate::block::BLOCK_SIZE;
use crate::chain::Chain;
use crate::chain::format::ENTRIES_PER_PAGE;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Map pages of entries in the largest segment: 15 MiB of blocks.
const MOST_PAGES: u64 = 16;
/// Segments that a link has for cleaning in addition to its share of the volume.
const SPARE_SEGMENTS: u64 = 8;
/// The maximum of physical blocks in a chain.
const MOST_BLOCKS: u64 = u32::MAX as u64 - 2;

/// The size of a segment of this many blocks.
pub(super) fn segment_bytes(segment_blocks: u32) -> u64 {
    u64::from(segment_blocks) * BLOCK
}

/// About 1/128 of a link: large enough to keep the log sequential, small enough to clean in steps.
pub(super) fn segment_blocks(smallest_link: u64) -> u32 {
    let pages = smallest_link / 128 / segment_bytes(ENTRIES_PER_PAGE);
    pages.clamp(1, MOST_PAGES) as u32 * ENTRIES_PER_PAGE
}

/// How many segments the map area has room for, when there are `segments` now.
pub(super) fn max_segments(segments: u64, growth: f64, segment_blocks: u32) -> u32 {
    let wanted = (segments as f64 * growth.max(1.0)).ceil() as u64;
    let most = MOST_BLOCKS / u64::from(segment_blocks);
    wanted.clamp(segments.min(most), most) as u32
}

/// The size of the map area.
pub(super) fn map_bytes(segment_blocks: u32, max_segments: u32) -> u64 {
    Chain::map_bytes(segment_blocks, max_segments).next_multiple_of(BLOCK)
}

/// The size of each device of `link`: its share of the volume, a quarter more so that cleaning is cheap, and
/// the map area if the link is the first and no device is given for the map.
pub(super) fn device_bytes(new: &NewVolume, link: &LinkSpec, first: bool) -> u64 {
    let links = new.links.len().max(1) as u64;
    let share = (new.size + new.size / 4).div_ceil(links);
    let per = new.segment_blocks.unwrap_or_else(|| segment_blocks(share));
    let segments = share.div_ceil(segment_bytes(per)) + SPARE_SEGMENTS;
    let mut bytes = segments * segment_bytes(per);
    if first && new.map.is_empty() {
        bytes += map_bytes(per, max_segments(segments * links + links, new.growth, per));
    }
    let columns = link.columns.len().max(1) as u64;
    let unit = if columns > 1 { u64::from(link.unit) } else { BLOCK };
    let column = bytes.div_ceil(columns).next_multiple_of(unit.max(1));
    (DATA_START + column).next_multiple_of(DATA_START)
}
