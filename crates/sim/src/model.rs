//! A naive reference for versioned blocks, and the check of the crash rule.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;
use std::ops::RangeInclusive;

use bytes::Bytes;
use thalweg_store::block::{BLOCK_SIZE, Lba, Version, Write};

/// The content of a block from a version on. No content is the same as zeros.
#[derive(Clone, Debug)]
struct Entry {
    since: Version,
    digest: u64,
    content: Option<Bytes>,
}

/// Every version of every block.
#[derive(Clone, Debug)]
pub struct BlockModel {
    blocks: u64,
    now: Version,
    history: BTreeMap<Lba, Vec<Entry>>,
}

/// The recovered state is not that of any version that the crash rule allows.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "block {} recovered to {found}, but the blocks before it allow only versions {allowed}; \
     its versions nearby: {nearby}",
    lba.0
)]
pub struct Mismatch {
    /// The first block that matches none of the versions that the blocks before it match.
    pub lba: Lba,
    /// The content found, and the versions in which the block had it.
    pub found: String,
    /// The versions that the blocks before it match.
    pub allowed: Versions,
    /// The block's content in and around the allowed versions.
    pub nearby: String,
}

/// Versions, as ascending ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions(Vec<RangeInclusive<u64>>);

impl Versions {
    /// Whether `version` is in a range.
    pub fn contains(&self, version: Version) -> bool {
        self.0.iter().any(|range| range.contains(&version.0))
    }

    /// The newest version.
    pub fn newest(&self) -> Option<Version> {
        self.0.last().map(|range| Version(*range.end()))
    }

    fn intersect(&self, other: &Versions) -> Versions {
        let (mut i, mut j) = (0, 0);
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            let (start, end) = (*a.start().max(b.start()), *a.end().min(b.end()));
            if start <= end {
                both.push(start..=end);
            }
            match a.end() <= b.end() {
                true => i += 1,
                false => j += 1,
            }
        }
        Versions(both)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, range) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            match range.start() == range.end() {
                true => write!(f, "{comma}{}", range.start())?,
                false => write!(f, "{comma}{} to {}", range.start(), range.end())?,
            }
        }
        Ok(())
    }
}

fn digest(content: Option<&Bytes>) -> u64 {
    foldhash::fast::FixedState::default().hash_one(content.map(|bytes| &bytes[..]))
}

/// Represents content of zeros as no content.
fn normal(content: Option<Bytes>) -> Option<Bytes> {
    content.filter(|bytes| bytes.iter().any(|byte| *byte != 0))
}

/// Content for a message: its first bytes.
fn name(content: Option<&Bytes>) -> String {
    match content {
        None => "zeros".to_owned(),
        Some(bytes) => {
            let head = &bytes[..bytes.len().min(8)];
            format!("{head:02x?}… (digest {:08x})", digest(content) as u32)
        }
    }
}

