//! Devices that fail, lie and rot under a chain: never a wrong byte, and never an acknowledged write lost
//! without an error that says so.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::content::Content;
use thalweg_sim::faults::{Faults, Faulty};
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, StoreError, Version, Write};
use thalweg_store::chain::{Chain, ChainError, Cleaning, Link, Options, Parts};
use thalweg_store::device::{Device, DeviceRef, Geometry, Mirror, Operation, Side};

use crate::support::{
    SEGMENT, Shape, Step, content, link_id, options, random_step, random_step_in_parts, read_all,
    some_parts,
};

pub(crate) fn shape(cleaning: Cleaning) -> Shape {
    Shape { blocks: 260, segments_per_link: 4, ..Shape::small(cleaning) }
}

/// A chain on faulty devices: links 0 to 2, the map, a cache.
pub(crate) struct Rig {
    env: Env,
    pub(crate) shape: Shape,
    disks: Vec<Arc<RamDisk>>,
    devices: Vec<DeviceRef>,
    pub(crate) faults: Vec<Faults>,
    model: BlockModel,
    /// The newest version that `sync` acknowledged.
    acknowledged: Version,
    rng: Rng,
    /// Whether transactions change parts of blocks.
    parts: bool,
}

const MAP: usize = 3;
const CACHE: usize = 4;

impl Rig {
    pub(crate) async fn new(env: &Env, shape: Shape) -> Rig {
        let mut rig = Rig {
            env: env.clone(),
            shape,
            disks: Vec::new(),
            devices: Vec::new(),
            faults: Vec::new(),
            model: BlockModel::new(shape.blocks),
            acknowledged: Version(0),
            rng: env.rng(),
            parts: false,
        };
        let sizes = [shape.link_bytes(); 3].into_iter().chain([shape.map_bytes(), 1 << 20]);
        for (number, size) in sizes.enumerate() {
            let geometry = Geometry { size, sector: shape.sector };
            let disk = Arc::new(RamDisk::new(&format!("disk{number}"), geometry));
            let (device, faults) = Faulty::wrap(env, disk.clone());
            rig.disks.push(disk);
            rig.devices.push(device);
            rig.faults.push(faults);
        }
        Chain::create(env, rig.parts(), &shape.create()).await.unwrap();
        rig
    }

    fn parts(&self) -> Parts {
        let mut parts = self.shape.parts(&self.devices[..=MAP]);
        parts.tail_cache = Some(self.devices[CACHE].clone());
        parts
    }

    fn options(&self) -> Options {
        Options { tail_cache_blocks: 8, ..options() }
    }

    pub(crate) async fn open(&self) -> Result<Chain, ChainError> {
        let opened = Chain::open(&self.env, self.parts(), self.options()).await;
        opened.map(|(chain, _)| chain)
    }

    /// Runs steps until one fails.
    pub(crate) async fn write(&mut self, chain: &Chain, steps: usize) -> Result<(), StoreError> {
        for _ in 0..steps {
            let step = match self.parts {
                true => random_step_in_parts(&mut self.rng, self.shape.blocks),
                false => random_step(&mut self.rng, self.shape.blocks),
            };
            match step {
                Step::Apply(lbas) => {
                    let stamp = self.model.now().0;
                    let write = |lba: &u64| Write::block(Lba(*lba), content(*lba, stamp));
                    let writes: Vec<Write> = lbas.iter().map(write).collect();
                    // An attempt counts even if it fails: it may survive.
                    self.model.apply(&writes);
                    chain.apply(writes).await?;
                }
                Step::Parts(lbas) => {
                    let stamp = self.model.now().0;
                    let read = |lba| self.model.read(Lba(lba), self.model.now());
                    let mut now: Vec<_> = (0..self.shape.blocks).map(read).collect();
                    let writes = some_parts(&mut self.rng, &lbas, stamp, 0.9, &mut now);
                    self.model.apply(&writes);
                    chain.apply(writes).await?;
                }
                Step::Discard(lba, count) => {
                    if chain.discard(Lba(lba), count).await? > self.model.now() {
                        self.model.discard(Lba(lba), count);
                    }
                }
                Step::Sync => {
                    chain.sync(chain.now()).await?;
                    self.acknowledged = chain.now();
                }
                Step::Clean(count) => drop(chain.clean(count).await?),
                Step::Checkpoint => chain.checkpoint().await?,
                Step::Wait(_) => self.env.sleep(Duration::from_millis(2)).await,
            }
        }
        Ok(())
    }

