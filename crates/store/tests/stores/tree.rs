//! Partitions: what is refused, how many bytes a change costs, and the format.

use std::sync::Arc;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BLOCK_SIZE, Blocks, Lba};
use thalweg_store::tree::{
    Batch, Kind, MAX_KEY, MAX_VALUE, NewPartition, Raw, RawBlocks, State, Store, TreeError,
    catalogue, format,
};
use thalweg_store::txn::{self, Begin, Durability, Isolation, Transact, Transaction, TxnError};

use crate::counting::{Cost, Counting};
use crate::support::kv::{KINDS, Taste, contents, create, partition, transact, volume};

const SYNCED: Durability = Durability::Synced;

async fn write(volume: &Arc<dyn Transact>, lba: u64, content: Vec<u8>) {
    let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
    txn.write(Lba(lba), content.into()).unwrap();
    txn.commit(SYNCED).await.unwrap();
}

async fn read(volume: &Arc<dyn Transact>, lba: u64) -> Bytes {
    volume.begin(Begin::READ_ONLY).await.unwrap().read(Lba(lba)).await.unwrap()
}

#[test]
fn blocks_of_a_raw_partition_are_numbered_through_its_runs() {
    run(1, |env| async move {
        let volume = volume(&env, 400);
        for (name, kind) in [("raw", Kind::Raw), ("behind", Kind::Btree)] {
            catalogue::create(&env, &*volume, &partition(name, kind, 40)).await.unwrap();
        }
        for blocks in [20, 30] {
            let additions = [catalogue::growth::Addition { name: "raw", blocks }];
            catalogue::growth::reserve(&*volume, &additions).await.unwrap();
            let add =
                async |txn: Arc<dyn Transaction>| catalogue::growth::add_in(&*txn, "raw").await;
            txn::run(&*volume, Begin::STRICT, Durability::Synced, add).await.unwrap();
        }
        let raw = Raw::open(volume.clone(), "raw").await.unwrap();
        assert_eq!(raw.blocks(), 90);
        let block = |byte: u64| Bytes::from(vec![byte as u8; BLOCK_SIZE]);
        let fill = |blocks: &RawBlocks| (0..90).try_for_each(|at| blocks.write(at, block(at + 1)));
        raw.change(fill).await.unwrap();
        for (at, count) in [(0, 90), (38, 4), (59, 2), (60, 30), (89, 1), (39, 22)] {
            let read = raw.read(at, count).await.unwrap();
            assert_eq!(read, (at..at + count).map(|at| block(at + 1)).collect::<Vec<_>>());
        }
        assert!(matches!(raw.read(60, 31).await, Err(TreeError::Invalid(_))));
        let ranges: Vec<_> = catalogue::open(&*volume, "raw").await.unwrap().ranges().collect();
        assert_eq!(ranges, [16..56, 96..116, 116..146]);
    });
}

#[test]
fn partitions_are_made_listed_and_dropped() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        assert!(matches!(catalogue::list(&*volume).await, Err(TreeError::NoCatalogue)));
        for (name, kind, blocks) in
            [("a", Kind::Btree, 100), ("b", Kind::Raw, 200), ("c", Kind::Hash, 300)]
        {
            let new = partition(name, kind, blocks);
            catalogue::create(&env, &*volume, &new).await.unwrap();
        }
        let listed = catalogue::list(&*volume).await.unwrap();
        let places: Vec<_> = listed.iter().map(|it| (&*it.name, it.first, it.blocks)).collect();
        assert_eq!(places, [("a", 16, 100), ("b", 116, 200), ("c", 316, 300)]);
        assert!(listed.iter().all(|it| it.state == State::Ready));
        write(&volume, 200, vec![7; BLOCK_SIZE]).await;
        catalogue::remove(&env, &*volume, "b").await.unwrap();
        assert!(read(&volume, 200).await.iter().all(|byte| *byte == 0), "dropped blocks are empty");
        let missing = catalogue::open(&*volume, "b").await;
        assert!(matches!(missing, Err(TreeError::Missing(name)) if name == "b"));
        // The gap in the middle, then the rest.
        let middle = catalogue::create(&env, &*volume, &partition("d", Kind::Hash, 150)).await;
        assert_eq!(middle.unwrap().first, 116);
        let rest = NewPartition { blocks: None, ..partition("e", Kind::Btree, 0) };
        let rest = catalogue::create(&env, &*volume, &rest).await.unwrap();
        assert_eq!((rest.first, rest.blocks), (616, 384));
    });
}

