//! Mini-logs: the cost of small writes, and damage to their blocks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::content::Content;
use thalweg_sim::model::BlockModel;
use thalweg_sim::ramdisk::RamDisk;
use thalweg_sim::runtime::run;
use thalweg_store::block::{
    BLOCK_SIZE, Blocks, BlocksExt, ByteRanges, Lba, StoreError, Version, Write,
};
use thalweg_store::chain::{Chain, ChainError, Cleaning, Options, Placement, Rebuild};
use thalweg_store::device::{Device, DeviceRef, Purpose, Tallies};

use crate::support::{Shape, content, lose_checkpoints, options, part, read_all};

/// No background work but that of the test.
fn patient() -> Options {
    Options { commit_interval: Duration::from_secs(3600), auto_clean: false, ..options() }
}

/// A chain whose map lies on its only link, on a device that counts.
async fn on_one_device(env: &Env, sector: u32, options: Options) -> (Chain, Arc<RamDisk>) {
    let shape = Shape {
        links: 1,
        segments_per_link: 12,
        blocks: 900,
        sector,
        cleaning: Cleaning::MoveToTail,
        placement: Placement::Chained,
        map_on_link: true,
    };
    let (devices, disks) = shape.ram_disks();
    shape.format(env, &devices).await;
    let (chain, _) = Chain::open(env, shape.parts(&devices), options).await.unwrap();
    for lba in 0..500 {
        chain.apply(vec![Write::block(Lba(lba), content(lba, 1))]).await.unwrap();
    }
    chain.checkpoint().await.unwrap();
    let disk = disks[0].clone();
    (chain, disk)
}

/// Changes a few bytes of a block.
async fn change(chain: &Chain, lba: u64, ranges: &[(usize, usize)]) -> Write {
    let old = chain.read(Lba(lba), 1, chain.now()).await.unwrap().pop().flatten();
    let mut new = old.map_or_else(|| vec![0; BLOCK_SIZE], |old| old.to_vec());
    let mut changed = ByteRanges::none();
    for (start, end) in ranges {
        new[*start..*end].iter_mut().for_each(|byte| *byte ^= 0x55);
        changed.add(*start..*end);
    }
    Write { content: Some(Bytes::from(new)), changed, ..Write::block(Lba(lba), Bytes::new()) }
}

/// The write of a tree that puts 174 bytes: into a page, and its head.
async fn put(chain: &Chain, lba: u64) -> Vec<Write> {
    let page = change(chain, lba, &[(0, 16), (600, 790)]).await;
    vec![page, change(chain, lba + 1, &[(8, 16)]).await]
}

fn cost(disk: &RamDisk, before: &Tallies) -> (u64, u64, u64) {
    let since = disk.tallies().since(before);
    let total = since.total();
    (since.of(Purpose::UserData).write_bytes, total.write_bytes, total.flushes)
}

#[test]
fn a_lone_change_costs_two_sectors_and_a_flush() {
    run(1, |env| async move {
        for (sector, data) in [(512, 512), (4096, 4096)] {
            let (chain, disk) = on_one_device(&env, sector, patient()).await;
            let writes = put(&chain, 7).await;
            let before = disk.tallies();
            let version = chain.apply(writes).await.unwrap();
            chain.sync(version).await.unwrap();
            assert_eq!(cost(&disk, &before), (data, data + u64::from(sector), 1));
        }
    });
}

#[test]
fn changes_of_a_round_share_blocks() {
    run(2, |env| async move {
        let (chain, disk) = on_one_device(&env, 512, patient()).await;
        let before = disk.tallies();
        let mut version = chain.now();
        for number in 0..64 {
            version = chain.apply(put(&chain, number * 7).await).await.unwrap();
        }
        chain.sync(version).await.unwrap();
        let (data, all, flushes) = cost(&disk, &before);
        // 214 bytes of each change, 28 of its heads, and the unused rest of each block.
        assert!((64 * 242..64 * 260).contains(&data), "{data}");
        assert!(all / 64 <= 414, "{all}");
        assert_eq!(flushes, 1);
        assert_eq!(chain.status().minis.slots, 128);
        chain.checkpoint().await.unwrap();
        let minis = chain.status().minis;
        assert_eq!((minis.slots, minis.settled, minis.fragments), (0, 128, 128));
    });
}

