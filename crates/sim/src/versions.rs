//! A naive block store in memory: the reference for users of the block-store contract.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_store::block::{
    Applied, BLOCK_SIZE, Backpressure, BlockVersion, Blocks, Epoch, Hints, Hold, Lba, Lineage,
    Located, Locations, Residence, Retention, StoreError, Version, Versions, Write, WriteList,
};

type History = Vec<(Version, Option<Bytes>)>;

#[derive(Default)]
struct State {
    now: Version,
    blocks: BTreeMap<u64, History>,
    holds: BTreeMap<Version, u32>,
    /// The beginnings of ranges of held versions, in no order.
    since: Vec<Version>,
    poison: Option<Arc<str>>,
    full: bool,
}

/// Every version of every block, in memory. It checks its callers: a write must not change bytes of a
/// block that it does not list as changed.
pub struct VersionedMemory {
    blocks: u64,
    state: Arc<Mutex<State>>,
    syncs: AtomicU64,
    trusting: bool,
}

impl fmt::Debug for VersionedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionedMemory").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl VersionedMemory {
    /// An empty store of `blocks` blocks.
    pub fn new(blocks: u64) -> VersionedMemory {
        let syncs = AtomicU64::new(0);
        VersionedMemory { blocks, state: Arc::default(), syncs, trusting: false }
    }

    /// The same without that check.
    pub fn trusting(blocks: u64) -> VersionedMemory {
        VersionedMemory { trusting: true, ..VersionedMemory::new(blocks) }
    }

    /// Number of requests for durability.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Number of pinned versions.
    pub fn held(&self) -> usize {
        self.state.lock().holds.len()
    }

    /// Starts or stops refusing writes for lack of space.
    pub fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Fails every later write.
    pub fn poison(&self, why: &str) {
        self.state.lock().poison = Some(why.into());
    }

    fn apply_as(
        &self,
        version: Option<Version>,
        writes: &WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        for write in writes.iter() {
            self.check(write.lba, 1)?;
        }
        let mut state = self.state.lock();
        state.check_change()?;
        let version = version.unwrap_or(state.now.next());
        if version <= state.now || version.0 >= 1 << 48 {
            return Err(StoreError::Invalid(format!("version {version} is not newer")));
        }
        writes.iter().for_each(|write| state.apply(write, version, self.trusting));
        state.now = version;
        drop(state);
        let hold = (retention == Retention::Hold).then(|| self.hold(version)).flatten();
        Ok(Applied::new(version, hold, Backpressure::NONE))
    }

    /// Every version that is kept, joined where neighbours have the same content.
    fn contents(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        self.check(lba, 1)?;
        let state = self.state.lock();
        let history = state.blocks.get(&lba.0).map_or(&[][..], Vec::as_slice);
        let mut found: Vec<BlockVersion> = Vec::new();
        for version in state.kept() {
            let since = |at: Version| history.iter().rev().find(|(from, _)| *from <= at);
            let same = |a, b| since(a).map(|(from, _)| from) == since(b).map(|(from, _)| from);
            match found.last_mut() {
                Some(last) if same(last.newest, version) => last.newest = version,
                _ => {
                    let stored = state.get(lba.0, version).is_some();
                    found.push(BlockVersion { oldest: version, newest: version, stored });
                }
            }
        }
        Ok(found)
    }

    fn check(&self, lba: Lba, count: u64) -> Result<(), StoreError> {
        match lba.0.checked_add(count) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(StoreError::Invalid(format!("block {} is outside", lba.0))),
        }
    }
}

impl State {
    fn check_change(&self) -> Result<(), StoreError> {
        match &self.poison {
            Some(why) => Err(StoreError::Poisoned(why.clone())),
            None if self.full => Err(StoreError::NoSpace),
            None => Ok(()),
        }
    }

    fn is_kept(&self, version: Version) -> bool {
        version == self.now
            || self.holds.contains_key(&version)
            || (version <= self.now && self.since.iter().any(|since| *since <= version))
    }

    /// The versions that can be read, ascending.
    fn kept(&self) -> Vec<Version> {
        (0..=self.now.0).map(Version).filter(|version| self.is_kept(*version)).collect()
    }

    fn get(&self, lba: u64, at: Version) -> Option<Bytes> {
        let history = self.blocks.get(&lba)?;
        history.iter().rev().find(|(version, _)| *version <= at)?.1.clone()
    }

    fn put(&mut self, lba: u64, version: Version, content: Option<Bytes>) {
        self.blocks.entry(lba).or_default().push((version, content));
    }

    /// # Panics
    /// When a write changes bytes that it does not list.
    fn apply(&mut self, write: &Write, version: Version, trusting: bool) {
        let lba = write.lba.0;
        if let Some(content) = write.content.as_ref().filter(|_| !trusting) {
            let old = self.get(lba, version);
            let zeros = [0; BLOCK_SIZE];
            let mut expected = old.as_deref().unwrap_or(&zeros).to_vec();
            write.changed.copy(content, &mut expected);
            assert!(
                expected == content[..],
                "the write of block {lba} as version {version} changes bytes that it does not name"
            );
        }
        self.put(lba, version, write.content.clone());
    }
}

