//! What the connections of a primary share, and which volumes may follow it.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_net::Traffic;
use thalweg_store::block::{Blocks, Lba, Version};
use thalweg_store::chain::format::block_checksum;
use thalweg_store::chain::{Chain, Relation};

use super::backlog::{Backlog, Newest, Room};
use super::claim::{self, GiveWayError};
use super::pace::Pace;
use super::protocol::{Described, Refusal, State};
use super::roster::{Known, Roster};

/// How a primary treats its followers.
#[derive(Clone, Copy, Debug)]
pub struct PrimaryOptions {
    /// The memory of the backlog.
    pub room: Room,
    /// A follower that says nothing for so long is lost.
    pub patience: Duration,
    /// Followers at which a change is durable before a user's sync of it returns. Syncs wait while there are fewer.
    pub ack: usize,
    /// The most bytes that all copies together send in a second. Followers that have a state get what is written without
    /// this limit.
    pub copy_rate: Option<NonZeroU64>,
}

impl Default for PrimaryOptions {
    fn default() -> PrimaryOptions {
        let (room, patience) = (Room::default(), Duration::from_secs(10));
        PrimaryOptions { room, patience, ack: 0, copy_rate: None }
    }
}

/// A connected follower.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ReplicaStatus {
    /// Its client's name.
    pub name: String,
    /// The version up to which changes were sent.
    pub sent: u64,
    /// The newest version that survives a crash of the follower.
    pub durable: u64,
    /// Versions of the primary that do not survive there.
    pub behind_versions: u64,
    /// Bytes that they change, if that is known.
    pub behind_bytes: Option<u64>,
    /// How long ago the state that survives there was the newest one, if that is known: at most so long.
    pub behind_ms: Option<u64>,
    /// Blocks of a copy that were sent, and all of them, while one is under way.
    pub copy: Option<(u64, u64)>,
    /// Bytes of records that were sent to it.
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) chain: Arc<Chain>,
    pub(super) options: PrimaryOptions,
    pub(super) backlog: Arc<Backlog>,
    pub(super) roster: Arc<Roster>,
    pub(super) pace: Pace,
    /// What was sent to all followers.
    pub(super) traffic: Traffic,
}

impl Shared {
    pub(super) fn status_of(&self, known: &Known) -> ReplicaStatus {
        let backlog = &self.backlog;
        let state = known.durable_state();
        let version = state.map_or(Version(0), |state| state.version);
        let as_of = state.and_then(|state| backlog.current_as_of(state.version));
        let newest = backlog.newest();
        let behind_bytes = match version >= newest.version {
            true => Some(0),
            false => state.and_then(|it| it.total).map(|it| newest.total.saturating_sub(it)),
        };
        ReplicaStatus {
            name: known.name.clone(),
            sent: known.sent.0,
            durable: version.0,
            behind_versions: newest.version.0.saturating_sub(version.0),
            behind_bytes,
            behind_ms: as_of.map(|as_of| backlog.elapsed_ms(as_of)),
            copy: known.copy,
            bytes: known.bytes,
        }
    }

    pub(super) fn described(&self, to: Option<&State>) -> Described {
        let label = self.chain.label();
        let Newest { version, total } = self.backlog.newest();
        Described {
            volume: label.volume,
            blocks: label.blocks,
            newest: version,
            total,
            term: label.term,
            fence: label.fence,
            behind: to.map(|state| self.backlog.behind(state.version)),
        }
    }

    /// The newest content of a block, if it has this checksum.
    pub(super) async fn content(&self, lba: Lba, checksum: u32) -> Option<Bytes> {
        let (_, mut read) = self.chain.read_newest(lba, 1).await.ok()?;
        read.pop().flatten().filter(|content| block_checksum(lba, content) == checksum)
    }

    /// Gives way to a primary with a higher term, of which `theirs` speaks; says whether it has one.
    async fn give_way(&self, theirs: &State) -> Result<bool, Refusal> {
        match claim::give_way(&self.chain, theirs).await {
            Ok(is_higher) => Ok(is_higher),
            Err(GiveWayError::Strange) => Err(Refusal::Strange),
            Err(GiveWayError::Chain(error)) => {
                // Its users write nothing any more; whether that survives a crash is not known.
                tracing::error!(%error, "the volume cannot be fenced durably");
                Err(Refusal::Fenced(theirs.term))
            }
        }
    }

    /// Whether a volume in this state may follow.
    pub(super) async fn admit(&self, theirs: &State) -> Result<(), Refusal> {
        self.check_volume(theirs)?;
        self.give_way(theirs).await?;
        self.decide(theirs)
    }

    /// Answers a volume in this state that calls itself the primary.
    pub(super) async fn hear_claim(&self, theirs: &State) -> Result<Described, Refusal> {
        self.check_volume(theirs)?;
        self.give_way(theirs).await?;
        let own = State::of(&self.chain);
        let described = self.described(Some(theirs));
        match described.fence {
            _ if self.chain.label().follows => Ok(described),
            Some(fence) if fence.term >= theirs.term => Ok(described),
            _ if theirs.term < own.term => Err(Refusal::Superseded(Box::new(own))),
            _ => Err(Refusal::SameTerm(own.term)),
        }
    }

    fn check_volume(&self, theirs: &State) -> Result<(), Refusal> {
        match (theirs.volume, self.chain.label().volume) {
            (theirs, ours) if theirs != ours => Err(Refusal::OtherVolume { theirs, ours }),
            _ => Ok(()),
        }
    }

    fn decide(&self, theirs: &State) -> Result<(), Refusal> {
        let label = self.chain.label();
        let newest = self.chain.now();
        if let Some(fence) = label.fence {
            return Err(Refusal::Fenced(fence.term));
        }
        if label.follows {
            return Err(Refusal::NotPrimary);
        }
        if theirs.history.is_empty() && theirs.version == Version(0) {
            return Ok(());
        }
        match label.history.relation_of(&theirs.history, theirs.version, newest) {
            Relation::Past => Ok(()),
            Relation::Future => Err(Refusal::Ahead { theirs: theirs.version, ours: newest }),
            Relation::Apart(since) => Err(Refusal::Apart(since)),
            Relation::Strange => Err(Refusal::Strange),
        }
    }
}
