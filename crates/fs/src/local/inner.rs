//! The state that all handles of an open filesystem share: its partitions, and hints in memory.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::{Env, HashMap, HashSet};
use thalweg_store::tree::Store;
use thalweg_store::txn::{self, Begin, Durability, Transact, Transaction};
use tokio::sync::Notify;

use super::area::DataArea;
use super::format::{InodeRecord, Tag, key};
use super::op::{Effects, Op, stored_time};
use super::options::{Atime, Options};
use super::reservation::Owner;
use super::space::Space;
use super::superblock::Copies;
use crate::attributes::{Attributes, Ino};
use crate::error::FsError;
use crate::invalidation::{Change, Watcher};
use crate::locks::LockTable;

/// Inode numbers that a lane gets at a time.
const NUMBERS: u64 = 256;
/// Lanes of inode numbers: inodes of different directories seldom share a leaf of the tree.
const NUMBER_LANES: usize = 16;
/// Numbers that are reserved before a transaction begins which may make many inodes.
const PREPARED: u64 = 1 << 16;
/// How long the last reads of inodes wait to be noted.
const ATIME_PERIOD: Duration = Duration::from_secs(10);
/// How many of them may wait.
const MAX_ATIMES: usize = 4096;
/// Inodes whose access times one transaction records.
const ATIMES_AT_ONCE: usize = 64;
/// Under `relatime` a read is noted at least once in so many seconds.
const RELATIME_SECONDS: i64 = 24 * 3600;

/// An opened filesystem.
pub(super) struct Inner {
    pub(super) env: Env,
    pub(super) volume: Arc<dyn Transact>,
    pub(super) tree: Store,
    pub(super) area: DataArea,
    pub(super) hash_key: [u8; 16],
    pub(super) hash_bits: u8,
    pub(super) options: Options,
    /// How reads of inodes are noted now; `options` says how at first.
    atime: Mutex<Atime>,
    pub(super) space: Space,
    /// Inodes for which there may be room.
    pub(super) max_inodes: AtomicU64,
    /// One at a time makes the filesystem larger.
    pub(super) growing: tokio::sync::Mutex<()>,
    /// The copies of the superblock outside of the tree.
    pub(super) copies: Copies,
    /// The block of the table of reservations.
    pub(super) table: OnceLock<u64>,
    /// Serializes the freeing of blocks that records mark for it.
    pub(super) freeing: tokio::sync::Mutex<()>,
    numbers: tokio::sync::Mutex<Numbers>,
    pub(super) references: Mutex<HashMap<u64, u64>>,
    /// Locks of callers of this handle; in memory, as those of the kernel.
    pub(super) locks: LockTable,
    pub(super) next_handle: AtomicU64,
    durable: Mutex<Durable>,
    atimes: Mutex<HashMap<u64, u64>>,
    inodes: Mutex<i64>,
    usage: Mutex<HashMap<u64, (i64, i64)>>,
    watcher: Mutex<Option<Arc<Watcher>>>,
    pub(super) duties: Mutex<Duties>,
    /// There is something in `duties`.
    pub(super) wake: Notify,
}

/// Inode numbers that were reserved and are not used yet.
#[derive(Debug, Default)]
struct Numbers {
    lanes: [Range<u64>; NUMBER_LANES],
    /// For lanes that run out.
    spare: Range<u64>,
}

/// Which changes may not survive a crash yet. Times are counted in changes.
#[derive(Debug, Default)]
struct Durable {
    now: u64,
    synced: u64,
    changed: HashMap<u64, u64>,
    /// The time of the last change whose inodes are unknown.
    unknown: u64,
}

/// The keeper's pending work.
#[derive(Debug, Default)]
pub(super) struct Duties {
    /// Inodes with pending work, to be done once they have no references.
    pub(super) orphans: HashSet<u64>,
    pub(super) due: Vec<u64>,
    freed: bool,
    /// Pages of bits that are to be counted again.
    recount: Vec<u64>,
    /// A transaction that had reserved blocks has ended.
    ended: bool,
    /// Callers' transactions, and the pending work that each leaves when it ends.
    within: Vec<(Weak<dyn Transaction>, Effects, Option<Owner>)>,
}

