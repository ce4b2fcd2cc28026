//! Random histories of key-value stores, compared with sorted maps.

use std::ops::Bound;

use proptest::prelude::*;
use rand::RngExt;
use thalweg_env::Rng;
use thalweg_sim::runtime::run;
use thalweg_store::tree::{Kind, MAX_KEY, MAX_VALUE};
use thalweg_store::txn::{Begin, Durability};

use crate::support::kv::{KINDS, Pair, Taste, create, owned, volume};

const MIXED: Taste = Taste { keys: 300, long_keys: 900, small: 1900, large: 60_000 };
const SMALL: Taste = Taste { keys: 3000, long_keys: 8, small: 40, large: 40 };
const LONG_KEYS: Taste = Taste { keys: 900, long_keys: MAX_KEY - 12, small: 900, large: 900 };
const RECORDS: Taste = Taste { keys: 500, long_keys: 16, small: 300, large: 2100 };

/// Runs a history of `steps` on a partition of `blocks`; phases of puts and of deletes alternate.
fn history(seed: u64, kind: Kind, taste: Taste, blocks: u64, steps: usize) -> u64 {
    run(seed, |env| async move {
        let volume = volume(&env, blocks + 100);
        let mut pair = Pair::new(create(&env, &volume, "kv", kind, blocks).await, taste);
        let mut rng = env.rng();
        for step in 0..steps {
            let growing = (step / (steps / 6).max(1)).is_multiple_of(2);
            let deletes = if growing { 0.15 } else { 0.75 };
            pair.change(&mut rng, deletes).await;
            if step % (steps / 12).max(1) == 0 {
                pair.compare().await;
            }
            if kind == Kind::Btree && step % 16 == 0 {
                range(&pair, &mut rng).await;
            }
        }
        pair.compare().await;
        pair.full
    })
}

/// The same history for both kinds.
fn both(seed: u64, taste: Taste, blocks: u64, steps: usize) {
    for kind in KINDS {
        history(seed, kind, taste, blocks, steps);
    }
}

/// A random range, read in either direction.
async fn range(pair: &Pair, rng: &mut Rng) {
    let mut bound = || {
        let key = pair.taste.key(rng);
        match rng.random_range(0..5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    };
    let range = (bound(), bound());
    let inside = |key: &Vec<u8>| {
        std::ops::RangeBounds::contains(&(range.0.as_ref(), range.1.as_ref()), &key)
    };
    let mut expected = owned(pair.map.iter().filter(|(key, _)| inside(key)));
    let found = pair.store.range(range.clone()).await.unwrap().collect().await.unwrap();
    assert!(found == expected, "{range:?}");
    expected.reverse();
    let back = pair.store.range(range.clone()).await.unwrap().backward().unwrap();
    assert!(back.collect().await.unwrap() == expected, "{range:?} backward");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn mixed_values(seed: u64) {
        both(seed, MIXED, 3000, 700);
    }

    #[test]
    fn many_small_records(seed: u64) {
        both(seed, SMALL, 1000, 1500);
    }

    #[test]
    fn long_keys(seed: u64) {
        both(seed, LONG_KEYS, 3000, 1200);
    }

    #[test]
    fn records_that_grow_and_shrink(seed: u64) {
        both(seed, RECORDS, 800, 1000);
    }
}

#[test]
fn a_full_partition_refuses_and_holds_what_it_held() {
    for kind in KINDS {
        let full: u64 = (0..6).map(|seed| history(seed, kind, MIXED, 60, 600)).sum();
        assert!(full > 100, "{full} refusals");
        let full: u64 = (0..6).map(|seed| history(seed, kind, RECORDS, 16, 600)).sum();
        assert!(full > 100, "{full} refusals");
    }
}

/// Everything can be deleted, and the remains are no more than a new store has.
#[test]
fn deleting_everything_frees_everything() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 3000);
            let mut pair = Pair::new(create(&env, &volume, "kv", kind, 2000).await, MIXED);
            let mut rng = env.rng();
            for round in 0..4 {
                for _ in 0..300 {
                    pair.change(&mut rng, 0.1).await;
                }
                for key in pair.map.keys().cloned().collect::<Vec<_>>() {
                    assert!(pair.store.delete(&key).await.unwrap());
                }
                pair.map.clear();
                pair.compare().await;
                let report = pair.store.check().await.unwrap();
                let left = if kind == Kind::Btree { 1 } else { 4 };
                assert!(report.pages <= left, "round {round}: {report:?}");
                assert_eq!(report.value_blocks, 0);
            }
        });
    }
}

