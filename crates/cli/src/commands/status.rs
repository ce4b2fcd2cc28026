//! `thalweg volume status`: shows a volume's status, once or repeatedly.

mod degraded;
mod in_place;
mod latency;

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use thalweg_env::{Env, HashMap};
use thalweg_store::block::BLOCK_SIZE;

pub(crate) use self::degraded::{degraded_lines, exit_code, warn};
use super::ask::ask;
use super::mount_status::show_mount;
use super::mounted::shared_mount;
use crate::date;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::request::{Answer, Request, unexpected_answer};
use crate::size::Size;
use crate::target::{JournalDev, Target};

/// Show a volume's status
///
/// It begins with DEGRADED, and ends with 3, when something needs attention, of the volume, its filesystem, its replicas or its
/// clients: each such line says what to do.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The volume's folder, the device or image of an in-place volume, or the directory where a shared filesystem is mounted
    volume: String,
    #[command(flatten)]
    journal: JournalDev,
    /// Show it repeatedly
    #[arg(long)]
    watch: bool,
    /// Seconds between two updates
    #[arg(long, default_value = "1", value_parser = seconds, requires = "watch")]
    interval: Duration,
    /// Also show the durations of the stages of writes and flushes, and the slowest flushes
    ///
    /// Counted since the volume was opened. --json always includes them.
    #[arg(long)]
    latency: bool,
    /// Print a JSON object, one on each line with --watch
    #[arg(long)]
    json: bool,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|span| *span >= Duration::from_millis(100));
    seconds.ok_or_else(|| format!("{text:?} is not a number of seconds, 0.1 or more"))
}

pub(crate) async fn run(env: &Env, args: Status) -> Outcome<u8> {
    let interval = args.watch.then_some(args.interval);
    let shown = Shown { json: args.json, interval, latency: args.latency };
    if let Some(directory) = shared_mount(Path::new(&args.volume)) {
        return show_mount(env, &directory, (shown.json, shown.interval)).await;
    }
    let target = Target::volume(&args.volume)?;
    let target = target.with_journal(args.journal.journal_dev.as_deref());
    show(env, &target, shown).await
}

/// The fields of a status that are shown. A server of another version may send more, or fewer.
#[derive(Debug, Deserialize)]
struct View {
    name: String,
    folder: String,
    #[serde(default)]
    sockets: Option<String>,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    chain: Option<Chain>,
    #[serde(default)]
    in_place: Option<in_place::InPlace>,
    #[serde(default)]
    devices: Vec<in_place::Device>,
    #[serde(default)]
    mounted: Option<String>,
    #[serde(default)]
    files: Option<Files>,
    #[serde(default)]
    transactions: Option<Transactions>,
    #[serde(default)]
    members: Vec<Member>,
    #[serde(default)]
    warnings: Vec<String>,
    #[serde(default)]
    recovery: Option<String>,
    #[serde(default)]
    mounted_snapshots: Vec<MountedSnapshot>,
    #[serde(default)]
    degraded: Vec<String>,
    #[serde(default)]
    attached: Vec<AttachedDevice>,
    #[serde(default)]
    exports: Vec<String>,
    #[serde(default)]
    connections: u64,
    #[serde(default)]
    requests: Vec<latency::Stage>,
}

#[derive(Debug, Deserialize)]
struct Chain {
    blocks: u64,
    live_blocks: u64,
    capacity_blocks: u64,
    version: u64,
    oldest_version: u64,
    durable_version: u64,
    free_segments: u64,
    segments: u64,
    segment_blocks: u64,
    several_versions: u64,
    index_bytes: u64,
    cleaning: String,
    placement: String,
    poisoned: Option<String>,
    links: Vec<Link>,
    snapshots: Vec<Snapshot>,
    counts: Counts,
    tail_cache: Cache,
    body_cache: Option<Cache>,
    map_io: Tallies,
    #[serde(default)]
    stages: Vec<latency::Stage>,
    #[serde(default)]
    slow_flushes: Vec<latency::SlowFlush>,
    #[serde(default)]
    waits: Vec<latency::Wait>,
}

/// How a status is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// As a JSON object.
    pub(crate) json: bool,
    /// Repeatedly, with this pause.
    pub(crate) interval: Option<Duration>,
    /// With the durations of writes and flushes.
    pub(crate) latency: bool,
}

