//! Writers that never pause, on a chain as full as possible: cleaning keeps up, and every writer gets on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::block::{Blocks, BlocksExt, Lba, Write};
use thalweg_store::chain::{Chain, Cleaning, Options};
use thalweg_store::device::{DeviceRef, Geometry};

use crate::support::{SEGMENT, Shape, content, options, part, read_all};

const WRITERS: u64 = 6;
/// How often the chain is written over.
const ROUNDS: u64 = 8;
/// Time on the devices' clock: the load takes a few seconds of it.
const LIMIT: Duration = Duration::from_secs(40);

fn ssd(env: &Env, geometry: Geometry) -> DeviceRef {
    Arc::new(SolidState::new(env, "ssd", SolidStateSpec::sata(geometry.size)))
}

/// Overwrites the writer's own blocks at random, in transactions of all sizes; returns the last stamp of
/// each.
async fn write(env: Env, chain: Arc<Chain>, first: u64, blocks: u64, total: u64) -> Vec<u64> {
    let mut rng = env.rng();
    let mut written = 0;
    let mut stamp = 0;
    let mut stamps = vec![0; blocks as usize];
    while written < total {
        let most = [1, 4, 32, 240][rng.random_range(0..4)].min(blocks);
        let count = rng.random_range(1..=most);
        let start = rng.random_range(0..=blocks - count);
        stamp += 1;
        let block = |at: u64| Write::block(Lba(first + at), content(first + at, stamp));
        chain.apply((start..start + count).map(block).collect()).await.unwrap();
        stamps[start as usize..(start + count) as usize].fill(stamp);
        written += count;
        if rng.random_bool(0.05) {
            chain.sync(chain.now()).await.unwrap();
        }
    }
    stamps
}

/// The same with small parts of blocks alone; returns the final content of the blocks.
async fn write_parts(
    env: Env,
    chain: Arc<Chain>,
    first: u64,
    blocks: u64,
    total: u64,
) -> Vec<Option<Bytes>> {
    let mut rng = env.rng();
    let mut now = vec![None; blocks as usize];
    let mut written = 0;
    while written < total {
        let count = [1, 4, 32, 240][rng.random_range(0..4)].min(blocks);
        let start = rng.random_range(0..=blocks - count);
        let mut writes = Vec::new();
        for at in start..start + count {
            let write = part(&mut rng, first + at, now[at as usize].as_ref(), written + at);
            now[at as usize] = write.content.clone();
            writes.push(write);
        }
        chain.apply(writes).await.unwrap();
        written += count;
        if rng.random_bool(0.05) {
            chain.sync(chain.now()).await.unwrap();
        }
    }
    now
}

/// `slots` is the number of blocks that may wait in RAM for a place of their own before a checkpoint settles
/// them.
fn change_parts(shape: Shape, seed: u64, slots: usize) {
    run(seed, |env| async move {
        let devices = shape.devices(|_, geometry| ssd(&env, geometry));
        shape.format(&env, &devices).await;
        let options = Options { dirty_bytes: 4 << 20, mini_slots: slots, ..options() };
        let opened = Chain::open(&env, shape.parts(&devices), options.clone()).await.unwrap();
        let chain = Arc::new(opened.0);
        let each = shape.blocks / WRITERS;
        let physical = shape.links as u64 * u64::from(shape.segments_per_link * SEGMENT);
        let writers = (0..WRITERS).map(|number| {
            let total = physical * ROUNDS / WRITERS;
            env.spawn(write_parts(env.clone(), chain.clone(), number * each, each, total))
        });
        let writers: Vec<_> = writers.collect();
        let done = env.timeout(LIMIT, futures::future::join_all(writers)).await;
        let status = chain.status();
        assert!(done.is_some(), "{shape:?}, seed {seed}: writers wait for ever: {status:?}");
        assert!(status.minis.settled > shape.blocks, "{:?}", status.minis);
        assert!(status.minis.slots <= 2 * slots as u64 + 240 * WRITERS, "{:?}", status.minis);
        let expected: Vec<_> =
            done.unwrap().into_iter().flat_map(|blocks| blocks.unwrap()).collect();
        chain.sync(chain.now()).await.unwrap();
        // Recovery may settle all of them before the first checkpoint.
        drop(chain);
        let opened = Chain::open(&env, shape.parts(&devices), options).await.unwrap();
        let found = read_all(&opened.0, opened.0.now()).await.unwrap();
        for (lba, expected) in expected.into_iter().enumerate() {
            assert!(found[lba] == expected, "block {lba}");
        }
        opened.0.close().await.unwrap();
    });
}

fn overwrite(shape: Shape, seed: u64) {
    run(seed, |env| async move {
        let devices = shape.devices(|_, geometry| ssd(&env, geometry));
        shape.format(&env, &devices).await;
        let options = Options { dirty_bytes: 4 << 20, ..options() };
        let opened = Chain::open(&env, shape.parts(&devices), options).await.unwrap();
        let chain = Arc::new(opened.0);
        let each = shape.blocks / WRITERS;
        let physical = shape.links as u64 * u64::from(shape.segments_per_link * SEGMENT);
        let writers = (0..WRITERS).map(|number| {
            let total = physical * ROUNDS / WRITERS;
            env.spawn(write(env.clone(), chain.clone(), number * each, each, total))
        });
        let writers: Vec<_> = writers.collect();
        let done = env.timeout(LIMIT, futures::future::join_all(writers)).await;
        let status = chain.status();
        assert!(done.is_some(), "{shape:?}, seed {seed}: writers wait for ever: {status:?}");
        let found = read_all(&chain, chain.now()).await.unwrap();
        let stamps = done.unwrap().into_iter().flat_map(|stamps| stamps.unwrap());
        for (lba, stamp) in stamps.enumerate() {
            let expected = (stamp > 0).then(|| content(lba as u64, stamp));
            assert!(found[lba] == expected, "block {lba}");
        }
        chain.close().await.unwrap();
    });
}

/// The maximum number of blocks of the chain, less some percent of all.
fn full(links: usize, segments_per_link: u32, cleaning: Cleaning, slack: u32) -> Shape {
    let total = links as u32 * segments_per_link;
    let reserve =
        links as u32 + if links > 1 && cleaning == Cleaning::CompactInBody { 6 } else { 4 };
    let blocks = u64::from((total - reserve) * SEGMENT) * u64::from(100 - slack) / 100;
    Shape { links, segments_per_link, blocks, ..Shape::small(cleaning) }
}

#[test]
fn one_link() {
    for seed in 0..4 {
        overwrite(full(1, 24, Cleaning::MoveToTail, 40), seed);
        overwrite(full(1, 24, Cleaning::MoveToTail, 5), seed);
    }
}

#[test]
fn move_to_tail() {
    for seed in 0..4 {
        overwrite(full(3, 10, Cleaning::MoveToTail, 30), seed);
        overwrite(full(3, 10, Cleaning::MoveToTail, 3), seed);
    }
}

#[test]
fn compact_in_body() {
    for seed in 0..4 {
        overwrite(full(3, 10, Cleaning::CompactInBody, 30), seed);
        overwrite(full(2, 14, Cleaning::CompactInBody, 3), seed);
    }
}

#[test]
fn parts_of_blocks() {
    for (seed, slots) in [(0, 64), (1, 16 * 1024)] {
        change_parts(full(1, 24, Cleaning::MoveToTail, 5), seed, slots);
        change_parts(full(3, 10, Cleaning::MoveToTail, 3), seed, slots);
        change_parts(full(2, 14, Cleaning::CompactInBody, 3), seed, slots);
    }
}
