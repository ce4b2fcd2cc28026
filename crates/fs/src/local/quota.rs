//! Quotas of directory trees.
//!
//! The root of a quota is a directory; every inode below counts for the nearest root above it, whose number
//! it carries. A file with several names may have some outside, older than the quota; it counts for the quota also
//! after it has lost the names inside, until it is removed or moved to another directory. Usage is counted in several lanes, so that transactions below the same root seldom conflict.
//! A charge far below the limit trusts the sum that this handle knows; one near the limit reads all lanes,
//! and depends on them.

use bytes::Bytes;
use zerocopy::IntoBytes;

use super::content::BLOCK;
use super::format::{
    InodeRecord, QuotaRecord, Tag, USAGE_LANES, UsageRecord, decode, key, key_behind, parse_key,
};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use crate::attributes::Kind;
use crate::error::FsError;
use crate::filesystem::{Cookie, Entry};

/// Most bytes of a directory tree; 0 for no limit.
pub(super) const MAX_BYTES: &[u8] = b"thalweg.quota.max_bytes";
/// Most inodes of a directory tree; 0 for no limit.
pub(super) const MAX_FILES: &[u8] = b"thalweg.quota.max_files";

/// Blocks and inodes by which the sum that a handle knows may be too low.
const MARGIN: (i64, i64) = (4096, 256);

/// Inodes that one transaction has count for another quota.
const COUNTED_AT_ONCE: usize = 64;

/// Limits and usage of a directory tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// Most bytes; 0 for no limit.
    pub max_bytes: u64,
    /// Most inodes; 0 for no limit.
    pub max_inodes: u64,
    /// Bytes of storage in use.
    pub bytes: u64,
    /// Inodes in use, the root among them.
    pub inodes: u64,
}

/// Whether an extended attribute stands for a limit.
pub fn is_attribute(name: &[u8]) -> bool {
    name == MAX_BYTES || name == MAX_FILES
}

pub(super) fn quota_key(root: u64) -> Vec<u8> {
    key(0, Tag::Quota, &root.to_be_bytes())
}

pub(super) fn usage_key(root: u64, lane: u8) -> Vec<u8> {
    let mut key = key(0, Tag::Usage, &root.to_be_bytes());
    key.push(lane);
    key
}

fn exceeds(used: i64, limit: u64) -> bool {
    limit > 0 && used > i64::try_from(limit).unwrap_or(i64::MAX)
}

