//! Chains over simulated drives.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::{Env, Task};
use thalweg_sim::busy::{BusyTimes, Kind};
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Write};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options, Parts, Recovered};
use thalweg_store::device::{Device, DeviceRef, Mirror, Side, Stripe};
use uuid::Uuid;

use crate::{BenchError, Report};

/// Blocks in a segment: 28 MB.
pub(crate) const SEGMENT: u32 = 7_200;
/// How long reads at the tail wait to be batched: all drives here are rotational disks.
pub(crate) const TAIL_READ_WAIT: Duration = Duration::from_millis(100);
/// Bytes in a stripe unit.
const STRIPE_UNIT: u64 = 64 * 1024;
/// Blocks in the transactions that fill a chain.
const FILL: u64 = 240;
/// Number of addresses whose blocks [`Rig::fill`] overwrites in turn, to fill a log with dead blocks: more than it
/// writes in one transaction, which keeps only the last content of a block that it writes twice.
pub(crate) const SCRATCH: u64 = FILL + 16;

/// How drives form a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Each is a link.
    Chained,
    /// All drives are one link, striped over them (RAID-0, RAID-10).
    Striped,
}

/// The parameters of a chain.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) placement: Placement,
    /// Drives, or mirrored pairs of drives.
    pub(crate) drives: usize,
    pub(crate) mirrored: bool,
    /// Whether second sides in the body go to stand-by.
    pub(crate) standby: bool,
    /// Number of segments on one drive.
    pub(crate) drive_segments: u32,
    /// Logical blocks.
    pub(crate) blocks: u64,
    pub(crate) cleaning: Cleaning,
    /// Blocks of the SSDs that cache the tail and the body; 0 for no cache.
    pub(crate) tail_ssd: u64,
    pub(crate) body_ssd: u64,
    pub(crate) options: Options,
}

impl Plan {
    /// Blocks on one drive.
    pub(crate) fn drive_blocks(&self) -> u64 {
        u64::from(self.drive_segments) * u64::from(SEGMENT)
    }
}

/// A chain over simulated drives.
pub(crate) struct Rig {
    pub(crate) env: Env,
    pub(crate) chain: Arc<Chain>,
    /// The drives in the order of the links, a mirror's sides adjacent.
    pub(crate) disks: Vec<Vec<Arc<HardDisk>>>,
    parts: Parts,
    map: Arc<SolidState>,
    stamp: u64,
}

/// The cost of opening after a crash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub(crate) recovered: Recovered,
    /// Bytes read from all devices.
    pub(crate) bytes_read: u64,
    pub(crate) time: Duration,
}

impl Rig {
    /// Builds an empty chain of drives of 10,000 rpm and 120 MB/s, with its map on a SATA SSD.
    pub(crate) async fn build(env: &Env, plan: &Plan) -> Result<Rig, BenchError> {
        let (disks, drives) = drives(env, plan)?;
        Rig::assemble(env, plan, disks, drives).await
    }

    /// The same, from given drives.
    pub(crate) async fn assemble(
        env: &Env,
        plan: &Plan,
        disks: Vec<Vec<Arc<HardDisk>>>,
        drives: Vec<DeviceRef>,
    ) -> Result<Rig, BenchError> {
        let devices = match plan.placement {
            Placement::Chained => drives,
            Placement::Striped => {
                vec![Arc::new(Stripe::new(drives, STRIPE_UNIT).map_err(failed)?) as DeviceRef]
            }
        };
        let id = |number: usize| Uuid::from_u128(100 + number as u128);
        let links = devices.into_iter().enumerate();
        let segments = plan.drives as u32 * plan.drive_segments;
        let ssd = |name: &str, bytes: u64| {
            Arc::new(SolidState::new(env, name, SolidStateSpec::sata(bytes)))
        };
        let cache = |name: &str, blocks: u64| {
            (blocks > 0).then(|| ssd(name, blocks * BLOCK_SIZE as u64) as DeviceRef)
        };
        let map = ssd("map", Chain::map_bytes(SEGMENT, segments));
        let parts = Parts {
            links: links.map(|(number, device)| Link { id: id(number), device }).collect(),
            map: map.clone(),
            map_link: None,
            tail_cache: cache("tail-cache", plan.tail_ssd),
            body_cache: cache("body-cache", plan.body_ssd),
        };
        let create = Create {
            volume: Uuid::from_u128(7),
            blocks: plan.blocks,
            segment_blocks: SEGMENT,
            max_segments: segments,
            cleaning: plan.cleaning,
            placement: Default::default(),
            follows: false,
        };
        Chain::create(env, parts.clone(), &create).await.map_err(failed)?;
        let opened = Chain::open(env, parts.clone(), plan.options.clone()).await;
        let (chain, _) = opened.map_err(failed)?;
        Ok(Rig { env: env.clone(), chain: Arc::new(chain), disks, parts, map, stamp: 0 })
    }

