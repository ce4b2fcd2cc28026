//! A chain on simulated devices beside a naive model, and random histories for both.

#![allow(dead_code, unreachable_pub)]

pub mod crash;
pub mod kv;
pub mod scribble;
pub mod trio;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_store::block::{
    BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Hints, Lba, StoreError, Version, Write,
};
use thalweg_store::chain::{
    Chain, ChainError, Cleaning, Create, Label, Link, Options, Parts, Placement, Recovered, format,
};
use thalweg_store::device::{DeviceRef, Geometry, Partition, Purpose};
use uuid::Uuid;

/// Bytes of both copies of the label.
pub const LABELS: u64 = 2 * format::LABEL_BYTES;
/// Blocks in a segment: the smallest.
pub const SEGMENT: u32 = 240;

/// The shape of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub links: usize,
    pub segments_per_link: u32,
    pub blocks: u64,
    pub sector: u32,
    pub cleaning: Cleaning,
    pub placement: Placement,
    /// The map area lies on the first link's device.
    pub map_on_link: bool,
}

impl Shape {
    pub fn small(cleaning: Cleaning) -> Shape {
        Shape {
            links: 3,
            segments_per_link: 5,
            blocks: 700,
            sector: 512,
            cleaning,
            placement: Placement::Chained,
            map_on_link: false,
        }
    }

    pub fn link_bytes(&self) -> u64 {
        u64::from(self.segments_per_link) * u64::from(SEGMENT) * BLOCK_SIZE as u64
    }

    pub fn map_bytes(&self) -> u64 {
        Chain::map_bytes(SEGMENT, self.max_segments())
    }

    pub fn max_segments(&self) -> u32 {
        self.links as u32 * self.segments_per_link + 8
    }

    /// The devices that `make` gives, by name: the links, then the map.
    pub fn devices(&self, make: impl Fn(&str, Geometry) -> DeviceRef) -> Vec<DeviceRef> {
        let geometry = |size| Geometry { size, sector: self.sector };
        let size = |link| match self.map_on_link && link == 0 {
            true => self.link_bytes() + self.map_bytes(),
            false => self.link_bytes(),
        };
        let mut devices: Vec<DeviceRef> = (0..self.links)
            .map(|link| make(&format!("link{link}"), geometry(size(link))))
            .collect();
        if !self.map_on_link {
            devices.push(make("map", geometry(self.map_bytes())));
        }
        devices
    }

    /// The same as disks in RAM, beside what tells of them.
    pub fn ram_disks(&self) -> (Vec<DeviceRef>, Vec<Arc<RamDisk>>) {
        let disks = parking_lot::Mutex::new(Vec::new());
        let devices = self.devices(|name, geometry| {
            let disk = Arc::new(RamDisk::new(name, geometry));
            disks.lock().push(disk.clone());
            disk as DeviceRef
        });
        (devices, disks.into_inner())
    }

    pub fn parts(&self, devices: &[DeviceRef]) -> Parts {
        let part = |number: usize, start, size| {
            Arc::new(Partition::new(devices[number].clone(), start, size).unwrap()) as DeviceRef
        };
        let device = |number: usize| match self.map_on_link && number == 0 {
            true => part(0, 0, self.link_bytes()),
            false => devices[number].clone(),
        };
        let link = |number: usize| Link { id: link_id(number), device: device(number) };
        Parts {
            links: (0..self.links).map(link).collect(),
            map: match self.map_on_link {
                true => part(0, self.link_bytes(), self.map_bytes()),
                false => devices[self.links].clone(),
            },
            map_link: self.map_on_link.then(|| link_id(0)),
            tail_cache: None,
            body_cache: None,
        }
    }

    pub fn create(&self) -> Create {
        Create {
            volume: Uuid::from_u128(7),
            blocks: self.blocks,
            segment_blocks: SEGMENT,
            max_segments: self.max_segments(),
            cleaning: self.cleaning,
            placement: self.placement,
            follows: false,
        }
    }

    pub async fn format(&self, env: &Env, devices: &[DeviceRef]) {
        Chain::create(env, self.parts(devices), &self.create()).await.unwrap();
    }

    pub async fn open(
        &self,
        env: &Env,
        devices: &[DeviceRef],
    ) -> Result<(Chain, Recovered), ChainError> {
        Chain::open(env, self.parts(devices), options()).await
    }
}

