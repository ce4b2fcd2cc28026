//! Recycled memory for payloads, a block at a time.
//!
//! A payload is received into one run of memory and written to a device from there, but its blocks stay in a
//! cache and are freed one by one. So memory comes in *runs* of aligned 4 KiB frames, and each frame is freed
//! by itself: nothing is copied between a socket and the cache, no block keeps its neighbours alive, and the
//! heap neither fragments nor zeroes memory.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;
use parking_lot::MutexGuard;
use thalweg_env::process::OfEachProcess;

use super::AlignedBuf;
use crate::lock::BriefMutex;

/// Bytes in a block.
pub const BLOCK_SIZE: usize = 4096;
/// Bytes in a frame: a block.
const FRAME: usize = BLOCK_SIZE;
/// Frames in a piece of memory, and the longest run.
const PIECE_FRAMES: usize = 256;
/// Pieces that are searched for a run before more memory is allocated.
const NEAR: usize = 4;
/// With fewer pieces, memory is allocated without a search.
const FEW_PIECES: usize = 64;
/// Pieces without a frame in use that are kept for later.
const SPARE_PIECES: usize = 32;

static POOLS: OfEachProcess<BriefMutex<Pool>> = OfEachProcess::new(BriefMutex::new(Pool::new()));

/// The pool of this process.
fn pool() -> MutexGuard<'static, Pool> {
    POOLS.get().0.lock()
}

/// Memory in runs of frames. Its initial content is arbitrary, but initialised.
#[derive(Debug, Default)]
pub struct FrameBuf {
    runs: Vec<Run>,
    len: usize,
}

/// A run of frames: contiguous memory with one owner.
struct Run {
    start: NonNull<u8>,
    piece: u32,
    first: u32,
    count: u32,
    /// The process whose pool it is of.
    process: u32,
}

// SAFETY: a run owns its frames' bytes, as a Box does.
unsafe impl Send for Run {}
// SAFETY: shared access gives only shared slices.
unsafe impl Sync for Run {}

impl FrameBuf {
    /// Memory for `len` bytes.
    pub fn new(len: usize) -> FrameBuf {
        let mut runs = Vec::with_capacity(1);
        let mut left = len.div_ceil(FRAME);
        let mut pool = pool();
        while left > 0 {
            let run = pool.take(left.min(PIECE_FRAMES));
            left -= run.count as usize;
            runs.push(run);
        }
        FrameBuf { runs, len }
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> FrameBuf {
        let mut buffer = FrameBuf::new(bytes.len());
        let mut at = 0;
        while at < bytes.len() {
            let room = buffer.from_mut(at);
            let count = room.len();
            room.copy_from_slice(&bytes[at..at + count]);
            at += count;
        }
        buffer
    }

    /// A copy of a block, or of less, in memory of its own: a slice of a larger buffer would keep all of that
    /// buffer alive for as long as the block is kept.
    pub fn copy_block(block: &[u8]) -> Bytes {
        debug_assert!(block.len() <= FRAME);
        FrameBuf::copy_of(block).into_blocks().pop().unwrap_or_default()
    }

    /// Returns the memory of all free frames to the system, and keeps their addresses. For a cache that has
    /// become smaller: its blocks are spread over pieces of memory that others still use.
    pub fn release_memory() {
        let mut at = 0;
        // A piece at a time, so that no allocation waits for long.
        while pool().release_piece(at) {
            at += 1;
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether its length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The contiguous memory from byte `at` on; empty at the end.
    pub fn from_mut(&mut self, at: usize) -> &mut [u8] {
        let (len, mut start) = (self.len, 0);
        for run in &mut self.runs {
            let end = (start + run.len()).min(len);
            if at < end {
                return &mut run[at - start..end - start];
            }
            start = end;
        }
        &mut []
    }

    /// The content as blocks, each with memory of its own; the last one may be shorter.
    pub fn into_blocks(self) -> Vec<Bytes> {
        let mut left = self.len;
        let mut blocks = Vec::with_capacity(self.len.div_ceil(FRAME));
        for run in self.runs {
            for frame in run.into_frames() {
                let block = Bytes::from_owner(frame);
                let len = left.min(FRAME);
                blocks.push(if len == FRAME { block } else { block.slice(..len) });
                left -= len;
            }
        }
        blocks
    }
}

impl Run {
    fn into_frames(self) -> impl Iterator<Item = Run> {
        let whole = std::mem::ManuallyDrop::new(self);
        (0..whole.count).map(move |number| Run {
            // SAFETY: the frame lies within the run, which is in one allocation.
            start: unsafe { whole.start.add(number as usize * FRAME) },
            piece: whole.piece,
            first: whole.first + number,
            count: 1,
            process: whole.process,
        })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let (pool, process) = POOLS.get();
        // In a child, memory of the parent's pool stays taken.
        if process == self.process {
            pool.lock().give(self.piece, self.first as usize, self.count as usize);
        }
    }
}

impl Deref for Run {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the pool keeps the piece while one of its frames is in use, its bytes are initialised, and
        // the run owns its frames.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count as usize * FRAME) }
    }
}

impl DerefMut for Run {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and access is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count as usize * FRAME) }
    }
}

