//! Blocks at versions (table 5.2).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use thalweg_env::Env;
use uuid::Uuid;

use super::choose::{self, BUDGET};
use super::cost::Reading;
use super::{
    Cost, CostModel, Costs, Item, Needs, Node, Session, StaleError, Standing, Unserved, Upstream,
    VersionRange,
};
use crate::block::{
    BlockStore, BlocksExt, Lba, Located, Position, Residence, Retained, Retention, StoreError,
    Version, Write, WriteList,
};

/// What a read got.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Got<T> {
    /// The value.
    pub value: T,
    /// Versions that have it.
    pub range: VersionRange,
    /// How long ago it was replaced, at most; `None` when that is not known.
    pub age: Option<Duration>,
    /// The node that had it, of a volume on several nodes.
    pub node: Option<Arc<str>>,
}

/// A block store whose versions are read by what they cost. Clones share what they have learned of the devices.
#[derive(Clone, Debug)]
pub struct Versioned {
    env: Env,
    store: Arc<dyn BlockStore>,
    retained: Option<Arc<Retained>>,
    upstream: Option<Arc<Upstream>>,
    costs: Arc<dyn Costs>,
    budget: usize,
}

impl Versioned {
    /// The versions of `store`: those that it keeps anyway.
    pub fn new(env: &Env, store: Arc<dyn BlockStore>) -> Versioned {
        let (env, costs) = (env.clone(), Arc::new(CostModel::new(env)));
        Versioned { env, store, retained: None, upstream: None, costs, budget: BUDGET }
    }

    /// The versions that `retained` keeps.
    pub fn of(env: &Env, retained: Arc<Retained>) -> Versioned {
        let store: Arc<dyn BlockStore> = retained.clone();
        Versioned { retained: Some(retained), ..Versioned::new(env, store) }
    }

    /// The same for a store that follows another one: it is not the primary, and its versions may be older than they
    /// look here.
    pub fn following(self, upstream: Arc<Upstream>) -> Versioned {
        Versioned { upstream: Some(upstream), ..self }
    }

    /// The same with other costs.
    pub fn with_costs(self, costs: Arc<dyn Costs>) -> Versioned {
        Versioned { costs, ..self }
    }