/// Changes blocks at random, eight in a round, and pauses after each round; returns the checkpoints that were written and
/// the blocks that they settled.
async fn rewrite(env: &Env, chain: &Chain, blocks: u64, rounds: u64) -> (u64, u64) {
    let mut rng = env.rng();
    let before = chain.status();
    for _ in 0..rounds {
        let mut version = chain.now();
        for _ in 0..8 {
            let lba = rng.random_range(0..blocks);
            let write = change(chain, lba, &[(100, 300)]).await;
            version = chain.apply(vec![write]).await.unwrap();
        }
        chain.sync(version).await.unwrap();
        env.sleep(Duration::from_millis(1)).await;
    }
    let after = chain.status();
    (
        after.counts.checkpoints - before.counts.checkpoints,
        after.minis.settled - before.minis.settled,
    )
}

#[test]
fn blocks_that_are_written_again_and_again_are_settled_little_more_than_once_by_a_checkpoint() {
    run(9, |env| async move {
        // The blocks take more than half of the slots, at which settling may begin.
        let options = Options { mini_blocks: 512, mini_slots: 700, ..patient() };
        let (chain, _) = on_one_device(&env, 512, options).await;
        let (checkpoints, settled) = rewrite(&env, &chain, 400, 8000).await;
        assert!(settled <= 8000, "{settled} blocks by {checkpoints} checkpoints");
    });
}

#[test]
fn they_can_be_turned_off_and_large_changes_have_no_part_in_them() {
    run(3, |env| async move {
        let off = Options { mini_bytes: 0, ..patient() };
        for (options, ranges) in [(off, vec![(0, 9)]), (patient(), vec![(0, 1000), (2000, 2600)])] {
            let (chain, disk) = on_one_device(&env, 512, options).await;
            let writes = vec![change(&chain, 3, &ranges).await];
            let before = disk.tallies();
            let version = chain.apply(writes).await.unwrap();
            chain.sync(version).await.unwrap();
            assert_eq!(cost(&disk, &before).0, BLOCK_SIZE as u64);
            assert_eq!(chain.status().minis.fragments, 0);
        }
    });
}

/// A chain that was synced and not closed, on disks that can be copied.
struct Rest {
    shape: Shape,
    disks: Vec<Arc<RamDisk>>,
    model: BlockModel,
    /// The newest version of each round, ascending.
    rounds: Vec<Version>,
}

impl Rest {
    /// Whole blocks, a checkpoint, and some rounds of changes.
    async fn new(env: &Env) -> Rest {
        let shape = Shape { blocks: 60, ..Shape::small(Cleaning::MoveToTail) };
        let (devices, disks) = shape.ram_disks();
        shape.format(env, &devices).await;
        let (chain, _) = Chain::open(env, shape.parts(&devices), patient()).await.unwrap();
        let mut model = BlockModel::new(shape.blocks);
        for lba in 0..40 {
            let write = [Write::block(Lba(lba), content(lba, 1))];
            model.apply(&write);
            chain.apply(write.to_vec()).await.unwrap();
        }
        chain.checkpoint().await.unwrap();
        let mut rng = env.rng();
        let mut rounds = Vec::new();
        for round in 0..6 {
            for number in 0..9 {
                let lba = (round * 5 + number * 3) % shape.blocks;
                let old = model.read(Lba(lba), model.now());
                let write = [part(&mut rng, lba, old.as_ref(), round * 9 + number)];
                model.apply(&write);
                chain.apply(write.to_vec()).await.unwrap();
            }
            chain.sync(chain.now()).await.unwrap();
            rounds.push(chain.now());
        }
        Rest { shape, disks, model, rounds }
    }

    /// Copies of the devices in which one bit of a block has flipped.
    fn rotten(&self, disk: usize, page: u64) -> Vec<DeviceRef> {
        let copy = |(number, from): (usize, &Arc<RamDisk>)| {
            let mut content: Content = from.content();
            if number == disk {
                // Behind the heads of a mini-log block: only its checksum reveals it.
                let at = page * BLOCK_SIZE as u64 + 40;
                let byte = content.read(at, 1)[0];
                content.write(at, &[byte ^ 4]);
            }
            Arc::new(RamDisk::with_content(&from.name(), from.geometry(), content)) as DeviceRef
        };
        self.disks.iter().enumerate().map(copy).collect()
    }

