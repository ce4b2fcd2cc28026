//! The cache on devices in memory that stall and fail on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::Env;
use tokio::sync::Semaphore;

use crate::block::BLOCK_SIZE;
use crate::chain::cache::{Admission, Cache, Entering, RamSizes, Tier};
use crate::checksum::crc32c;
use crate::device::{
    Device, DeviceError, DeviceRef, Geometry, MemoryDevice, Operation, Purpose, QueueDepth, Tallies,
};

/// An SSD whose requests can be made to wait or to fail.
#[derive(Debug)]
struct TestSsd {
    memory: MemoryDevice,
    reads_pass: Semaphore,
    writes_pass: Semaphore,
    fail_reads: AtomicBool,
    fail_writes: AtomicBool,
}

impl TestSsd {
    fn new(slots: u64) -> Arc<TestSsd> {
        Arc::new(TestSsd {
            memory: MemoryDevice::new(slots * BLOCK_SIZE as u64),
            reads_pass: Semaphore::new(Semaphore::MAX_PERMITS),
            writes_pass: Semaphore::new(Semaphore::MAX_PERMITS),
            fail_reads: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
        })
    }

    fn failure(&self, operation: Operation) -> DeviceError {
        DeviceError::io(&self.name(), operation, std::io::Error::other("broken"))
    }
}

fn close(gate: &Semaphore) {
    gate.forget_permits(Semaphore::MAX_PERMITS);
}

fn open(gate: &Semaphore) {
    gate.add_permits(1000);
}

#[async_trait]
impl Device for TestSsd {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        let _pass = self.reads_pass.acquire().await;
        if self.fail_reads.load(Ordering::Relaxed) {
            return Err(self.failure(Operation::Read));
        }
        self.memory.read(offset, len, purpose).await
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let _pass = self.writes_pass.acquire().await;
        if self.fail_writes.load(Ordering::Relaxed) {
            return Err(self.failure(Operation::Write));
        }
        self.memory.write(offset, data, purpose).await
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        self.memory.flush(purpose).await
    }

    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.memory.discard(offset, len).await
    }

    fn queue_depth(&self) -> QueueDepth {
        self.memory.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.memory.tallies()
    }

    fn name(&self) -> String {
        "test ssd".to_owned()
    }
}

fn block(content: u64) -> Bytes {
    Bytes::from(content.to_le_bytes().repeat(BLOCK_SIZE / 8))
}

fn entering(key: u64, content: Bytes) -> Entering {
    Entering { key, check: crc32c(&content), content }
}

/// Lets every task run until it waits for something.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

async fn put_all(cache: &Cache, keys: std::ops::Range<u64>) {
    for key in keys {
        cache.put_all(vec![entering(key, block(key))]);
        settle().await;
    }
}

#[tokio::test]
async fn what_is_put_is_read_from_both_tiers() {
    let ssd = TestSsd::new(64);
    let cache = Cache::new(&Env::real(), 16, Some(ssd.clone()));
    put_all(&cache, 0..80).await;
    for key in 0..80 {
        assert_eq!(cache.get(key).await, Some(block(key)), "key {key}");
    }
    let stats = cache.stats();
    assert_eq!((stats.misses, stats.ssd_block_writes), (0, 64));
    assert_eq!((stats.ram_hits, stats.ssd_hits), (16, 64));
    assert_eq!((stats.ram_blocks, stats.ssd_blocks), (16, 64));
    let tally = ssd.tallies().of(Purpose::Cache);
    assert_eq!((tally.writes, tally.flushes), (8, 0), "batches of eight, never flushed");
    assert_eq!(tally.write_bytes, 64 * BLOCK_SIZE as u64);

    put_all(&cache, 100..108).await;
    assert_eq!(cache.contains(0), None, "the least recently used block made room");
    assert_eq!(cache.get(0).await, None);
    assert_eq!(cache.get(100).await, Some(block(100)));
    assert_eq!(ssd.tallies().of(Purpose::Cache).writes, 9, "old slots are rewritten in one run");
}

