//! Blocks to keep in memory on request (Isotope 4.2.3, `please_cache`).
//!
//! A bounded set, least recently used first out. It keeps the newest content of a requested block, from its
//! next read or write on; the content stays when the block moves. Contents are named by their location in the
//! index, so that none outlives its version.

use std::collections::BTreeMap;

use bytes::Bytes;
use thalweg_env::HashMap;

use super::index::Location;

/// The requested blocks, and their contents.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// Maximum number of requested blocks.
    pub(super) most: usize,
    clock: u64,
    wishes: HashMap<u32, Wish>,
    /// Logical blocks by their last use.
    order: BTreeMap<u64, u32>,
}

#[derive(Debug, Default)]
struct Wish {
    used: u64,
    kept: Option<(Location, Bytes)>,
}

impl Wishes {
    /// Number of requested blocks.
    pub(super) fn len(&self) -> usize {
        self.wishes.len()
    }

    /// Adds a requested block.
    pub(super) fn add(&mut self, lba: u32) {
        if self.most == 0 {
            return;
        }
        self.wishes.entry(lba).or_default();
        self.touch(lba);
        if self.wishes.len() > self.most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.wishes.remove(&oldest);
        }
    }

    fn touch(&mut self, lba: u32) {
        let Some(wish) = self.wishes.get_mut(&lba) else { return };
        self.clock += 1;
        self.order.remove(&wish.used);
        wish.used = self.clock;
        self.order.insert(self.clock, lba);
    }

    /// Whether a block is requested.
    pub(super) fn wants(&self, lba: u32) -> bool {
        self.wishes.contains_key(&lba)
    }

    /// Keeps the newest content of a block, if the block is requested.
    pub(super) fn keep(&mut self, lba: u32, at: Location, content: &Bytes) {
        if let Some(wish) = self.wishes.get_mut(&lba) {
            wish.kept = Some((at, content.clone()));
            self.touch(lba);
        }
    }

    /// The kept content of a block that lies at `at`.
    pub(super) fn get(&mut self, lba: u32, at: Location) -> Option<Bytes> {
        let (place, content) = self.wishes.get(&lba)?.kept.as_ref()?;
        let content = (*place == at).then(|| content.clone())?;
        self.touch(lba);
        Some(content)
    }

    /// Records that the content moved from the block `from` to `to`.
    pub(super) fn moved(&mut self, lba: u32, from: u32, to: Location) {
        let kept = self.wishes.get_mut(&lba).and_then(|wish| wish.kept.as_mut());
        if let Some((place, _)) = kept.filter(|(place, _)| place.block == from) {
            *place = to;
        }
    }

    /// Drops the content of a block that changed.
    pub(super) fn forget(&mut self, lba: u32) {
        if let Some(wish) = self.wishes.get_mut(&lba) {
            wish.kept = None;
        }
    }

    /// Drops all contents.
    pub(super) fn forget_all(&mut self) {
        self.wishes.values_mut().for_each(|wish| wish.kept = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(block: u32) -> Location {
        Location { block, check: block }
    }

    #[test]
    fn of_too_many_the_least_recently_used_go() {
        let mut wishes = Wishes { most: 3, ..Wishes::default() };
        for lba in 0..3 {
            wishes.add(lba);
            wishes.keep(lba, at(lba), &Bytes::from(vec![lba as u8]));
        }
        assert_eq!(wishes.get(0, at(0)), Some(Bytes::from(vec![0])));
        wishes.add(3);
        let wanted: Vec<bool> = (0..4).map(|lba| wishes.wants(lba)).collect();
        assert_eq!(wanted, [true, false, true, true]);
        wishes.add(2);
        wishes.add(4);
        assert!(!wishes.wants(0));
        assert_eq!((wishes.len(), wishes.order.len()), (3, 3));
    }

    #[test]
    fn a_content_is_that_of_its_place() {
        let mut wishes = Wishes { most: 3, ..Wishes::default() };
        wishes.keep(1, at(5), &Bytes::from_static(b"not wished for"));
        assert_eq!(wishes.get(1, at(5)), None);
        wishes.add(1);
        wishes.keep(1, at(5), &Bytes::from_static(b"a"));
        assert_eq!(wishes.get(1, at(6)), None);
        wishes.moved(1, 5, at(6));
        assert_eq!(wishes.get(1, at(6)), Some(Bytes::from_static(b"a")));
        wishes.moved(1, 5, at(7));
        wishes.forget(1);
        assert_eq!(wishes.get(1, at(6)), None);
    }
}
