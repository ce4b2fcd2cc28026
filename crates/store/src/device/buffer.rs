//! Memory that is aligned for direct I/O.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;

/// Alignment in bytes of every buffer that a device returns.
pub const MEMORY_ALIGNMENT: usize = 4096;

/// Pages that a thread keeps for its next buffers. An allocator takes two pages to align one.
const KEPT: usize = 64;

thread_local! {
    static PAGES: RefCell<Pages> = const { RefCell::new(Pages(Vec::new())) };
}

/// Pages without a buffer, of [`AlignedBuf::layout`].
struct Pages(Vec<NonNull<u8>>);

impl Pages {
    /// A page of the current thread, with arbitrary content.
    fn take() -> Option<NonNull<u8>> {
        PAGES.try_with(|pages| pages.try_borrow_mut().ok()?.0.pop()).ok().flatten()
    }

    /// Keeps a page for the current thread; false when that has enough.
    fn keep(page: NonNull<u8>) -> bool {
        let kept = PAGES.try_with(|pages| match pages.try_borrow_mut() {
            Ok(mut pages) if pages.0.len() < KEPT => {
                pages.0.push(page);
                true
            }
            _ => false,
        });
        kept.unwrap_or(false)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for page in self.0.drain(..) {
            // SAFETY: a page that was kept was allocated with this layout, and no buffer has it.
            unsafe { dealloc(page.as_ptr(), AlignedBuf::layout(MEMORY_ALIGNMENT)) }
        }
    }
}

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
        if let Some(start) = Self::kept_page(len) {
            // SAFETY: a page is at least as long, and no other buffer has it.
            unsafe { start.as_ptr().write_bytes(0, len) };
            return AlignedBuf { start, len };
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
        let start = Self::kept_page(len).or_else(|| {
            // SAFETY: the layout's size is not zero.
            NonNull::new(unsafe { alloc(layout) })
        });
        let Some(start) = start else { handle_alloc_error(layout) };
        // SAFETY: both are `len` bytes long and do not overlap, and the copy initialises all of the new
        // memory.
        unsafe { start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        AlignedBuf { start, len }
    }

    /// The buffer as shared, immutable bytes.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// The memory of a buffer of `len` bytes: a whole page at least, which other short buffers can use again.
    fn layout(len: usize) -> Layout {
        let len = len.max(MEMORY_ALIGNMENT);
        // A slice never exceeds isize::MAX bytes, so the layout is always valid.
        Layout::from_size_align(len, MEMORY_ALIGNMENT).expect("buffer length fits isize")
    }

    /// A page that was used before, if it is long enough.
    fn kept_page(len: usize) -> Option<NonNull<u8>> {
        (len <= MEMORY_ALIGNMENT).then(Pages::take).flatten()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let is_page = self.len > 0 && self.len <= MEMORY_ALIGNMENT;
        if self.len > 0 && !(is_page && Pages::keep(self.start)) {
            // SAFETY: allocated in `zeroed` or `copy_of` with the same layout.
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
    #[test]
    fn a_page_that_is_used_again_is_zero() {
        let pages: Vec<_> = (0..2 * KEPT).map(|_| AlignedBuf::copy_of(&[0xff; 4096])).collect();
        let addresses: Vec<_> = pages.iter().map(|page| page.as_ptr().addr()).collect();
        drop(pages);
        let again: Vec<_> = (0..2 * KEPT).map(|_| AlignedBuf::zeroed(4096)).collect();
        assert!(again.iter().all(|page| page.iter().all(|byte| *byte == 0)));
        let kept = again.iter().filter(|page| addresses.contains(&page.as_ptr().addr()));
        assert!(kept.count() >= KEPT);
        drop(again);
        assert!(AlignedBuf::zeroed(1).iter().all(|byte| *byte == 0));
        assert_eq!(*AlignedBuf::copy_of(&[7; 100]), [7; 100]);
    }
}
