//! Zeros for what was never written.

use std::sync::LazyLock;

use bytes::Bytes;
use thalweg_store::block::BLOCK_SIZE;

/// The source of bytes for holes.
pub(super) static ZEROS: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![0; 64 * BLOCK_SIZE]));

/// Appends so many zeros to buffers.
pub(super) fn push_zeros(buffers: &mut Vec<Bytes>, mut len: u64) {
    while len > 0 {
        let some = len.min(ZEROS.len() as u64);
        buffers.push(ZEROS.slice(..some as usize));
        len -= some;
    }
}
