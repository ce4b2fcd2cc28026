//! What conflict copies have: bytes and rights. All is made as the user of the call, and of a file that is theirs to read.

use bytes::Bytes;
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Filesystem, FsError, Ino, SetXattr, TimeChange,
    WriteAt, WriteHow,
};

use super::filesystem::Client;
use super::inode_changes::{Changes, Step};

/// Bytes that one call copies.
const COPIED_AT_ONCE: u64 = 64 << 20;

/// Whether a user may not make something where it belongs.
pub(super) fn is_forbidden(error: &FsError) -> bool {
    matches!(error, FsError::Denied | FsError::NotPermitted)
}

/// Gives copies what they have.
pub(super) struct CopyContent<'a> {
    /// A session that has no journal.
    pub(super) client: &'a Client,
}

impl CopyContent<'_> {
    pub(super) async fn copy(&self, file: &Attributes, to: Ino) -> Result<(), FsError> {
        let mut at = 0;
        while at < file.size {
            let len = (file.size - at).min(COPIED_AT_ONCE);
            let copied = self.client.copy((file.ino, at), (to, at), len).await?;
            if copied == 0 {
                // It has become shorter.
                break;
            }
            at += copied;
        }
        Ok(())
    }

    pub(super) async fn apply(&self, ino: Ino, steps: &[Step]) -> Result<(), FsError> {
        for step in steps {
            match step {
                Step::Write(offset, data) => self.write(ino, *offset, data.clone()).await?,
                Step::Size(size) => {
                    let change =
                        AttributeChange { size: Some(*size), ..AttributeChange::default() };
                    self.client.set_attributes(ino, &change).await?;
                }
                Step::Grow(end) => {
                    let how = Allocation::Reserve { keep_size: false };
                    let size = self.client.attributes(ino).await?.attributes.size;
                    if size < *end {
                        self.client.allocate(ino, size, end - size, how).await?;
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) async fn write(
        &self,
        ino: Ino,
        offset: u64,
        mut data: Bytes,
    ) -> Result<(), FsError> {
        let mut at = offset;
        while !data.is_empty() {
            let some = data.split_to(data.len().min(1 << 20));
            let len = some.len() as u64;
            self.client.write(ino, WriteAt::Offset(at), vec![some], WriteHow::default()).await?;
            at += len;
        }
        Ok(())
    }

    /// Gives a copy the extended attributes that its file has got, as far as its user may.
    pub(super) async fn set_xattrs(&self, ino: Ino, changes: &Changes) -> Result<(), FsError> {
        for (name, value) in &changes.xattrs {
            let Some(value) = value else { continue };
            match self.client.set_xattr(ino, name, value.clone(), SetXattr::Any).await {
                Err(error) if !is_forbidden(&error) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Gives a copy the owner, the group and the mode of its file, as far as its user may. No group that the file was not of may read it, and no
    /// program runs it as that user.
    pub(super) async fn give_rights_of(&self, file: &Attributes, copy: Ino) -> Result<(), FsError> {
        let none = AttributeChange::default();
        let now = self.client.attributes(copy).await?.attributes;
        if now.uid != file.uid {
            self.attribute(copy, &AttributeChange { uid: Some(file.uid), ..none }).await?;
        }
        let mut is_of_group = now.gid == file.gid;
        if !is_of_group {
            let group = AttributeChange { gid: Some(file.gid), ..none };
            is_of_group = self.attribute(copy, &group).await?;
        }
        let kept = if is_of_group { 0o777 } else { 0o707 };
        let mode = AttributeChange { mode: Some(file.mode & kept), ..none };
        self.attribute(copy, &mode).await.map(drop)
    }

    /// Sets attributes of a copy, but for its size; whether its user may.
    pub(super) async fn attribute(
        &self,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<bool, FsError> {
        let at = |time: Option<TimeChange>| time.filter(|time| matches!(time, TimeChange::At(_)));
        let change = AttributeChange {
            size: None,
            modified: at(change.modified),
            accessed: at(change.accessed),
            ..*change
        };
        if change == AttributeChange::default() {
            return Ok(true);
        }
        match self.client.set_attributes(ino, &change).await {
            Ok(_) => Ok(true),
            Err(error) if is_forbidden(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
