//! The options of a journal behind `-o` of a mount: that of an in-place volume, and that of a client of a shared filesystem.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_cluster::client::{
    ConflictScope, OnConflict, SyncTo, UnknownConflictScope, UnknownOnConflict, UnknownSyncTo,
};
use thalweg_store::inplace::{self, Mode};

use super::keepers::KeeperHosts;
use super::option_values::{Setting, seconds, size};
use crate::failure::{Failure, Outcome};
use crate::listen::ListenAddress;

/// A server waits 60 s at most for a client that is sending, and batches may be slower than the last ones were.
const LONGEST_RECALL: Duration = Duration::from_secs(40);

/// Bytes that wait in a client's memory, at least.
const LEAST_MEMORY: u64 = 1 << 20;

/// How an in-place volume keeps its journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalOptions {
    /// Which writes go through the journal.
    pub(crate) data: Option<Mode>,
    /// The device of the journal; by default a part of the volume.
    pub(crate) journal_dev: Option<PathBuf>,
    /// Bytes of a new journal of a client of a shared filesystem.
    pub(crate) journal_size: Option<u64>,
    /// What a client of a shared filesystem does with changes of its journal that other clients have made impossible.
    pub(crate) on_conflict: Option<OnConflict>,
    /// Which changes these are.
    pub(crate) conflict: Option<ConflictScope>,
    /// How long another client may wait for what one with a journal has not sent.
    pub(crate) recall: Option<Duration>,
    /// Bytes in memory of what one with a journal has not sent, and those with which it begins to send.
    pub(crate) memory: Option<u64>,
    pub(crate) background: Option<u64>,
    /// Where a client with a journal has changes when a sync of them returns.
    pub(crate) sync: Option<SyncTo>,
    /// Where a client of a shared filesystem has copies of its journal.
    pub(crate) replicate: Option<KeeperHosts>,
    /// Where a client of a shared filesystem waits for a mount that moves here.
    pub(crate) receive: Option<String>,
    /// Writes of fewer bytes go through the journal.
    pub(crate) threshold: Option<u32>,
    /// The maximum age of the running transaction.
    pub(crate) commit: Option<Duration>,
    /// Whether the device is flushed where order matters.
    pub(crate) barrier: Option<bool>,
    /// How often dirty blocks are written back.
    pub(crate) writeback: Option<Duration>,
    /// The maximum age of a dirty block.
    pub(crate) expire: Option<Duration>,
    /// The longest gap, in bytes, that a writeback batch writes over.
    pub(crate) gap: Option<Setting<u32>>,
    /// Whether the device is a rotational disk.
    pub(crate) rotational: Option<Setting<bool>>,
    /// Whether the device is told to discard blocks that are not needed any more.
    pub(crate) discard: Option<bool>,
}

/// Bytes of memory: no fewer than a batch in one message has.
fn memory(name: &str, value: &str) -> Outcome<u64> {
    match size(name, value)?.0 {
        bytes if bytes < LEAST_MEMORY => {
            Err(Failure::new(format!("{name}={value} is less than 1 MiB")))
        }
        bytes => Ok(bytes),
    }
}

impl JournalOptions {
    /// Takes an option of a client's journal of a shared filesystem.
    pub(super) fn take_shared(&mut self, name: &str, value: &str) -> Outcome<()> {
        let wrong = |error: &dyn Display| Failure::new(format!("{name}={value} is {error}"));
        let parsed = value.parse();
        match name {
            "on_conflict" => {
                self.on_conflict = Some(parsed.map_err(|it: UnknownOnConflict| wrong(&it))?);
            }
            "conflict" => {
                let parsed = value.parse().map_err(|error: UnknownConflictScope| wrong(&error));
                self.conflict = Some(parsed?);
            }
            "replicate" => self.replicate = Some(value.parse()?),
            "sync" => {
                self.sync = Some(value.parse().map_err(|error: UnknownSyncTo| wrong(&error))?)
            }
            "memory" => self.memory = Some(memory(name, value)?),
            "background" => self.background = Some(memory(name, value)?),
            "recall" => {
                let recall = seconds(name, value)?;
                if !(Duration::from_secs(1)..=LONGEST_RECALL).contains(&recall) {
                    let most = LONGEST_RECALL.as_secs();
                    return Err(Failure::new(format!(
                        "recall={value} is not a number of seconds from 1 to {most}"
                    )));
                }
                self.recall = Some(recall);
            }
            _ => {
                let place = match value.parse::<u16>() {
                    Ok(port) => format!("0.0.0.0:{port}"),
                    Err(_) => value.to_owned(),
                };
                // As for what is listened on elsewhere.
                place.parse::<ListenAddress>().map_err(|why| {
                    Failure::new(format!("receive={value}: {why}"))
                        .help("write receive, receive=PORT or receive=HOST:PORT")
                })?;
                self.receive = Some(place);
            }
        }
        Ok(())
    }

    /// The options of a store that ran with `now`: options that are not given keep their values.
    pub(crate) fn over(&self, now: inplace::Options) -> inplace::Options {
        inplace::Options {
            mode: self.data.unwrap_or(now.mode),
            threshold: self.threshold.unwrap_or(now.threshold),
            commit: self.commit.unwrap_or(now.commit),
            barrier: self.barrier.unwrap_or(now.barrier),
            writeback: self.writeback.unwrap_or(now.writeback),
            expire: self.expire.unwrap_or(now.expire),
            gap: Setting::over(self.gap, now.gap),
            rotational: Setting::over(self.rotational, now.rotational),
            discard: self.discard.unwrap_or(now.discard),
            ..now
        }
    }

    /// The options that are given, as text that is read as such options.
    pub(crate) fn words(&self) -> Vec<String> {
        let seconds = |name: &str, span: Option<Duration>| {
            span.map(|span| format!("{name}={}", span.as_secs()))
        };
        let words = [
            self.data.map(|data| format!("data={data}")),
            self.journal_dev.as_ref().map(|path| format!("journal_dev={}", path.display())),
            self.journal_size.map(|bytes| format!("journal_size={bytes}")),
            self.on_conflict.map(|what| format!("on_conflict={what}")),
            self.conflict.map(|scope| format!("conflict={scope}")),
            seconds("recall", self.recall),
            self.memory.map(|bytes| format!("memory={bytes}")),
            self.background.map(|bytes| format!("background={bytes}")),
            self.sync.map(|place| format!("sync={place}")),
            self.replicate.as_ref().map(|keepers| format!("replicate={keepers}")),
            self.receive.as_ref().map(|place| format!("receive={place}")),
            self.threshold.map(|bytes| format!("threshold={bytes}")),
            seconds("commit", self.commit),
            self.barrier.map(|barrier| format!("barrier={}", u8::from(barrier))),
            seconds("writeback", self.writeback),
            seconds("expire", self.expire),
            self.gap.map(|gap| gap.word("gap", |bytes| bytes)),
            self.rotational.map(|it| it.word("rotational", u8::from)),
            self.discard.map(|discard| if discard { "discard" } else { "nodiscard" }.to_owned()),
        ];
        words.into_iter().flatten().collect()
    }
}
