//! Blocks that are updated in place, behind a redo journal (Okeanos, chapters 3 and 4).
//!
//! A change is applied in memory, and is durable when the journal has it. Blocks are written in
//! place later, many changes at a time: when they are old, or when the journal or memory runs
//! short. The store's [`Mode`] decides which part of a change goes into the journal.
//!
//! ```text
//! apply -> running transaction -> commit: journal -> dirty -> writeback: blocks, map -> flush -> release
//!                                 direct writes ---------------^ (before the commit)
//! ```
//!
//! **The crash rule** holds for all blocks in the modes *data* and *wasteless*, and for metadata in
//! all modes. Of data, *ordered* and *selective* promise that metadata never comes before it: data
//! that a durable transaction points to is in place, but data of a transaction that was not durable
//! may be in place too. *writeback* promises only data that was synced. A version that changed
//! nothing in the journal may be lost in a crash; its number is used again then.
//!
//! **Old versions** are kept in memory while they are held.

mod batch;
mod commit;
mod create;
mod damage;
mod dirty;
pub mod dump;
pub mod format;
mod grow;
mod holding;
mod home;
mod locate;
mod map;
mod medium;
mod options;
mod page;
mod page_state;
mod pages;
mod read;
mod recovery;
mod replayable;
mod route;
mod running;
mod scrub;
mod stages;
mod state;
mod status;
mod store;
mod throttle;
mod turns;

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use thalweg_env::{Env, Task};
use tokio::sync::Notify;
use uuid::Uuid;

pub use create::NewInPlace;
use dirty::Which;
use format::Superblock;
use map::Map;
use medium::Medium;
pub use options::{Mode, Options};
use page::History;
pub use recovery::Recovered;
pub use scrub::{Mend, ScrubReport};
use stages::{Stage, Stages};
use state::BlockLookup;
pub use state::Counts;
pub use status::InPlaceStatus;

use crate::block::{
    Applied, BLOCK_SIZE, Backpressure, Blocks, Epoch, Lba, Retention, StoreError, Version, Write,
    WriteList,
};
use crate::device::{DeviceError, DeviceRef};
use crate::journal::log::Callers;
use crate::journal::{Journal, JournalError};
use crate::lock::BriefMutex;
use crate::rate::Rate;

/// Maximum of stored blocks that one version discards; a larger discard becomes several versions.
const MAX_DISCARD: usize = 64 << 10;

/// Errors of creating or opening an in-place store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InPlaceError {
    /// Give up: the device holds no in-place store.
    #[error("{device} holds no in-place volume")]
    NoStore {
        /// The device's name.
        device: String,
    },
    /// Both superblocks are damaged, and a backup is whole. Repair the store with
    /// [`InPlace::open_damaged`], unless the device has been reused for something else.
    #[error(
        "both superblocks of {device} are damaged or overwritten, and a backup is valid; fsck -y \
         restores it"
    )]
    NoSuperblock {
        /// The device's name.
        device: String,
    },
    /// Give up: a newer program made it.
    #[error("{device} has format {format}: this program is too old to open it")]
    Newer {
        /// The device's name.
        device: String,
        /// Its format.
        format: u32,
    },
    /// Give up: the journal is on a device of its own, and that was not named.
    #[error("the journal of this volume is on another device ({id}): name it with journal_dev=")]
    JournalElsewhere {
        /// The journal's identity.
        id: Uuid,
    },
    /// Give up: the volume has its journal inside.
    #[error("this volume has its journal inside; no other device is needed")]
    JournalInside,
    /// Give up: such a volume cannot be created.
    #[error("invalid volume: {0}")]
    Invalid(String),
    /// Stop: a structure on the device is invalid.
    #[error("damaged: {0}")]
    Damaged(String),
    /// Try again, or give the block up with [`InPlace::open_damaged`]: the journal holds changes of
    /// it.
    #[error("block {} is changed by the journal and cannot be read; fsck -y gives it up: {source}", lba.0)]
    Unreadable {
        /// The block.
        lba: Lba,
        /// The device's error.
        source: DeviceError,
    },
    /// The journal's error.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The store's error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The devices of an in-place store.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Blocks and map, and the journal if it has no device of its own.
    pub data: DeviceRef,
    /// The journal's.
    pub journal: Option<DeviceRef>,
}

/// A block store that updates in place. Dropping it without [`InPlace::close`] leaves it as a crash
/// would.
pub struct InPlace {
    inner: Arc<Inner>,
    _tasks: [Task<()>; 2],
}

struct Inner {
    env: Env,
    medium: Medium,
    /// Measured throughput of the data device.
    rate: Rate,
    journal: Journal<Lba>,
    /// Set while a growth may have changed the superblocks on the device and `superblock` does not
    /// say so.
    growing: AtomicBool,
    epoch: Epoch,
    /// Callers that wait for commits.
    callers: Callers,
    /// Notified when journal or memory runs short.
    pressed: Notify,
    /// Notified when a read or a write of the data device ended, and when there is room.
    changed: Notify,
    /// The first journal transaction that may be in flight.
    committing_from: BriefMutex<Option<u64>>,
    writing_back: tokio::sync::Mutex<()>,
    stages: Stages,
}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlace")
            .field("data", &self.inner.medium.data.name())
            .finish_non_exhaustive()
    }
}

