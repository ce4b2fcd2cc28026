//! Numbers for new inodes, and how many there are.

use std::ops::Range;

use super::LocalFs;
use super::format::{END_OF_NUMBERS, Tag, key};
use super::fs_call::FsCall;
use super::fs_state::{FsState, NUMBER_LANES, Numbers};
use crate::answer::Answer;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::filesystem::NewNode;

/// Inode numbers that a lane gets at a time.
const NUMBERS: u64 = 256;
/// Numbers that are reserved before a transaction begins which may make many inodes.
const PREPARED: u64 = 1 << 16;
/// Ranges of numbers that callers have returned. Further ones stay unused.
const MAX_RETURNED: usize = 1024;

impl LocalFs {
    /// Reserves inode numbers for the caller: no inode gets them but by [`LocalFs::create_as`]. Within a transaction they are
    /// reserved when it commits.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for none; those of the transaction.
    pub async fn reserve_numbers(&self, count: u64) -> Result<Range<u64>, FsError> {
        if count == 0 {
            return Err(FsError::Invalid("no inode numbers"));
        }
        let first = self
            .change(async |txn| {
                let mut op = self.op(&txn);
                let first = op.allocate_numbers(count).await?;
                Ok((first, op.finish().await?))
            })
            .await?;
        Ok(first..first + count)
    }

    /// Returns numbers that were reserved, after the commit, and that no inode ever had. This handle uses them for new inodes;
    /// what it has not used by its end stays unused.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when some were never reserved, were returned before, or an inode has one.
    pub async fn return_numbers(&self, numbers: Range<u64>) -> Result<(), FsError> {
        if numbers.is_empty() {
            return Ok(());
        }
        let mut known = self.inner.numbers.lock().await;
        let meets = |of: &Range<u64>| of.start < numbers.end && numbers.start < of.end;
        let Numbers { lanes, spare, returned } = &mut *known;
        if lanes.iter().chain([&*spare]).chain(&*returned).any(meets) {
            return Err(FsError::Invalid("the inode numbers were returned before"));
        }
        let txn = self.inner.look().await?;
        let mut op = FsCall::new(&self.inner, &txn, false);
        if numbers.end > op.next_number().await? {
            return Err(FsError::Invalid("the inode numbers were not reserved"));
        }
        let [first, end] = [numbers.start, numbers.end].map(|it| key(it, Tag::Inode, &[]));
        if numbers.start == 0 || !op.range(first..end, 1).await?.is_empty() {
            return Err(FsError::Invalid("an inode has the number"));
        }
        if returned.len() < MAX_RETURNED {
            returned.push(numbers);
        }
        Ok(())
    }

    /// [`Filesystem::create`](crate::Filesystem::create) of an inode with a number that was reserved, and that no inode had
    /// before.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for a number that was never reserved, or that an inode has.
    pub async fn create_as(
        &self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
        number: Ino,
    ) -> Result<Answer, FsError> {
        self.change(async |txn| {
            let mut op = self.op(&txn);
            let next = op.next_number().await?;
            op.check_number(number.0, next).await?;
            let attributes = op.create(parent.0, name, new, number.0).await?;
            Ok((Answer::until_changed(attributes), op.finish().await?))
        })
        .await
    }

    /// Makes an inode again whose first creation a crash has undone, perhaps with the reservation of its number.
    pub(super) async fn create_again(
        &self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
        number: Ino,
    ) -> Result<Answer, FsError> {
        self.change(async |txn| {
            let mut op = self.op(&txn);
            let mut next = op.next_number().await?;
            if number.0 >= next && number.0 < END_OF_NUMBERS {
                next = number.0 + 1;
                op.set_next_number(next);
            }
            op.check_number(number.0, next).await?;
            let attributes = op.create(parent.0, name, new, number.0).await?;
            op.outcome = number.0;
            Ok((Answer::until_changed(attributes), op.finish().await?))
        })
        .await
    }
}

impl FsCall<'_> {
    /// The lowest number that was never reserved.
    pub(super) async fn next_number(&mut self) -> Result<u64, FsError> {
        if let Some(next) = self.next_number {
            return Ok(next);
        }
        let stored = self.get(&key(0, Tag::Numbers, &[])).await?;
        let next = stored.and_then(|it| Some(u64::from_le_bytes((*it).try_into().ok()?)));
        self.next_number = next.filter(|next| *next <= END_OF_NUMBERS);
        let none = || FsError::Damaged("there is no next inode number".to_owned());
        self.next_number.ok_or_else(none)
    }

    /// Reserves so many numbers; the first.
    async fn allocate_numbers(&mut self, count: u64) -> Result<u64, FsError> {
        let first = self.next_number().await?;
        let next = first.checked_add(count).filter(|next| *next <= END_OF_NUMBERS);
        let next = next.ok_or(FsError::Invalid("there are not as many inode numbers"))?;
        self.set_next_number(next);
        Ok(first)
    }

    /// Changes the lowest number that was never reserved.
    pub(super) fn set_next_number(&mut self, next: u64) {
        // A number that goes back would be given to two inodes.
        assert!(self.next_number.is_none_or(|before| before <= next), "numbers go back to {next}");
        assert!(next <= END_OF_NUMBERS, "there is no inode number before {next}");
        self.put(key(0, Tag::Numbers, &[]), next.to_le_bytes().to_vec());
        self.next_number = Some(next);
    }

    /// Whether an inode may get this number, as far as can be told. `next` is the lowest that was never reserved.
    pub(super) async fn check_number(&mut self, number: u64, next: u64) -> Result<(), FsError> {
        if number >= next {
            return Err(FsError::Invalid("the inode number was not reserved"));
        }
        match self.find_inode(number).await? {
            None if number > 0 => Ok(()),
            _ => Err(FsError::Invalid("an inode has the number")),
        }
    }
}

impl FsState {
    /// An inode number that was never used, near those of other inodes in the directory.
    pub(super) async fn number(&self, parent: u64) -> Result<u64, FsError> {
        let lane = (parent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % NUMBER_LANES;
        let mut numbers = self.numbers.lock().await;
        if let Some(number) = numbers.lanes[lane].next() {
            return Ok(number);
        }
        if numbers.spare.is_empty() {
            numbers.spare = match numbers.returned.pop() {
                Some(returned) => returned,
                None => {
                    let count = NUMBERS * NUMBER_LANES as u64;
                    let first = self.reserve_numbers(count).await?;
                    first..first + count
                }
            };
        }
        let first = numbers.spare.start;
        let end = numbers.spare.end.min(first + NUMBERS);
        assert!(0 < first && first < end, "numbers of inodes from {first} to {end}");
        numbers.spare.start = end;
        numbers.lanes[lane] = first + 1..end;
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
            let mut op = FsCall::new(self, &txn, false);
            let first = op.allocate_numbers(count).await?;
            op.put(key(0, Tag::Counts, &[]), inodes.to_le_bytes().to_vec());
            Ok((first, op.finish().await?))
        })
        .await
    }

    /// Writes down how many inodes are in use.
    pub(super) async fn save_counts(&self) -> Result<(), FsError> {
        let inodes = (*self.inodes.lock()).max(1);
        self.change(async |txn| {
            let mut op = FsCall::new(self, &txn, false);
            op.put(key(0, Tag::Counts, &[]), inodes.to_le_bytes().to_vec());
            Ok(((), op.finish().await?))
        })
        .await
    }
}
