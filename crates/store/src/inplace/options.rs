//! Journaling modes and options of an in-place store.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Which part of a change goes into the journal (Okeanos 3.2; names as in ext3 where it has them).
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Metadata. Data is written in place at any time: after a crash a new block may show its
    /// former content.
    Writeback,
    /// Metadata, after the data that was written before it is in place.
    Ordered,
    /// Metadata, and each data block that changed, as a whole.
    Data,
    /// The changed bytes of metadata and data (3.2.1).
    #[default]
    Wasteless,
    /// Like wasteless for writes below the threshold, like ordered for larger ones (3.2.2).
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
        // ext3 also has this name for journaling of data.
        let named = named.or((name == "journal").then_some(Mode::Data));
        named.ok_or_else(|| {
            let names = Mode::ALL.map(Mode::name).join(", ");
            format!("`{name}` is no journaling mode; there are {names}")
        })
    }
}

/// Options of an in-place store; all may change while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The journaling mode.
    pub mode: Mode,
    /// In [`Mode::Selective`], writes of so many bytes or more are written in place directly. Up to
    /// the size of a block this counts the bytes that change in each block; beyond, the bytes of
    /// the whole write.
    pub threshold: u32,
    /// Age at which the running transaction is committed.
    pub commit: Duration,
    /// Whether flushes are sent to devices. Without them acknowledged writes survive a crash of the
    /// program, but not a power cut.
    pub barrier: bool,
    /// Interval of the background writeback.
    pub writeback: Duration,
    /// Age at which a dirty block is written back.
    pub expire: Duration,
    /// Writeback closes gaps of up to so many bytes between dirty blocks, by writing unchanged
    /// cached blocks again: one long write instead of several short ones. `None`:
    /// [`Options::ROTATIONAL_GAP`] on a rotational disk, else zero.
    pub gap: Option<u32>,
    /// Whether the data device is a rotational disk, on which reads and writeback are scheduled in
    /// batches. `None`: as the device reports, which may be wrong for a virtual one.
    pub rotational: Option<bool>,
    /// Bytes of blocks in memory. Dirty blocks stay in memory; writes wait while these take more
    /// than half of it.
    pub cache: usize,
    /// Whether discarded blocks are discarded on the device.
    pub discard: bool,
}

impl Options {
    /// What a rotational disk passes over in about the time of a short seek: half a millisecond.
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
