//! Pages that the kernel has not written yet: those that programs changed through mappings, and with the kernel's own write-back
//! cache all that they wrote.
//!
//! Where data is, how much of it there is and when it was written, the kernel asks the filesystem without writing such pages
//! first. So they are written before these answers. Nobody tells whether a file is mapped; but it has to be open for
//! that, and the kernel writes all of its pages before it closes the file.

use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::{Answer, AttributeChange, FsError, Ino, Kind, OpenFlags, Validity};

use super::attributes::validity;
use super::opening::KernelHandle;
use super::served::Served;

/// The files of which the kernel may have such pages.
#[derive(Debug)]
pub(super) struct Dirty {
    /// The kernel collects writes.
    writeback_cache: bool,
    /// How many handles can leave such pages.
    open: Mutex<HashMap<Ino, u32>>,
}

impl Dirty {
    pub(super) fn new(writeback_cache: bool) -> Dirty {
        Dirty { writeback_cache, open: Mutex::default() }
    }

    /// A file is opened. Whether its handle may leave such pages; then [`Dirty::close`] must follow.
    pub(super) fn open(&self, ino: Ino, flags: OpenFlags, is_direct: bool) -> bool {
        // A shared mapping that can be written needs both.
        let may_map = flags.read && flags.write;
        let may_dirty = may_map || self.writeback_cache && flags.write && !is_direct;
        if may_dirty {
            *self.open.lock().entry(ino).or_default() += 1;
        }
        may_dirty
    }

    pub(super) fn close(&self, ino: Ino) {
        let mut open = self.open.lock();
        let Some(count) = open.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            open.remove(&ino);
        }
    }

    fn may_have(&self, ino: Ino) -> bool {
        self.open.lock().contains_key(&ino)
    }
}

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
            true => Validity { attributes: std::time::Duration::ZERO, ..valid },
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_that_leave_pages_are_counted() {
        let flags = |read, write| OpenFlags { read, write, ..OpenFlags::default() };
        let dirty = Dirty::new(false);
        assert!(!dirty.open(Ino(5), flags(true, false), false));
        assert!(!dirty.open(Ino(5), flags(false, true), false));
        assert!(!dirty.may_have(Ino(5)));
        assert!(dirty.open(Ino(5), flags(true, true), false));
        assert!(dirty.open(Ino(5), flags(true, true), true));
        dirty.close(Ino(5));
        assert!(dirty.may_have(Ino(5)) && !dirty.may_have(Ino(6)));
        dirty.close(Ino(5));
        assert!(!dirty.may_have(Ino(5)));
        let dirty = Dirty::new(true);
        assert!(dirty.open(Ino(5), flags(false, true), false));
        assert!(!dirty.open(Ino(5), flags(false, true), true));
    }
}
