//! Streams of logical blocks to overwrite.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use thalweg_env::Rng;

use crate::BenchError;
use crate::rig::failed;

const EXPONENT: f64 = 0.99;

/// The distribution of overwrites over blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// All blocks equally often.
    Uniform,
    /// By Zipf's law with exponent 0.99; hot blocks are anywhere.
    Zipf,
}

impl Load {
    pub(crate) const ALL: [Load; 2] = [Load::Uniform, Load::Zipf];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Load::Uniform => "uniform",
            Load::Zipf => "zipf",
        }
    }
}

/// A stream of logical blocks: a function of the load, the number of blocks and the seed.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    rng: Rng,
    blocks: u32,
    /// The law, and the block of each rank.
    zipf: Option<(Zipf<f64>, Vec<u32>)>,
}

impl Addresses {
    pub(crate) fn new(load: Load, blocks: u32, seed: u64) -> Result<Addresses, BenchError> {
        let mut rng = Rng::seed_from_u64(seed);
        let zipf = match load {
            Load::Uniform => None,
            Load::Zipf => {
                let mut by_rank: Vec<u32> = (0..blocks).collect();
                by_rank.shuffle(&mut rng);
                Some((Zipf::new(f64::from(blocks), EXPONENT).map_err(failed)?, by_rank))
            }
        };
        Ok(Addresses { rng, blocks, zipf })
    }

    /// Takes over which blocks are hot.
    pub(crate) fn rank_like(&mut self, other: &Addresses) {
        self.zipf.clone_from(&other.zipf);
    }

    /// The next block.
    pub(crate) fn draw(&mut self) -> u32 {
        match &self.zipf {
            None => self.rng.random_range(0..self.blocks),
            Some((zipf, by_rank)) => by_rank[zipf.sample(&mut self.rng) as usize - 1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_blocks_lie_anywhere_and_draws_repeat() {
        let counts = |seed| {
            let mut addresses = Addresses::new(Load::Zipf, 1000, seed).unwrap();
            let mut counts = vec![0u32; 1000];
            (0..100_000).for_each(|_| counts[addresses.draw() as usize] += 1);
            counts
        };
        let mut first = counts(1);
        assert_eq!(first, counts(1));
        assert_ne!(first, counts(2));
        let hottest = first.iter().max().copied().unwrap();
        assert_ne!(first[0], hottest);
        first.sort_unstable_by(|a, b| b.cmp(a));
        // The first rank has about twice the second.
        let ratio = f64::from(first[0]) / f64::from(first[1]);
        assert!((1.8..2.2).contains(&ratio), "{ratio}");
    }
}
