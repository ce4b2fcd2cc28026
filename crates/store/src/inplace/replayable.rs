//! Blocks whose bytes recovery may replay.
//!
//! A direct write must not go under such bytes: recovery would put them over it.

use thalweg_env::HashMap;

use super::options::Mode;

/// Data blocks with bytes in transactions that recovery may replay. Released transactions count too, until the
/// journal's superblock excludes them.
#[derive(Debug, Default)]
pub(super) struct Replayable {
    /// The blocks, each with the last transaction that holds bytes of it.
    blocks: HashMap<u64, u64>,
    /// Transactions before this one did not note their blocks.
    noted_from: u64,
    /// The first transaction that recovery may replay.
    first: u64,
}

impl Replayable {
    /// Whether transactions note their blocks in a mode: only if it writes data directly.
    fn notes(mode: Mode) -> bool {
        !mode.journals_all_data()
    }

    /// Notes that a transaction of a mode holds bytes of a block.
    pub(super) fn note(&mut self, mode: Mode, lba: u64, sequence: u64) {
        if Replayable::notes(mode) {
            self.blocks.insert(lba, sequence);
        }
    }

    /// The mode changes; `next` is the journal's next transaction.
    pub(super) fn change_mode(&mut self, from: Mode, to: Mode, next: u64) {
        if Replayable::notes(to) && !Replayable::notes(from) {
            // A commit in flight may take this number or come after it.
            self.noted_from = next + 1;
        }
    }

    /// Whether recovery may replay bytes of a block, as far as is known.
    pub(super) fn contains(&self, lba: u64) -> bool {
        self.blocks.contains_key(&lba) || self.first < self.noted_from
    }

    /// Whether direct writes wait for the journal to exclude released transactions from recovery.
    pub(super) fn blocks_direct_writes(&self) -> bool {
        !self.blocks.is_empty() || self.first < self.noted_from
    }

    /// Recovery begins with transaction `first` from now on.
    pub(super) fn advance(&mut self, first: u64) {
        self.first = first;
        self.blocks.retain(|_, sequence| *sequence >= first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_free_when_recovery_begins_behind_its_bytes() {
        let mut replayable = Replayable::default();
        replayable.note(Mode::Wasteless, 1, 3);
        assert!(!replayable.blocks_direct_writes(), "no direct writes in this mode");
        replayable.note(Mode::Selective, 1, 3);
        replayable.note(Mode::Selective, 2, 5);
        replayable.advance(4);
        assert_eq!([1, 2].map(|lba| replayable.contains(lba)), [false, true]);
        assert!(replayable.blocks_direct_writes());
        replayable.advance(6);
        assert!(!replayable.blocks_direct_writes());
    }

    #[test]
    fn after_a_mode_that_notes_nothing_every_block_may_be_replayed() {
        let mut replayable = Replayable::default();
        replayable.change_mode(Mode::Data, Mode::Wasteless, 7);
        assert!(!replayable.contains(1));
        replayable.change_mode(Mode::Wasteless, Mode::Ordered, 7);
        replayable.advance(7);
        assert!(replayable.contains(1) && replayable.blocks_direct_writes());
        replayable.advance(8);
        assert!(!replayable.contains(1) && !replayable.blocks_direct_writes());
    }
}
