//! The index rebuilt from the map alone: it is the one that the lost checkpoint held, with every
//! snapshot; and where the map itself is damaged, what is lost is named and nothing else is.

#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use support::crash::{Plan, Tally, explore};
use support::trio::Trio;
use support::{Shape, lose_checkpoints};
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::BlockStore;
use thalweg_store::chain::{Chain, ChainError, Cleaning, Rebuild, RebuildReport};
use thalweg_store::device::DeviceRef;
use thalweg_store::env::Env;

async fn rebuild(
    env: &Env,
    shape: &Shape,
    devices: &[DeviceRef],
    how: Rebuild,
) -> Result<RebuildReport, ChainError> {
    Chain::rebuild(env, shape.parts(devices), how, &|_, _| {}).await
}

/// Destroys the checkpoints, sees that nothing opens, rebuilds, and opens.
async fn lose_and_rebuild(env: &Env, shape: &Shape, devices: &[DeviceRef]) -> Chain {
    lose_checkpoints(&shape.parts(devices).map).await;
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
            drop(trio.pair.chain);
            trio.pair.chain = match round % 4 {
                // Some openings in between, which cut the logs.
                3 => shape.open(&env, &devices).await.unwrap().0,
                _ => lose_and_rebuild(&env, &shape, &devices).await,
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

/// Rebuilds every image that a crash could leave, of histories in which it happened before, also in
/// the middle of a rebuild: the state is the one that recovery finds.
fn crashes(first: u64, images: u64, shape: Shape, lazy: bool) {
    let steps = if lazy { 120 } else { 60 };
    let plan = Plan {
        shape,
        steps,
        writers: 3,
        points: 40,
        generations: 3,
        branches: 3,
        lazy,
        rebuild: true,
    };
    let mut total = Tally::default();
    for seed in first.. {
        let tally = run(seed, |env| async move { explore(&env, seed, &plan).await });
        total.add(&tally);
        if total.images >= images {
            break;
        }
    }
    println!("{total:?}");
    total.assert_varied();
    assert!(total.rebuilt >= images);
}

fn tight(cleaning: Cleaning) -> Shape {
    Shape { blocks: 220, segments_per_link: 4, ..Shape::small(cleaning) }
}

#[test]
fn a_rebuild_after_a_crash_finds_what_recovery_finds_move_to_tail() {
    crashes(0, 1_500, tight(Cleaning::MoveToTail), false);
}

#[test]
fn a_rebuild_after_a_crash_finds_what_recovery_finds_compact_in_body() {
    crashes(1_000, 1_500, tight(Cleaning::CompactInBody), false);
}

#[test]
fn a_rebuild_after_a_crash_in_long_rounds_finds_what_recovery_finds() {
    let roomier = |cleaning| Shape { segments_per_link: 7, ..tight(cleaning) };
    crashes(2_000, 800, roomier(Cleaning::MoveToTail), true);
    crashes(3_000, 800, roomier(Cleaning::CompactInBody), true);
}

#[test]
fn a_rebuild_of_large_sectors_after_a_crash_finds_what_recovery_finds() {
    crashes(4_000, 800, Shape { sector: 4096, ..tight(Cleaning::CompactInBody) }, false);
}
