//! Which contents the versions of blocks have, which contents are stored and which are cached.

use std::collections::BTreeSet;

use super::super::choice::{Place, cheapest};
use crate::recency::Queue;

/// Number of a content: its hash in a real system.
pub(super) type Content = u32;

/// The answer to a reader: which version to read, its content, and where it is on the disk unless it is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) version: u32,
    pub(super) content: Content,
    pub(super) place: Option<u32>,
}

/// The contents of blocks' versions.
#[derive(Debug)]
pub(super) struct Contents {
    /// Number of versions whose content is known for each block.
    known: u32,
    /// The contents of these versions; version `v` is at `v % known`.
    versions: Vec<Content>,
    newest: Vec<u32>,
    /// Number of blocks whose newest version has a content.
    references: Vec<u32>,
    /// The place of each stored content on the disk.
    places: Vec<Option<u32>>,
    free: BTreeSet<u32>,
    /// New contents go to the next free place from here on.
    next: u32,
    cache: Queue,
    cache_blocks: usize,
}

impl Contents {
    /// Blocks whose version 0 has these contents, of which there are `pool` different ones. As many places as blocks, and
    /// some for contents whose write is not finished.
    pub(super) fn new(first: &[Content], pool: u32, known: u32, cache_blocks: usize) -> Contents {
        let blocks = first.len();
        let mut contents = Contents {
            known,
            versions: vec![0; blocks * known as usize],
            newest: vec![0; blocks],
            references: vec![0; pool as usize],
            places: vec![None; pool as usize],
            free: (0..blocks as u32 + SPARE).collect(),
            next: 0,
            cache: Queue::default(),
            cache_blocks,
        };
        for (block, content) in first.iter().enumerate() {
            contents.versions[block * known as usize] = *content;
            contents.references[*content as usize] += 1;
            if contents.places[*content as usize].is_none() {
                contents.places[*content as usize] = contents.take_place();
            }
        }
        contents
    }

    pub(super) fn blocks(&self) -> u32 {
        self.newest.len() as u32
    }

    pub(super) fn newest(&self, block: u32) -> u32 {
        self.newest[block as usize]
    }

    fn content(&self, block: u32, version: u32) -> Content {
        self.versions[(block * self.known + version % self.known) as usize]
    }

    pub(super) fn place(&self, content: Content) -> Option<u32> {
        self.places[content as usize]
    }

    /// The stored contents with their places, in the order of places.
    pub(super) fn stored(&self) -> Vec<(u32, Content)> {
        let places = self.places.iter().enumerate();
        let mut stored: Vec<_> =
            places.filter_map(|(content, place)| Some(((*place)?, content as u32))).collect();
        stored.sort_unstable();
        stored
    }

    /// The cheapest version of a block that is at least `low`; `None` if there is none. An old version that is not cached
    /// is never cheaper than the newest.
    pub(super) fn choose(&self, block: u32, low: u32) -> Option<Choice> {
        let newest = self.newest(block);
        let low = low.max((newest + 1).saturating_sub(self.known));
        let place = |version: u32| {
            let content = self.content(block, version);
            match self.cache.contains(u64::from(content)) {
                true => Some(Place::Memory),
                false => self.place(content).map(|_| Place::Disk),
            }
        };
        let (version, place) = cheapest(low, newest, place)?;
        let content = self.content(block, version);
        let place = self.place(content).filter(|_| place == Place::Disk);
        Some(Choice { version, content, place })
    }

    /// Caches a content that was read or written, or notes its use.
    pub(super) fn touch(&mut self, content: Content) {
        self.cache.push(u64::from(content));
        if self.cache.len() > self.cache_blocks {
            self.cache.pop();
        }
    }

    /// The place for a content that is not stored yet; `None` for one that is, or if the disk is full.
    pub(super) fn begin(&mut self, content: Content) -> Option<u32> {
        match self.place(content) {
            Some(_) => None,
            None => self.take_place(),
        }
    }

    /// Gives a block a new version, whose content is on the disk: at `place` if [`Contents::begin`] returned one.
    pub(super) fn end(&mut self, block: u32, content: Content, place: Option<u32>) {
        match (self.place(content), place) {
            (None, _) => self.places[content as usize] = place,
            // Another writer stored the same content meanwhile.
            (Some(_), Some(mine)) => drop(self.free.insert(mine)),
            (Some(_), None) => {}
        }
        self.references[content as usize] += 1;
        let old = self.content(block, self.newest(block));
        self.newest[block as usize] += 1;
        let newest = self.newest(block);
        self.versions[(block * self.known + newest % self.known) as usize] = content;
        self.references[old as usize] -= 1;
        if self.references[old as usize] == 0 {
            self.free.extend(self.places[old as usize].take());
        }
        self.touch(content);
    }

