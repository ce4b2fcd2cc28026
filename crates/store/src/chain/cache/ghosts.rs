//! Keys of recent misses, without their blocks.
//!
//! A scan over the tail misses every block once. Admitting those blocks would push out blocks that were just
//! written, and wear the SSD, for nothing. A block that is missed again is admitted.

/// Blocks of the cache for each key remembered.
const BLOCKS_PER_GHOST: usize = 4;

/// A table with one place for each hash: a new key displaces the one there.
#[derive(Debug)]
pub(super) struct Ghosts {
    /// The upper half of the key's hash, whose lower half is the place; 0 for an empty place.
    places: Vec<u32>,
}

impl Ghosts {
    /// A table for a cache of so many blocks: one byte for each.
    pub(super) fn new(cache_blocks: usize) -> Ghosts {
        let places = (cache_blocks / BLOCKS_PER_GHOST).max(1).next_power_of_two();
        Ghosts { places: vec![0; places] }
    }

    /// Whether `key` is in the table. If so it is removed, else added.
    pub(super) fn meet(&mut self, key: u64) -> bool {
        let hash = super::index::hash(key);
        let place = hash as usize & (self.places.len() - 1);
        let mark = ((hash >> 32) as u32).max(1);
        let met = self.places[place] == mark;
        self.places[place] = if met { 0 } else { mark };
        met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_meeting_counts_and_a_long_scan_is_forgotten() {
        let mut ghosts = Ghosts::new(4096);
        assert!(!ghosts.meet(7));
        assert!(ghosts.meet(7));
        assert!(!ghosts.meet(7));
        for key in 1000..100_000 {
            assert!(!ghosts.meet(key));
        }
        assert!(!ghosts.meet(7));
    }
}
