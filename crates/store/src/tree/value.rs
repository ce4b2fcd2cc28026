//! Values: within their record, or, when too large for that, in runs of whole blocks.

use bytes::Bytes;
use zerocopy::{FromBytes, IntoBytes};

use super::error::TreeError;
use super::format::{Extent, LARGE, LIVE, LargeHead, MAX_RECORD_UNITS, MAX_VALUE, record_units};
use super::page::damaged;
use super::work::Work;
use crate::block::BLOCK_SIZE;

/// A key and its value.
pub type Pair = (Bytes, Bytes);

/// A value as stored in its record.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    /// The value itself.
    Inline(Bytes),
    /// The place of a large value.
    Large(Large),
}

impl Stored {
    /// The value's length in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Stored::Inline(value) => value.len(),
            Stored::Large(large) => large.len,
        }
    }
}

/// The place of a large value.
#[derive(Clone, Debug)]
pub(super) struct Large {
    /// Its length in bytes.
    pub(super) len: usize,
    /// Its blocks: the first of a run, and how many.
    pub(super) runs: Vec<(u32, u32)>,
}

impl Large {
    fn encode(&self) -> Bytes {
        let mut bytes = LargeHead { len: (self.len as u32).into() }.as_bytes().to_vec();
        for (first, blocks) in &self.runs {
            let extent = Extent { first: (*first).into(), blocks: (*blocks as u16).into() };
            bytes.extend_from_slice(extent.as_bytes());
        }
        bytes.into()
    }

    /// Decodes the place of a large value from a record in `block`.
    fn decode(work: &Work<'_>, block: u32, bytes: &[u8]) -> Result<Large, TreeError> {
        let wrong = || damaged(block, "a large value is not where its record says");
        let (head, rest) = LargeHead::read_from_prefix(bytes).map_err(|_| wrong())?;
        let extents = <[Extent]>::ref_from_bytes(rest).map_err(|_| wrong())?;
        let runs: Vec<(u32, u32)> =
            extents.iter().map(|it| (it.first.get(), u32::from(it.blocks.get()))).collect();
        let len = head.len.get() as usize;
        let inside = |(first, blocks): &(u32, u32)| *blocks > 0 && work.area.has(*first, *blocks);
        let blocks: u64 = runs.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
        let sound = len <= MAX_VALUE
            && blocks == len.div_ceil(BLOCK_SIZE) as u64
            && runs.iter().all(inside);
        if sound { Ok(Large { len, runs }) } else { Err(wrong()) }
    }
}

impl Work<'_> {
    /// Decodes the value of a record in `block`.
    pub(super) fn stored(&self, block: u32, flags: u8, value: Bytes) -> Result<Stored, TreeError> {
        match flags & LARGE {
            0 => Ok(Stored::Inline(value)),
            _ => Ok(Stored::Large(Large::decode(self, block, &value)?)),
        }
    }

    /// The bytes of a value.
    pub(super) async fn fetch(&self, stored: Stored) -> Result<Bytes, TreeError> {
        let large = match stored {
            Stored::Inline(value) => return Ok(value),
            Stored::Large(large) => large,
        };
        let mut value = Vec::with_capacity(large.len.next_multiple_of(BLOCK_SIZE));
        for (first, blocks) in large.runs {
            let (mut block, end) = (first, first + blocks);
            while block < end {
                // The transaction does not have what this call has written.
                if let Some(own) = self.own_value(block) {
                    value.extend_from_slice(own);
                    block += 1;
                    continue;
                }
                let others = (block..end).take_while(|it| self.own_value(*it).is_none()).count();
                let run = self.txn.read_run(self.area.lba(block), others as u64).await?;
                run.iter().for_each(|block| value.extend_from_slice(block));
                block += others as u32;
            }
        }
        value.truncate(large.len);
        Ok(value.into())
    }

    /// Stores a value, reusing the blocks of an old one as far as they go. Returns flags and value for its
    /// record.
    pub(super) async fn store(
        &mut self,
        key: &[u8],
        value: Bytes,
        old: Option<Stored>,
    ) -> Result<(u8, Bytes), TreeError> {
        let mut runs = match old {
            Some(Stored::Large(large)) => large.runs,
            _ => Vec::new(),
        };
        let inline = record_units(key.len(), value.len()) <= MAX_RECORD_UNITS;
        let wanted = if inline { 0 } else { value.len().div_ceil(BLOCK_SIZE) as u32 };
        let mut there = 0;
        for (first, blocks) in &mut runs {
            let kept = (wanted - there).min(*blocks);
            self.free(*first + kept, *blocks - kept).await?;
            *blocks = kept;
            there += kept;
        }
        runs.retain(|(_, blocks)| *blocks > 0);
        if inline {
            return Ok((LIVE, value));
        }
        if there < wanted {
            runs.extend(self.allocate(wanted - there).await?);
        }
        let blocks = runs.iter().flat_map(|(first, blocks)| *first..*first + *blocks);
        for (number, block) in blocks.enumerate() {
            let start = number * BLOCK_SIZE;
            self.put_value(block, whole_block(&value, start));
        }
        Ok((LIVE | LARGE, Large { len: value.len(), runs }.encode()))
    }

    /// Overwrites a part of a large value, from byte `offset` on, which must lie in it. Its record stays as it is: a reader
    /// of the value depends on its blocks, and a writer of another value writes all of them.
    pub(super) async fn patch(
        &mut self,
        large: &Large,
        offset: usize,
        part: &Bytes,
    ) -> Result<(), TreeError> {
        let end = offset + part.len();
        let blocks = large.runs.iter().flat_map(|(first, blocks)| *first..*first + *blocks);
        for (number, block) in blocks.enumerate() {
            let start = number * BLOCK_SIZE;
            let (from, to) = (offset.max(start), end.min(start + BLOCK_SIZE));
            if from >= to {
                continue;
            }
            let new = part.slice(from - offset..to - offset);
            let content = if to - from == BLOCK_SIZE {
                new
            } else {
                let old = match self.own_value(block) {
                    Some(old) => old.clone(),
                    None => self.txn.read(self.area.lba(block)).await?,
                };
                let mut content = old.to_vec();
                let place = content.get_mut(from - start..to - start);
                let place = place.ok_or_else(|| damaged(block, "it is no whole block"))?;
                place.copy_from_slice(&new);
                content.into()
            };
            self.put_value(block, content);
        }
        Ok(())
    }

    /// Frees the blocks of a value.
    pub(super) async fn release(&mut self, stored: Stored) -> Result<(), TreeError> {
        if let Stored::Large(large) = stored {
            for (first, blocks) in large.runs {
                self.free(first, blocks).await?;
            }
        }
        Ok(())
    }
}

/// The block of a value that begins at `start`, with zeros behind the value's end.
fn whole_block(value: &Bytes, start: usize) -> Bytes {
    let end = (start + BLOCK_SIZE).min(value.len());
    if end - start == BLOCK_SIZE {
        return value.slice(start..end);
    }
    let mut block = value[start..end].to_vec();
    block.resize(BLOCK_SIZE, 0);
    block.into()
}
