//! A log chained over drives, with a multi-version index (Gecko; the store under Isotope).
//!
//! Physical space is the concatenation of *links*, cut into *segments*. Writes go to the tail and
//! nowhere else; reads and cleaning go to the body, so that neither disturbs the drive that writes.
//!
//! # The write path
//!
//! 1. [`Chain::apply`](crate::block::BlocksExt::apply) gives the transaction its version, a place in the
//!    users' log (`stream`), map entries and index slots (`index`): all of it in memory and under one lock.
//!    It is visible now. A write that changes little of its block shares a physical block with others
//!    (`minilog`).
//! 2. Queued blocks go to the tail link in large runs (`queue`).
//! 3. A *round* (`commit`) makes them durable: data, flush, map sectors, flush. A short round
//!    writes both at once and flushes once; recovery then checks the contents of the blocks above
//!    the last `durable` position. Concurrent callers of `sync` share a round.
//! 4. A checkpoint (`checkpoint`) now and then bounds the log that recovery (`recovery`) reads.
//! 5. The cleaner (`clean`) frees segments of the body.
//!
//! # Invariants
//!
//! 1. The index refers to a block only after its entry was appended. Until a device has the content of a
//!    block, readers find it in `State::pending`, or, for a block that only mini-logs have, in
//!    `State::slots`.
//! 2. A segment is written again only after a checkpoint that does not refer to it has become durable. So
//!    every entry that a replay from the newest checkpoint reads is still in place. A checkpoint refers to no
//!    slots of mini-logs: it first gives such blocks places of their own.
//! 3. Map entries of a log become durable in the log's order.
//! 4. The map has an entry for everything that the index refers to, including discards: the entry of a
//!    discard counts as live as long as any block is absent because of it. So the map alone rebuilds the
//!    index (`rebuild`).
//! 5. After a failed write or flush nothing is acknowledged: the store is poisoned, and serves reads until it
//!    is reopened.
//!
//! # Locks
//!
//! A task takes them in this order only:
//!
//! 1. `label_lock`, for changes of the label;
//! 2. `cleaning_lock`, for moves of live blocks;
//! 3. `checkpoints`, for the checkpoint area;
//! 4. `line`, held by the first writer that waits for room. With it held, a writer takes `state` alone;
//! 5. `rounds` or `state`, neither under the other and never across an await. All else that changes in memory
//!    is under `state`;
//! 6. the locks within the caches, the latency histograms and [`Env`], which take no other.
//!
//! `Freeze` keeps users from writing without a lock held: it counts in `State::frozen`.

pub mod cache;
mod caches;
mod checkpoint;
mod clean;
mod commit;
mod contract;
mod copies;
mod counts;
pub mod dump;
mod fence;
mod follow;
mod followed;
pub mod format;
#[doc(hidden)]
pub mod fuzz;
mod growth;
mod history;
mod holding;
mod index;
mod label;
mod lineage;
mod locate;
mod log;
pub mod minilog;
mod options;
mod promote;
mod queue;
mod read;
mod rebuild;
mod recovered;
mod recovery;
mod replace;
mod rescue;
mod resize;
mod roles;
mod room;
mod scrub;
mod sector;
mod segments;
mod snapshot;
mod stages;
mod state;
mod status;
mod stream;
mod synced;
mod tap;
mod turns;
mod wishes;
mod write;
mod yielding;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_env::{Env, Task};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::block::{Epoch, Hold, Lba, StoreError, Version};
pub use crate::block::{NoPosition, Position, Relation};
use crate::device::{DeviceError, DeviceRef};
use crate::lock::BriefMutex;
use crate::rate::Rate;
use cache::Cache;
pub use counts::CountStatus;
use counts::Counts;
pub use follow::{Attached, Changed};
pub use followed::{BEFORE_COPY, Followed};
pub use format::{Cleaning, Placement};
pub use growth::Growth;
pub use history::{Fence, History, Timeline};
use label::Layout;
pub use label::{Cut, Label, Shrink, Snapshot, Void};
pub use minilog::MiniCounts;
use options::Speed;
pub use options::{Create, Link, Options, Parts};
pub use rebuild::{LostEntries, Rebuild, RebuildReport};
pub use recovered::Recovered;
pub use rescue::Rescue;
pub use scrub::ScrubReport;
pub use snapshot::SnapshotUse;
pub use stages::WaitStatus;
use state::State;
pub use status::{LinkStatus, Status};
pub use tap::{Change, Tap};
pub use yielding::YieldingHold;

