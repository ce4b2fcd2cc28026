//! Changes that replace bytes of a file.

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

    /// The part of a range of which it leaves nothing that was written there before. Room keeps the bytes, and what clears them may keep
    /// the size of the file.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub(super) async fn written(
        &self,
        filesystem: &Arc<dyn Filesystem>,
        (ino, range): (Ino, Range<u64>),
    ) -> Result<Range<u64>, FsError> {
        let end = match self {
            Replacement::Bytes(..) | Replacement::Copy(..) => range.end,
            Replacement::Space(Allocation::Reserve { .. }) => range.start,
            Replacement::Space(Allocation::Punch | Allocation::Zero { .. }) => {
                range.end.min(filesystem.attributes(ino).await?.size)
            }
        };
        Ok(range.start..end)
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
