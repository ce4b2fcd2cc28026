//! The state that all handles of an open filesystem share: its partitions, and hints in memory.
//!
//! # Lock order
//!
//! Seven locks are held across transactions, the first before the others: `Within::order` (of calls in a caller's
//! transaction), `ExternalContents::turn`, the gate of a file, `FsState::growing`, `FsState::working`, `FsState::freeing`,
//! `FsState::numbers`. A transaction takes the volume's locks, so none of these seven is taken under one of the volume's. Nothing waits for a
//! gate under another one.
//!
//! All other locks are held for a moment, are never held at an `await`, and are taken one at a time. Two
//! exceptions: under `FsState::deferred_work`, `freeing` is tried and not waited for; under `Reservation::state` come the
//! runs of the [`DataArea`] and the locks of a transaction. The watcher is called without a lock.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use thalweg_env::{Env, HashMap, HashSet};
use thalweg_store::block::Version;
use thalweg_store::tree::Store;
use thalweg_store::txn::{self, Begin, Durability, Transact, Transaction};
use tokio::sync::Notify;

use super::area::DataArea;
use super::create_queue::CreateQueue;
use super::effects::Effects;
use super::gates::ExternalContents;
use super::options::{Atime, Options};
use super::reserved_blocks::Owner;
use super::rooms::Rooms;
use super::space::Space;
use super::superblock::Copies;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::invalidation::{Change, Watcher};
use crate::locks::LockTable;
use crate::session_table::{Committed, Recorder};

/// Lanes of inode numbers: inodes of different directories seldom share a leaf of the tree.
pub(super) const NUMBER_LANES: usize = 16;

/// An opened filesystem.
pub(super) struct FsState {
    pub(super) env: Env,
    pub(super) volume: Arc<dyn Transact>,
    pub(super) tree: Store,
    pub(super) area: DataArea,
    pub(super) hash_key: [u8; 16],
    pub(super) hash_bits: u8,
    pub(super) options: Options,
    /// How reads of inodes are noted now; `options` says how at first.
    pub(super) atime: Mutex<Atime>,
    pub(super) space: Space,
    /// What of that is promised, and taken by calls under way.
    pub(super) rooms: Arc<Rooms>,
    /// Inodes for which there may be room.
    pub(super) max_inodes: AtomicU64,
    /// One at a time makes the filesystem larger.
    pub(super) growing: tokio::sync::Mutex<()>,
    /// The copies of the superblock outside of the tree.
    pub(super) copies: Copies,
    /// The contents of files, if they are kept elsewhere.
    pub(super) external_contents: Option<ExternalContents>,
    /// The block of the table of reservations.
    pub(super) table: OnceLock<u64>,
    /// Work that calls have left is being done.
    pub(super) working: tokio::sync::Mutex<()>,
    /// Serializes the freeing of blocks that records mark for it.
    pub(super) freeing: tokio::sync::Mutex<()>,
    pub(super) numbers: tokio::sync::Mutex<Numbers>,
    pub(super) creates: CreateQueue,
    pub(super) references: Mutex<HashMap<u64, u64>>,
    /// Locks of callers of this handle; in memory, as those of the kernel.
    pub(super) locks: LockTable,
    pub(super) next_handle: AtomicU64,
    /// Inodes without names stay.
    pub(super) keeps_orphans: AtomicBool,
    /// The time of the last use without a server that is on record.
    pub(super) all_used: AtomicI64,
    durable: Mutex<Durable>,
    pub(super) atimes: Mutex<HashMap<u64, u64>>,
    pub(super) inodes: Mutex<i64>,
    usage: Mutex<HashMap<u64, (i64, i64)>>,
    watcher: Mutex<Option<Arc<Watcher>>>,
    pub(super) deferred_work: Mutex<DeferredWork>,
    /// There is something in `deferred_work`.
    pub(super) wake: Notify,
}

/// Inode numbers that were reserved and are not used yet.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) lanes: [Range<u64>; NUMBER_LANES],
    /// For lanes that run out.
    pub(super) spare: Range<u64>,
    /// Returned by callers that had reserved them.
    pub(super) returned: Vec<Range<u64>>,
}

/// Which changes may not survive a crash yet. Times are counted in changes.
#[derive(Debug, Default)]
struct Durable {
    now: u64,
    synced: u64,
    changed: HashMap<u64, u64>,
    /// The time of the last change whose inodes are unknown.
    unknown: u64,
    /// A version that has every synced change; unknown before the first sync.
    version: Option<Version>,
}

/// The keeper's pending work.
#[derive(Debug, Default)]
pub(super) struct DeferredWork {
    /// Inodes with pending work, to be done once they have no references.
    pub(super) orphans: HashSet<u64>,
    pub(super) due: Vec<u64>,
    pub(super) freed: bool,
    /// Contents of removed files are noted to be removed.
    pub(super) removed: bool,
    /// Files that became shorter and have contents elsewhere.
    pub(super) cuts: HashSet<u64>,
    /// Pages of bits that are to be counted again.
    pub(super) recount: Vec<u64>,
    /// A transaction that had reserved blocks has ended.
    pub(super) ended: bool,
    /// Callers' transactions, and the pending work that each leaves when it ends.
    pub(super) within: Vec<(Weak<dyn Transaction>, Effects, Option<Owner>)>,
}

