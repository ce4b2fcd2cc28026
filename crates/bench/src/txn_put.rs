//! `txn-put`: bytes and flushes that a durable put of 174 bytes costs a device.
//!
//! Counts are those of the block device: `/sys/block/loopN/stat`. Each engine has a loop device of its
//! own. Our engine is a B-tree on a volume of one link with the map on it, so that one flush covers
//! both: on the raw loop device, and again (`_file`) in a file of an ext4 on the loop device, like the
//! files of the other engines. A put gives one of the existing keys, drawn uniformly, a new value of
//! 174 bytes; keys have 16 bytes. Keys are loaded first, which is not counted.
//!
//! Two more runs (`new_put`) add keys instead of replacing values by others of the same length, so that
//! trees grow: that is not the best case of any engine.
//!
//! The run for `total` counts all writes: it ends when the engine is closed and the kernel has written
//! back all pages, so it includes the checkpoints, cleaning and compaction of that many puts. The other
//! runs are shorter than the time between two checkpoints of ours: `settled_per_*` is the number of blocks of
//! 4,096 bytes for each put that a checkpoint wrote within a run (mostly none, then some tens of megabytes).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use thalweg_env::{Env, Rng, server_threads};
use thalweg_store::tree::Kind;

use crate::engine::{self, Contender, Engine, Ours, Pair, clients};
use crate::loops::{LoopDevice, Mounted, Reached};
use crate::rig::{self, failed};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "txn-put",
    about: "bytes and flushes of durable small puts, by a loop device's counters (needs root)",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

/// Number of existing keys.
const KEYS: u64 = 100_000;
const VALUE: usize = 174;
/// Number of puts with one client and with many, at scale 1.
const PUTS_1: f64 = 20_000.0;
const PUTS_64: f64 = 200_000.0;
/// Number of puts of new keys with one client and with many, at scale 1.
const NEW_1: f64 = 5_000.0;
const NEW_64: f64 = 50_000.0;
/// Number of puts of the run for `total`, at scale 1.
const TOTAL: f64 = 1e6;
const MANY: u64 = 64;
/// The default scale.
const SCALE: f64 = 0.02;
/// Bytes of a loop device. Our volume has a quarter of it, so that a long run includes cleaning.
const DEVICE: u64 = 2 << 30;
const VOLUME: u64 = 256 << 20;
const LINK: u64 = 512 << 20;

/// The place of an engine's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the loop device itself: our engine only.
    Raw,
    /// In a filesystem on it.
    Files,
}

fn key(number: u64) -> Bytes {
    // Spread, so that consecutive numbers are not adjacent in the tree.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Bytes::from([spread.to_be_bytes(), number.to_be_bytes()].concat())
}

fn pair(number: u64) -> Pair {
    (key(number), Bytes::from(vec![number as u8; VALUE]))
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, SCALE)?;
    measure(options, scale, KEYS)
}

fn measure(options: &Options, scale: f64, keys: u64) -> Result<Report, BenchError> {
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(server_threads())
        .enable_all()
        .build()
        .map_err(failed)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale).figure("keys", keys);
    #[cfg_attr(not(feature = "rivals"), allow(unused_mut))]
    let mut cases =
        vec![(Contender::Btree, Place::Raw, "", ""), (Contender::Btree, Place::Files, "", "_file")];
    #[cfg(feature = "rivals")]
    cases.extend(["lmdb_", "rocksdb_", "sqlite_", "redb_", "leveldb_"].into_iter().filter_map(
        |prefix| {
            let kind = engine::RivalKind::ALL
                .into_iter()
                .find(|kind| prefix.strip_suffix('_') == Some(kind.name()))?;
            Some((Contender::Rival(kind), Place::Files, prefix, ""))
        },
    ));
    for (contender, place, prefix, suffix) in cases {
        let counted =
            runtime.block_on(case(&parent, contender, place, options.seed, scale, keys))?;
        eprintln!("{}{suffix}: {counted:.3?}", contender.name());
        for (name, value) in counted {
            report.figure(&format!("{prefix}{name}{suffix}"), value);
        }
    }
    Ok(report)
}

