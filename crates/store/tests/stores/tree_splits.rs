//! Keys that are added at the same time in two places, behind a leaf that was split or in two pages of a bucket; and
//! records that move while others leave their page.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use thalweg_env::Env;
use thalweg_sim::runtime::run;
use thalweg_store::tree::format::DIRECTORY_ENTRIES;
use thalweg_store::tree::{Kind, catalogue};
use thalweg_store::txn::{Begin, Durability, Isolation, TxnError};

use crate::support::kv::{KINDS, create, volume};

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

/// The entry of a key in a table with one page of entries.
fn entry(uuid: &[u8; 16], key: u32) -> u64 {
    let mut hasher = SipHasher13::new_with_key(uuid);
    hasher.write(&key.to_be_bytes());
    ((hasher.finish() & 0xffff_ffff) * u64::from(DIRECTORY_ENTRIES)) >> 32
}

/// One transaction puts a key into a page behind the first of its bucket, which has `stored` records, and another
/// makes room for the same key in the first page.
async fn put_in_two_pages(env: &Env, isolation: Isolation, stored: usize) {
    let volume = volume(env, 700);
    let store = create(env, &volume, "table", Kind::Hash, 200).await;
    let uuid = catalogue::open(&*volume, "table").await.unwrap().uuid;
    // Keys of one entry, whose bucket cannot be split.
    let first = entry(uuid.as_bytes(), 0);
    let keys: Vec<[u8; 4]> = (0..u32::MAX)
        .filter(|key| entry(uuid.as_bytes(), *key) == first)
        .map(u32::to_be_bytes)
        .take(stored + 1)
        .collect();
    // Two records fill a page.
    for key in &keys[..stored] {
        store.put(key, vec![1; 1700]).await.unwrap();
    }
    let begin = Begin { isolation, ..Begin::default() };
    let one = volume.begin(begin).await.unwrap();
    let two = volume.begin(begin).await.unwrap();
    store.put_in(&*one, &keys[stored], vec![1; 1700]).await.unwrap();
    store.delete_in(&*two, &keys[0]).await.unwrap();
    store.put_in(&*two, &keys[stored], vec![2; 1700]).await.unwrap();
    one.commit(Durability::Visible).await.unwrap();
    let two = two.commit(Durability::Visible).await;
    assert!(matches!(two, Err(TxnError::Conflict)), "{isolation:?}, {stored}: {two:?}");
    assert_eq!(store.check().await.unwrap().keys, stored as u64 + 1);
}

#[test]
fn a_key_in_a_later_page_of_its_bucket_conflicts_with_the_same_key_in_the_first() {
    for isolation in [Isolation::StrictSerializable, Isolation::Snapshot] {
        // The later page has room for it, or is a new one.
        for stored in [3, 4] {
            run(8, |env| async move { put_in_two_pages(&env, isolation, stored).await });
        }
    }
}

/// The last slot of a page is alone in its 16 bytes: a record leaves the page while the last one moves within it.
#[test]
fn a_record_that_moves_conflicts_with_one_that_leaves_its_page() {
    for (kind, isolation) in KINDS
        .map(|kind| [(kind, Isolation::Snapshot), (kind, Isolation::StrictSerializable)])
        .concat()
    {
        for first in [true, false] {
            run(9, |env| async move {
                let volume = volume(&env, 400);
                let store = create(&env, &volume, "kv", kind, 300).await;
                for number in 0..9 {
                    store.put(&[number], vec![number; 174]).await.unwrap();
                }
                let begin = Begin { isolation, ..Begin::default() };
                let one = volume.begin(begin).await.unwrap();
                let two = volume.begin(begin).await.unwrap();
                store.delete_in(&*one, &[2]).await.unwrap();
                store.put_in(&*two, &[8], vec![9; 600]).await.unwrap();
                let (earlier, later) = if first { (one, two) } else { (two, one) };
                earlier.commit(Durability::Visible).await.unwrap();
                let later = later.commit(Durability::Visible).await;
                assert!(
                    matches!(later, Err(TxnError::Conflict)),
                    "{kind} {isolation:?}: {later:?}"
                );
                store.check().await.unwrap();
            });
        }
    }
}