/// Errors of making, opening or changing a chain.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChainError {
    /// The map device holds no whole label.
    #[error(
        "no volume label on the map device: it is not part of a volume, or both copies are damaged"
    )]
    NoLabel,
    /// The volume was written by a newer program.
    #[error(
        "the volume has format {0}, and this program knows {known}; use a newer one",
        known = format::SHRINK_FORMAT
    )]
    NewerFormat(u32),
    /// A link's device is absent.
    #[error("link {number} ({id}) is missing; attach its device, or give its path")]
    MissingLink {
        /// The link's place in the chain, from 0.
        number: usize,
        /// Its identity.
        id: Uuid,
    },
    /// The request is invalid for this chain.
    #[error("{0}")]
    Invalid(String),
    /// The volume is a replica, and was to be written by users.
    #[error("the volume follows another one, and what is stored on it comes from there alone")]
    Follows,
    /// A replica of the volume has become its primary.
    #[error(
        "the volume was fenced: a replica of it was promoted (term {term}), and goes on from {from}. Open it read-only; \
         the state that it had is its snapshot {snapshot}"
    )]
    Fenced {
        /// The new primary's term.
        term: u32,
        /// The position from which that one went on, or the version.
        from: String,
        /// The snapshot of the newest state.
        snapshot: String,
    },
    /// Data that recovery needs is damaged.
    #[error("{0}")]
    Damaged(String),
    /// A rebuild would lose entries of the map that were durable.
    #[error(
        "the map is damaged: {} parts of it, with the entries of {} blocks, are lost",
        .0.lost.len(),
        .0.lost_blocks
    )]
    Loss(Box<RebuildReport>),
    /// The block store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A chain: see the [module](self).
pub struct Chain {
    inner: Arc<Inner>,
    tasks: Mutex<Vec<Task<()>>>,
}

struct Inner {
    env: Env,
    options: Options,
    volume: Uuid,
    /// The sequence of the label that opening wrote: no other opening that commits anything has the same.
    epoch: Epoch,
    tag: u32,
    layout: Layout,
    segment_blocks: u32,
    /// Unit in which the map device writes whole.
    map_unit: usize,
    map: DeviceRef,
    map_link: Option<Uuid>,
    state: BriefMutex<State>,
    /// The newest durable version, readable without the lock of `state`.
    committed: AtomicU64,
    gate: yielding::WriterGate,
    /// Logical blocks, as in the index, readable without the lock of `state`.
    blocks: AtomicU64,
    rounds: BriefMutex<commit::Rounds>,
    checkpoints: tokio::sync::Mutex<checkpoint::Area>,
    /// Serializes changes of the label.
    label_lock: tokio::sync::Mutex<()>,
    /// Serializes moves of live blocks.
    cleaning_lock: tokio::sync::Mutex<()>,
    /// Of a follower.
    of_primary: copies::OfPrimary,
    tail_cache: Arc<Cache>,
    body_cache: Option<Arc<Cache>>,
    /// Room became free: the first writer in the queue and the cleaner look again.
    room: Notify,
    line: write::Line,
    /// A batch reached its device, or a batch of reads at the tail ended.
    written: Notify,
    /// A batch of reads at the tail's drive was sent, or ended.
    turn: Notify,
    queue_kick: [Notify; 2],
    clean_kick: Notify,
    /// Writers ran up a debt of blocks to move.
    clean_turn: Notify,
    checkpoint_kick: Notify,
    role_kick: Notify,
    /// The measured rates of the links' devices, for each log.
    rates: [Rate; 2],
    /// The measured rate of cleaning's reads.
    clean_reads: Rate,
    stages: stages::Stages,
    counts: Counts,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("volume", &self.inner.volume).finish_non_exhaustive()
    }
}

impl Chain {
    /// Bytes of the map area of such a chain.
    pub fn map_bytes(segment_blocks: u32, max_segments: u32) -> u64 {
        recovery::layout_for(segment_blocks, max_segments).total()
    }

    /// Writes the label of a new, empty chain; the former content of the devices is lost.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] when sizes do not fit each other.
    pub async fn create(env: &Env, parts: Parts, create: &Create) -> Result<(), ChainError> {
        recovery::create(env, parts, create).await
    }

    /// Opens a chain, recovering it if it was not closed, and says what recovery found.
    ///
    /// # Errors
    /// [`ChainError::MissingLink`], [`ChainError::NewerFormat`], [`ChainError::Damaged`] …
    pub async fn open(
        env: &Env,
        parts: Parts,
        options: Options,
    ) -> Result<(Chain, Recovered), ChainError> {
        recovery::open(env, parts, options).await
    }

