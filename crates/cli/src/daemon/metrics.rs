//! Metrics for Prometheus.
//!
//! The store and the NBD server keep counters of their own; this module copies them to the exporter once a
//! second. `page` serves them over HTTP.

mod attention;
mod client;
mod page;
mod shared;

use std::net::SocketAddr;
use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use thalweg_cluster::client::Client;
use thalweg_cluster::server::ServerStatus;
use thalweg_env::{Env, HashMap, Task};
use thalweg_fs::Statistics;
use thalweg_nbd::ServerStats;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::chain::Status;
use thalweg_store::chain::cache::CacheStats;
use thalweg_store::device::Tallies;
use thalweg_store::inplace::{InPlaceStatus, Mode};
use thalweg_store::latency::{Histogram, StageStatus};
use thalweg_store::txn::TxnStatus;

use crate::failure::{Failure, Outcome};
use crate::volume::numbers::{Numbers, StoreNumbers};

/// How often the counters are copied.
const INTERVAL: Duration = Duration::from_secs(1);
const LATENCY: &str = "thalweg_nbd_request_duration_seconds";
const SEND: &str = "thalweg_nbd_send_duration_seconds";
const STAGES: &str = "thalweg_stage_duration_seconds";

/// The source of the metrics.
pub(crate) trait Source: Send + Sync + 'static {
    /// The numbers of every volume.
    fn volumes(&self) -> impl Future<Output = Vec<Numbers>> + Send;
    /// The server of a filesystem that clients on other machines share, if there is one.
    fn shared(&self) -> Option<ServerStatus>;
    /// The client of a shared filesystem that is mounted here, if one is, with the server's address.
    fn client(&self) -> impl Future<Output = Option<(String, Client)>> + Send;
    /// The NBD server's counters, if there is one.
    fn server(&self) -> Option<&ServerStats>;
}

/// Serves the metrics over HTTP on `address` until the returned tasks are dropped.
pub(crate) fn start(
    env: &Env,
    address: SocketAddr,
    source: std::sync::Arc<impl Source>,
) -> Outcome<[Task<()>; 2]> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        let failure = Failure::of(error).while_doing(format!("cannot serve metrics on {address}"));
        failure.help("choose a free port of this machine, such as --metrics 127.0.0.1:9464")
    };
    let builder = PrometheusBuilder::new();
    let builder = [LATENCY, SEND, STAGES, shared::CALLS]
        .into_iter()
        .try_fold(builder, |builder, metric| {
            builder.set_buckets_for_metric(Matcher::Full(metric.to_owned()), &bounds())
        })
        .map_err(|error| failed(&error))?;
    let recorder = builder.build_recorder();
    let page = recorder.handle();
    let serving = page::serve(env, address, page.clone()).map_err(|error| failed(&error))?;
    metrics::set_global_recorder(recorder).map_err(|error| failed(&error))?;
    describe();
    attention::describe();
    client::describe();
    let env2 = env.clone();
    let refresh = env.spawn(async move {
        let (mut requests, mut stages) = (SeenRequests::default(), SeenStages::default());
        let mut calls = shared::SeenCalls::default();
        loop {
            for volume in source.volumes().await {
                record_volume(&volume);
                let of_store = match &volume.store {
                    StoreNumbers::Chain(status) => &status.stages,
                    StoreNumbers::InPlace { status, .. } => &status.stages,
                };
                let all = of_store.iter().chain(&volume.mount_stages);
                record_stages(&volume.name, all, &mut stages);
            }
            if let Some(stats) = source.server() {
                record_server(stats, &mut requests);
            }
            if let Some((address, mounted)) = source.client().await {
                client::record(&address, &mounted.status(), &mounted.pending());
            }
            if let Some(status) = source.shared() {
                shared::record(&status, &mut calls);
            }
            // Samples of histograms wait in buffers that grow until the page is read, or this is called.
            page.run_upkeep();
            env2.sleep(INTERVAL).await;
        }
    });
    Ok([serving, refresh])
}

