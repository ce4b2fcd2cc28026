//! A chain's requests to its links' devices: roles, and no cleaning on the tail's drive.

use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_sim::busy::Kind;
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_sim::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, Write};
use thalweg_store::chain::{Chain, Cleaning, Create, Link, Options, Parts};
use thalweg_store::device::{Device, DeviceRef, MemoryDevice, Mirror, Purpose, Role, Side};
use uuid::Uuid;

use crate::support::{SEGMENT, content, link_id, options};

const SEGMENTS: u32 = 12;

fn disk(env: &Env, name: &str) -> Arc<HardDisk> {
    disk_of(env, name, SEGMENTS)
}

fn disk_of(env: &Env, name: &str, segments: u32) -> Arc<HardDisk> {
    let size = u64::from(segments) * u64::from(SEGMENT) * BLOCK_SIZE as u64;
    Arc::new(HardDisk::new(env, name, HardDiskSpec::sas_10k(size)))
}

async fn open(env: &Env, links: Vec<DeviceRef>, cleaning: Cleaning, options: Options) -> Chain {
    let size = links[0].geometry().size / (u64::from(SEGMENT) * BLOCK_SIZE as u64);
    let segments = links.len() as u32 * size as u32;
    let links = links.into_iter().enumerate();
    let parts = Parts {
        links: links.map(|(number, device)| Link { id: link_id(number), device }).collect(),
        map: Arc::new(MemoryDevice::new(Chain::map_bytes(SEGMENT, segments))),
        map_link: None,
        tail_cache: None,
        body_cache: None,
    };
    let create = Create {
        volume: Uuid::from_u128(7),
        blocks: size * u64::from(SEGMENT),
        segment_blocks: SEGMENT,
        max_segments: segments,
        cleaning,
        placement: Default::default(),
        follows: false,
    };
    Chain::create(env, parts.clone(), &create).await.unwrap();
    Chain::open(env, parts, options).await.unwrap().0
}

async fn fill(chain: &Chain, blocks: u64, lba: impl Fn(u64) -> u64) {
    for block in 0..blocks {
        let lba = lba(block);
        chain.apply(vec![Write::block(Lba(lba), content(lba, block))]).await.unwrap();
    }
}

#[test]
fn second_sides_of_the_body_rest_and_that_of_the_tail_does_not() {
    run(1, |env| async move {
        let disks: Vec<Arc<HardDisk>> = (0..6).map(|at| disk(&env, &format!("d{at}"))).collect();
        let mirror = |at: usize| -> DeviceRef {
            let sides = (0..2).map(|side| Side::InSync(disks[2 * at + side].clone() as DeviceRef));
            Arc::new(Mirror::new(&env, sides.collect(), Arc::new(()), true).unwrap())
        };
        let links = (0..3).map(mirror).collect();
        let chain = open(&env, links, Cleaning::MoveToTail, options()).await;
        env.sleep(Duration::from_secs(100)).await;
        let rest = |at: usize| disks[at].standby().0.as_secs();
        assert!(rest(3) > 90 && rest(5) > 90, "{:?}", [rest(3), rest(5)]);
        assert_eq!([rest(0), rest(1), rest(2), rest(4)], [0; 4]);
        // The tail goes on to the second link.
        fill(&chain, u64::from(SEGMENTS * SEGMENT), |block| block).await;
        env.sleep(Duration::from_secs(60)).await;
        let before = [rest(1), rest(3), rest(5)];
        env.sleep(Duration::from_secs(100)).await;
        let after = [rest(1) - before[0], rest(3) - before[1], rest(5) - before[2]];
        assert_eq!(after, [100, 0, 100]);
    });
}

#[test]
fn a_read_that_was_under_way_keeps_no_side_from_its_rest() {
    run(1, |env| async move {
        let disks = [disk(&env, "a"), disk(&env, "b")];
        let sides = disks.iter().map(|disk| Side::InSync(disk.clone() as DeviceRef)).collect();
        let mirror = Mirror::new(&env, sides, Arc::new(()), true).unwrap();
        mirror.set_role(Role::Tail).await;
        let reads = (0..4u64).map(|at| mirror.read(at << 20, BLOCK_SIZE, Purpose::UserData));
        let role = async {
            env.sleep(Duration::from_micros(100)).await;
            mirror.set_role(Role::Body).await;
        };
        let (read, ()) = futures::join!(futures::future::join_all(reads), role);
        assert!(read.iter().all(|read| read.is_ok()));
        assert!(disks.iter().all(|disk| disk.tallies().total().reads == 2), "both sides read");
        env.sleep(Duration::from_secs(100)).await;
        let rest = disks.each_ref().map(|disk| disk.standby().0.as_secs());
        assert!(rest[0] == 0 && rest[1] >= 99, "{rest:?}");
    });
}

