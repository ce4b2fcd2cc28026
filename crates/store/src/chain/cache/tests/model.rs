//! The policy against a reference that keeps both tiers as plain lists.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::chain::cache::ghosts::Ghosts;
use crate::chain::cache::policy::{Admission, Found, Move, Policy, RamSizes, Tier};
use crate::chain::cache::trials::{self, Refill, Trials};

#[derive(Clone, Debug)]
enum Op {
    Put(u64),
    Fill(u64),
    Get(u64),
    FailRead(u64),
    Remove(u64),
    TakeBatch,
    EndBatch(bool),
    TakeOutSsd,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..40u64;
    prop_oneof![
        8 => key.clone().prop_map(Op::Put),
        2 => key.clone().prop_map(Op::Fill),
        6 => key.clone().prop_map(Op::Get),
        1 => key.clone().prop_map(Op::FailRead),
        3 => key.prop_map(Op::Remove),
        4 => Just(Op::TakeBatch),
        4 => prop::bool::weighted(0.9).prop_map(Op::EndBatch),
    ]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let last = prop::collection::vec(op(), 0..30);
    (prop::collection::vec(op(), 0..300), prop::option::weighted(0.1, last)).prop_map(
        |(mut ops, after_failure)| {
            if let Some(after) = after_failure {
                ops.push(Op::TakeOutSsd);
                ops.extend(after);
            }
            ops
        },
    )
}

/// A block as the lists of the reference have it.
#[derive(Clone, Copy)]
struct Block {
    key: u64,
    content: u32,
    used: u32,
}

/// Every list runs from oldest to youngest. The trials are the policy's own: what they choose is tested apart.
struct Reference {
    trials: Option<Trials>,
    now: u32,
    ram_blocks: usize,
    slots: usize,
    batch: usize,
    resident: Vec<Block>,
    waiting: Vec<Block>,
    writing: Vec<Block>,
    /// Blocks of the batch that were removed: they still occupy room.
    cancelled: usize,
    /// On the SSD, not read there.
    unread: Vec<Block>,
    /// On the SSD, read there.
    read: Vec<Block>,
    ghosts: Ghosts,
    coalesced: u64,
    dropped: u64,
    ssd_block_writes: u64,
}

fn position(list: &[Block], key: u64) -> Option<usize> {
    list.iter().position(|block| block.key == key)
}

impl Reference {
    fn new(ram_blocks: usize, slots: u32, admission: Admission) -> Reference {
        let blocks = ram_blocks + slots as usize;
        Reference {
            trials: (admission == Admission::Adaptive).then(|| Trials::new(blocks)),
            now: 0,
            ram_blocks,
            slots: slots as usize,
            batch: (slots as usize / 8).clamp(1, 256),
            resident: Vec::new(),
            waiting: Vec::new(),
            writing: Vec::new(),
            cancelled: 0,
            unread: Vec::new(),
            read: Vec::new(),
            ghosts: Ghosts::new(blocks),
            coalesced: 0,
            dropped: 0,
            ssd_block_writes: 0,
        }
    }

    fn strategy(&self) -> trials::Strategy {
        self.trials.as_ref().map_or(trials::Strategy::OF_READ_CACHE, Trials::best)
    }

    fn put(&mut self, key: u64, content: u32) {
        self.remove(key);
        self.insert(key, content);
        self.trials.iter_mut().for_each(|trials| trials.put(key, self.now));
    }

    fn insert(&mut self, key: u64, content: u32) {
        self.now += 1;
        self.resident.push(Block { key, content, used: self.now });
        if self.resident.len() > self.ram_blocks {
            let oldest = self.resident.remove(0);
            let under_way = self.waiting.len() + self.writing.len() + self.cancelled;
            if self.slots > 0 && under_way < 4 * self.batch {
                self.waiting.push(oldest);
            } else if self.slots > 0 {
                self.dropped += 1;
            }
        }
    }