/// The upper bounds of the buckets, in seconds.
fn bounds() -> Vec<f64> {
    Histogram::bounds().map(|micros| micros as f64 / 1e6).collect()
}

fn describe() {
    let counters = [
        ("thalweg_device_read_bytes_total", Unit::Bytes, "Bytes read from a device"),
        ("thalweg_device_written_bytes_total", Unit::Bytes, "Bytes written to a device"),
        ("thalweg_device_reads_total", Unit::Count, "Read requests to a device"),
        ("thalweg_device_writes_total", Unit::Count, "Write requests to a device"),
        ("thalweg_device_flushes_total", Unit::Count, "Flushes of a device"),
        ("thalweg_user_written_bytes_total", Unit::Bytes, "Bytes that users wrote"),
        ("thalweg_user_read_bytes_total", Unit::Bytes, "Bytes that users read"),
        ("thalweg_syncs_total", Unit::Count, "Requests to make writes durable"),
        ("thalweg_commit_rounds_total", Unit::Count, "Rounds of group commit"),
        ("thalweg_cleaning_moved_bytes_total", Unit::Bytes, "Bytes that cleaning moved"),
        ("thalweg_cleaning_segments_total", Unit::Count, "Segments cleaned"),
        ("thalweg_checkpoints_total", Unit::Count, "Checkpoints of the index"),
        ("thalweg_repaired_blocks_total", Unit::Count, "Copies overwritten with the right bytes"),
        ("thalweg_damaged_blocks_total", Unit::Count, "Blocks of which no copy is right"),
        ("thalweg_tail_reads_total", Unit::Count, "Blocks read from the tail for want of a cache"),
        ("thalweg_cache_hits_total", Unit::Count, "Reads of blocks served from a cache"),
        ("thalweg_cache_misses_total", Unit::Count, "Reads of blocks that no cache held"),
        ("thalweg_changed_data_bytes_total", Unit::Bytes, "Bytes that writes of data changed"),
        ("thalweg_changed_metadata_bytes_total", Unit::Bytes, "Bytes that metadata changed"),
        ("thalweg_journal_commits_total", Unit::Count, "Transactions of the journal"),
        ("thalweg_journal_bytes_total", Unit::Bytes, "Bytes written to the journal"),
        ("thalweg_journal_releases_total", Unit::Count, "Releases of the journal"),
        ("thalweg_checkpointed_blocks_total", Unit::Count, "Blocks written back from the journal"),
        ("thalweg_direct_blocks_total", Unit::Count, "Blocks written past the journal"),
        ("thalweg_home_reads_total", Unit::Count, "Blocks read in place"),
        ("thalweg_transactions_total", Unit::Count, "Transactions that ended, by how they did"),
        ("thalweg_merged_commits_total", Unit::Count, "Commits merged with others"),
        ("thalweg_writers_waited_seconds_total", Unit::Seconds, "Total time that writers waited"),
        ("thalweg_nbd_requests_total", Unit::Count, "NBD requests answered"),
        ("thalweg_nbd_errors_total", Unit::Count, "NBD requests answered with an error"),
        ("thalweg_nbd_bytes_total", Unit::Bytes, "Bytes that NBD requests covered"),
        ("thalweg_nbd_connections_total", Unit::Count, "NBD connections accepted"),
    ];
    for (name, unit, about) in counters {
        describe_counter!(name, unit, about);
    }
    let gauges = [
        ("thalweg_volume_size_bytes", Unit::Bytes, "Size of the volume"),
        ("thalweg_volume_capacity_bytes", Unit::Bytes, "Bytes that may be live before writes fail"),
        ("thalweg_volume_live_bytes", Unit::Bytes, "Live bytes: those that a version needs"),
        ("thalweg_index_memory_bytes", Unit::Bytes, "Memory that the index takes"),
        ("thalweg_segments", Unit::Count, "Segments on all links"),
        ("thalweg_free_segments", Unit::Count, "Free segments"),
        ("thalweg_version", Unit::Count, "The newest version"),
        ("thalweg_durable_version", Unit::Count, "The newest version that survives a crash"),
        ("thalweg_multiversion_blocks", Unit::Count, "Blocks that have several versions"),
        ("thalweg_snapshots", Unit::Count, "Named snapshots"),
        ("thalweg_refuses_writes", Unit::Count, "1 when the volume refuses writes after a failure"),
        ("thalweg_cache_blocks", Unit::Count, "Blocks in a cache"),
        ("thalweg_cached_bytes", Unit::Bytes, "Bytes of blocks in memory"),
        ("thalweg_dirty_bytes", Unit::Bytes, "Bytes of dirty blocks"),
        ("thalweg_journal_size_bytes", Unit::Bytes, "Size of the journal"),
        ("thalweg_journal_free_bytes", Unit::Bytes, "Bytes of the journal that are free"),
        ("thalweg_journal_mode", Unit::Count, "1 for the journal's mode"),
        ("thalweg_transactions_running", Unit::Count, "Running transactions"),
        ("thalweg_transactions_buffered_bytes", Unit::Bytes, "Writes of open transactions"),
        ("thalweg_filesystem_size_bytes", Unit::Bytes, "Size of the mounted filesystem"),
        ("thalweg_filesystem_free_bytes", Unit::Bytes, "Bytes of it that are free"),
        ("thalweg_filesystem_inodes", Unit::Count, "Inodes in use"),
        ("thalweg_nbd_connections", Unit::Count, "NBD connections open"),
        ("thalweg_writers_waiting", Unit::Count, "Writers that wait, by cause"),
    ];
    for (name, unit, about) in gauges {
        describe_gauge!(name, unit, about);
    }
    describe_durations();
    shared::describe();
}

