//! Shared by the in-place store's tests: devices, and random transactions.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod scribble;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_store::block::{BLOCK_SIZE, ByteRanges, Class, Lba, Write};
use thalweg_store::device::{DeviceRef, Geometry, MemoryDevice};
use thalweg_store::inplace::{InPlace, Mode, NewInPlace, Options, Parts, Recovered};

/// A small store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub blocks: u64,
    /// The first blocks are metadata.
    pub metadata: u64,
    pub sector: u32,
    pub external: bool,
    pub journal: u64,
    pub options: Options,
}

impl Shape {
    pub fn new(mode: Mode) -> Shape {
        let options = Options {
            mode,
            threshold: 2048,
            commit: Duration::from_millis(40),
            writeback: Duration::from_millis(30),
            expire: Duration::from_millis(90),
            cache: 160 << 10,
            ..Options::default()
        };
        Shape {
            blocks: 150,
            metadata: 30,
            sector: 512,
            external: true,
            journal: 272 << 10,
            options,
        }
    }

    /// One of several shapes that differ in everything but the mode.
    pub fn varied(mode: Mode, seed: u64) -> Shape {
        let shape = Shape::new(mode);
        let sector = if seed.is_multiple_of(2) { 512 } else { 4096 };
        let gap = (seed % 5 < 3).then_some(32 << 10);
        let options = Options { gap, ..shape.options };
        Shape { sector, external: !seed.is_multiple_of(3), options, ..shape }
    }

    pub fn parts(&self, devices: &[DeviceRef]) -> Parts {
        Parts { data: devices[0].clone(), journal: devices.get(1).cloned() }
    }

    pub fn devices(&self, mut make: impl FnMut(&str, Geometry) -> DeviceRef) -> Vec<DeviceRef> {
        let data = (self.blocks + 20) * BLOCK_SIZE as u64 + (64 << 10) + self.journal;
        let mut devices = vec![make("data", Geometry { size: data, sector: self.sector })];
        if self.external {
            let geometry = Geometry { size: self.journal, sector: self.sector };
            devices.push(make("journal", geometry));
        }
        devices
    }

    pub fn memory(&self) -> Vec<DeviceRef> {
        self.devices(|name, geometry| Arc::new(MemoryDevice::with_geometry(name, geometry)))
    }

    pub async fn create(&self, env: &Env, devices: &[DeviceRef]) {
        let new = NewInPlace {
            name: "test".to_owned(),
            journal_size: Some(self.journal),
            size: Some(self.blocks * BLOCK_SIZE as u64),
        };
        InPlace::create(env, &self.parts(devices), &new).await.unwrap();
    }

    pub async fn open(&self, env: &Env, devices: &[DeviceRef]) -> (InPlace, Recovered) {
        InPlace::open(env, self.parts(devices), self.options).await.unwrap()
    }

    pub fn class(&self, lba: u64) -> Class {
        if lba < self.metadata { Class::Metadata } else { Class::Data }
    }
}

/// A random transaction on `now`; applies it.
pub fn transaction(rng: &mut Rng, shape: &Shape, now: &mut [Option<Bytes>]) -> Vec<Write> {
    let count = match rng.random_range(0..10) {
        0 => rng.random_range(8..24),
        _ => rng.random_range(1..6),
    };
    let mut writes: Vec<Write> = Vec::new();
    let start = rng.random_range(0..shape.blocks);
    let run = rng.random_bool(0.2);
    for nth in 0..count {
        let lba = match run {
            true => (start + nth) % shape.blocks,
            false => rng.random_range(0..shape.blocks),
        };
        if writes.iter().any(|write| write.lba.0 == lba) {
            continue;
        }
        let old = &mut now[lba as usize];
        let (content, changed) = match rng.random_range(0..10) {
            0 => (None, ByteRanges::whole()),
            1..4 => (Some(vec![rng.random::<u8>() | 1; BLOCK_SIZE]), ByteRanges::whole()),
            _ => {
                let mut content = old.as_ref().map_or(vec![0; BLOCK_SIZE], |old| old.to_vec());
                let mut changed = ByteRanges::none();
                for _ in 0..rng.random_range(1..3) {
                    let offset = rng.random_range(0..BLOCK_SIZE);
                    let len = rng.random_range(1..=(BLOCK_SIZE - offset).min(2500));
                    content[offset..offset + len].fill(rng.random::<u8>() | 1);
                    changed.add(offset..offset + len);
                }
                (Some(content), changed)
            }
        };
        let content = content.map(Bytes::from);
        *old = content.clone();
        writes.push(Write { lba: Lba(lba), content, changed, class: shape.class(lba) });
    }
    writes
}
