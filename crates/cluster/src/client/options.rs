//! How a client treats its server.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_fs::ContentsFinder;
use thalweg_store::device::DeviceRef;
use thalweg_store::pool::DevicePair;

use super::copies::KeeperTarget;
use crate::protocol::MAX_STAGED;

/// How a client treats its server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time for the first connection.
    pub patience: Duration,
    /// How long calls wait for a server that cannot be reached; `None` for any time.
    pub retry: Option<Duration>,
    /// The pause before a connection is tried again; up to four times as long after many failures.
    pub pause: Duration,
    /// After so many new names in a directory the client asks for its delegation, to make further ones by itself; `None`: never.
    pub exclusive: Option<u32>,
    /// The client looks so often for changes of its own that the server should have; at most 20 times a second.
    pub writeback: Duration,
    /// Changes of its own wait for others, to be sent together, for so long.
    pub expire: Duration,
    /// Finds the contents of files where the server keeps them elsewhere; without it, the server reads and writes them.
    pub contents: Option<Arc<dyn ContentsFinder>>,
    /// What it does when the server has ended its session.
    pub recover: Recover,
    /// Changes of its own that are not in the journal become so old at most.
    pub commit: Duration,
    /// Where the client keeps its journal, if it has one: [`journal`](super::journal).
    pub journal: Option<DeviceRef>,
    /// The pair of devices that the journal is on, if it is on two: only to report their states.
    pub mirror: Option<DevicePair>,
    /// Which bytes of files are in the journal.
    pub data: JournaledData,
    /// Keepers of copies of the journal: a sync returns when they have it, too.
    pub keepers: Vec<KeeperTarget>,
    /// Bytes of its own changes that wait in memory; with a journal, more wait there.
    pub memory: usize,
    /// With a journal: bytes in memory with which the client begins to send in the background (table 7.1 of the paper), unless most of what waits
    /// is replaced before long. `None`: what waits is bounded by the journal and the link alone, and what memory does not keep is
    /// read back from the journal.
    pub background: Option<usize>,
    /// Bytes that are sent as one change at most, about; with a journal.
    pub batch: usize,
    /// No more waits in the journal than the link carries in this time: another client that wants it waits for so long.
    pub recall: Duration,
    /// What it does with changes of its journal that other clients have made impossible while it was away.
    pub on_conflict: OnConflict,
    /// Which changes these are.
    pub conflict: ConflictScope,
    /// Where changes are when a sync of them returns, with a journal.
    pub sync: SyncTo,
    /// The name of its host, for conflict sets.
    pub host: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            patience: Duration::from_secs(10),
            retry: Some(Duration::from_secs(300)),
            pause: Duration::from_millis(50),
            exclusive: Some(1),
            writeback: Duration::from_millis(250),
            expire: Duration::from_secs(1),
            contents: None,
            recover: Recover::Clean,
            commit: Duration::from_secs(1),
            journal: None,
            mirror: None,
            data: JournaledData::Wasteless,
            keepers: Vec::new(),
            memory: 64 << 20,
            background: None,
            batch: MAX_STAGED / 2,
            recall: Duration::from_secs(30),
            on_conflict: OnConflict::Copy,
            conflict: ConflictScope::Prefix,
            sync: SyncTo::Journal,
            host: "client".to_owned(),
        }
    }
}

/// Which bytes of files a client's journal has. Names and attributes are there always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournaledData {
    /// Those that were written.
    #[default]
    Wasteless,
    /// The pages of 4 KiB that writes touch, as a whole.
    Pages,
    /// Those of writes of fewer bytes than the threshold. The others go to the server at once, behind everything before them.
    Selective {
        /// Bytes.
        threshold: u32,
    },
}

impl JournaledData {
    /// Whether a write of so many bytes goes to the server at once.
    pub(super) fn is_direct(self, len: usize) -> bool {
        matches!(self, JournaledData::Selective { threshold } if len >= threshold as usize)
    }
}

/// Where changes of a client with a journal are when a sync of them returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncTo {
    /// In the journal and its copies, as far as they are about what is this client's alone.
    #[default]
    Journal,
    /// Durable at the server.
    Server,
}

impl fmt::Display for SyncTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SyncTo::Journal => "journal",
            SyncTo::Server => "server",
        })
    }
}

/// It is neither `journal` nor `server`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither journal nor server")]
pub struct UnknownSyncTo;

impl FromStr for SyncTo {
    type Err = UnknownSyncTo;

    fn from_str(text: &str) -> Result<SyncTo, UnknownSyncTo> {
        match text {
            "journal" => Ok(SyncTo::Journal),
            "server" => Ok(SyncTo::Server),
            _ => Err(UnknownSyncTo),
        }
    }
}

/// What a client does when the server has ended its session. Either way its open files are stale, its locks are lost, and the
/// next sync of each inode with changes that were not durable fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recover {
    /// It begins a new session by itself.
    #[default]
    Clean,
    /// All of its calls fail from then on.
    No,
}

/// What a client does with changes of its journal that conflict with what other clients have done while it was away ([`ConflictScope`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnConflict {
    /// It makes conflict copies: [`crate::conflicts`].
    #[default]
    Copy,
    /// They are dropped, and counted in the log.
    Discard,
    /// They stay in the journal, and the mount fails.
    Refuse,
}

impl fmt::Display for OnConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OnConflict::Copy => "copy",
            OnConflict::Discard => "discard",
            OnConflict::Refuse => "refuse",
        })
    }
}

/// Which changes of a journal conflict when other clients have made one of them impossible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConflictScope {
    /// That one and all behind it, so that other clients see a prefix of what the client has done.
    #[default]
    Prefix,
    /// That one and those that depend on it: those of the same file, and names below a directory that is not made. The rest is
    /// written back.
    File,
}

impl fmt::Display for ConflictScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConflictScope::Prefix => "prefix",
            ConflictScope::File => "file",
        })
    }
}

/// It is neither `prefix` nor `file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither prefix nor file")]
pub struct UnknownConflictScope;

impl FromStr for ConflictScope {
    type Err = UnknownConflictScope;

    fn from_str(text: &str) -> Result<ConflictScope, UnknownConflictScope> {
        match text {
            "prefix" => Ok(ConflictScope::Prefix),
            "file" => Ok(ConflictScope::File),
            _ => Err(UnknownConflictScope),
        }
    }
}

/// It is none of `copy`, `discard` and `refuse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of copy, discard and refuse")]
pub struct UnknownOnConflict;

impl FromStr for OnConflict {
    type Err = UnknownOnConflict;

    fn from_str(text: &str) -> Result<OnConflict, UnknownOnConflict> {
        match text {
            "copy" => Ok(OnConflict::Copy),
            "discard" => Ok(OnConflict::Discard),
            "refuse" => Ok(OnConflict::Refuse),
            _ => Err(UnknownOnConflict),
        }
    }
}

/// It is neither `clean` nor `no`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither clean nor no")]
pub struct UnknownRecover;

impl FromStr for Recover {
    type Err = UnknownRecover;

    fn from_str(text: &str) -> Result<Recover, UnknownRecover> {
        match text {
            "clean" => Ok(Recover::Clean),
            "no" => Ok(Recover::No),
            _ => Err(UnknownRecover),
        }
    }
}
