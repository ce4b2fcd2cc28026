//! The length of tests that explore random histories, and their seeds.
//!
//! | variable | meaning |
//! |---|---|
//! | `THALWEG_LONG=n` | explore n times as much, from fresh seeds, which are printed; 1 unless set |
//! | `THALWEG_SEED=s` | the base of those seeds: repeats a long run |

use std::hash::{BuildHasher, RandomState};
use std::ops::{Range, RangeFrom};
use std::sync::OnceLock;

/// Seeds of long runs are the base times this, plus the seed of a short run, so that runs with different bases share
/// none.
const STRIDE: u64 = 1 << 24;

/// How many times as much as usual tests explore: `THALWEG_LONG`.
///
/// # Panics
/// When it is not a number above zero.
pub fn length() -> u64 {
    let length = variable("THALWEG_LONG").unwrap_or(1);
    assert!(
        length > 0,
        "THALWEG_LONG is 0: set the number of times that tests explore their usual count"
    );
    length
}

/// The seeds from `first` on; in a long run fresh ones.
pub fn seeds_from(first: u64) -> RangeFrom<u64> {
    base() * STRIDE + first..
}

/// `count` seeds, times the campaign's length.
pub fn seeds(count: u64) -> Range<u64> {
    let first = seeds_from(0).start;
    first..first + count * length()
}

/// The base of this process's seeds: 0 unless the run is long or `THALWEG_SEED` is set.
fn base() -> u64 {
    static BASE: OnceLock<u64> = OnceLock::new();
    let base = *BASE.get_or_init(|| {
        let fresh =
            || if length() > 1 { 1 + RandomState::new().hash_one(()) % 1_000_000 } else { 0 };
        variable("THALWEG_SEED").unwrap_or_else(fresh)
    });
    if base > 0 {
        println!("seeds of this run: THALWEG_SEED={base}");
    }
    base
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_has_the_usual_seeds_and_a_long_one_others() {
        let first = seeds_from(0).start;
        assert_eq!(seeds(7), first..first + 7 * length());
        assert_eq!(seeds_from(9).start, first + 9);
        match variable("THALWEG_SEED") {
            Some(base) => assert_eq!(first, base * STRIDE),
            None => assert_eq!(first == 0, length() == 1),
        }
    }
}
