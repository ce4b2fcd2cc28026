//! Both stores change, or neither does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use imgstore::{Call, DATES, Endpoint, IMAGES, ImgError, ImgStore, Txn};
use thalweg_store::tree::{Kind, NewPartition, catalogue};
use thalweg_store::txn::Options;

use crate::rig::{Composition, Rig, photo};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_second_store_leaves_nothing_in_the_first() {
    for composition in Composition::ALL {
        let rig = Rig::bare(Options::default());
        for (name, kind, blocks) in [(IMAGES, Kind::Hash, 2048), (DATES, Kind::Btree, 8)] {
            let (name, blocks) = (name.to_owned(), Some(blocks));
            let new = NewPartition { name, kind, first: None, blocks };
            catalogue::create(&rig.env, &rig.manager, &new).await.unwrap();
        }
        let photos = rig.open(composition).await;
        let mut added = Vec::new();
        let refused = loop {
            let id = added.len() as u64;
            match photos.add(id, &photo(id, 5, 0)).await {
                Ok(()) => added.push((5, id)),
                Err(refused) => break refused,
            }
        };
        assert!(refused.to_string().contains("no room left in partition dates"), "{refused}");
        assert!(added.len() > 100, "{} fit", added.len());
        let id = added.len() as u64;
        assert_eq!(photos.get(id).await.unwrap(), None, "{composition:?}");
        assert_eq!(photos.taken(0..u64::MAX).await.unwrap(), added);
        rig.check().await;
        // With free space again, calls succeed.
        assert!(photos.remove(id - 1).await.unwrap());
        photos.add(id, &photo(id, 5, 0)).await.unwrap();
        assert_eq!(photos.get(id).await.unwrap(), Some(photo(id, 5, 0)));
    }
}

/// A store with a conflict: before its first call, another client adds the same photo.
struct Meddled {
    dates: Arc<dyn Endpoint>,
    other: ImgStore,
    calls: AtomicU64,
}

#[async_trait]
impl Endpoint for Meddled {
    async fn call(&self, txn: Txn, calls: Vec<Call>) -> Result<(Txn, Vec<Bytes>), ImgError> {
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
            self.other.add(1, &photo(1, 77, 1)).await?;
            // Other transactions do not see the first store's changes so far.
            assert_eq!(self.other.get(1).await?, Some(photo(1, 77, 1)));
        }
        self.dates.call(txn, calls).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_leaves_nothing_and_is_tried_again() {
    for composition in Composition::ALL {
        let rig = Rig::new().await;
        let (images, dates) = rig.endpoints(composition).await;
        let volume = Arc::new(rig.manager.clone());
        let other = ImgStore::new(volume.clone(), images.clone(), dates.clone());
        let meddled = Arc::new(Meddled { dates, other, calls: AtomicU64::new(0) });
        let photos = ImgStore::new(volume, images, meddled.clone());
        photos.add(1, &photo(1, 55, 2)).await.unwrap();
        // The second attempt found the other client's photo, and removed its date.
        assert_eq!(meddled.calls.load(Ordering::Relaxed), 2, "{composition:?}");
        assert_eq!(rig.manager.status().conflicts, 1);
        assert_eq!(photos.get(1).await.unwrap(), Some(photo(1, 55, 2)));
        assert_eq!(photos.taken(0..u64::MAX).await.unwrap(), [(55, 1)]);
        rig.check().await;
    }
}
