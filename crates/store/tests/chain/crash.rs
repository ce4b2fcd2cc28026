//! Power cuts of a chain: every image that a crash could leave recovers to the state of one
//! version, no older than what was acknowledged.
//!
//! With `THALWEG_LONG=n` each test explores n times as many histories, from fresh seeds (`campaign`).

use std::time::Duration;

use thalweg_env::Env;
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::model::BlockModel;
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, BlocksExt, Lba, Write};
use thalweg_store::chain::{Chain, Cleaning, Options, Placement};

use crate::support::crash::{Plan, explore_seeds};
use crate::support::{Shape, content, options, read_all};

fn plan(shape: Shape) -> Plan {
    Plan {
        shape,
        steps: 60,
        writers: 3,
        points: 40,
        generations: 2,
        branches: 3,
        lazy: false,
        rebuild: false,
        parts: 0.0,
    }
}

fn lazy(plan: Plan) -> Plan {
    Plan { lazy: true, steps: 120, ..plan }
}

fn shape(cleaning: Cleaning) -> Shape {
    Shape { blocks: 220, segments_per_link: 4, ..Shape::small(cleaning) }
}

/// The same with most writes changing parts of blocks.
fn parts(plan: Plan) -> Plan {
    Plan { parts: 0.8, ..plan }
}

#[test]
fn move_to_tail() {
    explore_seeds(0, 1_200, &plan(shape(Cleaning::MoveToTail)));
}

#[test]
fn compact_in_body() {
    explore_seeds(1_000, 1_200, &plan(shape(Cleaning::CompactInBody)));
}

#[test]
fn move_to_tail_in_long_rounds() {
    let shape = Shape { segments_per_link: 7, ..shape(Cleaning::MoveToTail) };
    explore_seeds(2_000, 1_200, &lazy(plan(shape)));
}

#[test]
fn compact_in_body_in_long_rounds() {
    let shape = Shape { segments_per_link: 7, ..shape(Cleaning::CompactInBody) };
    explore_seeds(3_000, 1_200, &lazy(plan(shape)));
}

#[test]
fn a_map_of_large_sectors() {
    let shape = Shape { sector: 4096, ..shape(Cleaning::CompactInBody) };
    explore_seeds(4_000, 1_200, &plan(shape));
}

#[test]
fn a_map_on_the_first_link() {
    let shape = Shape { map_on_link: true, ..shape(Cleaning::MoveToTail) };
    explore_seeds(5_000, 1_200, &plan(shape));
}

#[test]
fn a_map_of_large_sectors_on_the_first_link() {
    let shape = Shape { map_on_link: true, sector: 4096, ..shape(Cleaning::CompactInBody) };
    explore_seeds(6_000, 1_200, &lazy(plan(shape)));
}

#[test]
fn links_by_turns() {
    let placement = Placement::RoundRobin;
    explore_seeds(8_500, 300, &plan(Shape { placement, ..shape(Cleaning::MoveToTail) }));
    explore_seeds(9_500, 300, &plan(Shape { placement, ..shape(Cleaning::CompactInBody) }));
}

#[test]
fn a_single_link() {
    let shape = Shape { links: 1, segments_per_link: 9, ..shape(Cleaning::MoveToTail) };
    explore_seeds(7_000, 1_200, &plan(shape));
}

#[test]
fn parts_of_blocks() {
    explore_seeds(10_000, 1_200, &parts(plan(shape(Cleaning::MoveToTail))));
}

#[test]
fn parts_of_blocks_in_long_rounds() {
    let shape = Shape { segments_per_link: 7, ..shape(Cleaning::CompactInBody) };
    explore_seeds(11_000, 1_200, &lazy(parts(plan(shape))));
}

#[test]
fn parts_of_blocks_on_devices_of_large_sectors() {
    let shape = Shape { map_on_link: true, sector: 4096, ..shape(Cleaning::CompactInBody) };
    explore_seeds(12_000, 1_200, &parts(plan(shape)));
}

#[test]
fn parts_of_blocks_on_a_single_link() {
    let shape =
        Shape { links: 1, segments_per_link: 9, map_on_link: true, ..shape(Cleaning::MoveToTail) };
    explore_seeds(13_000, 1_200, &parts(plan(shape)));
}

/// No commits but those of the test.
fn patient() -> Options {
    Options {
        commit_interval: Duration::from_secs(3600),
        checkpoint_sectors: 10_000,
        auto_clean: false,
        ..options()
    }
}

async fn apply(chain: &Chain, model: &mut BlockModel, lba: u64, stamp: u64) {
    let write = [Write::block(Lba(lba), content(lba, stamp))];
    let version = chain.apply(write.to_vec()).await.unwrap();
    assert_eq!(version, model.apply(&write));
}

/// Map sectors that one generation left in a segment which its recovery did not reach must not count when the
/// next generation writes that segment.
#[test]
fn sectors_that_recovery_did_not_reach_never_count() {
    run(1, |env| async move {
        let shape =
            Shape { links: 1, segments_per_link: 9, blocks: 900, ..shape(Cleaning::MoveToTail) };
        let recorder = Recorder::new(&env);
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let (chain, _) = Chain::open(&env, shape.parts(&devices), patient()).await.unwrap();
        let begun = recorder.position();
        let mut model = BlockModel::new(shape.blocks);
        for number in 0..700 {
            apply(&chain, &mut model, number, 1).await;
        }
        chain.sync(chain.now()).await.unwrap();
        drop(chain);
        let events = begun..recorder.position();
        let policy = Policy { exhaustive: 4, ..Policy::thorough() };
        let mut rng = env.rng();
        let images = recorder.images(&mut rng, &policy.at(Points::At(events.collect())));
        let mut holes = 0;
        for image in images {
            holes += u64::from(second_generation(&env, shape, image).await);
        }
        assert!(holes > 0, "no image had a hole in its map");
    });
}

/// Returns whether the image ended somewhere in the first segments; writes all of them again, block by block.
async fn second_generation(env: &Env, shape: Shape, image: CrashImage) -> bool {
    let (recorder, devices) = Recorder::from_image(env, Duration::ZERO, &image);
    let (chain, found) = Chain::open(env, shape.parts(&devices), patient()).await.unwrap();
    if found.version == 0 || found.version >= 480 {
        return false;
    }
    let mut model = BlockModel::new(shape.blocks);
    for number in 0..found.version {
        model.apply(&[Write::block(Lba(number), content(number, 1))]);
    }
    let log_end = |model: &BlockModel| model.now().0 % 30;
    while model.now().0 < 700 {
        let lba = 899 - model.now().0 % 800;
        apply(&chain, &mut model, lba, 2).await;
        if log_end(&model) != 0 {
            continue;
        }
        chain.sync(chain.now()).await.unwrap();
        let image = recorder.image(recorder.position(), thalweg_sim::crash::Shape::Nothing);
        let (again, found) =
            Chain::open(env, shape.parts(&image.devices), patient()).await.unwrap();
        let blocks = read_all(&again, again.now()).await.unwrap();
        let read = |lba: Lba| blocks[lba.0 as usize].clone();
        let checked = model.check(model.now(), model.now(), read);
        checked.unwrap_or_else(|error| panic!("{}: {found:?}: {error}", image.describe()));
        assert_eq!(again.now(), model.now());
        assert!(again.epoch() > chain.epoch(), "{}", image.describe());
    }
    true
}