#[test]
fn partitions_that_cannot_be_are_refused() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        catalogue::create(&env, &*volume, &partition("a", Kind::Btree, 300)).await.unwrap();
        let create = async |new: NewPartition| {
            let before = catalogue::list(&*volume).await.unwrap();
            let error = catalogue::create(&env, &*volume, &new).await.unwrap_err();
            assert_eq!(catalogue::list(&*volume).await.unwrap(), before);
            error
        };
        let at = |first, blocks| NewPartition {
            first: Some(first),
            ..partition("new", Kind::Raw, blocks)
        };
        assert!(matches!(create(partition("a", Kind::Raw, 9)).await, TreeError::Exists(_)));
        for (new, with) in [
            (at(300, 50), "partition a"),
            (at(15, 1), "the catalogue"),
            (at(990, 11), "the end"),
            (at(u64::MAX, 2), "the end"),
        ] {
            let error = create(new).await;
            assert!(matches!(&error, TreeError::Overlap { .. }), "{error}");
            assert!(error.to_string().contains(with), "{error}");
        }
        let error = create(partition("new", Kind::Raw, 700)).await;
        assert!(matches!(error, TreeError::NoGap(700, 684)), "{error}");
        for name in ["", "a/b", "a\n", &"x".repeat(48)] {
            let error = create(partition(name, Kind::Raw, 10)).await;
            assert!(matches!(error, TreeError::Invalid(_)), "{error}");
        }
        for blocks in [0, 1, 7] {
            let error = create(partition("small", Kind::Btree, blocks)).await;
            assert!(matches!(error, TreeError::Invalid(_) | TreeError::NoGap(0, _)), "{error}");
        }
    });
}

#[test]
fn stores_are_opened_as_what_they_are() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        for (name, kind) in [("tree", Kind::Btree), ("table", Kind::Hash), ("raw", Kind::Raw)] {
            catalogue::create(&env, &*volume, &partition(name, kind, 100)).await.unwrap();
        }
        Store::open_btree(&env, volume.clone(), "tree").await.unwrap();
        let table = Store::open_hash(&env, volume.clone(), "table").await.unwrap();
        for error in [
            Store::open_hash(&env, volume.clone(), "tree").await.unwrap_err(),
            Store::open_btree(&env, volume.clone(), "table").await.unwrap_err(),
            Store::open(&env, volume.clone(), "raw").await.unwrap_err(),
            table.range::<&[u8]>(..).await.unwrap_err(),
        ] {
            assert!(matches!(error, TreeError::WrongKind { .. }), "{error}");
        }
        assert!(matches!(table.iter().await.unwrap().backward(), Err(TreeError::Invalid(_))));
        let missing = Store::open(&env, volume.clone(), "none").await;
        assert!(matches!(missing, Err(TreeError::Missing(_))));
    });
}

#[test]
fn volumes_that_hold_something_else_are_refused() {
    run(1, |env| async move {
        // In the first block, and only further on, as some filesystems have it.
        for lba in [0, 16, 40] {
            let volume = volume(&env, 1000);
            write(&volume, lba, vec![0x53; BLOCK_SIZE]).await;
            let created =
                catalogue::create(&env, &*volume, &partition("a", Kind::Btree, 100)).await;
            assert!(matches!(created, Err(TreeError::Foreign(at)) if at == lba), "{created:?}");
            assert_eq!(read(&volume, 0).await[0], if lba == 0 { 0x53 } else { 0 });
        }
    });
}

