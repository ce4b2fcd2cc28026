//! Bytes of batches where contents are kept elsewhere: those that nothing shows before the transaction of the batch, and those that
//! replace others.

use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use thalweg_env::HashSet;

use super::external_contents::{REACH, write_bound_of};
use super::format::TRUNCATING;
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::gates::ExternalContents;
use super::rooms::Cover;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::filesystem::MAX_FILE;
use crate::mutation::Mutation;
use crate::mutation::runs::{Run, Runs};

/// The maximum number of files that are stored concurrently.
const FILES_AT_ONCE: usize = 64;

/// The byte behind the last one that is written.
fn end_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.end).max().unwrap_or_default()
}

/// The end of the last hole that writes leave in a file of this size.
fn last_gap(runs: &[Run], mut size: u64) -> Option<u64> {
    let mut last = None;
    for run in runs {
        if run.offset > size {
            last = Some(run.offset);
        }
        size = size.max(run.end);
    }
    last
}

/// The first byte of a write, and its buffers.
type Write = (u64, Vec<Bytes>);

/// Writes that replace bytes that files have, file by file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Replaced(pub(super) Vec<(Ino, Vec<Write>)>);

impl Replaced {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Stores them.
    pub(super) async fn store(&self, external_contents: &ExternalContents) -> Result<(), FsError> {
        let contents = &external_contents.contents;
        let storing = self.0.iter().map(|(ino, writes)| contents.write_all(*ino, writes, u64::MAX));
        stream::iter(storing.collect::<Vec<_>>())
            .buffer_unordered(FILES_AT_ONCE)
            .try_collect::<()>()
            .await
    }

    /// Whether bytes that they replace are redirected.
    pub(super) fn is_redirected(&self, external_contents: &ExternalContents) -> bool {
        let redirects = external_contents.redirects();
        self.ranges().any(|(ino, range)| redirects.has(ino.0, &range))
    }

    /// The ranges of files that they replace.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (Ino, Range<u64>)> {
        let of = |(offset, data): &Write| {
            *offset..offset + data.iter().map(|buffer| buffer.len() as u64).sum::<u64>()
        };
        self.0.iter().flat_map(move |(ino, writes)| writes.iter().map(move |it| (*ino, of(it))))
    }

    /// Whether they are made in one change, and the batch does nothing else but to note the times of it.
    pub(super) fn is_one_change(
        &self,
        external_contents: &ExternalContents,
        mutations: &[Mutation],
    ) -> bool {
        let [(ino, writes)] = &self.0[..] else { return false };
        let of_write = |(offset, data): &Write| {
            (*offset, offset + data.iter().map(|buffer| buffer.len() as u64).sum::<u64>())
        };
        let written = || writes.iter().map(of_write).filter(|(start, end)| start < end);
        let start = written().map(|(start, _)| start).min().unwrap_or_default();
        let end = written().map(|(_, end)| end).max().unwrap_or_default();
        let unit = external_contents.contents.unit();
        let is_within = |mutation: &Mutation| {
            let kind = &mutation.kind;
            let written_end = kind.written().map_or(0, |written| written.end);
            kind.inodes().eq([*ino]) && written_end <= end && kind.xattr_len() == 0
        };
        start / unit == end.saturating_sub(1) / unit && mutations.iter().all(is_within)
    }
}

/// Cuts a run at the end of its file: what replaces bytes, and what lies behind.
fn cut(run: Run, size: u64) -> (Option<Run>, Option<Run>) {
    if run.end <= size {
        return (Some(run), None);
    }
    if run.offset >= size {
        return (None, Some(run));
    }
    let (mut before, mut behind, mut at) = (Vec::new(), Vec::new(), run.offset);
    for mut buffer in run.data {
        let end = at + buffer.len() as u64;
        let inside = size.clamp(at, end) - at;
        let rest = buffer.split_off(inside as usize);
        before.extend(Some(buffer).filter(|it| !it.is_empty()));
        behind.extend(Some(rest).filter(|it| !it.is_empty()));
        at = end;
    }
    assert!(at == run.end, "a run has its bytes");
    let before = Run { offset: run.offset, end: size, data: before };
    (Some(before), Some(Run { offset: size, end: run.end, data: behind }))
}