impl fmt::Debug for FsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("tree", &self.tree.name()).finish_non_exhaustive()
    }
}

/// The parts of a filesystem, as an opening found them.
pub(super) struct Found {
    pub(super) tree: Store,
    pub(super) area: DataArea,
    pub(super) hash_key: [u8; 16],
    pub(super) hash_bits: u8,
    pub(super) space: Space,
    pub(super) inodes: i64,
    pub(super) max_inodes: u64,
    pub(super) copies: Copies,
    pub(super) external_contents: Option<ExternalContents>,
}

impl FsState {
    pub(super) fn new(
        env: &Env,
        volume: Arc<dyn Transact>,
        found: Found,
        options: Options,
    ) -> FsState {
        FsState {
            env: env.clone(),
            volume,
            tree: found.tree,
            area: found.area,
            hash_key: found.hash_key,
            hash_bits: found.hash_bits,
            options,
            atime: Mutex::new(options.atime),
            space: found.space,
            rooms: Arc::default(),
            max_inodes: found.max_inodes.into(),
            growing: tokio::sync::Mutex::default(),
            copies: found.copies,
            external_contents: found.external_contents,
            table: OnceLock::new(),
            working: tokio::sync::Mutex::new(()),
            freeing: tokio::sync::Mutex::new(()),
            numbers: tokio::sync::Mutex::default(),
            creates: CreateQueue::default(),
            references: Mutex::default(),
            locks: LockTable::default(),
            next_handle: AtomicU64::new(1),
            keeps_orphans: options.keep_orphans.into(),
            all_used: i64::MIN.into(),
            durable: Mutex::default(),
            atimes: Mutex::default(),
            inodes: Mutex::new(found.inodes),
            usage: Mutex::default(),
            watcher: Mutex::default(),
            deferred_work: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Runs `work` in a transaction of its own: begin, work, commit, retry.
    pub(super) async fn change<T, Work>(
        &self,
        work: impl Fn(Arc<dyn Transaction>) -> Work,
    ) -> Result<T, FsError>
    where
        Work: Future<Output = Result<(T, Effects), FsError>>,
    {
        self.change_for(None, Durability::Visible, work).await
    }

    /// [`FsState::change`] of a call that is recorded, or not, acknowledged when it is as durable as that.
    pub(super) async fn change_for<T, Work>(
        &self,
        recorder: Option<&Recorder>,
        durability: Durability,
        work: impl Fn(Arc<dyn Transaction>) -> Work,
    ) -> Result<T, FsError>
    where
        Work: Future<Output = Result<(T, Effects), FsError>>,
    {
        let work = async |txn| {
            let (done, effects) = work(txn).await?;
            Ok(((done, effects.recorded), effects))
        };
        let ((done, recorded), version) = self.change_at(durability, work).await?;
        if let Some((recorder, (time, outcome))) = recorder.zip(recorded) {
            recorder.commit(Committed { version: version.0, time, outcome });
        }
        Ok(done)
    }

    /// [`FsState::change`], acknowledged when it is as durable as that, with the version that it became.
    pub(super) async fn change_at<T, Work>(
        &self,
        durability: Durability,
        work: impl Fn(Arc<dyn Transaction>) -> Work,
    ) -> Result<(T, Version), FsError>
    where
        Work: Future<Output = Result<(T, Effects), FsError>>,
    {
        if self.options.read_only {
            return Err(FsError::ReadOnly);
        }
        let before = self.moment();
        let ((done, effects), version) =
            txn::run_versioned(&*self.volume, Begin::STRICT, durability, work).await?;
        let version = version.version;
        self.settle(effects, (durability == Durability::Synced).then_some((before, version)));
        Ok((done, version))
    }

    /// A transaction on the newest committed state, for reading.
    pub(super) async fn look(&self) -> Result<Arc<dyn Transaction>, FsError> {
        Ok(self.volume.begin(Begin::SNAPSHOT).await?)
    }

    /// The current time in changes, for [`FsState::settle`].
    pub(super) fn moment(&self) -> u64 {
        self.durable.lock().now
    }

    /// Accounts for a committed transaction. When it is durable, so is every change before its commit.
    pub(super) fn settle(&self, effects: Effects, synced: Option<(u64, Version)>) {
        if let Some(external_contents) = &self.external_contents {
            let now = self.env.now();
            effects.redirects.iter().for_each(|it| external_contents.redirects().commit(it, now));
        }
        effects.pages.iter().for_each(|(page, by)| self.space.adjust(*page, *by));
        let freed: i64 = effects.pages.values().filter(|by| **by > 0).sum();
        let charged = effects.charged.iter().map(|(quota, by)| (*quota, *by));
        self.rooms.settle(effects.tree_blocks, freed.unsigned_abs(), charged);
        *self.inodes.lock() += effects.count;
        for (root, by) in &effects.charged {
            if let Some(seen) = self.usage.lock().get_mut(root) {
                *seen = (seen.0 + by.0, seen.1 + by.1);
            }
        }
        match synced {
            Some((before, version)) => self.durable.lock().sync(before, version),
            None => self.durable.lock().change(effects.inodes.keys()),
        }
        {
            let mut atimes = self.atimes.lock();
            if !atimes.is_empty() {
                atimes.retain(|ino, _| !effects.inodes.contains_key(ino));
            }
        }
        if effects.orphans.is_empty()
            && !effects.freed
            && !effects.removed
            && effects.cuts.is_empty()
        {
            return;
        }
        let mut deferred_work = self.deferred_work.lock();
        deferred_work.freed |= effects.freed;
        deferred_work.removed |= effects.removed;
        deferred_work.cuts.extend(effects.cuts);
        for ino in effects.orphans {
            deferred_work.orphans.insert(ino);
            deferred_work.due.push(ino);
        }
        drop(deferred_work);
        self.wake.notify_one();
    }

    /// Keeps the effects of a caller's transaction until it has ended; they count if it has committed.
    pub(super) fn settle_when_ended(
        &self,
        txn: &Arc<dyn Transaction>,
        effects: Effects,
        owner: Option<Owner>,
    ) {
        self.durable.lock().touch_unknown();
        self.deferred_work.lock().within.push((Arc::downgrade(txn), effects, owner));
        self.wake.notify_one();
    }

    /// Tells the watcher of changes that did not come through its handle.
    pub(super) fn tell(&self, effects: &Effects) {
        let Some(watcher) = self.watcher.lock().clone() else { return };
        // Never waited for: the call may come from a request of the cache's own kernel.
        for (ino, content) in &effects.inodes {
            drop(watcher(Change::Inode {
                ino: Ino(*ino),
                content: content.then_some(0..u64::MAX),
            }));
        }
        for (parent, name) in &effects.names {
            drop(watcher(Change::Name { parent: Ino(*parent), name: name.clone() }));
        }
    }

    pub(super) fn watch(&self, watcher: Watcher) {
        *self.watcher.lock() = Some(Arc::new(watcher));
    }

    /// Inodes in use, as far as is known.
    pub(super) fn inodes(&self) -> u64 {
        (*self.inodes.lock()).max(1) as u64
    }

    /// The usage under the root of a quota, as far as this handle knows.
    pub(super) fn seen_usage(&self, root: u64) -> Option<(i64, i64)> {
        self.usage.lock().get(&root).copied()
    }

    /// So much was used under the root of a quota.
    pub(super) fn see_usage(&self, root: u64, used: (i64, i64)) {
        self.usage.lock().insert(root, used);
    }

    /// Returns when everything that was done to an inode survives a crash, or everything at all.
    pub(super) async fn sync(&self, ino: Option<u64>) -> Result<(), FsError> {
        if self.is_synced(ino) {
            return Ok(());
        }
        self.sync_volume().await.map(drop)
    }

    /// Whether everything that was done to an inode, or everything at all, is known to survive a crash.
    pub(super) fn is_synced(&self, ino: Option<u64>) -> bool {
        let durable = self.durable.lock();
        let changed = match ino {
            Some(ino) => durable.changed.get(&ino).copied().unwrap_or(0).max(durable.unknown),
            None => durable.now,
        };
        changed <= durable.synced
    }

    /// A version that has every synced change, if there was a sync.
    pub(super) fn synced_version(&self) -> Option<Version> {
        self.durable.lock().version
    }

    /// Returns when everything that is visible survives a crash, whichever handle has changed it: a version that has it.
    pub(super) async fn sync_volume(&self) -> Result<Version, FsError> {
        let until = self.moment();
        let freed = self.rooms.freed();
        let synced = self.volume.sync().await?;
        self.rooms.synced(&freed);
        self.durable.lock().sync(until, synced.version);
        Ok(synced.version)
    }
}

impl Durable {
    /// These inodes changed.
    fn change<'i>(&mut self, inodes: impl Iterator<Item = &'i u64>) {
        self.now += 1;
        let now = self.now;
        self.changed.extend(inodes.map(|ino| (*ino, now)));
    }

    /// Everything up to this time survives a crash, and is in this version.
    fn sync(&mut self, until: u64, version: Version) {
        self.version = self.version.max(Some(version));
        if until > self.synced {
            self.synced = until;
            self.changed.retain(|_, changed| *changed > until);
        }
    }

    fn touch_unknown(&mut self) {
        self.now += 1;
        self.unknown = self.now;
    }
}
