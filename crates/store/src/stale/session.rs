//! Sessions: what a client has read and written, as the versions that its next reads may have (5.3.4).
//!
//! A guarantee becomes a range of versions, V_low to V_up, of which any will do. Each read and each write moves what
//! the next range begins with. Nothing here reads or writes: a reader asks [`Session::needs`], and tells
//! [`Session::has_read`] and [`Session::has_written`].

use std::time::Duration;

use thalweg_env::HashMap;

use super::{Guarantee, SessionToken};
use crate::block::{Lba, Position, Relation, Version};

/// Items of which a session remembers the versions one by one.
pub const ITEMS: usize = 4096;

/// What a session reads and writes: a block, or a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Item {
    /// A block.
    Block(Lba),
    /// A key of a store.
    Key(Box<[u8]>),
}

/// The versions at which items were read or written.
///
/// It knows [`ITEMS`] items at most. Of the others it knows one version that is new enough for each, which only
/// narrows what is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks {
    /// No mark of an item that is not listed is newer.
    others: Version,
    items: HashMap<Item, Version>,
    newest: Version,
}

impl Marks {
    fn at(&self, item: &Item) -> Version {
        self.items.get(item).copied().unwrap_or(self.others)
    }

    fn raise(&mut self, item: &Item, version: Version) {
        self.newest = self.newest.max(version);
        if version <= self.at(item) {
            return;
        }
        self.items.insert(item.clone(), version);
        if self.items.len() > ITEMS {
            self.forget_half();
        }
    }

    /// Forgets the older half of the items.
    fn forget_half(&mut self) {
        let mut versions: Vec<Version> = self.items.values().copied().collect();
        versions.sort_unstable();
        let median = versions[versions.len() / 2];
        self.items.retain(|_, version| *version > median);
        self.others = self.others.max(median);
    }

    /// One mark for all items.
    fn flat(version: Version) -> Marks {
        Marks { others: version, items: HashMap::default(), newest: version }
    }
}

/// The versions that a node has, and what it knows of their age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The newest version that it has.
    pub newest: Version,
    /// The newest one that a crash cannot take back.
    pub durable: Version,
    /// Whether its newest version is the newest there is.
    pub is_primary: bool,
    /// The oldest version that is no older than the guarantee's bound; `None` when no version is known to be young enough.
    pub young_enough: Option<Version>,
    /// How [`Needs::after`] relates to it; `None` when there is no such need.
    pub relation: Option<Relation>,
}

/// A range of versions, of which any will do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct VersionRange {
    /// The oldest, V_low.
    pub low: Version,
    /// The newest, V_up.
    pub up: Version,
}

impl VersionRange {
    /// The versions that both ranges have; `None` when there are none.
    pub fn and(self, other: VersionRange) -> Option<VersionRange> {
        let both = VersionRange { low: self.low.max(other.low), up: self.up.min(other.up) };
        (both.low <= both.up).then_some(both)
    }
}

/// Why a node cannot serve a session.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize,
)]
pub enum Unserved {
    /// Ask another node, or wait: this one is not there yet.
    #[error("the guarantee needs version {0}, which this node does not have yet")]
    Behind(Version),
    /// Ask the primary.
    #[error("only the primary can give this guarantee")]
    NotPrimary,
    /// Ask another node: this one may be older than the bound.
    #[error("this node does not know that it is as young as the guarantee needs")]
    TooOld,
    /// Begin a new session: a part of what this one has seen was lost in a crash or at a promotion.
    #[error(
        "the volume has gone another way than the session saw it, up to version {0}: that was lost in a crash, taken \
         back, or written at another primary; begin a new session"
    )]
    Apart(Version),
    /// Ask another node, or wait: this one has no state of the volume yet.
    #[error("the replica has no whole state yet: its first copy is under way")]
    NoState,
}

/// What a read needs of the versions of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Needs {
    /// None that is older.
    pub low: Version,
    /// The newest version there is.
    pub is_newest: bool,
    /// None that is older than so long.
    pub max_age: Option<Duration>,
    /// None that so many later updates of a block have replaced; without a block, so many later commits.
    pub max_updates: Option<(u64, Option<Lba>)>,
    /// This version alone.
    pub at: Option<Version>,
    /// A node that has gone another way than this state will not do.
    pub after: Option<Position>,
}

