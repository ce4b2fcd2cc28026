//! Raw blocks beside stores: raw writes never reach the blocks of a store.

use std::sync::Arc;

use thalweg_client::{Outcome, Volume};
use thalweg_store::block::{BLOCK_SIZE, Lba};
use thalweg_store::tree::{Kind, NewPartition, Raw, TreeError, catalogue};
use thalweg_store::txn::{Begin, Transact, Transaction, TxnError};

use crate::rig::{Rig, block};

/// Runs `work` on a served volume, in a thread of its own.
async fn on_a_volume(work: impl FnOnce(&Volume, &Rig) + Send + 'static) {
    let rig = Rig::new();
    let thread = move || {
        let volume = Volume::open(rig.folder.path()).unwrap();
        work(&volume, &rig);
    };
    tokio::task::spawn_blocking(thread).await.unwrap();
}

/// Ends the thread's transaction, which must commit.
fn committed(volume: &Volume) {
    let outcome = volume.end();
    assert!(matches!(outcome, Ok(Outcome::Committed(Some(_)))), "{outcome:?}");
}

fn new(name: &str, kind: Kind, blocks: u64) -> NewPartition {
    NewPartition { name: name.to_owned(), kind, first: None, blocks: Some(blocks) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_a_volume_with_partitions_are_refused_and_say_what_lies_there() {
    on_a_volume(|volume, _| {
        volume.create_store("names", Kind::Btree, Some(64)).unwrap();
        let names = volume.open_store("names").unwrap();
        volume.put(&names, b"key", b"value").unwrap();
        let lies = [(7, "the catalogue"), (20, "names (btree)"), (500, "the space between")];
        for inside in [false, true] {
            if inside {
                volume.begin(Begin::STRICT).unwrap();
            }
            for (lba, there) in lies {
                for refused in [volume.write(Lba(lba), &block(1)), volume.discard(Lba(lba), 1)] {
                    let Err(TreeError::Partitioned { block, .. }) = &refused else {
                        panic!("{refused:?}")
                    };
                    assert_eq!(*block, lba);
                    let said = refused.unwrap_err().to_string();
                    assert!(said.contains(there) && said.contains("--kind raw"), "{said}");
                }
            }
            // A mark could undo a part of a store's write.
            let marked = volume.mark_accessed(Lba(20), 0..16);
            assert_eq!(marked.is_err(), inside, "{marked:?}");
            // Reads are allowed.
            assert_ne!(volume.read(Lba(0), 1).unwrap()[0], block(0));
        }
        committed(volume);
        assert_eq!(volume.get(&names, b"key").unwrap().unwrap(), "value");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raw_partition_is_numbered_from_zero_and_has_an_end() {
    on_a_volume(|volume, rig| {
        volume.create_store("names", Kind::Btree, Some(64)).unwrap();
        volume.create_store("raw", Kind::Raw, Some(10)).unwrap();
        let (names, raw) = (volume.open_store("names").unwrap(), volume.raw("raw").unwrap());
        assert_eq!(raw.blocks(), 10);
        volume.write_raw(&raw, 8, &[1, 2].map(block).concat()).unwrap();
        let listed = volume.wait(catalogue::list(&rig.manager)).unwrap();
        let first = listed.iter().find(|it| it.name == "raw").unwrap().first;
        assert_eq!(volume.read(Lba(first + 8), 2).unwrap(), [block(1), block(2)]);
        for inside in [false, true] {
            if inside {
                volume.begin(Begin::STRICT).unwrap();
            }
            for (at, count) in [(10, 1), (9, 2), (u64::MAX, 1), (u64::MAX, 2), (0, 11)] {
                let content = vec![3; count as usize * BLOCK_SIZE];
                let invalid = |it: Result<(), TreeError>| matches!(it, Err(TreeError::Invalid(_)));
                assert!(invalid(volume.write_raw(&raw, at, &content)), "{at} {count}");
                assert!(invalid(volume.discard_raw(&raw, at, count)));
                assert!(invalid(volume.read_raw(&raw, at, count).map(drop)));
            }
        }
        volume.abort().unwrap();
        // One transaction over a store and raw blocks is atomic.
        for commit in [false, true] {
            volume.begin(Begin::STRICT).unwrap();
            volume.put(&names, b"key", b"value").unwrap();
            volume.discard_raw(&raw, 8, 2).unwrap();
            let changed = [&[5; 8][..], &block(0)[8..]].concat();
            volume.write_raw(&raw, 0, &changed).unwrap();
            volume.mark_raw(&raw, 0, 0..8).unwrap();
            match commit {
                true => committed(volume),
                false => volume.abort().unwrap(),
            }
            assert_eq!(volume.get(&names, b"key").unwrap().is_some(), commit);
            let found = volume.read_raw(&raw, 0, 10).unwrap();
            assert_eq!((found[0][7], found[0][8]), if commit { (5, 0) } else { (0, 0) });
            assert_eq!(found[8], block(u8::from(!commit)));
        }
        assert!(matches!(volume.raw("names"), Err(TreeError::WrongKind { .. })));
        assert!(matches!(volume.raw("none"), Err(TreeError::Missing(_))));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_filesystem_keeps_is_opened_neither_raw_nor_as_a_store() {
    on_a_volume(|volume, _| {
        volume.create_store("a.meta", Kind::Btree, Some(64)).unwrap();
        assert!(volume.open_store("a.meta").is_ok(), "it is no filesystem yet");
        volume.create_store("a.data", Kind::Raw, Some(64)).unwrap();
        volume.create_store("a.super", Kind::Raw, Some(1)).unwrap();
        for raw in ["a.data", "a.super"] {
            assert!(matches!(volume.raw(raw), Err(TreeError::OfFilesystem(_))));
        }
        assert!(matches!(volume.open_store("a.meta"), Err(TreeError::OfFilesystem(_))));
    })
    .await;
}

/// The first partition is made between the check of a raw write and its commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raw_write_conflicts_with_the_making_of_the_first_partition() {
    for isolation in [Begin::STRICT, Begin::SNAPSHOT] {
        on_a_volume(move |volume, rig| {
            volume.begin(isolation).unwrap();
            volume.write(Lba(70), &block(9)).unwrap();
            // By another process, which sees an empty volume.
            let made = new("names", Kind::Btree, 100);
            volume.wait(catalogue::create(&rig.env, &rig.manager, &made)).unwrap();
            volume.write(Lba(71), &block(9)).unwrap();
            let outcome = volume.end().unwrap();
            assert!(matches!(outcome, Outcome::Aborted(TxnError::Conflict)), "{outcome:?}");
            assert_eq!(volume.read(Lba(70), 2).unwrap(), [block(0), block(0)]);
            let refused = volume.write(Lba(70), &block(9));
            assert!(matches!(refused, Err(TreeError::Partitioned { .. })), "{refused:?}");
        })
        .await;
    }
}

/// A raw partition is dropped, and a store is made in its place, while a transaction writes to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raw_write_conflicts_with_the_end_of_its_partition() {
    for isolation in [Begin::STRICT, Begin::SNAPSHOT] {
        on_a_volume(move |volume, rig| {
            volume.create_store("raw", Kind::Raw, Some(100)).unwrap();
            let raw = volume.raw("raw").unwrap();
            volume.write_raw(&raw, 0, &block(1)).unwrap();
            volume.begin(isolation).unwrap();
            volume.write_raw(&raw, 50, &block(9)).unwrap();
            volume.wait(catalogue::remove(&rig.env, &rig.manager, "raw")).unwrap();
            let store = new("names", Kind::Btree, 100);
            volume.wait(catalogue::create(&rig.env, &rig.manager, &store)).unwrap();
            let outcome = volume.end().unwrap();
            assert!(matches!(outcome, Outcome::Aborted(TxnError::Conflict)), "{outcome:?}");
            let refused = volume.write_raw(&raw, 50, &block(9));
            assert!(matches!(refused, Err(TreeError::Missing(_))), "{refused:?}");
            volume.open_store("names").unwrap();
        })
        .await;
    }
}

/// Raw writes of different blocks do not conflict at the catalogue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_writes_do_not_conflict_with_each_other() {
    on_a_volume(|volume, rig| {
        volume.create_store("raw", Kind::Raw, Some(100)).unwrap();
        let other = Arc::new(rig.manager.clone());
        let theirs = volume.wait(Raw::open(other.clone(), "raw")).unwrap();
        for begin in [Begin::STRICT, Begin::SNAPSHOT] {
            let raw = volume.raw("raw").unwrap();
            volume.begin(begin).unwrap();
            volume.write_raw(&raw, 1, &block(1)).unwrap();
            volume.wait(async {
                let txn: Arc<dyn Transaction> = other.begin(begin).await.unwrap();
                theirs.within(txn.clone()).await.unwrap().write(2, block(2)).unwrap();
                txn.commit(Default::default()).await.unwrap();
            });
            committed(volume);
        }
        assert_eq!(rig.manager.status().conflicts, 0);
    })
    .await;
}
