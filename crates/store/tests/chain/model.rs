//! Random histories of a chain against a naive model, with reopening.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_env::Rng;
use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::{Event, Recorder};
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Write};
use thalweg_store::chain::{Cleaning, Placement};
use thalweg_store::device::{DeviceRef, MemoryDevice};

use crate::support::{Pair, Shape, Step, random_step, random_step_in_parts};

fn history(seed: u64, shape: Shape, steps: usize) {
    history_of(seed, shape, steps, random_step);
}

fn history_of(seed: u64, shape: Shape, steps: usize, step: fn(&mut Rng, u64) -> Step) {
    run(seed, |env| async move {
        let devices = shape.devices(|name, geometry| {
            Arc::new(MemoryDevice::with_geometry(name, geometry)) as DeviceRef
        });
        shape.format(&env, &devices).await;
        let mut rng = env.rng();
        let (chain, _) = shape.open(&env, &devices).await.unwrap();
        let (mut moved, mut hits) = (0, 0);
        let mut pair = Pair { chain, model: BlockModel::new(shape.blocks) };
        for number in 0..steps {
            let step = step(&mut rng, shape.blocks);
            pair.step(&env, &step).await.unwrap();
            if number % 100 == 99 {
                pair.compare().await;
            }
            if number % 400 == 399 {
                moved += pair.chain.status().counts.blocks_moved;
                hits += pair.chain.status().counts.wish_hits;
                // Reopened in turns after a clean end and after one that only synced.
                match number % 800 == 799 {
                    true => pair.chain.close().await.unwrap(),
                    false => pair.chain.sync(pair.chain.now()).await.unwrap(),
                }
                drop(pair.chain);
                let (chain, found) = shape.open(&env, &devices).await.unwrap();
                assert_eq!(found.version, pair.model.now().0, "{found:?}");
                pair.chain = chain;
                pair.compare().await;
            }
        }
        assert!(moved > 0, "the history never cleaned");
        assert!(hits > 0, "no wish was ever of use");
    });
}

#[test]
fn move_to_tail_follows_the_model() {
    for seed in 0..6 {
        history(seed, Shape::small(Cleaning::MoveToTail), 1600);
    }
}

#[test]
fn compact_in_body_follows_the_model() {
    for seed in 0..6 {
        history(seed, Shape::small(Cleaning::CompactInBody), 1600);
    }
}

#[test]
fn links_by_turns_follow_the_model() {
    for (seed, cleaning) in [Cleaning::MoveToTail, Cleaning::CompactInBody].into_iter().enumerate()
    {
        let placement = Placement::RoundRobin;
        history(20 + seed as u64, Shape { placement, ..Shape::small(cleaning) }, 1600);
    }
}

#[test]
fn a_single_link_follows_the_model() {
    let shape = Shape {
        links: 1,
        segments_per_link: 10,
        blocks: 900,
        ..Shape::small(Cleaning::MoveToTail)
    };
    history(7, shape, 1600);
}

#[test]
fn sectors_of_a_page_follow_the_model() {
    history(8, Shape { sector: 4096, ..Shape::small(Cleaning::MoveToTail) }, 1600);
}

#[test]
fn parts_of_blocks_follow_the_model() {
    for (seed, cleaning) in [Cleaning::MoveToTail, Cleaning::CompactInBody].into_iter().enumerate()
    {
        history_of(10 + seed as u64, Shape::small(cleaning), 3200, random_step_in_parts);
    }
    let shape = Shape {
        links: 1,
        segments_per_link: 10,
        blocks: 900,
        ..Shape::small(Cleaning::MoveToTail)
    };
    history_of(12, shape, 3200, random_step_in_parts);
}

/// Flushes of some syncs of one version, each of which begins while the first one's round runs.
fn flushes_of_syncs(count: u64) -> usize {
    run(1, |env| async move {
        let shape = Shape::small(Cleaning::MoveToTail);
        let recorder = Recorder::with_latency(&env, Duration::from_micros(300));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let (chain, _) = shape.open(&env, &devices).await.unwrap();
        let begun = |recorder: &Recorder| {
            let log = recorder.log();
            log.events.iter().filter(|event| matches!(event, Event::FlushBegan { .. })).count()
        };
        let before = begun(&recorder);
        let block = Bytes::from(vec![7; BLOCK_SIZE]);
        let version = chain.apply(vec![Write::block(Lba(3), block)]).await.unwrap();
        let sync = async |delay| {
            env.sleep(Duration::from_micros(delay)).await;
            chain.sync(version).await.unwrap();
        };
        futures::future::join_all((0..count).map(|number| sync(number * 20))).await;
        begun(&recorder) - before
    })
}

#[test]
fn a_round_after_which_nothing_is_left_to_do_is_the_last() {
    let alone = flushes_of_syncs(1);
    assert!(alone > 0);
    assert_eq!(flushes_of_syncs(5), alone);
}