    /// Every block is right, or an error; returns the number of errors.
    pub(crate) async fn check_reads(&self, chain: &Chain) -> usize {
        let now = chain.now();
        let mut damaged = 0;
        for lba in (0..self.shape.blocks).map(Lba) {
            match chain.read(lba, 1, now).await {
                Ok(found) => assert_eq!(found[0], self.model.read(lba, now), "block {}", lba.0),
                Err(_) => damaged += 1,
            }
        }
        damaged
    }

    /// The reopened chain obeys the crash rule.
    async fn check_state(&mut self, chain: &Chain) {
        let now = chain.now();
        let blocks = read_all(chain, now).await.unwrap();
        let read = |lba: Lba| blocks[lba.0 as usize].clone();
        let found = self.model.check(self.acknowledged, self.model.now(), read);
        assert!(found.unwrap().contains(now));
        self.model.rewind(now);
    }

    fn contents(&self) -> Vec<Content> {
        self.disks.iter().map(|disk| disk.content()).collect()
    }
}

/// The same content on other devices.
fn parts_of(shape: &Shape, disks: &[Arc<RamDisk>], contents: Vec<Content>) -> Vec<DeviceRef> {
    let pairs = disks.iter().zip(contents).take(shape.links + 1);
    let fork = |(disk, content): (&Arc<RamDisk>, Content)| {
        Arc::new(RamDisk::with_content(&disk.name(), disk.geometry(), content)) as DeviceRef
    };
    pairs.map(fork).collect()
}

/// The damage to a page of the map device.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// A bit of each of its sectors flips.
    Rot(u64),
    /// It cannot be read.
    Unreadable,
}

/// Opens a volume with each page of its map area damaged in turn: everything acknowledged is there, or the
/// volume does not open.
fn every_map_page(seed: u64, cleaning: Cleaning, harms: &'static [Harm]) {
    run(seed, |env| async move {
        let shape = shape(cleaning);
        let mut rig = Rig::new(&env, shape).await;
        let chain = rig.open().await.unwrap();
        rig.write(&chain, 260).await.unwrap();
        chain.sync(chain.now()).await.unwrap();
        rig.acknowledged = chain.now();
        drop(chain);
        let contents = rig.contents();
        let pages = rig.disks[MAP].geometry().size / 4096;
        let stored: Vec<u64> = (0..pages).filter(|page| contents[MAP].is_stored(*page)).collect();
        let (mut refused, mut whole) = (0, 0);
        for (page, harm) in
            stored.into_iter().flat_map(|page| harms.iter().map(move |h| (page, *h)))
        {
            let mut contents = contents.clone();
            let at = page * 4096;
            for sector in 0..8 {
                if let Harm::Rot(byte) = harm {
                    let mut bytes = contents[MAP].read(at + sector * 512, 512).to_vec();
                    bytes[byte as usize] ^= 4;
                    contents[MAP].write(at + sector * 512, &bytes);
                }
            }
            let mut devices = parts_of(&shape, &rig.disks, contents);
            if let Harm::Unreadable = harm {
                let (device, faults) = Faulty::wrap(&env, devices[MAP].clone());
                faults.break_sectors(at..at + 4096);
                devices[MAP] = device;
            }
            match shape.open(&env, &devices).await {
                Err(ChainError::Damaged(_)) => refused += 1,
                Err(error) => panic!("{harm:?} of page {page}: {error}"),
                Ok((chain, found)) => {
                    let now = chain.now();
                    assert_eq!(now, rig.acknowledged, "{harm:?} of page {page}: {found:?}");
                    for (lba, block) in read_all(&chain, now).await.unwrap().into_iter().enumerate()
                    {
                        let right = rig.model.read(Lba(lba as u64), now);
                        assert!(block == right, "{harm:?} of page {page}: block {lba}");
                    }
                    whole += 1;
                }
            }
        }
        println!("{refused} refused, {whole} whole");
        assert!(refused > 0 && whole > 0, "{refused} refused, {whole} whole");
    });
}

