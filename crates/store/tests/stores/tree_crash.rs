//! Power cuts and scribbles: after a crash stores are sound and hold a prefix of the changes, with all that
//! were acknowledged; an inconsistent page is an error.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::campaign;
use thalweg_sim::crash::{CrashImage, Points, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_store::block::Lba;
use thalweg_store::chain::{Chain, Cleaning};
use thalweg_store::device::DeviceRef;
use thalweg_store::tree::{Batch, Kind, Store, TreeError, catalogue};
use thalweg_store::txn::{self, Begin, Durability, Transact};

use crate::support::kv::{KINDS, Map, Pair, Taste, contents, create, transact, volume};
use crate::support::{Shape, options};

const TASTE: Taste = Taste { keys: 80, long_keys: 60, small: 700, large: 9000 };

async fn open(env: &Env, shape: Shape, devices: &[DeviceRef]) -> Arc<dyn Transact> {
    let opened = Chain::open(env, shape.parts(devices), options()).await;
    transact(env, Arc::new(opened.unwrap().0))
}

/// Both stores as they were after each step, the first before any.
type States = Vec<[Map; 2]>;

/// Changes both stores in one transaction, and records their contents. Returns the transaction's durability.
async fn step(volume: &dyn Transact, pairs: &mut [Pair; 2], rng: &mut Rng) -> Durability {
    let made: Vec<(Batch, Map)> =
        pairs.iter().map(|pair| pair.batch(rng, rng_count(pair, 5), 0.4)).collect();
    let visible = made[0].0.len().is_multiple_of(3);
    let synced = if visible { Durability::Visible } else { Durability::Synced };
    txn::run(volume, Begin::STRICT, synced, async |txn| {
        for (pair, (batch, _)) in pairs.iter().zip(&made) {
            pair.store.write_in(&*txn, batch).await?;
        }
        Ok::<_, TreeError>(())
    })
    .await
    .unwrap();
    for (pair, (_, map)) in pairs.iter_mut().zip(made) {
        pair.map = map;
    }
    synced
}

/// A number that depends on a store's content, at least 1.
fn rng_count(pair: &Pair, most: usize) -> usize {
    1 + (pair.map.len() * 7 + pair.map.values().map(Vec::len).sum::<usize>()) % most
}

fn crashes(seed: u64, shape: Shape, steps: usize, points: usize) -> (u64, u64) {
    run(seed, |env| async move {
        let recorder = Recorder::with_latency(&env, Duration::from_micros(200));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let volume = open(&env, shape, &devices).await;
        let mut rng = env.rng();
        let mut pairs = [
            Pair::new(create(&env, &volume, "tree", Kind::Btree, 300).await, TASTE),
            Pair::new(create(&env, &volume, "table", Kind::Hash, 300).await, TASTE),
        ];
        let begun = recorder.position();
        let mut states: States = vec![[Map::new(), Map::new()]];
        recorder.mark(0);
        for number in 1..=steps {
            let durability = step(&*volume, &mut pairs, &mut rng).await;
            states.push([pairs[0].map.clone(), pairs[1].map.clone()]);
            if durability == Durability::Synced {
                recorder.mark(number as u64);
            }
        }
        drop(volume);
        let points: Vec<usize> =
            (0..points).map(|_| rng.random_range(begun..=recorder.position())).collect();
        let policy = Policy { prefixes: 1, missing: 1, torn: 1, ..Policy::sampled(1) };
        let images = recorder.images(&mut rng, &policy.at(Points::At(points)));
        let (mut checked, mut behind) = (0, 0);
        for image in images {
            let state = check_image(&env, shape, &image, &states).await;
            checked += 1;
            behind += u64::from(state + 1 < states.len());
        }
        (checked, behind)
    })
}

/// The state to which an image recovers.
async fn check_image(env: &Env, shape: Shape, image: &CrashImage, states: &States) -> usize {
    let volume = open(env, shape, &image.devices).await;
    let mut found = [Map::new(), Map::new()];
    for (name, found) in ["tree", "table"].into_iter().zip(&mut found) {
        let store = Store::open(env, volume.clone(), name).await.unwrap();
        let report = store.check().await;
        let report = report.unwrap_or_else(|error| panic!("{}: {error}", image.describe()));
        *found = contents(&store).await;
        assert_eq!(report.keys, found.len() as u64);
        store.put(b"and goes on", vec![1; 3000]).await.unwrap();
        store.check().await.unwrap();
    }
    let least = image.acknowledged().max().unwrap_or(0) as usize;
    let state = (least..states.len()).find(|state| states[*state] == found);
    state.unwrap_or_else(|| panic!("{}: no state from {least} on", image.describe()))
}

#[test]
fn a_crash_leaves_a_prefix_in_all_stores() {
    let shape = Shape { blocks: 900, ..Shape::small(Cleaning::MoveToTail) };
    let shapes = [shape, Shape { map_on_link: true, cleaning: Cleaning::CompactInBody, ..shape }];
    let (mut checked, mut behind) = (0, 0);
    for seed in campaign::seeds(6) {
        let some = crashes(seed, shapes[seed as usize % 2], 40, 12);
        (checked, behind) = (checked + some.0, behind + some.1);
    }
    println!("{checked} images, {behind} of them not of the last state");
    assert!(checked > 300 && behind > 150, "{checked} images, {behind} before the end");
}

/// A crash while a partition is created or dropped leaves it complete, absent, or to be dropped.
#[test]
fn a_crash_while_partitions_come_and_go() {
    run(3, |env| async move {
        let shape = Shape { blocks: 900, ..Shape::small(Cleaning::MoveToTail) };
        let recorder = Recorder::with_latency(&env, Duration::from_micros(200));
        let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
        shape.format(&env, &devices).await;
        let volume = open(&env, shape, &devices).await;
        let begun = recorder.position();
        for round in 0..3u8 {
            for kind in KINDS {
                let store = create(&env, &volume, &format!("{kind}"), kind, 200).await;
                for key in 0..40 {
                    store.put(&[key], vec![round; 900]).await.unwrap();
                }
            }
            for kind in KINDS {
                catalogue::remove(&env, &*volume, &format!("{kind}")).await.unwrap();
            }
        }
        drop(volume);
        let mut rng = env.rng();
        let points = (0..60).map(|_| rng.random_range(begun..=recorder.position())).collect();
        let (mut unfinished, mut ready) = (0, 0);
        for image in recorder.images(&mut rng, &Policy::sampled(1).at(Points::At(points))) {
            let volume = open(&env, shape, &image.devices).await;
            let there = match catalogue::list(&*volume).await {
                Err(TreeError::NoCatalogue) => Vec::new(),
                listed => listed.unwrap(),
            };
            for partition in there {
                match Store::open(&env, volume.clone(), &partition.name).await {
                    Ok(store) => {
                        store.check().await.unwrap();
                        ready += 1;
                    }
                    Err(error) => {
                        assert!(matches!(error, TreeError::Unfinished(_)), "{error}");
                        unfinished += 1;
                    }
                }
                catalogue::remove(&env, &*volume, &partition.name).await.unwrap();
            }
            for kind in KINDS {
                let store = create(&env, &volume, &format!("{kind}"), kind, 200).await;
                assert_eq!(store.check().await.unwrap().keys, 0);
                store.put(b"key", b"value".to_vec()).await.unwrap();
            }
        }
        println!("{ready} ready, {unfinished} unfinished");
        assert!(ready > 20 && unfinished > 5, "{ready} ready, {unfinished} unfinished");
    });
}

/// Scribbles on a page.
fn scribble(page: &mut [u8], others: &[Bytes], rng: &mut Rng) {
    match rng.random_range(0..6) {
        0 => page[rng.random_range(0..4096)] ^= 1 << rng.random_range(0..8),
        1 => page[rng.random_range(0..128)] = rng.random(),
        2 => rng.fill(&mut page[..]),
        3 => {
            let at = rng.random_range(0..4096 / 16) * 16;
            rng.fill(&mut page[at..at + 16]);
        }
        4 => page.copy_from_slice(&others[rng.random_range(0..others.len())]),
        _ => {
            // Changes slots alone: header and records stay as they were.
            let at = 32 + 2 * rng.random_range(0..20);
            page[at] = rng.random();
        }
    }
}

/// Calls every operation of a store, some more than once. Returns whether all succeeded.
async fn exercise(store: &Store, rng: &mut Rng) -> bool {
    let mut worked = true;
    for _ in 0..12 {
        let key = TASTE.key(rng);
        worked &= store.get(&key).await.is_ok();
        worked &= store.put(&key, TASTE.value(rng)).await.is_ok();
        worked &= store.delete(&TASTE.key(rng)).await.is_ok();
    }
    if let Ok(iter) = store.iter().await {
        let mut iter = match store.kind() {
            Kind::Btree if rng.random_bool(0.5) => iter.backward().unwrap(),
            _ => iter,
        };
        let mut count = 0;
        loop {
            match iter.next().await {
                Ok(Some(_)) => count += 1,
                Ok(None) => break,
                Err(_) => {
                    worked = false;
                    break;
                }
            }
            assert!(count < 100_000, "an iterator without end");
        }
    }
    worked & store.check().await.is_ok()
}

#[test]
fn pages_that_were_scribbled_on_are_errors() {
    for kind in KINDS {
        let mut found = 0;
        for seed in campaign::seeds(150) {
            found += u64::from(!scribbled(seed, kind));
        }
        println!("{kind}: {found} found");
        assert!(found > 100, "{kind}: {found}");
    }
}

fn scribbled(seed: u64, kind: Kind) -> bool {
    run(seed, |env| async move {
        let volume = volume(&env, 400);
        let mut pair = Pair::new(create(&env, &volume, "kv", kind, 300).await, TASTE);
        let mut rng = env.rng();
        for _ in 0..90 {
            pair.change(&mut rng, 0.1).await;
        }
        let txn = volume.begin(Begin::SNAPSHOT).await.unwrap();
        let blocks = txn.read_run(Lba(16), 300).await.unwrap();
        let used: BTreeMap<u64, &Bytes> =
            (16..).zip(&blocks).filter(|(_, it)| it.starts_with(b"TWpg")).collect();
        for _ in 0..rng.random_range(1..4) {
            let (lba, page) = used.iter().nth(rng.random_range(0..used.len())).unwrap();
            let mut page = page.to_vec();
            scribble(&mut page, &blocks, &mut rng);
            txn.write(Lba(*lba), page.into()).unwrap();
        }
        txn.commit(Durability::Synced).await.unwrap();
        exercise(&pair.store, &mut rng).await
    })
}