pub fn link_id(number: usize) -> Uuid {
    Uuid::from_u128(100 + number as u128)
}

/// Options under which a short history meets everything.
pub fn options() -> Options {
    Options {
        tail_cache_blocks: 64,
        commit_interval: Duration::from_millis(50),
        checkpoint_sectors: 24,
        please_cache_blocks: 40,
        ..Options::default()
    }
}

/// Content that names its block and version.
pub fn content(lba: u64, stamp: u64) -> Bytes {
    let mut pattern = [0; 16];
    pattern[..8].copy_from_slice(&lba.to_le_bytes());
    pattern[8..].copy_from_slice(&(stamp + 1).to_le_bytes());
    Bytes::from(pattern.repeat(BLOCK_SIZE / 16))
}

/// A write of up to three parts of a block that held `old`; now and then most of it.
pub fn part(rng: &mut Rng, lba: u64, old: Option<&Bytes>, stamp: u64) -> Write {
    let mut content = old.map_or_else(|| vec![0; BLOCK_SIZE], |old| old.to_vec());
    let mut changed = ByteRanges::none();
    for _ in 0..rng.random_range(1..4) {
        let most = [8, 100, 600, 3_000][rng.random_range(0..4)];
        let start = rng.random_range(0..BLOCK_SIZE);
        let end = (start + rng.random_range(1..=most)).min(BLOCK_SIZE);
        let pattern = (stamp + 1) << 16 | lba;
        for (at, byte) in content[start..end].iter_mut().enumerate() {
            // Never zero, which would make nothing of a block that holds nothing else.
            *byte = pattern.to_le_bytes()[at % 8] | 1;
        }
        changed.add(start..end);
    }
    Write { content: Some(Bytes::from(content)), changed, ..Write::block(Lba(lba), Bytes::new()) }
}

/// Writes to `lbas`, some of them of parts, some of them runs that are discarded; `now` holds what each
/// block holds, and then will.
pub fn some_parts(
    rng: &mut Rng,
    lbas: &[u64],
    stamp: u64,
    share: f64,
    now: &mut [Option<Bytes>],
) -> Vec<Write> {
    let mut writes = Vec::new();
    let mut lbas = lbas.to_vec();
    // As transactions have them; otherwise runs have one block, or go over other writes.
    let (ascending, overlapping) = (rng.random_bool(0.5), rng.random_bool(0.2));
    if ascending {
        lbas.sort_unstable();
        lbas.dedup();
    }
    for (number, &lba) in lbas.iter().enumerate() {
        if rng.random_bool(0.1) {
            let most = if ascending || overlapping { 4 } else { 1 };
            let next = lbas.get(number + 1).filter(|_| ascending);
            let room = next.copied().unwrap_or(now.len() as u64);
            let end = room.min(lba + rng.random_range(1..=most));
            let discard = |lba| Write { content: None, ..Write::block(Lba(lba), Bytes::new()) };
            writes.extend((lba..end).map(discard));
            (lba..end).for_each(|lba| now[lba as usize] = None);
            continue;
        }
        let old = now[lba as usize].clone();
        let write = match share > 0.0 && rng.random_bool(share) {
            true => part(rng, lba, old.as_ref(), stamp),
            false => Write::block(Lba(lba), content(lba, stamp)),
        };
        now[lba as usize] = write.content.clone();
        writes.push(write);
    }
    writes
}

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Step {
    /// A transaction on these blocks.
    Apply(Vec<u64>),
    /// One that changes parts of them.
    Parts(Vec<u64>),
    /// A run is discarded.
    Discard(u64, u64),
    /// Everything so far becomes durable.
    Sync,
    /// Segments are cleaned.
    Clean(usize),
    /// A checkpoint is written.
    Checkpoint,
    /// Time passes.
    Wait(u64),
}

/// A random step on `blocks` blocks, most of them on a hot tenth.
pub fn random_step(rng: &mut Rng, blocks: u64) -> Step {
    let lba = |rng: &mut Rng| match rng.random_bool(0.5) {
        true => rng.random_range(0..blocks / 10),
        false => rng.random_range(0..blocks),
    };
    match rng.random_range(0..100) {
        0..60 => {
            let count =
                if rng.random_bool(0.1) { rng.random_range(5..60) } else { rng.random_range(1..5) };
            Step::Apply((0..count).map(|_| lba(rng)).collect())
        }
        60..66 => {
            let first = lba(rng);
            Step::Discard(first, rng.random_range(1..=(blocks - first).min(40)))
        }
        66..88 => Step::Sync,
        88..92 => Step::Clean(1),
        92..94 => Step::Checkpoint,
        _ => Step::Wait(rng.random_range(1..40_000)),
    }
}

