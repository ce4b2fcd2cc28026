//! Which strategy serves a cache best, tried on a sample of its keys.
//!
//! No strategy is best for every workload: a working set that is a little larger than the cache wants every block
//! back that fell out, and a loop over much more wants none. Each trial is a cache without blocks, of one tier, that
//! follows one strategy. It sees the keys of a sample and is smaller by the same factor, so it has the hit rate that
//! the whole cache would have (miniature simulation). The cache follows the strategy of the best trial.

use super::ghosts::Ghosts;
use super::index::hash;
use super::slots::Slots;

/// Blocks of a trial, about. Trials of larger caches see one key in two, four, and so on.
const TRIAL_BLOCKS: usize = 4096;
/// Block writes to the SSD that a read of the drive is worth: an SSD wears, and the drive's arm has to move.
const WRITES_PER_HIT: i64 = 8;
/// Reads in a sample after which the strategy is chosen anew.
const PERIOD: u32 = 1024;

/// When a block that was missed is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refill {
    /// Never: the cache keeps what was written.
    Never,
    /// At the second miss soon after the first.
    SecondMiss,
    /// At the first miss.
    FirstMiss,
}

/// What a cache does about blocks that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strategy {
    /// When a block that was missed is admitted.
    pub(super) refill: Refill,
    /// How many times as long as another block one that was read stays after its last use.
    pub(super) favour: u32,
}

impl Strategy {
    /// A read cache has only what was missed, so it admits everything.
    pub(super) const OF_READ_CACHE: Strategy = Strategy { refill: Refill::FirstMiss, favour: 1 };
}

/// The first one is followed until there is a better one.
const STRATEGIES: [Strategy; 3] = [
    Strategy { refill: Refill::SecondMiss, favour: 2 },
    Strategy { refill: Refill::FirstMiss, favour: 2 },
    Strategy { refill: Refill::Never, favour: 1 },
];

/// A cache of keys that follows one strategy.
#[derive(Debug)]
struct Trial {
    strategy: Strategy,
    slots: Slots,
    ghosts: Ghosts,
    /// Recent hits, less what recent fills cost, in block writes.
    score: i64,
}

impl Trial {
    fn insert(&mut self, key: u64, now: u32) {
        if let Some(slot) = self.slots.take(now, self.strategy.favour) {
            self.slots.insert(slot, key, now);
        }
    }

    fn get(&mut self, key: u64, now: u32) {
        if self.slots.touch(key, now).is_some() {
            self.score += WRITES_PER_HIT;
            return;
        }
        let is_admitted = match self.strategy.refill {
            Refill::Never => false,
            Refill::SecondMiss => self.ghosts.meet(key),
            Refill::FirstMiss => true,
        };
        if is_admitted {
            self.score -= 1;
            self.insert(key, now);
        }
    }
}

/// The trials of a cache.
#[derive(Debug)]
pub(super) struct Trials {
    trials: Vec<Trial>,
    /// The bits that are clear in the hashes of the sample.
    mask: u64,
    /// Reads in the sample since the last choice.
    reads: u32,
    best: Strategy,
}

impl Trials {
    /// Trials for a cache of so many blocks.
    pub(super) fn new(cache_blocks: usize) -> Trials {
        let sampling = (cache_blocks / TRIAL_BLOCKS).max(1).next_power_of_two();
        let blocks = (cache_blocks / sampling).max(1);
        let trial = |strategy| Trial {
            strategy,
            slots: Slots::new(blocks as u32),
            ghosts: Ghosts::new(blocks),
            score: 0,
        };
        let trials = STRATEGIES.map(trial).into();
        Trials { trials, mask: sampling as u64 - 1, reads: 0, best: STRATEGIES[0] }
    }

    /// The strategy to follow.
    pub(super) fn best(&self) -> Strategy {
        self.best
    }

    fn is_sampled(&self, key: u64) -> bool {
        // Of another hash than the ghosts', whose places would else be used unevenly.
        hash(!key) & self.mask == 0
    }

