//! How a volume is opened: the options of a program, and the volume's own settings.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::PoolError;
use crate::block::{BLOCK_SIZE, Keep};
use crate::chain::Options;

/// Options for opening a volume; its own settings override them.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The chain's run-time options.
    pub chain: Options,
    /// Whether the second sides of mirrors spin down while they are in the body.
    pub standby: bool,
    /// The limits of its transactions.
    pub transactions: crate::txn::Options,
    /// Which old versions stay readable.
    pub keep: Option<Keep>,
    /// Whether to open it read-only: no byte of its devices and of its folder changes. If it needs recovery,
    /// it is recovered in memory. Other processes may read it at the same time.
    pub read_only: bool,
}

/// The settings for opening a volume. `None` leaves the choice to the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether the second sides of mirrors spin down while they are in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<bool>,
    /// RAM of the tail cache in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_cache: Option<u64>,
    /// RAM of the body cache in bytes; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_ram_cache: Option<u64>,
    /// RAM in bytes to which the caches may grow together; 0 for no growth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_cache_max: Option<u64>,
    /// How many milliseconds a read at the tail's drive may wait for others to go with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail_read_wait: Option<u32>,
    /// How many of the versions before the newest stay readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_versions: Option<u64>,
    /// For how many seconds versions stay readable after they were replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_seconds: Option<u32>,
    /// How many bytes of old contents these versions may keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<u64>,
    /// Seconds after which an idle transaction is aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction_idle: Option<u32>,
}

impl Settings {
    /// The minimum RAM of a tail cache in bytes.
    pub const LEAST_RAM: u64 = 1 << 20;

    pub(super) fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    /// These settings, overridden by those that are `Some` in `newer`.
    pub(super) fn changed_by(self, newer: Settings) -> Settings {
        Settings {
            standby: newer.standby.or(self.standby),
            ram_cache: newer.ram_cache.or(self.ram_cache),
            body_ram_cache: newer.body_ram_cache.or(self.body_ram_cache),
            ram_cache_max: newer.ram_cache_max.or(self.ram_cache_max),
            tail_read_wait: newer.tail_read_wait.or(self.tail_read_wait),
            keep_versions: newer.keep_versions.or(self.keep_versions),
            keep_seconds: newer.keep_seconds.or(self.keep_seconds),
            keep_bytes: newer.keep_bytes.or(self.keep_bytes),
            transaction_idle: newer.transaction_idle.or(self.transaction_idle),
        }
    }

    pub(super) fn check(&self) -> Result<(), PoolError> {
        let most = 1 << 50;
        let fits = |bytes: Option<u64>, least| bytes.is_none_or(|b| (least..=most).contains(&b));
        let refuse = |why: &str| Err(PoolError::Invalid(why.to_owned()));
        if !fits(self.ram_cache, Settings::LEAST_RAM) || !fits(self.body_ram_cache, 0) {
            return refuse("the tail cache needs 1 MiB of RAM or more");
        }
        match self.transaction_idle {
            Some(0) => refuse("a transaction may be idle for at least a second"),
            _ => Ok(()),
        }
    }

    /// Which old versions stay readable, if these settings keep any.
    fn keep(&self) -> Option<Keep> {
        let versions = self.keep_versions.filter(|versions| *versions > 0);
        let seconds = self.keep_seconds.filter(|seconds| *seconds > 0);
        versions.or(seconds.map(u64::from))?;
        let age = seconds.map_or(Duration::MAX, |seconds| Duration::from_secs(seconds.into()));
        let blocks = |bytes: u64| usize::try_from(bytes / BLOCK_SIZE as u64).unwrap_or(usize::MAX);
        let blocks = self.keep_bytes.map_or(usize::MAX, blocks);
        Some(Keep { versions: versions.unwrap_or(u64::MAX), age, blocks })
    }

    /// `options`, overridden by these settings.
    pub(super) fn over(&self, options: &OpenOptions) -> OpenOptions {
        let mut options = options.clone();
        let blocks = |bytes: u64| usize::try_from(bytes / BLOCK_SIZE as u64).unwrap_or(usize::MAX);
        options.keep = self.keep().or(options.keep);
        options.standby = self.standby.unwrap_or(options.standby);
        let chain = &mut options.chain;
        chain.tail_cache_blocks = self.ram_cache.map_or(chain.tail_cache_blocks, blocks);
        chain.body_cache_blocks = self.body_ram_cache.map_or(chain.body_cache_blocks, blocks);
        if let Some(growth) = &mut chain.growth {
            growth.most = self.ram_cache_max.or(growth.most);
        }
        let millis = |millis| Duration::from_millis(u64::from(millis));
        chain.tail_read_wait = self.tail_read_wait.map_or(chain.tail_read_wait, millis);
        let seconds = |seconds| Duration::from_secs(u64::from(seconds));
        let idle = &mut options.transactions.idle;
        *idle = self.transaction_idle.map_or(*idle, seconds);
        options
    }
}
