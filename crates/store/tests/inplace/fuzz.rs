//! Damaged journals and in-place stores: opening fails, or shows content that they held at some
//! time. Runs the targets of `fuzz/` for a few seconds.

use rand::{RngExt, SeedableRng};
use thalweg_env::Rng;
use thalweg_sim::campaign;
use thalweg_store::inplace::Mode;

use crate::journal_support;
use crate::support::scribble::Image;

/// Number of damaging writes; in a quarter of the cases the data has one byte more than they need.
fn strokes(rng: &mut Rng) -> Vec<u8> {
    let len = 8 * rng.random_range(1..6) + usize::from(rng.random_bool(0.25));
    (0..len).map(|_| rng.random()).collect()
}

/// Damages again and again; counts results that could be used and those that were refused.
fn scribbles(seed: u64, scribble: impl Fn(&[u8]) -> bool) -> (u64, u64) {
    let mut rng = Rng::seed_from_u64(campaign::seeds_from(seed).start);
    let (mut used, mut refused) = (0, 0);
    for _ in 0..150 * campaign::length() {
        let strokes = strokes(&mut rng);
        match scribble(&strokes) {
            true => used += 1,
            false => refused += 1,
        }
    }
    (used, refused)
}

#[test]
fn scribbled_journals_give_an_error_or_a_prefix() {
    let (mut used, mut refused) = (0, 0);
    for seed in 0..6 {
        let image = journal_support::scribble::Image::new(seed);
        let (some, none) = scribbles(seed, |strokes| image.scribble(strokes));
        (used, refused) = (used + some, refused + none);
    }
    println!("{used} replayed, {refused} refused");
    assert!(used > 50 && refused > 50, "{used} replayed, {refused} refused");
}

#[test]
fn journals_of_any_bytes_give_an_error_or_nothing() {
    let mut rng = Rng::seed_from_u64(campaign::seeds_from(1).start);
    for _ in 0..400 * campaign::length() {
        let bytes: Vec<u8> = (0..rng.random_range(0..20_000)).map(|_| rng.random()).collect();
        journal_support::scribble::arbitrary(&bytes);
    }
}

#[test]
fn scribbled_stores_give_an_error_or_what_they_held() {
    let (mut used, mut refused) = (0, 0);
    for (seed, mode) in (0..).zip(Mode::ALL) {
        let image = Image::new(seed, mode);
        let (some, none) = scribbles(seed, |strokes| image.scribble(strokes));
        (used, refused) = (used + some, refused + none);
    }
    println!("{used} opened, {refused} refused");
    assert!(used > 50 && refused > 50, "{used} opened, {refused} refused");
}

#[test]
fn bytes_over_a_block_that_nobody_can_verify_are_counted() {
    let image = Image::new(1, Mode::Wasteless);
    (0..150).for_each(|lba| image.blank(lba));
}

/// The last two records are damaged, and the blocks that they changed are in place.
#[test]
fn a_lost_end_of_the_journal_spoils_only_what_it_changed() {
    let mut strokes = vec![0x32, 0xdd, 0x40, 0x28, 0, 0x2b, 0x2a, 0, 0x33, 0x2a, 0xfe];
    strokes.extend([0xff; 5]);
    strokes.extend([0x4e, 0x22, 0x4e, 0x4e, 0x4e, 0x4e, 0x4e, 0x4e, 2]);
    strokes.extend([0xff; 7]);
    strokes.extend([0x4e; 16]);
    strokes.extend([0xff, 3]);
    assert!(Image::new(0, Mode::Wasteless).scribble(&strokes));
}
