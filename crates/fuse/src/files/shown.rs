//! Sizes, blocks and times as programs are shown them: the kernel writes what it has, and takes what it lacks, before.

use std::time::Duration;

use thalweg_fs::{Answer, AttributeChange, FsError, Ino, Kind, Validity};

use super::attributes::validity;
use super::opening::KernelHandle;
use super::served::Served;

impl Served {
    /// Closes a file.
    pub(super) async fn close(&self, ino: Ino, handle: KernelHandle) {
        self.filesystem.release(ino, handle.handle).await;
        if handle.may_dirty {
            self.dirty.close(ino);
        }
    }

    /// Returns when the kernel has written what it has of a file.
    pub(super) async fn write_back(&self, ino: Ino) {
        if let Some(coherence) = self.coherence().filter(|_| self.dirty.may_have(ino)) {
            // It writes a page before it drops it.
            coherence.drop_pages(ino, 0, u64::MAX).await;
        }
    }

    /// Whether the kernel may have pages of a file that will take blocks. With a write-back cache it asks for attributes at
    /// each write, and so is answered without such pages.
    fn hides_blocks(&self, answer: &Answer) -> bool {
        let is_sparse = answer.kind == Kind::File && answer.stored < answer.size;
        is_sparse && !self.dirty.writeback_cache && self.dirty.may_have(answer.ino)
    }

    /// How long the kernel may cache what it is told of an inode.
    pub(super) fn validity(&self, answer: &Answer) -> Validity {
        let valid = validity(answer);
        match self.hides_blocks(answer) {
            true => Validity { attributes: Duration::ZERO, ..valid },
            false => valid,
        }
    }

    /// Attributes, with the blocks of pages that the kernel writes first.
    pub(super) async fn with_blocks(&self, found: Answer) -> Result<Answer, FsError> {
        if !self.hides_blocks(&found) {
            return Ok(found);
        }
        self.write_back(found.ino).await;
        self.filesystem.shown_attributes(found.ino).await
    }

    /// Changes attributes.
    pub(super) async fn set_attributes(
        &self,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<Answer, FsError> {
        // A page that is written later would have the file's time be that of its write. While the kernel cuts a file it
        // writes none.
        if change.modified.is_some() && change.size.is_none() {
            self.write_back(ino).await;
        }
        self.filesystem.set_attributes(ino, change).await
    }

    /// Before a thread is told the size of a file that another one's write made longer, the kernel takes it. `last` is its
    /// number, if it was answered before the size was read.
    pub(super) async fn raise_size(&self, answer: &Answer, thread: u32, last: Option<u64>) {
        let (ino, size) = (answer.ino, answer.size);
        let hidden = self.known.growing().hides_size(ino, thread);
        if let Some(coherence) = self.coherence().filter(|_| hidden) {
            if self.known.growing().bypasses(ino) {
                // The last page has zeros where the file goes on.
                let from = self.known.size(ino).unwrap_or_default();
                coherence.drop_pages(ino, from, u64::MAX).await;
            }
            coherence.raise_size(ino, size).await;
            if let Some(last) = last {
                self.known.growing().has_size(ino, last);
            }
        }
        self.known.note_size(ino, size);
    }
}
