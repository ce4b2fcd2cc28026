//! Many clients at the same time.

use std::collections::BTreeMap;

use imgstore::ImgStore;
use rand::RngExt;
use thalweg_env::Env;

use crate::rig::{Composition, Rig, photo};

const TASKS: u64 = 12;
const STEPS: u64 = 40;
/// Number of photos of each task's own.
const OWN: u64 = 6;
/// The first number of the photos that all tasks share.
const SHARED: u64 = 1000;

/// Adds and removes photos at random; returns its own remaining photos by number: date and stamp.
async fn work(env: Env, photos: ImgStore, task: u64) -> BTreeMap<u64, (u64, u64)> {
    let mut rng = env.rng();
    let mut model = BTreeMap::new();
    for step in 0..STEPS {
        let stamp = task * STEPS + step;
        let date = rng.random_range(0..10);
        if rng.random_range(0..4) == 0 {
            let id = SHARED + rng.random_range(0..3);
            photos.add(id, &photo(id, date, stamp)).await.unwrap();
            continue;
        }
        let id = rng.random_range(0..OWN) * TASKS + task;
        if rng.random_range(0..3) == 0 {
            let was_there = photos.remove(id).await.unwrap();
            assert_eq!(was_there, model.remove(&id).is_some());
        } else {
            photos.add(id, &photo(id, date, stamp)).await.unwrap();
            model.insert(id, (date, stamp));
            assert_eq!(photos.get(id).await.unwrap(), Some(photo(id, date, stamp)));
        }
    }
    model
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_leaves_what_a_sorted_map_has() {
    for composition in Composition::ALL {
        let rig = Rig::new().await;
        let photos = rig.open(composition).await;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| rig.env.spawn(work(rig.env.clone(), photos.clone(), task)))
            .collect();
        let mut model = BTreeMap::new();
        for task in tasks {
            model.extend(task.await.unwrap());
        }
        let index = photos.taken(0..u64::MAX).await.unwrap();
        let (own, shared): (Vec<_>, Vec<_>) = index.into_iter().partition(|(_, id)| *id < SHARED);
        let mut wanted: Vec<_> = model.iter().map(|(id, (date, _))| (*date, *id)).collect();
        wanted.sort_unstable();
        assert_eq!(own, wanted, "{composition:?}");
        for id in 0..TASKS * OWN {
            let wanted = model.get(&id).map(|(date, stamp)| photo(id, *date, *stamp));
            assert_eq!(photos.get(id).await.unwrap(), wanted);
        }
        // Each photo has exactly its own date.
        let mut found = Vec::new();
        for id in SHARED..SHARED + 3 {
            found.extend(photos.get(id).await.unwrap().map(|photo| (photo.date, id)));
        }
        found.sort_unstable();
        assert_eq!(shared, found);
        assert!(rig.manager.status().conflicts > 0, "they never met");
        rig.check().await;
    }
}