fn describe_durations() {
    describe_histogram!(LATENCY, Unit::Seconds, "Time from an NBD request to its answer");
    describe_histogram!(SEND, Unit::Seconds, "Time until an NBD client has accepted its replies");
    describe_histogram!(STAGES, Unit::Seconds, "Time that a stage of writes and flushes takes");
}

fn record_volume(numbers: &Numbers) {
    let name = &numbers.name;
    match &numbers.store {
        StoreNumbers::Chain(status) => record_chain(name, status),
        StoreNumbers::InPlace { status, parts } => {
            record_in_place(name, status);
            parts.iter().for_each(|part| record_device(name, &part.path, &part.io));
        }
    }
    record_transactions(name, &numbers.transactions);
    attention::record(numbers);
    if let Some(files) = &numbers.files {
        record_files(name, files);
    }
}

fn record_in_place(name: &str, status: &InPlaceStatus) {
    let blocks = |count: u64| count * BLOCK_SIZE as u64;
    let counts = &status.counts;
    let totals = [
        ("thalweg_changed_data_bytes_total", counts.data_bytes),
        ("thalweg_changed_metadata_bytes_total", counts.metadata_bytes),
        ("thalweg_journal_commits_total", counts.commits),
        ("thalweg_journal_bytes_total", counts.journal_bytes),
        ("thalweg_journal_releases_total", counts.releases),
        ("thalweg_checkpointed_blocks_total", counts.checkpointed),
        ("thalweg_direct_blocks_total", counts.direct),
        ("thalweg_home_reads_total", counts.reads),
    ];
    for (metric, value) in totals {
        counter!(metric, "volume" => name.to_owned()).absolute(value);
    }
    let levels = [
        ("thalweg_volume_size_bytes", blocks(status.blocks)),
        ("thalweg_version", status.version),
        ("thalweg_durable_version", status.durable),
        ("thalweg_refuses_writes", u64::from(status.poisoned.is_some())),
        ("thalweg_cached_bytes", blocks(status.cached)),
        ("thalweg_dirty_bytes", blocks(status.dirty)),
        ("thalweg_journal_size_bytes", status.journal_size),
        ("thalweg_journal_free_bytes", status.journal_room),
    ];
    for (metric, value) in levels {
        gauge!(metric, "volume" => name.to_owned()).set(value as f64);
    }
    for mode in Mode::ALL {
        let labels = [("volume", name.to_owned()), ("mode", mode.to_string())];
        gauge!("thalweg_journal_mode", &labels).set(f64::from(u8::from(mode == status.mode)));
    }
}