/// A random step in which most transactions change parts of their blocks.
pub fn random_step_in_parts(rng: &mut Rng, blocks: u64) -> Step {
    match random_step(rng, blocks) {
        Step::Apply(lbas) if rng.random_bool(0.7) => Step::Parts(lbas),
        step => step,
    }
}

/// A chain and its model, in step.
pub struct Pair {
    pub chain: Chain,
    pub model: BlockModel,
}

impl Pair {
    /// Runs one step on both; the version that is durable after it, if the step says so.
    pub async fn step(&mut self, env: &Env, step: &Step) -> Result<Option<Version>, StoreError> {
        // What is asked to stay in memory must not differ from what is stored.
        self.chain.please_cache(Lba(self.model.now().0 * 7 % self.chain.blocks()));
        match step {
            Step::Apply(lbas) => {
                let stamp = self.model.now().0;
                let write = |lba: &u64| Write::block(Lba(*lba), content(*lba, stamp));
                let writes: Vec<Write> = lbas.iter().map(write).collect();
                let version = self.chain.apply(writes.clone()).await?;
                assert_eq!(version, self.model.apply(&writes));
            }
            Step::Parts(lbas) => {
                let (stamp, mut rng) = (self.model.now().0, env.rng());
                // The model may be larger.
                let mut now: Vec<Option<Bytes>> = vec![None; self.chain.blocks() as usize];
                for lba in lbas {
                    now[*lba as usize] = self.model.read(Lba(*lba), self.model.now());
                }
                let writes = some_parts(&mut rng, lbas, stamp, 0.9, &mut now);
                let version = self.chain.apply(writes.clone()).await?;
                assert_eq!(version, self.model.apply(&writes));
            }
            Step::Discard(lba, count) => {
                let version = self.chain.discard(Lba(*lba), *count).await?;
                if version > self.model.now() {
                    assert_eq!(version, self.model.discard(Lba(*lba), *count));
                }
            }
            Step::Sync => {
                let version = self.chain.now();
                self.chain.sync(version).await?;
                return Ok(Some(version));
            }
            Step::Clean(segments) => {
                self.chain.clean(*segments).await?;
            }
            Step::Checkpoint => {
                let version = self.chain.now();
                self.chain.checkpoint().await?;
                return Ok(Some(version));
            }
            Step::Wait(micros) => env.sleep(Duration::from_micros(*micros)).await,
        }
        Ok(None)
    }

    /// Compares every block.
    pub async fn compare(&self) {
        let now = self.chain.now();
        assert_eq!(now, self.model.now());
        let blocks = read_all(&self.chain, now).await.unwrap();
        for (lba, found) in blocks.into_iter().enumerate() {
            let expected = self.model.read(Lba(lba as u64), now);
            let head = |block: &Option<Bytes>| block.as_ref().map(|bytes| bytes.slice(..16));
            let (is, should) = (head(&found), head(&expected));
            assert!(found == expected, "block {lba} is {is:?} rather than {should:?}");
        }
    }
}

/// Overwrites everything in the checkpoint area with what is no checkpoint.
pub async fn lose_checkpoints(map: &DeviceRef) {
    let half = Label::read(&**map).await.unwrap().checkpoint_half;
    let junk = Bytes::from(vec![0xa5; BLOCK_SIZE]);
    let area = map.read(LABELS, 2 * half as usize, Purpose::Checkpoint).await.unwrap();
    for (page, bytes) in area.chunks(BLOCK_SIZE).enumerate() {
        if bytes.iter().any(|byte| *byte != 0) {
            let at = LABELS + (page * BLOCK_SIZE) as u64;
            map.write(at, vec![junk.clone()], Purpose::Checkpoint).await.unwrap();
        }
    }
    map.flush(Purpose::Checkpoint).await.unwrap();
}

/// Every block of a chain at a version.
pub async fn read_all(chain: &Chain, at: Version) -> Result<Vec<Option<Bytes>>, StoreError> {
    chain.read(Lba(0), chain.blocks(), at).await
}
