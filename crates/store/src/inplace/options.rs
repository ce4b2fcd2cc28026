//! How an in-place store runs.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What goes into the journal (Okeanos 3.2; ext3's words where it has them).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Metadata. Data goes home when it will: after a crash a new block may hold what it held before.
    Writeback,
    /// Metadata, once the data that was written before it is home.
    Ordered,
    /// Metadata, and every data block that changed, as a whole.
    Data,
    /// Metadata and data, in both the bytes that changed (3.2.1).
    #[default]
    Wasteless,
    /// As wasteless for writes below the threshold, as ordered for others (3.2.2).
    Selective,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Mode; 5] =
        [Mode::Writeback, Mode::Ordered, Mode::Data, Mode::Wasteless, Mode::Selective];

    /// The mode's name in options and figures.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Writeback => "writeback",
            Mode::Ordered => "ordered",
            Mode::Data => "data",
            Mode::Wasteless => "wasteless",
            Mode::Selective => "selective",
        }
    }

    /// Whether all data goes through the journal, so that a crash leaves one version of all blocks.
    pub const fn journals_all_data(self) -> bool {
        matches!(self, Mode::Data | Mode::Wasteless)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        let named = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        // ext3 calls journaling of data by this name too.
        let named = named.or((name == "journal").then_some(Mode::Data));
        named.ok_or_else(|| {
            let names = Mode::ALL.map(Mode::name).join(", ");
            format!("`{name}` is no journaling mode; there are {names}")
        })
    }
}

/// How an in-place store runs; all of it may change while it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What goes into the journal.
    pub mode: Mode,
    /// In [`Mode::Selective`], writes of so many bytes and more go home directly. Up to a block, what
    /// counts is how much of the block a write changes; beyond, how much the whole write does.
    pub threshold: u32,
    /// A transaction is committed when it is so old.
    pub commit: Duration,
    /// Whether devices are told to flush. Without, what was acknowledged survives a crash of the
    /// program and not a power cut.
    pub barrier: bool,
    /// How often dirty blocks are looked for that have to go home.
    pub writeback: Duration,
    /// Age at which a dirty block goes home.
    pub expire: Duration,
    /// Blocks that go home take those between them along, though these are there, where that is not more
    /// than so many bytes and in memory: one long write for several short ones. `None`: as suits the
    /// device, which is [`Options::ROTATIONAL_GAP`] for one that moves an arm, and otherwise nothing.
    pub gap: Option<u32>,
    /// Whether the data's device moves an arm: there reads and writes home take turns. `None`: as it says
    /// itself, which for a virtual one need not be true.
    pub rotational: Option<bool>,
    /// Bytes of blocks in memory. Blocks that wait to go home stay in memory, and writes wait when
    /// they are more than half of it.
    pub cache: usize,
    /// Whether devices are told of blocks that are not needed any more.
    pub discard: bool,
}

impl Options {
    /// What an arm passes over in about the time in which it gets to another place nearby: half a
    /// millisecond.
    pub const ROTATIONAL_GAP: u32 = 64 << 10;
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: Mode::default(),
            threshold: 4096,
            commit: Duration::from_secs(5),
            barrier: true,
            writeback: Duration::from_secs(5),
            expire: Duration::from_secs(30),
            gap: None,
            rotational: None,
            cache: 256 << 20,
            discard: false,
        }
    }
}
