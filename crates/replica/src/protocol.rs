//! What a primary and a follower say to each other, over a [channel](thalweg_net::channel).
//!
//! The follower connects and makes one call, [`FromFollower::Follow`]; the primary answers with [`Answer`]. Everything else
//! is told without an answer, in both directions.

use serde::{Deserialize, Serialize};
use thalweg_net::hello::Hello;
use thalweg_store::block::{Lba, Version};
use thalweg_store::chain::{Fence, History, Shrink};
use uuid::Uuid;

/// The first bytes that each side sends.
pub const HELLO: Hello = Hello { magic: *b"thwg-rep", version: 3 };

/// Longest payload of a message in bytes, unless one transaction alone is longer.
pub const CHUNK: usize = 256 << 10;
/// Longest payload that a follower accepts: the largest transaction of a volume.
pub const LONGEST: usize = 512 << 20;

/// What a follower says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromFollower {
    /// It asks what it could follow, and how far that is ahead of a state. [`Answer::Is`].
    Describe(Option<State>),
    /// It wants to follow from its state on.
    Follow(State),
    /// It is the primary of the volume, or is about to be, from its state on. [`Answer::Is`] when the other one is fenced.
    Announce(State),
    /// It asks how far the primary is. [`FromPrimary::Told`].
    Ask(u64),
    /// What survives its crash.
    Durable(Durable),
    /// It asks for the content of a block that has this [checksum](thalweg_store::chain::format::block_checksum): its own is
    /// damaged. [`Answer::Content`].
    Fetch {
        /// The block.
        lba: Lba,
        /// The checksum.
        checksum: u32,
    },
}

/// What survives a crash of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// The versions up to this one.
    pub version: Version,
    /// Whether that is a state of the primary's volume, or a part of one.
    pub is_whole: bool,
    /// The primary's count of changed bytes at that version, if it is known.
    pub total: Option<u64>,
}

/// The state of a follower.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its volume.
    pub volume: Uuid,
    /// Its logical blocks.
    pub blocks: u64,
    /// Its timelines.
    pub history: History,
    /// Its newest version.
    pub version: Version,
    /// Whether that is a state of the primary's volume, or a part of one.
    pub is_whole: bool,
    /// Its term: how often a replica was promoted.
    pub term: u32,
    /// The number that tells it from the other followers; 0 for a volume that has followed none.
    pub replica: u32,
}

/// The answer to a call of a follower.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The volume is this.
    Is(Described),
    /// The changes after the follower's version come.
    Follows {
        /// The primary's timelines.
        history: History,
        /// Its term.
        term: u32,
        /// Its logical blocks.
        blocks: u64,
        /// When it last became smaller.
        shrink: Option<Shrink>,
    },
    /// They do not.
    Refused(Refusal),
    /// The content is in the payload.
    Content,
    /// The newest content of the block is another one, or is damaged here, too.
    NoContent,
}

/// What a volume is that may be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Its identity.
    pub volume: Uuid,
    /// Its logical blocks.
    pub blocks: u64,
    /// Its newest version.
    pub newest: Version,
    /// Its count of changed bytes there, since its process began.
    pub total: u64,
    /// Its term.
    pub term: u32,
    /// The primary that has taken its place.
    pub fence: Option<Fence>,
    /// How far the state that came with the question is behind, if one came.
    pub behind: Option<Behind>,
}

/// How far a state is behind the newest one, as far as the primary knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// Versions.
    pub versions: u64,
    /// Bytes that they change, or some more.
    pub bytes: Option<u64>,
    /// How many milliseconds ago the state was the newest one: at most so many.
    pub ms: Option<u64>,
}

/// Why a primary does not let a volume follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// It is of another volume.
    #[error("it is a replica of volume {theirs}, and this is volume {ours}")]
    OtherVolume {
        /// The follower's.
        theirs: Uuid,
        /// The primary's.
        ours: Uuid,
    },
    /// It has versions that the primary does not have.
    #[error(
        "it has version {theirs} of a timeline that is at version {ours} here: it was written as a primary, or this volume \
         was restored from an older copy"
    )]
    Ahead {
        /// The follower's newest version.
        theirs: Version,
        /// The primary's.
        ours: Version,
    },
    /// The two have gone different ways.
    #[error("it and the volume have gone different ways since version {0}")]
    Apart(Version),
    /// They have no state in common that is known.
    #[error("it has no state in common with the volume; make the replica anew")]
    Strange,
    /// The node follows another one itself, or itself.
    #[error("the volume follows another one itself")]
    NotPrimary,
    /// The volume is fenced.
    #[error(
        "it is the primary no longer: a replica of the volume was promoted (term {0}), which is the one to follow"
    )]
    Fenced(u32),
    /// Two primaries have the same term, and different timelines.
    #[error(
        "both are primaries of term {0}, which went different ways: two replicas were promoted; end one of them, and make it \
         anew as a replica of the other"
    )]
    SameTerm(u32),
    /// The primary that announces itself has lost its place to this one.
    #[error("a replica was promoted in its place (term {})", .0.term)]
    Superseded(Box<State>),
    /// The primary has a lower term than one that the follower has followed.
    #[error(
        "it has term {theirs}, and this replica has followed a primary of term {ours}: a replica was promoted, which is the \
         one to follow"
    )]
    Outdated {
        /// The follower's.
        ours: u32,
        /// The primary's.
        theirs: u32,
    },
}

/// What a primary says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromPrimary {
    /// Records ([`super::record`]), in the payload. The first one comes after this version.
    Changes {
        /// The version before the first record.
        after: Version,
        /// CRC-32C of the payload.
        checksum: u32,
        /// The primary's count of changed bytes at the last record; `None` within a copy.
        total: Option<u64>,
    },
    /// Versions up to this one survive a crash of the primary: the follower may apply them.
    Durable(Version),
    /// What comes up to version `until` is the newest content of the blocks that changed since the follower's version, in
    /// the order of their versions: the follower has a state of the volume when it has reached `until`.
    Copy {
        /// The version that the copy leads to.
        until: Version,
        /// Blocks in it.
        blocks: u64,
        /// Logical blocks of the volume then.
        size: u64,
    },
    /// The answer to [`FromFollower::Ask`].
    Told {
        /// The number of the question.
        number: u64,
        /// The primary's newest version.
        newest: Version,
        /// Its newest version that survives a crash.
        durable: Version,
        /// Its count of changed bytes at the newest version. It counts from the beginning of its process.
        total: u64,
    },
}
