//! Snapshots, roll-back, growing, shrinking and scrubbing of a chain, against a model.

use std::sync::Arc;

use rand::RngExt;
use thalweg_sim::faults::Faulty;
use thalweg_sim::runtime::run;
use thalweg_store::block::{BLOCK_SIZE, Blocks, BlocksExt, Lba, StoreError};
use thalweg_store::chain::{Chain, ChainError, Cleaning, Link, Parts};
use thalweg_store::device::{DeviceRef, Geometry, MemoryDevice, Mirror, Purpose, Side};

use crate::support::trio::Trio;
use crate::support::{self, SEGMENT, Shape, link_id, options};

fn memory(name: &str, geometry: Geometry) -> DeviceRef {
    Arc::new(MemoryDevice::with_geometry(name, geometry))
}

/// More physical space than the volume needs, so that snapshots have room.
fn roomy(cleaning: Cleaning) -> Shape {
    Shape { segments_per_link: 9, blocks: 500, ..Shape::small(cleaning) }
}

fn snapshots(seed: u64, cleaning: Cleaning) {
    let shape = roomy(cleaning);
    run(seed, |env| async move {
        let devices = shape.devices(memory);
        let mut trio = Trio::new(&env, &shape, &devices).await;
        let mut rng = env.rng();
        for number in 0..1500 {
            trio.step(&env, &mut rng, shape.blocks).await;
            if number % 75 == 74 {
                trio.compare().await;
            }
            if number % 250 == 249 {
                if rng.random_bool(0.5) {
                    trio.pair.chain.close().await.unwrap();
                } else {
                    trio.pair.chain.sync(trio.pair.chain.now()).await.unwrap();
                }
                drop(trio.pair.chain);
                trio.pair.chain = shape.open(&env, &devices).await.unwrap().0;
                trio.compare().await;
            }
        }
        let names: Vec<String> = trio.snapshots.keys().cloned().collect();
        for name in names {
            trio.pair.chain.delete_snapshot(&name).await.unwrap();
            trio.snapshots.remove(&name);
        }
        trio.compare().await;
        // The cleaner drops what a released hold kept.
        env.sleep(std::time::Duration::from_millis(10)).await;
        let status = trio.pair.chain.status();
        assert_eq!(status.several_versions, 0, "versions that nobody needs stay");
        let stored = trio.pair.chain.allocation(Lba(0), shape.blocks, None);
        let stored: u64 = stored.iter().filter(|run| run.1).map(|run| run.0).sum();
        let live = status.live_blocks - status.discard_records;
        assert_eq!(live, stored, "live blocks are miscounted");
    });
}

#[test]
fn snapshots_follow_the_model_move_to_tail() {
    for seed in 0..8 {
        snapshots(seed, Cleaning::MoveToTail);
    }
}

#[test]
fn snapshots_follow_the_model_compact_in_body() {
    for seed in 0..8 {
        snapshots(100 + seed, Cleaning::CompactInBody);
    }
}

#[test]
fn a_volume_full_of_snapshots_refuses_writes_and_keeps_everything() {
    let shape = Shape { blocks: 900, ..Shape::small(Cleaning::MoveToTail) };
    run(3, |env| async move {
        let devices = shape.devices(memory);
        let mut trio = Trio::new(&env, &shape, &devices).await;
        let mut full = false;
        for round in 0..8 {
            for lba in (0..shape.blocks).step_by(4) {
                let stamp = round * 1000 + lba;
                let writes: Vec<_> = (lba..lba + 4)
                    .map(|lba| {
                        thalweg_store::block::Write::block(Lba(lba), support::content(lba, stamp))
                    })
                    .collect();
                match trio.pair.chain.apply(writes.clone()).await {
                    Ok(version) => assert_eq!(version, trio.pair.model.apply(&writes)),
                    Err(StoreError::NoSpace) => full = true,
                    Err(other) => panic!("{other}"),
                }
            }
            let name = format!("r{round}");
            let snapshot = trio.pair.chain.create_snapshot(&name).await.unwrap();
            trio.snapshots.insert(name, snapshot.version);
        }
        assert!(full, "the volume never filled up");
        trio.compare().await;
        let names: Vec<String> = trio.snapshots.keys().cloned().collect();
        for name in names {
            trio.pair.chain.delete_snapshot(&name).await.unwrap();
        }
        trio.snapshots.clear();
        let step = support::Step::Apply((0..200).collect());
        trio.pair.step(&env, &step).await.unwrap();
        trio.compare().await;
    });
}

