//! Reads of the newest version beside writes, and from the cache.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::memory::{MemorySource, MemoryState};
use thalweg_sim::faults::Faulty;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, BlocksExt, Lba, Versions, Write};
use thalweg_store::chain::{Chain, Cleaning, Growth, Options};

use crate::support::{Shape, content, options};

/// A block is overwritten while another version of it is read, and the device returns wrong bytes once. The read can
/// find that version no more, and must return a newer one, as a whole.
#[test]
fn a_read_whose_version_goes_returns_a_newer_one() {
    run(1, |env| async move {
        let shape = Shape { links: 1, segments_per_link: 14, ..Shape::small(Cleaning::MoveToTail) };
        let faults = parking_lot::Mutex::new(Vec::new());
        let devices = shape.devices(|name, geometry| {
            let disk = Arc::new(RamDisk::new(name, geometry));
            let (device, control) = Faulty::wrap(&env, disk);
            faults.lock().push(control);
            device
        });
        let link = faults.into_inner().swap_remove(0);
        shape.format(&env, &devices).await;
        let options = Options { tail_cache_blocks: 0, auto_clean: false, ..options() };
        let (chain, _) = Chain::open(&env, shape.parts(&devices), options).await.unwrap();
        let chain = Arc::new(chain);
        let write = |lba, stamp| vec![Write::block(Lba(lba), content(lba, stamp))];
        for lba in 0..300 {
            chain.apply(write(lba, 1)).await.unwrap();
        }
        chain.checkpoint().await.unwrap();
        let before = chain.now();
        link.slow(1.0, Duration::from_millis(10));
        // The second half of the first request.
        link.shorten_reads(1);
        let reader = chain.clone();
        let reading = env.spawn(async move { reader.read_newest(Lba(3), 2).await.unwrap() });
        env.sleep(Duration::from_millis(5)).await;
        let overwritten = chain.apply(write(3, 2)).await.unwrap();
        let (version, blocks) = reading.await.unwrap();
        assert!(version > before);
        assert_eq!(version, overwritten);
        assert_eq!(blocks, [Some(content(3, 2)), Some(content(4, 1))]);
        assert!(chain.hold(version).is_some());
        assert_eq!(chain.status().counts.damaged, 0);
    });
}

/// A machine whose memory the test sets.
#[derive(Debug)]
struct FakeMemory(parking_lot::Mutex<MemoryState>);

impl FakeMemory {
    fn set(&self, available: u64, is_short: bool) {
        *self.0.lock() = MemoryState { total: 2 << 30, available, is_short };
    }
}

impl MemorySource for FakeMemory {
    fn look(&self) -> Option<MemoryState> {
        Some(*self.0.lock())
    }
}

/// The tail cache keeps what is read while the machine has memory to spare, within the bound, and releases it within
/// a second when the machine has none.
#[test]
fn the_cache_grows_into_spare_memory_and_gives_it_back() {
    const BLOCKS: u64 = 2000;
    const LEAST: u64 = 64;
    run(1, |env| async move {
        let shape = Shape {
            links: 1,
            segments_per_link: 40,
            blocks: BLOCKS,
            ..Shape::small(Cleaning::MoveToTail)
        };
        let devices = shape.devices(|name, geometry| Arc::new(RamDisk::new(name, geometry)));
        shape.format(&env, &devices).await;
        let memory = Arc::new(FakeMemory(parking_lot::Mutex::default()));
        memory.set(1 << 30, false);
        let growth = Growth { most: Some(1500 * 4096), source: memory.clone() };
        let options = Options {
            tail_cache_blocks: LEAST as usize,
            auto_clean: false,
            growth: Some(growth),
            ..options()
        };
        let (chain, _) = Chain::open(&env, shape.parts(&devices), options).await.unwrap();
        let cache = || chain.status().tail_cache;
        for lba in 0..1000 {
            chain.apply(vec![Write::block(Lba(lba), content(lba, 1))]).await.unwrap();
        }
        chain.checkpoint().await.unwrap();
        assert_eq!((cache().ram_limit_blocks, cache().ram_blocks), (LEAST, LEAST));
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(cache().ram_limit_blocks, 1500, "the upper bound");
        let read_all = async || {
            for lba in 0..1000 {
                let (_, blocks) = chain.read_newest(Lba(lba), 1).await.unwrap();
                assert_eq!(blocks, [Some(content(lba, 1))]);
            }
        };
        read_all().await;
        assert_eq!(cache().ram_blocks, 1000, "each block is kept at its first read");
        let misses = cache().misses;
        read_all().await;
        assert_eq!(cache().misses, misses);
        // Below the reserve, an eighth of the machine's memory, by less than the cache holds.
        memory.set((256 << 20) - 300 * 4096, false);
        env.sleep(Duration::from_millis(500)).await;
        assert_eq!((cache().ram_limit_blocks, cache().ram_blocks), (700, 700));
        memory.set(1 << 30, true);
        env.sleep(Duration::from_millis(500)).await;
        assert_eq!(cache().ram_blocks, 525, "tasks waited for memory");
        memory.set(0, false);
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!((cache().ram_limit_blocks, cache().ram_blocks), (LEAST, LEAST));
        read_all().await;
        assert_eq!(cache().ram_blocks, LEAST);
        chain.close().await.unwrap();
    });
}
