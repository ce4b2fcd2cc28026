//! Any byte range of a volume, however its blocks lie.
//!
//! A regular file takes requests of any length at any offset; a volume takes whole blocks. Requests
//! in whole blocks pass straight through. Unaligned requests read the blocks at their edges, change them
//! and write them back. Such an update has all writes to itself: nothing may change an edge block between
//! its read and its write. Programs that care for speed, the loop driver among them, send whole
//! blocks, so one lock for the whole volume is enough.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use thalweg_store::block::StoreError;
use thalweg_store::device::{AlignedBuf, total_len};
use thalweg_store::volume::VolumeRef;
use tokio::sync::RwLock;

/// How much of a volume is asked for at once when its extents are walked.
const WALK: u64 = 1 << 30;

/// A volume whose bytes can be reached one by one. Ranges that leave the volume are
/// [`StoreError::Invalid`], as in the volume itself.
#[derive(Debug)]
pub struct ByteVolume {
    volume: VolumeRef,
    /// Held shared by writes of whole blocks, exclusively by those that read first.
    writes: RwLock<()>,
}

/// The target of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is stored.
    Data,
    /// The next byte that is not; the end of the volume counts as one.
    Hole,
}

impl ByteVolume {
    /// Wraps a volume. Everything that writes to the volume by bytes must share this one wrapper.
    pub fn new(volume: VolumeRef) -> ByteVolume {
        ByteVolume { volume, writes: RwLock::new(()) }
    }

    /// The volume underneath.
    pub fn volume(&self) -> &VolumeRef {
        &self.volume
    }

    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Bytes, StoreError> {
        let wanted = range(offset, len as u64)?;
        let blocks = outward(&wanted, self.min_block());
        let read = self.volume.read(blocks.start, length(&blocks)?).await?;
        let start = length(&(blocks.start..wanted.start))?;
        let whole = joined(read);
        match whole.len().checked_sub(start) {
            Some(rest) if rest >= len => Ok(whole.slice(start..start + len)),
            _ => Err(StoreError::Invalid(format!(
                "the volume answered {} bytes to a read of {len} at {offset}",
                whole.len()
            ))),
        }
    }

    /// Writes `data` at `offset`; durable when it returns if `fua`.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn write(&self, offset: u64, data: Bytes, fua: bool) -> Result<(), StoreError> {
        self.write_vectored(offset, vec![data], fua).await
    }

    /// Writes the bytes of `data` one after the other from `offset` on, as
    /// [`thalweg_store::volume::Volume::write_vectored`].
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn write_vectored(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        fua: bool,
    ) -> Result<(), StoreError> {
        let wanted = range(offset, total_len(&data))?;
        let blocks = outward(&wanted, self.min_block());
        if blocks == wanted {
            let _shared = self.writes.read().await;
            return self.volume.write_vectored(offset, data, fua).await;
        }
        let _exclusive = self.writes.write().await;
        let mut at = length(&(blocks.start..wanted.start))?;
        let mut buffer = self.edges(&blocks, &wanted).await?;
        for piece in data {
            buffer[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
        self.volume.write(blocks.start, buffer.freeze(), fua).await
    }

    /// A buffer for `blocks` that holds their content where `wanted` does not cover it.
    async fn edges(
        &self,
        blocks: &Range<u64>,
        wanted: &Range<u64>,
    ) -> Result<AlignedBuf, StoreError> {
        let unit = self.min_block();
        let mut buffer = AlignedBuf::zeroed(length(blocks)?);
        let first = blocks.start..blocks.start + unit;
        let last = blocks.end - unit..blocks.end;
        let mut edges = Vec::new();
        if first.start < wanted.start {
            edges.push(first.clone());
        }
        if wanted.end < last.end && edges.last() != Some(&last) {
            edges.push(last);
        }
        for edge in edges {
            let at = length(&(blocks.start..edge.start))?;
            let content = self.read(edge.start, length(&edge)?).await?;
            buffer[at..at + content.len()].copy_from_slice(&content);
        }
        Ok(buffer)
    }

    /// Makes `len` bytes at `offset` read as zeros; with `keep_allocated` their space stays
    /// reserved as far as the volume can promise that.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn zero(
        &self,
        offset: u64,
        len: u64,
        keep_allocated: bool,
    ) -> Result<(), StoreError> {
        let (inner, edges) = inward(&range(offset, len)?, self.min_block());
        for edge in edges {
            let zeros = AlignedBuf::zeroed(length(&edge)?).freeze();
            self.write(edge.start, zeros, false).await?;
        }
        if inner.is_empty() {
            return Ok(());
        }
        let _shared = self.writes.read().await;
        let len = inner.end - inner.start;
        self.volume.write_zeroes(inner.start, len, keep_allocated, false).await
    }

    /// Frees the space of `len` bytes at `offset`. All of them then read as zeros: a hole in a file does,
    /// though a trim of less than a whole block need not.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn punch(&self, offset: u64, len: u64) -> Result<(), StoreError> {
        let unit = u64::from(self.volume.preferred_block()).max(self.min_block());
        let (inner, edges) = inward(&range(offset, len)?, unit);
        for edge in edges {
            self.zero(edge.start, edge.end - edge.start, false).await?;
        }
        if inner.is_empty() {
            return Ok(());
        }
        let _shared = self.writes.read().await;
        self.volume.trim(inner.start, inner.end - inner.start, false).await
    }

    /// The first byte from `offset` on that `seek` looks for; `None` past the end.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn seek(&self, offset: u64, seek: Seek) -> Result<Option<u64>, StoreError> {
        let size = self.volume.size();
        if offset >= size {
            return Ok(None);
        }
        let mut at = offset - offset % self.min_block();
        while at < size {
            let len = WALK.min(size - at);
            let mut start = at;
            for extent in self.volume.extents(at, len).await? {
                let end = start + extent.len;
                if end > offset && extent.stored == (seek == Seek::Data) {
                    return Ok(Some(start.max(offset)));
                }
                start = end;
            }
            at += len;
        }
        Ok((seek == Seek::Hole).then_some(size))
    }

    /// How many bytes are stored.
    ///
    /// # Errors
    /// Those of the volume.
    pub async fn stored(&self) -> Result<u64, StoreError> {
        let size = self.volume.size();
        let (mut at, mut stored) = (0, 0);
        while at < size {
            let len = WALK.min(size - at);
            let extents = self.volume.extents(at, len).await?;
            stored += extents.iter().filter(|run| run.stored).map(|run| run.len).sum::<u64>();
            at += len;
        }
        Ok(stored)
    }

    fn min_block(&self) -> u64 {
        u64::from(self.volume.min_block()).max(1)
    }
}

