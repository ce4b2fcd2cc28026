//! A way from the root of a B-tree to a leaf. Its methods get the nodes on it from `page`.

use smallvec::SmallVec;

use super::error::TreeError;
use super::page::Page;

/// An inner node on the search path, and the child taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) block: u32,
    pub(super) index: usize,
}

/// The end of a descent, and the path to it.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) steps: SmallVec<[Step; 6]>,
    pub(super) leaf: u32,
}

/// The nodes by their blocks.
pub(super) trait Pages<'p>: Fn(u32) -> Result<&'p Page, TreeError> {}

impl<'p, F: Fn(u32) -> Result<&'p Page, TreeError>> Pages<'p> for F {}

impl Way {
    /// All keys in the leaf are at or above it, unless it is the first leaf.
    pub(super) fn low<'p>(&self, page: impl Pages<'p>) -> Result<Option<&'p [u8]>, TreeError> {
        let nearest = self.steps.iter().rev().find(|step| step.index > 0);
        nearest.map(|step| Ok(page(step.block)?.record(step.index)?.key)).transpose()
    }

    /// All keys in the leaf are below it, unless it is the last leaf.
    pub(super) fn high<'p>(&self, page: impl Pages<'p>) -> Result<Option<&'p [u8]>, TreeError> {
        for step in self.steps.iter().rev() {
            let page = page(step.block)?;
            if step.index + 1 < page.count() {
                return Ok(Some(page.record(step.index + 1)?.key));
            }
        }
        Ok(None)
    }

    /// Whether the leaf is the one for this key, while no inner node has changed.
    pub(super) fn covers<'p>(&self, key: &[u8], page: impl Pages<'p>) -> Result<bool, TreeError> {
        Ok(self.low(&page)?.is_none_or(|low| low <= key)
            && self.high(&page)?.is_none_or(|high| key < high))
    }
}