#[tokio::test]
async fn a_block_removed_in_ram_never_reaches_the_ssd() {
    let ssd = TestSsd::new(64);
    let cache = Cache::new(&Env::real(), 16, Some(ssd.clone()));
    for key in 0..1000 {
        cache.put_all(vec![entering(key, block(key))]);
        if key >= 10 {
            cache.remove(key - 10);
        }
        settle().await;
    }
    assert_eq!(ssd.tallies().total().writes, 0);
    assert_eq!(cache.stats().coalesced, 990);
    assert_eq!(cache.stats().ram_blocks, 10);
}

#[tokio::test]
async fn a_block_on_its_way_is_read_from_ram_and_stays_removed() {
    let ssd = TestSsd::new(64);
    close(&ssd.writes_pass);
    let cache = Cache::new(&Env::real(), 4, Some(ssd.clone()));
    put_all(&cache, 0..12).await;
    assert_eq!(ssd.tallies().total().writes, 0);
    for key in 0..12 {
        assert_eq!(cache.get(key).await, Some(block(key)));
    }
    cache.remove(3);
    cache.remove(4);
    cache.put_all(vec![entering(4, block(1004))]);
    assert_eq!(cache.get(3).await, None);
    open(&ssd.writes_pass);
    settle().await;
    assert_eq!(cache.stats().ssd_blocks, 6, "{:?}", cache.stats());
    assert_eq!(cache.get(3).await, None);
    assert_eq!(cache.get(4).await, Some(block(1004)));
    assert_eq!(cache.get(5).await, Some(block(5)));
    assert_eq!(cache.contains(5), Some(Tier::Ssd));
}

#[tokio::test]
async fn writers_do_not_wait_for_a_stalled_ssd() {
    let ssd = TestSsd::new(64);
    close(&ssd.writes_pass);
    let cache = Cache::new(&Env::real(), 16, Some(ssd.clone()));
    put_all(&cache, 0..1000).await;
    let stats = cache.stats();
    assert_eq!(stats.ram_blocks, 16 + 4 * 8, "RAM is bounded");
    assert_eq!(stats.dropped, 1000 - stats.ram_blocks);
    assert_eq!(cache.get(999).await, Some(block(999)));
    open(&ssd.writes_pass);
    settle().await;
    put_all(&cache, 1000..1100).await;
    assert_eq!(cache.stats().dropped, stats.dropped, "nothing is dropped once it has caught up");
}

#[tokio::test]
async fn a_failing_ssd_is_taken_out_and_ram_goes_on() {
    let ssd = TestSsd::new(64);
    let cache = Cache::new(&Env::real(), 16, Some(ssd.clone()));
    put_all(&cache, 0..60).await;
    ssd.fail_writes.store(true, Ordering::Relaxed);
    put_all(&cache, 60..100).await;
    let stats = cache.stats();
    assert!(stats.ssd_failed);
    assert_eq!((stats.ssd_blocks, stats.ram_blocks), (0, 16));
    assert_eq!(cache.get(0).await, None);
    for key in 84..100 {
        assert_eq!(cache.get(key).await, Some(block(key)));
    }
}

#[tokio::test]
async fn a_failed_read_is_a_miss_and_many_take_the_ssd_out() {
    let ssd = TestSsd::new(64);
    let cache = Cache::new(&Env::real(), 16, Some(ssd.clone()));
    put_all(&cache, 0..60).await;
    ssd.fail_reads.store(true, Ordering::Relaxed);
    assert_eq!(cache.get(0).await, None);
    assert_eq!(cache.contains(0), None);
    ssd.fail_reads.store(false, Ordering::Relaxed);
    assert_eq!(cache.get(1).await, Some(block(1)));
    ssd.fail_reads.store(true, Ordering::Relaxed);
    for key in 2..9 {
        assert_eq!(cache.get(key).await, None);
        assert!(!cache.stats().ssd_failed, "one good read starts the count again");
    }
    assert_eq!(cache.get(9).await, None);
    let stats = cache.stats();
    assert!(stats.ssd_failed);
    assert_eq!((stats.ssd_read_errors, stats.misses), (9, 9));
}