fn record_transactions(name: &str, them: &TxnStatus) {
    let outcomes = [
        ("committed", them.commits),
        ("read_only", them.read_only),
        ("conflict", them.conflicts),
        ("aborted", them.aborts),
        ("preempted", them.preempted),
    ];
    for (outcome, count) in outcomes {
        let labels = [("volume", name.to_owned()), ("outcome", outcome.to_owned())];
        counter!("thalweg_transactions_total", &labels).absolute(count);
    }
    let volume = || name.to_owned();
    counter!("thalweg_merged_commits_total", "volume" => volume()).absolute(them.merged);
    gauge!("thalweg_transactions_running", "volume" => volume()).set(them.running as f64);
    let buffered = gauge!("thalweg_transactions_buffered_bytes", "volume" => volume());
    buffered.set(them.buffered_bytes as f64);
}

fn record_files(name: &str, files: &Statistics) {
    let bytes = |blocks: u64| blocks * u64::from(files.block);
    let levels = [
        ("thalweg_filesystem_size_bytes", bytes(files.blocks)),
        ("thalweg_filesystem_free_bytes", bytes(files.free)),
        ("thalweg_filesystem_inodes", files.inodes.0),
    ];
    for (metric, value) in levels {
        gauge!(metric, "volume" => name.to_owned()).set(value as f64);
    }
}

fn record_chain(name: &str, status: &Status) {
    let blocks = |count: u64| count * BLOCK_SIZE as u64;
    let volume = || name.to_owned();
    let counts = &status.counts;
    let totals = [
        ("thalweg_user_written_bytes_total", blocks(counts.user_blocks_written)),
        ("thalweg_user_read_bytes_total", blocks(counts.user_blocks_read)),
        ("thalweg_syncs_total", counts.syncs),
        ("thalweg_commit_rounds_total", counts.rounds),
        ("thalweg_cleaning_moved_bytes_total", blocks(counts.blocks_moved)),
        ("thalweg_cleaning_segments_total", counts.segments_cleaned),
        ("thalweg_checkpoints_total", counts.checkpoints),
        ("thalweg_repaired_blocks_total", counts.repaired),
        ("thalweg_damaged_blocks_total", counts.damaged),
        ("thalweg_tail_reads_total", counts.tail_reads),
    ];
    for (metric, value) in totals {
        counter!(metric, "volume" => volume()).absolute(value);
    }
    let levels = [
        ("thalweg_volume_size_bytes", blocks(status.blocks)),
        ("thalweg_volume_capacity_bytes", blocks(status.capacity_blocks)),
        ("thalweg_volume_live_bytes", blocks(status.live_blocks)),
        ("thalweg_index_memory_bytes", status.index_bytes),
        ("thalweg_segments", status.segments),
        ("thalweg_free_segments", status.free_segments),
        ("thalweg_version", status.version),
        ("thalweg_durable_version", status.durable_version),
        ("thalweg_multiversion_blocks", status.several_versions),
        ("thalweg_snapshots", status.snapshots.len() as u64),
        ("thalweg_refuses_writes", u64::from(status.poisoned.is_some())),
    ];
    for (metric, value) in levels {
        gauge!(metric, "volume" => volume()).set(value as f64);
    }
    for link in &status.links {
        // The path, without the link's position on the device.
        let device = link.device.split('[').next().unwrap_or_default();
        record_device(name, device, &link.io);
    }
    record_device(name, "map", &status.map_io);
    for wait in &status.waits {
        let labels = [("volume", name.to_owned()), ("cause", wait.cause.to_owned())];
        gauge!("thalweg_writers_waiting", &labels).set(wait.writers as f64);
        counter!("thalweg_writers_waited_seconds_total", &labels).absolute(wait.seconds as u64);
    }
    record_cache(name, "tail", &status.tail_cache);
    if let Some(body) = &status.body_cache {
        record_cache(name, "body", body);
    }
}