#[test]
fn a_catalogue_without_a_whole_copy_is_refused() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        create(&env, &volume, "a", Kind::Btree, 100).await;
        let (good, copy) = (read(&volume, 0).await, read(&volume, 15).await);
        let mut bad_copy = copy.to_vec();
        bad_copy[100] ^= 1;
        write(&volume, 15, bad_copy).await;
        for at in [9, 13, 20, 64, 70, 150, 4000] {
            let mut bad = good.to_vec();
            bad[at] ^= 1;
            write(&volume, 0, bad).await;
            let error = Store::open(&env, volume.clone(), "a").await.unwrap_err();
            assert!(matches!(error, TreeError::Damaged { .. }), "{at}: {error}");
            let made = catalogue::create(&env, &*volume, &partition("b", Kind::Raw, 10)).await;
            assert!(made.is_err(), "{at}");
            assert!(catalogue::repair(&*volume).await.is_err(), "{at}");
        }
        write(&volume, 0, good.to_vec()).await;
        Store::open(&env, volume.clone(), "a").await.unwrap();
        assert_eq!(catalogue::damaged_blocks(&*volume).await.unwrap(), [15]);
        assert_eq!(catalogue::repair(&*volume).await.unwrap(), [15]);
        assert_eq!(read(&volume, 15).await, copy);
    });
}

/// Creates partitions of one block, as many as there is room for.
async fn with_partitions(volume: &Arc<dyn Transact>, env: &Env, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|nth| format!("part{nth}")).collect();
    for name in &names {
        catalogue::create(env, &**volume, &partition(name, Kind::Raw, 1)).await.unwrap();
    }
    names
}

async fn names(volume: &Arc<dyn Transact>) -> Result<Vec<String>, TreeError> {
    let listed = catalogue::list(&**volume).await?;
    Ok(listed.into_iter().map(|partition| partition.name).collect())
}

/// One flipped bit in any block of the catalogue loses nothing, as long as half its blocks are enough.
#[test]
fn a_damaged_block_of_the_catalogue_is_replaced_by_its_copy() {
    for count in [1, 42, 43, 336] {
        run(1, |env| async move {
            let volume = volume(&env, 1000);
            let expected = with_partitions(&volume, &env, count).await;
            for block in 0..16 {
                let good = read(&volume, block).await;
                if block > 0 && good.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let mut bad = good.to_vec();
                bad[70] ^= 1;
                write(&volume, block, bad.clone()).await;
                assert_eq!(names(&volume).await.unwrap(), expected, "block {block}");
                assert_eq!(catalogue::damaged_blocks(&*volume).await.unwrap(), [block]);
                assert_eq!(catalogue::repair(&*volume).await.unwrap(), [block]);
                assert_eq!(read(&volume, block).await, good);
                // The next change repairs it too.
                write(&volume, block, bad).await;
                let name = expected.last().unwrap();
                catalogue::remove(&env, &*volume, name).await.unwrap();
                catalogue::create(&env, &*volume, &partition(name, Kind::Raw, 1)).await.unwrap();
                assert_eq!(catalogue::damaged_blocks(&*volume).await.unwrap(), [0; 0]);
                assert_eq!(names(&volume).await.unwrap(), expected, "block {block}");
            }
        });
    }
}

/// Copies make room for partitions, and no copy is taken for a list.
#[test]
fn a_full_catalogue_has_the_copies_that_it_has_room_for() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        let mut expected = with_partitions(&volume, &env, 16 * 42).await;
        assert_eq!(names(&volume).await.unwrap(), expected);
        let more = catalogue::create(&env, &*volume, &partition("more", Kind::Raw, 1)).await;
        assert!(matches!(more, Err(TreeError::Invalid(_))), "{more:?}");
        for name in expected.split_off(15 * 42) {
            catalogue::remove(&env, &*volume, &name).await.unwrap();
        }
        let mut bad = read(&volume, 0).await.to_vec();
        bad[70] ^= 1;
        write(&volume, 0, bad).await;
        assert_eq!(names(&volume).await.unwrap(), expected);
    });
}

