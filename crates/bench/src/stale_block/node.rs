//! A node with many versions of its blocks, and a stream of writes that comes from its primary.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::{Env, Task};
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Keep, Lba, Residence, Retained};
use thalweg_store::chain::{
    Chain, Cleaning, Create, Link, Options as ChainOptions, Parts, Placement,
};
use thalweg_store::device::DeviceRef;
use thalweg_store::stale::{Cost, Costs, Guarantee, Session, Versioned};
use uuid::Uuid;

use crate::BenchError;
use crate::rig::{self, failed};
use crate::steady_sim::addresses::{Addresses, Load};

/// Blocks in the transactions of the stream, and of the fill.
const STREAM: u64 = 60;
const FILL: u64 = 240;
/// Clients, and how many of a hundred requests are reads.
const CLIENTS: u64 = 8;
const READS: u32 = 90;
/// Passes over all blocks for which a drive has room.
const ROOM: u32 = 10;

/// The drives of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drives {
    /// Three disks.
    Disks,
    /// A disk and a solid-state drive.
    Tiers,
}

/// How clients read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reader {
    /// The newest content.
    Newest,
    /// The cheapest that a guarantee allows.
    Cheapest(Guarantee),
    /// The one that arrives first, which the drives themselves say.
    Oracle(Guarantee),
    /// The one that is expected first by all that the drives know but the angles of their platters.
    Blind(Guarantee),
}

/// What comes from the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// All blocks, again and again.
    Passes,
    /// Blocks as the clients draw them.
    Random,
}

/// What a node has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) drives: Drives,
    pub(crate) blocks: u32,
    /// Blocks of memory for a cache.
    pub(crate) cache: usize,
}

/// A node and its load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) layout: Layout,
    pub(crate) load: Load,
    pub(crate) stream: Stream,
    pub(crate) reader: Reader,
    /// Time of measurement.
    pub(crate) span: Duration,
    pub(crate) seed: u64,
}

/// A drive that knows when it will have served a read.
#[derive(Clone, Debug)]
enum Drive {
    Disk(Arc<HardDisk>),
    Ssd(Arc<SolidState>),
}

/// The cost of a read is the time that it will take, by what the drives themselves know.
#[derive(Debug)]
struct Foreseen {
    env: Env,
    drives: Vec<Drive>,
    /// Whether the angles of platters are known.
    angle: bool,
}

impl Costs for Foreseen {
    fn cost(&self, residence: &Residence) -> Cost {
        let Residence::Device { device, offset, queue, .. } = residence else {
            return Cost::MEMORY;
        };
        match self.drives.get(usize::from(*device)) {
            // Reads beside the log's writes wait for each other.
            Some(Drive::Disk(_)) if queue.writes > 0 => {
                Cost(rig::TAIL_READ_WAIT.as_nanos() as i64 / 2)
            }
            Some(Drive::Disk(disk)) => {
                let done = match self.angle {
                    true => disk.forecast(*offset, BLOCK_SIZE as u64),
                    false => disk.expect(*offset, BLOCK_SIZE as u64),
                };
                Cost(done.since(self.env.now()).as_nanos() as i64)
            }
            // They serve many requests at a time.
            _ => Cost(100_000 * (1 + (queue.reads + queue.writes) as i64)),
        }
    }
}

/// A node.
pub(crate) struct Node {
    env: Env,
    pub(crate) chain: Arc<Chain>,
    pub(crate) retained: Arc<Retained>,
    drives: Vec<Drive>,
}

impl Node {
    pub(crate) async fn new(env: &Env, case: &Layout) -> Result<Node, BenchError> {
        // A pass over all blocks fills a segment, so that each lies on another drive than the one before.
        let segment_blocks = case.blocks.next_multiple_of(FILL as u32);
        let bytes = u64::from(ROOM * segment_blocks) * BLOCK_SIZE as u64;
        let disk = |name: &str| {
            Drive::Disk(Arc::new(HardDisk::new(env, name, HardDiskSpec::sas_10k(bytes))))
        };
        let ssd = |name: &str, bytes: u64| {
            Arc::new(SolidState::new(env, name, SolidStateSpec::sata(bytes)))
        };
        let drives = match case.drives {
            Drives::Disks => vec![disk("disk0"), disk("disk1"), disk("disk2")],
            Drives::Tiers => vec![disk("disk"), Drive::Ssd(ssd("ssd", bytes))],
        };
        let link = |(number, drive): (usize, &Drive)| {
            let device: DeviceRef = match drive {
                Drive::Disk(disk) => disk.clone(),
                Drive::Ssd(ssd) => ssd.clone(),
            };
            Link { id: Uuid::from_u128(100 + number as u128), device }
        };
        let segments = ROOM * drives.len() as u32;
        let parts = Parts {
            links: drives.iter().enumerate().map(link).collect(),
            map: ssd("map", Chain::map_bytes(segment_blocks, segments)),
            map_link: None,
            tail_cache: None,
            body_cache: None,
        };
        let create = Create {
            volume: Uuid::from_u128(7),
            blocks: u64::from(case.blocks),
            segment_blocks,
            max_segments: segments,
            cleaning: Cleaning::MoveToTail,
            placement: Placement::RoundRobin,
            follows: false,
        };
        Chain::create(env, parts.clone(), &create).await.map_err(failed)?;
        let options = ChainOptions {
            tail_cache_blocks: case.cache,
            // What no drive has yet is read from memory: as little as possible.
            dirty_bytes: 2 << 20,
            mini_bytes: 0,
            tail_read_wait: rig::TAIL_READ_WAIT,
            ..ChainOptions::default()
        };
        let (chain, _) = Chain::open(env, parts, options).await.map_err(failed)?;
        let chain = Arc::new(chain);
        // The versions of the last passes, as many as fit beside what the stream writes meanwhile.
        let kept = (ROOM as usize * drives.len() * 2 / 3) * case.blocks as usize;
        let keep = Keep::latest(u64::MAX).within(kept);
        let retained = Arc::new(Retained::new(env, chain.clone(), keep));
        Ok(Node { env: env.clone(), chain, retained, drives })
    }

