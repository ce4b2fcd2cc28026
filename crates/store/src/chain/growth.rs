//! The RAM of the caches: it grows into memory that the machine does not need, and releases it.
//!
//! A task looks at the machine's memory twice a second. Half of what is available beyond a reserve may be filled
//! until the next look, so several volumes and programs that do the same settle beside each other. When less than
//! the reserve is available, the caches release what is missing; and when tasks wait for memory, a quarter. They
//! keep the configured size in any case. A volume with several links gives each of its two caches half.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::memory::{MemorySource, MemoryState, SystemMemory};

use super::Inner;
use super::cache::Cache;
use crate::block::BLOCK_SIZE;
use crate::device::FrameBuf;

/// Time between two looks at the machine's memory.
const PERIOD: Duration = Duration::from_millis(500);
/// The part of the machine's memory that the caches leave available, within these bounds in bytes.
const RESERVED_PART: u64 = 8;
const RESERVE: (u64, u64) = (128 << 20, 4 << 30);
/// The part of the machine's memory to which the caches grow by default.
const DEFAULT_PART: u64 = 2;
/// The part that the caches release when tasks wait for memory.
const RELEASED_PART: u64 = 4;
/// Blocks released at a time before free memory returns to the system.
const RELEASED: usize = 1024;

/// How far the caches of a chain may grow beyond their configured size.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The upper bound in bytes, of both caches together; half of the machine's memory if `None`.
    pub most: Option<u64>,
    /// Says how much memory there is.
    pub source: Arc<dyn MemorySource>,
}

impl Growth {
    /// Growth into the memory of this machine, up to half of it.
    pub fn of_machine() -> Growth {
        Growth { most: None, source: Arc::new(SystemMemory::new()) }
    }

    /// The upper bound in blocks.
    pub(super) fn most_blocks(&self) -> usize {
        let half = || self.source.look().map_or(0, |memory| memory.total / DEFAULT_PART);
        (self.most.unwrap_or_else(half) / BLOCK_SIZE as u64) as usize
    }
}

/// Bytes that the caches may take, given what they take now.
fn target(memory: MemoryState, in_use: u64) -> u64 {
    let reserve = (memory.total / RESERVED_PART).clamp(RESERVE.0, RESERVE.1);
    let target = match memory.available.checked_sub(reserve) {
        Some(free) => in_use + free / 2,
        None => in_use.saturating_sub(reserve - memory.available),
    };
    match memory.is_short {
        true => target.min(in_use - in_use / RELEASED_PART),
        false => target,
    }
}

/// Resizes the caches until the chain is dropped.
pub(super) async fn run_growth(inner: Arc<Inner>) {
    let Some(growth) = inner.options.growth.clone() else { return };
    let caches: Vec<Arc<Cache>> =
        std::iter::once(&inner.tail_cache).chain(&inner.body_cache).cloned().collect();
    loop {
        inner.env.sleep(PERIOD).await;
        let Some(memory) = growth.source.look() else { continue };
        let in_use: u64 = caches.iter().map(|cache| cache.stats().ram_blocks).sum();
        let blocks = target(memory, in_use * BLOCK_SIZE as u64) / BLOCK_SIZE as u64;
        let mut released = false;
        for cache in &caches {
            cache.resize(blocks as usize / caches.len());
            while cache.shrink(RELEASED) {
                released = true;
                tokio::task::yield_now().await;
            }
        }
        if released {
            FrameBuf::release_memory();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn half_of_what_is_beyond_the_reserve_may_be_filled() {
        let memory = |available| MemoryState { total: 16 * GIB, available, is_short: false };
        assert_eq!(target(memory(10 * GIB), GIB), 5 * GIB);
        assert_eq!(target(memory(2 * GIB), GIB), GIB);
        assert_eq!(target(memory(GIB), 3 * GIB), 2 * GIB);
        assert_eq!(target(memory(0), GIB), 0);
        let short = MemoryState { is_short: true, ..memory(10 * GIB) };
        assert_eq!(target(short, 4 * GIB), 3 * GIB);
    }
}
