//! A block store that keeps its latest versions readable, by count and by age.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use thalweg_env::{Env, Task, Time};

use super::{
    Ages, Applied, BlockStore, Hold, Layer, Lba, Retention, StoreError, Version, Versions,
    WriteList,
};

/// How exactly the age of versions is known, as a part of the age allowed.
const PARTS: u32 = 16;
/// The shortest and the longest time between two checks. The age allowed may change meanwhile.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// Which versions a store keeps readable besides those that readers hold and the newest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// As many of the versions before the newest.
    pub versions: u64,
    /// None of them that was replaced longer ago.
    pub age: Duration,
    /// As many contents of blocks that have newer ones.
    pub blocks: usize,
}

impl Keep {
    /// Nothing but the newest version.
    pub const NOTHING: Keep = Keep::latest(0);

    /// The latest versions, however old.
    pub const fn latest(versions: u64) -> Keep {
        Keep { versions, age: Duration::MAX, blocks: usize::MAX }
    }

    /// The versions of so long, however many.
    pub const fn younger_than(age: Duration) -> Keep {
        Keep { versions: u64::MAX, age, blocks: usize::MAX }
    }

    /// The same with at most `blocks` old contents of blocks: what they take on the devices.
    pub const fn within(self, blocks: usize) -> Keep {
        Keep { blocks, ..self }
    }
}

/// The range of versions that is kept.
#[derive(Debug)]
struct Window {
    keep: Keep,
    /// Holds its first version and all that are newer.
    floor: Option<Hold>,
    ages: Ages,
    is_paused: bool,
}

/// No versions are kept until it is dropped.
#[must_use]
pub struct Paused<'a>(&'a Retained);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.window.lock().is_paused = false;
        self.0.advance();
    }
}

impl Window {
    /// The first version to keep.
    fn first(&self, store: &dyn Versions, newest: Version, now: Time) -> Version {
        let by_count = Version(newest.0.saturating_sub(self.keep.versions));
        let age = u64::try_from(self.keep.age.as_nanos()).unwrap_or(u64::MAX);
        let then = now.as_nanos().checked_sub(age).map(Time::from_nanos);
        let by_age = then.and_then(|then| self.ages.before(then)).unwrap_or_default();
        let by_room = store.lapse_point(self.keep.blocks).unwrap_or_default();
        by_count.max(by_age).max(by_room).min(newest)
    }
}

/// A block store that keeps its latest versions readable.
///
/// Versions do not outlive the store. They are given up before a write fails for lack of room.
#[derive(Debug)]
pub struct Retained {
    env: Env,
    store: Arc<dyn BlockStore>,
    window: Arc<Mutex<Window>>,
    _expiry: Task<()>,
}

impl Retained {
    /// Keeps versions of `store`, from the newest on. It also keeps those that do not come through this.
    pub fn new(env: &Env, store: Arc<dyn BlockStore>, keep: Keep) -> Retained {
        let window = Arc::new(Mutex::new(Window {
            keep,
            floor: None,
            ages: Ages::default(),
            is_paused: false,
        }));
        let expiry = env.spawn(expire(env.clone(), store.clone(), Arc::downgrade(&window)));
        let retained = Retained { env: env.clone(), store, window, _expiry: expiry };
        retained.advance();
        retained
    }

    /// Changes the limits.
    pub fn set_keep(&self, keep: Keep) {
        self.window.lock().keep = keep;
        self.advance();
    }

    /// The limits.
    pub fn keep(&self) -> Keep {
        self.window.lock().keep
    }

    /// The oldest version that is known to be at most `age` old.
    pub fn young_enough(&self, age: Duration) -> Version {
        self.advance();
        let known = self.window.lock().ages.young_enough(self.env.now(), age);
        known.unwrap_or_else(|| self.store.now())
    }

    /// The age of a version, at most; `None` for one that is older than all that are kept.
    pub fn age(&self, version: Version) -> Option<Duration> {
        self.advance();
        self.window.lock().ages.age(self.env.now(), version)
    }

    /// Gives up all versions but the newest, until newer ones come.
    pub fn give_up(&self) {
        let given_up = {
            let mut window = self.window.lock();
            let floor = hold_newest(&*self.store);
            std::mem::replace(&mut window.floor, floor)
        };
        drop(given_up);
    }

    /// Keeps no versions for a while, and forgets their ages: for a change of the store as a whole.
    pub fn pause(&self) -> Paused<'_> {
        let given_up = {
            let mut window = self.window.lock();
            (window.is_paused, window.ages) = (true, Ages::default());
            window.floor.take()
        };
        drop(given_up);
        Paused(self)
    }

    fn advance(&self) {
        advance(&self.env, &*self.store, &self.window);
    }

    /// Runs a change; without room for it, the versions that are kept are given up, and it is tried again.
    async fn with_room<T, F>(&self, change: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let done = match change().await {
            Err(StoreError::NoSpace) => {
                self.give_up();
                change().await
            }
            done => done,
        };
        self.advance();
        done
    }
}

/// Drops what is beyond the limits.
fn advance(env: &Env, store: &dyn Versions, window: &Mutex<Window>) {
    let dropped = {
        let mut window = window.lock();
        if window.is_paused {
            return;
        }
        let (now, newest) = (env.now(), store.now());
        window.ages.note(now, newest);
        let first = window.first(store, newest, now);
        match &window.floor {
            Some(floor) if floor.version() >= first => None,
            Some(_) => {
                let floor = store.hold_since(first);
                window.ages.forget_before(first);
                Some(std::mem::replace(&mut window.floor, floor))
            }
            None => {
                window.floor = hold_newest(store);
                None
            }
        }
    };
    // Outside of the lock: it may examine many blocks.
    drop(dropped);
}

/// Holds the newest version and all that will come; `None` from a store that cannot.
fn hold_newest(store: &dyn Versions) -> Option<Hold> {
    loop {
        let newest = store.now();
        let hold = store.hold_since(newest);
        if hold.is_some() || store.now() == newest {
            return hold;
        }
    }
}

/// Drops versions for their age while there are no writes, and notes those that come otherwise.
async fn expire(env: Env, store: Arc<dyn BlockStore>, window: Weak<Mutex<Window>>) {
    loop {
        let Some(held) = window.upgrade() else { return };
        let age = held.lock().keep.age;
        drop(held);
        env.sleep((age / PARTS).clamp(SHORTEST, LONGEST)).await;
        let Some(held) = window.upgrade() else { return };
        advance(&env, &*store, &held);
    }
}

#[async_trait]
impl Layer for Retained {
    fn below(&self) -> &dyn BlockStore {
        &*self.store
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.with_room(|| self.store.submit(writes.clone(), retention)).await
    }

    async fn submit_at(
        &self,
        version: Version,
        writes: WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        self.with_room(|| self.store.submit_at(version, writes.clone(), retention)).await
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        self.with_room(|| self.store.discard(lba, count)).await
    }
}
