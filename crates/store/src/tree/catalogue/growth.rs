//! Partitions get larger: a further run of blocks at a time.
//!
//! First the new runs are entered as kept for a partition, so that nothing else is made there. Then they are
//! emptied, and at last one transaction makes them a part of it, together with whatever else its user has to
//! write about that. A crash before leaves runs that are kept; the next growth lets them go.

use std::ops::Range;

use super::{Catalogue, Partition, Run};
use crate::block::Lba;
use crate::tree::error::TreeError;
use crate::tree::format::{Kind, MIN_BLOCKS, State};
use crate::txn::{Begin, Durability, Transact, Transaction, run};

/// Blocks of the smallest gap that is taken.
const LEAST: u64 = MIN_BLOCKS;

/// How many blocks a partition shall get.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    /// The partition.
    pub name: &'a str,
    /// Blocks more.
    pub blocks: u64,
}

/// Blocks by which partitions of these names can grow together.
///
/// # Errors
/// [`TreeError::Missing`], and those of [`super::list`].
pub async fn room(volume: &dyn Transact, names: &[&str]) -> Result<u64, TreeError> {
    run(volume, Begin::READ_ONLY, Durability::Synced, async |txn| {
        let mut catalogue = Catalogue::require(&*txn).await?;
        names.iter().try_for_each(|name| let_go(&mut catalogue, name).map(drop))?;
        Ok(usable(&catalogue, txn.blocks()).iter().map(len).sum())
    })
    .await
}

/// Keeps runs of blocks for partitions, and empties them; what was kept for these before is let go. For each
/// wish, in their order, the largest gaps are taken first.
///
/// # Errors
/// [`TreeError::NoGap`] when there are too few blocks between the partitions; [`TreeError::WrongKind`] for a
/// hash table, whose directory cannot grow; [`TreeError::Missing`], [`TreeError::Invalid`] when the catalogue
/// is full, and those of [`super::list`].
pub async fn keep(volume: &dyn Transact, wishes: &[Wish<'_>]) -> Result<Vec<Vec<Run>>, TreeError> {
    let kept = run(volume, Begin::STRICT, Durability::Synced, async |txn| {
        let mut catalogue = Catalogue::require(&*txn).await?;
        for wish in wishes {
            let_go(&mut catalogue, wish.name)?;
        }
        let mut kept = Vec::with_capacity(wishes.len());
        for wish in wishes {
            let runs = choose(usable(&catalogue, txn.blocks()), wish.blocks)?;
            find(&mut catalogue, wish.name)?.further.extend(runs.iter().cloned());
            kept.push(runs);
        }
        catalogue.write(&*txn).await?;
        Ok::<_, TreeError>(kept)
    })
    .await?;
    for run in kept.iter().flatten() {
        volume.discard_run(Lba(run.first), run.blocks).await?;
    }
    Ok(kept)
}

/// Makes what is kept for a partition a part of it, when the transaction commits; the partition as it is then.
///
/// # Errors
/// [`TreeError::Missing`], and those of [`super::list`].
pub async fn give_in(txn: &dyn Transaction, name: &str) -> Result<Partition, TreeError> {
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

/// Has a catalogue forget what is kept for a partition.
fn let_go<'a>(catalogue: &'a mut Catalogue, name: &str) -> Result<&'a mut Partition, TreeError> {
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

/// The gaps that can be taken, the largest first.
fn usable(catalogue: &Catalogue, volume: u64) -> Vec<Range<u64>> {
    let mut gaps = catalogue.gaps(volume);
    gaps.retain(|gap| len(gap) >= LEAST);
    gaps.sort_by_key(|gap| std::cmp::Reverse(len(gap)));
    gaps
}

/// So many blocks of gaps.
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