impl Needs {
    /// The versions of a node that meet the needs, but for [`Needs::max_updates`] of a block.
    ///
    /// # Errors
    /// [`Unserved`].
    pub fn range(&self, node: &Node) -> Result<VersionRange, Unserved> {
        self.check_way(node)?;
        if let Some(at) = self.at {
            return match at <= node.newest {
                true => Ok(VersionRange { low: at, up: at }),
                false => Err(Unserved::Behind(at)),
            };
        }
        if self.is_newest {
            return match node.is_primary {
                true => Ok(VersionRange { low: node.newest, up: node.newest }),
                false => Err(Unserved::NotPrimary),
            };
        }
        let mut low = self.low;
        if self.max_age.is_some() {
            low = low.max(node.young_enough.ok_or(Unserved::TooOld)?);
        }
        if self.max_updates.is_some() && !node.is_primary {
            // How many updates there are that it does not have, it does not know.
            return Err(Unserved::NotPrimary);
        }
        if let Some((most, None)) = self.max_updates {
            low = low.max(Version(node.newest.0.saturating_sub(most)));
        }
        match low <= node.newest {
            // What a crash may take back is not shown, unless the session has seen it already.
            true => Ok(VersionRange { low, up: node.durable.max(low) }),
            false => Err(Unserved::Behind(low)),
        }
    }

    /// Versions are compared with those of a node only if both are of one history.
    pub(super) fn check_way(&self, node: &Node) -> Result<(), Unserved> {
        let (Some(after), Some(relation)) = (self.after, node.relation) else { return Ok(()) };
        match relation {
            Relation::Past | Relation::Future => Ok(()),
            Relation::Apart(_) => Err(Unserved::Apart(after.version)),
            Relation::Strange if node.is_primary => Err(Unserved::Apart(after.version)),
            // A follower hears of a new timeline when it next meets its primary.
            Relation::Strange => Err(Unserved::Behind(after.version)),
        }
    }
}

/// A client's session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    guarantee: Guarantee,
    reads: Marks,
    writes: Marks,
    /// The newest state that it has seen.
    position: Option<Position>,
}

impl Session {
    /// A session that has read and written nothing.
    pub fn new(guarantee: Guarantee) -> Session {
        Session { guarantee, ..Session::default() }
    }

    /// A session that goes on where another one was.
    pub fn resumed(guarantee: Guarantee, token: &SessionToken) -> Session {
        let (reads, writes) = (Marks::flat(token.read), Marks::flat(token.written));
        Session { guarantee, reads, writes, position: token.position }
    }

    /// How far it has come, for [`Session::resumed`].
    pub fn token(&self) -> SessionToken {
        let (read, written) = self.newest();
        SessionToken { read, written, position: self.position }
    }

    /// What it needs.
    pub fn guarantee(&self) -> Guarantee {
        self.guarantee
    }

    /// The newest versions that it has read and written.
    pub fn newest(&self) -> (Version, Version) {
        (self.reads.newest, self.writes.newest)
    }

    /// What it needs of a read of `item`.
    pub fn needs(&self, item: &Item) -> Needs {
        let guarantee = &self.guarantee;
        let marks = [
            (guarantee.read_my_writes, self.writes.at(item)),
            (guarantee.monotonic_reads, self.reads.at(item)),
            (guarantee.causal, self.reads.newest.max(self.writes.newest)),
        ];
        let low = marks.into_iter().filter_map(|(is_needed, mark)| is_needed.then_some(mark)).max();
        // What compares versions with those that the session has seen, or wants the newest there are.
        let goes_forward = low.is_some()
            || guarantee.strong
            || guarantee.max_age.is_some()
            || guarantee.max_updates.is_some();
        Needs {
            low: low.unwrap_or_default(),
            is_newest: guarantee.strong,
            max_age: guarantee.max_age,
            max_updates: guarantee.max_updates.map(|most| match item {
                Item::Block(lba) => (most, Some(*lba)),
                Item::Key(_) => (most, None),
            }),
            at: guarantee.at,
            after: self.position.filter(|_| goes_forward),
        }
    }

    /// The newest state that it has seen, on any machine; `None` for a volume without replicas.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    fn see(&mut self, position: Option<Position>) {
        let is_newer = |new: &Position| self.position.is_none_or(|old| new.version > old.version);
        self.position = position.filter(is_newer).or(self.position);
    }

    /// Checks that a write of the session may be made at a node, whose newest version is `newest`.
    ///
    /// # Errors
    /// [`Unserved::Behind`].
    pub fn may_write(&self, newest: Version) -> Result<(), Unserved> {
        let guarantee = &self.guarantee;
        let mut low = Version(0);
        if guarantee.monotonic_writes || guarantee.read_my_writes || guarantee.causal {
            low = low.max(self.writes.newest);
        }
        if guarantee.writes_follow_reads || guarantee.causal {
            low = low.max(self.reads.newest);
        }
        if low <= newest { Ok(()) } else { Err(Unserved::Behind(low)) }
    }

    /// Notes that it has read `item` as it is in the versions of `range`; `position` names the oldest of them, if it has
    /// a name.
    pub fn has_read(&mut self, item: &Item, range: VersionRange, position: Option<Position>) {
        // Any of these versions would do again, so the oldest leaves the most choice.
        self.reads.raise(item, range.low);
        self.see(position);
    }

    /// Notes that it has written `item` as `version`, which `position` names, if it has a name.
    pub fn has_written(&mut self, item: &Item, version: Version, position: Option<Position>) {
        self.writes.raise(item, version);
        self.see(position);
    }
}

#[cfg(test)]
mod tests;
