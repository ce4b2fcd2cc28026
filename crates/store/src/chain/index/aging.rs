//! Old versions of blocks, which go when nothing holds them any more.

use std::cmp::Reverse;

use super::{Index, Version, Versions};
use crate::block::Holds;

/// Versions of a block that are all looked at with each write of it; of one with more, the ends alone.
const FEW: usize = 8;

impl Index {
    /// How many blocks have several versions.
    pub(in super::super) fn tabled(&self) -> usize {
        self.several.len()
    }

    /// How many blocks have several versions, and how many versions these have together.
    pub(in super::super) fn several(&self) -> (usize, usize) {
        (self.several.len(), self.several.values().map(|them| them.len()).sum())
    }

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
            self.let_go(lba, holds);
        }
        true
    }

    /// Drops the oldest versions of a block that no hold needs. Of a block with few versions, drops all that none needs.
    fn let_go(&mut self, lba: u32, holds: &Holds) {
        let Some(versions) = self.several.get_mut(&lba) else { return };
        if versions.len() <= FEW {
            return self.settle(lba, holds);
        }
        let unneeded = versions.windows(2).take_while(|pair| !holds.need(pair[0].0, pair[1].0));
        let count = unneeded.count();
        if count > 0 {
            let dropped: Versions = versions[..count].iter().copied().collect();
            versions.drop_oldest(count);
            self.settled.push(lba);
            dropped.iter().for_each(|(_, place)| self.release(*place));
        }
    }

    /// After a write: drops the version that it replaced if no hold needs it. Of a block with few versions, drops all
    /// that none needs.
    pub(super) fn settle_replaced(&mut self, lba: u32, holds: &Holds) {
        let Some(versions) = self.several.get_mut(&lba) else { return };
        let [.., replaced, newest] = versions[..] else { return self.settle(lba, holds) };
        if versions.len() <= FEW {
            return self.settle(lba, holds);
        }
        if !holds.need(replaced.0, newest.0) {
            versions.remove(versions.len() - 2);
            self.settled.push(lba);
            self.release(replaced.1);
        }
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
