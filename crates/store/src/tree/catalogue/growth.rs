//! Growth of partitions, by further runs of blocks.
//!
//! 1. [`reserve`] enters the new runs as [`State::Unfinished`], so that no other partition gets the blocks, and
//!    discards them.
//! 2. [`add_in`] makes them part of the partition, in a transaction in which the caller writes its own record
//!    of the new size.
//!
//! A crash in between leaves reserved runs. The next growth of the partition releases them first.

use std::ops::Range;

use super::Catalogue;
use crate::block::Lba;
use crate::tree::error::TreeError;
use crate::tree::format::{Kind, MIN_BLOCKS, State};
use crate::tree::partition::{Partition, Run};
use crate::txn::{Begin, Durability, Transact, Transaction, run};
use async_recursion::async_recursion;

/// Blocks of the smallest gap that is used.
const LEAST: u64 = MIN_BLOCKS;

/// A partition, and the number of blocks to add to it.
#[derive(Clone, Debug)]
pub struct Addition<'a> {
    /// The partition.
    pub name: &'a str,
    /// The number of blocks to add.
    pub blocks: u64,
}

/// The number of blocks by which partitions of these names can grow, all together.
///
/// # Errors
/// [`TreeError::Missing`], and those of [`super::list`].
pub async fn room(volume: &dyn Transact, names: &[&str]) -> Result<u64, TreeError> {
    run(volume, Begin::READ_ONLY, Durability::Synced, async |txn| {
        let mut catalogue = Catalogue::require(&*txn).await?;
        names.iter().try_for_each(|name| release(&mut catalogue, name).map(drop))?;
        Ok(usable(&catalogue, txn.blocks()).iter().map(len).sum())
    })
    .await
}

/// Reserves and discards runs of blocks for partitions: for each addition in turn, from the largest gaps
/// between partitions. Releases earlier reservations of the same partitions.
///
/// # Errors
/// [`TreeError::NoGap`] when there are too few blocks between the partitions; [`TreeError::WrongKind`] for a
/// hash table, whose directory cannot grow; [`TreeError::Missing`], [`TreeError::Invalid`] when the catalogue
/// is full, and those of [`super::list`].
#[async_recursion]
pub async fn reserve(
    volume: &dyn Transact,
    additions: &[Addition<'_>],
) -> Result<Vec<Vec<Run>>, TreeError> {
    let reserved = run(volume, Begin::STRICT, Durability::Synced, async |txn| {
        let mut catalogue = Catalogue::require(&*txn).await?;
        for addition in additions {
            release(&mut catalogue, addition.name)?;
        }
        let mut reserved = Vec::with_capacity(additions.len());
        for addition in additions {
            let runs = choose(usable(&catalogue, txn.blocks()), addition.blocks)?;
            find(&mut catalogue, addition.name)?.further.extend(runs.iter().cloned());
            reserved.push(runs);
        }
        catalogue.write(&*txn).await?;
        Ok::<_, TreeError>(reserved)
    })
    .await?;
    for run in reserved.iter().flatten() {
        volume.discard_run(Lba(run.first), run.blocks).await?;
    }
    Ok(reserved)
}

/// Adds the reserved runs of a partition to it, within a transaction. Returns the partition with them.
///
/// # Errors
/// [`TreeError::Missing`], and those of [`super::list`].
pub async fn add_in(txn: &dyn Transaction, name: &str) -> Result<Partition, TreeError> {
    let mut catalogue = Catalogue::require(txn).await?;
    let partition = find(&mut catalogue, name)?;
    partition.further.iter_mut().for_each(|run| run.state = State::Ready);
    let partition = partition.clone();
    catalogue.write(txn).await?;
    Ok(partition)
}

fn find<'a>(catalogue: &'a mut Catalogue, name: &str) -> Result<&'a mut Partition, TreeError> {
    let found = catalogue.partitions.iter_mut().find(|partition| partition.name == name);
    found.ok_or_else(|| TreeError::Missing(name.to_owned()))
}

/// Removes the reserved runs of a partition from a catalogue.
fn release<'a>(catalogue: &'a mut Catalogue, name: &str) -> Result<&'a mut Partition, TreeError> {
    let partition = find(catalogue, name)?;
    if partition.state == State::Unfinished {
        return Err(TreeError::Unfinished(partition.name.clone()));
    }
    if partition.kind == Kind::Hash {
        return Err(TreeError::WrongKind {
            name: partition.name.clone(),
            is: partition.kind,
            wanted: "partition that can grow",
        });
    }
    partition.further.retain(|run| run.state == State::Ready);
    Ok(partition)
}

fn len(gap: &Range<u64>) -> u64 {
    gap.end - gap.start
}

/// The gaps between partitions that are large enough for a run, the largest first.
fn usable(catalogue: &Catalogue, volume: u64) -> Vec<Range<u64>> {
    let mut gaps = catalogue.gaps(volume);
    gaps.retain(|gap| len(gap) >= LEAST);
    gaps.sort_by_key(|gap| std::cmp::Reverse(len(gap)));
    gaps
}

/// Runs of `wanted` blocks in total, from the start of the list on.
fn choose(gaps: Vec<Range<u64>>, wanted: u64) -> Result<Vec<Run>, TreeError> {
    let (mut runs, mut missing) = (Vec::new(), wanted);
    for gap in &gaps {
        if missing == 0 {
            break;
        }
        let blocks = missing.min(len(gap)).max(LEAST);
        runs.push(Run { first: gap.start, blocks, state: State::Unfinished });
        missing = missing.saturating_sub(blocks);
    }
    match missing {
        0 => Ok(runs),
        _ => Err(TreeError::NoGap(wanted, gaps.iter().map(len).sum())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_gaps_are_taken_first() {
        let chosen = |gaps: &[(u64, u64)], wanted| {
            let mut gaps: Vec<_> = gaps.iter().map(|(start, end)| *start..*end).collect();
            gaps.sort_by_key(|gap| std::cmp::Reverse(len(gap)));
            let runs = choose(gaps, wanted).ok()?;
            Some(runs.iter().map(|run| (run.first, run.blocks)).collect::<Vec<_>>())
        };
        let gaps = [(16, 40), (100, 200), (300, 360)];
        assert_eq!(chosen(&gaps, 100), Some(vec![(100, 100)]));
        assert_eq!(chosen(&gaps, 150), Some(vec![(100, 100), (300, 50)]));
        assert_eq!(chosen(&gaps, 102), Some(vec![(100, 100), (300, 8)]));
        assert_eq!(chosen(&gaps, 184), Some(vec![(100, 100), (300, 60), (16, 24)]));
        assert_eq!(chosen(&gaps, 185), None);
        assert_eq!(chosen(&gaps, 0), Some(vec![]));
    }
}