impl FsState {
    /// Refuses mutations about bytes that their maker cannot have stored.
    pub(super) async fn check_stored(
        &self,
        stored: Runs,
        mutations: &[Mutation],
    ) -> Result<(), FsError> {
        let made: HashSet<Ino> =
            mutations.iter().filter_map(|mutation| mutation.kind.made()).collect();
        for (ino, runs) in stored {
            let (size, write_bound) = if made.contains(&ino) {
                (0, REACH)
            } else {
                let record = self.external_file(ino.0).await?;
                let is_cut = record.flags & TRUNCATING != 0;
                (record.size.get(), if is_cut { 0 } else { write_bound_of(&record) })
            };
            let has_bytes = runs.iter().any(|run| !run.data.is_empty());
            if has_bytes || end_of(&runs) > write_bound || last_gap(&runs, size).is_some() {
                return Err(FsError::Invalid("the bytes may not be stored"));
            }
        }
        Ok(())
    }

    /// Stores what mutations write to new files and behind the ends of others, and prepares for the rest, which it returns.
    pub(super) async fn store_new(
        &self,
        external_contents: &ExternalContents,
        runs: Runs,
        mutations: &[Mutation],
        cover: &Cover,
    ) -> Result<Replaced, FsError> {
        let made: HashSet<Ino> =
            mutations.iter().filter_map(|mutation| mutation.kind.made()).collect();
        let storing = runs.into_iter().map(|(ino, runs)| {
            let is_new = made.contains(&ino);
            async move {
                let size = if is_new {
                    self.prepare_new(external_contents, ino, &runs).await?;
                    0
                } else {
                    self.prepare_old(external_contents, ino, &runs, cover).await?
                };
                let (mut replacing, mut writes) = (Vec::new(), Vec::new());
                for run in runs {
                    let (before, behind) = cut(run, size);
                    replacing.extend(before.map(Run::into_write));
                    writes.extend(behind.map(Run::into_write));
                }
                if !writes.is_empty() {
                    external_contents.contents.write_all(ino, &writes, size).await?;
                }
                Ok::<_, FsError>((ino, replacing))
            }
        });
        let all: Vec<_> =
            stream::iter(storing).buffer_unordered(FILES_AT_ONCE).try_collect().await?;
        let mut replaced: Vec<_> = all.into_iter().filter(|(_, it)| !it.is_empty()).collect();
        replaced.sort_by_key(|(ino, _)| *ino);
        Ok(Replaced(replaced))
    }

    /// Before bytes of a file that there is are stored. Returns its size.
    async fn prepare_old(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
        runs: &[Run],
        cover: &Cover,
    ) -> Result<u64, FsError> {
        let end = end_of(runs);
        if end > MAX_FILE {
            return Err(FsError::FileTooLarge);
        }
        let mut record = self.external_file(ino.0).await?;
        if record.flags & TRUNCATING != 0 && end > record.size.get() {
            // The bytes behind its end are still those of the file, should a crash undo that it became shorter.
            record = self.cut(external_contents, ino.0).await?;
        }
        let start = last_gap(runs, record.size.get()).unwrap_or_default();
        self.prepare_growth(external_contents, ino.0, &record, (start, end), cover).await?;
        self.extend_write_bound(external_contents, ino.0, end).await?;
        Ok(record.size.get())
    }

    /// Before bytes of a file are stored that the same mutations make.
    async fn prepare_new(
        &self,
        external_contents: &ExternalContents,
        ino: Ino,
        runs: &[Run],
    ) -> Result<(), FsError> {
        if end_of(runs) > REACH {
            return Err(FsError::NotSupported);
        }
        let txn = self.look().await?;
        if FsCall::new(self, &txn, false).find_inode(ino.0).await?.is_some() {
            return Err(FsError::Invalid("an inode has the number"));
        }
        // A creation that a crash has undone may have left bytes.
        match last_gap(runs, 0) {
            None => Ok(()),
            Some(start) => external_contents.contents.zero(ino, 0..start).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_at_the_end_of_its_file() {
        let run = || Run { offset: 10, end: 16, data: vec!["abc".into(), "def".into()] };
        for size in 0..20 {
            let (before, behind) = cut(run(), size);
            let is_whole = |run: &Run| {
                run.end - run.offset == run.data.iter().map(|it| it.len() as u64).sum::<u64>()
            };
            assert!(before.iter().chain(&behind).all(is_whole), "{size}");
            assert_eq!(before.is_some(), size > 10, "{size}");
            assert_eq!(behind.is_some(), size < 16, "{size}");
            assert!(before.as_ref().is_none_or(|it| it.end == size.min(16)), "{size}");
            assert!(behind.as_ref().is_none_or(|it| it.offset == size.max(10)), "{size}");
            let all = before.into_iter().chain(behind).flat_map(|run| run.data);
            assert_eq!(all.collect::<Vec<_>>().concat(), b"abcdef", "{size}");
        }
    }
}