/// Other content at the volume's beginning overrides a copy of the former catalogue.
#[test]
fn a_copy_does_not_bring_back_what_was_overwritten_or_discarded() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        create(&env, &volume, "a", Kind::Btree, 100).await;
        write(&volume, 0, vec![0x53; BLOCK_SIZE]).await;
        assert!(matches!(names(&volume).await, Err(TreeError::Foreign(0))));
        assert_eq!(catalogue::repair(&*volume).await.unwrap(), [0; 0]);
        assert_eq!(read(&volume, 0).await[0], 0x53);
        write(&volume, 0, vec![0; BLOCK_SIZE]).await;
        assert!(matches!(names(&volume).await, Err(TreeError::NoCatalogue)));
    });
}

/// A catalogue without copies, as older programs wrote it.
#[test]
fn a_catalogue_without_copies_gets_them() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        create(&env, &volume, "a", Kind::Btree, 100).await;
        let copy = read(&volume, 15).await;
        write(&volume, 15, vec![0; BLOCK_SIZE]).await;
        assert_eq!(names(&volume).await.unwrap(), ["a"]);
        assert_eq!(catalogue::repair(&*volume).await.unwrap(), [0; 0]);
        assert_eq!(read(&volume, 15).await, copy);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&copy[..12]), "5448414c5745475001000000");
        assert_eq!(hex(&copy[16..36]), "0f00000000000000010000000100000001000000");
    });
}

#[test]
fn a_newer_catalogue_is_refused() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        create(&env, &volume, "a", Kind::Btree, 100).await;
        let mut newer = read(&volume, 0).await.to_vec();
        newer[8] = 9;
        newer[12..16].fill(0);
        let sum = thalweg_store::checksum::crc32c(&newer);
        newer[12..16].copy_from_slice(&sum.to_le_bytes());
        write(&volume, 0, newer).await;
        let error = Store::open(&env, volume.clone(), "a").await.unwrap_err();
        assert!(matches!(error, TreeError::Newer { version: 9, .. }), "{error}");
    });
}

/// A store is open while its partition is dropped and another one is created there.
#[test]
fn a_store_that_was_dropped_fails() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 1000);
            let old = create(&env, &volume, "old", kind, 500).await;
            old.put(b"key", b"value".to_vec()).await.unwrap();
            for made_anew in [false, true] {
                if made_anew {
                    create(&env, &volume, "new", kind, 500).await;
                } else {
                    catalogue::remove(&env, &*volume, "old").await.unwrap();
                }
                for number in 0..20u8 {
                    assert!(old.get(&[number]).await.is_err());
                    assert!(old.put(&[number], b"value".to_vec()).await.is_err());
                    assert!(old.delete(&[number]).await.is_err());
                }
                assert!(old.check().await.is_err());
            }
            let new = Store::open(&env, volume.clone(), "new").await.unwrap();
            assert_eq!(new.check().await.unwrap().keys, 0);
        });
    }
}

#[test]
fn what_is_too_large_is_refused() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 1000);
            let store = create(&env, &volume, "kv", kind, 900).await;
            let long = vec![1; MAX_KEY + 1];
            let error = store.put(&long, b"v".to_vec()).await.unwrap_err();
            assert!(matches!(error, TreeError::KeyTooLarge(1025)), "{error}");
            assert!(matches!(store.get(&long).await, Err(TreeError::KeyTooLarge(_))));
            assert!(matches!(store.delete(&long).await, Err(TreeError::KeyTooLarge(_))));
            let error = store.put(b"k", vec![1; MAX_VALUE + 1]).await.unwrap_err();
            assert!(matches!(error, TreeError::ValueTooLarge(_)), "{error}");
            // More blocks than a transaction may write: none of them counts.
            let mut batch = Batch::new();
            for number in 0..3u8 {
                batch.put(vec![number], vec![number; MAX_VALUE]);
            }
            let error = store.write(&batch).await.unwrap_err();
            assert!(matches!(error, TreeError::Txn(TxnError::TooLarge(256))), "{error}");
            assert_eq!(store.check().await.unwrap().keys, 0);
        });
    }
}