    /// A block enters that was written.
    pub(super) fn put(&mut self, key: u64, now: u32) {
        if self.is_sampled(key) {
            self.trials.iter_mut().for_each(|trial| trial.insert(key, now));
        }
    }

    /// A block is dropped, if it is cached.
    pub(super) fn remove(&mut self, key: u64) {
        if self.is_sampled(key) {
            self.trials.iter_mut().for_each(|trial| {
                trial.slots.remove(key);
            });
        }
    }

    /// A block is looked up.
    pub(super) fn get(&mut self, key: u64, now: u32) {
        if !self.is_sampled(key) {
            return;
        }
        self.trials.iter_mut().for_each(|trial| trial.get(key, now));
        self.reads += 1;
        if self.reads == PERIOD {
            self.reads = 0;
            self.choose();
        }
    }

    /// Chooses the strategy, and lets older reads count half.
    fn choose(&mut self) {
        let current = self.trials.iter().find(|trial| trial.strategy == self.best);
        let mut most = current.map_or(0, |trial| trial.score);
        for trial in &mut self.trials {
            if trial.score > most {
                most = trial.score;
                self.best = trial.strategy;
            }
        }
        self.trials.iter_mut().for_each(|trial| trial.score /= 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 1000;

    /// Trials of a cache that has seen `rounds` of reads, in each of which it is read as `round` says.
    fn after(rounds: u64, round: impl Fn(u64) -> Vec<u64>) -> Strategy {
        let mut trials = Trials::new(BLOCKS as usize);
        let mut now = 0;
        for key in 0..10 * BLOCKS {
            now += 1;
            trials.put(key, now);
        }
        for nth in 0..rounds {
            for key in round(nth) {
                now += 1;
                trials.get(key, now);
            }
        }
        trials.best()
    }

    #[test]
    fn a_loop_over_more_than_the_cache_admits_nothing() {
        let strategy = after(20, |_| (9 * BLOCKS - 100..10 * BLOCKS).collect());
        assert_eq!(strategy.refill, Refill::Never);
    }

    #[test]
    fn a_working_set_that_fits_is_admitted_at_once() {
        // The set moves on by half, before a second miss can pay.
        let strategy = after(200, |nth| {
            let start = nth * BLOCKS / 2 % (8 * BLOCKS);
            (0..2).flat_map(|_| start..start + BLOCKS / 2).collect()
        });
        assert_eq!(strategy.refill, Refill::FirstMiss);
    }

    #[test]
    fn a_scan_between_reads_of_a_few_blocks_is_not_admitted_at_once() {
        let strategy = after(50, |nth| {
            let scan = (0..BLOCKS / 2).map(|at| 100_000 + nth * BLOCKS + at);
            scan.chain(10 * BLOCKS - 200..10 * BLOCKS).collect()
        });
        assert_ne!(strategy.refill, Refill::FirstMiss);
    }

    #[test]
    fn a_hit_is_worth_a_few_writes_and_no_more() {
        // Of so many new blocks one is read twice.
        let reads_of = |new: u64| {
            after(2000, move |nth| {
                let start = 100_000 + nth * new;
                (start..start + new).chain([start]).collect()
            })
        };
        assert_eq!(reads_of(WRITES_PER_HIT as u64 / 2).refill, Refill::FirstMiss);
        assert_eq!(reads_of(WRITES_PER_HIT as u64 * 2).refill, Refill::Never);
    }

    #[test]
    fn a_sample_chooses_as_the_whole_does() {
        let large = 64 * TRIAL_BLOCKS as u64;
        let mut trials = Trials::new(large as usize);
        let (mut now, mut sampled) = (0, 0);
        let keys = 0..large + large / 10;
        for round in 0..4 {
            for key in keys.clone() {
                now += 1;
                sampled += u64::from(trials.is_sampled(key));
                match round {
                    0 => trials.put(key, now),
                    _ => trials.get(key, now),
                }
            }
        }
        assert_eq!(trials.best().refill, Refill::Never);
        let expected = 4 * keys.end / 64;
        assert!(sampled.abs_diff(expected) < expected / 10, "{sampled} of {expected}");
    }
}