impl InPlace {
    /// Opens a store, recovering it if it was not closed.
    ///
    /// # Errors
    /// [`InPlaceError`] says what is missing or wrong. Nothing was changed then, unless a device
    /// failed in the middle of recovery, which may be repeated.
    pub async fn open(
        env: &Env,
        parts: Parts,
        options: Options,
    ) -> Result<(InPlace, Recovered), InPlaceError> {
        let (inner, recovered) = recovery::open(env, parts, options, false).await?;
        Ok((InPlace::start(env, inner), recovered))
    }

    /// As [`InPlace::open`], for a damaged store: of a journal with a rotten middle it replays the
    /// transactions before that and gives up the rest. It gives up blocks that the journal changes
    /// in part and that cannot be read.
    ///
    /// # Errors
    /// As [`InPlace::open`].
    pub async fn open_damaged(
        env: &Env,
        parts: Parts,
        options: Options,
    ) -> Result<(InPlace, Recovered), InPlaceError> {
        let (inner, recovered) = recovery::open(env, parts, options, true).await?;
        Ok((InPlace::start(env, inner), recovered))
    }

    fn start(env: &Env, inner: Arc<Inner>) -> InPlace {
        let commits = run_commits(env.clone(), Arc::downgrade(&inner));
        let commits = env.spawn_pushed(inner.callers.task(), commits);
        let homes = env.spawn(run_homes(env.clone(), Arc::downgrade(&inner)));
        InPlace { inner, _tasks: [commits, homes] }
    }

    /// The store's identity.
    pub fn id(&self) -> Uuid {
        self.inner.medium.superblock.read().volume
    }

    /// The current superblock.
    pub fn superblock(&self) -> Superblock {
        self.inner.medium.superblock()
    }

    /// The current options.
    pub fn options(&self) -> Options {
        self.inner.medium.state.lock().options
    }

    /// Changes the options. A block's update sequence ends in the mode in which it began.
    pub fn set_options(&self, options: Options) {
        let next = self.inner.journal.next_sequence();
        self.inner.medium.state.lock().set_options(options, next);
        self.inner.pressed.notify_one();
        self.inner.callers.ask();
    }

    /// The devices, data first.
    pub fn devices(&self) -> Vec<DeviceRef> {
        let inside = self.inner.medium.superblock.read().journal_at.1 > 0;
        let journal = (!inside).then(|| self.inner.journal.device().clone());
        std::iter::once(self.inner.medium.data.clone()).chain(journal).collect()
    }

    /// Writes back every committed block.
    ///
    /// # Errors
    /// The devices'.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        self.inner.write_back(Which::All).await
    }

    /// Makes everything durable, writes it back, and stops: the store refuses writes from then on.
    ///
    /// # Errors
    /// The devices'; what was synced is safe all the same.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.sync(self.now()).await?;
        self.inner.write_back(Which::All).await?;
        self.inner.poison("it was closed");
        // Excludes a growth, which writes superblocks too.
        let _one = self.inner.writing_back.lock().await;
        self.inner.check_growth()?;
        let settled = async {
            let journal = &self.inner.journal;
            recovery::settle(&self.inner.medium, journal.note_after_clear().await).await?;
            Ok(journal.clear().await?)
        };
        settled.await.map_err(|error| match error {
            InPlaceError::Store(error) => error,
            InPlaceError::Device(error) => error.into(),
            InPlaceError::Journal(error) => journal_error(error),
            error => StoreError::Invalid(error.to_string()),
        })
    }
}

impl Inner {
    fn poison(&self, why: &str) {
        let mut state = self.medium.state.lock();
        if state.poison.is_none() {
            state.poison = Some(why.into());
        }
        drop(state);
        // Waiting callers see the poison.
        self.callers.fail();
        self.changed.notify_waiters();
    }