fn range(offset: u64, len: u64) -> Result<Range<u64>, StoreError> {
    match offset.checked_add(len) {
        Some(end) => Ok(offset..end),
        None => Err(StoreError::Invalid(format!("{len} bytes at {offset} leave any volume"))),
    }
}

fn length(range: &Range<u64>) -> Result<usize, StoreError> {
    usize::try_from(range.end - range.start)
        .map_err(|_| StoreError::Invalid(format!("{range:?} does not fit in memory")))
}

/// The whole units that `wanted` touches.
fn outward(wanted: &Range<u64>, unit: u64) -> Range<u64> {
    wanted.start - wanted.start % unit..wanted.end.div_ceil(unit) * unit
}

/// The whole units inside `wanted`, which may be none, and the parts of `wanted` beside them.
fn inward(wanted: &Range<u64>, unit: u64) -> (Range<u64>, Vec<Range<u64>>) {
    let inner = wanted.start.div_ceil(unit) * unit..wanted.end - wanted.end % unit;
    if inner.start >= inner.end {
        let edges = if wanted.is_empty() { Vec::new() } else { vec![wanted.clone()] };
        return (wanted.start..wanted.start, edges);
    }
    let edges = [wanted.start..inner.start, inner.end..wanted.end];
    (inner, edges.into_iter().filter(|edge| !edge.is_empty()).collect())
}

/// One buffer out of several; the usual single one is not copied.
fn joined(mut buffers: Vec<Bytes>) -> Bytes {
    match buffers.len() {
        1 => buffers.remove(0),
        _ => {
            let mut whole = BytesMut::with_capacity(buffers.iter().map(Bytes::len).sum());
            buffers.iter().for_each(|buffer| whole.extend_from_slice(buffer));
            whole.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init)]
    fn ranges_split_at_units() {
        assert_eq!(outward(&(5..9), 4), 4..12);
        assert_eq!(outward(&(4..8), 4), 4..8);
        assert_eq!(inward(&(5..17), 4), (8..16, vec![5..8, 16..17]));
        assert_eq!(inward(&(4..8), 4), (4..8, vec![]));
        assert_eq!(inward(&(5..7), 4), (5..5, vec![5..7]));
        assert_eq!(inward(&(3..5), 4), (3..3, vec![3..5]));
        assert_eq!(inward(&(4..4), 4), (4..4, vec![]));
    }
}
