//! A block store that keeps its latest versions readable, by count and by age.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::{Env, Task, Time};

use super::{
    Applied, BlockStore, BlockVersion, Epoch, Hold, Lba, Retention, StoreError, Version, WriteList,
};

/// How often versions are dropped for their age alone, as a part of the age allowed.
const CHECKS: u32 = 8;
/// The shortest and the longest time between two checks. The age allowed may change meanwhile.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// Which versions a store keeps readable besides those that readers hold and the newest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// As many of the versions before the newest.
    pub versions: usize,
    /// None of them that was replaced longer ago.
    pub age: Duration,
}

impl Keep {
    /// The latest versions, however old.
    pub const fn latest(versions: usize) -> Keep {
        Keep { versions, age: Duration::MAX }
    }

    /// The versions of so long, however many.
    pub const fn younger_than(age: Duration) -> Keep {
        Keep { versions: usize::MAX, age }
    }
}

/// A version that is kept, and when the next one replaced it.
#[derive(Debug)]
struct Kept {
    hold: Hold,
    replaced: Option<Time>,
}

/// The versions that are kept, oldest first; the last one is the newest.
#[derive(Debug)]
struct History {
    keep: Keep,
    kept: VecDeque<Kept>,
}

impl History {
    /// Adds the newest version.
    fn add(&mut self, hold: Hold, now: Time) {
        // Concurrent writers may arrive in another order than their versions.
        let at = self.kept.partition_point(|kept| kept.hold.version() < hold.version());
        if let Some(before) = at.checked_sub(1).and_then(|before| self.kept.get_mut(before)) {
            before.replaced.get_or_insert(now);
        }
        let replaced = (at < self.kept.len()).then_some(now);
        self.kept.insert(at, Kept { hold, replaced });
    }

    /// Takes out the versions beyond the limits: the caller drops them without the lock.
    fn expire(&mut self, now: Time) -> Vec<Kept> {
        let Keep { versions, age } = self.keep;
        let surplus = self.kept.len().saturating_sub(versions.saturating_add(1));
        let is_old = |kept: &&Kept| kept.replaced.is_some_and(|then| now.since(then) > age);
        let old = self.kept.iter().take_while(is_old).count();
        self.kept.drain(..surplus.max(old)).collect()
    }
}

/// A block store that keeps its latest versions readable.
///
/// Each transaction is held from its start. A version that came otherwise, by a discard, is held if it is still the
/// newest when the discard returns. Versions do not outlive the store.
#[derive(Debug)]
pub struct Retained {
    env: Env,
    store: Arc<dyn BlockStore>,
    history: Arc<Mutex<History>>,
    _expiry: Task<()>,
}

impl Retained {
    /// Keeps versions of `store`, from the next one on.
    pub fn new(env: &Env, store: Arc<dyn BlockStore>, keep: Keep) -> Retained {
        let history = Arc::new(Mutex::new(History { keep, kept: VecDeque::new() }));
        let expiry = env.spawn(expire(env.clone(), Arc::downgrade(&history)));
        Retained { env: env.clone(), store, history, _expiry: expiry }
    }

    /// Changes the limits.
    pub fn set_keep(&self, keep: Keep) {
        self.history.lock().keep = keep;
        self.expire();
    }

    /// How many versions are kept, with the newest.
    pub fn kept(&self) -> usize {
        self.history.lock().kept.len()
    }

    /// The oldest version that is kept.
    pub fn oldest(&self) -> Option<Version> {
        self.history.lock().kept.front().map(|kept| kept.hold.version())
    }

    fn expire(&self) {
        let expired = self.history.lock().expire(self.env.now());
        drop(expired);
    }

    fn add(&self, hold: Option<Hold>) {
        if let Some(hold) = hold {
            self.history.lock().add(hold, self.env.now());
        }
        self.expire();
    }

    /// Keeps the version of a transaction, and lets the caller have a hold if it asked for one.
    fn applied(&self, applied: Applied, retention: Retention) -> Applied {
        let (version, hold, backpressure) = applied.into_parts();
        // Held already, so this finds it.
        let for_caller = (retention == Retention::Hold).then(|| self.store.hold(version)).flatten();
        self.add(hold);
        Applied::new(version, for_caller, backpressure)
    }
}

/// What the store below is asked to keep.
fn held(retention: Retention) -> Retention {
    match retention {
        Retention::Newest | Retention::Hold => Retention::Hold,
        Retention::Unversioned => Retention::Unversioned,
    }
}

/// Drops versions for their age while there are no writes.
async fn expire(env: Env, history: Weak<Mutex<History>>) {
    loop {
        let Some(held) = history.upgrade() else { return };
        let age = held.lock().keep.age;
        drop(held);
        env.sleep((age / CHECKS).clamp(SHORTEST, LONGEST)).await;
        let Some(held) = history.upgrade() else { return };
        let expired = held.lock().expire(env.now());
        drop(expired);
    }
}

#[async_trait]
impl BlockStore for Retained {
    fn blocks(&self) -> u64 {
        self.store.blocks()
    }

    fn epoch(&self) -> Epoch {
        self.store.epoch()
    }

    fn now(&self) -> Version {
        self.store.now()
    }

    fn is_read_only(&self) -> bool {
        self.store.is_read_only()
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.store.read(lba, count, at).await
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        self.store.read_newest(lba, count).await
    }

    fn peek(&self, lba: Lba, at: Version) -> Option<Option<Bytes>> {
        self.store.peek(lba, at)
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        let applied = self.store.submit(writes, held(retention)).await?;
        Ok(self.applied(applied, retention))
    }

    async fn submit_at(
        &self,
        version: Version,
        writes: WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        let applied = self.store.submit_at(version, writes, held(retention)).await?;
        Ok(self.applied(applied, retention))
    }

    fn holds_take_room(&self) -> bool {
        self.store.holds_take_room()
    }

    fn max_transaction(&self) -> usize {
        self.store.max_transaction()
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        let version = self.store.discard(lba, count).await?;
        self.add(self.store.hold(version));
        Ok(version)
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
        self.store.sync(version).await
    }

    fn hold(&self, version: Version) -> Option<Hold> {
        self.store.hold(version)
    }

    fn hold_synced(&self) -> Option<Hold> {
        self.store.hold_synced()
    }

    fn synced(&self) -> Option<Version> {
        self.store.synced()
    }

    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        self.store.versions(lba).await
    }

    fn please_cache(&self, lba: Lba) {
        self.store.please_cache(lba);
    }

    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)> {
        self.store.allocation(lba, count, at)
    }
}
