//! Where the versions of a block are said to be, against what their reads do.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{
    Blocks, BlocksExt, Hold, Lba, Located, Residence, Version, Versions, Write,
};
use thalweg_store::chain::{Chain, Cleaning, Options, Parts, Placement};
use thalweg_store::device::{Device, DeviceRef, Geometry, Purpose};

use crate::support::{Shape, content, options};

const BLOCKS: u64 = 40;
const CACHED: usize = 12;
const SSD_BLOCKS: u64 = 24;

/// A chain with caches of a few blocks, and its devices.
struct Rig {
    chain: Chain,
    links: Vec<Arc<RamDisk>>,
    tail_cache: Arc<RamDisk>,
    body_cache: Arc<RamDisk>,
    /// The stamps of each block's contents, with their versions.
    written: Vec<Vec<(Version, u64)>>,
    since: Option<Hold>,
}

impl Rig {
    async fn new(env: &Env, placement: Placement) -> Rig {
        let shape = Shape {
            blocks: BLOCKS,
            segments_per_link: 4,
            placement,
            ..Shape::small(Cleaning::MoveToTail)
        };
        let (devices, disks) = shape.ram_disks();
        let cache = |name| {
            let geometry = Geometry { size: SSD_BLOCKS * 4096, sector: 512 };
            Arc::new(RamDisk::new(name, geometry))
        };
        let (tail_cache, body_cache) = (cache("tail cache"), cache("body cache"));
        let parts = Parts {
            tail_cache: Some(tail_cache.clone() as DeviceRef),
            body_cache: Some(body_cache.clone() as DeviceRef),
            ..shape.parts(&devices)
        };
        Chain::create(env, parts.clone(), &shape.create()).await.unwrap();
        let options = Options {
            tail_cache_blocks: CACHED,
            body_cache_blocks: CACHED,
            auto_clean: false,
            ..options()
        };
        let (chain, _) = Chain::open(env, parts, options).await.unwrap();
        let since = chain.hold_since(chain.now());
        let links = disks[..shape.links].to_vec();
        let written = vec![Vec::new(); BLOCKS as usize];
        Rig { chain, links, tail_cache, body_cache, written, since }
    }

    async fn write(&mut self, rng: &mut Rng, stamp: u64) {
        let lbas: Vec<u64> =
            (0..rng.random_range(1..30)).map(|_| rng.random_range(0..BLOCKS)).collect();
        let writes = lbas.iter().map(|lba| Write::block(Lba(*lba), content(*lba, stamp)));
        let version = self.chain.apply(writes.collect()).await.unwrap();
        for lba in lbas {
            self.written[lba as usize].push((version, stamp));
        }
    }

    /// Fewer versions are held.
    fn advance(&mut self, rng: &mut Rng) {
        let (oldest, now) = (self.chain.oldest(), self.chain.now());
        let from = Version(rng.random_range(oldest.0..=now.0));
        self.since = self.chain.hold_since(from);
        assert!(self.since.is_some());
    }

    fn device(&self, number: u16) -> &Arc<RamDisk> {
        match number {
            u16::MAX => &self.tail_cache,
            number if number == u16::MAX - 1 => &self.body_cache,
            link => &self.links[usize::from(link)],
        }
    }

    /// Reads of each device so far.
    fn reads(&self) -> Vec<u64> {
        let devices = self.links.iter().chain([&self.tail_cache, &self.body_cache]);
        devices.map(|disk| disk.tallies().total().reads).collect()
    }

    fn stamp(&self, lba: u64, version: Version) -> Option<u64> {
        let written = self.written[lba as usize].iter().rev();
        written.clone().find(|(at, _)| *at <= version).map(|(_, stamp)| *stamp)
    }

    /// What is known of the device is what it says now, and the content is there.
    async fn check_device(&self, lba: u64, located: &Located) {
        let Residence::Device { device, offset, size, is_rotational, queue } = located.residence
        else {
            return;
        };
        let disk = self.device(device);
        assert_eq!((size, is_rotational), (disk.geometry().size, disk.is_rotational()));
        let real = disk.queue_depth();
        assert!(
            queue.reads == real.reads && queue.writes <= real.writes.max(1),
            "{queue:?} {real:?}"
        );
        if usize::from(device) < self.links.len() {
            let there = disk.read(offset, 4096, Purpose::Repair).await.unwrap();
            let stamp = self.stamp(lba, located.oldest).expect("a content on a device was written");
            assert!(there == content(lba, stamp), "another content at {offset} of link {device}");
        }
    }

    /// Compares the answer about all versions of a block with those about each, and one of them with what its read does.
    /// Returns where that read went.
    async fn check(&self, rng: &mut Rng, lba: u64) -> Option<u16> {
        let all = self.chain.locate(Lba(lba), Version(0), self.chain.now()).unwrap();
        for located in &all {
            let version = Version(rng.random_range(located.oldest.0..=located.newest.0));
            let one = self.chain.locate(Lba(lba), version, version).unwrap();
            assert_eq!(one[..], [*located], "block {lba} at {version}");
        }
        let located = all[rng.random_range(0..all.len())];
        let before = self.reads();
        let read = self.chain.read(Lba(lba), 1, located.oldest).await.unwrap().pop().flatten();
        let after = self.reads();
        assert_eq!(read, self.stamp(lba, located.oldest).map(|stamp| content(lba, stamp)));
        let went: Vec<usize> = (0..before.len()).filter(|nth| after[*nth] > before[*nth]).collect();
        let (number, expected) = match located.residence {
            Residence::Memory => (None, vec![]),
            Residence::Device { device: u16::MAX, .. } => (Some(u16::MAX), vec![self.links.len()]),
            Residence::Device { device, .. } if device == u16::MAX - 1 => {
                (Some(device), vec![self.links.len() + 1])
            }
            Residence::Device { device, .. } => (Some(device), vec![usize::from(device)]),
        };
        assert_eq!(went, expected, "block {lba} at {}: {located:?}", located.oldest);
        self.check_device(lba, &located).await;
        number
    }
}

/// A read reads the device on which its content is said to be, and none if that is memory; what is said of many versions
/// at once is what is said of each.
#[test]
fn versions_are_read_from_where_they_are_said_to_be() {
    for placement in [Placement::Chained, Placement::RoundRobin] {
        let places = run(1, |env| async move {
            let mut rng = env.rng();
            let mut rig = Rig::new(&env, placement).await;
            let mut places = Vec::new();
            for step in 0..3000 {
                match rng.random_range(0..100) {
                    0..20 => rig.write(&mut rng, step).await,
                    20..22 => rig.advance(&mut rng),
                    22..30 => env.sleep(Duration::from_millis(rng.random_range(1..80))).await,
                    _ => {
                        let lba = rng.random_range(0..BLOCKS);
                        places.push(rig.check(&mut rng, lba).await);
                    }
                }
            }
            places
        });
        // Each kind of place was met often.
        let count = |place| places.iter().filter(|it| **it == place).count();
        let links: Vec<usize> = (0..3).map(|link| count(Some(link))).collect();
        let counts = (count(None), &links[..], count(Some(u16::MAX)), count(Some(u16::MAX - 1)));
        assert!(counts.0 > 100 && links.iter().all(|count| *count > 30), "{counts:?}");
        assert!(counts.2 > 20, "{counts:?}");
        println!("{placement:?} {counts:?}");
    }
}