/// A batch without enough room leaves a transaction as it was.
#[test]
fn a_batch_without_room_changes_nothing() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 200);
            let store = create(&env, &volume, "kv", kind, 60).await;
            store.put(b"there", b"before".to_vec()).await.unwrap();
            let mut batch = Batch::new();
            batch.delete(&b"there"[..]);
            for number in 0..60u8 {
                batch.put(vec![number], vec![number; 5000]);
            }
            assert!(matches!(store.write(&batch).await, Err(TreeError::Full(_))));
            let txn = volume.begin(Begin::STRICT).await.unwrap();
            assert!(matches!(store.write_in(&*txn, &batch).await, Err(TreeError::Full(_))));
            store.put_in(&*txn, b"and", b"after".to_vec()).await.unwrap();
            txn.commit(SYNCED).await.unwrap();
            let all: Vec<_> = contents(&store).await.into_iter().collect();
            assert_eq!(
                all,
                [(b"and".to_vec(), b"after".to_vec()), (b"there".to_vec(), b"before".to_vec())]
            );
            store.check().await.unwrap();
        });
    }
}

/// A key of 16 bytes.
fn key(number: u64) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [mixed.to_be_bytes(), number.to_be_bytes()].concat()
}

#[test]
fn a_small_change_touches_few_bytes() {
    const KEYS: u64 = 100_000;
    const VALUE: usize = 174;
    for kind in KINDS {
        run(1, |env| async move {
            let counting = Arc::new(Counting::default());
            let volume = transact(&env, counting.clone());
            let store = create(&env, &volume, "kv", kind, 1 << 19).await;
            for first in (0..KEYS).step_by(20) {
                let mut batch = Batch::new();
                for number in first..first + 20 {
                    batch.put(key(number), vec![1; VALUE]);
                }
                store.write(&batch).await.unwrap();
            }
            println!("{kind}: {:?}", store.check().await.unwrap());
            let mut rng = env.rng();
            let mut measure = async |what: &str, change: &dyn Fn(u64) -> (u64, Option<usize>)| {
                *counting.cost.lock() = Cost::default();
                let count = 2000;
                for _ in 0..count {
                    let (number, len) = change(rng.random());
                    match len {
                        Some(len) => store.put(&key(number), vec![2; len]).await.unwrap(),
                        None => drop(store.delete(&key(number)).await.unwrap()),
                    }
                }
                let cost = *counting.cost.lock();
                let each = |sum: usize| sum as f64 / f64::from(count);
                println!(
                    "{kind}, {what}: {:.0} bytes in {:.2} ranges of {:.2} blocks",
                    each(cost.bytes),
                    each(cost.ranges),
                    each(cost.blocks)
                );
                (each(cost.bytes), each(cost.blocks))
            };
            let over = measure("overwrite", &|any| (any % KEYS, Some(VALUE))).await;
            assert!(over.0 <= 190.0 && over.1 == 1.0, "{over:?}");
            let longer = measure("longer", &|any| (any % KEYS, Some(VALUE + 20))).await;
            assert!(longer.0 <= 1200.0, "{longer:?}");
            let new = measure("new key", &|any| (KEYS + any % (1 << 40), Some(VALUE))).await;
            assert!(new.0 <= 700.0 && new.1 < 1.4, "{new:?}");
            let gone = measure("delete", &|any| (any % KEYS, None)).await;
            assert!(gone.0 <= 120.0, "{gone:?}");
            store.check().await.unwrap();
        });
    }
}

