//! Power cuts of a chain: every image that a crash could leave recovers to the state of one
//! version, no older than what was acknowledged.
//!
//! With `THALWEG_LONG=n` each test explores n times as many histories, from other seeds.

mod support;

use support::Shape;
use support::crash::{Plan, Tally, explore};
use thalweg_sim::runtime::run;
use thalweg_store::chain::Cleaning;

fn plan(shape: Shape) -> Plan {
    Plan { shape, steps: 60, writers: 3, points: 40, generations: 2, branches: 3, lazy: false }
}

fn lazy(plan: Plan) -> Plan {
    Plan { lazy: true, steps: 120, ..plan }
}

fn shape(cleaning: Cleaning) -> Shape {
    Shape { blocks: 220, segments_per_link: 4, ..Shape::small(cleaning) }
}

/// Explores the seeds from `first` on until `images` images were checked.
fn campaign(first: u64, images: u64, plan: Plan) {
    let long: u64 = std::env::var("THALWEG_LONG").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let first = if long > 1 { first + 1_000_000 } else { first };
    let mut total = Tally::default();
    for seed in first.. {
        let tally = run(seed, |env| async move { explore(&env, seed, &plan).await });
        total.add(&tally);
        if total.images >= images * long {
            break;
        }
    }
    println!("{total:?}");
    total.assert_varied();
}

#[test]
fn move_to_tail() {
    campaign(0, 15_000, plan(shape(Cleaning::MoveToTail)));
}

#[test]
fn compact_in_body() {
    campaign(1_000, 15_000, plan(shape(Cleaning::CompactInBody)));
}

#[test]
fn move_to_tail_in_long_rounds() {
    let shape = Shape { segments_per_link: 7, ..shape(Cleaning::MoveToTail) };
    campaign(2_000, 15_000, lazy(plan(shape)));
}

#[test]
fn compact_in_body_in_long_rounds() {
    let shape = Shape { segments_per_link: 7, ..shape(Cleaning::CompactInBody) };
    campaign(3_000, 15_000, lazy(plan(shape)));
}

#[test]
fn a_map_of_large_sectors() {
    let shape = Shape { sector: 4096, ..shape(Cleaning::CompactInBody) };
    campaign(4_000, 15_000, plan(shape));
}

#[test]
fn a_map_on_the_first_link() {
    let shape = Shape { map_on_link: true, ..shape(Cleaning::MoveToTail) };
    campaign(5_000, 15_000, plan(shape));
}

#[test]
fn a_map_of_large_sectors_on_the_first_link() {
    let shape = Shape { map_on_link: true, sector: 4096, ..shape(Cleaning::CompactInBody) };
    campaign(6_000, 15_000, lazy(plan(shape)));
}

#[test]
fn a_single_link() {
    let shape =
        Shape { links: 1, segments_per_link: 9, ..shape(Cleaning::MoveToTail) };
    campaign(7_000, 15_000, plan(shape));
}