/// A window of keys that moves on: deleted ranges do not take up space.
#[test]
fn a_moving_window_stays_small() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 400);
            let store = create(&env, &volume, "kv", kind, 300).await;
            for number in 0..6000u64 {
                store.put(&number.to_be_bytes(), vec![7; 174]).await.unwrap();
                // One key in fifty stays longer.
                let old = number.saturating_sub(if number % 50 == 0 { 900 } else { 400 });
                store.delete(&old.to_be_bytes()).await.unwrap();
                let late = number.saturating_sub(500);
                store.delete(&late.to_be_bytes()).await.unwrap();
            }
            let report = store.check().await.unwrap();
            assert!(report.pages < 130, "{report:?}");
        });
    }
}

#[test]
fn the_longest_keys_and_largest_values() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 3000);
            let taste = Taste { keys: 1, long_keys: 0, small: 0, large: 0 };
            let mut pair = Pair::new(create(&env, &volume, "kv", kind, 2000).await, taste);
            for number in 0..8u8 {
                let key = vec![number; MAX_KEY];
                let value = vec![number; MAX_VALUE - usize::from(number)];
                pair.store.put(&key, value.clone()).await.unwrap();
                pair.map.insert(key, value);
            }
            pair.compare().await;
            // Shorter, and as large again: its blocks are reused and freed.
            for len in [10, 5000, MAX_VALUE, 0, MAX_VALUE / 2, 2000, MAX_VALUE] {
                let key = vec![3; MAX_KEY];
                pair.store.put(&key, vec![len as u8; len]).await.unwrap();
                pair.map.insert(key, vec![len as u8; len]);
                pair.compare().await;
            }
        });
    }
}

#[test]
fn snapshots_and_iterators_stay_as_they_were() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 2000);
            let mut pair = Pair::new(create(&env, &volume, "kv", kind, 1500).await, RECORDS);
            let mut rng = env.rng();
            for _ in 0..200 {
                pair.change(&mut rng, 0.1).await;
            }
            let (before, snapshot) = (pair.map.clone(), pair.store.snapshot().await.unwrap());
            let mut iter = pair.store.iter().await.unwrap();
            let mut seen = Vec::new();
            for number in 0..400 {
                pair.change(&mut rng, 0.5).await;
                if number % 3 == 0 {
                    seen.extend(iter.next().await.unwrap());
                }
            }
            seen.extend(iter.collect().await.unwrap());
            let mut all = snapshot.iter().collect().await.unwrap();
            all.sort();
            seen.sort();
            assert!(all == owned(before.iter()), "the snapshot changed");
            assert!(seen == all, "the iterator shows another state");
            for key in pair.map.keys().chain(before.keys()) {
                let found = snapshot.get(key).await.unwrap();
                assert_eq!(found.as_deref(), before.get(key).map(Vec::as_slice));
            }
            pair.compare().await;
        });
    }
}

/// An iterator in a transaction that writes: unchanged keys come once.
#[test]
fn an_iterator_in_a_transaction_that_writes() {
    for kind in KINDS {
        run(1, |env| async move {
            let volume = volume(&env, 2000);
            let store = create(&env, &volume, "kv", kind, 1500).await;
            for number in (0..900u32).step_by(2) {
                store.put(&number.to_be_bytes(), vec![1; 60]).await.unwrap();
            }
            let txn = volume.begin(Begin::STRICT).await.unwrap();
            let mut iter = store.iter_in(txn.clone());
            let (mut even, mut odd) = (0, 0);
            while let Some((key, value)) = iter.next().await.unwrap() {
                let number = u32::from_be_bytes(key[..].try_into().unwrap());
                assert_eq!(value[0], 1 + (number % 2) as u8);
                if number % 2 == 1 {
                    odd += 1;
                    continue;
                }
                even += 1;
                store.put_in(&*txn, &(number + 1).to_be_bytes(), vec![2; 60]).await.unwrap();
            }
            assert_eq!(even, 450);
            assert!(odd <= 450);
            txn.commit(Durability::Synced).await.unwrap();
            assert_eq!(store.check().await.unwrap().keys, 900);
        });
    }
}