impl fmt::Debug for Inner {
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
}

impl Inner {
    pub(super) fn new(
        env: &Env,
        volume: Arc<dyn Transact>,
        found: Found,
        options: Options,
    ) -> Inner {
        Inner {
            env: env.clone(),
            volume,
            tree: found.tree,
            area: found.area,
            hash_key: found.hash_key,
            hash_bits: found.hash_bits,
            options,
            atime: Mutex::new(options.atime),
            space: found.space,
            max_inodes: found.max_inodes.into(),
            growing: tokio::sync::Mutex::default(),
            copies: found.copies,
            table: OnceLock::new(),
            freeing: tokio::sync::Mutex::new(()),
            numbers: tokio::sync::Mutex::default(),
            references: Mutex::default(),
            locks: LockTable::default(),
            next_handle: AtomicU64::new(1),
            durable: Mutex::default(),
            atimes: Mutex::default(),
            inodes: Mutex::new(found.inodes),
            usage: Mutex::default(),
            watcher: Mutex::default(),
            duties: Mutex::default(),
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
        self.change_as(Durability::Visible, work).await
    }

    /// [`Inner::change`], acknowledged when it is as durable as that.
    pub(super) async fn change_as<T, Work>(
        &self,
        durability: Durability,
        work: impl Fn(Arc<dyn Transaction>) -> Work,
    ) -> Result<T, FsError>
    where
        Work: Future<Output = Result<(T, Effects), FsError>>,
    {
        if self.options.read_only {
            return Err(FsError::ReadOnly);
        }
        let before = self.moment();
        let (done, effects) = txn::run(&*self.volume, Begin::STRICT, durability, work).await?;
        self.settle(effects, (durability == Durability::Synced).then_some(before));
        Ok(done)
    }

    /// A transaction on the newest committed state, for reading.
    pub(super) async fn look(&self) -> Result<Arc<dyn Transaction>, FsError> {
        Ok(self.volume.begin(Begin::SNAPSHOT).await?)
    }

    /// The current time in changes, for [`Inner::settle`].
    pub(super) fn moment(&self) -> u64 {
        self.durable.lock().now
    }

    /// Accounts for a committed transaction. When it is durable, so is every change before its commit.
    pub(super) fn settle(&self, effects: Effects, synced: Option<u64>) {
        effects.pages.iter().for_each(|(page, by)| self.space.adjust(*page, *by));
        *self.inodes.lock() += effects.count;
        for (root, by) in &effects.charged {
            if let Some(seen) = self.usage.lock().get_mut(root) {
                *seen = (seen.0 + by.0, seen.1 + by.1);
            }
        }
        match synced {
            Some(before) => self.durable.lock().sync(before),
            None => self.durable.lock().change(effects.inodes.keys()),
        }
        {
            let mut atimes = self.atimes.lock();
            if !atimes.is_empty() {
                atimes.retain(|ino, _| !effects.inodes.contains_key(ino));
            }
        }
        if effects.orphans.is_empty() && !effects.freed {
            return;
        }
        let mut duties = self.duties.lock();
        duties.freed |= effects.freed;
        for ino in effects.orphans {
            duties.orphans.insert(ino);
            duties.due.push(ino);
        }
        drop(duties);
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
        self.duties.lock().within.push((Arc::downgrade(txn), effects, owner));
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

    /// An inode number that was never used, near those of other inodes in the directory.
    pub(super) async fn number(&self, parent: u64) -> Result<u64, FsError> {
        let lane = (parent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % NUMBER_LANES;
        let mut numbers = self.numbers.lock().await;
        if let Some(number) = numbers.lanes[lane].next() {
            return Ok(number);
        }
        if numbers.spare.is_empty() {
            let count = NUMBERS * NUMBER_LANES as u64;
            let first = self.reserve_numbers(count).await?;
            numbers.spare = first..first + count;
        }
        let first = numbers.spare.start;
        numbers.spare.start += NUMBERS;
        numbers.lanes[lane] = first + 1..first + NUMBERS;
        Ok(first)
    }

    /// Reserves numbers, unless there are many.
    pub(super) async fn prepare_numbers(&self) -> Result<(), FsError> {
        let mut numbers = self.numbers.lock().await;
        if numbers.spare.end - numbers.spare.start < PREPARED / 2 {
            let first = self.reserve_numbers(PREPARED).await?;
            numbers.spare = first..first + PREPARED;
        }
        Ok(())
    }

    /// Reserves so many numbers; the first.
    async fn reserve_numbers(&self, count: u64) -> Result<u64, FsError> {
        let inodes = (*self.inodes.lock()).max(1);
        self.change(async |txn| {
            let mut op = Op::new(self, &txn, false);
            let stored = op.get(&key(0, Tag::Numbers, &[])).await?;
            let first = stored.and_then(|it| Some(u64::from_le_bytes((*it).try_into().ok()?)));
            let first = first.filter(|first| *first < u64::MAX - count);
            let first = first
                .ok_or_else(|| FsError::Damaged("there is no next inode number".to_owned()))?;
            op.put(key(0, Tag::Numbers, &[]), (first + count).to_le_bytes().to_vec());
            op.put(key(0, Tag::Counts, &[]), inodes.to_le_bytes().to_vec());
            Ok((first, op.finish().await?))
        })
        .await
    }

    /// Writes down how many inodes are in use.
    pub(super) async fn save_counts(&self) -> Result<(), FsError> {
        let inodes = (*self.inodes.lock()).max(1);
        self.change(async |txn| {
            let mut op = Op::new(self, &txn, false);
            op.put(key(0, Tag::Counts, &[]), inodes.to_le_bytes().to_vec());
            Ok(((), op.finish().await?))
        })
        .await
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
        let until = {
            let durable = self.durable.lock();
            let changed = match ino {
                Some(ino) => durable.changed.get(&ino).copied().unwrap_or(0).max(durable.unknown),
                None => durable.now,
            };
            if changed <= durable.synced {
                return Ok(());
            }
            durable.now
        };
        self.volume.sync().await?;
        self.durable.lock().sync(until);
        Ok(())
    }

    /// Sets how reads of inodes are noted from now on.
    pub(super) fn set_atime(&self, atime: Atime) {
        *self.atime.lock() = atime;
    }

    /// Notes that an inode was read.
    pub(super) fn note_access(&self, ino: u64, record: &InodeRecord) {
        let now = stored_time(self.env.wall_nanos());
        let stored = self.pending_access(ino).unwrap_or(record.accessed.get());
        let seconds = |time: u64| time as i64 >> 30;
        let atime = *self.atime.lock();
        let is_due = match atime {
            _ if self.options.read_only => false,
            Atime::Never => false,
            Atime::Strict => true,
            Atime::Relative => {
                stored as i64 <= record.modified.get() as i64
                    || stored as i64 <= record.changed.get() as i64
                    || seconds(now) - seconds(stored) >= RELATIME_SECONDS
            }
        };
        if is_due && now != stored {
            let mut atimes = self.atimes.lock();
            atimes.insert(ino, now);
            if atimes.len() >= MAX_ATIMES {
                drop(atimes);
                self.wake.notify_one();
            }
        }
    }

    /// When an inode was read last, if that is not noted yet.
    pub(super) fn pending_access(&self, ino: u64) -> Option<u64> {
        self.atimes.lock().get(&ino).copied()
    }

    /// The last read of an inode need not be noted: something else was set.
    pub(super) fn drop_access(&self, ino: u64) {
        self.atimes.lock().remove(&ino);
    }

    /// Adds a pending access time to attributes.
    pub(super) fn with_access(&self, mut attributes: Attributes) -> Attributes {
        if let Some(accessed) = self.pending_access(attributes.ino.0) {
            attributes.accessed = super::format::decode_time(accessed);
        }
        attributes
    }

    /// Writes the last reads down.
    pub(super) async fn flush_accesses(&self) -> Result<(), FsError> {
        loop {
            let some: Vec<u64> = {
                let atimes = self.atimes.lock();
                let mut some: Vec<u64> = atimes.keys().copied().collect();
                some.sort_unstable();
                some.truncate(ATIMES_AT_ONCE);
                some
            };
            if some.is_empty() {
                return Ok(());
            }
            self.change(async |txn| {
                let mut op = Op::new(self, &txn, false);
                for ino in &some {
                    if let Some(record) = op.find_inode(*ino).await? {
                        op.set_inode(*ino, record);
                    }
                }
                Ok(((), op.finish().await?))
            })
            .await?;
            some.iter().for_each(|ino| self.drop_access(*ino));
        }
    }

    /// Takes over work that an earlier opening has left.
    pub(super) fn take_over(&self, orphans: Vec<u64>) {
        let mut duties = self.duties.lock();
        duties.due.extend(&orphans);
        duties.orphans.extend(orphans);
        duties.freed = true;
        duties.ended = true;
        drop(duties);
        self.wake.notify_one();
    }

    /// Does everything that is left to be done and may be.
    pub(super) async fn do_duties(&self) -> Result<(), FsError> {
        self.collect_ended();
        loop {
            let (due, freed, ended) = {
                let mut duties = self.duties.lock();
                let ended = std::mem::take(&mut duties.ended);
                (std::mem::take(&mut duties.due), std::mem::take(&mut duties.freed), ended)
            };
            if due.is_empty() && !freed && !ended && self.duties.lock().recount.is_empty() {
                return Ok(());
            }
            for ino in due {
                self.finish_orphan(ino).await?;
                if !self.is_referenced(ino) {
                    self.duties.lock().orphans.remove(&ino);
                }
            }
            if freed {
                self.finish_freed().await?;
            }
            if ended {
                self.finish_reservations().await?;
            }
            let recount = std::mem::take(&mut self.duties.lock().recount);
            for page in recount {
                let txn = self.look().await?;
                let free = Op::new(self, &txn, false).page(page).await?.free();
                self.space.set(page, free);
            }
        }
    }

    /// Whether blocks wait to be freed.
    pub(super) fn is_freeing(&self) -> bool {
        let duties = self.duties.lock();
        duties.freed || duties.ended || !duties.due.is_empty() || self.freeing.try_lock().is_err()
    }

    /// Settles callers' transactions that have ended; whether some have not.
    fn collect_ended(&self) -> bool {
        let within = std::mem::take(&mut self.duties.lock().within);
        let (open, ended): (Vec<_>, Vec<_>) =
            within.into_iter().partition(|(txn, ..)| txn.strong_count() > 0);
        let is_open = !open.is_empty();
        self.duties.lock().within.extend(open);
        for (_, effects, owner) in ended {
            if owner.is_some() {
                drop(owner);
                self.duties.lock().ended = true;
            }
            // The transaction may have aborted: the work itself finds out.
            let Effects { orphans, freed, pages, .. } = effects;
            self.duties.lock().recount.extend(pages.into_keys());
            self.settle(Effects { orphans, freed, ..Effects::default() }, None);
        }
        is_open
    }

    /// Frees the blocks that an ended transaction has reserved or released.
    pub(super) async fn end_reservation(&self, owner: Option<Owner>) {
        if owner.is_none() {
            return;
        }
        drop(owner);
        if self.finish_reservations().await.is_err() {
            // The keeper tries again, and so does the next opening.
            self.duties.lock().ended = true;
            self.wake.notify_one();
        }
    }

    /// Waits for something to do, and does it, until the filesystem is closed.
    pub(super) async fn keep(self: Arc<Inner>) {
        loop {
            // The callers that need this work run it too, and get the error then.
            self.do_duties().await.ok();
            let is_open = self.collect_ended();
            let period = if is_open { ATIME_PERIOD / 20 } else { ATIME_PERIOD };
            if self.env.timeout(period, self.wake.notified()).await.is_none() || self.has_atimes() {
                self.flush_accesses().await.ok();
            }
        }
    }

    fn has_atimes(&self) -> bool {
        self.atimes.lock().len() >= MAX_ATIMES
    }
}

impl Durable {
    /// These inodes changed.
    fn change<'i>(&mut self, inodes: impl Iterator<Item = &'i u64>) {
        self.now += 1;
        let now = self.now;
        self.changed.extend(inodes.map(|ino| (*ino, now)));
    }

    /// Everything up to this time survives a crash.
    fn sync(&mut self, until: u64) {
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
