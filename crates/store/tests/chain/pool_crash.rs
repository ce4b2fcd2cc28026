//! Power cuts at any point of an operation on a whole volume: creating it, growing it, shrinking it,
//! replacing, losing, returning and rebuilding devices, destroying it. Devices, names and manifest are
//! recorded in one order. For every image:
//!
//! - the volume opens, unless its making had not returned or its destruction had begun;
//! - every acknowledged write is there, also on each side of a mirror that is said to be in sync;
//! - the interrupted operation can be repeated, with the same devices, and then succeeds;
//! - another volume may take whatever this one does not use, without force.
//!
//! With `THALWEG_LONG=n` each test explores n times as many histories, from fresh seeds (`campaign`).

mod check;
mod dying;
mod history;

use check::Tally;
use history::{Layout, Parts};
use thalweg_sim::campaign;

fn campaign(first: u64, images: u64, layout: Layout) {
    let mut total = Tally::default();
    for seed in campaign::seeds_from(first) {
        total.add(&check::explore(seed, &layout));
        if total.images >= images * campaign::length() {
            break;
        }
    }
    println!("{total:?}");
    total.assert_varied(&layout);
}

#[test]
fn plain_links_with_a_shared_map_and_a_cache() {
    campaign(0, 700, Layout { links: Parts::Plain, map_sides: 1, cache: true, sector: 512 });
}

#[test]
fn mirrored_links_with_a_mirrored_map() {
    campaign(1_000, 700, Layout { links: Parts::Mirror, map_sides: 2, cache: false, sector: 512 });
}

#[test]
fn a_map_on_the_first_link_and_large_sectors() {
    campaign(2_000, 700, Layout { links: Parts::Mirror, map_sides: 0, cache: true, sector: 4096 });
}