    fn fill(&mut self, key: u64, content: u32) {
        if self.locate(key).is_some() {
            return;
        }
        let met = self.ghosts.meet(key);
        match self.strategy().refill {
            Refill::Never => {}
            Refill::SecondMiss if !met => {}
            _ => self.insert(key, content),
        }
    }

    fn remove(&mut self, key: u64) {
        self.trials.iter_mut().for_each(|trials| trials.remove(key));
        for list in [&mut self.resident, &mut self.waiting] {
            if let Some(at) = position(list, key) {
                list.remove(at);
                self.coalesced += 1;
            }
        }
        if let Some(at) = position(&self.writing, key) {
            self.writing.remove(at);
            self.cancelled += 1;
        }
        self.drop_from_ssd(key);
    }

    fn drop_from_ssd(&mut self, key: u64) {
        [&mut self.unread, &mut self.read]
            .into_iter()
            .for_each(|list| list.retain(|block| block.key != key));
    }

    fn get(&mut self, key: u64) -> Option<(Tier, u32)> {
        self.now += 1;
        let now = self.now;
        self.trials.iter_mut().for_each(|trials| trials.get(key, now));
        if let Some(at) = position(&self.resident, key) {
            let block = Block { used: now, ..self.resident.remove(at) };
            self.resident.push(block);
            return Some((Tier::Ram, block.content));
        }
        for list in [&mut self.waiting, &mut self.writing] {
            if let Some(at) = position(list, key) {
                list[at].used = now;
                return Some((Tier::Ram, list[at].content));
            }
        }
        let found = [&self.unread, &self.read].into_iter().flatten().find(|it| it.key == key);
        let block = Block { used: now, ..*found? };
        self.drop_from_ssd(key);
        self.read.push(block);
        Some((Tier::Ssd, block.content))
    }

    fn locate(&self, key: u64) -> Option<Tier> {
        let in_ram = [&self.resident, &self.waiting, &self.writing];
        if in_ram.iter().any(|list| position(list, key).is_some()) {
            return Some(Tier::Ram);
        }
        let on_ssd = [&self.unread, &self.read];
        on_ssd.iter().any(|list| position(list, key).is_some()).then_some(Tier::Ssd)
    }

    fn ssd_len(&self) -> usize {
        self.unread.len() + self.read.len()
    }

    /// Takes a batch; the policy has none in flight.
    fn take_batch(&mut self) {
        if self.waiting.len() < self.batch {
            return;
        }
        self.writing = self.waiting.drain(..self.batch).collect();
        let favour = self.strategy().favour;
        while self.ssd_len() > self.slots - self.batch {
            let age = |list: &[Block]| list.first().map(|block| self.now - block.used);
            match (age(&self.unread), age(&self.read)) {
                (Some(unread), Some(read)) if read <= unread * favour => self.unread.remove(0),
                (_, Some(_)) => self.read.remove(0),
                _ => self.unread.remove(0),
            };
        }
    }

    fn end_batch(&mut self, written: bool) {
        let alive = std::mem::take(&mut self.writing);
        if written {
            self.ssd_block_writes += (alive.len() + self.cancelled) as u64;
            if self.slots > 0 {
                self.unread.extend(alive);
            }
        }
        self.cancelled = 0;
    }

    fn take_out_ssd(&mut self) {
        self.slots = 0;
        self.trials = self.trials.take().map(|_| Trials::new(self.ram_blocks));
        self.unread.clear();
        self.read.clear();
        self.waiting.clear();
    }
}

/// The policy with what a device would hold.
struct Subject {
    policy: Policy<u32>,
    device: BTreeMap<u32, u32>,
    in_flight: Vec<Move<u32>>,
}

impl Subject {
    fn get(&mut self, key: u64) -> Option<(Tier, u32)> {
        match self.policy.get(key) {
            Found::Ram(content) => Some((Tier::Ram, content)),
            Found::Ssd(at) => {
                assert!(self.policy.read_done(key, at, true));
                Some((Tier::Ssd, self.device[&at.slot]))
            }
            Found::Miss => None,
        }
    }

