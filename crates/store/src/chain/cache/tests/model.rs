//! The policy against a reference that keeps both tiers as plain lists.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::chain::cache::ghosts::Ghosts;
use crate::chain::cache::policy::{Found, Move, Policy, RamOrder, RamSizes, Tier};

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

/// Every list runs from oldest to youngest and holds (key, content).
struct Reference {
    order: RamOrder,
    ram_blocks: usize,
    slots: usize,
    batch: usize,
    resident: Vec<(u64, u32)>,
    waiting: Vec<(u64, u32)>,
    writing: Vec<(u64, u32)>,
    /// Blocks of the batch that were removed: they still occupy room.
    cancelled: usize,
    ssd: Vec<(u64, u32)>,
    ghosts: Ghosts,
    coalesced: u64,
    dropped: u64,
    ssd_block_writes: u64,
}

fn position(list: &[(u64, u32)], key: u64) -> Option<usize> {
    list.iter().position(|block| block.0 == key)
}

impl Reference {
    fn new(ram_blocks: usize, slots: u32, order: RamOrder) -> Reference {
        Reference {
            order,
            ram_blocks,
            slots: slots as usize,
            batch: (slots as usize / 8).clamp(1, 256),
            resident: Vec::new(),
            waiting: Vec::new(),
            writing: Vec::new(),
            cancelled: 0,
            ssd: Vec::new(),
            ghosts: Ghosts::new(ram_blocks + slots as usize),
            coalesced: 0,
            dropped: 0,
            ssd_block_writes: 0,
        }
    }

    fn insert(&mut self, key: u64, content: u32) {
        self.resident.push((key, content));
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
        let missing = self.locate(key).is_none();
        if missing && (self.order == RamOrder::Lru || self.ghosts.meet(key)) {
            self.insert(key, content);
        }
    }

    fn remove(&mut self, key: u64) {
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
        self.ssd.retain(|block| block.0 != key);
    }

    fn get(&mut self, key: u64) -> Option<(Tier, u32)> {
        if let Some(at) = position(&self.resident, key) {
            let block = self.resident[at];
            if self.order == RamOrder::Lru {
                self.resident.remove(at);
                self.resident.push(block);
            }
            return Some((Tier::Ram, block.1));
        }
        for list in [&self.waiting, &self.writing] {
            if let Some(at) = position(list, key) {
                return Some((Tier::Ram, list[at].1));
            }
        }
        let block = self.ssd.remove(position(&self.ssd, key)?);
        self.ssd.push(block);
        Some((Tier::Ssd, block.1))
    }

    fn locate(&self, key: u64) -> Option<Tier> {
        let in_ram = [&self.resident, &self.waiting, &self.writing];
        if in_ram.iter().any(|list| position(list, key).is_some()) {
            return Some(Tier::Ram);
        }
        position(&self.ssd, key).map(|_| Tier::Ssd)
    }

    /// Takes a batch; the policy has none in flight.
    fn take_batch(&mut self) {
        if self.waiting.len() >= self.batch {
            self.writing = self.waiting.drain(..self.batch).collect();
            let keep = self.slots - self.batch;
            let evicted = self.ssd.len().saturating_sub(keep);
            self.ssd.drain(..evicted);
        }
    }

    fn end_batch(&mut self, written: bool) {
        let alive = std::mem::take(&mut self.writing);
        if written {
            self.ssd_block_writes += (alive.len() + self.cancelled) as u64;
            if self.slots > 0 {
                self.ssd.extend(alive);
            }
        }
        self.cancelled = 0;
    }

    fn take_out_ssd(&mut self) {
        self.slots = 0;
        self.ssd.clear();
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

fn run(ram_blocks: usize, slots: u32, order: RamOrder, ops: Vec<Op>) {
    let mut reference = Reference::new(ram_blocks, slots, order);
    let mut subject = Subject {
        policy: Policy::new(RamSizes::fixed(ram_blocks), slots, order),
        device: BTreeMap::new(),
        in_flight: Vec::new(),
    };
    for (content, op) in (0u32..).zip(ops) {
        match op {
            Op::Put(key) => {
                reference.remove(key);
                reference.insert(key, content);
                subject.policy.put(key, content);
            }
            Op::Fill(key) => {
                reference.fill(key, content);
                subject.policy.fill(key, content);
            }
            Op::Get(key) => assert_eq!(subject.get(key), reference.get(key)),
            Op::FailRead(key) => {
                if let Some((Tier::Ssd, _)) = reference.get(key) {
                    reference.remove(key);
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
    assert_eq!(stats.ssd_blocks, reference.ssd.len() as u64);
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
        lru in any::<bool>(),
        ops in ops(),
    ) {
        let order = if lru { RamOrder::Lru } else { RamOrder::Fifo };
        run(ram_blocks, slots, order, ops);
    }
}

#[test]
fn a_sweep_drops_what_it_is_asked_for() {
    let mut policy = Policy::new(RamSizes::fixed(10), 40, RamOrder::Fifo);
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
