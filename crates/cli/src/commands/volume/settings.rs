//! The settings of a volume on the command line.

use clap::Args;
use thalweg_store::pool::manifest::Settings;

use crate::size::Size;

/// Settings that the volume keeps.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SettingsArgs {
    /// RAM of the tail cache, 1 MiB or more [default: 64M]
    #[arg(long, value_name = "SIZE")]
    ram_cache: Option<Size>,
    /// RAM of the body cache [default: none]
    #[arg(long, value_name = "SIZE")]
    body_ram_cache: Option<Size>,
    /// RAM to which the caches grow while the machine has memory to spare; 0 for none [default: half of the
    /// machine's memory]
    #[arg(long, value_name = "SIZE")]
    ram_cache_max: Option<Size>,
    /// Whether the second sides of mirrored links spin down while they are not written
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    standby: Option<bool>,
    /// How many milliseconds a read that misses the caches may wait for others, so that they go together to
    /// the drive that the log writes; 100 suits rotational disks [default: 0]
    #[arg(long, value_name = "MILLIS")]
    tail_read_wait: Option<u32>,
    /// How many of the versions before the newest stay readable, for reads that may be old [default: none]
    #[arg(long, value_name = "NUMBER")]
    keep_versions: Option<u64>,
    /// For how many seconds versions stay readable after they were replaced [default: none]
    #[arg(long, value_name = "SECONDS")]
    keep_time: Option<u32>,
    /// How much space old versions may take; they are given up when writes need it, in any case
    #[arg(long, value_name = "SIZE")]
    keep_size: Option<Size>,
    /// Seconds after which an idle transaction is aborted [default: 60]
    #[arg(long, value_name = "SECONDS")]
    transaction_idle: Option<u32>,
}

impl From<SettingsArgs> for Settings {
    fn from(args: SettingsArgs) -> Settings {
        Settings {
            standby: args.standby,
            ram_cache: args.ram_cache.map(|size| size.0),
            body_ram_cache: args.body_ram_cache.map(|size| size.0),
            ram_cache_max: args.ram_cache_max.map(|size| size.0),
            tail_read_wait: args.tail_read_wait,
            keep_versions: args.keep_versions,
            keep_seconds: args.keep_time,
            keep_bytes: args.keep_size.map(|size| size.0),
            transaction_idle: args.transaction_idle,
        }
    }
}
