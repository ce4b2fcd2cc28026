//! Caches to compare with: LRU, ARC (Megiddo and Modha, FAST 2003), S3-FIFO (Yang and others, SOSP 2023), and the
//! optimum (Belady 1966). Each holds a number of blocks in one tier.

use std::collections::BTreeSet;

use thalweg_env::HashMap;

use crate::recency::Queue;

/// One step of a cache's user. Keys are positions on the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheEvent {
    /// The block is written.
    Put(u64),
    /// The block is read, and cached after a miss.
    Get(u64),
    /// The block was overwritten elsewhere: it is never read again.
    Remove(u64),
}

impl CacheEvent {
    fn key(self) -> u64 {
        let (CacheEvent::Put(key) | CacheEvent::Get(key) | CacheEvent::Remove(key)) = self;
        key
    }
}

/// A cache that decides from what it has seen.
trait Cache {
    /// Reads a cached block; false if it is not cached.
    fn hit(&mut self, key: u64) -> bool;
    /// Caches a block that is not cached.
    fn insert(&mut self, key: u64);
    /// Drops a block, and what is remembered of it.
    fn remove(&mut self, key: u64);
}

/// The share of reads that each cache of `capacity` blocks serves, with its name.
pub(super) fn hit_rates(events: &[CacheEvent], capacity: usize) -> [(&'static str, f64); 4] {
    let reads = events.iter().filter(|event| matches!(event, CacheEvent::Get(_))).count();
    let rate = |hits: u64| super::share(hits, reads as u64);
    [
        ("lru", rate(play(events, Lru { capacity, blocks: Queue::default() }))),
        ("arc", rate(play(events, AdaptiveReplacement::new(capacity)))),
        ("s3_fifo", rate(play(events, S3Fifo::new(capacity)))),
        ("optimum", rate(optimum(events, capacity))),
    ]
}

/// The reads that a cache serves.
fn play(events: &[CacheEvent], mut cache: impl Cache) -> u64 {
    let mut hits = 0;
    for event in events {
        match *event {
            CacheEvent::Put(key) => cache.insert(key),
            CacheEvent::Remove(key) => cache.remove(key),
            CacheEvent::Get(key) => match cache.hit(key) {
                true => hits += 1,
                false => cache.insert(key),
            },
        }
    }
    hits
}

/// The maximum of reads that a cache of `capacity` blocks can serve. Belady's algorithm drops the block whose next read
/// is farthest away; that may be the block that was just read or written.
fn optimum(events: &[CacheEvent], capacity: usize) -> u64 {
    let next = next_reads(events);
    let (mut by_next, mut cached, mut hits) = (BTreeSet::new(), HashMap::default(), 0);
    for (event, next) in events.iter().zip(next) {
        let key = event.key();
        if let Some(old) = cached.remove(&key) {
            by_next.remove(&(old, key));
            hits += u64::from(matches!(event, CacheEvent::Get(_)));
        }
        if let Some(next) = next {
            by_next.insert((next, key));
            cached.insert(key, next);
            if cached.len() > capacity
                && let Some((_, farthest)) = by_next.pop_last()
            {
                cached.remove(&farthest);
            }
        }
    }
    hits
}

/// The number of the event that reads each event's block next, if any does before it is put or removed.
fn next_reads(events: &[CacheEvent]) -> Vec<Option<usize>> {
    let mut coming = HashMap::default();
    let mut next = vec![None; events.len()];
    for (nth, event) in events.iter().enumerate().rev() {
        next[nth] = match event {
            CacheEvent::Remove(key) => {
                coming.remove(key);
                None
            }
            CacheEvent::Get(key) => coming.insert(*key, nth),
            CacheEvent::Put(key) => coming.remove(key),
        };
    }
    next
}

/// Drops the block that was used least recently.
#[derive(Debug)]
struct Lru {
    capacity: usize,
    blocks: Queue,
}

impl Cache for Lru {
    fn hit(&mut self, key: u64) -> bool {
        let cached = self.blocks.contains(key);
        if cached {
            self.blocks.push(key);
        }
        cached
    }

    fn insert(&mut self, key: u64) {
        self.blocks.push(key);
        if self.blocks.len() > self.capacity {
            self.blocks.pop();
        }
    }

    fn remove(&mut self, key: u64) {
        self.blocks.remove(key);
    }
}

/// Balances blocks that were used once and more often, by the hits in ghosts of both.
#[derive(Debug)]
struct AdaptiveReplacement {
    capacity: usize,
    /// The size that `once` should have.
    target: usize,
    once: Queue,
    often: Queue,
    ghosts_once: Queue,
    ghosts_often: Queue,
}

impl AdaptiveReplacement {
    fn new(capacity: usize) -> AdaptiveReplacement {
        let [once, often, ghosts_once, ghosts_often] = std::array::from_fn(|_| Queue::default());
        AdaptiveReplacement { capacity, target: 0, once, often, ghosts_once, ghosts_often }
    }

    /// Turns one block into a ghost.
    fn replace(&mut self, was_ghost_often: bool) {
        let once = self.once.len();
        let is_over = once > self.target || was_ghost_often && once == self.target;
        let (blocks, ghosts) = match once > 0 && (is_over || self.often.len() == 0) {
            true => (&mut self.once, &mut self.ghosts_once),
            false => (&mut self.often, &mut self.ghosts_often),
        };
        blocks.pop().into_iter().for_each(|key| ghosts.push(key));
    }

    /// Adapts the target to a hit in a ghost, and brings its block back.
    fn revive(&mut self, key: u64, was_often: bool) {
        let (once, often) = (self.ghosts_once.len().max(1), self.ghosts_often.len().max(1));
        self.target = match was_often {
            false => (self.target + (often / once).max(1)).min(self.capacity),
            true => self.target.saturating_sub((once / often).max(1)),
        };
        if self.once.len() + self.often.len() >= self.capacity {
            self.replace(was_often);
        }
        self.ghosts_once.remove(key);
        self.ghosts_often.remove(key);
        self.often.push(key);
    }

    fn make_room(&mut self) {
        let cached = self.once.len() + self.often.len();
        if self.once.len() + self.ghosts_once.len() >= self.capacity {
            if self.once.len() < self.capacity {
                self.ghosts_once.pop();
                if cached >= self.capacity {
                    self.replace(false);
                }
            } else {
                self.once.pop();
            }
        } else {
            if cached + self.ghosts_once.len() + self.ghosts_often.len() >= 2 * self.capacity {
                self.ghosts_often.pop();
            }
            if cached >= self.capacity {
                self.replace(false);
            }
        }
    }
}

impl Cache for AdaptiveReplacement {
    fn hit(&mut self, key: u64) -> bool {
        let cached = self.once.remove(key) || self.often.contains(key);
        if cached {
            self.often.push(key);
        }
        cached
    }

    fn insert(&mut self, key: u64) {
        if self.ghosts_once.contains(key) {
            self.revive(key, false);
        } else if self.ghosts_often.contains(key) {
            self.revive(key, true);
        } else {
            self.make_room();
            self.once.push(key);
        }
    }

    fn remove(&mut self, key: u64) {
        for queue in
            [&mut self.once, &mut self.often, &mut self.ghosts_once, &mut self.ghosts_often]
        {
            queue.remove(key);
        }
    }
}

/// A small queue that filters blocks that are used once, a main queue with second chances, and ghosts of the former.
#[derive(Debug)]
struct S3Fifo {
    capacity: usize,
    small_size: usize,
    small: Queue,
    main: Queue,
    ghosts: Queue,
    /// Uses of each cached block, up to [`MAX_USES`].
    uses: HashMap<u64, u8>,
}

/// Two bits.
const MAX_USES: u8 = 3;

impl S3Fifo {
    fn new(capacity: usize) -> S3Fifo {
        let [small, main, ghosts] = std::array::from_fn(|_| Queue::default());
        let small_size = (capacity / 10).max(1);
        S3Fifo { capacity, small_size, small, main, ghosts, uses: HashMap::default() }
    }

    fn evict(&mut self) {
        let is_small = self.small.len() >= self.small_size || self.main.len() == 0;
        if is_small && self.evict_small() {
            return;
        }
        self.evict_main();
    }

    /// Moves blocks that were used more than once to the main queue, up to the first one that was not, which leaves
    /// the cache; false if there was none.
    fn evict_small(&mut self) -> bool {
        while let Some(key) = self.small.pop() {
            let uses = self.uses.insert(key, 0).unwrap_or(0);
            if uses <= 1 {
                self.uses.remove(&key);
                self.ghosts.push(key);
                if self.ghosts.len() > self.capacity - self.small_size {
                    self.ghosts.pop();
                }
                return true;
            }
            self.main.push(key);
        }
        false
    }

    fn evict_main(&mut self) {
        while let Some(key) = self.main.pop() {
            match self.uses.remove(&key) {
                Some(uses) if uses > 0 => {
                    self.uses.insert(key, uses - 1);
                    self.main.push(key);
                }
                _ => return,
            }
        }
    }
}

impl Cache for S3Fifo {
    fn hit(&mut self, key: u64) -> bool {
        match self.uses.get_mut(&key) {
            Some(uses) => {
                *uses = (*uses + 1).min(MAX_USES);
                true
            }
            None => false,
        }
    }

    fn insert(&mut self, key: u64) {
        if self.uses.len() >= self.capacity {
            self.evict();
        }
        match self.ghosts.remove(key) {
            true => self.main.push(key),
            false => self.small.push(key),
        }
        self.uses.insert(key, 0);
    }

    fn remove(&mut self, key: u64) {
        for queue in [&mut self.small, &mut self.main, &mut self.ghosts] {
            queue.remove(key);
        }
        self.uses.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::collections::BTreeMap;

    use super::*;

    /// Events of a user that puts each key once before it reads it.
    fn events() -> impl Strategy<Value = Vec<CacheEvent>> {
        let step = (0..10u8, 0..12u64);
        proptest::collection::vec(step, 0..200).prop_map(|steps| {
            // The key of each block, if it is present.
            let (mut keys, mut next) = ([None; 12], 0);
            let mut events = Vec::new();
            for (kind, block) in steps {
                let key = &mut keys[block as usize];
                match (kind, *key) {
                    (0..3, old) => {
                        events.extend(old.map(CacheEvent::Remove));
                        *key = Some(next);
                        events.push(CacheEvent::Put(next));
                        next += 1;
                    }
                    (_, Some(key)) => events.push(CacheEvent::Get(key)),
                    (_, None) => {}
                }
            }
            events
        })
    }

    /// The most hits, by trying all that a cache may hold.
    fn by_trying(events: &[CacheEvent], capacity: usize) -> u64 {
        let mut best = BTreeMap::from([(BTreeSet::new(), 0)]);
        for event in events {
            let mut after: BTreeMap<BTreeSet<u64>, u64> = BTreeMap::new();
            for (mut held, hits) in best {
                let key = event.key();
                let was_held = held.remove(&key);
                let hits = hits + u64::from(was_held && matches!(event, CacheEvent::Get(_)));
                let mut keep = |held: BTreeSet<u64>| {
                    let most = after.entry(held).or_default();
                    *most = hits.max(*most);
                };
                keep(held.clone());
                if matches!(event, CacheEvent::Remove(_)) {
                    continue;
                }
                let mut with = held.clone();
                with.insert(key);
                if with.len() <= capacity {
                    keep(with);
                    continue;
                }
                for dropped in held {
                    let mut with = with.clone();
                    with.remove(&dropped);
                    keep(with);
                }
            }
            best = after;
        }
        best.into_values().max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn no_cache_beats_the_optimum(events in events(), capacity in 2..9usize) {
            let rates = hit_rates(&events, capacity);
            let optimum = rates[3].1;
            for (name, rate) in rates {
                prop_assert!(rate <= optimum, "{} {} above {}", name, rate, optimum);
            }
        }

        #[test]
        fn the_optimum_is_what_trying_all_finds(events in events(), capacity in 1..4usize) {
            let events = &events[..events.len().min(60)];
            prop_assert_eq!(optimum(events, capacity), by_trying(events, capacity));
        }

        #[test]
        fn caches_hold_what_fits(events in events(), capacity in 2..9usize) {
            let mut arc = AdaptiveReplacement::new(capacity);
            let mut s3 = S3Fifo::new(capacity);
            for nth in 0..events.len() {
                play(&events[nth..=nth], Borrowed(&mut arc));
                play(&events[nth..=nth], Borrowed(&mut s3));
                prop_assert!(arc.once.len() + arc.often.len() <= capacity);
                prop_assert!(arc.once.len() + arc.ghosts_once.len() <= capacity);
                prop_assert!(s3.small.len() + s3.main.len() <= capacity);
                prop_assert_eq!(s3.small.len() + s3.main.len(), s3.uses.len());
            }
        }
    }

    struct Borrowed<'a, T>(&'a mut T);

    impl<T: Cache> Cache for Borrowed<'_, T> {
        fn hit(&mut self, key: u64) -> bool {
            self.0.hit(key)
        }

        fn insert(&mut self, key: u64) {
            self.0.insert(key);
        }

        fn remove(&mut self, key: u64) {
            self.0.remove(key);
        }
    }

    /// Two blocks that are read again and again, and a scan between the reads.
    #[test]
    fn a_scan_spoils_lru_alone() {
        let scan = |round: u64| (0..8).map(move |nth| CacheEvent::Put(100 + 8 * round + nth));
        let often = [0, 1, 0, 1].map(CacheEvent::Get);
        let rounds = (0..50).flat_map(|round| often.into_iter().chain(scan(round)));
        let events: Vec<CacheEvent> = rounds.collect();
        let [lru, arc, s3_fifo, optimum] = hit_rates(&events, 6).map(|(_, rate)| rate);
        assert!(
            lru < 0.55 && arc > 0.9 && s3_fifo > 0.9 && optimum >= arc.max(s3_fifo),
            "{lru} {arc} {s3_fifo}"
        );
    }
}