    /// Waits until memory and journal have room for more changes.
    async fn admit(&self) -> Result<(), StoreError> {
        let mut since = None;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            if since.is_some() {
                changed.as_mut().enable();
            }
            let (full, commit) = {
                let state = self.medium.state.lock();
                if let Some(why) = &state.poison {
                    return Err(StoreError::Poisoned(why.clone()));
                }
                let most = (state.options.cache / BLOCK_SIZE / 2).max(8);
                let running = state.running.bytes() as u64;
                if state.pages.unclean() > most / 2 {
                    // Only committed blocks can be written back.
                    if state.running.blocks() > most / 4 {
                        self.callers.ask();
                    }
                    self.pressed.notify_one();
                }
                (state.pages.unclean() >= most, running > self.journal.size() / 4)
            };
            if commit {
                self.callers.ask();
            }
            if !full && !commit {
                since.map(|since| self.stage(Stage::WriteWait, since));
                return Ok(());
            }
            if since.is_some() {
                changed.await;
            } else {
                // Once more, as one of those that are notified.
                since = Some(self.env.now());
            }
        }
    }

    async fn apply(
        self: &Arc<Inner>,
        writes: WriteList,
        retention: Retention,
        at: Option<Version>,
    ) -> Result<Applied, StoreError> {
        let history = match retention {
            Retention::Unversioned => History::Dropped,
            Retention::Newest | Retention::Hold => History::Kept,
        };
        for write in writes.iter() {
            self.medium.check(write.lba, 1)?;
        }
        let blocks = writes.into_vec();
        let count = blocks.len();
        let most = self.journal.size() / 2;
        let needed = blocks.iter().map(running::most_room).sum::<usize>() as u64;
        if needed > most {
            return Err(StoreError::TooLarge { needed, most });
        }
        loop {
            self.admit().await?;
            let unmapped: Vec<u64> = {
                let mut state = self.medium.state.lock();
                let lbas = blocks.iter().map(|write| write.lba.0);
                let unmapped: Vec<u64> = lbas.filter(|lba| !state.is_mapped(*lba)).collect();
                if unmapped.is_empty() {
                    let before = state.running.bytes();
                    let version = state.now.or_next(at)?;
                    state.apply(version, blocks, history, self.env.now())?;
                    let taken = state.running.bytes().saturating_sub(before);
                    state.pace.owe(taken);
                    let hold =
                        (retention == Retention::Hold).then(|| self.hold(&mut state, version));
                    drop(state);
                    if self.is_short() {
                        self.pressed.notify_one();
                    }
                    let backpressure = Backpressure::new(self.clone(), count);
                    return Ok(Applied::new(version, hold, backpressure));
                }
                unmapped
            };
            self.medium.map_all(unmapped.into_iter()).await?;
        }
    }

    /// Discards blocks from `at` on as the next version, up to the maximum, and moves `at` behind
    /// them.
    async fn discard(self: &Arc<Inner>, at: &mut u64, end: u64) -> Result<Version, StoreError> {
        /// Pages of the map that one call looks through.
        const PAGES: u64 = 256;
        let most = MAX_DISCARD.min(self.journal.size() as usize / 4 / running::MOST_OF_A_TAG);
        self.admit().await?;
        let end = end.min(Map::blocks_of(Map::page_of(*at) + PAGES - 1).end);
        // Pages of the map stay in memory once they are read.
        self.medium
            .map_all((*at..end).step_by(map::PER_PAGE as usize).chain([end.saturating_sub(1)]))
            .await?;
        let mut state = self.medium.state.lock();
        let mut writes = Vec::new();
        while *at < end && writes.len() < most {
            let stored = match state.find(*at, Version(u64::MAX))? {
                BlockLookup::Page(found) => found.is_allocated(),
                BlockLookup::Unmapped => true,
            };
            if stored {
                let changed = crate::block::ByteRanges::whole();
                let class = crate::block::Class::Metadata;
                writes.push(Write { lba: Lba(*at), content: None, changed, class });
            }
            *at += 1;
        }
        let version = state.now.next();
        state.apply(version, writes, History::Kept, self.env.now())?;
        Ok(version)
    }
}

/// A journal's error as a store error.
fn journal_error(error: JournalError) -> StoreError {
    match error {
        JournalError::Device(error) => error.into(),
        JournalError::Poisoned(why) => StoreError::Poisoned(why),
        error => StoreError::Poisoned(error.to_string().into()),
    }
}

/// Commits when a caller asks for it, and when the running transaction is old.
async fn run_commits(env: Env, inner: Weak<Inner>) {
    let mut alarm = env.alarm();
    loop {
        let Some(store) = inner.upgrade() else { return };
        let span = {
            let state = store.medium.state.lock();
            if state.poison.is_some() {
                return;
            }
            let age = state.running.age(env.now()).unwrap_or_default();
            state.options.commit.saturating_sub(age).max(home::LEAST)
        };
        let asked = env.timeout(span, store.callers.asked()).await.is_some();
        if asked {
            let since = env.now();
            store.callers.gather(&env, &mut alarm).await;
            store.commit_stage(Stage::Gather, since);
        }
        let begun = env.now();
        let wanted = store.callers.wanted();
        let is_old = {
            let state = store.medium.state.lock();
            state.running.age(env.now()).is_some_and(|age| age >= state.options.commit)
        };
        let is_wanted = wanted > store.callers.durable();
        if (asked || is_old || is_wanted)
            && let Err(error) = store.commit(Version(wanted)).await
        {
            tracing::error!(%error, "a commit failed");
        }
        store.callers.ended(env.now().since(begun));
        store.changed.notify_waiters();
    }
}

/// Writes back blocks that are old, and more when memory or journal runs short.
async fn run_homes(env: Env, inner: Weak<Inner>) {
    let mut next = env.now();
    loop {
        let Some(store) = inner.upgrade() else { return };
        let every = {
            let state = store.medium.state.lock();
            if state.poison.is_some() {
                return;
            }
            state.options.writeback.max(home::LEAST)
        };
        let left = (next + every).since(env.now());
        let pressed = env.timeout(left, store.pressed.notified()).await.is_some();
        if !pressed {
            next = env.now();
        }
        if let Err(error) = store.write_back_pass(pressed).await {
            tracing::error!(%error, "writeback failed");
        }
    }
}
