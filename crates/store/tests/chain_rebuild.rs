//! The index rebuilt from the map alone: it is the one that the lost checkpoint held, with every
//! snapshot; and where the map itself is damaged, what is lost is named and nothing else is.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use support::trio::Trio;
use support::{Pair, Shape, Step, content, options, random_step, read_all};
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BlockStore, Lba};
use thalweg_store::chain::{Chain, ChainError, Cleaning, Options, Rebuild, RebuildReport};
use thalweg_store::device::{Device, DeviceRef, Purpose};
use thalweg_store::env::Env;

const LABELS: u64 = 2 * 128 * 1024;
const PAGE: usize = 4096;

/// Overwrites both halves of the checkpoint area with what is no checkpoint.
async fn destroy_checkpoints(map: &DeviceRef, half: u64) {
    let junk = bytes::Bytes::from(vec![0xa5; PAGE]);
    for at in (LABELS..LABELS + 2 * half).step_by(PAGE) {
        let page = map.read(at, PAGE, Purpose::Checkpoint).await.unwrap();
        if page.iter().any(|byte| *byte != 0) {
            map.write(at, vec![junk.clone()], Purpose::Checkpoint).await.unwrap();
        }
    }
}

async fn rebuild(
    env: &Env,
    shape: &Shape,
    devices: &[DeviceRef],
    how: Rebuild,
) -> Result<RebuildReport, ChainError> {
    Chain::rebuild(env, shape.parts(devices), how, &|_, _| {}).await
}

/// Destroys the checkpoints, sees that nothing opens, rebuilds, and opens.
async fn lose_and_rebuild(env: &Env, shape: &Shape, devices: &[DeviceRef], half: u64) -> Chain {
    let map = shape.parts(devices).map;
    destroy_checkpoints(&map, half).await;
    let refused = shape.open(env, devices).await;
    assert!(matches!(refused, Err(ChainError::Damaged(_))), "{:?}", refused.map(|_| ()));
    let dry = Rebuild { dry_run: true, ..Rebuild::default() };
    let planned = rebuild(env, shape, devices, dry).await.unwrap();
    assert!(!planned.written && planned.lost.is_empty(), "{planned:?}");
    assert!(shape.open(env, devices).await.is_err(), "a dry run writes nothing");
    let report = rebuild(env, shape, devices, Rebuild::default()).await.unwrap();
    assert_eq!(report, RebuildReport { written: true, ..planned });
    let (chain, found) = shape.open(env, devices).await.unwrap();
    assert_eq!(found.version, report.version);
    chain
}

/// Random histories with everything in them, in which the checkpoints are lost again and again.
fn history(seed: u64, shape: Shape, rounds: usize) {
    run(seed, |env| async move {
        let devices =
            shape.devices(|name, geometry| Arc::new(RamDisk::new(name, geometry)) as DeviceRef);
        let mut trio = Trio::new(&env, &shape, &devices).await;
        let mut rng = env.rng();
        for round in 0..rounds {
            for _ in 0..220 {
                trio.step(&env, &mut rng, shape.blocks).await;
            }
            trio.compare().await;
            match round % 3 {
                0 => trio.pair.chain.close().await.unwrap(),
                _ => trio.pair.chain.sync(trio.pair.chain.now()).await.unwrap(),
            }
            let half = trio.pair.chain.label().checkpoint_half;
            drop(trio.pair.chain);
            trio.pair.chain = match round % 4 {
                // Some openings in between, which cut the logs.
                3 => shape.open(&env, &devices).await.unwrap().0,
                _ => lose_and_rebuild(&env, &shape, &devices, half).await,
            };
            trio.compare().await;
        }
    });
}

fn roomy(cleaning: Cleaning) -> Shape {
    Shape { segments_per_link: 9, blocks: 500, ..Shape::small(cleaning) }
}

#[test]
fn a_rebuilt_index_is_the_lost_one_move_to_tail() {
    for seed in 0..16 {
        history(seed, roomy(Cleaning::MoveToTail), 12);
    }
}

#[test]
fn a_rebuilt_index_is_the_lost_one_compact_in_body() {
    for seed in 100..116 {
        history(seed, roomy(Cleaning::CompactInBody), 12);
    }
}

#[test]
fn a_rebuilt_index_is_the_lost_one_in_other_shapes() {
    let single = Shape { links: 1, segments_per_link: 16, ..roomy(Cleaning::MoveToTail) };
    history(200, single, 12);
    history(201, Shape { sector: 4096, ..roomy(Cleaning::CompactInBody) }, 12);
    history(202, Shape { map_on_link: true, ..roomy(Cleaning::MoveToTail) }, 12);
}
