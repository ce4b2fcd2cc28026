//! The version of a filesystem, which later programs raise when they record what earlier ones do not know.

use zerocopy::IntoBytes;

use super::format::{SuperRecord, Tag, decode, key};
use super::fs_call::FsCall;
use crate::error::FsError;

impl FsCall<'_> {
    /// Has the superblock say that the filesystem has a version, if it has an older one.
    pub(super) async fn raise_version(&mut self, version: u16) -> Result<(), FsError> {
        let value = self.get(&key(0, Tag::Super, &[])).await?.ok_or(FsError::NotFound)?;
        let mut record: SuperRecord = decode(&value, || "the superblock".to_owned())?;
        if record.version.get() < version {
            record.version = version.into();
            record.checksum = record.sum().into();
            self.put(key(0, Tag::Super, &[]), record.as_bytes().to_vec());
            self.inner.copies.write_copies(&**self.txn, &record).await?;
        }
        Ok(())
    }
}
