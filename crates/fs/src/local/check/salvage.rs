//! The tree of the metadata and the superblock in it: nothing else can be looked at before both are
//! there.

use std::ops::Range;
use std::sync::Arc;

use thalweg_env::Env;
use thalweg_store::tree::{KeyRange, Salvage, Store, catalogue};
use thalweg_store::txn::{Begin, Transact};

use super::damage::{Damage, hex};
use super::lost::Missing;
use super::scan::tree_damage;
use super::{Finding, How, Outcome};
use crate::attributes::Ino;
use crate::error::FsError;
use crate::local::format::{DATA_SUFFIX, META_SUFFIX, Tag, key};
use crate::local::make::{Parts, make_super, read_super, restore_super};
use crate::local::superblock::Copies;
use crate::local::superblock::stored_record;

/// Ranges of inodes, and keys, that are told one by one.
const TOLD: usize = 64;
/// Repairs that may be needed: that of the tree uncovers that the superblock is missing.
const REPAIRS: usize = 2;

/// Finds the parts of a filesystem, after repairing them if asked to, and adds their damage to the
/// findings. Returns `None` when damage is left.
pub(super) async fn find(
    env: &Env,
    volume: &Arc<dyn Transact>,
    name: &str,
    how: How,
    is_external: bool,
    (findings, missing): (&mut Vec<Finding>, &mut Missing),
) -> Result<Option<Parts>, FsError> {
    // Damage of the catalogue is not the tree's.
    for suffix in [META_SUFFIX, DATA_SUFFIX] {
        catalogue::open(&**volume, &(name.to_owned() + suffix)).await?;
    }
    let meta = name.to_owned() + META_SUFFIX;
    let mut repairs = 0..REPAIRS;
    while let Some(damage) = look(env, volume, name).await? {
        let outcome = match &damage {
            _ if !how.salvage || repairs.next().is_none() => Outcome::Left,
            Damage::NoSuper => {
                if restore_super(env, volume, name).await? {
                    Outcome::Repaired
                } else {
                    make_super(env, volume, name, is_external).await?;
                    Outcome::Lost("the superblock; all names were rehashed".to_owned())
                }
            }
            _ => match salvage(env, volume.clone(), &meta, missing).await {
                Err(FsError::NoSpace) => Outcome::Left,
                Err(error) if error.is_damage_below() => Outcome::Left,
                done => done?,
            },
        };
        let is_left = outcome == Outcome::Left;
        findings.push(Finding { damage, outcome, path: None });
        if is_left {
            return Ok(None);
        }
    }
    Ok(Some(read_super(env, volume, name).await?))
}

/// Why the superblock is unreadable, apart from its own content.
async fn look(
    env: &Env,
    volume: &Arc<dyn Transact>,
    name: &str,
) -> Result<Option<Damage>, FsError> {
    let look = async || {
        let tree = Store::open_btree(env, volume.clone(), &(name.to_owned() + META_SUFFIX)).await?;
        let data = catalogue::open(&**volume, &(name.to_owned() + DATA_SUFFIX)).await?;
        let txn = volume.begin(Begin::SNAPSHOT).await?;
        if tree.get_in(&*txn, &key(0, Tag::Super, &[])).await?.is_some() {
            // An invalid record may have a valid copy.
            let is_bad = match stored_record(&tree, &*txn, &data).await {
                Err(FsError::Damaged(_)) => {
                    let copies = Copies::find(volume, name, &tree).await?;
                    copies.record(&*txn, &data).await?.is_some()
                }
                _ => false,
            };
            return Ok(is_bad.then_some(Damage::NoSuper));
        }
        // The superblock and the root directory are made together: where no inode exists, no filesystem was
        // ever made. But an unreadable page may hold one.
        tree.check().await?;
        let inode = tree.range_in(txn, key(Ino::ROOT.0, Tag::Inode, &[])..)?.next().await?;
        Ok::<_, FsError>(inode.map(|_| Damage::NoSuper))
    };
    match look().await {
        Err(error) => tree_damage(error).map(Some),
        done => done,
    }
}