    /// Cuts the power of every drive except caches, waits, and opens the chain again.
    pub(crate) async fn cut_power_and_open(
        self,
        wait: Duration,
        options: Options,
    ) -> Result<Restart, BenchError> {
        let Rig { env, chain, disks, parts, map, .. } = self;
        drop(chain);
        map.power_cut();
        disks.iter().flatten().for_each(|disk| disk.power_cut());
        map.power_on();
        disks.iter().flatten().for_each(|disk| disk.power_on());
        env.sleep(wait).await;
        let read = || {
            let links = parts.links.iter().map(|link| link.device.tallies());
            links.chain([map.tallies()]).map(|tallies| tallies.total().read_bytes).sum::<u64>()
        };
        let (before, start) = (read(), env.now());
        let opened = Chain::open(&env, parts.clone(), options).await;
        let (_chain, recovered) = opened.map_err(failed)?;
        let time = env.now().since(start);
        Ok(Restart { recovered, bytes_read: read() - before, time })
    }

    /// Writes `count` blocks, each to the address that `lba` returns for it, in large transactions.
    pub(crate) async fn fill(
        &mut self,
        count: u64,
        mut lba: impl FnMut(u64) -> u64,
    ) -> Result<(), BenchError> {
        let mut done = 0;
        while done < count {
            let take = FILL.min(count - done);
            let stamp = self.stamp;
            let write = |at: u64| block(lba(done + at), stamp + at);
            self.chain.apply((0..take).map(write).collect()).await.map_err(failed)?;
            self.stamp += take;
            done += take;
        }
        Ok(())
    }

    /// Makes everything durable.
    pub(crate) async fn sync(&self) -> Result<(), BenchError> {
        self.chain.sync(self.chain.now()).await.map_err(failed)
    }

    /// The number of the link that has the tail.
    pub(crate) fn tail(&self) -> usize {
        self.chain.status().links.iter().position(|link| link.tail).unwrap_or(0)
    }

    /// Busy times of a link's drives.
    pub(crate) fn busy(&self, link: usize) -> Vec<BusyTimes> {
        self.disks[link].iter().map(|disk| disk.busy()).collect()
    }

    /// Seconds since `before` of a link's drives: on requests other than writes, and on seeks and rotation
    /// of writes; summed over the drives.
    pub(crate) fn disturbance(&self, link: usize, before: &[BusyTimes]) -> (f64, f64) {
        let mut sum = (0.0, 0.0);
        for (now, before) in self.busy(link).iter().zip(before) {
            let since = now.since(before);
            let writes = since.sum(Kind::Write);
            sum.0 += since.sum(Kind::Read).total().as_secs_f64();
            sum.1 += (writes.seek + writes.rotation).as_secs_f64();
        }
        sum
    }
}

type Drives = (Vec<Vec<Arc<HardDisk>>>, Vec<DeviceRef>);

/// The drives, and the device for each drive or pair.
fn drives(env: &Env, plan: &Plan) -> Result<Drives, BenchError> {
    let mut disks = Vec::new();
    let mut devices: Vec<DeviceRef> = Vec::new();
    let spec = HardDiskSpec::sas_10k(plan.drive_blocks() * BLOCK_SIZE as u64);
    for number in 0..plan.drives {
        let disk =
            |side: &str| Arc::new(HardDisk::new(env, &format!("disk{number}{side}"), spec.clone()));
        let group = if plan.mirrored { vec![disk("a"), disk("b")] } else { vec![disk("")] };
        devices.push(match plan.mirrored {
            true => {
                let sides = group.iter().map(|disk| Side::InSync(disk.clone() as DeviceRef));
                let record = Arc::new(());
                let mirror = Mirror::new(env, sides.collect(), record, plan.standby);
                Arc::new(mirror.map_err(failed)?)
            }
            false => group[0].clone(),
        });
        disks.push(group);
    }
    Ok((disks, devices))
}

/// A block whose content names its address and a stamp, and repeats it: a simulated medium keeps
/// such blocks in 16 bytes.
pub(crate) fn block(lba: u64, stamp: u64) -> Write {
    Write::block(Lba(lba), content(lba, stamp))
}

/// See [`block`].
pub(crate) fn content(lba: u64, stamp: u64) -> Bytes {
    let mut pattern = [0; 16];
    pattern[..8].copy_from_slice(&lba.to_le_bytes());
    pattern[8..].copy_from_slice(&(stamp + 1).to_le_bytes());
    Bytes::from(pattern.repeat(BLOCK_SIZE / 16))
}

/// Megabytes per second for blocks in a span of virtual time.
pub(crate) fn mb_per_s(blocks: u64, seconds: f64) -> f64 {
    blocks as f64 * BLOCK_SIZE as f64 / 1e6 / seconds.max(1e-9)
}

/// Rounds a figure for printing.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The median; there must be at least one value.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The 99th percentile; `None` of no values.
pub(crate) fn p99(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let nth = (values.len() * 99).div_ceil(100).saturating_sub(1);
    values.get(nth).copied()
}