impl FsCall<'_> {
    async fn limits(&mut self, root: u64) -> Result<Option<QuotaRecord>, FsError> {
        let value = self.get(&quota_key(root)).await?;
        let what = || format!("the quota of directory {root} has another size");
        value.map(|value| decode(&value, what)).transpose()
    }

    async fn usage_of_lane(&mut self, root: u64, lane: u8) -> Result<(i64, i64), FsError> {
        let Some(value) = self.get(&usage_key(root, lane)).await? else { return Ok((0, 0)) };
        let what = || format!("the usage of directory {root} has another size");
        let record: UsageRecord = decode(&value, what)?;
        Ok((record.blocks.get(), record.inodes.get()))
    }

    /// The usage under a root, without the charges of this call.
    async fn usage(&mut self, root: u64) -> Result<(i64, i64), FsError> {
        let mut sum = (0i64, 0i64);
        for lane in 0..USAGE_LANES {
            let (blocks, inodes) = self.usage_of_lane(root, lane).await?;
            sum = (sum.0.saturating_add(blocks), sum.1.saturating_add(inodes));
        }
        Ok(sum)
    }

    /// Charges a quota, if there is one.
    ///
    /// # Errors
    /// [`FsError::QuotaExceeded`]
    pub(super) async fn charge(
        &mut self,
        root: u64,
        blocks: i64,
        inodes: i64,
    ) -> Result<(), FsError> {
        self.grows |= blocks > 0 || inodes > 0;
        if root == 0 {
            return Ok(());
        }
        let charged = self.effects.charged.entry(root).or_default();
        *charged = (charged.0 + blocks, charged.1 + inodes);
        let charged = *charged;
        if blocks <= 0 && inodes <= 0 || self.is_stored {
            return Ok(());
        }
        // What the call's session was promised of the quota is not refused.
        let more = (u64::try_from(blocks).unwrap_or(0), u64::try_from(inodes).unwrap_or(0));
        if self.charge_quota(root, more.0, more.1) == (0, 0) {
            return Ok(());
        }
        let others = self.others_of_quota(root);
        let Some(limits) = self.limits(root).await? else { return Ok(()) };
        let (max_blocks, max_inodes) = (limits.bytes.get().div_ceil(BLOCK), limits.inodes.get());
        let fits = |used: (i64, i64)| {
            !(blocks > 0 && exceeds(used.0 + charged.0 + others.0, max_blocks)
                || inodes > 0 && exceeds(used.1 + charged.1 + others.1, max_inodes))
        };
        let earlier = self.earlier(root).charged;
        if let Some(seen) = self.inner.seen_usage(root)
            && !self.is_within
            && fits((seen.0 + earlier.0 + MARGIN.0, seen.1 + earlier.1 + MARGIN.1))
        {
            return Ok(());
        }
        let used = self.usage(root).await?;
        self.inner.see_usage(root, (used.0 - earlier.0, used.1 - earlier.1));
        if fits(used) { Ok(()) } else { Err(FsError::QuotaExceeded) }
    }

    /// Records the charges.
    pub(super) async fn put_usage(&mut self) -> Result<(), FsError> {
        let charged: Vec<_> = self.effects.charged.iter().map(|(root, by)| (*root, *by)).collect();
        for (root, by) in charged.into_iter().filter(|(_, by)| *by != (0, 0)) {
            if self.limits(root).await?.is_none() {
                // The root was removed; the inode had a name below it.
                continue;
            }
            // Transactions on the same inode conflict anyway.
            let some = self.effects.inodes.keys().next_back().copied().unwrap_or(root);
            let lane = (some % u64::from(USAGE_LANES)) as u8;
            let before = self.usage_of_lane(root, lane).await?;
            let (blocks, inodes) = (before.0 + by.0, before.1 + by.1);
            let record = UsageRecord { blocks: blocks.into(), inodes: inodes.into() };
            self.put(usage_key(root, lane), record.as_bytes().to_vec());
        }
        Ok(())
    }

    /// The quota of which a directory is the root.
    pub(super) async fn quota(&mut self, root: u64) -> Result<Option<Quota>, FsError> {
        self.directory(root).await?;
        self.find_quota(root).await
    }

    /// The same, whether or not the root is still there.
    pub(super) async fn find_quota(&mut self, root: u64) -> Result<Option<Quota>, FsError> {
        let Some(limits) = self.limits(root).await? else { return Ok(None) };
        let (blocks, inodes) = self.usage(root).await?;
        Ok(Some(Quota {
            max_bytes: limits.bytes.get(),
            max_inodes: limits.inodes.get(),
            bytes: u64::try_from(blocks).unwrap_or(0).saturating_mul(BLOCK),
            inodes: u64::try_from(inodes).unwrap_or(0),
        }))
    }

    /// Sets the limits of the root of a quota, or makes a directory one; returns whether it became one and
    /// must be walked.
    pub(super) async fn set_limits(
        &mut self,
        root: u64,
        bytes: Option<u64>,
        inodes: Option<u64>,
    ) -> Result<bool, FsError> {
        let mut record = self.directory(root).await?;
        let there = self.limits(root).await?;
        let before = there.unwrap_or(QuotaRecord { bytes: 0.into(), inodes: 0.into() });
        let limits = QuotaRecord {
            bytes: bytes.map_or(before.bytes, Into::into),
            inodes: inodes.map_or(before.inodes, Into::into),
        };
        self.put(quota_key(root), limits.as_bytes().to_vec());
        if there.is_some() {
            return Ok(false);
        }
        if record.size.get() > 0 && self.is_within {
            return Err(FsError::NotSupported);
        }
        self.recount(root, &mut record, root).await?;
        Ok(record.size.get() > 0)
    }

    /// Has an inode count for another quota.
    pub(super) async fn recount(
        &mut self,
        ino: u64,
        record: &mut InodeRecord,
        root: u64,
    ) -> Result<(), FsError> {
        let (blocks, before) = (record.blocks.get() as i64, record.quota.get());
        for (quota, by) in [(before, -1), (root, 1)].into_iter().filter(|(quota, _)| *quota != 0) {
            let charged = self.effects.charged.entry(quota).or_default();
            *charged = (charged.0 + by * blocks, charged.1 + by);
        }
        record.quota = root.into();
        self.touch(ino, record);
        self.set_inode(ino, *record);
        Ok(())
    }

    /// Counts inodes for another quota; returns the directories among them.
    async fn count_entries(&mut self, root: u64, some: &[Entry]) -> Result<Vec<u64>, FsError> {
        let mut directories = Vec::new();
        for entry in some {
            let ino = entry.ino.0;
            let Some(mut record) = self.find_inode(ino).await? else { continue };
            // Inodes below the root of another quota count there.
            if record.quota == ino {
                continue;
            }
            if record.quota != root {
                self.recount(ino, &mut record, root).await?;
            }
            if entry.kind == Kind::Directory {
                directories.push(ino);
            }
        }
        Ok(directories)
    }

    /// The root of a quota ends, and the quota with it.
    pub(super) async fn remove_quota(
        &mut self,
        ino: u64,
        record: &InodeRecord,
    ) -> Result<(), FsError> {
        if record.quota != ino {
            return Ok(());
        }
        self.effects.charged.remove(&ino);
        self.delete(quota_key(ino));
        let range = key(0, Tag::Usage, &ino.to_be_bytes())..usage_key(ino, USAGE_LANES);
        for (key, _) in self.range(range, usize::MAX).await? {
            self.delete(key.to_vec());
        }
        Ok(())
    }

    /// A limit as an extended attribute.
    pub(super) async fn quota_attribute(
        &mut self,
        ino: u64,
        name: &[u8],
    ) -> Result<Bytes, FsError> {
        let limits = self.limits(ino).await?.ok_or(FsError::NoAttribute)?;
        let limit = if name == MAX_BYTES { limits.bytes } else { limits.inodes };
        match limit.get() {
            0 => Err(FsError::NoAttribute),
            limit => Ok(limit.to_string().into()),
        }
    }

    /// Every quota, as its root's number.
    pub(super) async fn quotas(&mut self) -> Result<Vec<u64>, FsError> {
        let range = key(0, Tag::Quota, &[])..key_behind(0, Tag::Quota);
        let found = self.range(range, usize::MAX).await?;
        let root = |key: &[u8]| Some(u64::from_be_bytes(parse_key(key)?.2.try_into().ok()?));
        Ok(found.iter().filter_map(|(key, _)| root(key)).collect())
    }
}

impl FsState {
    /// Counts everything below the new root of a quota for it, from the top down: a new inode in a
    /// directory that is counted already is counted too.
    pub(super) async fn count_tree(&self, root: u64) -> Result<(), FsError> {
        let mut directories = vec![root];
        while let Some(directory) = directories.pop() {
            let mut from = Cookie::START;
            loop {
                let txn = self.look().await?;
                let mut op = FsCall::new(self, &txn, false);
                let some = op.read_directory(directory, from, COUNTED_AT_ONCE, false).await?;
                drop(op);
                let Some(last) = some.last() else { break };
                from = last.cookie;
                let below = self.change(async |txn| {
                    let mut op = FsCall::new(self, &txn, false);
                    let below = op.count_entries(root, &some).await?;
                    Ok((below, op.finish().await?))
                });
                directories.extend(below.await?);
            }
        }
        Ok(())
    }
}

/// A limit that an extended attribute sets: digits.
pub(super) fn parse_limit(value: &[u8]) -> Result<u64, FsError> {
    let text = std::str::from_utf8(value).ok().map(str::trim);
    let limit = text.and_then(|text| text.parse().ok());
    limit.ok_or(FsError::Invalid("a limit is a number"))
}
