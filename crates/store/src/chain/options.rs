//! The parts of a chain and its options.

use std::time::Duration;

use uuid::Uuid;

use super::{Cleaning, Growth, Placement};
use crate::device::DeviceRef;

/// A link's identity and device.
#[derive(Clone, Debug)]
pub struct Link {
    /// The identity in the label.
    pub id: Uuid,
    /// The device of its segments, from byte 0 on.
    pub device: DeviceRef,
}

/// The devices of a chain.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The links: a new chain gets them in this order, the label of an existing one has the order.
    pub links: Vec<Link>,
    /// The map area.
    pub map: DeviceRef,
    /// The link whose device holds the map area too: one flush then covers both.
    pub map_link: Option<Uuid>,
    /// An SSD for the tail cache.
    pub tail_cache: Option<DeviceRef>,
    /// An SSD for the body cache.
    pub body_cache: Option<DeviceRef>,
}

/// A chain's behaviour at run time.
#[derive(Clone, Debug)]
pub struct Options {
    /// RAM of the tail cache in blocks.
    pub tail_cache_blocks: usize,
    /// RAM of the body cache in blocks; 0 without an SSD means no body cache.
    pub body_cache_blocks: usize,
    /// How far the caches grow while the machine has memory to spare; `None` for not at all.
    pub growth: Option<Growth>,
    /// Writes that no caller syncs become durable after this long.
    pub commit_interval: Duration,
    /// Bytes that may wait for their device before writers have to; at least 2 MiB count. Cleaning stops at
    /// half of it: blocks at the tail are written in order, so users keep at least half of the tail's rate.
    pub dirty_bytes: usize,
    /// How long a read that has to go to the tail's drive may wait for further reads to join its batch, while
    /// the log writes without a pause; zero sends each read at once. Some 100 ms suit rotational disks, and
    /// zero other drives. See `turns`.
    pub tail_read_wait: Duration,
    /// Whether the cleaner starts by itself, before writers have to wait for it.
    pub auto_clean: bool,
    /// Map sectors of log after which a checkpoint is written: recovery reads at most that many, besides the
    /// checkpoint and the rest of the segments that the logs are in.
    pub checkpoint_sectors: u32,
    /// Writes that change less than this many bytes of a block, heads included, share physical blocks; 0
    /// gives each a block of its own. See `minilog`.
    pub mini_bytes: usize,
    /// Blocks written in part that may wait in RAM for a block of their own before a checkpoint settles them;
    /// at twice as many, writers wait.
    pub mini_slots: usize,
    /// Mini-log blocks after which a checkpoint is written: recovery reads that many.
    pub mini_blocks: u64,
    /// Blocks of which [`please_cache`](crate::block::Hints::please_cache) keeps the newest
    /// content in RAM.
    pub please_cache_blocks: usize,
    /// Whether the chain is only read, over devices that keep writes in memory: it refuses changes, and
    /// neither cleans nor writes checkpoints, which would fill that memory.
    pub read_only: bool,
    /// Whether the chain follows another one: its versions are given, and users' changes are refused.
    pub follow: bool,
    /// Whether [`Options::follow`] is as the label says: for a task that changes devices, and nothing that is stored on them.
    pub as_labelled: bool,
    /// Deltas that may follow a base in the checkpoint area; a full half ends them earlier.
    pub max_deltas: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            tail_cache_blocks: 16 * 1024,
            body_cache_blocks: 0,
            growth: None,
            commit_interval: Duration::from_secs(1),
            dirty_bytes: 64 << 20,
            tail_read_wait: Duration::ZERO,
            auto_clean: true,
            checkpoint_sectors: 1200,
            mini_bytes: 1536,
            mini_slots: 16 * 1024,
            mini_blocks: 16 * 1024,
            please_cache_blocks: 16 * 1024,
            read_only: false,
            follow: false,
            as_labelled: false,
            max_deltas: 256,
        }
    }
}

/// The speed of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speed {
    /// In step with writers.
    Paced,
    /// As fast as devices take it.
    Full,
}

/// Parameters of a new chain.
#[derive(Clone, Debug)]
pub struct Create {
    /// The volume's identity.
    pub volume: Uuid,
    /// Logical blocks.
    pub blocks: u64,
    /// Blocks in a segment, a multiple of [`super::format::ENTRIES_PER_PAGE`].
    pub segment_blocks: u32,
    /// Maximum number of segments in the map area, including those of links added later.
    pub max_segments: u32,
    /// How segments are cleaned.
    pub cleaning: Cleaning,
    /// Which links the log takes.
    pub placement: Placement,
    /// Whether the chain follows another one, which has the same identity.
    pub follows: bool,
}