    fn take_place(&mut self) -> Option<u32> {
        let place = self.free.range(self.next..).next().or_else(|| self.free.first()).copied()?;
        self.free.remove(&place);
        self.next = place + 1;
        Some(place)
    }
}

/// Places beyond one for each block.
pub(super) const SPARE: u32 = 64;

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use thalweg_env::Rng;

    use super::super::super::choice::oldest_allowed;
    use super::*;

    const BLOCKS: u32 = 50;
    const POOL: u32 = 40;
    const CACHE: usize = 7;

    /// All versions of each block, and the cached contents, the one used last at the end.
    struct Naive {
        versions: Vec<Vec<Content>>,
        cache: Vec<Content>,
    }

    impl Naive {
        fn touch(&mut self, content: Content) {
            self.cache.retain(|other| *other != content);
            self.cache.push(content);
            if self.cache.len() > CACHE {
                self.cache.remove(0);
            }
        }

        /// The version, and whether it is cached: the newest cached one of those allowed, or the newest.
        fn choose(&self, block: u32, staleness: usize) -> (usize, bool) {
            let versions = &self.versions[block as usize];
            let first = versions.len().saturating_sub(staleness + 1);
            let oldest = |is_there: &dyn Fn(&Content) -> bool| {
                versions[first..].iter().position(is_there).map(|place| first + place)
            };
            let stored =
                |content: &Content| self.versions.iter().any(|it| it.last() == Some(content));
            match oldest(&|content| self.cache.contains(content)) {
                Some(version) => (version, true),
                None => (oldest(&stored).unwrap(), false),
            }
        }
    }

    fn check_places(contents: &Contents, naive: &Naive) {
        let live: BTreeSet<Content> =
            naive.versions.iter().filter_map(|versions| versions.last().copied()).collect();
        let stored = contents.stored();
        assert_eq!(stored.iter().map(|it| it.1).collect::<BTreeSet<_>>(), live);
        let places: BTreeSet<u32> = stored.iter().map(|it| it.0).collect();
        assert_eq!(places.len(), live.len(), "two contents in one place");
        assert!(places.is_disjoint(&contents.free));
        assert_eq!(places.len() + contents.free.len(), (BLOCKS + SPARE) as usize);
    }

    #[test]
    fn choices_and_hits_are_those_of_a_naive_cache() {
        for staleness in [0, 1, 3] {
            let mut rng = Rng::seed_from_u64(u64::from(staleness));
            let first: Vec<Content> = (0..BLOCKS).map(|_| rng.random_range(0..POOL)).collect();
            let mut contents = Contents::new(&first, POOL, 4, CACHE);
            let versions = first.into_iter().map(|content| vec![content]).collect();
            let mut naive = Naive { versions, cache: Vec::new() };
            let (mut hits, mut old) = (0, 0);
            for _ in 0..5_000 {
                let block = rng.random_range(0..BLOCKS);
                if rng.random_range(0..3) == 0 {
                    let content = rng.random_range(0..POOL);
                    let place = contents.begin(content);
                    contents.end(block, content, place);
                    naive.versions[block as usize].push(content);
                    naive.touch(content);
                    check_places(&contents, &naive);
                    continue;
                }
                let newest = contents.newest(block);
                let choice = contents.choose(block, oldest_allowed(newest, staleness)).unwrap();
                let (version, hit) = naive.choose(block, staleness as usize);
                let content = naive.versions[block as usize][version];
                assert_eq!((choice.version as usize, choice.content), (version, content));
                assert_eq!(choice.place.is_none(), hit);
                assert!(choice.version + staleness >= newest && choice.version <= newest);
                hits += u32::from(hit);
                old += u32::from(choice.version < newest);
                contents.touch(content);
                naive.touch(content);
            }
            assert!(hits > 500 && (old > 100) == (staleness > 0), "{hits} {old}");
        }
    }

    #[test]
    fn a_content_that_two_writers_store_at_once_has_one_place() {
        let mut contents = Contents::new(&[0, 0, 0], 2, 2, 2);
        let (one, two) = (contents.begin(1), contents.begin(1));
        assert!(one.is_some() && two.is_some() && one != two);
        contents.end(0, 1, one);
        contents.end(1, 1, two);
        assert_eq!(contents.place(1), one);
        assert!(two.is_some_and(|two| contents.free.contains(&two)));
        contents.end(2, 1, None);
        assert_eq!(contents.stored().len(), 1, "the first content has no reference");
    }
}
