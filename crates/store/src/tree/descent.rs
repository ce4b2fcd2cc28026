//! Descents from the root of a B-tree to a leaf.

use smallvec::SmallVec;

use super::error::TreeError;
use super::format::{MAX_LEVEL, PageKind};
use super::page::Page;
use super::way::{Step, Way};
use super::work::Work;

/// The target of a descent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'k> {
    First,
    Last,
    Key(&'k [u8]),
    /// The last leaf with room for keys less than this.
    Before(&'k [u8]),
}

/// The child that a record of an inner node leads to.
pub(super) fn child(page: &Page, index: usize) -> Result<u32, TreeError> {
    let value = page.record(index)?.value;
    let block: Result<[u8; 4], _> = value.try_into();
    block.map(u32::from_le_bytes).map_err(|_| page.damaged("a child has no address"))
}

/// The index of the child on the path to `target`.
fn choose(page: &Page, target: Target<'_>) -> Result<usize, TreeError> {
    let count = page.count();
    if count == 0 {
        return Err(page.damaged("an inner node without children"));
    }
    let index = match target {
        Target::First => 0,
        Target::Last => count - 1,
        Target::Key(key) => match page.search(key)? {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        },
        Target::Before(key) => match page.search(key)? {
            Ok(index) | Err(index) => index.saturating_sub(1),
        },
    };
    Ok(index)
}

/// The way to the leaf of `target`. Loads all pages on it.
pub(super) async fn descend(work: &mut Work<'_>, target: Target<'_>) -> Result<Way, TreeError> {
    if let Target::Key(key) = target
        && let Some(way) = work.known_way(key)?
    {
        return Ok(way);
    }
    let mut way = Way { steps: SmallVec::new(), leaf: work.area.root() };
    let mut expected = None;
    loop {
        let page = work.load(way.leaf, PageKind::Node).await?;
        let level = page.level();
        if level > MAX_LEVEL || expected.is_some_and(|expected| expected != level) {
            return Err(page.damaged("it is at the wrong height"));
        }
        let Some(below) = level.checked_sub(1) else {
            work.keep_way(&way);
            return Ok(way);
        };
        expected = Some(below);
        let index = choose(page, target)?;
        let (from, to) = (way.leaf, child(page, index)?);
        work.check_pointer(from, to)?;
        way.steps.push(Step { block: from, index });
        way.leaf = to;
    }
}