/// The durations that the histograms of stages have already, by volume and stage.
type SeenStages = HashMap<(String, &'static str), Vec<u64>>;

fn record_stages<'a>(
    volume: &str,
    stages: impl IntoIterator<Item = &'a StageStatus>,
    seen: &mut SeenStages,
) {
    for stage in stages {
        let labels = [("volume", volume.to_owned()), ("stage", stage.stage.to_owned())];
        let histogram = histogram!(STAGES, &labels);
        let seen = seen.entry((volume.to_owned(), stage.stage)).or_default();
        record_durations(&histogram, &stage.cumulative, seen);
    }
}

/// Adds the durations that were counted since the last call; `seen` has the earlier ones of each bucket.
fn record_durations(to: &metrics::Histogram, cumulative: &[(u64, u64)], seen: &mut Vec<u64>) {
    seen.resize(cumulative.len(), 0);
    let mut below = 0;
    for ((bound, count), seen) in cumulative.iter().zip(seen) {
        // Buckets are exact. For the sum, a duration counts as three quarters of its bound.
        let inside = count - below;
        below = *count;
        let more = usize::try_from(inside.saturating_sub(*seen)).unwrap_or(usize::MAX);
        if more > 0 {
            to.record_many(*bound as f64 * 0.75 / 1e6, more);
        }
        *seen = inside;
    }
}

fn record_device(volume: &str, device: &str, tallies: &Tallies) {
    for (purpose, tally) in tallies.iter() {
        let counts = [
            ("thalweg_device_read_bytes_total", tally.read_bytes),
            ("thalweg_device_written_bytes_total", tally.write_bytes),
            ("thalweg_device_reads_total", tally.reads),
            ("thalweg_device_writes_total", tally.writes),
            ("thalweg_device_flushes_total", tally.flushes),
        ];
        for (metric, value) in counts {
            let (volume, device) = (volume.to_owned(), device.to_owned());
            let labels =
                [("volume", volume), ("device", device), ("purpose", purpose.name().into())];
            counter!(metric, &labels).absolute(value);
        }
    }
}

fn record_cache(volume: &str, cache: &'static str, stats: &CacheStats) {
    let labels = |medium: &'static str| {
        [("volume", volume.to_owned()), ("cache", cache.to_owned()), ("medium", medium.to_owned())]
    };
    counter!("thalweg_cache_hits_total", &labels("ram")).absolute(stats.ram_hits);
    counter!("thalweg_cache_hits_total", &labels("ssd")).absolute(stats.ssd_hits);
    gauge!("thalweg_cache_blocks", &labels("ram")).set(stats.ram_blocks as f64);
    gauge!("thalweg_cache_blocks", &labels("ssd")).set(stats.ssd_blocks as f64);
    let both = [("volume", volume.to_owned()), ("cache", cache.to_owned())];
    gauge!("thalweg_cache_ram_limit_blocks", &both).set(stats.ram_limit_blocks as f64);
    counter!("thalweg_cache_misses_total", &both).absolute(stats.misses);
}

/// The durations that the NBD server's histograms have already, by command; those of replies have none.
type SeenRequests = HashMap<Option<&'static str>, Vec<u64>>;

fn record_server(stats: &ServerStats, seen: &mut SeenRequests) {
    counter!("thalweg_nbd_connections_total").absolute(stats.connections.get());
    gauge!("thalweg_nbd_connections").set(stats.connections_open.get() as f64);
    for (command, stats) in stats.commands() {
        counter!("thalweg_nbd_requests_total", "command" => command).absolute(stats.requests.get());
        counter!("thalweg_nbd_errors_total", "command" => command).absolute(stats.errors.get());
        counter!("thalweg_nbd_bytes_total", "command" => command).absolute(stats.bytes.get());
        let requests = histogram!(LATENCY, "command" => command);
        let seen = seen.entry(Some(command)).or_default();
        record_durations(&requests, &stats.latency.cumulative(), seen);
    }
    let seen = seen.entry(None).or_default();
    record_durations(&histogram!(SEND), &stats.send.cumulative(), seen);
}