#[async_trait]
impl Blocks for VersionedMemory {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn epoch(&self) -> Epoch {
        Epoch::default()
    }

    fn now(&self) -> Version {
        self.state.lock().now
    }

    async fn read(
        &self,
        lba: Lba,
        count: u64,
        at: Version,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.check(lba, count)?;
        let state = self.state.lock();
        match state.is_kept(at) {
            true => Ok((lba.0..lba.0 + count).map(|lba| state.get(lba, at)).collect()),
            false if at > state.now => Err(not_yet(at)),
            false => Err(StoreError::Gone(at)),
        }
    }

    async fn read_newest(
        &self,
        lba: Lba,
        count: u64,
    ) -> Result<(Version, Vec<Option<Bytes>>), StoreError> {
        self.check(lba, count)?;
        let state = self.state.lock();
        let blocks = (lba.0..lba.0 + count).map(|lba| state.get(lba, state.now)).collect();
        Ok((state.now, blocks))
    }

    async fn submit(&self, writes: WriteList, retention: Retention) -> Result<Applied, StoreError> {
        self.apply_as(None, &writes, retention)
    }

    async fn discard(&self, lba: Lba, count: u64) -> Result<Version, StoreError> {
        self.check(lba, count)?;
        let mut state = self.state.lock();
        state.check_change()?;
        let version = state.now.next();
        (lba.0..lba.0 + count).for_each(|lba| state.put(lba, version, None));
        state.now = version;
        Ok(version)
    }

    async fn sync(&self, version: Version) -> Result<(), StoreError> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let now = self.now();
        match version <= now {
            true => Ok(()),
            false => Err(not_yet(version)),
        }
    }

    fn allocation(&self, lba: Lba, count: u64, at: Option<Version>) -> Vec<(u64, bool)> {
        let state = self.state.lock();
        let at = at.unwrap_or(state.now);
        (lba.0..lba.0 + count).map(|lba| (1, state.get(lba, at).is_some())).collect()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn room(&self) -> Option<u64> {
        None
    }

    fn max_transaction(&self) -> usize {
        usize::MAX
    }
}

#[async_trait]
impl Versions for VersionedMemory {
    fn hold(&self, version: Version) -> Option<Hold> {
        let mut state = self.state.lock();
        if !state.is_kept(version) {
            return None;
        }
        *state.holds.entry(version).or_default() += 1;
        let shared = self.state.clone();
        Some(Hold::new(version, move |version| {
            let mut state = shared.lock();
            if let Some(count) = state.holds.get_mut(&version) {
                *count -= 1;
                if *count == 0 {
                    state.holds.remove(&version);
                }
            }
        }))
    }

    fn hold_synced(&self) -> Option<Hold> {
        self.hold(self.now())
    }

    fn synced(&self) -> Option<Version> {
        Some(self.now())
    }

    async fn versions(&self, lba: Lba) -> Result<Vec<BlockVersion>, StoreError> {
        self.contents(lba)
    }

    fn hold_since(&self, version: Version) -> Option<Hold> {
        let mut state = self.state.lock();
        let can =
            version <= state.now && (version.0..=state.now.0).all(|it| state.is_kept(Version(it)));
        can.then_some(())?;
        state.since.push(version);
        let shared = self.state.clone();
        Some(Hold::new(version, move |version| {
            let since = &mut shared.lock().since;
            if let Some(at) = since.iter().position(|held| *held == version) {
                since.swap_remove(at);
            }
        }))
    }

    fn oldest(&self) -> Version {
        let state = self.state.lock();
        state.since.iter().copied().min().unwrap_or(state.now)
    }

    /// All in memory.
    fn locate(&self, lba: Lba, oldest: Version, newest: Version) -> Result<Locations, StoreError> {
        let versions = self.contents(lba)?.into_iter();
        let located = versions.map(|BlockVersion { oldest, newest, .. }| Located {
            oldest,
            newest,
            residence: Residence::Memory,
        });
        Ok(located.filter(|it| it.newest >= oldest && it.oldest <= newest).collect())
    }

    fn lapse_point(&self, _most: usize) -> Option<Version> {
        None
    }

    fn holds_take_room(&self) -> bool {
        true
    }
}

#[async_trait]
impl Lineage for VersionedMemory {
    async fn submit_at(
        &self,
        version: Version,
        writes: WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        self.apply_as(Some(version), &writes, retention)
    }
}

impl Hints for VersionedMemory {}

fn not_yet(version: Version) -> StoreError {
    StoreError::Invalid(format!("version {version} does not exist yet"))
}
