//! Numbers for new inodes, and how many there are.

use super::format::{Tag, key};
use super::inner::{Inner, NUMBER_LANES};
use super::op::Op;
use crate::error::FsError;

/// Inode numbers that a lane gets at a time.
const NUMBERS: u64 = 256;
/// Numbers that are reserved before a transaction begins which may make many inodes.
const PREPARED: u64 = 1 << 16;

impl Inner {
    /// An inode number that was never used, near those of other inodes in the directory.
    pub(super) async fn number(&self, parent: u64) -> Result<u64, FsError> {
        let lane = (parent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % NUMBER_LANES;
        let mut numbers = self.numbers.lock().await;
        if let Some(number) = numbers.lanes[lane].next() {
            return Ok(number);
        }
        if numbers.spare.is_empty() {
            let count = NUMBERS * NUMBER_LANES as u64;
            let first = self.reserve_numbers(count).await?;
            numbers.spare = first..first + count;
        }
        let first = numbers.spare.start;
        numbers.spare.start += NUMBERS;
        numbers.lanes[lane] = first + 1..first + NUMBERS;
        Ok(first)
    }

    /// Reserves numbers, unless there are many.
    pub(super) async fn prepare_numbers(&self) -> Result<(), FsError> {
        let mut numbers = self.numbers.lock().await;
        if numbers.spare.end - numbers.spare.start < PREPARED / 2 {
            let first = self.reserve_numbers(PREPARED).await?;
            numbers.spare = first..first + PREPARED;
        }
        Ok(())
    }

    /// Reserves so many numbers; the first.
    async fn reserve_numbers(&self, count: u64) -> Result<u64, FsError> {
        let inodes = (*self.inodes.lock()).max(1);
        self.change(async |txn| {
            let mut op = Op::new(self, &txn, false);
            let stored = op.get(&key(0, Tag::Numbers, &[])).await?;
            let first = stored.and_then(|it| Some(u64::from_le_bytes((*it).try_into().ok()?)));
            let first = first.filter(|first| *first < u64::MAX - count);
            let first = first
                .ok_or_else(|| FsError::Damaged("there is no next inode number".to_owned()))?;
            op.put(key(0, Tag::Numbers, &[]), (first + count).to_le_bytes().to_vec());
            op.put(key(0, Tag::Counts, &[]), inodes.to_le_bytes().to_vec());
            Ok((first, op.finish().await?))
        })
        .await
    }

    /// Writes down how many inodes are in use.
    pub(super) async fn save_counts(&self) -> Result<(), FsError> {
        let inodes = (*self.inodes.lock()).max(1);
        self.change(async |txn| {
            let mut op = Op::new(self, &txn, false);
            op.put(key(0, Tag::Counts, &[]), inodes.to_le_bytes().to_vec());
            Ok(((), op.finish().await?))
        })
        .await
    }
}
