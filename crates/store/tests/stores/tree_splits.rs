//! Splits of a leaf that leave all of its records where they are.

use thalweg_sim::runtime::run;
use thalweg_store::tree::Kind;
use thalweg_store::txn::{Begin, Durability, Isolation, TxnError};

use crate::support::kv::{create, volume};

#[test]
fn a_key_that_splits_its_leaf_conflicts_with_the_same_key_in_the_leaf() {
    for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
        run(7, |env| async move {
            let volume = volume(&env, 700);
            // As many keys as a root and two leaves hold: the last leaf is full then.
            let store = create(&env, &volume, "measured", Kind::Btree, 200).await;
            let mut keys = 0;
            while store.check().await.unwrap().pages <= 3 {
                store.put(&[keys], vec![keys; 174]).await.unwrap();
                keys += 1;
            }
            keys -= 1;
            let store = create(&env, &volume, "kv", Kind::Btree, 200).await;
            for key in 0..keys {
                store.put(&[key], vec![key; 174]).await.unwrap();
            }
            let begin = Begin { isolation, ..Begin::default() };
            let one = volume.begin(begin).await.unwrap();
            let two = volume.begin(begin).await.unwrap();
            // The new record, behind all others, moves to the new leaf alone.
            store.put_in(&*one, &[200], vec![1; 1755]).await.unwrap();
            for key in keys - 3..keys {
                store.delete_in(&*two, &[key]).await.unwrap();
            }
            store.put_in(&*two, &[200], vec![2; 174]).await.unwrap();
            one.commit(Durability::Visible).await.unwrap();
            let two = two.commit(Durability::Visible).await;
            assert!(matches!(two, Err(TxnError::Conflict)), "{isolation:?}: {two:?}");
            assert_eq!(store.check().await.unwrap().keys, u64::from(keys) + 1);
        });
    }
}