impl Shown {
    /// Once, as a JSON object.
    pub(crate) const JSON: Shown = Shown { json: true, interval: None, latency: false };
}

#[derive(Debug, Deserialize)]
struct Transactions {
    running: u64,
    window: u64,
    buffered_bytes: u64,
    commits: u64,
    read_only: u64,
    conflicts: u64,
    aborts: u64,
    preempted: u64,
    merged: u64,
}

#[derive(Debug, Deserialize)]
struct Link {
    device: String,
    tail: bool,
    leaving: bool,
    segments: u64,
    free_segments: u64,
    live_blocks: u64,
    io: Tallies,
}

#[derive(Debug, Deserialize)]
struct Member {
    path: String,
    role: String,
    state: Value,
}

/// A snapshot that is mounted.
#[derive(Debug, Deserialize)]
struct MountedSnapshot {
    snapshot: String,
    directory: String,
}

/// The mounted filesystem.
#[derive(Debug, Deserialize)]
struct Files {
    blocks: u64,
    free_blocks: u64,
    inodes: u64,
}

#[derive(Debug, Deserialize)]
struct AttachedDevice {
    export: String,
    device: String,
}

/// A snapshot in a status.
#[derive(Debug, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) created: u64,
    pub(crate) blocks: u64,
    /// Only in a list of snapshots.
    #[serde(default)]
    pub(crate) exclusive_blocks: u64,
}

#[derive(Debug, Deserialize)]
struct Counts {
    user_blocks_written: u64,
    user_blocks_read: u64,
    syncs: u64,
    rounds: u64,
    blocks_moved: u64,
    segments_cleaned: u64,
    checkpoints: u64,
    repaired: u64,
    damaged: u64,
}

#[derive(Debug, Deserialize)]
struct Cache {
    ram_hits: u64,
    ssd_hits: u64,
    misses: u64,
    ram_blocks: u64,
    #[serde(default)]
    ram_limit_blocks: u64,
    ssd_blocks: u64,
}

type Tallies = HashMap<String, Tally>;

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Tally {
    read_bytes: u64,
    write_bytes: u64,
    flushes: u64,
}

/// A volume's status as JSON.
pub(crate) async fn fetch(env: &Env, target: &Target, json: bool) -> Outcome<Value> {
    match ask(env, target, Request::Status, json).await? {
        Answer::Json(status) => Ok(status),
        _ => Err(unexpected_answer()),
    }
}

/// Shows the status once, or repeatedly; returns the exit code.
pub(crate) async fn show(env: &Env, target: &Target, shown: Shown) -> Outcome<u8> {
    let Shown { json, interval, latency } = shown;
    let mut before: Option<View> = None;
    loop {
        let status = fetch(env, target, json).await?;
        let code = exit_code(&status);
        if json {
            println!("{status}");
        } else {
            let view: View = serde_json::from_value(status)?;
            output::clear_screen(interval.is_some());
            print!("{}", text(&view, before.as_ref().zip(interval), latency)?);
            before = Some(view);
        }
        output::flush();
        match interval {
            Some(interval) if !output::is_closed() => env.sleep(interval).await,
            _ => return Ok(code),
        }
    }
}

fn blocks(count: u64) -> Size {
    Size(count.saturating_mul(BLOCK_SIZE as u64))
}

fn text(view: &View, before: Option<(&View, Duration)>, latency: bool) -> Result<String, Failure> {
    let mut out = degraded_lines(&view.degraded);
    let written = match (&view.chain, &view.in_place) {
        (Some(chain), _) => summary(&mut out, view, chain, before)
            .and_then(|()| links(&mut out, view, chain))
            .and_then(|()| {
                let links = chain.links.iter().map(|link| &link.io);
                let users = blocks(chain.counts.user_blocks_written).0;
                traffic(&mut out, links.chain([&chain.map_io]), users, ", without caches")
            }),
        (None, Some(it)) => in_place::summary(&mut out, view, it, before)
            .and_then(|()| {
                view.transactions.as_ref().map_or(Ok(()), |them| transactions(&mut out, them))
            })
            .and_then(|()| in_place::devices(&mut out, view))
            .and_then(|()| {
                let devices = view.devices.iter().map(|device| &device.io);
                traffic(&mut out, devices, it.changed(), ", for each byte of data that changed")
            }),
        (None, None) => Ok(()),
    };
    let written = written.and_then(|()| users(&mut out, view)).and_then(|()| match latency {
        true => latencies(&mut out, view),
        false => Ok(()),
    });
    written.map_err(|error| Failure::of(&error))?;
    Ok(out)
}

