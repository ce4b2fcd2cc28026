//! Records in place of lost and wrong ones.

use zerocopy::IntoBytes;

use super::Outcome;
use crate::attributes::Kind;
use crate::error::FsError;
use crate::filesystem::MAX_FILE;
use crate::local::content::BLOCK;
use crate::local::external_contents::reach_for;
use crate::local::format::{InodeRecord, Tag, UsageRecord, encode_kind, key};
use crate::local::fs_call::FsCall;
use crate::local::quota::usage_key;

impl FsCall<'_> {
    /// Creates a file for contents that are kept elsewhere, up to `end`.
    pub(super) async fn make_file(&mut self, ino: u64, end: u64) -> Result<Outcome, FsError> {
        if self.find_inode(ino).await?.is_some() {
            return Ok(Outcome::Left);
        }
        let size = end.min(MAX_FILE);
        self.put_made(ino, (Kind::File, 0), (size, size.div_ceil(BLOCK)), reach_for(end));
        Ok(Outcome::Lost(format!("owner, mode, size and times of inode {ino}")))
    }

    /// Puts the record of an inode whose own is lost.
    pub(super) fn put_made(
        &mut self,
        ino: u64,
        (kind, flags): (Kind, u8),
        (size, blocks): (u64, u64),
        write_bound: u32,
    ) {
        let (now, is_directory) = (self.now, kind == Kind::Directory);
        let record = InodeRecord {
            mode: if is_directory { 0o700 } else { 0o600 }.into(),
            kind: encode_kind(kind),
            flags,
            links: if is_directory { 2 } else { 1 }.into(),
            modified: now.into(),
            changed: now.into(),
            size: size.into(),
            blocks: blocks.into(),
            accessed: now.into(),
            created: now.into(),
            uid: 0.into(),
            gid: 0.into(),
            rdev: 0.into(),
            write_bound: write_bound.into(),
            parent: ino.into(),
            quota: 0.into(),
        };
        self.set_inode(ino, record);
    }

    /// Corrects the sum of what a quota was charged with: blocks and inodes.
    pub(super) async fn mend_usage(
        &mut self,
        root: u64,
        found: (i64, i64),
    ) -> Result<Outcome, FsError> {
        let range = key(0, Tag::Usage, &root.to_be_bytes())..usage_key(root, u8::MAX);
        for (key, _) in self.range(range, usize::MAX).await? {
            self.delete(key.to_vec());
        }
        if found != (0, 0) {
            let sum = UsageRecord { blocks: found.0.into(), inodes: found.1.into() };
            self.put(usage_key(root, 0), sum.as_bytes().to_vec());
        }
        Ok(Outcome::Repaired)
    }
}
