//! Contents that are kept elsewhere, compared with the files.

use std::collections::BTreeMap;

use super::damage::Damage;
use super::lost::Missing;
use super::paths::Paths;
use super::scan::Scan;
use super::{ContentsReport, EmptyFile, Outcome};
use crate::attributes::{Ino, Kind};
use crate::contents::Stored;
use crate::error::FsError;
use crate::local::format::{TRUNCATING, Tag, key};
use crate::local::fs_state::FsState;
use crate::local::redirects::{ASIDE, redirect_key};

impl Scan {
    /// Compares the contents with the files.
    pub(super) async fn check_contents(&mut self, inner: &FsState) -> Result<(), FsError> {
        let Some(external_contents) = &inner.external_contents else { return Ok(()) };
        let listed = external_contents.contents.list().await?;
        self.objects = listed.values().map(|stored| stored.objects).sum();
        for (&Ino(ino), stored) in &listed {
            let (objects, end) = (stored.objects, stored.end);
            if Ino(ino) == ASIDE {
                continue;
            }
            match self.nodes.get(&ino).filter(|node| node.kind == Kind::File) {
                Some(node) => {
                    let size = node.record.size.get();
                    let is_short = node.record.flags & TRUNCATING == 0;
                    if is_short && stored.last >= size {
                        self.damages.push(Damage::ContentsBehind { ino, size, end });
                    }
                }
                None if self.external.removed.contains(&ino) => {}
                None => self.damages.push(Damage::OrphanedContents { ino, objects, end }),
            }
        }
        self.check_redirects(external_contents.contents.unit(), &listed);
        let is_empty = |ino: u64| listed.get(&Ino(ino)).is_none_or(|stored| stored.objects == 0);
        let files = self.nodes.iter().filter(|(_, node)| node.kind == Kind::File);
        let sized = files.filter(|(_, node)| node.record.size.get() > 0).map(|(ino, _)| *ino);
        self.empty = sized.filter(|ino| is_empty(*ino)).collect();
        Ok(())
    }

    /// Redirected bytes are of files, within their sizes, and each has them once.
    fn check_redirects(&mut self, unit: u64, listed: &BTreeMap<Ino, Stored>) {
        let mut behind = (0, 0);
        for (ino, offset, redirect) in std::mem::take(&mut self.external.redirects) {
            let end = offset + redirect.len;
            let is_removed = self.external.removed.contains(&ino);
            let node = self.nodes.get(&ino).filter(|node| node.kind == Kind::File);
            // A file whose record is lost is made again, or its contents are removed: the next round knows.
            let is_orphan = node.is_none() && listed.contains_key(&Ino(ino));
            let is_within = node.is_some_and(|node| end <= node.record.size.get()) || is_orphan;
            let objects = redirect.at / unit..(redirect.at + redirect.len).div_ceil(unit);
            let is_stored = self.external.objects.start <= objects.start
                && objects.end <= self.external.objects.end;
            let overlaps = behind.0 == ino && offset < behind.1;
            if !(is_within || is_removed) || !is_stored || overlaps {
                self.damages.push(Damage::BadRecord(redirect_key(ino, offset).into()));
            }
            behind = (ino, end);
        }
    }

    pub(super) fn contents_report(&self) -> ContentsReport {
        let paths = Paths::new(self);
        let empty = self.empty.iter().filter_map(|ino| {
            let size = self.nodes.get(ino)?.record.size.get();
            Some(EmptyFile { ino: *ino, path: paths.of(*ino), size })
        });
        ContentsReport { objects: self.objects, empty: empty.collect() }
    }
}

/// Removes the contents of a file that does not exist; returns `None` when its record may be lost, so that the file is
/// to be made again.
pub(super) async fn remove(
    inner: &FsState,
    (ino, end): (u64, u64),
    missing: &Missing,
) -> Result<Option<Outcome>, FsError> {
    let Some(external_contents) = &inner.external_contents else { return Ok(Some(Outcome::Left)) };
    if missing.has(&key(ino, Tag::Inode, &[])) {
        return Ok(None);
    }
    external_contents.contents.remove(Ino(ino), end).await?;
    Ok(Some(Outcome::Repaired))
}

/// Removes the contents behind the end of a file.
pub(super) async fn cut(
    inner: &FsState,
    ino: u64,
    (size, end): (u64, u64),
) -> Result<Outcome, FsError> {
    let Some(external_contents) = &inner.external_contents else { return Ok(Outcome::Left) };
    inner.sync_volume().await?;
    external_contents.contents.truncate(Ino(ino), end, size).await?;
    Ok(Outcome::Repaired)
}
