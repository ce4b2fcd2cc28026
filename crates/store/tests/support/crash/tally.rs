//! Counts of what an exploration met.

use thalweg_store::chain::{Chain, Recovered};

/// What the histories of an exploration met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub images: u64,
    pub recoveries_crashed: u64,
    pub moved: u64,
    pub dropped: u64,
    pub replayed: u64,
    pub checked: u64,
    pub short_rounds: u64,
    pub long_rounds: u64,
    pub bases: u64,
    pub deltas: u64,
    pub rebuilt: u64,
    /// Mini-log blocks written and replayed, and blocks settled while writing and in recovery.
    pub minis: [u64; 4],
}

impl Tally {
    /// Adds another run's.
    pub fn add(&mut self, other: &Tally) {
        self.images += other.images;
        self.recoveries_crashed += other.recoveries_crashed;
        self.moved += other.moved;
        self.dropped += other.dropped;
        self.replayed += other.replayed;
        self.checked += other.checked;
        self.short_rounds += other.short_rounds;
        self.long_rounds += other.long_rounds;
        self.bases += other.bases;
        self.deltas += other.deltas;
        self.rebuilt += other.rebuilt;
        for (sum, more) in self.minis.iter_mut().zip(other.minis) {
            *sum += more;
        }
    }

    /// Fails when the histories left out what they are for.
    pub fn assert_varied(&self) {
        let counts = [
            self.recoveries_crashed,
            self.moved,
            self.dropped,
            self.replayed,
            self.checked,
            self.short_rounds,
            self.long_rounds,
            self.bases,
            self.deltas,
        ];
        assert!(counts.iter().all(|count| *count > 10), "{self:?}");
    }

    /// Fails when mini-logs did not matter.
    pub fn assert_parts(&self, images: u64) {
        assert!(self.minis.iter().all(|count| *count > images / 10), "{self:?}");
    }

    pub(super) fn found(&mut self, found: &Recovered) {
        self.images += 1;
        self.minis[1] += found.minis;
        self.minis[3] += found.slots;
        self.dropped += u64::from(found.dropped > 0);
        self.replayed += found.replayed;
        self.checked += u64::from(found.checked_bytes > 0);
    }

    pub(super) fn add_counts(&mut self, chain: &Chain) {
        let minis = chain.status().minis;
        self.minis[0] += minis.blocks;
        self.minis[2] += minis.settled;
        let counts = chain.status().counts;
        self.moved += counts.blocks_moved;
        self.short_rounds += counts.short_rounds;
        self.long_rounds += counts.rounds - counts.short_rounds;
        self.bases += counts.bases;
        self.deltas += counts.checkpoints - counts.bases;
    }
}
