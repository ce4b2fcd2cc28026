//! Blocks to keep in memory on request.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{Blocks, BlocksExt, ByteRanges, Hints, Lba, Write};
use thalweg_store::chain::{Chain, Cleaning, Options};
use thalweg_store::device::Device;

use crate::support::{Shape, content, options};

/// A chain whose other caches keep nothing, and its links, which count reads.
async fn chain(env: &Env, most: usize) -> (Chain, Vec<Arc<RamDisk>>) {
    let shape = Shape { links: 1, segments_per_link: 14, ..Shape::small(Cleaning::MoveToTail) };
    let (devices, disks) = shape.ram_disks();
    shape.format(env, &devices).await;
    let options =
        Options { tail_cache_blocks: 0, auto_clean: false, please_cache_blocks: most, ..options() };
    let (chain, _) = Chain::open(env, shape.parts(&devices), options).await.unwrap();
    for lba in 0..600 {
        chain.apply(vec![Write::block(Lba(lba), content(lba, 1))]).await.unwrap();
    }
    chain.checkpoint().await.unwrap();
    (chain, disks)
}

/// Reads that reach a device while `lba` is read, whose content must have the stamp `stamp`.
async fn reads(chain: &Chain, disks: &[Arc<RamDisk>], lba: u64, stamp: u64) -> u64 {
    let count = || disks.iter().map(|disk| disk.tallies().total().reads).sum::<u64>();
    let before = count();
    let found = chain.read_newest(Lba(lba), 1).await.unwrap().1.pop().flatten();
    assert!(found == Some(content(lba, stamp)), "block {lba}");
    count() - before
}

#[test]
fn a_wished_block_is_read_once_and_stays_as_it_moves() {
    run(1, |env| async move {
        let (chain, disks) = chain(&env, 100).await;
        assert_eq!(reads(&chain, &disks, 5, 1).await, 1);
        assert_eq!(reads(&chain, &disks, 5, 1).await, 1, "nobody wished for it");
        chain.please_cache(Lba(5));
        assert_eq!(reads(&chain, &disks, 5, 1).await, 1);
        assert_eq!(reads(&chain, &disks, 5, 1).await, 0);
        let moved = chain.status().counts.blocks_moved;
        assert_eq!(chain.clean(1).await.unwrap(), 1);
        assert!(chain.status().counts.blocks_moved > moved);
        chain.checkpoint().await.unwrap();
        assert_eq!(reads(&chain, &disks, 5, 1).await, 0, "after cleaning");
        assert_eq!(chain.status().counts.wish_hits, 2);
    });
}

#[test]
fn what_is_written_to_a_wished_block_stays() {
    run(2, |env| async move {
        let (chain, disks) = chain(&env, 100).await;
        chain.please_cache(Lba(5));
        chain.apply(vec![Write::block(Lba(5), content(5, 2))]).await.unwrap();
        chain.checkpoint().await.unwrap();
        assert_eq!(reads(&chain, &disks, 5, 2).await, 0);
        // By a part: what changed is little, and the block is settled afterwards.
        let changed = ByteRanges::from(8..16);
        let write = Write { changed, ..Write::block(Lba(5), content(5, 2)) };
        chain.apply(vec![write]).await.unwrap();
        assert_eq!(chain.status().minis.slots, 1);
        chain.checkpoint().await.unwrap();
        assert_eq!(reads(&chain, &disks, 5, 2).await, 0);
        chain.discard(Lba(5), 1).await.unwrap();
        let found = chain.read_newest(Lba(5), 1).await.unwrap().1;
        assert_eq!(found, [None]);
    });
}

#[test]
fn of_too_many_wishes_those_read_last_stay() {
    run(3, |env| async move {
        let (chain, disks) = chain(&env, 10).await;
        for lba in 0..400 {
            chain.please_cache(Lba(lba));
            reads(&chain, &disks, lba, 1).await;
        }
        assert_eq!(chain.status().wished_blocks, 10);
        let mut from_devices = 0;
        for lba in (390..400).chain(0..10) {
            from_devices += reads(&chain, &disks, lba, 1).await;
        }
        assert_eq!(from_devices, 10);
    });
}
