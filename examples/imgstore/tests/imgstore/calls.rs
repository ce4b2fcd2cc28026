//! What each call does.

use imgstore::ImgError;
use thalweg_store::tree::TreeError;

use crate::rig::{Composition, Rig, photo};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn photos_are_added_replaced_found_by_date_and_removed() {
    for composition in Composition::ALL {
        let rig = Rig::new().await;
        let photos = rig.open(composition).await;
        assert_eq!(photos.get(7).await.unwrap(), None);
        assert!(!photos.remove(7).await.unwrap());
        for (id, date) in [(7, 20), (8, 10), (9, 20), (u64::MAX, 30)] {
            photos.add(id, &photo(id, date, 0)).await.unwrap();
            assert_eq!(photos.get(id).await.unwrap(), Some(photo(id, date, 0)), "{composition:?}");
        }
        let all = [(10, 8), (20, 7), (20, 9), (30, u64::MAX)];
        assert_eq!(photos.taken(0..u64::MAX).await.unwrap(), all);
        assert_eq!(photos.taken(20..30).await.unwrap(), all[1..3]);
        assert_eq!(photos.taken(21..30).await.unwrap(), []);
        // Its old date is removed, also when it equals the new one.
        photos.add(7, &photo(7, 25, 1)).await.unwrap();
        photos.add(9, &photo(9, 20, 2)).await.unwrap();
        assert_eq!(photos.get(7).await.unwrap(), Some(photo(7, 25, 1)));
        assert_eq!(photos.get(9).await.unwrap(), Some(photo(9, 20, 2)));
        assert_eq!(photos.taken(20..30).await.unwrap(), [(20, 9), (25, 7)]);
        assert!(photos.remove(9).await.unwrap());
        assert_eq!(photos.get(9).await.unwrap(), None);
        assert_eq!(photos.taken(0..u64::MAX).await.unwrap(), [(10, 8), (25, 7), (30, u64::MAX)]);
        rig.check().await;
    }
}

/// A store's error is reported wherever the store runs, and nothing has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_photo_that_is_too_large_is_refused() {
    for composition in Composition::ALL {
        let rig = Rig::new().await;
        let photos = rig.open(composition).await;
        let mut large = photo(1, 1, 0);
        large.image = vec![1; thalweg_store::tree::MAX_VALUE].into();
        let refused = photos.add(1, &large).await.unwrap_err();
        assert!(refused.to_string().contains("a value has at most"), "{refused}");
        if composition != Composition::Processes {
            assert!(matches!(refused, ImgError::Store(TreeError::ValueTooLarge(_))));
        }
        assert_eq!(photos.get(1).await.unwrap(), None);
        assert_eq!(photos.taken(0..u64::MAX).await.unwrap(), []);
        rig.check().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_for_the_volume_does_not_keep_the_next() {
    for composition in Composition::ALL {
        let rig = Rig::new().await;
        let photos = rig.open(composition).await;
        photos.add(1, &photo(1, 10, 0)).await.unwrap();
        rig.get_at_once(&photos, 1, 8).await;
        rig.check().await;
    }
}
