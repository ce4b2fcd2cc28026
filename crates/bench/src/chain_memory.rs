//! `chain-memory`: RAM for each stored block while it has one version (Isotope, 4.2.3), and for each old version of a
//! block that is kept.
//!
//! Real memory: the resident size of the process before and after blocks are written to a chain whose
//! devices keep no blocks. The checksum of each block is in memory.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::Env;
use thalweg_store::block::{BLOCK_SIZE, BlocksExt, Keep, Retained};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options as ChainOptions, Parts};
use thalweg_store::device::{
    Counters, Device, DeviceError, DeviceRef, Geometry, MemoryDevice, Purpose, QueueDepth, Tallies,
    total_len,
};
use uuid::Uuid;

use crate::rig::{self, SEGMENT, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "chain-memory",
    about: "RAM of the index for each stored block",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

/// Blocks that are written at scale 1.
const BLOCKS: f64 = 16e6;
const DEFAULT_SCALE: f64 = 0.5;
/// Transactions on the same blocks before the measurement.
const WARM_UP: u64 = 1000;
/// One in so many blocks is overwritten while old versions are kept.
const OVERWRITTEN: u64 = 4;
/// Blocks in a transaction.
const BATCH: u64 = 240;

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, DEFAULT_SCALE)?;
    let blocks = ((BLOCKS * scale) as u64).max(10_000) / BATCH * BATCH;
    let measured =
        thalweg_sim::run(options.seed, |env| async move { measure(&env, blocks).await })?;
    let mut report = Report::new(ENTRY.name, options.seed);
    let per_block = |bytes: u64| rounded(bytes as f64 / blocks as f64);
    report.figure("scale", scale).figure("blocks", blocks);
    report.figure("ram_bytes_per_block", per_block(measured.allocated));
    report.figure("index_bytes_per_block", per_block(measured.index));
    let per_old = |bytes: u64| rounded(bytes as f64 / measured.old_versions as f64);
    report.figure("old_versions", measured.old_versions);
    report.figure("ram_bytes_per_old_version", per_old(measured.old_allocated));
    report.figure("index_bytes_per_old_version", per_old(measured.old_index));
    Ok(report)
}

struct Measured {
    allocated: u64,
    index: u64,
    /// Blocks that were overwritten while all versions were kept.
    old_versions: u64,
    old_allocated: u64,
    old_index: u64,
}

async fn measure(env: &Env, blocks: u64) -> Result<Measured, BenchError> {
    let segments = 2 * blocks.div_ceil(u64::from(SEGMENT)) as u32 + 16;
    let map = MemoryDevice::new(Chain::map_bytes(SEGMENT, segments));
    touch(&map).await?;
    let size = u64::from(segments) * u64::from(SEGMENT) * BLOCK_SIZE as u64;
    let sink: DeviceRef = Arc::new(Sink { size, counters: Counters::default() });
    let parts = Parts {
        links: vec![Link { id: Uuid::from_u128(100), device: sink }],
        map: Arc::new(map),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: Uuid::from_u128(7),
        blocks,
        segment_blocks: SEGMENT,
        max_segments: segments,
        cleaning: Cleaning::MoveToTail,
        placement: Default::default(),
        follows: false,
    };
    let options = ChainOptions { tail_cache_blocks: 0, ..ChainOptions::default() };
    Chain::create(env, parts.clone(), &create).await.map_err(failed)?;
    let (chain, _) = Chain::open(env, parts, options).await.map_err(failed)?;
    let chain = Arc::new(chain);
    let empty = chain.status().index_bytes;
    // Allocates the buffers of requests in flight, which are no part of the index.
    for _ in 0..WARM_UP {
        chain.apply((0..BATCH).map(|lba| rig::block(lba, 0)).collect()).await.map_err(failed)?;
    }
    chain.checkpoint().await.map_err(failed)?;
    let before = rig::resident()?;
    for first in (0..blocks).step_by(BATCH as usize) {
        let writes = (first..first + BATCH).map(|lba| rig::block(lba, 0)).collect();
        chain.apply(writes).await.map_err(failed)?;
    }
    chain.checkpoint().await.map_err(failed)?;
    let (resident, index) = (rig::resident()?, chain.status().index_bytes);
    let old_versions = blocks / OVERWRITTEN / BATCH * BATCH;
    let retained = Retained::new(env, chain.clone(), Keep::latest(u64::MAX));
    for first in (0..old_versions).step_by(BATCH as usize) {
        let writes = (first..first + BATCH).map(|lba| rig::block(lba, 1)).collect();
        retained.apply(writes).await.map_err(failed)?;
    }
    chain.checkpoint().await.map_err(failed)?;
    Ok(Measured {
        allocated: resident.saturating_sub(before),
        index: index - empty,
        old_versions,
        old_allocated: rig::resident()?.saturating_sub(resident),
        old_index: chain.status().index_bytes - index,
    })
}

/// Writes all of a device, so that its memory is allocated before the measurement.
async fn touch(device: &MemoryDevice) -> Result<(), BenchError> {
    const PIECE: u64 = 1 << 20;
    let size = device.geometry().size;
    let zeros = Bytes::from(vec![0; PIECE as usize]);
    for at in (0..size).step_by(PIECE as usize) {
        let len = PIECE.min(size - at) as usize;
        device.write(at, vec![zeros.slice(..len)], Purpose::Map).await.map_err(failed)?;
    }
    Ok(())
}

/// A device that drops all writes: it reads as zeros.
#[derive(Debug)]
struct Sink {
    size: u64,
    counters: Counters,
}

#[async_trait]
impl Device for Sink {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, sector: 512 }
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry().check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        Ok(Bytes::from(vec![0; len]))
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        self.geometry().check(offset, total_len(&data))?;
        let _queued = self.counters.write(purpose, total_len(&data));
        Ok(())
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)
    }

    fn queue_depth(&self) -> QueueDepth {
        self.counters.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.counters.tallies()
    }

    fn name(&self) -> String {
        "sink".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_takes_what_its_slots_take() {
        let report = run(&Options { scale: Some(0.02), ..Options::default() }).unwrap();
        let index = report.number("index_bytes_per_block").unwrap();
        assert!((8.0..8.5).contains(&index), "{index}");
        let old = report.number("index_bytes_per_old_version").unwrap();
        // Two versions of 24 bytes in a table that is at least half full, and a place in the queue.
        assert!((48.0..240.0).contains(&old), "{old}");
    }
}