#[test]
fn rot_on_the_map_device_is_no_crash() {
    for seed in 0..3 {
        every_map_page(seed, Cleaning::MoveToTail, &[Harm::Rot(0), Harm::Rot(5), Harm::Rot(8)]);
        every_map_page(seed, Cleaning::CompactInBody, &[Harm::Rot(40), Harm::Rot(34)]);
    }
}

#[test]
fn unreadable_pages_on_the_map_device_are_no_crash() {
    for seed in 3..6 {
        every_map_page(seed, Cleaning::MoveToTail, &[Harm::Unreadable]);
        every_map_page(seed, Cleaning::CompactInBody, &[Harm::Unreadable]);
    }
}

/// Refuses a request of each kind on each device in turn.
fn refusals(seed: u64, cleaning: Cleaning) {
    run(seed, |env| async move {
        let mut rig = Rig::new(&env, shape(cleaning)).await;
        let mut poisoned = 0;
        for (device, operation) in
            (0..=CACHE).flat_map(|d| [Operation::Write, Operation::Flush].map(|o| (d, o)))
        {
            let chain = rig.open().await.unwrap();
            rig.check_state(&chain).await;
            rig.write(&chain, 40).await.unwrap();
            rig.faults[device].fail(operation, usize::MAX);
            let result = rig.write(&chain, 200).await;
            assert_eq!(result.is_err(), device != CACHE, "{operation:?} on {device}: {result:?}");
            if device != CACHE {
                poisoned += 1;
                let refused = chain.apply(vec![Write::block(Lba(0), content(0, 0))]).await;
                assert!(matches!(refused, Err(StoreError::Poisoned(_))), "{refused:?}");
                assert!(chain.sync(chain.now()).await.is_err() || chain.now() <= rig.acknowledged);
            }
            assert_eq!(rig.check_reads(&chain).await, 0, "reads go on");
            drop(chain);
            rig.faults[device].heal();
        }
        assert_eq!(poisoned, 8);
    });
}

#[test]
fn a_refused_write_or_flush_poisons_and_reads_go_on() {
    for seed in 0..4 {
        refusals(seed, Cleaning::MoveToTail);
        refusals(seed, Cleaning::CompactInBody);
    }
}

/// A device dies, or fills up, after some requests; the volume is opened again with it healed.
fn deaths(seed: u64, cleaning: Cleaning) {
    run(seed, |env| async move {
        let mut rig = Rig::new(&env, shape(cleaning)).await;
        for round in 0..40 {
            let chain = rig.open().await.unwrap();
            rig.check_state(&chain).await;
            let device = rig.rng.random_range(0..=CACHE);
            match round % 4 {
                0..3 => rig.faults[device].die_after(rig.rng.random_range(0..150)),
                _ => rig.faults[device].fill(true),
            }
            let result = rig.write(&chain, 150).await;
            assert!(result.is_ok() || chain.status().poisoned.is_some(), "{result:?}");
            drop(chain);
            rig.faults[device].heal();
        }
    });
}

#[test]
fn dying_and_full_devices_lose_nothing_acknowledged() {
    for seed in 10..14 {
        deaths(seed, Cleaning::MoveToTail);
        deaths(seed, Cleaning::CompactInBody);
    }
}