    fn start(inner: Arc<Inner>) -> Chain {
        if inner.options.read_only {
            return Chain { inner, tasks: Mutex::default() };
        }
        let env = inner.env.clone();
        let tasks = vec![
            env.spawn(queue::run_writer(inner.clone(), stream::USERS)),
            env.spawn(queue::run_writer(inner.clone(), stream::BODY)),
            env.spawn(commit::run_timer(inner.clone())),
            env.spawn(clean::run_cleaner(inner.clone())),
            env.spawn(checkpoint::run_checkpoints(inner.clone())),
            env.spawn(roles::run_roles(inner.clone())),
            env.spawn(growth::run_growth(inner.clone())),
        ];
        Chain { inner, tasks: Mutex::new(tasks) }
    }

    /// Makes everything durable, writes a checkpoint and stops the chain's tasks.
    ///
    /// # Errors
    /// Device errors; everything that `sync` acknowledged is safe all the same.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.inner.poison_check()?;
        let result = match self.inner.options.read_only {
            true => Ok(()),
            false => {
                self.inner.record_damage().await;
                checkpoint::write(&self.inner).await
            }
        };
        self.stop();
        self.inner.poison("the volume was closed");
        result
    }

    /// Writes a checkpoint now.
    ///
    /// # Errors
    /// Device errors; the store is then poisoned.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        self.inner.check_writable()?;
        checkpoint::write(&self.inner).await
    }

    /// Cleans up to `segments` segments of the body now, oldest first, whatever their live share is; returns
    /// how many were cleaned. They are writable after the next checkpoint.
    ///
    /// # Errors
    /// Device errors.
    pub async fn clean(&self, segments: usize) -> Result<usize, StoreError> {
        self.inner.check_writable()?;
        clean::clean_some(&self.inner, segments).await
    }

    /// The chain's state in numbers.
    pub fn status(&self) -> Status {
        status::of(&self.inner)
    }

    /// The present label.
    pub fn label(&self) -> Label {
        self.inner.state.lock().label.clone()
    }
}

impl Chain {
    /// Ends the tasks, and a round that its callers gave up: both keep the devices open.
    fn stop(&self) {
        self.tasks.lock().clear();
        let rounds = std::mem::take(&mut *self.inner.rounds.lock());
        drop(rounds);
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    /// The guard of a hold.
    fn release_later(self: &Arc<Self>, version: Version) -> Hold {
        self.release_by(version, State::release)
    }

    /// The guard of a hold that `release` ends.
    fn release_by(
        self: &Arc<Self>,
        version: Version,
        release: fn(&mut State, Version) -> bool,
    ) -> Hold {
        let inner = Arc::downgrade(self);
        Hold::new(version, move |version| {
            let Some(inner) = inner.upgrade() else { return };
            let (more, dead) = {
                let mut state = inner.state.lock();
                let more = release(&mut state, version) || state.wants_cleaning();
                (more, std::mem::take(&mut state.dead))
            };
            inner.bury(dead);
            if more {
                inner.clean_kick.notify_one();
            }
        })
    }

    /// Logical blocks.
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// Changes the number of logical blocks.
    fn set_blocks(&self, state: &mut State, blocks: u64) {
        state.index.resize(blocks);
        self.blocks.store(blocks, Ordering::Release);
    }

    fn poison(&self, why: &str) {
        let mut state = self.state.lock();
        if state.poison.is_none() {
            state.poison = Some(why.into());
        }
        drop(state);
        self.room.notify_waiters();
        self.written.notify_waiters();
    }

    /// Poisons the store after a failure that left a log's durability in doubt.
    fn fail(&self, error: impl Into<StoreError>) -> StoreError {
        let error = error.into();
        tracing::error!(volume = %self.volume, %error, "the volume refuses writes from now on");
        self.poison(&error.to_string());
        error
    }

    /// Refuses changes of a read-only chain; one that follows another takes those that come from there.
    fn check_writable(&self) -> Result<(), StoreError> {
        match self.options.read_only {
            true => Err(StoreError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Refuses changes by users.
    fn check_users(&self) -> Result<(), StoreError> {
        match self.options.follow {
            true => Err(StoreError::ReadOnly),
            false => self.check_fence().and_then(|()| self.check_writable()),
        }
    }

    /// Refuses blocks beyond the end of the volume.
    fn check_range(&self, lba: Lba, count: u64) -> Result<(), StoreError> {
        let (blocks, first, end) = (self.blocks(), lba.0, lba.0.saturating_add(count));
        match end <= blocks {
            true => Ok(()),
            false => {
                let why = format!("blocks {first} to {end} leave a volume of {blocks} blocks");
                Err(StoreError::Invalid(why))
            }
        }
    }

    fn poison_check(&self) -> Result<(), StoreError> {
        self.state.lock().poison_check()
    }
}
