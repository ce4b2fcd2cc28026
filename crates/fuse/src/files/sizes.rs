//! The sizes that the kernel has of files.
//!
//! While a file grows by a write, the kernel takes no size of it from an answer, until the program that writes runs again. But
//! stat(2) shows the size of the answer, and a read that follows would end before it. So where an answer shows what another thread's write
//! has added, the kernel's size is raised first. So it is when another client has made a file longer: a mapping behind the
//! size that the kernel has would end the program that uses it.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::Ino;

/// `FUSE_NOTIFY_STORE`.
const STORE: i32 = 4;
/// Bytes that cannot be read.
const UNREADABLE: usize = 4096;

/// Raises the kernel's sizes.
///
/// A notification that stores bytes in a page raises the size of the file first, if they are behind it. Here the bytes
/// cannot be read: the size is raised, the page stays as it is, and the system answers `EFAULT`.
pub(super) struct Sizes {
    device: OwnedFd,
    unreadable: NonNull<u8>,
}

// SAFETY: nothing reads or writes what it points to.
unsafe impl Send for Sizes {}
// SAFETY: as above.
unsafe impl Sync for Sizes {}

impl Sizes {
    /// For the mount of this device.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn new(device: BorrowedFd<'_>) -> io::Result<Sizes> {
        let device = device.try_clone_to_owned()?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, at a place that the system chooses.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), UNREADABLE, libc::PROT_NONE, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let unreadable = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Sizes { device, unreadable })
    }

    /// Has the kernel have a size of at least so many bytes for a file that it knows. It waits for the last page to be unlocked, so never
    /// call it where an answer may have to be given.
    ///
    /// # Errors
    /// `ENOENT`: the kernel does not know the inode.
    pub(super) fn raise(&self, ino: Ino, size: u64) -> io::Result<()> {
        let Some(at) = size.checked_sub(1) else { return Ok(()) };
        const LEN: u32 = 40;
        let mut message = Vec::with_capacity(LEN as usize);
        message.extend((LEN + 1).to_ne_bytes());
        message.extend(STORE.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(ino.0.to_ne_bytes());
        message.extend(at.to_ne_bytes());
        message.extend(1u32.to_ne_bytes());
        message.extend([0; 4]);
        assert_eq!(message.len(), LEN as usize, "a notification has a fixed length");
        let message = IoSlice::new(&message);
        let parts = [
            libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() },
            libc::iovec { iov_base: self.unreadable.as_ptr().cast(), iov_len: 1 },
        ];
        // SAFETY: the first part is readable; of the second one the system finds that it is not.
        let wrote = unsafe { libc::writev(self.device.as_raw_fd(), parts.as_ptr(), 2) };
        match (wrote, io::Error::last_os_error()) {
            (-1, error) if error.raw_os_error() != Some(libc::EFAULT) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Sizes {
    fn drop(&mut self) {
        // SAFETY: nothing else refers to the mapping.
        unsafe { libc::munmap(self.unreadable.as_ptr().cast(), UNREADABLE) };
    }
}

impl fmt::Debug for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sizes").field("device", &self.device).finish_non_exhaustive()
    }
}

/// The files that writes make longer.
#[derive(Debug, Default)]
pub(super) struct Growing {
    files: HashMap<Ino, Growth>,
    /// Counts all such writes.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Growth {
    /// The thread that writes; nothing if there are several.
    by: Option<u32>,
    /// Writes under way.
    running: u32,
    /// The number of the last write.
    count: u64,
    /// Some of them bypass the kernel's pages, which it drops when they are answered.
    bypasses: bool,
}

impl Growing {
    fn begin(&mut self, ino: Ino, by: u32, bypasses: bool) {
        self.count += 1;
        let new = Growth { by: Some(by), running: 0, count: 0, bypasses };
        let growth = self.files.entry(ino).or_insert(new);
        growth.by = growth.by.filter(|other| *other == by);
        growth.running += 1;
        growth.count = self.count;
        growth.bypasses |= bypasses;
    }

    fn end(&mut self, ino: Ino) {
        if let Some(growth) = self.files.get_mut(&ino) {
            growth.running -= 1;
        }
    }

    /// Whether the kernel may have pages of a file without what was added to them.
    pub(super) fn bypasses(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|it| it.bypasses)
    }

    /// Whether the kernel may not have the size of a file that a thread asks for.
    pub(super) fn hides_size(&self, ino: Ino, thread: u32) -> bool {
        // A thread that has written and runs again has had the kernel take the size.
        let is_known = |it: &Growth| it.by == Some(thread) && it.running == 0;
        self.files.get(&ino).is_some_and(|it| !is_known(it))
    }

    /// The number of the last write, if none is under way.
    pub(super) fn last(&self, ino: Ino) -> Option<u64> {
        self.files.get(&ino).filter(|it| it.running == 0).map(|it| it.count)
    }

    /// The kernel has a size that was read after this write, which is the last one.
    pub(super) fn has_size(&mut self, ino: Ino, count: u64) {
        if self.files.get(&ino).is_some_and(|it| it.count == count) {
            self.files.remove(&ino);
        }
    }

    pub(super) fn is_growing(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    pub(super) fn forget(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(|it| it.running == 0) {
            self.files.remove(&ino);
        }
    }
}

/// A write that makes a file longer, until it is answered.
#[derive(Debug)]
pub(super) struct GrowingWrite {
    growing: Arc<Mutex<Growing>>,
    ino: Ino,
}

impl GrowingWrite {
    pub(super) fn begin(
        growing: &Arc<Mutex<Growing>>,
        ino: Ino,
        by: u32,
        bypasses: bool,
    ) -> GrowingWrite {
        growing.lock().begin(ino, by, bypasses);
        GrowingWrite { growing: growing.clone(), ino }
    }
}

impl Drop for GrowingWrite {
    fn drop(&mut self) {
        self.growing.lock().end(self.ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_hidden_until_the_kernel_has_it() {
        let (mut growing, file) = (Growing::default(), Ino(5));
        let hides = |growing: &Growing| [1, 2].map(|thread| growing.hides_size(file, thread));
        assert_eq!((hides(&growing), growing.last(file)), ([false, false], None));
        growing.begin(file, 1, false);
        assert_eq!((hides(&growing), growing.last(file)), ([true, true], None));
        growing.end(file);
        assert_eq!((hides(&growing), growing.last(file)), ([false, true], Some(1)));
        growing.begin(file, 1, false);
        growing.has_size(file, 1);
        growing.end(file);
        assert_eq!((hides(&growing), growing.last(file)), ([false, true], Some(2)));
        growing.begin(file, 2, true);
        growing.end(file);
        assert_eq!((hides(&growing), growing.last(file)), ([true, true], Some(3)));
        growing.has_size(file, 3);
        assert!(!growing.is_growing(file));
        growing.begin(file, 2, false);
        growing.end(file);
        // It is another one.
        growing.has_size(file, 3);
        assert_eq!((hides(&growing), growing.last(file)), ([true, false], Some(4)));
    }
}