#[test]
fn slow_devices_change_nothing() {
    run(20, |env| async move {
        let mut rig = Rig::new(&env, shape(Cleaning::CompactInBody)).await;
        for device in 0..=CACHE {
            rig.faults[device].slow(3.0, Duration::from_micros(700 * (device as u64 + 1)));
        }
        let chain = rig.open().await.unwrap();
        rig.write(&chain, 300).await.unwrap();
        assert_eq!(rig.check_reads(&chain).await, 0);
    });
}

/// Blocks on links and in the cache with other content than was written.
fn lies(seed: u64, shape: Shape) -> usize {
    run(seed, |env| async move {
        let mut rig = Rig::new(&env, shape).await;
        let chain = rig.open().await.unwrap();
        rig.write(&chain, 100).await.unwrap();
        let mut damaged = 0;
        for round in 0..12 {
            let device = [0, 1, 2, CACHE][round % 4];
            let blocks = rig.disks[device].geometry().size / BLOCK_SIZE as u64;
            let mut range = || {
                let first = rig.rng.random_range(0..blocks - 60) * BLOCK_SIZE as u64;
                first..first + 60 * BLOCK_SIZE as u64
            };
            let (range, other) = (range(), range());
            let faults = &rig.faults[device];
            match rig.rng.random_range(0..5) {
                0 => faults.break_sectors(range),
                1 => faults.rot(range, 1),
                2 => faults.freeze(range).await.unwrap(),
                3 => faults.lose_writes(range, 3),
                _ => faults.misdirect(range, other.start),
            }
            let written = rig.write(&chain, 40).await;
            damaged += rig.check_reads(&chain).await;
            match written {
                Ok(()) => {}
                // Segments with damage are kept, and use the room up.
                Err(StoreError::NoSpace) => break,
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        damaged
    })
}

#[test]
fn no_lie_of_a_device_reaches_a_reader() {
    let cleanings = [Cleaning::MoveToTail, Cleaning::CompactInBody];
    let roomy = |cleaning| Shape { blocks: 120, segments_per_link: 12, ..shape(cleaning) };
    let damaged: usize = (30..78).map(|seed| lies(seed, roomy(cleanings[seed as usize % 2]))).sum();
    assert!(damaged > 0, "no damage was met");
}

#[test]
fn damage_that_uses_the_room_up_refuses_writers_and_hangs_none() {
    let cleanings = [Cleaning::MoveToTail, Cleaning::CompactInBody];
    (60..80).for_each(|seed| {
        lies(seed, shape(cleanings[seed as usize % 2]));
    });
}

/// Whether an image with one copy of each damaged structure opens whole, and with both does not.
#[test]
fn one_copy_of_label_and_checkpoint_head_is_enough() {
    run(50, |env| async move {
        let shape = shape(Cleaning::MoveToTail);
        let mut rig = Rig::new(&env, shape).await;
        let chain = rig.open().await.unwrap();
        rig.write(&chain, 100).await.unwrap();
        chain.close().await.unwrap();
        let (now, contents) = (chain.now(), rig.contents());
        let half = chain.label().checkpoint_half;
        drop(chain);
        let label = 128 * 1024;
        let heads: Vec<u64> = (0..2 * half / 4096)
            .map(|page| 2 * label + page * 4096)
            .filter(|at| contents[MAP].read(*at, 8)[..] == *b"THALWEGC")
            .collect();
        assert!(heads.len() > 1);
        let mut refused = 0;
        let places = [0, label].into_iter().chain(heads.iter().flat_map(|at| [*at, *at + 512]));
        let open = async |rotten: &[u64]| {
            let mut contents = contents.clone();
            rotten.iter().for_each(|at| contents[MAP].write(*at + 20, &[0xa5]));
            shape.open(&env, &parts_of(&shape, &rig.disks, contents)).await
        };
        for at in places {
            assert_eq!(open(&[at]).await.unwrap().0.now(), now);
        }
        for at in &heads {
            match open(&[*at, *at + 512]).await {
                Ok((chain, _)) => assert_eq!(chain.now(), now),
                Err(ChainError::Damaged(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 0);
        assert!(matches!(open(&[0, label]).await, Err(ChainError::NoLabel)));
    });
}

/// A mirror's sides rot, on the tail and in the body: reads are right, and both sides afterwards.
#[test]
fn a_mirror_is_mended_by_checksum() {
    run(60, |env| async move {
        let shape = Shape { links: 2, ..shape(Cleaning::MoveToTail) };
        let geometry = Geometry { size: shape.link_bytes(), sector: 512 };
        let mut sides = Vec::new();
        let mut links = Vec::new();
        for number in 0..2 {
            let pair: Vec<_> = (0..2)
                .map(|side| {
                    let name = format!("side{number}.{side}");
                    Faulty::wrap(&env, Arc::new(RamDisk::new(&name, geometry)))
                })
                .collect();
            let both = pair.iter().map(|(side, _)| Side::InSync(side.clone())).collect();
            let mirror = Mirror::new(&env, both, Arc::new(()), false).unwrap();
            links.push(Link { id: link_id(number), device: Arc::new(mirror) as DeviceRef });
            sides.push(pair);
        }
        let map = Arc::new(RamDisk::new("map", Geometry { size: shape.map_bytes(), sector: 512 }));
        let parts = Parts {
            links,
            map: map as DeviceRef,
            map_link: None,
            tail_cache: None,
            body_cache: None,
        };
        Chain::create(&env, parts.clone(), &shape.create()).await.unwrap();
        let options = Options { tail_cache_blocks: 0, auto_clean: false, ..options() };
        let (chain, _) = Chain::open(&env, parts, options).await.unwrap();
        let mut model = BlockModel::new(shape.blocks);
        // The first link is full, and the tail on the second.
        for number in 0..u64::from(SEGMENT) * 4 + 100 {
            let lba = number % shape.blocks;
            let write = [Write::block(Lba(lba), content(lba, number))];
            model.apply(&write);
            chain.apply(write.to_vec()).await.unwrap();
        }
        chain.sync(chain.now()).await.unwrap();
        assert!(chain.status().links[1].tail);
        for (number, pair) in sides.iter().enumerate() {
            let (even, odd) = (&pair[0].1, &pair[1].1);
            for block in 0..shape.link_bytes() / 4096 {
                let range = block * 4096..(block + 1) * 4096;
                if block % 2 == 0 { even.rot(range, 8) } else { odd.rot(range, 8) }
            }
            let blocks = read_all(&chain, chain.now()).await.unwrap();
            for (lba, block) in blocks.into_iter().enumerate() {
                assert_eq!(block, model.read(Lba(lba as u64), chain.now()), "link {number}");
            }
        }
        assert!(chain.status().counts.repaired > 50, "{:?}", chain.status().counts);
        assert_eq!(chain.status().counts.damaged, 0);
    });
}

/// Cleaning keeps a segment with a block of which no copy is whole, moves the rest, and the block stays an
/// error.
#[test]
fn cleaning_meets_damage() {
    run(70, |env| async move {
        let shape = Shape { links: 2, ..shape(Cleaning::MoveToTail) };
        let mut rig = Rig::new(&env, Shape { links: 3, ..shape }).await;
        let chain = rig.open().await.unwrap();
        for number in 0..u64::from(SEGMENT) * 5 {
            let lba = number % rig.shape.blocks;
            let write = [Write::block(Lba(lba), content(lba, number))];
            rig.model.apply(&write);
            chain.apply(write.to_vec()).await.unwrap();
        }
        chain.sync(chain.now()).await.unwrap();
        for faults in &rig.faults[..3] {
            faults.rot(7 * 4096..9 * 4096, 1);
        }
        chain.clean(5).await.unwrap();
        chain.checkpoint().await.unwrap();
        let damaged = rig.check_reads(&chain).await;
        rig.write(&chain, 100).await.unwrap();
        let later = rig.check_reads(&chain).await;
        assert!(later <= damaged.max(1), "{damaged} then {later}");
        drop(chain);
        let chain = rig.open().await.unwrap();
        assert_eq!(rig.check_reads(&chain).await, later);
    });
}