    fn fail_read(&mut self, key: u64) {
        if let Found::Ssd(at) = self.policy.get(key) {
            assert!(!self.policy.read_done(key, at, false));
        }
    }

    fn take_batch(&mut self) {
        self.in_flight = self.policy.take_batch();
        assert!(self.in_flight.is_sorted_by_key(|block| block.slot));
        for block in &self.in_flight {
            // What is being written can be read back as anything.
            self.device.insert(block.slot, u32::MAX);
        }
    }

    fn end_batch(&mut self, written: bool) {
        for block in std::mem::take(&mut self.in_flight) {
            if written {
                self.device.insert(block.slot, block.value);
            }
            self.policy.write_done(block, written);
        }
    }
}

fn run(ram_blocks: usize, slots: u32, admission: Admission, ops: Vec<Op>) {
    let mut reference = Reference::new(ram_blocks, slots, admission);
    let mut subject = Subject {
        policy: Policy::new(RamSizes::fixed(ram_blocks), slots, admission),
        device: BTreeMap::new(),
        in_flight: Vec::new(),
    };
    for (content, op) in (0u32..).zip(ops) {
        match op {
            Op::Put(key) => {
                reference.put(key, content);
                subject.policy.put(key, content);
            }
            Op::Fill(key) => {
                reference.fill(key, content);
                subject.policy.fill(key, content);
            }
            Op::Get(key) => assert_eq!(subject.get(key), reference.get(key)),
            Op::FailRead(key) => {
                if let Some((Tier::Ssd, _)) = reference.get(key) {
                    reference.drop_from_ssd(key);
                }
                subject.fail_read(key);
            }
            Op::Remove(key) => {
                let tier = reference.locate(key);
                reference.remove(key);
                assert_eq!(subject.policy.remove(key), tier);
            }
            Op::TakeBatch if subject.in_flight.is_empty() => {
                reference.take_batch();
                subject.take_batch();
            }
            Op::TakeBatch => {}
            Op::EndBatch(written) => {
                reference.end_batch(written);
                subject.end_batch(written);
            }
            Op::TakeOutSsd => {
                reference.take_out_ssd();
                subject.policy.take_out_ssd();
            }
        }
        compare(&subject.policy, &reference);
    }
}

fn compare(policy: &Policy<u32>, reference: &Reference) {
    for key in 0..40 {
        assert_eq!(policy.locate(key), reference.locate(key), "key {key}");
    }
    let stats = policy.stats();
    let in_ram = reference.resident.len() + reference.waiting.len() + reference.writing.len();
    assert_eq!(stats.ram_blocks, in_ram as u64);
    assert_eq!(stats.ssd_blocks, reference.ssd_len() as u64);
    assert_eq!(stats.coalesced, reference.coalesced);
    assert_eq!(stats.dropped, reference.dropped);
    assert_eq!(stats.ssd_block_writes, reference.ssd_block_writes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_policy_is_its_reference(
        ram_blocks in 0..12usize,
        slots in prop_oneof![Just(0), 1..20u32, 20..60u32],
        is_adaptive in any::<bool>(),
        ops in ops(),
    ) {
        let admission = if is_adaptive { Admission::Adaptive } else { Admission::Always };
        run(ram_blocks, slots, admission, ops);
    }
}

#[test]
fn a_sweep_drops_what_it_is_asked_for() {
    let mut policy = Policy::new(RamSizes::fixed(10), 40, Admission::Adaptive);
    for key in 0..50 {
        policy.put(key, ());
        for block in policy.take_batch() {
            policy.write_done(block, true);
        }
    }
    assert!(policy.stats().ssd_blocks >= 30);
    let doomed = |key| (5..45).contains(&key);
    for from in 0.. {
        if !policy.sweep_ram(from * 3, 3, doomed) {
            break;
        }
    }
    for from in 0.. {
        if !policy.sweep_ssd(from * 3, 3, doomed) {
            break;
        }
    }
    for key in 0..50 {
        assert_eq!(policy.locate(key).is_none(), doomed(key), "key {key}");
    }
}
