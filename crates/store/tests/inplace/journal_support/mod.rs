//! Shared by the journal's tests: random transactions, and naive replay.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod scribble;

use std::collections::BTreeMap;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_store::block::{BLOCK_SIZE, Lba};
use thalweg_store::device::{DeviceRef, Purpose};
use thalweg_store::journal::{Base, End, Journal, Record, Recovery, Replay, Update, Void};
use uuid::Uuid;

pub const OWNER: Uuid = Uuid::from_u128(7);
pub const ID: Uuid = Uuid::from_u128(9);
pub const BLOCKS: u64 = 24;

pub type Blocks = BTreeMap<u64, Vec<u8>>;

pub async fn open(env: &Env, device: &DeviceRef) -> (Recovery<Lba>, Replay<Lba>) {
    Journal::open(env, device.clone(), OWNER, true).await.unwrap()
}

pub async fn created(env: &Env, device: &DeviceRef) -> Journal<Lba> {
    Journal::<Lba>::create(device, ID, OWNER).await.unwrap();
    let (journal, replay) = open(env, device).await;
    assert!(replay.is_empty());
    assert_eq!(replay.end, End::Clean);
    journal.begin().await.unwrap()
}

pub fn bytes(rng: &mut Rng, len: usize) -> Bytes {
    (0..len).map(|_| rng.random::<u8>()).collect()
}

/// A random transaction; applies it to `home`.
pub fn transaction(rng: &mut Rng, stamp: u64, home: &mut Blocks) -> Record<Lba> {
    let mut updates = Vec::new();
    for _ in 0..rng.random_range(1..12) {
        let at = rng.random_range(0..BLOCKS);
        match rng.random_range(0..12) {
            0 => {
                let count = rng.random_range(1..=(BLOCKS - at).min(5));
                updates.push(Update::Void(Void { at: Lba(at), count, note: 1 }));
                (at..at + count).for_each(|at| drop(home.remove(&at)));
            }
            1 => {
                let content = bytes(rng, BLOCK_SIZE);
                home.insert(at, content.to_vec());
                updates.push(Update::Whole { at: Lba(at), content });
            }
            _ => {
                let fresh = !home.contains_key(&at);
                let block = home.entry(at).or_insert_with(|| vec![0; BLOCK_SIZE]);
                for nth in 0..rng.random_range(1..4) {
                    let offset = rng.random_range(0..BLOCK_SIZE);
                    let len = rng.random_range(1..=(BLOCK_SIZE - offset).min(300));
                    let bytes = bytes(rng, len);
                    block[offset..offset + len].copy_from_slice(&bytes);
                    let fresh = fresh && nth == 0;
                    updates.push(Update::Bytes { at: Lba(at), offset, bytes, fresh });
                }
            }
        }
    }
    Record { stamp, updates }
}

/// Replays the journal onto `home`.
pub async fn replayed(journal: &Recovery<Lba>, replay: &Replay<Lba>, home: &mut Blocks) {
    for void in &replay.voids {
        (void.at.0..void.at.0 + void.count).for_each(|at| drop(home.remove(&at)));
    }
    for (at, plan) in &replay.blocks {
        let mut block = match plan.base {
            Base::Home => home.get(&at.0).cloned().unwrap_or_else(|| vec![0; BLOCK_SIZE]),
            Base::Zeros => vec![0; BLOCK_SIZE],
            Base::Regular(offset) => journal.read_block(offset).await.unwrap().to_vec(),
        };
        for patch in &plan.patches {
            block[patch.offset..patch.offset + patch.bytes.len()].copy_from_slice(&patch.bytes);
        }
        home.insert(at.0, block);
    }
}

/// Damages some bytes.
pub async fn scribble_at(device: &DeviceRef, at: u64, len: usize) {
    let sector = at / 512 * 512;
    let end = (at + len as u64).next_multiple_of(512);
    let span = (end - sector) as usize;
    let mut bytes = device.read(sector, span, Purpose::Journal).await.unwrap().to_vec();
    let from = (at - sector) as usize;
    bytes[from..from + len].iter_mut().for_each(|byte| *byte ^= 0x5a);
    device.write(sector, vec![bytes.into()], Purpose::Journal).await.unwrap();
}
