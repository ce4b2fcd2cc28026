//! The check of a whole filesystem, and its repair.
//!
//! One snapshot is read from end to end, and everything in it is compared with everything else.
//! What is wrong has a name each. Repairs are transactions of their own, each of which leaves the
//! filesystem better than it was, so that they may be interrupted and begun again; after them it is
//! read once more, until nothing is left that can be repaired. A tree that is damaged comes first:
//! it is made whole from what of it can be read, and what is missing then is repaired like anything
//! else that is missing.
//!
//! Nobody else may have the filesystem open.

mod damage;
mod lost;
mod repair;
mod salvage;
mod scan;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_store::env::Env;
use thalweg_store::txn::Transact;

use super::inner::{Found, Inner};
use super::options::Options;
use super::space::Space;
use crate::error::FsError;
pub use damage::Damage;
use damage::Stage;
use lost::Missing;
use scan::{Paths, Scan};

/// What is looked at, and what is done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// What can be repaired is.
    pub repair: bool,
    /// Of a damaged tree what cannot be read is given up, with all that depends on it: a repair that
    /// cannot be taken back when the device gives it after all.
    pub salvage: bool,
    /// Blocks of files are read too, and blocks that nobody has are looked at.
    pub data: bool,
}

/// What became of something that was wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing was done.
    Left,
    /// It is as it should be, and nothing was lost.
    Repaired,
    /// It makes sense again; what is said here is lost, or has another name.
    Lost(String),
}

/// Something that was wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What it was.
    pub damage: Damage,
    /// What became of it.
    pub outcome: Outcome,
    /// The path of the file or directory that it is about, where there is one and a name leads there.
    pub path: Option<Bytes>,
}

/// Bytes of a file that are lost: reads of them fail until they are written anew, or are truncated away
/// with the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostRange {
    /// The file.
    pub ino: u64,
    /// Its path, when a name leads to it.
    pub path: Option<Bytes>,
    /// The bytes.
    pub bytes: Range<u64>,
}

/// What a check has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Everything that was wrong.
    pub findings: Vec<Finding>,
    /// What this repair, or an earlier one, has recorded as lost of files.
    pub lost: Vec<LostRange>,
    /// Inodes.
    pub inodes: u64,
    /// Of those, directories.
    pub directories: u64,
    /// Names.
    pub names: u64,
    /// Extents.
    pub extents: u64,
    /// Blocks of data in use.
    pub blocks: u64,
    /// Inodes that a crash, or somebody who has them open, has left without names, or with blocks behind
    /// their ends; and runs of blocks that are to be freed. That is no damage.
    pub unfinished: u64,
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

/// Rounds of repairs: one may uncover what only the next can see.
const ROUNDS: usize = 16;

/// Checks the filesystem of that name.
///
/// # Errors
/// Those of the store, and [`FsError::Damaged`] when nothing tells where the filesystem is.
pub async fn check(
    env: &Env,
    volume: Arc<dyn Transact>,
    name: &str,
    how: How,
) -> Result<Report, FsError> {
    let (mut findings, mut rounds) = (Vec::new(), 0..ROUNDS);
    let mut missing = Missing::default();
    loop {
        let parts = salvage::find(env, &volume, name, how, (&mut findings, &mut missing)).await?;
        let Some(parts) = parts else { return Ok(Report { findings, ..Report::default() }) };
        let found = Found {
            tree: parts.tree,
            area: parts.area,
            hash_key: parts.record.hash_key,
            hash_bits: parts.record.hash_bits,
            // Whoever repairs takes what the bits say.
            space: Space::new(0, Vec::new()),
            inodes: 0,
            max_inodes: parts.max_inodes,
            copies: parts.copies,
        };
        let inner = Inner::new(env, volume.clone(), found, Options::default());
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

/// Reads the filesystem, and repairs it, as often as there is something to be repaired. What was
/// seen at last; `None` when the tree was repaired, with which the superblock may be gone.
async fn check_parts(
    inner: &Inner,
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
                // What is left of it in the end is told then.
                Some(_) if damage.stage() != stage => continue,
                Some(_) => match repair::repair(inner, &scan, damage, missing).await? {
                    // Another repair has seen to it, or nothing can be done: the next round tells.
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
