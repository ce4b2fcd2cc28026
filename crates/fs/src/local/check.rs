//! The check of a whole filesystem, and its repair.
//!
//! The check reads one snapshot from end to end and compares all structures with each other. Each kind of
//! damage has a name. Each repair is a transaction of its own that leaves the filesystem better than it
//! was, so repairs may be interrupted and begun again. After them the check runs once more, until no damage
//! is left that can be repaired. A damaged tree comes first: it is rebuilt from its readable pages, and
//! records that are missing then are repaired like other damage.
//!
//! No other process may have the filesystem open.

mod contents;
mod damage;
mod external_records;
mod lost;
mod paths;
mod remade;
mod repair;
mod rescue;
mod salvage;
mod scan;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_store::txn::Transact;

use super::fs_state::{Found, FsState};
use super::make::external_contents;
use super::options::Options;
use super::space::Space;
use crate::contents::Contents;
use crate::error::FsError;
pub use damage::Damage;
use damage::Stage;
use lost::Missing;
use paths::Paths;
use scan::Scan;

/// What a check reads, and whether it repairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// Repair what can be repaired.
    pub repair: bool,
    /// Give up the unreadable pages of a damaged tree, with all that depends on them. This cannot be undone
    /// when the device returns them later.
    pub salvage: bool,
    /// Read blocks of files too, and look at blocks that no file has.
    pub data: bool,
}

/// What became of a finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing was done.
    Left,
    /// It is as it should be, and nothing was lost.
    Repaired,
    /// The structure is valid again; this is lost, or has another name.
    Lost(String),
}

/// One piece of damage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What is wrong.
    pub damage: Damage,
    /// What became of it.
    pub outcome: Outcome,
    /// The path of the file or directory concerned, where it has one.
    pub path: Option<Bytes>,
}

/// Lost bytes of a file: reads of them fail until they are overwritten or truncated away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostRange {
    /// The file.
    pub ino: u64,
    /// Its path, when a name leads to it.
    pub path: Option<Bytes>,
    /// The bytes.
    pub bytes: Range<u64>,
}

/// A file with a size of which nothing is stored, where contents are kept elsewhere. It reads as zeros: it may never
/// have been written, or its content may be lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmptyFile {
    /// The file.
    pub ino: u64,
    /// Its path, when a name leads to it.
    pub path: Option<Bytes>,
    /// Its size in bytes.
    pub size: u64,
}

/// What a check found of contents that are kept elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentsReport {
    /// Objects of all files.
    pub objects: u64,
    /// Files of which nothing is stored. This is no damage.
    pub empty: Vec<EmptyFile>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything that was wrong.
    pub findings: Vec<Finding>,
    /// Bytes of files that this repair, or an earlier one, recorded as lost.
    pub lost: Vec<LostRange>,
    /// Inodes.
    pub inodes: u64,
    /// Directories among these.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Extents.
    pub extents: u64,
    /// Blocks of data in use.
    pub blocks: u64,
    /// Pending work, which is no damage: inodes that a crash or an open handle has left without names or
    /// with blocks behind their ends, and runs of blocks to free.
    pub unfinished: u64,
    /// The contents of files, if they are kept elsewhere.
    pub contents: Option<ContentsReport>,
}

impl Report {
    /// Whether nothing was wrong, and no file has lost anything.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.lost.is_empty()
    }

    /// Whether something is wrong still.
    pub fn is_damaged(&self) -> bool {
        self.findings.iter().any(|finding| finding.outcome == Outcome::Left)
    }
}

/// Rounds of repairs: one may uncover damage that only the next can see.
const ROUNDS: usize = 16;

/// Checks the filesystem of that name.
///
/// # Errors
/// Those of the store, and [`FsError::Damaged`] when the filesystem cannot be located.
pub async fn check(
    env: &Env,
    volume: Arc<dyn Transact>,
    name: &str,
    how: How,
) -> Result<Report, FsError> {
    check_with(env, volume, name, how, None).await
}