impl AsRef<[u8]> for Run {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({} frames of piece {})", self.count, self.piece)
    }
}

/// Allocates runs.
struct Pool {
    /// The pieces; a freed piece leaves an empty slot.
    pieces: Vec<Option<Piece>>,
    /// The empty slots.
    vacant: Vec<u32>,
    /// Where the search for the next run starts: runs that were allocated together are freed together.
    piece: usize,
    frame: usize,
    /// Frames in use.
    taken: usize,
    /// Pieces without a frame in use.
    idle: usize,
}

struct Piece {
    start: NonNull<u8>,
    // Keeps the frames' memory alive; accessed only through runs.
    _memory: AlignedBuf,
    taken: [bool; PIECE_FRAMES],
    count: usize,
}

// SAFETY: the pointer is to memory that the piece owns.
unsafe impl Send for Piece {}

impl Default for Pool {
    fn default() -> Pool {
        Pool::new()
    }
}

impl Pool {
    const fn new() -> Pool {
        Pool { pieces: Vec::new(), vacant: Vec::new(), piece: 0, frame: 0, taken: 0, idle: 0 }
    }

    /// A run of `count` frames, or of fewer if the memory is fragmented.
    fn take(&mut self, count: usize) -> Run {
        let held = self.pieces.len() - self.vacant.len();
        let near = self.find(count, NEAR);
        let found = near.or_else(|| {
            // As many frames as are in use may be free in runs that are too short, but no more.
            let wasteful = held > FEW_PIECES && held * PIECE_FRAMES > 2 * (self.taken + count);
            wasteful.then(|| self.longest(count)).flatten()
        });
        let (piece, first, count) = found.unwrap_or_else(|| (self.grow(), 0, count));
        self.mark(piece, first, count)
    }

    /// A free run of `count` frames, looked for in up to `pieces` pieces from the cursor on.
    fn find(&self, count: usize, pieces: usize) -> Option<(usize, usize, usize)> {
        let all = self.pieces.len();
        let mut from = self.frame;
        for step in 0..pieces.min(all) {
            let at = (self.piece + step) % all;
            if let Some(piece) = &self.pieces[at]
                && piece.count + count <= PIECE_FRAMES
                && let Some((first, _)) = piece.runs(from).find(|(_, len)| *len >= count)
            {
                return Some((at, first, count));
            }
            from = 0;
        }
        None
    }

    /// The first free run of `count` frames anywhere, else the longest one.
    fn longest(&self, count: usize) -> Option<(usize, usize, usize)> {
        let mut best = None;
        for (at, piece) in self.pieces.iter().enumerate() {
            let Some(piece) = piece.as_ref().filter(|piece| piece.count < PIECE_FRAMES) else {
                continue;
            };
            for (first, len) in piece.runs(0) {
                let len = len.min(count);
                if best.is_none_or(|(_, _, longest)| len > longest) {
                    best = Some((at, first, len));
                }
                if len == count {
                    return best;
                }
            }
        }
        best
    }

    /// A new piece's number.
    fn grow(&mut self) -> usize {
        let mut memory = AlignedBuf::zeroed(PIECE_FRAMES * FRAME);
        let start = NonNull::from(&mut *memory).cast();
        let piece = Piece { start, _memory: memory, taken: [false; PIECE_FRAMES], count: 0 };
        self.idle += 1;
        match self.vacant.pop() {
            Some(at) => {
                self.pieces[at as usize] = Some(piece);
                at as usize
            }
            None => {
                self.pieces.push(Some(piece));
                self.pieces.len() - 1
            }
        }
    }

    fn mark(&mut self, at: usize, first: usize, count: usize) -> Run {
        let piece = self.pieces[at].as_mut().expect("the run was found in this piece");
        piece.taken[first..first + count].fill(true);
        self.idle -= usize::from(piece.count == 0);
        piece.count += count;
        self.taken += count;
        (self.piece, self.frame) = (at, first + count);
        // SAFETY: the frame lies within the piece.
        let start = unsafe { piece.start.add(first * FRAME) };
        let process = POOLS.get().1;
        Run { start, piece: at as u32, first: first as u32, count: count as u32, process }
    }

    fn give(&mut self, at: u32, first: usize, count: usize) {
        let place = &mut self.pieces[at as usize];
        let piece = place.as_mut().expect("a piece stays while one of its frames is out");
        piece.taken[first..first + count].fill(false);
        piece.count -= count;
        self.taken -= count;
        if piece.count > 0 {
            return;
        }
        self.idle += 1;
        if self.idle > SPARE_PIECES {
            *place = None;
            self.vacant.push(at);
            self.idle -= 1;
        }
    }
}

