//! The bytes of a write, copied out of a caller's buffer.

use bytes::Bytes;
use thalweg_store::block::BLOCK_SIZE;

/// Copies `data`, which is written at `offset`, into one buffer for each block of the file: caches count blocks, and
/// a block that lies in the buffer of a whole request would keep all of it in memory.
pub fn copy_by_blocks(offset: u64, data: &[u8]) -> Vec<Bytes> {
    let to_boundary = BLOCK_SIZE - (offset % BLOCK_SIZE as u64) as usize;
    let (first, rest) = data.split_at(to_boundary.min(data.len()));
    std::iter::once(first).chain(rest.chunks(BLOCK_SIZE)).map(Bytes::copy_from_slice).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_buffer_reaches_into_two_blocks(
            offset in 0..3 * BLOCK_SIZE as u64,
            len in 0..5 * BLOCK_SIZE,
        ) {
            let data: Vec<u8> = (0..len).map(|at| at as u8 ^ (at >> 8) as u8).collect();
            let copied = copy_by_blocks(offset, &data);
            prop_assert_eq!(copied.concat(), data);
            let block = BLOCK_SIZE as u64;
            let mut at = offset;
            for buffer in copied.iter().filter(|buffer| !buffer.is_empty()) {
                let end = at + buffer.len() as u64;
                prop_assert_eq!(at / block, (end - 1) / block);
                at = end;
            }
        }
    }
}