fn latencies(out: &mut String, view: &View) -> std::fmt::Result {
    if let Some(chain) = &view.chain {
        let stages = view.requests.iter().chain(&chain.stages);
        latency::table(out, stages, &chain.slow_flushes, &chain.waits)?;
    }
    view.in_place.as_ref().map_or(Ok(()), |it| it.latencies(out, &view.requests))
}

fn summary(
    out: &mut String,
    view: &View,
    chain: &Chain,
    before: Option<(&View, Duration)>,
) -> std::fmt::Result {
    writeln!(out, "{} ({}), {}", view.name, view.folder, blocks(chain.blocks))?;
    if let Some(why) = &chain.poisoned {
        writeln!(out, "  REFUSES WRITES: {why}")?;
    }
    latency::waits(out, &chain.waits)?;
    let (live, capacity) = (blocks(chain.live_blocks), blocks(chain.capacity_blocks));
    writeln!(out, "  stored      {live} of {capacity}")?;
    let segment = blocks(chain.segment_blocks);
    let (free, all) = (chain.free_segments, chain.segments);
    writeln!(out, "  segments    {free} of {all} free, {segment} each")?;
    let (version, durable) = (chain.version, chain.durable_version);
    writeln!(out, "  version     {version}, durable up to {durable}")?;
    if chain.oldest_version < version {
        writeln!(out, "  kept        versions from {}", chain.oldest_version)?;
    }
    let (several, memory) = (chain.several_versions, Size(chain.index_bytes));
    writeln!(out, "  index       {memory} of memory, {several} blocks with several versions")?;
    let counts = &chain.counts;
    writeln!(
        out,
        "  users       {} written, {} read, {} syncs in {} rounds",
        blocks(counts.user_blocks_written),
        blocks(counts.user_blocks_read),
        counts.syncs,
        counts.rounds
    )?;
    if let Some((before, span)) = before.and_then(|(view, span)| Some((view.chain.as_ref()?, span)))
    {
        let rate = |now: u64, then: u64| {
            Size((blocks(now.saturating_sub(then)).0 as f64 / span.as_secs_f64()) as u64)
        };
        let then = &before.counts;
        let written = rate(counts.user_blocks_written, then.user_blocks_written);
        let read = rate(counts.user_blocks_read, then.user_blocks_read);
        let moved = rate(counts.blocks_moved, then.blocks_moved);
        writeln!(out, "  now         {written}/s written, {read}/s read, {moved}/s moved")?;
    }
    let (moved, segments) = (blocks(counts.blocks_moved), counts.segments_cleaned);
    writeln!(out, "  cleaning    {}, {segments} segments, {moved} moved", chain.cleaning)?;
    writeln!(out, "  placement   {}", chain.placement)?;
    writeln!(out, "  checkpoints {}", counts.checkpoints)?;
    view.transactions.as_ref().map_or(Ok(()), |them| transactions(out, them))?;
    if counts.repaired + counts.damaged > 0 {
        writeln!(out, "  damage      {} repaired, {} lost", counts.repaired, counts.damaged)?;
    }
    cache(out, "tail cache ", &chain.tail_cache)?;
    chain.body_cache.as_ref().map_or(Ok(()), |body| cache(out, "body cache ", body))
}

/// Prints nothing for a volume without changes by transactions: an opening reads in one too.
fn transactions(out: &mut String, them: &Transactions) -> std::fmt::Result {
    let Transactions { running, window, commits, read_only, conflicts, .. } = them;
    let Transactions { aborts, preempted, merged, buffered_bytes, .. } = them;
    if running + commits + conflicts + aborts + preempted == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "  txns        {commits} committed ({merged} merged), {read_only} read, {conflicts} in \
         conflict, {aborts} aborted, {preempted} preempted"
    )?;
    let buffered = Size(*buffered_bytes);
    writeln!(out, "  txns now    {running} running, {buffered} buffered, {window} remembered")
}