#[test]
fn names_of_snapshots_are_checked() {
    let shape = roomy(Cleaning::MoveToTail);
    run(1, |env| async move {
        let devices = shape.devices(memory);
        let trio = Trio::new(&env, &shape, &devices).await;
        let chain = &trio.pair.chain;
        chain.create_snapshot("daily").await.unwrap();
        for bad in ["", "daily", "a/b", "a@b", "a\nb", &"x".repeat(65)] {
            let result = chain.create_snapshot(bad).await;
            assert!(matches!(result, Err(ChainError::Invalid(_))), "{bad:?}");
        }
        assert!(matches!(chain.delete_snapshot("none").await, Err(ChainError::Invalid(_))));
        assert!(matches!(chain.rollback("none").await, Err(ChainError::Invalid(_))));
    });
}

fn links_come_and_go(seed: u64, cleaning: Cleaning) {
    let shape = Shape { segments_per_link: 6, blocks: 700, ..Shape::small(cleaning) };
    run(seed, |env| async move {
        let devices = shape.devices(memory);
        let mut trio = Trio::new(&env, &shape, &devices).await;
        let mut rng = env.rng();
        let mut links = shape.parts(&devices).links;
        for round in 0..6 {
            for _ in 0..200 {
                trio.step(&env, &mut rng, shape.blocks).await;
            }
            let new = Link {
                id: link_id(10 + round),
                device: memory("new", Geometry { size: shape.link_bytes(), sector: 512 }),
            };
            trio.pair.chain.add_link(new.clone()).await.unwrap();
            links.push(new);
            for _ in 0..60 {
                trio.step(&env, &mut rng, shape.blocks).await;
            }
            let gone = links.remove(rng.random_range(0..links.len()));
            trio.pair.chain.remove_link(gone.id, &|_, _| {}).await.unwrap();
            trio.compare().await;
            let parts = Parts { links: links.clone(), ..shape.parts(&devices) };
            trio.pair.chain.sync(trio.pair.chain.now()).await.unwrap();
            drop(trio.pair.chain);
            trio.pair.chain = Chain::open(&env, parts, options()).await.unwrap().0;
            trio.compare().await;
        }
    });
}

#[test]
fn links_come_and_go_under_load() {
    for seed in 0..4 {
        links_come_and_go(seed, Cleaning::MoveToTail);
        links_come_and_go(seed, Cleaning::CompactInBody);
    }
}

#[test]
fn a_volume_grows_and_shrinks_but_not_below_what_is_stored() {
    let shape = roomy(Cleaning::MoveToTail);
    run(5, |env| async move {
        let devices = shape.devices(memory);
        let trio = Trio::new(&env, &shape, &devices).await;
        let chain = &trio.pair.chain;
        chain.resize(1500).await.unwrap();
        let write = thalweg_store::block::Write::block(Lba(1400), support::content(1400, 1));
        chain.apply(vec![write]).await.unwrap();
        assert!(matches!(chain.resize(1400).await, Err(ChainError::Invalid(_))));
        assert!(matches!(chain.resize(1 << 30).await, Err(ChainError::Invalid(_))));
        chain.resize(1401).await.unwrap();
        chain.create_snapshot("s").await.unwrap();
        chain.discard(Lba(1400), 1).await.unwrap();
        let refused = chain.resize(1000).await;
        assert!(refused.is_err_and(|error| error.to_string().contains("snapshot")));
        chain.delete_snapshot("s").await.unwrap();
        chain.resize(1000).await.unwrap();
        assert!(matches!(chain.read(Lba(1000), 1, chain.now()).await, Err(StoreError::Invalid(_))));
        chain.sync(chain.now()).await.unwrap();
        drop(trio);
        let (chain, _) = shape.open(&env, &devices).await.unwrap();
        assert_eq!(chain.blocks(), 1000);
        assert_eq!(chain.status().live_blocks, 0);
    });
}

#[test]
fn a_link_that_is_needed_stays() {
    let shape = Shape { segments_per_link: 5, blocks: 1500, ..Shape::small(Cleaning::MoveToTail) };
    run(6, |env| async move {
        let devices = shape.devices(memory);
        let trio = Trio::new(&env, &shape, &devices).await;
        let refused = trio.pair.chain.remove_link(link_id(1), &|_, _| {}).await;
        assert!(matches!(refused, Err(ChainError::Invalid(_))));
        let small =
            Link { id: link_id(9), device: memory("s", Geometry { size: 1 << 20, sector: 512 }) };
        assert!(matches!(trio.pair.chain.add_link(small).await, Err(ChainError::Invalid(_))));
        let again = shape.parts(&devices).links.remove(0);
        assert!(matches!(trio.pair.chain.add_link(again).await, Err(ChainError::Invalid(_))));
    });
}

/// Overwrites whole blocks of a device with garbage.
async fn scribble(device: &DeviceRef, first: u64, blocks: u64) {
    let junk = bytes::Bytes::from(vec![0x5a; BLOCK_SIZE]);
    for block in first..first + blocks {
        let at = block * BLOCK_SIZE as u64;
        device.write(at, vec![junk.clone()], Purpose::UserData).await.unwrap();
    }
}