impl BlockModel {
    /// An empty store of `blocks` blocks, at version 0.
    pub fn new(blocks: u64) -> BlockModel {
        BlockModel { blocks, now: Version(0), history: BTreeMap::new() }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The newest version.
    pub fn now(&self) -> Version {
        self.now
    }

    /// Applies one transaction as the next version; later writes to the same block win.
    ///
    /// # Panics
    /// When a write leaves the store or is not a whole block: the test is wrong.
    pub fn apply(&mut self, writes: &[Write]) -> Version {
        self.now = self.now.next();
        for write in writes {
            assert!(write.lba.0 < self.blocks, "block {} of {}", write.lba.0, self.blocks);
            assert!(write.content.as_ref().is_none_or(|bytes| bytes.len() == BLOCK_SIZE));
            self.set(write.lba, write.content.clone());
        }
        self.now
    }

    /// Discards `count` blocks from `lba` on as the next version.
    pub fn discard(&mut self, lba: Lba, count: u64) -> Version {
        self.now = self.now.next();
        let range = lba..Lba(lba.0 + count);
        let written: Vec<Lba> = self.history.range(range).map(|(lba, _)| *lba).collect();
        written.into_iter().for_each(|lba| self.set(lba, None));
        self.now
    }

    fn set(&mut self, lba: Lba, content: Option<Bytes>) {
        let content = normal(content);
        let entry = Entry { since: self.now, digest: digest(content.as_ref()), content };
        let entries = self.history.entry(lba).or_default();
        if entries.last().is_some_and(|last| last.since == self.now) {
            entries.pop();
        }
        entries.push(entry);
    }

    /// The content of a block at a version; `None` when it reads as zeros.
    pub fn read(&self, lba: Lba, at: Version) -> Option<Bytes> {
        let entries = self.history.get(&lba)?;
        let newer = entries.partition_point(|entry| entry.since <= at);
        entries[..newer].last()?.content.clone()
    }

    /// Drops the versions after `version`: after a crash the store continues from there.
    pub fn rewind(&mut self, version: Version) {
        self.now = self.now.min(version);
        for entries in self.history.values_mut() {
            entries.retain(|entry| entry.since <= version);
        }
        self.history.retain(|_, entries| !entries.is_empty());
    }

    /// Checks the crash rule: the state that `read` returns must be that of *one* version, no older than
    /// `acknowledged` and no newer than `attempted`. Returns the versions with that state.
    ///
    /// # Errors
    /// [`Mismatch`] with the first block that matches none of the versions that the blocks before it
    /// match.
    pub fn check(
        &self,
        acknowledged: Version,
        attempted: Version,
        mut read: impl FnMut(Lba) -> Option<Bytes>,
    ) -> Result<Versions, Mismatch> {
        let mut allowed = Versions(vec![acknowledged.0..=attempted.0.min(self.now.0)]);
        for lba in (0..self.blocks).map(Lba) {
            let content = normal(read(lba));
            let fitting = self.fitting(lba, content.as_ref());
            let both = allowed.intersect(&fitting);
            if both.0.is_empty() {
                let found =
                    format!("{}, which it held in versions {fitting}", name(content.as_ref()));
                let nearby = self.nearby(lba, &allowed);
                return Err(Mismatch { lba, found, allowed, nearby });
            }
            allowed = both;
        }
        Ok(allowed)
    }

    /// The versions in which a block held `content`.
    fn fitting(&self, lba: Lba, content: Option<&Bytes>) -> Versions {
        let entries = self.history.get(&lba).map_or(&[][..], Vec::as_slice);
        let mut ranges = Vec::new();
        if content.is_none() {
            let end = entries.first().map_or(self.now.0 + 1, |entry| entry.since.0);
            // A block first written by version 0 does not exist: `end` is at least 1.
            ranges.push(0..=end - 1);
        }
        let wanted = digest(content);
        for (i, entry) in entries.iter().enumerate() {
            if entry.digest == wanted && entry.content.as_ref() == content {
                let end = entries.get(i + 1).map_or(self.now.0, |next| next.since.0 - 1);
                ranges.push(entry.since.0..=end);
            }
        }
        Versions(ranges)
    }

    /// A block's content in the allowed versions, and in the version before them.
    fn nearby(&self, lba: Lba, allowed: &Versions) -> String {
        let Some(entries) = self.history.get(&lba) else {
            return "never written".to_owned();
        };
        let first = allowed.0.first().map_or(0, |range| *range.start());
        let from = entries.partition_point(|entry| entry.since.0 <= first).saturating_sub(2);
        let shown = entries[from..].iter().take(6);
        let shown = shown.map(|entry| format!("{}: {}", entry.since, name(entry.content.as_ref())));
        shown.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use thalweg_env::Rng;

    fn block(byte: u8) -> Bytes {
        Bytes::from(vec![byte; BLOCK_SIZE])
    }

    fn write(lba: u64, byte: u8) -> Write {
        Write::block(Lba(lba), block(byte))
    }

    /// Blocks 0 and 1: (1, 1), (1, 2), (3, 2), (0, 2), (1, 1).
    fn model() -> BlockModel {
        let mut model = BlockModel::new(3);
        model.apply(&[write(0, 9), write(1, 1), write(0, 1)]);
        model.apply(&[write(1, 2)]);
        model.apply(&[write(0, 3)]);
        model.discard(Lba(0), 1);
        model.apply(&[write(0, 1), write(1, 1)]);
        model
    }

    fn check(state: [u8; 3], acknowledged: u64, attempted: u64) -> Result<Versions, Mismatch> {
        let read = |lba: Lba| Some(block(state[lba.0 as usize]));
        model().check(Version(acknowledged), Version(attempted), read)
    }

    #[test]
    fn versions_read_as_written() {
        let model = model();
        let read = |lba, at| model.read(Lba(lba), Version(at)).map_or(0, |bytes| bytes[0]);
        let states: Vec<_> = (0..=5).map(|at| (read(0, at), read(1, at))).collect();
        assert_eq!(states, [(0, 0), (1, 1), (1, 2), (3, 2), (0, 2), (1, 1)]);
    }

    #[test]
    fn the_state_of_one_allowed_version_passes() {
        assert_eq!(check([1, 1, 0], 0, 5).unwrap(), Versions(vec![1..=1, 5..=5]));
        assert_eq!(check([1, 1, 0], 0, 4).unwrap().newest(), Some(Version(1)));
        assert_eq!(check([0, 2, 0], 2, 5).unwrap(), Versions(vec![4..=4]));
        assert!(check([0, 0, 0], 0, 5).unwrap().contains(Version(0)));
    }

    #[test]
    fn what_breaks_the_crash_rule_is_named() {
        let old = check([1, 2, 0], 3, 5).unwrap_err();
        assert_eq!(old.lba, Lba(1), "{old}");
        let mixed = check([3, 1, 0], 0, 5).unwrap_err();
        assert_eq!((mixed.lba, mixed.allowed), (Lba(1), Versions(vec![3..=3])));
        let foreign = check([7, 1, 0], 0, 5).unwrap_err();
        assert!(foreign.to_string().contains("versions none"), "{foreign}");
        assert_eq!(check([1, 1, 5], 0, 5).unwrap_err().lba, Lba(2));
        assert!(check([1, 1, 0], 2, 4).is_err(), "neither acknowledged nor attempted");
    }

    #[test]
    fn rewinding_forgets_what_came_after() {
        let mut model = model();
        model.rewind(Version(2));
        assert_eq!(model.apply(&[write(2, 8)]), Version(3));
        assert_eq!(model.read(Lba(0), Version(9)), Some(block(1)));
        let read = |lba: Lba| model.read(lba, Version(3));
        assert_eq!(model.check(Version(0), Version(9), read).unwrap(), Versions(vec![3..=3]));
    }

    #[test]
    fn every_version_of_a_long_history_is_found() {
        let mut model = BlockModel::new(300);
        let mut rng = Rng::seed_from_u64(5);
        for i in 0..5_000 {
            if i % 50 == 0 {
                model.discard(Lba(rng.random_range(0..280)), 20);
            }
            let writes: Vec<_> = (0..rng.random_range(1..4))
                .map(|_| write(rng.random_range(0..300), rng.random_range(0..200)))
                .collect();
            model.apply(&writes);
        }
        for at in (0..model.now().0).step_by(61).map(Version) {
            let found = model.check(Version(0), model.now(), |lba| model.read(lba, at)).unwrap();
            assert!(found.contains(at));
            let later = model.check(at.next(), model.now(), |lba| model.read(lba, at));
            assert!(later.is_err() || found.newest() > Some(at));
        }
    }
}
