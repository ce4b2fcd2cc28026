//! Pages that the kernel has not written yet: those that programs changed through mappings, and with the kernel's own write-back
//! cache all that they wrote.
//!
//! Where data is, how much of it there is and when it was written, the kernel asks the filesystem without writing such pages
//! first. So they are written before these answers. The kernel does not tell whether a file is mapped; but it has to be open for
//! that, and the kernel writes all of its pages before it closes the file.

use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::{Ino, OpenFlags};

/// The files of which the kernel may have such pages.
#[derive(Debug)]
pub(super) struct Dirty {
    /// The kernel collects writes.
    pub(super) writeback_cache: bool,
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

    /// Whether the kernel may have such pages of a file.
    pub(super) fn may_have(&self, ino: Ino) -> bool {
        self.open.lock().contains_key(&ino)
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