#[test]
fn scrub_mends_a_mirror_and_names_what_is_lost_on_a_lone_link() {
    let shape = Shape { links: 2, ..roomy(Cleaning::MoveToTail) };
    run(7, |env| async move {
        let geometry = Geometry { size: shape.link_bytes(), sector: 512 };
        let sides = [memory("a", geometry), memory("b", geometry)];
        let mirror = Mirror::new(
            &env,
            sides.iter().cloned().map(Side::InSync).collect(),
            Arc::new(()),
            false,
        );
        let mut devices = shape.devices(memory);
        devices[0] = Arc::new(mirror.unwrap());
        let mut trio = Trio::new(&env, &shape, &devices).await;
        for lba in 0..450 {
            trio.pair.step(&env, &support::Step::Apply(vec![lba])).await.unwrap();
        }
        trio.pair.chain.checkpoint().await.unwrap();
        let clean = trio.pair.chain.scrub(&|_, _| {}).await.unwrap();
        assert_eq!((clean.blocks, clean.repaired, clean.damaged), (450, 0, 0));
        scribble(&sides[1], 10, 20).await;
        scribble(&sides[0], 100, 5).await;
        let report = trio.pair.chain.scrub(&|_, _| {}).await.unwrap();
        assert_eq!((report.repaired, report.damaged), (25, 0));
        let clean = trio.pair.chain.scrub(&|_, _| {}).await.unwrap();
        assert_eq!((clean.repaired, clean.damaged), (0, 0));
        // The map of a closed segment, both labels' first copy, the checkpoint.
        trio.pair.compare().await;
    });
}

#[test]
fn scrub_reports_blocks_that_no_copy_has_and_replaces_damaged_metadata() {
    let shape = roomy(Cleaning::MoveToTail);
    run(8, |env| async move {
        let devices = shape.devices(memory);
        let mut trio = Trio::new(&env, &shape, &devices).await;
        for lba in 0..u64::from(SEGMENT) + 20 {
            trio.pair.step(&env, &support::Step::Apply(vec![lba])).await.unwrap();
        }
        trio.pair.chain.checkpoint().await.unwrap();
        scribble(&devices[0], 7, 2).await;
        // Label A, and the newest checkpoint's first pages.
        scribble(&devices[3], 0, 1).await;
        let report = trio.pair.chain.scrub(&|_, _| {}).await.unwrap();
        assert_eq!(report.damaged_blocks, vec![7, 8]);
        assert_eq!(report.labels_replaced, 1);
        // A damaged map counts once the tail has left the link.
        let map = Chain::map_bytes(SEGMENT, shape.max_segments()) / BLOCK_SIZE as u64;
        scribble(&devices[3], map - u64::from(shape.max_segments()), 1).await;
        for lba in 300..500 {
            trio.pair.step(&env, &support::Step::Apply(vec![lba])).await.unwrap();
        }
        trio.pair.chain.checkpoint().await.unwrap();
        let corrupt = trio.pair.chain.read(Lba(7), 1, trio.pair.chain.now()).await;
        assert!(matches!(corrupt, Err(StoreError::Corrupt { lba: Lba(7), .. })), "{corrupt:?}");
        assert!(trio.pair.chain.read(Lba(9), 1, trio.pair.chain.now()).await.is_ok());
        // The damaged blocks are whole again once they are written again.
        trio.pair.step(&env, &support::Step::Apply(vec![7, 8])).await.unwrap();
        trio.pair.compare().await;
    });
}

#[test]
fn a_lost_device_poisons_writes_and_leaves_reads() {
    let shape = roomy(Cleaning::MoveToTail);
    run(9, |env| async move {
        let mut devices = shape.devices(memory);
        let (faulty, faults) = Faulty::wrap(&env, devices[3].clone());
        devices[3] = faulty;
        let mut trio = Trio::new(&env, &shape, &devices).await;
        for lba in 0..50 {
            trio.pair.step(&env, &support::Step::Apply(vec![lba])).await.unwrap();
        }
        trio.pair.step(&env, &support::Step::Sync).await.unwrap();
        faults.die_after(0);
        trio.pair
            .chain
            .apply(vec![thalweg_store::block::Write::block(Lba(60), support::content(60, 1))])
            .await
            .unwrap();
        assert!(trio.pair.chain.sync(trio.pair.chain.now()).await.is_err());
        let refused = trio.pair.step(&env, &support::Step::Apply(vec![1])).await;
        assert!(matches!(refused, Err(StoreError::Poisoned(_))));
        assert!(trio.pair.chain.read(Lba(3), 1, trio.pair.chain.now()).await.is_ok());
        assert!(matches!(
            trio.pair.chain.create_snapshot("s").await,
            Err(ChainError::Store(StoreError::Poisoned(_)))
        ));
    });
}