/// Measures one engine, on a loop device of its own, in a task so that the workers run it.
async fn case(
    parent: &Path,
    contender: Contender,
    place: Place,
    seed: u64,
    scale: f64,
    keys: u64,
) -> Result<Vec<(String, f64)>, BenchError> {
    let folder = tempfile::tempdir_in(parent)
        .map_err(|source| BenchError::Io { path: parent.to_owned(), source })?;
    // Dropped in reverse order: the mount before its device, the device before the folder.
    let device =
        LoopDevice::create(folder.path(), if place == Place::Raw { LINK } else { DEVICE })?;
    let mounted = match place {
        Place::Raw => None,
        Place::Files => Some(Mounted::create(&device, folder.path())?),
    };
    let env = Env::real();
    let files = mounted.as_ref().map_or(folder.path(), Mounted::path).join("engine");
    std::fs::create_dir(&files).map_err(|source| BenchError::Io { path: files.clone(), source })?;
    let engine = match place {
        Place::Raw => {
            let sizes = (VOLUME, LINK);
            let ours = Ours::create(&env, &files, device.path(), sizes, Kind::Btree).await?;
            Arc::new(Engine::Ours(Box::new(ours)))
        }
        Place::Files => contender.create(&env, &files, (VOLUME, LINK)).await?,
    };
    engine.load(&env, keys, pair).await?;
    let there = Load { seed, keys: Keys::There(keys) };
    let new = Load { seed, keys: Keys::New(Arc::new(AtomicU64::new(keys))) };
    let mut counted = Vec::new();
    for (count, load, share, of) in [
        (1, &there, PUTS_1, "put_1"),
        (MANY, &there, PUTS_64, "put_64"),
        (1, &new, NEW_1, "new_put_1"),
        (MANY, &new, NEW_64, "new_put_64"),
    ] {
        let puts = (share * scale).ceil() as u64;
        let (before, settled_before) = (device.reached()?, engine.settled());
        load.puts(&env, &engine, count, puts).await?;
        let reached = device.reached()?.since(before);
        let mut each = |what: &str, count: u64| {
            counted.push((format!("{what}_per_{of}"), count as f64 / puts as f64));
        };
        each("bytes", reached.bytes);
        each("flushes", reached.flushes);
        if let (Some(before), Some(after)) = (settled_before, engine.settled()) {
            each("settled", after - before);
        }
    }
    let puts = (TOTAL * scale).ceil() as u64;
    let before = settle(&device, &mounted)?;
    let start = env.now();
    there.puts(&env, &engine, MANY, puts).await?;
    counted.push(("puts_per_s_64".to_owned(), puts as f64 / env.now().since(start).as_secs_f64()));
    engine::close(engine).await?;
    let reached = settle(&device, &mounted)?.since(before);
    counted.push(("total_bytes_per_put_64".to_owned(), reached.bytes as f64 / puts as f64));
    Ok(counted)
}

/// The device's counters once the kernel has written back its dirty pages.
fn settle(device: &LoopDevice, mounted: &Option<Mounted>) -> Result<Reached, BenchError> {
    if let Some(mounted) = mounted {
        mounted.sync()?;
    }
    device.reached()
}

/// The keys of puts.
#[derive(Clone, Debug)]
enum Keys {
    /// Random keys below this number.
    There(u64),
    /// The next number each time; numbers are spread over the order of keys.
    New(Arc<AtomicU64>),
}

impl Keys {
    fn pick(&self, rng: &mut Rng) -> Bytes {
        key(match self {
            Keys::There(keys) => rng.random_range(0..*keys),
            Keys::New(next) => next.fetch_add(1, Ordering::Relaxed),
        })
    }
}

/// Puts of random values.
#[derive(Clone, Debug)]
struct Load {
    seed: u64,
    keys: Keys,
}

impl Load {
    /// Makes `puts` puts by this many clients; a client continues when its put is durable.
    async fn puts(
        &self,
        env: &Env,
        engine: &Arc<Engine>,
        count: u64,
        puts: u64,
    ) -> Result<(), BenchError> {
        let left = Arc::new(AtomicU64::new(puts));
        clients(env, engine, count, |engine, client| {
            let left = left.clone();
            let keys = self.keys.clone();
            let mut rng = Rng::seed_from_u64(self.seed.wrapping_mul(1 << 20) + client);
            async move {
                let take = |left: u64| left.checked_sub(1);
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                    let value = Bytes::from(vec![rng.random::<u8>(); VALUE]);
                    engine.put(&keys.pick(&mut rng), &value).await?;
                }
                Ok(())
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_are_counted_at_the_device() {
        let folder = tempfile::tempdir().unwrap();
        if let Err(error) = LoopDevice::create(folder.path(), 1 << 20) {
            eprintln!("SKIPPED: {error}");
            return;
        }
        let report = measure(&Options::default(), 0.001, 1000).unwrap();
        // Each lone put is durable by a flush of its own, and writes at least its value.
        for suffix in ["", "_file"] {
            let number = |name: &str| report.number(&format!("{name}{suffix}")).unwrap();
            assert!(number("flushes_per_put_1") >= 1.0);
            assert!(number("bytes_per_put_1") >= VALUE as f64);
            assert!(number("bytes_per_put_64") >= VALUE as f64);
            assert!(number("settled_per_put_64") < 1.0, "a put in place settles its block");
            assert!(number("bytes_per_new_put_1") >= VALUE as f64);
            assert!(number("flushes_per_new_put_64") < 1.0, "no flush is shared");
            assert!(number("flushes_per_put_64") < 1.0, "no flush is shared");
            assert!(number("total_bytes_per_put_64") >= VALUE as f64);
        }
    }
}