/// A put of a new key where no page is split.
#[test]
fn a_new_key_costs_its_record_its_slots_and_the_count() {
    for kind in KINDS {
        run(1, |env| async move {
            let counting = Arc::new(Counting::default());
            let volume = transact(&env, counting.clone());
            let store = create(&env, &volume, "kv", kind, 100).await;
            store.put(&key(1), vec![1; 174]).await.unwrap();
            for number in 2..10 {
                *counting.cost.lock() = Cost::default();
                store.put(&key(number), vec![1; 174]).await.unwrap();
                let cost = *counting.cost.lock();
                assert!(cost.bytes <= 208 + 2 + 2 * 10 && cost.blocks == 1, "{cost:?}");
            }
        });
    }
}

/// Two stores with the same uuid and history are the same, byte for byte, and as they were when the format
/// was fixed. A change here is a new format version.
#[test]
fn golden_bytes() {
    run(1, |env| async move {
        let volume = volume(&env, 100);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let store = create(&env, &volume, "kv", Kind::Btree, 20).await;
        store.put(b"key", b"value".to_vec()).await.unwrap();
        store.put(b"large", vec![7; 5000]).await.unwrap();
        let tag = format::tag(&catalogue::open(&*volume, "kv").await.unwrap().uuid);
        let tag = hex(&tag.to_le_bytes());
        let first = read(&volume, 0).await;
        assert_eq!(hex(&first[..12]), "5448414c5745475001000000");
        assert_eq!(hex(&first[16..24]), "0000000001000000");
        assert_eq!(hex(&first[64..68]), "026b7600");
        assert_eq!(hex(&first[112..114]), "0101");
        assert_eq!(hex(&first[144..160]), "10000000000000001400000000000000");
        let root = read(&volume, 18).await;
        assert_eq!(hex(&root[..16]), format!("5457706703000100{tag}02000000"));
        assert_eq!(hex(&root[16..36]), "00000000000000000000000000000200ff00fd00");
        assert_eq!(hex(&root[4080..]), "0100030005000500".to_owned() + &hex(b"valuekey"));
        let large = hex(&root[4048..4080]);
        assert_eq!(&large[..36], "030005000a00130088130000030000000200");
        let bitmap = read(&volume, 17).await;
        assert_eq!(hex(&bitmap[..8]), "5457706702000100");
        assert_eq!(bitmap[32..].iter().map(|byte| byte.count_ones()).sum::<u32>(), 2);
        assert_eq!(hex(&read(&volume, 16).await[..8]), "5457706701000100");
    });
}

/// The requested durability and isolation reach the transactions.
#[test]
fn visible_puts_are_seen_at_once() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 400);
            let store = create(&env, &volume, "kv", kind, 300).await;
            let store =
                store.with_durability(Durability::Visible).with_isolation(Isolation::Snapshot);
            let taste = Taste { keys: 50, long_keys: 3, small: 100, large: 5000 };
            let mut rng = env.rng();
            for _ in 0..50 {
                let (key, value) = (taste.key(&mut rng), taste.value(&mut rng));
                store.put(&key, value.clone()).await.unwrap();
                assert_eq!(store.get(&key).await.unwrap().unwrap(), value);
            }
        });
    }
}

/// Code that needs nothing but a volume runs on a real one too: no simulated time is needed.
#[tokio::test]
async fn it_runs_in_real_time() {
    let env = Env::real();
    let volume = volume(&env, 400);
    let store = create(&env, &volume, "kv", Kind::Btree, 300).await;
    store.put(b"key", b"value".to_vec()).await.unwrap();
    assert_eq!(store.get(b"key").await.unwrap().unwrap(), "value");
}