/// Wraps an error of the system under test.
pub(crate) fn failed<E: std::error::Error + Send + Sync + 'static>(error: E) -> BenchError {
    BenchError::Failed(Box::new(error))
}

/// Resident memory of the process in bytes, with any allocator. Memory that was freed does not count, even if the
/// allocator has not released it yet.
pub(crate) fn resident() -> Result<u64, BenchError> {
    // SAFETY: the call takes no pointer. With another allocator it has no effect.
    unsafe { libmimalloc_sys::mi_collect(true) };
    memory("RssAnon:")
}

/// The most resident memory of the process in bytes since the last call of [`forget_peak`].
pub(crate) fn peak() -> Result<u64, BenchError> {
    memory("VmHWM:")
}

/// Begins to measure [`peak`]; returns the resident memory now, freed memory not counted.
pub(crate) fn forget_peak() -> Result<u64, BenchError> {
    resident()?;
    let path = PathBuf::from("/proc/self/clear_refs");
    std::fs::write(&path, "5").map_err(|source| BenchError::Io { path, source })?;
    memory("VmRSS:")
}

/// A line of what the system tells of the process's memory, in bytes.
fn memory(key: &str) -> Result<u64, BenchError> {
    let path = PathBuf::from("/proc/self/status");
    let status = std::fs::read_to_string(&path);
    let status = status.map_err(|source| BenchError::Io { path, source })?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| failed(std::io::Error::other("the system does not tell of memory")))
}

/// The scale of a run; an error when it is out of range.
pub(crate) fn scale(options: &crate::Options, default: f64) -> Result<f64, BenchError> {
    let scale = options.scale.unwrap_or(default);
    match (1e-4..=1.0).contains(&scale) {
        true => Ok(scale),
        false => Err(BenchError::Invalid(format!("the scale {scale} is not in 0.0001 to 1"))),
    }
}

/// Runs independent cases on all processors; returns the results in the order of the cases.
pub(crate) fn on_all_processors<C: Sync, T: Send>(
    cases: &[C],
    run: impl Fn(&C) -> Result<T, BenchError> + Sync,
) -> Result<Vec<T>, BenchError> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(nth) else { return Ok(done) };
            done.push((nth, run(case)?));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut results: Vec<(usize, T)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let died = |_| BenchError::Failed("a thread of the simulation panicked".into());
        let joined = running.into_iter().map(|thread| thread.join().map_err(died)?);
        let joined = joined.collect::<Result<Vec<_>, BenchError>>()?;
        Ok::<_, BenchError>(joined.into_iter().flatten().collect())
    })?;
    results.sort_by_key(|(nth, _)| *nth);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Runs a client in a thread of its own.
pub(crate) fn in_thread<T: Send + 'static>(
    env: &Env,
    client: impl Future<Output = Result<T, BenchError>> + Send + 'static,
) -> Task<Result<T, BenchError>> {
    let runtime = tokio::runtime::Handle::current();
    let thread = tokio::task::spawn_blocking(move || runtime.block_on(client));
    env.spawn(async move { thread.await.map_err(failed)? })
}

/// Waits for all clients, also after a failure: no client may be running when this returns.
pub(crate) async fn all<T>(
    clients: Vec<Task<Result<T, BenchError>>>,
) -> Result<Vec<T>, BenchError> {
    let mut outcome = Ok(Vec::new());
    for client in clients {
        let died = || BenchError::Failed("a client died".into());
        let done = client.await.ok_or_else(died).flatten();
        outcome = outcome.and_then(|mut all| {
            all.push(done?);
            Ok(all)
        });
    }
    outcome
}

/// Seconds of processor time that the process has used.
pub(crate) fn processor() -> f64 {
    // SAFETY: the structure is plain numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills in the structure, which lives longer.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Tells figures, and how many of them are above their aims.
pub(crate) fn tell(
    report: &mut Report,
    figures: impl IntoIterator<Item = (&'static str, f64)>,
    aims: &[(&str, f64)],
) {
    let mut missed = 0;
    for (name, figure) in figures {
        report.figure(name, rounded(figure));
        let aim = aims.iter().find(|(aimed, _)| *aimed == name);
        missed += u32::from(aim.is_some_and(|(_, aim)| figure > aim + 5e-4));
    }
    report.figure("below_aim", f64::from(missed));
}

/// What is aimed at: a figure, its value, and whether that is the lowest one.
pub(crate) type Aim = (&'static str, f64, bool);

/// Reports how many of the aims the figures miss; one that was not measured misses its aim.
pub(crate) fn count_missed(report: &mut Report, aims: &[Aim]) {
    let misses = |(name, aim, is_lowest): &&Aim| {
        report.number(name).is_none_or(|figure| match is_lowest {
            true => figure < aim - 5e-4,
            false => figure > aim + 5e-4,
        })
    };
    let missed = aims.iter().filter(misses).count();
    report.figure("below_aim", missed as f64);
}
