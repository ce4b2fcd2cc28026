//! Memory that is aligned for direct I/O.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;

/// Alignment in bytes of every buffer that a device returns.
pub const MEMORY_ALIGNMENT: usize = 4096;

/// A zeroed heap buffer aligned to [`MEMORY_ALIGNMENT`]. Freezing it into [`Bytes`] copies nothing.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory exclusively, as a Vec does.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access gives only shared slices.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        if len == 0 {
            return AlignedBuf { start: NonNull::dangling(), len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => AlignedBuf { start, len },
            None => handle_alloc_error(layout),
        }
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> AlignedBuf {
        let len = bytes.len();
        if len == 0 {
            return AlignedBuf::zeroed(0);
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        // SAFETY: both are `len` bytes long and do not overlap, and the copy initialises all of the new
        // memory.
        unsafe { start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        AlignedBuf { start, len }
    }

    /// The buffer as shared, immutable bytes.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn layout(len: usize) -> Layout {
        // A slice never exceeds isize::MAX bytes, so the layout is always valid.
        Layout::from_size_align(len, MEMORY_ALIGNMENT).expect("buffer length fits isize")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes, or dangling with length zero.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and access is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero() {
        for len in [0, 1, 512, 4096, 100_000] {
            let buffer = AlignedBuf::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|byte| *byte == 0));
            let frozen = buffer.freeze();
            assert!(len == 0 || frozen.as_ptr().addr().is_multiple_of(MEMORY_ALIGNMENT));
        }
    }
}
