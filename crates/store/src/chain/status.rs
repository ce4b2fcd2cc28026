//! A chain's state in numbers.

use uuid::Uuid;

use super::cache::CacheStats;
use super::counts::CountStatus;
use super::minilog::MiniCounts;
use super::stages::WaitStatus;
use super::{Cleaning, Inner, Placement, Snapshot};
use crate::device::Tallies;
use crate::latency::{SlowRequest, StageStatus};

/// A chain's state in numbers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Status {
    /// Logical blocks.
    pub blocks: u64,
    /// Physical blocks of live versions, and of records.
    pub live_blocks: u64,
    /// Records of discards: physical blocks of which only the map entry is needed.
    pub discard_records: u64,
    /// Physical blocks on all links.
    pub physical_blocks: u64,
    /// Maximum live blocks before writes are refused.
    pub capacity_blocks: u64,
    /// The newest version.
    pub version: u64,
    /// The version from which on all can be read.
    pub oldest_version: u64,
    /// The newest version that survives a crash.
    pub durable_version: u64,
    /// Segments that may be written.
    pub free_segments: u64,
    /// Segments on all links.
    pub segments: u64,
    /// Blocks in a segment.
    pub segment_blocks: u32,
    /// Logical blocks that have several versions.
    pub several_versions: u64,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// How segments are cleaned.
    pub cleaning: Cleaning,
    /// Which links the log takes.
    pub placement: Placement,
    /// Counts of mini-logs.
    pub minis: MiniCounts,
    /// Blocks to keep in memory because of `please_cache`.
    pub wished_blocks: u64,
    /// Why writes are refused, if they are.
    pub poisoned: Option<String>,
    /// Whether blocks of which no copy is right were found, and no scrub has found none since.
    pub damaged: bool,
    /// The links, in order.
    pub links: Vec<LinkStatus>,
    /// Named snapshots.
    pub snapshots: Vec<Snapshot>,
    /// What happened since the chain was opened.
    pub counts: CountStatus,
    /// How long the stages of writes, flushes and checkpoints took.
    pub stages: Vec<StageStatus>,
    /// The slowest flushes, the slowest one first.
    pub slow_flushes: Vec<SlowRequest>,
    /// Waiting writers by reason.
    pub waits: Vec<WaitStatus>,
    /// The tail cache.
    pub tail_cache: CacheStats,
    /// The body cache.
    pub body_cache: Option<CacheStats>,
    /// Requests to the map area.
    pub map_io: Tallies,
}

/// One link in numbers.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LinkStatus {
    /// Its identity.
    pub id: Uuid,
    /// Its device.
    pub device: String,
    /// Whether the log's tail is on it.
    pub tail: bool,
    /// Whether the link is being removed.
    pub leaving: bool,
    /// Its segments.
    pub segments: u64,
    /// Its free segments.
    pub free_segments: u64,
    /// Live blocks on it.
    pub live_blocks: u64,
    /// Requests to its device.
    pub io: Tallies,
}

/// See [`super::Chain::status`].
pub(super) fn of(inner: &Inner) -> Status {
    let state = inner.state.lock();
    let tail = state.tail_link();
    let links = state.segments.links.iter().enumerate().map(|(number, link)| {
        let ids = link.base..link.base + link.count;
        LinkStatus {
            id: link.id,
            device: link.device.name(),
            tail: number == tail,
            leaving: link.leaving,
            segments: u64::from(link.count),
            free_segments: link.free.len() as u64,
            live_blocks: ids.map(|id| u64::from(state.segments.get(id).live)).sum(),
            io: link.device.tallies(),
        }
    });
    Status {
        blocks: state.index.blocks(),
        live_blocks: state.segments.live(),
        discard_records: state.index.records().count() as u64,
        physical_blocks: u64::from(state.segments.total()) * u64::from(inner.segment_blocks),
        capacity_blocks: state.capacity(),
        version: state.version.0,
        oldest_version: state.holds.floor().unwrap_or(state.version).0,
        durable_version: state.committed.0,
        free_segments: state.segments.free_count() as u64,
        segments: u64::from(state.segments.total()),
        segment_blocks: inner.segment_blocks,
        several_versions: state.index.several().0 as u64,
        index_bytes: state.index.memory(),
        cleaning: state.label.cleaning,
        placement: state.label.placement,
        minis: MiniCounts { slots: state.slots.len() as u64, ..state.minis.counts },
        wished_blocks: state.wishes.len() as u64,
        poisoned: state.poison.as_ref().map(ToString::to_string),
        damaged: inner.counts.damage.is_found(),
        links: links.collect(),
        snapshots: state.label.snapshots.clone(),
        counts: inner.counts.status(),
        stages: inner.stages.status(),
        slow_flushes: inner.stages.slow_syncs(),
        waits: inner.stages.waits(),
        tail_cache: inner.tail_cache.stats(),
        body_cache: inner.body_cache.as_ref().map(|cache| cache.stats()),
        map_io: inner.map.tallies(),
    }
}