fn cache(out: &mut String, name: &str, cache: &Cache) -> std::fmt::Result {
    let Cache { ram_hits, ssd_hits, misses, ram_blocks, ram_limit_blocks, ssd_blocks } = cache;
    let (ram, ssd) = (blocks(*ram_blocks), blocks(*ssd_blocks));
    let limit = blocks(*ram_limit_blocks);
    writeln!(
        out,
        "  {name} {ram_hits} hits in RAM ({ram} of {limit}), {ssd_hits} on SSD ({ssd}), {misses} misses"
    )
}

fn links(out: &mut String, view: &View, chain: &Chain) -> std::fmt::Result {
    for (number, link) in chain.links.iter().enumerate() {
        let part = match (link.tail, link.leaving) {
            (_, true) => "leaving",
            (true, _) => "tail",
            _ => "body",
        };
        let Link { device, segments, free_segments, live_blocks, .. } = link;
        let (live, device) = (blocks(*live_blocks), device.split('[').next().unwrap_or_default());
        writeln!(
            out,
            "  link {number} {part:7} {free_segments}/{segments} free, {live} live, {device}"
        )?;
    }
    for Member { path, role, state } in &view.members {
        writeln!(out, "  {role:10} {:14} {path}", state_text(state))?;
    }
    view.warnings.iter().try_for_each(|warning| writeln!(out, "  NOTE: {warning}"))
}

/// A member's state in one or two words.
fn state_text(state: &Value) -> String {
    let rebuilding = &state["rebuilding"];
    match (state.as_str(), rebuilding["done"].as_f64(), rebuilding["total"].as_f64()) {
        (Some(word), _, _) => word.to_owned(),
        (_, Some(done), Some(total)) => format!("rebuilding {:.0}%", 100.0 * done / total.max(1.0)),
        _ => state.to_string(),
    }
}

/// Bytes that reached the devices, by purpose, and the write amplification: device bytes per byte that users
/// wrote.
fn traffic<'a>(
    out: &mut String,
    devices: impl Iterator<Item = &'a Tallies>,
    users: u64,
    remark: &str,
) -> std::fmt::Result {
    let mut sums: std::collections::BTreeMap<&str, Tally> = std::collections::BTreeMap::new();
    for (purpose, tally) in devices.flatten() {
        let sum = sums.entry(purpose).or_default();
        sum.read_bytes += tally.read_bytes;
        sum.write_bytes += tally.write_bytes;
        sum.flushes += tally.flushes;
    }
    writeln!(out, "  {:12} {:>12} {:>12} {:>9}", "purpose", "read", "written", "flushes")?;
    for (purpose, Tally { read_bytes, write_bytes, flushes }) in &sums {
        if read_bytes + write_bytes + flushes > 0 {
            let (read, written) = (Size(*read_bytes).to_string(), Size(*write_bytes).to_string());
            writeln!(out, "  {purpose:12} {read:>12} {written:>12} {flushes:>9}")?;
        }
    }
    if users > 0 {
        let all: u64 = sums.values().map(|tally| tally.write_bytes).sum();
        let factor = all as f64 / users as f64;
        writeln!(out, "  write amplification {factor:.2}{remark}")?;
    }
    Ok(())
}

fn users(out: &mut String, view: &View) -> std::fmt::Result {
    if let Some(recovery) = &view.recovery {
        writeln!(out, "  NOTE: {recovery}")?;
    }
    for Snapshot { name, version, created, .. } in
        view.chain.iter().flat_map(|chain| &chain.snapshots)
    {
        writeln!(out, "  snapshot {name}, version {version}, {}", date::local(*created))?;
    }
    for MountedSnapshot { snapshot, directory } in &view.mounted_snapshots {
        writeln!(out, "  snapshot {snapshot} mounted on {directory}")?;
    }
    if let Some(place) = &view.mounted {
        writeln!(out, "  mounted on {place}")?;
    }
    if let Some(Files { blocks: all, free_blocks, inodes }) = &view.files {
        let (free, all) = (blocks(*free_blocks), blocks(*all));
        writeln!(out, "  files      {inodes} inodes, {free} of {all} free")?;
    }
    for AttachedDevice { export, device } in &view.attached {
        writeln!(out, "  attached {export} as {device}")?;
    }
    if !view.exports.is_empty() {
        writeln!(out, "  served   {}, {} connections", view.exports.join(", "), view.connections)?;
    }
    Ok(())
}
