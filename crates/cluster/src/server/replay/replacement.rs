//! Changes that replace bytes of a file, and which bytes were written.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_fs::{Allocation, Filesystem, FsError, Ino, WriteAt, WriteHow};

#[derive(Debug)]
pub(in crate::server) enum Replacement {
    Bytes(Bytes, WriteHow),
    /// Zeros, or what was there.
    Space(Allocation),
    /// The bytes of another file, from there on.
    Copy(Ino, u64),
}

impl Replacement {
    /// Whether it writes a range as a whole, or fails: a copy may come to less.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self, Replacement::Bytes(..))
    }

    /// Whether it leaves nothing of what was written there before. Space may keep the bytes, or the size of the file.
    pub(super) fn is_written(&self) -> bool {
        !matches!(self, Replacement::Space(..))
    }

    /// Replaces a part of the range; up to where.
    pub(super) async fn make(
        &self,
        filesystem: &Arc<dyn Filesystem>,
        (ino, range): (Ino, &Range<u64>),
        part: Range<u64>,
    ) -> Result<u64, FsError> {
        let is_part = range.start <= part.start && part.start <= part.end && part.end <= range.end;
        assert!(is_part, "{part:?} is not a part of {range:?}");
        let (len, skipped) = (part.end - part.start, part.start - range.start);
        match self {
            Replacement::Bytes(bytes, how) => {
                let bytes = bytes.slice(skipped as usize..(skipped + len) as usize);
                filesystem.write(ino, WriteAt::Offset(part.start), vec![bytes], *how).await?;
            }
            Replacement::Space(how) => filesystem.allocate(ino, part.start, len, *how).await?,
            Replacement::Copy(from, offset) => {
                let from = (*from, offset.saturating_add(skipped));
                return Ok(part.start + filesystem.copy(from, (ino, part.start), len).await?);
            }
        }
        Ok(part.end)
    }
}

/// Ranges of a file that were written: they are sorted, and do not touch.
#[derive(Clone, Debug, Default)]
pub(super) struct Written(Vec<Range<u64>>);

impl Written {
    pub(super) fn add(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        let touches = |old: &Range<u64>| old.start <= new.end && new.start <= old.end;
        let all = self
            .0
            .iter()
            .filter(|old| touches(old))
            .fold(new.clone(), |all, old| all.start.min(old.start)..all.end.max(old.end));
        self.0.retain(|old| !touches(old));
        let at = self.0.partition_point(|old| old.start < all.start);
        self.0.insert(at, all);
    }

    pub(super) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut from) = (Vec::new(), range.start);
        for written in self.0.iter().filter(|it| it.start < range.end && range.start < it.end) {
            gaps.push(from..written.start);
            from = written.end;
        }
        gaps.push(from..range.end);
        gaps.retain(|gap| gap.start < gap.end);
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ranges: &[Range<u64>]) -> Vec<(u64, u64)> {
        ranges.iter().map(|it| (it.start, it.end)).collect()
    }

    #[test]
    fn what_was_written_since_leaves_gaps() {
        let mut written = Written::default();
        let gaps = |written: &Written, range| pairs(&written.gaps(range));
        assert_eq!(gaps(&written, 3..9), [(3, 9)]);
        for range in [5..5, 20..30, 10..12, 12..14, 28..40] {
            written.add(range);
        }
        assert_eq!(pairs(&written.0), [(10, 14), (20, 40)]);
        assert_eq!(gaps(&written, 0..50), [(0, 10), (14, 20), (40, 50)]);
        assert_eq!(gaps(&written, 11..20), [(14, 20)]);
        assert_eq!(gaps(&written, 20..40), []);
        assert_eq!(gaps(&written, 12..13), []);
        written.add(14..u64::MAX);
        assert_eq!(pairs(&written.0), [(10, u64::MAX)]);
    }
}