#[test]
fn the_greatest_key_that_is_not_above() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        let tree = create(&env, &volume, "tree", Kind::Btree, 700).await;
        let mut rng = env.rng();
        let mut keys = std::collections::BTreeSet::new();
        let key = |number: u32| [&number.to_be_bytes()[..], &[b'k'; 60]].concat();
        for round in 0..3000 {
            let number = rng.random_range(0..4000u32);
            // Finally whole leaves are empty.
            match round > 1500 && (number < 3000 || rng.random_bool(0.5)) {
                true => drop(tree.delete(&key(number)).await.unwrap()),
                false => tree.put(&key(number), vec![1; 20]).await.unwrap(),
            }
            if tree.get(&key(number)).await.unwrap().is_some() {
                keys.insert(number);
            } else {
                keys.remove(&number);
            }
            if round % 10 == 0 {
                let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
                let probe = rng.random_range(0..4000u32);
                let found = tree.floor_in(&*txn, &key(probe)).await.unwrap().map(|it| it.0);
                let expected = keys.range(..=probe).next_back().map(|it| Bytes::from(key(*it)));
                assert_eq!(found, expected);
            }
        }
        let table = create(&env, &volume, "table", Kind::Hash, 100).await;
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        let unordered = table.floor_in(&*txn, b"key").await;
        assert!(matches!(unordered, Err(TreeError::WrongKind { .. })));
    });
}

#[test]
fn what_was_found_below_depends_on_that_key_alone() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        let tree = create(&env, &volume, "tree", Kind::Btree, 300).await;
        for key in [b"a", b"m"] {
            tree.put(key, vec![1; 20]).await.unwrap();
        }
        for (changed, conflicts) in [(b"z", false), (b"a", false), (b"m", true)] {
            let txn = volume.begin(Begin::STRICT).await.unwrap();
            tree.floor_in(&*txn, b"p").await.unwrap();
            txn.write(Lba(900), vec![1; BLOCK_SIZE].into()).unwrap();
            tree.put(changed, vec![2; 20]).await.unwrap();
            let committed = txn.commit(SYNCED).await;
            assert_eq!(matches!(committed, Err(TxnError::Conflict)), conflicts, "{changed:?}");
        }
    });
}

#[test]
fn a_run_is_discarded_through_transactions_or_past_them() {
    run(1, |env| async move {
        let volume = volume(&env, 1000);
        for others in [false, true] {
            for lba in 100..500 {
                write(&volume, lba, vec![7; BLOCK_SIZE]).await;
            }
            let reader = volume.begin(Begin::SNAPSHOT).await.unwrap();
            if !others {
                reader.abort().await;
            }
            volume.discard_run(Lba(150), 300).await.unwrap();
            for lba in [100, 149, 150, 449, 450, 499] {
                let empty = read(&volume, lba).await.iter().all(|byte| *byte == 0);
                assert_eq!(empty, (150..450).contains(&lba), "{lba}");
            }
        }
        let outside = volume.discard_run(Lba(900), 200).await;
        assert!(outside.is_err());
    });
}

/// A store's blocks lie together at its partition's beginning, however large that is; and elsewhere when the
/// beginning is full.
#[test]
fn pages_lie_together() {
    for kind in KINDS {
        run(40, |env| async move {
            let memory = Arc::new(VersionedMemory::trusting(110_000));
            let volume = transact(&env, memory.clone());
            let store = create(&env, &volume, "store", kind, 100_000).await;
            let first = catalogue::open(&*volume, "store").await.unwrap().first;
            let used = || {
                let (mut at, mut used) = (0, Vec::new());
                for (len, is_stored) in memory.allocation(Lba(first), 100_000, None) {
                    used.extend((at..at + len).filter(|_| is_stored));
                    at += len;
                }
                (used.len(), *used.last().unwrap())
            };
            for number in 0..2000 {
                store.put(&key(number), vec![1; 1000]).await.unwrap();
            }
            let (count, last) = used();
            assert!(count > 500 && last < 33_000, "{kind}: {count} blocks up to {last}");
            // More than the beginning has room for.
            for number in 2000..4500 {
                store.put(&key(number), vec![2; 60 << 10]).await.unwrap();
            }
            let (count, last) = used();
            assert!(count > 37_000 && last < 75_000, "{kind}: {count} blocks up to {last}");
        });
    }
}