impl Pool {
    /// Returns the memory of the free frames of one piece to the system; false when there is no such piece.
    fn release_piece(&self, at: usize) -> bool {
        let Some(place) = self.pieces.get(at) else { return false };
        for (first, count) in place.iter().flat_map(|piece| piece.runs(0)) {
            let Some(piece) = place else { break };
            // SAFETY: the frames are whole pages of memory that the piece owns and no run refers to. They read as
            // zeros afterwards, so they stay initialised.
            unsafe {
                let start = piece.start.add(first * FRAME).as_ptr();
                libc::madvise(start.cast(), count * FRAME, libc::MADV_DONTNEED);
            }
        }
        true
    }
}

impl Piece {
    /// Free runs from the frame `from` on: first frame and length.
    fn runs(&self, from: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut at = from.min(PIECE_FRAMES);
        std::iter::from_fn(move || {
            let first = at + self.taken[at..].iter().position(|taken| !taken)?;
            let rest = &self.taken[first..];
            let len = rest.iter().position(|taken| *taken).unwrap_or(rest.len());
            at = first + len;
            Some((first, len))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MEMORY_ALIGNMENT;

    #[test]
    fn blocks_keep_what_was_written_and_return_one_by_one() {
        let mut buffer = FrameBuf::new(10 * FRAME + 512);
        let mut at = 0;
        while at < buffer.len() {
            let room = buffer.from_mut(at);
            for (number, byte) in room.iter_mut().enumerate() {
                *byte = ((at + number) / 512) as u8;
            }
            at += room.len();
        }
        let mut blocks = buffer.into_blocks();
        assert_eq!(blocks.len(), 11);
        assert_eq!(blocks[10].len(), 512);
        drop(blocks.remove(3));
        // Another run may take the frame that was freed, but none of those in use.
        let others: Vec<_> = (0..600).map(|_| FrameBuf::copy_of(&[0xee; FRAME])).collect();
        for (number, block) in blocks.iter().enumerate() {
            let number = if number < 3 { number } else { number + 1 };
            assert!(block.as_ptr().addr().is_multiple_of(MEMORY_ALIGNMENT));
            assert!(
                block.iter().enumerate().all(|(at, byte)| *byte == (number * 8 + at / 512) as u8)
            );
        }
        drop(others);
    }

    #[test]
    fn no_frame_is_in_two_runs() {
        let mut pool = Pool::new();
        let mut runs: Vec<Run> = Vec::new();
        let mut out = std::collections::BTreeSet::new();
        let mut draw = 1_u64;
        for _ in 0..20_000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (choice, size) = (draw >> 60, 1 + (draw >> 33) as usize % 64);
            if choice < 8 || runs.is_empty() {
                let run = pool.take(size);
                assert!(run.count as usize <= size);
                for frame in run.first..run.first + run.count {
                    assert!(frame < PIECE_FRAMES as u32 && out.insert((run.piece, frame)));
                }
                runs.push(run);
            } else {
                let run = runs.swap_remove((draw >> 20) as usize % runs.len());
                for frame in run.first..run.first + run.count {
                    assert!(out.remove(&(run.piece, frame)));
                }
                pool.give(run.piece, run.first as usize, run.count as usize);
                std::mem::forget(run);
            }
            assert_eq!(pool.taken, out.len());
        }
        for run in runs.drain(..) {
            pool.give(run.piece, run.first as usize, run.count as usize);
            std::mem::forget(run);
        }
        assert_eq!(pool.taken, 0);
        assert!(pool.pieces.len() - pool.vacant.len() <= SPARE_PIECES);
    }

    #[test]
    fn memory_in_use_is_at_least_half_of_what_is_held() {
        let mut pool = Pool::new();
        let give = |pool: &mut Pool, run: Run| {
            pool.give(run.piece, run.first as usize, run.count as usize);
            std::mem::forget(run);
        };
        // Every second frame stays in use, so that no run of two is free.
        let singles: Vec<Run> = (0..200 * PIECE_FRAMES).map(|_| pool.take(1)).collect();
        let mut kept = Vec::new();
        for (number, run) in singles.into_iter().enumerate() {
            match number % 2 {
                0 => kept.push(run),
                _ => give(&mut pool, run),
            }
        }
        for _ in 0..1000 {
            kept.push(pool.take(32));
        }
        let held = pool.pieces.len() - pool.vacant.len();
        assert!(held * PIECE_FRAMES <= 2 * pool.taken + 33 * PIECE_FRAMES, "{held} pieces");
        for run in kept {
            give(&mut pool, run);
        }
    }
}
