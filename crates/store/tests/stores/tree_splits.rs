//! Splits of a leaf that leave all of its records where they are.

use thalweg_sim::runtime::run;
use thalweg_store::tree::Kind;
use thalweg_store::txn::{Begin, Durability, Isolation, TxnError};

use crate::support::kv::{create, volume};

#[test]
fn a_key_that_splits_its_leaf_conflicts_with_the_same_key_in_the_leaf() {
    for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
        run(7, |env| async move {
            let volume = volume(&env, 400);
            let store = create(&env, &volume, "kv", Kind::Btree, 300).await;
            for number in 0..16 {
                store.put(&[number], vec![number; 174]).await.unwrap();
            }
            let begin = Begin { isolation, ..Begin::default() };
            let one = volume.begin(begin).await.unwrap();
            let two = volume.begin(begin).await.unwrap();
            // The new record, behind all others, moves to the new leaf alone.
            store.put_in(&*one, &[100], vec![1; 1800]).await.unwrap();
            for number in 0..3 {
                store.delete_in(&*two, &[number]).await.unwrap();
            }
            store.put_in(&*two, &[100], vec![2; 174]).await.unwrap();
            one.commit(Durability::Visible).await.unwrap();
            let two = two.commit(Durability::Visible).await;
            assert!(matches!(two, Err(TxnError::Conflict)), "{isolation:?}: {two:?}");
            assert_eq!(store.check().await.unwrap().keys, 17);
        });
    }
}