    /// The same with a query budget Q of `budget` versions for each block that is read (5.3.1).
    pub fn with_budget(self, budget: usize) -> Versioned {
        Versioned { budget, ..self }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn BlockStore> {
        &self.store
    }

    /// The versions that it has, for a read with these needs.
    pub fn node(&self, needs: &Needs) -> Node {
        let young_enough = needs.max_age.and_then(|age| match (&self.upstream, &self.retained) {
            (Some(upstream), _) => upstream.young_enough(self.env.now(), age, || self.store.now()),
            // What the new primary has, a fenced one does not know.
            (None, _) if self.is_fenced() => None,
            (None, Some(retained)) => Some(retained.young_enough(age)),
            (None, None) => Some(self.store.now()),
        });
        let relation = needs.after.and_then(|after| self.store.relation(after));
        let newest = self.store.now();
        let durable = self.durable().min(newest);
        Node { newest, durable, is_primary: self.is_primary(), young_enough, relation }
    }

    fn durable(&self) -> Version {
        self.store.synced().unwrap_or_else(|| self.store.oldest())
    }

    /// Whether it has the newest state: it follows no other volume, and none has replaced it.
    pub fn is_primary(&self) -> bool {
        self.upstream.is_none() && !self.is_fenced()
    }

    fn is_fenced(&self) -> bool {
        self.store.is_fenced()
    }

    /// What it says of itself to clients that choose among nodes.
    pub fn standing(&self) -> Standing {
        // Asked for first: what came since makes the state younger than that.
        let newest = self.store.now();
        let age = self.age(newest);
        Standing {
            newest,
            position: self.position_of(newest),
            durable: self.durable().min(newest),
            term: self.store.term(),
            is_primary: self.is_primary(),
            age,
        }
    }

    /// The timeline to which the next version will belong, if there is one.
    pub fn timeline(&self) -> Option<Uuid> {
        self.store.timeline()
    }

    /// Checks that it has not gone another way than a state that a session has seen.
    ///
    /// # Errors
    /// [`Unserved::Apart`]; [`Unserved::Behind`] when it may not have heard of that way yet.
    pub fn check_way(&self, after: Position) -> Result<(), Unserved> {
        let needs = Needs { after: Some(after), ..Needs::default() };
        needs.check_way(&self.node(&needs))
    }

    /// The name of a version on every machine; `None` where it has none.
    pub fn position_of(&self, version: Version) -> Option<Position> {
        self.store.position_of(version)
    }

    /// Gives a block a content as of a version (*WriteVersion*), which is newer than all before. The content has
    /// [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes; `None` discards the block.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a version that is not newer, and from a store that numbers its versions itself.
    pub async fn write_version(
        &self,
        lba: Lba,
        version: Version,
        content: Option<Bytes>,
    ) -> Result<(), StaleError> {
        let write = Write { content, ..Write::block(lba, Bytes::new()) };
        Ok(self.write_all(version, vec![write]).await?)
    }

    pub(super) async fn write_all(
        &self,
        version: Version,
        writes: Vec<Write>,
    ) -> Result<(), StoreError> {
        let writes = WriteList::new(writes)?;
        let applied = self.store.submit_at(version, writes, Retention::Newest).await?;
        applied.settle().await;
        Ok(())
    }

    /// The cost of reading a block at a version (*GetCost*).
    ///
    /// # Errors
    /// As [`Versioned::read_version`].
    pub fn cost(&self, lba: Lba, version: Version) -> Result<Cost, StaleError> {
        Ok(self.costs.cost(&self.content_at(lba, version)?.residence))
    }

    /// The versions in which a block has the content of a version (*GetVersionRange*), as far as they can be read.
    ///
    /// # Errors
    /// As [`Versioned::read_version`].
    pub fn version_range(&self, lba: Lba, version: Version) -> Result<VersionRange, StaleError> {
        let found = self.content_at(lba, version)?;
        Ok(VersionRange { low: found.oldest, up: found.newest })
    }

    fn content_at(&self, lba: Lba, version: Version) -> Result<Located, StoreError> {
        let now = self.store.now();
        if version > now {
            let why = format!("version {version} does not exist yet, but {now}");
            return Err(StoreError::Invalid(why));
        }
        let found = self.store.locate(lba, version, version)?;
        found.first().copied().ok_or(StoreError::Gone(version))
    }

    /// The contents of a block in a range of versions, oldest first, each with its cost: *GetCost* and *GetVersionRange*
    /// of all of them in one call.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] outside of the volume.
    pub fn contents(
        &self,
        lba: Lba,
        range: VersionRange,
    ) -> Result<Vec<(VersionRange, Cost)>, StoreError> {
        let located = self.store.locate(lba, range.low, range.up)?;
        let costs = self.costs.costs(&located.iter().collect::<SmallVec<[_; 8]>>());
        let ranges =
            located.iter().map(|content| VersionRange { low: content.oldest, up: content.newest });
        Ok(ranges.zip(costs).collect())
    }

    /// The contents of some blocks in the version in which they cost least together; the oldest of several versions that cost
    /// the same.
    ///
    /// # Errors
    /// [`StoreError::Gone`] when none of these versions can be read; [`StoreError::Invalid`] outside of the volume.
    pub(super) fn cheapest(
        &self,
        lbas: Range<u64>,
        range: VersionRange,
    ) -> Result<Vec<Located>, StoreError> {
        let locate = |lba| self.store.locate(Lba(lba), range.low, range.up);
        let blocks = lbas.map(locate).collect::<Result<Vec<_>, _>>()?;
        let gone = || StoreError::Gone(range.up);
        if let [contents] = &blocks[..] {
            let found = choose::cheapest(contents, self.budget, &*self.costs);
            return Ok(vec![*found.ok_or_else(gone)?.0]);
        }
        let version = choose::cheapest_together(&blocks, range.low, self.budget, &*self.costs);
        let version = version.ok_or_else(gone)?;
        let chosen = blocks.iter().map(|contents| choose::at(contents, version).copied());
        chosen.collect::<Option<Vec<_>>>().ok_or_else(gone)
    }

    /// Reads blocks at a version in which they are in one place, and learns from the time that it took.
    pub(super) async fn fetch(
        &self,
        lba: Lba,
        count: u64,
        version: Version,
        from: Residence,
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
        let since = self.env.now();
        let reading = Reading::begin(&*self.costs, from);
        let contents = self.store.read(lba, count, version).await?;
        reading.learn(self.env.now().since(since));
        Ok(contents)
    }

    /// How old a version is, at most.
    pub fn age(&self, version: Version) -> Option<Duration> {
        if let Some(upstream) = &self.upstream {
            return upstream.age(self.env.now(), version, || self.store.now());
        }
        if self.is_fenced() {
            return None;
        }
        if version >= self.store.now() {
            return Some(Duration::ZERO);
        }
        self.retained.as_ref()?.age(version)
    }

    /// Writes a block for a session: [`BLOCK_SIZE`](crate::block::BLOCK_SIZE) bytes, or `None` to discard it. It is durable
    /// after a sync of the version that is returned.
    ///
    /// # Errors
    /// [`Unserved`](super::Unserved), and those of the store.
    pub async fn write(
        &self,
        session: &mut Session,
        lba: Lba,
        content: Option<Bytes>,
    ) -> Result<Version, StaleError> {
        session.may_write(self.store.now())?;
        let write = Write { content, ..Write::block(lba, Bytes::new()) };
        let version = self.store.apply(vec![write]).await?;
        session.has_written(&Item::Block(lba), version, self.position_of(version));
        Ok(version)
    }
}