    /// Writes all blocks some times.
    async fn fill(&self, passes: u64, blocks: u64) -> Result<(), BenchError> {
        for pass in 0..passes {
            for first in (0..blocks).step_by(FILL as usize) {
                let all = first..(first + FILL).min(blocks);
                let writes = all.map(|lba| rig::block(lba, pass)).collect();
                self.retained.apply(writes).await.map_err(failed)?;
            }
        }
        self.chain.checkpoint().await.map_err(failed)?;
        Ok(())
    }

    /// What comes from the primary, as fast as the drives take it.
    fn stream(&self, case: &Case) -> Result<Task<()>, BenchError> {
        let store = self.retained.clone();
        let mut random = Addresses::new(case.load, case.layout.blocks, case.seed ^ 0x5a5a)?;
        let (blocks, stream) = (u64::from(case.layout.blocks), case.stream);
        Ok(self.env.spawn(async move {
            for stamp in 1_000_000.. {
                let mut lba = |nth: u64| match stream {
                    Stream::Passes => (STREAM * (stamp - 1_000_000) + nth) % blocks,
                    Stream::Random => u64::from(random.draw()),
                };
                let lbas: Vec<u64> = (0..STREAM).map(&mut lba).collect();
                let writes = lbas.into_iter().map(|lba| rig::block(lba, stamp)).collect();
                if store.apply(writes).await.is_err() {
                    return;
                }
            }
        }))
    }

    fn versions(&self, reader: Reader) -> Versioned {
        let versions = Versioned::of(&self.env, self.retained.clone());
        match reader {
            Reader::Oracle(_) | Reader::Blind(_) => {
                let (env, drives) = (self.env.clone(), self.drives.clone());
                let angle = matches!(reader, Reader::Oracle(_));
                versions.with_costs(Arc::new(Foreseen { env, drives, angle }))
            }
            _ => versions,
        }
    }
}

/// Reads of one client: their number and nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    count: u64,
    nanos: u64,
}

async fn client(
    node: Arc<Node>,
    case: Case,
    number: u64,
    versions: Versioned,
) -> Result<Reads, BenchError> {
    let seed = case.seed ^ (number + 1);
    let mut addresses = Addresses::new(case.load, case.layout.blocks, seed)?;
    let mut rng = node.env.rng();
    let guarantee = match case.reader {
        Reader::Newest => Guarantee::updates(0),
        Reader::Cheapest(guarantee) | Reader::Oracle(guarantee) | Reader::Blind(guarantee) => {
            guarantee
        }
    };
    let mut session = Session::new(guarantee);
    let (begun, mut reads) = (node.env.now(), Reads::default());
    while node.env.now().since(begun) < case.span {
        let lba = Lba(u64::from(addresses.draw()));
        if rng.random_range(0..100) >= READS {
            let content = rig::content(lba.0, u64::from(rng.random::<u32>()));
            versions.write(&mut session, lba, Some(content)).await.map_err(failed)?;
            continue;
        }
        let since = node.env.now();
        match case.reader {
            Reader::Newest => drop(node.retained.read_newest(lba, 1).await.map_err(failed)?),
            _ => drop(versions.read(&mut session, lba).await.map_err(failed)?),
        }
        reads.count += 1;
        reads.nanos += node.env.now().since(since).as_nanos() as u64;
    }
    Ok(reads)
}

/// The mean latency of reads in milliseconds. All blocks are written `passes` times before.
pub(crate) fn read_latency(case: Case, passes: u64) -> Result<f64, BenchError> {
    thalweg_sim::run(case.seed, |env| async move {
        let node = Arc::new(Node::new(&env, &case.layout).await?);
        node.fill(passes, u64::from(case.layout.blocks)).await?;
        let _stream = node.stream(&case)?;
        // The costs of reads are learned, and the cache is warm.
        env.sleep(case.span / 10).await;
        let versions = node.versions(case.reader);
        let clients = (0..CLIENTS)
            .map(|number| env.spawn(client(node.clone(), case, number, versions.clone())));
        let all = rig::all(clients.collect()).await?;
        let (count, nanos) = all
            .iter()
            .fold((0, 0), |(count, nanos), reads| (count + reads.count, nanos + reads.nanos));
        Ok(nanos as f64 / count.max(1) as f64 / 1e6)
    })
}
