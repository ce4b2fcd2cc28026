//! Old versions of blocks, which go when nothing holds them any more.

use std::cmp::Reverse;

use super::{Index, Version};
use crate::block::Holds;

impl Index {
    /// Notes that content which `version` replaced may be kept by a range of held versions alone.
    pub(super) fn lapse_later(&mut self, lba: u32, version: Version, holds: &Holds) {
        if holds.floor().is_some() {
            self.lapsing.push_back((version, lba));
        }
    }

    /// The version from which on at most `most` contents with successors are held.
    pub(in super::super) fn lapse_point(&self, most: usize) -> Option<Version> {
        let surplus = self.lapsing.len().checked_sub(most.checked_add(1)?)?;
        self.lapsing.get(surplus).map(|(until, _)| *until)
    }

    /// Re-examines at most `most` of the blocks with content that left the range of held versions. Returns whether
    /// there may be more.
    pub(in super::super) fn lapse(&mut self, holds: &Holds, most: usize) -> bool {
        for _ in 0..most {
            match self.lapsing.front() {
                Some((until, _)) if holds.floor().is_none_or(|floor| *until <= floor) => {}
                _ => return false,
            }
            let Some((_, lba)) = self.lapsing.pop_front() else { return false };
            self.settle(lba, holds);
        }
        true
    }

    /// Re-examines at most `most` of the blocks whose old versions a released hold may have kept. Returns
    /// whether there may be more.
    pub(in super::super) fn age(&mut self, holds: &Holds, most: usize) -> bool {
        for _ in 0..most {
            match self.aging.peek() {
                Some(Reverse((version, _)))
                    if holds.oldest().is_none_or(|oldest| *version <= oldest) => {}
                _ => return false,
            }
            let Some(Reverse((_, lba))) = self.aging.pop() else { return false };
            self.settle(lba, holds);
            if let Some(versions) = self.several.get(&lba) {
                let newest = versions.last().map_or(Version(0), |(version, _)| *version);
                self.aging.push(Reverse((newest, lba)));
            }
        }
        true
    }

    /// Re-examines every block of the table, as the release of a hold that is not the oldest requires.
    pub(in super::super) fn settle_all(&mut self, holds: &Holds) {
        let mut blocks: Vec<u32> = self.several.keys().copied().collect();
        blocks.sort_unstable();
        for lba in blocks {
            self.settle(lba, holds);
        }
        let several = &self.several;
        self.aging.retain(|Reverse((_, lba))| several.contains_key(lba));
        self.lapsing.retain(|(_, lba)| several.contains_key(lba));
    }
}