/// Checks the filesystem of that name with the contents of its files, if they are kept elsewhere. If its superblock is
/// lost, a repair makes one according to whether there are contents.
///
/// # Errors
/// As [`check`]; [`FsError::ContentsElsewhere`], [`FsError::ContentsWithin`], and those of the contents.
pub async fn check_with(
    env: &Env,
    volume: Arc<dyn Transact>,
    name: &str,
    how: How,
    contents: Option<Arc<dyn Contents>>,
) -> Result<Report, FsError> {
    let (mut findings, mut rounds) = (Vec::new(), 0..ROUNDS);
    let mut missing = Missing::default();
    loop {
        let so_far = (&mut findings, &mut missing);
        let parts = salvage::find(env, &volume, name, how, contents.is_some(), so_far).await?;
        let Some(parts) = parts else { return Ok(Report { findings, ..Report::default() }) };
        let external_contents = external_contents(&parts.record, contents.clone())?;
        let found = Found {
            tree: parts.tree,
            area: parts.area,
            hash_key: parts.record.hash_key,
            hash_bits: parts.record.hash_bits,
            // Repairs take free blocks from the bitmap alone.
            space: Space::new(0, Vec::new()),
            inodes: 0,
            max_inodes: parts.max_inodes,
            copies: parts.copies,
            external_contents,
        };
        let inner = FsState::new(env, volume.clone(), found, Options::default());
        if let Err(error) = inner.find_redirects(true).await {
            // The scan reports it.
            scan::tree_damage(error)?;
        }
        let so_far = (&mut findings, &mut missing);
        if let Some(report) = check_parts(&inner, how, &mut rounds, so_far).await? {
            return Ok(Report { findings, ..report });
        }
    }
}

/// Adds paths to findings that have none yet.
fn find_paths(scan: &Scan, findings: &mut [Finding]) {
    if findings.iter().all(|finding| finding.path.is_some()) {
        return;
    }
    let paths = Paths::new(scan);
    for finding in findings.iter_mut().filter(|finding| finding.path.is_none()) {
        finding.path = paths.of_damage(&finding.damage);
    }
}

/// Reads and repairs the filesystem until no repairable damage is left. Returns the last report, or `None`
/// when the tree was repaired: the superblock may be gone with it.
async fn check_parts(
    inner: &FsState,
    how: How,
    rounds: &mut Range<usize>,
    (findings, missing): (&mut Vec<Finding>, &mut Missing),
) -> Result<Option<Report>, FsError> {
    loop {
        let scan = scan::scan(inner, how.data).await?;
        let damages = scan.damages();
        find_paths(&scan, findings);
        let known = findings.len();
        let may = |stage: &Stage| how.repair && (how.salvage || *stage != Stage::Tree);
        let stages = damages.iter().filter_map(Damage::stage).filter(may);
        let stage = stages.min().filter(|_| rounds.next().is_some());
        for damage in &damages {
            let outcome = match stage {
                // The last round reports it if it is left.
                Some(_) if damage.stage() != stage => continue,
                Some(_) => match repair::repair(inner, &scan, damage, missing).await? {
                    // Another repair has fixed it, or it cannot be fixed: the next round tells.
                    Outcome::Left => continue,
                    done => done,
                },
                None => Outcome::Left,
            };
            match findings.iter_mut().find(|it| it.damage == *damage) {
                Some(known) => known.outcome = outcome,
                None => {
                    let damage = damage.clone();
                    findings.push(Finding { damage, outcome, path: None });
                }
            }
        }
        find_paths(&scan, &mut findings[known..]);
        match stage {
            Some(Stage::Tree) => return Ok(None),
            Some(_) => {}
            None => {
                if how.repair && !damages.iter().any(|damage| matches!(damage, Damage::Tree(_))) {
                    repair::finish(inner).await?;
                }
                return Ok(Some(scan.report()));
            }
        }
    }
}