/// Fills the first link with blocks that stay, and writes to the second one while the first is cleaned.
/// Returns the blocks that users wrote meanwhile, those that cleaning moved, and the tail.
async fn clean_while_writing(env: &Env, cleaning: Cleaning) -> (u64, u64, Arc<HardDisk>) {
    let disks = [disk(env, "body"), disk(env, "tail")];
    let links = disks.iter().map(|disk| disk.clone() as DeviceRef).collect();
    // Deep enough for a stream, and shallow for the size of this test.
    let options = Options { auto_clean: false, dirty_bytes: 2 << 20, ..options() };
    let chain = open(env, links, cleaning, options).await;
    let first = u64::from((SEGMENTS - 1) * SEGMENT) + 1;
    fill(&chain, first, |block| if block % 4 == 0 { 2_700 } else { block }).await;
    assert!(chain.status().links[1].tail);
    chain.checkpoint().await.unwrap();
    let before = chain.status().counts;
    let users = async {
        loop {
            fill(&chain, 10, |block| 2_700 + block).await;
        }
    };
    let cleaner = chain.clean(4);
    tokio::select! {
        biased;
        cleaned = cleaner => assert_eq!(cleaned.unwrap(), 4),
        () = users => {}
    }
    let counts = chain.status().counts;
    let moved = counts.blocks_moved - before.blocks_moved;
    (counts.user_blocks_written - before.user_blocks_written, moved, disks[1].clone())
}

#[test]
fn moving_to_the_tail_leaves_users_half_of_it() {
    run(1, |env| async move {
        let (users, moved, tail) = clean_while_writing(&env, Cleaning::MoveToTail).await;
        assert!(moved > 300, "{moved}");
        assert!(users * 100 >= moved * 95, "users wrote {users} while cleaning moved {moved}");
        assert_eq!(tail.busy().sum(Kind::Read).total(), Duration::ZERO);
    });
}

#[test]
fn compaction_leaves_the_tail_alone() {
    run(1, |env| async move {
        let (_, moved, tail) = clean_while_writing(&env, Cleaning::CompactInBody).await;
        assert!(moved > 300, "{moved}");
        assert_eq!(tail.tallies().of(Purpose::Cleaning).write_bytes, 0);
        assert_eq!(tail.busy().sum(Kind::Read).total(), Duration::ZERO);
    });
}

/// Blocks written to the tail, and reads that its drive served, within a second in which writers and readers
/// of the tail work as fast as they can.
async fn read_the_tail(env: &Env, wait: Duration) -> (u64, u64) {
    const LARGE: u32 = 256;
    let disks = [disk_of(env, "body", LARGE), disk_of(env, "tail", LARGE)];
    let links = disks.iter().map(|disk| disk.clone() as DeviceRef).collect();
    let options = Options { auto_clean: false, dirty_bytes: 2 << 20, ..options() };
    let options = Options { tail_read_wait: wait, ..options };
    let chain = Arc::new(open(env, links, Cleaning::MoveToTail, options).await);
    let written_before = u64::from(LARGE * SEGMENT) * 5 / 4;
    fill(&chain, written_before, |block| block % u64::from(LARGE * SEGMENT)).await;
    assert!(chain.status().links[1].tail);
    let before = (chain.status().counts, disks[1].tallies().total().reads);
    let readers = (0..4u64).map(|reader| {
        let chain = chain.clone();
        async move {
            for step in 0u64.. {
                let lba = (step * 4_111 + reader * 1_777) % u64::from(LARGE * SEGMENT / 5);
                let stamp = u64::from(LARGE * SEGMENT) + lba;
                let read = chain.read_newest(Lba(lba), 1).await.unwrap().1;
                assert_eq!(read, [Some(content(lba, stamp))]);
            }
        }
    });
    let writers = fill(&chain, u64::MAX, |block| u64::from(LARGE * SEGMENT) - 1 - block % 240);
    tokio::select! {
        biased;
        () = env.sleep(Duration::from_secs(1)) => {}
        _ = futures::future::join(writers, futures::future::join_all(readers)) => {}
    }
    let counts = chain.status().counts;
    assert!(chain.status().links[1].tail, "the tail is where it was");
    let written = counts.user_blocks_written - before.0.user_blocks_written;
    (written, disks[1].tallies().total().reads - before.1)
}

#[test]
fn reads_of_the_tail_go_in_groups_and_leave_writers_half_of_it() {
    run(1, |env| async move {
        let at_once = read_the_tail(&env, Duration::ZERO).await;
        let grouped = read_the_tail(&env, Duration::from_millis(40)).await;
        assert!(grouped.0 > at_once.0 * 3 / 2, "{grouped:?}, {at_once:?} at once");
        assert!(grouped.1 >= 4 * 15, "{grouped:?}");
    });
}

#[test]
fn a_checkpoint_starts_no_cleaning_that_nobody_wants() {
    let cleaned = |auto_clean| {
        run(1, |env| async move {
            let disks = [disk(&env, "a"), disk(&env, "b")];
            let links = disks.iter().map(|disk| disk.clone() as DeviceRef).collect();
            let options = Options { auto_clean, ..options() };
            let chain = open(&env, links, Cleaning::MoveToTail, options).await;
            let blocks = u64::from(SEGMENTS * SEGMENT);
            fill(&chain, blocks, |block| block).await;
            // Each segment loses some of its blocks and none loses all.
            fill(&chain, blocks / 2, |block| block * 2).await;
            fill(&chain, blocks / 4, |block| block * 4 + 1).await;
            chain.checkpoint().await.unwrap();
            env.sleep(Duration::from_secs(1)).await;
            chain.status().counts.segments_cleaned
        })
    };
    assert_eq!(cleaned(false), 0);
    assert!(cleaned(true) > 0);
}
