//! Recycled memory for cached blocks.
//!
//! A block that enters the cache is copied: a slice of a larger shared buffer would keep all of
//! that buffer alive for as long as the block is cached. Copies go into aligned 4 KiB frames cut
//! from large pieces, so that the SSD takes them by direct I/O and the heap does not fragment.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::block::BLOCK_SIZE;
use crate::device::AlignedBuf;

/// Frames are allocated this many at a time.
const PIECE_FRAMES: usize = 256;

/// Where frames come from and return to. Frames are never given back to the heap while the pool
/// or a frame lives.
#[derive(Default)]
pub(super) struct FramePool {
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    free: Vec<NonNull<u8>>,
    // Keeps the frames' memory alive; touched only through the frames' pointers.
    pieces: Vec<AlignedBuf>,
}

// SAFETY: the pointers are to memory that the pool owns, and each is in one place at a time: in
// `free`, or in the one `Frame` that may read and write there.
unsafe impl Send for PoolState {}

impl FramePool {
    /// A copy of `block`, which is [`BLOCK_SIZE`] bytes, in a frame that returns here when the last
    /// clone is dropped.
    pub(super) fn copy_of(self: &Arc<Self>, block: &[u8]) -> Bytes {
        assert_eq!(block.len(), BLOCK_SIZE);
        let frame = Frame { start: self.state.lock().take(), pool: Arc::clone(self) };
        // SAFETY: `start` points to BLOCK_SIZE bytes that nobody else reads or writes, and `block`
        // cannot overlap them because it is not from this frame.
        unsafe {
            std::ptr::copy_nonoverlapping(block.as_ptr(), frame.start.as_ptr(), BLOCK_SIZE);
        }
        Bytes::from_owner(frame)
    }
}

impl PoolState {
    fn take(&mut self) -> NonNull<u8> {
        if let Some(frame) = self.free.pop() {
            return frame;
        }
        let mut piece = AlignedBuf::zeroed(PIECE_FRAMES * BLOCK_SIZE);
        let mut frames = piece.chunks_exact_mut(BLOCK_SIZE).map(|it| NonNull::from(it).cast());
        let first = frames.next().expect("a piece has frames");
        self.free.extend(frames.rev());
        self.pieces.push(piece);
        first
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        let frames = state.pieces.len() * PIECE_FRAMES;
        f.debug_struct("FramePool").field("frames", &frames).finish_non_exhaustive()
    }
}

struct Frame {
    start: NonNull<u8>,
    pool: Arc<FramePool>,
}

// SAFETY: a frame owns its BLOCK_SIZE bytes alone, as a Box does.
unsafe impl Send for Frame {}
// SAFETY: shared access gives only shared slices.
unsafe impl Sync for Frame {}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `start` is valid for BLOCK_SIZE initialised bytes while `pool` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), BLOCK_SIZE) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.pool.state.lock().free.push(self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MEMORY_ALIGNMENT;

    #[test]
    fn frames_are_aligned_apart_and_recycled() {
        let pool = Arc::new(FramePool::default());
        let blocks: Vec<Bytes> =
            (0..PIECE_FRAMES + 1).map(|i| pool.copy_of(&vec![i as u8; BLOCK_SIZE])).collect();
        for (i, block) in blocks.iter().enumerate() {
            assert!(block.as_ptr().addr().is_multiple_of(MEMORY_ALIGNMENT));
            assert!(block.iter().all(|byte| *byte == i as u8));
        }
        let clone = blocks[0].clone();
        drop(blocks);
        assert_eq!(pool.state.lock().free.len(), 2 * PIECE_FRAMES - 1);
        assert_eq!(clone[..], [0; BLOCK_SIZE]);
        drop(clone);
        for _ in 0..3 * PIECE_FRAMES {
            drop(pool.copy_of(&[9; BLOCK_SIZE]));
        }
        assert_eq!(pool.state.lock().pieces.len(), 2);
    }
}
