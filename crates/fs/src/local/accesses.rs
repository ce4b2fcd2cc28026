//! When inodes were read last. That is noted in memory, and written down some time later.

use super::format::{InodeRecord, decode_time};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use super::options::Atime;
use super::records::stored_time;
use crate::attributes::Attributes;
use crate::error::FsError;

/// How many reads may wait.
const MAX_ATIMES: usize = 4096;
/// Inodes whose access times one transaction records.
const ATIMES_AT_ONCE: usize = 64;
/// Under `relatime` a read is noted at least once in so many seconds.
const RELATIME_SECONDS: i64 = 24 * 3600;

impl FsState {
    /// Sets how reads of inodes are noted from now on.
    pub(super) fn set_atime(&self, atime: Atime) {
        *self.atime.lock() = atime;
    }

    /// Notes that an inode was read.
    pub(super) fn note_access(&self, ino: u64, record: &InodeRecord) {
        let now = stored_time(self.env.wall_nanos());
        let stored = self.pending_access(ino).unwrap_or(record.accessed.get());
        let seconds = |time: u64| time as i64 >> 30;
        let atime = *self.atime.lock();
        let is_due = match atime {
            _ if self.options.read_only => false,
            Atime::Never => false,
            Atime::Strict => true,
            Atime::Relative => {
                stored as i64 <= record.modified.get() as i64
                    || stored as i64 <= record.changed.get() as i64
                    || seconds(now) - seconds(stored) >= RELATIME_SECONDS
            }
        };
        if is_due && now != stored {
            let mut atimes = self.atimes.lock();
            atimes.insert(ino, now);
            if atimes.len() >= MAX_ATIMES {
                drop(atimes);
                self.wake.notify_one();
            }
        }
    }

    /// When an inode was read last, if that is not noted yet.
    pub(super) fn pending_access(&self, ino: u64) -> Option<u64> {
        self.atimes.lock().get(&ino).copied()
    }

    /// The last read of an inode need not be noted: something else was set.
    pub(super) fn drop_access(&self, ino: u64) {
        self.atimes.lock().remove(&ino);
    }

    /// Adds a pending access time to attributes.
    pub(super) fn with_access(&self, mut attributes: Attributes) -> Attributes {
        if let Some(accessed) = self.pending_access(attributes.ino.0) {
            attributes.accessed = decode_time(accessed);
        }
        attributes
    }

    /// Writes the last reads down.
    pub(super) async fn flush_accesses(&self) -> Result<(), FsError> {
        loop {
            let some: Vec<u64> = {
                let atimes = self.atimes.lock();
                let mut some: Vec<u64> = atimes.keys().copied().collect();
                some.sort_unstable();
                some.truncate(ATIMES_AT_ONCE);
                some
            };
            if some.is_empty() {
                return Ok(());
            }
            self.change(async |txn| {
                let mut op = FsCall::new(self, &txn, false);
                for ino in &some {
                    if let Some(record) = op.find_inode(*ino).await? {
                        op.set_inode(*ino, record);
                    }
                }
                Ok(((), op.finish().await?))
            })
            .await?;
            some.iter().for_each(|ino| self.drop_access(*ino));
        }
    }

    /// Whether many reads wait.
    pub(super) fn has_atimes(&self) -> bool {
        self.atimes.lock().len() >= MAX_ATIMES
    }
}
