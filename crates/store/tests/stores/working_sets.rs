//! Working sets: several calls of one transaction that share their pages.

use thalweg_sim::runtime::run;
use thalweg_store::txn::{Begin, Durability};

use crate::support::kv::{KINDS, create, volume};

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