#[tokio::test]
async fn a_slot_that_is_reused_under_a_reader_is_a_miss() {
    let ssd = TestSsd::new(8);
    let cache = Cache::new(&Env::real(), 0, Some(ssd.clone()));
    put_all(&cache, 0..8).await;
    assert_eq!(cache.contains(0), Some(Tier::Ssd));
    close(&ssd.reads_pass);
    let env = Env::real();
    let reader = env.spawn({
        let cache = cache.clone();
        async move { cache.get(0).await }
    });
    settle().await;
    cache.remove(0);
    cache.put_all(vec![entering(0, block(1000))]);
    settle().await;
    assert_eq!(cache.contains(0), Some(Tier::Ssd));
    open(&ssd.reads_pass);
    assert_eq!(reader.await, Some(None), "same key, same slot, other content");
    assert_eq!(cache.get(0).await, Some(block(1000)));
}

#[tokio::test]
async fn a_range_is_removed_from_every_stage() {
    let ssd = TestSsd::new(64);
    let cache = Cache::new(&Env::real(), 16, Some(ssd.clone()));
    put_all(&cache, 0..50).await;
    close(&ssd.writes_pass);
    put_all(&cache, 50..60).await;
    cache.remove_range(5..55);
    open(&ssd.writes_pass);
    settle().await;
    for key in 0..60 {
        let expected = (!(5..55).contains(&key)).then(|| block(key));
        assert_eq!(cache.get(key).await, expected, "key {key}");
    }
}

#[tokio::test]
async fn filled_alone_it_is_a_least_recently_used_read_cache() {
    let cache = Cache::with_sizes(&Env::real(), RamSizes::fixed(4), None, Admission::Always);
    for key in 0..4 {
        cache.fill(&entering(key, block(key)));
    }
    assert_eq!(cache.get(0).await, Some(block(0)));
    cache.fill(&entering(4, block(4)));
    assert_eq!(cache.contains(0), Some(Tier::Ram));
    assert_eq!(cache.contains(1), None);
    cache.fill(&entering(4, block(7)));
    assert_eq!(cache.get(4).await, Some(block(4)), "a key that is here keeps its block");
}

#[tokio::test]
async fn a_tail_cache_takes_in_what_is_missed_twice() {
    let cache = Cache::new(&Env::real(), 64, None);
    cache.put_all(vec![entering(0, block(0))]);
    for key in 1..100 {
        cache.fill(&entering(key, block(key)));
    }
    assert_eq!(cache.stats().ram_blocks, 1, "a scan leaves what was written alone");
    cache.fill(&entering(99, block(99)));
    assert_eq!(cache.get(99).await, Some(block(99)));
}

#[tokio::test]
async fn a_key_with_another_checksum_does_not_hit() {
    let cache = Cache::new(&Env::real(), 64, None);
    let here = entering(7, block(1));
    let check = here.check;
    cache.put_all(vec![here]);
    let mut found = [None, None, None, Some(block(2))];
    let keys = [(0, 7, check), (1, 7, check + 1), (2, 8, check), (3, 7, check)];
    cache.read_ram(keys.into_iter(), &mut found);
    assert_eq!(found, [Some(block(1)), None, None, Some(block(2))]);
    assert_eq!(cache.stats().ram_hits, 1);
}

#[tokio::test]
async fn a_block_that_was_read_does_not_keep_the_buffer_it_came_in() {
    let cache = Cache::with_sizes(&Env::real(), RamSizes::fixed(4), None, Admission::Always);
    let large = Bytes::from(vec![1; 64 * BLOCK_SIZE]);
    cache.fill(&entering(0, large.slice(BLOCK_SIZE..2 * BLOCK_SIZE)));
    assert!(large.is_unique());
    assert_eq!(cache.get(0).await, Some(Bytes::from(vec![1; BLOCK_SIZE])));
}

#[tokio::test]
async fn the_mover_ends_with_the_cache() {
    let ssd = TestSsd::new(64);
    let cache = Cache::new(&Env::real(), 4, Some(ssd.clone() as DeviceRef));
    close(&ssd.writes_pass);
    put_all(&cache, 0..30).await;
    drop(cache);
    settle().await;
    assert_eq!(Arc::strong_count(&ssd), 1);
}
