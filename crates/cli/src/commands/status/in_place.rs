//! Shows the status of an in-place volume.

use std::fmt::Write;
use std::time::Duration;

use serde::Deserialize;

use super::{Tallies, View, blocks, latency};
use crate::size::Size;

#[derive(Debug, Deserialize)]
pub(super) struct InPlace {
    mode: String,
    version: u64,
    durable: u64,
    cached: u64,
    dirty: u64,
    journal_size: u64,
    journal_room: u64,
    poisoned: Option<String>,
    counts: Counts,
    #[serde(default)]
    stages: Vec<latency::Stage>,
    #[serde(default)]
    slow_flushes: Vec<latency::SlowFlush>,
}

#[derive(Debug, Deserialize)]
struct Counts {
    data_bytes: u64,
    metadata_bytes: u64,
    commits: u64,
    journal_bytes: u64,
    checkpointed: u64,
    direct: u64,
    releases: u64,
    reads: u64,
}

/// A device of an in-place volume.
#[derive(Debug, Deserialize)]
pub(super) struct Device {
    path: String,
    role: String,
    pub(super) io: Tallies,
}

impl InPlace {
    /// The durations of `requests` and of the store's stages.
    pub(super) fn latencies(
        &self,
        out: &mut String,
        requests: &[latency::Stage],
    ) -> std::fmt::Result {
        latency::table(out, requests.iter().chain(&self.stages), &self.slow_flushes, &[])
    }

    /// Bytes that users changed.
    pub(super) fn changed(&self) -> u64 {
        self.counts.data_bytes
    }
}

pub(super) fn summary(
    out: &mut String,
    view: &View,
    it: &InPlace,
    before: Option<(&View, Duration)>,
) -> std::fmt::Result {
    let InPlace { mode, version, durable, cached, dirty, counts, .. } = it;
    writeln!(out, "{} ({}), {}, in place", view.name, view.folder, Size(view.size))?;
    if let Some(why) = &it.poisoned {
        writeln!(out, "  REFUSES WRITES: {why}")?;
    }
    writeln!(out, "  version     {version}, durable up to {durable}")?;
    writeln!(out, "  memory      {} of blocks, {} dirty", blocks(*cached), blocks(*dirty))?;
    let (size, room) = (Size(it.journal_size), Size(it.journal_room));
    writeln!(out, "  journal     {mode}, {room} of {size} free")?;
    let Counts { data_bytes, metadata_bytes, commits, journal_bytes, .. } = counts;
    let (data, metadata) = (Size(*data_bytes), Size(*metadata_bytes));
    writeln!(out, "  changed     {data} of data, {metadata} of metadata")?;
    let journal = Size(*journal_bytes);
    writeln!(
        out,
        "  commits     {commits}, {journal} in the journal, {} releases",
        counts.releases
    )?;
    let (checkpointed, direct) = (blocks(counts.checkpointed), blocks(counts.direct));
    let reads = blocks(counts.reads);
    writeln!(
        out,
        "  in place    {checkpointed} written back, {direct} written directly, {reads} read"
    )?;
    if let Some((before, span)) =
        before.and_then(|(view, span)| Some((view.in_place.as_ref()?, span)))
    {
        let rate = |now: u64, then: u64| {
            Size((now.saturating_sub(then) as f64 / span.as_secs_f64()) as u64)
        };
        let then = &before.counts;
        let changed = rate(counts.data_bytes, then.data_bytes);
        let journal = rate(counts.journal_bytes, then.journal_bytes);
        let home = rate(
            blocks(counts.checkpointed + counts.direct).0,
            blocks(then.checkpointed + then.direct).0,
        );
        writeln!(out, "  now         {changed}/s changed, {journal}/s journal, {home}/s in place")?;
    }
    Ok(())
}

pub(super) fn devices(out: &mut String, view: &View) -> std::fmt::Result {
    for Device { path, role, .. } in &view.devices {
        writeln!(out, "  {role:10} {path}")?;
    }
    view.sockets.iter().try_for_each(|folder| writeln!(out, "  sockets    {folder}"))
}
