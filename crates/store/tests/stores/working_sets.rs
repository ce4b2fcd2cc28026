//! Working sets: several calls of one transaction that share their pages.

use std::collections::BTreeMap;

use rand::RngExt;
use thalweg_env::Rng;
use thalweg_sim::campaign;
use thalweg_sim::runtime::run;
use thalweg_store::tree::{Kind, WorkingSet};
use thalweg_store::txn::{Begin, Durability};

use crate::support::kv::{KINDS, Map, contents, create, owned, volume};

/// A working set shows a value in which it has overwritten some blocks.
#[test]
fn parts_of_a_large_value_are_seen_before_they_are_written() {
    for (kind, block) in KINDS.into_iter().flat_map(|kind| [0, 1, 2].map(|block| (kind, block))) {
        run(block as u64, |env| async move {
            let volume = volume(&env, 400);
            let store = create(&env, &volume, "kv", kind, 300).await;
            let mut value = vec![1; 3 * 4096];
            store.put(b"a", value.clone()).await.unwrap();
            let txn = volume.begin(Begin::STRICT).await.unwrap();
            let mut set = store.working_set(&*txn);
            let from = block * 4096 + 10;
            value[from..from + 20].fill(2);
            assert!(set.overwrite(b"a", from, vec![2; 20].into()).await.unwrap());
            assert!(set.get(b"a").await.unwrap().unwrap() == value, "{kind}, block {block}");
            set.finish().unwrap();
            txn.commit(Durability::Visible).await.unwrap();
            assert!(store.get(b"a").await.unwrap().unwrap() == value, "{kind}, block {block}");
        });
    }
}

/// Numbers below this are keys.
const KEYS: u32 = 4000;

fn key(number: u32) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(4 + (number % 7) as usize * 20, b'k');
    key
}

/// A call about a key, on a working set and on a map.
async fn call(set: &mut WorkingSet<'_>, map: &mut Map, key: Vec<u8>, deletes: f64, rng: &mut Rng) {
    match rng.random_range(0..3) {
        0 => {
            let there = set.get(&key).await.unwrap();
            assert_eq!(there.as_deref(), map.get(&key).map(Vec::as_slice), "{key:?}");
            let floor = set.floor(&key).await.unwrap();
            let expected = map.range(..=key).next_back();
            assert_eq!(floor.into_iter().collect::<Vec<_>>(), owned(expected.into_iter()));
        }
        _ if rng.random_bool(deletes) => {
            let was_there = set.delete(&key).await.unwrap();
            assert_eq!(was_there, map.remove(&key).is_some(), "{key:?}");
        }
        _ => {
            let value = vec![rng.random(); rng.random_range(0..300)];
            set.put(&key, value.clone().into()).await.unwrap();
            map.insert(key, value);
        }
    }
}

/// Calls of one working set go through the keys in order, in turns at two places: leaves are split and merged under both.
#[test]
fn a_working_set_is_a_map_while_its_leaves_change() {
    for seed in campaign::seeds(6) {
        run(seed, |env| async move {
            let volume = volume(&env, 4000);
            let store = create(&env, &volume, "kv", Kind::Btree, 3000).await;
            let (mut map, mut rng) = (BTreeMap::new(), env.rng());
            for deletes in [0.1, 0.9, 0.1, 0.9, 0.5] {
                let txn = volume.begin(Begin::STRICT).await.unwrap();
                let mut set = store.working_set(&*txn);
                let mut places = [0, KEYS / 2];
                for step in 0..3000 {
                    let place = &mut places[step % 2];
                    *place = match rng.random_bool(0.005) {
                        true => rng.random_range(0..KEYS),
                        false => (*place + rng.random_range(1..4)) % KEYS,
                    };
                    call(&mut set, &mut map, key(*place), deletes, &mut rng).await;
                }
                set.finish().unwrap();
                txn.commit(Durability::Visible).await.unwrap();
                assert_eq!(store.check().await.unwrap().keys, map.len() as u64);
                assert_eq!(contents(&store).await, map);
            }
        });
    }
}
