//! Ranges of versions that are held, on every store, against a record of all versions.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{
    BlockStore, Blocks, BlocksExt, Hold, Keep, Lba, Retained, StoreError, Version, Versions, Write,
};

use super::contract::{BLOCKS, Kind, block, get, is_gone, put};

type Contents = Vec<Option<u8>>;

/// A store with all that it should show.
struct History {
    store: Arc<dyn BlockStore>,
    /// The blocks at each version.
    states: Vec<Contents>,
    single: Vec<Hold>,
    since: Vec<Hold>,
}

impl History {
    fn now(&self) -> Version {
        Version(self.states.len() as u64 - 1)
    }

    fn floor(&self) -> Option<Version> {
        self.since.iter().map(Hold::version).min()
    }

    fn is_readable(&self, version: Version) -> bool {
        version == self.now()
            || self.single.iter().any(|hold| hold.version() == version)
            || self.floor().is_some_and(|floor| floor <= version)
    }

    async fn change(&mut self, rng: &mut Rng) {
        let mut state = self.states[self.states.len() - 1].clone();
        let writes = (0..rng.random_range(1..5)).map(|_| {
            let lba = rng.random_range(0..BLOCKS / 4);
            let content = (!rng.random_bool(0.15)).then(|| rng.random_range(1..=255));
            state[lba as usize] = content;
            Write { content: content.map(block), ..Write::block(Lba(lba), block(0)) }
        });
        let writes: Vec<Write> = writes.collect();
        let version = self.store.apply(writes).await.unwrap();
        self.states.push(state);
        assert_eq!(version, self.now());
    }

    fn hold(&mut self, rng: &mut Rng) {
        let version = Version(rng.random_range(0..=self.now().0));
        if let Some(hold) = self.store.hold(version) {
            assert!(self.is_readable(version));
            self.single.push(hold);
        } else {
            assert!(!self.is_readable(version));
        }
        let from = Version(rng.random_range(self.floor().unwrap_or(self.now()).0..=self.now().0));
        let older = self.floor().unwrap_or(self.now()).0.checked_sub(1);
        assert!(older.is_none_or(|older| self.store.hold_since(Version(older)).is_none()));
        self.since.push(self.store.hold_since(from).unwrap());
    }

    fn release(&mut self, rng: &mut Rng) {
        for holds in [&mut self.single, &mut self.since] {
            if !holds.is_empty() {
                holds.swap_remove(rng.random_range(0..holds.len()));
            }
        }
    }

    /// Compares a block at all versions, and where its contents are said to be.
    async fn compare(&self, lba: u64) {
        for version in (0..=self.now().0).map(Version) {
            let read = get(&*self.store, lba, version).await;
            match self.is_readable(version) {
                true => assert_eq!(read.unwrap(), self.states[version.0 as usize][lba as usize]),
                false => assert!(is_gone(&read, version), "{version}: {read:?}"),
            }
        }
        let all = self.store.locate(Lba(lba), Version(0), self.now()).unwrap();
        let versions = self.store.versions(Lba(lba)).await.unwrap();
        let spans: Vec<_> = all.iter().map(|it| (it.oldest, it.newest)).collect();
        let expected: Vec<_> = versions.iter().map(|it| (it.oldest, it.newest)).collect();
        assert_eq!(spans, expected);
        let mut after = 0;
        for (oldest, newest) in spans {
            assert!(self.is_readable(oldest) && self.is_readable(newest));
            // Nothing that can be read is left out.
            assert!((after..oldest.0).all(|version| !self.is_readable(Version(version))));
            let content = |version: u64| self.states[version as usize][lba as usize];
            assert!((oldest.0..=newest.0).all(|version| content(version) == content(oldest.0)));
            after = newest.0 + 1;
        }
        assert_eq!(after, self.now().0 + 1);
        let (from, to) = (Version(self.now().0 / 3), Version(self.now().0 / 2));
        let mut within = all;
        within.retain(|it| it.newest >= from && it.oldest <= to);
        assert_eq!(self.store.locate(Lba(lba), from, to).unwrap(), within);
    }
}

async fn follow(env: &Env, name: &str, store: Arc<dyn BlockStore>) {
    let mut rng = env.rng();
    let states = vec![vec![None; BLOCKS as usize]];
    let mut history = History { store, states, single: Vec::new(), since: Vec::new() };
    for step in 0..600 {
        match rng.random_range(0..100) {
            0..70 => history.change(&mut rng).await,
            70..80 => history.hold(&mut rng),
            80..94 => history.release(&mut rng),
            _ => history.compare(rng.random_range(0..BLOCKS / 4 + 1)).await,
        }
        if step % 100 == 99 {
            history.single.clear();
            history.since.clear();
        }
    }
    assert!(history.now() > Version(300), "{name}");
    // The contents that were held are released.
    history.single.clear();
    history.since.clear();
    env.sleep(Duration::from_secs(1)).await;
    assert_eq!(history.store.lapse_point(0), None, "{name}");
}

#[test]
fn ranges_of_versions_show_what_was_written() {
    for seed in 0..6 {
        run(seed, |env| async move {
            follow(&env, "reference", Arc::new(VersionedMemory::new(BLOCKS))).await;
            for kind in [Kind::chain(&env).await, Kind::in_place(&env).await] {
                follow(&env, kind.name(), kind.open(&env).await).await;
            }
        });
    }
}

#[test]
fn what_is_kept_is_bounded_by_blocks() {
    run(1, |env| async move {
        let kind = Kind::chain(&env).await;
        let keep = Keep::latest(u64::MAX).within(20);
        let store = Retained::new(&env, kind.open(&env).await, keep);
        let mut versions = Vec::new();
        for byte in 1..=100 {
            versions.push(put(&store, u64::from(byte % 3), byte).await);
        }
        // Each of them replaced one content, but for the first of each block.
        assert_eq!(store.oldest(), versions[100 - 20 - 1]);
        assert_eq!(get(&store, 1, versions[79]).await.unwrap(), Some(79));
    });
}

#[test]
fn versions_that_come_otherwise_are_kept_too() {
    run(1, |env| async move {
        let kind = Kind::chain(&env).await;
        let below = kind.open(&env).await;
        let keep = Keep::younger_than(Duration::from_secs(10));
        let store = Retained::new(&env, below.clone(), keep);
        let first = put(&*below, 3, 1).await;
        env.sleep(Duration::from_secs(5)).await;
        let second = put(&*below, 3, 2).await;
        env.sleep(Duration::from_secs(8)).await;
        assert_eq!(get(&store, 3, first).await.unwrap(), Some(1));
        env.sleep(Duration::from_secs(5)).await;
        assert!(is_gone(&get(&store, 3, first).await, first));
        assert_eq!(get(&store, 3, second).await.unwrap(), Some(2));
    });
}

#[test]
fn writers_get_the_room_of_what_is_kept() {
    run(1, |env| async move {
        let kind = Kind::chain(&env).await;
        let store = Retained::new(&env, kind.open(&env).await, Keep::latest(u64::MAX));
        let blocks = store.blocks();
        for nth in 0..6 * blocks {
            let write = Write::block(Lba(nth % blocks), block(1));
            let written = store.apply(vec![write]).await;
            assert!(!matches!(written, Err(StoreError::NoSpace)), "at write {nth}");
            written.unwrap();
        }
    });
}
