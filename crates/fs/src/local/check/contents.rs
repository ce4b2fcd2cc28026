//! Contents that are kept elsewhere, compared with the files.

use thalweg_env::HashSet;

use super::damage::Damage;
use super::lost::Missing;
use super::paths::Paths;
use super::scan::Scan;
use super::{ContentsReport, EmptyFile, Outcome};
use crate::attributes::{Ino, Kind};
use crate::error::FsError;
use crate::local::format::{TRUNCATING, Tag, key};
use crate::local::fs_state::FsState;

impl Scan {
    /// Compares the contents with the files.
    pub(super) async fn check_contents(&mut self, inner: &FsState) -> Result<(), FsError> {
        let Some(external_contents) = &inner.external_contents else { return Ok(()) };
        let listed = external_contents.contents.list().await?;
        self.objects = listed.values().map(|stored| stored.objects).sum();
        let unfinished = inner.unfinished_batches(external_contents).await?;
        let made = unfinished.iter().flat_map(|(redo, _)| redo.mutations());
        let waited_for: HashSet<Ino> = made.flat_map(|mutation| mutation.kind.inodes()).collect();
        for (&Ino(ino), stored) in &listed {
            let (objects, end) = (stored.objects, stored.end);
            if waited_for.contains(&Ino(ino)) || inner.is_record(ino).await? {
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
                None if self.removed.contains(&ino) => {}
                None => self.damages.push(Damage::OrphanedContents { ino, objects, end }),
            }
        }
        let is_empty = |ino: u64| listed.get(&Ino(ino)).is_none_or(|stored| stored.objects == 0);
        let files = self.nodes.iter().filter(|(_, node)| node.kind == Kind::File);
        let sized = files.filter(|(_, node)| node.record.size.get() > 0).map(|(ino, _)| *ino);
        self.empty = sized.filter(|ino| is_empty(*ino)).collect();
        Ok(())
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