/// Rebuilds the tree from its readable pages.
///
/// # Errors
/// Those of [`Store::salvage`].
pub(super) async fn salvage(
    env: &Env,
    volume: Arc<dyn Transact>,
    meta: &str,
    missing: &mut Missing,
) -> Result<Outcome, FsError> {
    let salvage = Store::salvage(env, volume, meta).await?;
    missing.add(&salvage);
    Ok(if salvage.is_whole() { Outcome::Repaired } else { Outcome::Lost(lost(&salvage)) })
}

/// Lists the losses.
fn lost(salvage: &Salvage) -> String {
    let mut parts = vec![format!("{} blocks of metadata", salvage.blocks)];
    if salvage.refused > 0 {
        parts.push(format!("{} leaves that contradict others", salvage.refused));
    }
    let inodes = inodes(&salvage.missing);
    if inodes.first().is_some_and(|range| range.start == 0) {
        parts.push("records of the filesystem itself".to_owned());
    }
    let told = inodes.iter().filter_map(|range| match (range.start.max(1), range.end) {
        (_, 0 | 1) => None,
        (first, u64::MAX) => Some(format!("{first} and those behind it")),
        (first, end) if first + 1 == end => Some(first.to_string()),
        (first, end) => Some(format!("{first} to {}", end - 1)),
    });
    parts.extend(list("records of inodes", told));
    parts.extend(list("values of the records", salvage.values.iter().map(|key| hex(key))));
    parts.join("; ")
}

/// Lists as many of the losses as can be told.
fn list(what: &str, lost: impl Iterator<Item = String>) -> Option<String> {
    let mut lost: Vec<String> = lost.collect();
    if let Some(more) = lost.len().checked_sub(TOLD).filter(|more| *more > 0) {
        lost.truncate(TOLD);
        lost.push(format!("{more} more such ranges"));
    }
    (!lost.is_empty()).then(|| format!("{what} {}", lost.join(", ")))
}

/// The inodes that have keys in these ranges, which are in order. The end of all numbers is that of
/// the last range without an end.
fn inodes(ranges: &[KeyRange]) -> Vec<Range<u64>> {
    let mut inodes: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let first = inode(&range.low);
        let end = match &range.high {
            // No key of an inode is less than that of the inode itself.
            Some(high) if high[..] <= key(inode(high), Tag::Inode, &[])[..] => inode(high),
            Some(high) => inode(high).saturating_add(1),
            None => u64::MAX,
        };
        match inodes.last_mut().filter(|last| last.end >= first) {
            Some(last) => last.end = last.end.max(end),
            None => inodes.push(first..end),
        }
    }
    inodes
}

/// The inode whose records begin at a key.
fn inode(key: &[u8]) -> u64 {
    let mut number = [0; 8];
    let len = key.len().min(8);
    number[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(number)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn range(low: &[u8], high: Option<&[u8]>) -> KeyRange {
        KeyRange { low: Bytes::copy_from_slice(low), high: high.map(Bytes::copy_from_slice) }
    }

    #[test]
    fn what_is_lost_is_told_by_inodes() {
        let at = |ino, tag| key(ino, tag, &[]);
        let missing = vec![
            range(b"", Some(&at(0, Tag::Orphan))),
            range(&at(7, Tag::Inode), Some(&at(8, Tag::Inode))),
            range(&at(20, Tag::Xattr), Some(&at(22, Tag::Xattr))),
            range(&at(22, Tag::Extent), Some(&at(23, Tag::Inode))),
            range(&at(30, Tag::Entry), None),
        ];
        let salvage = Salvage { blocks: 5, missing, ..Salvage::default() };
        let told = "5 blocks of metadata; records of the filesystem itself; \
                    records of inodes 7, 20 to 22, 30 and those behind it";
        assert_eq!(lost(&salvage), told);
        let values = vec![Bytes::from_static(&[1, 255])];
        let salvage = Salvage { blocks: 1, refused: 2, values, ..Salvage::default() };
        let told =
            "1 blocks of metadata; 2 leaves that contradict others; values of the records 01ff";
        assert_eq!(lost(&salvage), told);
        let missing = (0..TOLD as u64 + 4)
            .map(|nth| range(&at(nth * 2, Tag::Inode), Some(&at(nth * 2 + 1, Tag::Inode))));
        let salvage = Salvage { missing: missing.collect(), ..Salvage::default() };
        assert!(lost(&salvage).ends_with(", 128, 3 more such ranges"), "{}", lost(&salvage));
    }
}