    /// Every block is that of the version or an error; returns the number of errors.
    async fn check(&self, chain: &Chain) -> usize {
        let now = chain.now();
        let mut damaged = 0;
        for lba in (0..self.shape.blocks).map(Lba) {
            match chain.read(lba, 1, now).await {
                Ok(found) => assert_eq!(found[0], self.model.read(lba, now), "block {}", lba.0),
                Err(StoreError::Corrupt { .. }) => damaged += 1,
                Err(other) => panic!("{other}"),
            }
        }
        damaged
    }
}

/// With each block of the links damaged in turn: durable content is there, or the volume does not open, or
/// reads of the block fail, now and later.
#[test]
fn rot_is_damage() {
    run(4, |env| async move {
        let rest = Rest::new(&env).await;
        let (mut refused, mut cut, mut damaged, mut unharmed) = (0, 0, 0, 0);
        for disk in 0..rest.shape.links {
            let content = rest.disks[disk].content();
            let pages = rest.shape.link_bytes() / BLOCK_SIZE as u64;
            for page in (0..pages).filter(|page| content.is_stored(*page)) {
                let devices = rest.rotten(disk, page);
                let opened = Chain::open(&env, rest.shape.parts(&devices), patient()).await;
                let chain = match opened {
                    Ok((chain, _)) => chain,
                    Err(ChainError::Damaged(_)) => {
                        refused += 1;
                        continue;
                    }
                    Err(other) => panic!("{other}"),
                };
                // Whether the last round was written is unknown.
                let last = rest.rounds.len() - 1;
                assert!(chain.now() >= rest.rounds[last - 1], "{disk} {page}");
                cut += u64::from(chain.now() < rest.rounds[last]);
                let bad = rest.check(&chain).await;
                assert!(bad <= 1);
                damaged += bad;
                unharmed += usize::from(bad == 0);
                chain.close().await.unwrap();
                let (chain, _) =
                    Chain::open(&env, rest.shape.parts(&devices), patient()).await.unwrap();
                assert_eq!(rest.check(&chain).await, bad);
                let report = chain.scrub(&|_, _| {}).await.unwrap();
                assert_eq!(report.damaged, bad as u64);
            }
        }
        let tally = (refused, cut, damaged, unharmed);
        assert!(refused > 5 && cut > 0 && damaged > 10 && unharmed > 0, "{tally:?}");
    });
}

/// Once its fragments have places of their own, a mini-log block is not needed, though the map still has its
/// entry.
#[test]
fn rot_of_what_has_served_is_no_loss() {
    run(6, |env| async move {
        let rest = Rest::new(&env).await;
        let devices: Vec<_> = rest.disks.iter().map(|disk| disk.clone() as DeviceRef).collect();
        let shape = &rest.shape;
        let (chain, found) = Chain::open(&env, shape.parts(&devices), patient()).await.unwrap();
        assert!(found.minis > 0 && chain.status().minis.slots == 0);
        drop(chain);
        let mut harmed = 0;
        for disk in 0..shape.links {
            let content = rest.disks[disk].content();
            let pages = (0..shape.link_bytes() / BLOCK_SIZE as u64).filter(|page| {
                // The head of a mini-log block names the version of the first fragment.
                let head = content.read(page * BLOCK_SIZE as u64 + 4, 8);
                let first = Version(u64::from_le_bytes(head[..].try_into().unwrap()));
                first > Version(40) && first <= rest.model.now()
            });
            for page in pages {
                harmed += 1;
                let devices = rest.rotten(disk, page);
                lose_checkpoints(&shape.parts(&devices).map).await;
                let how = Rebuild::default();
                Chain::rebuild(&env, shape.parts(&devices), how, &|_, _| {}).await.unwrap();
                let (chain, _) = Chain::open(&env, shape.parts(&devices), patient()).await.unwrap();
                assert_eq!(rest.check(&chain).await, 0);
            }
        }
        assert_eq!(harmed, found.minis);
    });
}

/// A read just after a change, from memory, returns the same as a later one from a device.
#[test]
fn settled_blocks_are_read_from_their_own_places() {
    run(5, |env| async move {
        let (chain, _) = on_one_device(&env, 512, patient()).await;
        for lba in 490..510 {
            let write = change(&chain, lba, &[(3, 9), (4000, 4096)]).await;
            chain.apply(vec![write]).await.unwrap();
        }
        let before = read_all(&chain, chain.now()).await.unwrap();
        assert!(before[505].is_some(), "a part of a block that held nothing");
        chain.checkpoint().await.unwrap();
        assert_eq!(read_all(&chain, chain.now()).await.unwrap(), before);
    });
}
