//! Read views: gets that share a transaction see what was acknowledged before them, and keep no version for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::RngExt;
use thalweg_env::Env;
use thalweg_sim::campaign;
use thalweg_sim::crash::{Points, Policy};
use thalweg_sim::recording::Recorder;
use thalweg_sim::runtime::run;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BlockVersion, Epoch, EpochVersion, Lba};
use thalweg_store::chain::{Chain, Cleaning};
use thalweg_store::device::DeviceRef;
use thalweg_store::tree::{Kind, Store, TreeError, catalogue};
use thalweg_store::txn::{
    Begin, Contention, Durability, Handle, Options, Transact, Transaction, TransactionManager,
    TxnError,
};

use crate::support::kv::{KINDS, create, partition, transact, volume};
use crate::support::{Shape, options};

fn value(number: u64) -> Bytes {
    Bytes::from(number.to_le_bytes().repeat(1 + number as usize % 3 * 600))
}

fn number(value: Option<Bytes>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

async fn managed(env: &Env, kind: Kind) -> (Arc<TransactionManager>, Store) {
    let blocks = Arc::new(VersionedMemory::new(1000));
    let manager = Arc::new(TransactionManager::new(env, blocks, Options::default()));
    catalogue::create(env, &*manager, &partition("store", kind, 500)).await.unwrap();
    let store = Store::open(env, manager.clone(), "store").await.unwrap();
    (manager, store)
}

#[test]
fn gets_share_a_transaction_that_ends_soon() {
    for kind in KINDS {
        run(1, |env| async move {
            let (manager, store) = managed(&env, kind).await;
            for key in 0..100_u64 {
                store.put(&key.to_be_bytes(), value(key + 1)).await.unwrap();
            }
            let before = manager.status();
            for key in 0..100_u64 {
                assert_eq!(number(store.get(&key.to_be_bytes()).await.unwrap()), key + 1);
            }
            assert_eq!(manager.status().running, before.running + 1, "one for all");
            env.sleep(Duration::from_millis(200)).await;
            assert_eq!(manager.status().running, 0, "no version is kept for readers that are gone");
            assert_eq!(number(store.get(&7_u64.to_be_bytes()).await.unwrap()), 8);
        });
    }
}

#[test]
fn a_get_sees_every_put_that_was_acknowledged() {
    for (seed, kind) in [(1, Kind::Btree), (2, Kind::Hash), (3, Kind::Btree)] {
        run(seed, |env| async move {
            let volume = volume(&env, 2000);
            let store = create(&env, &volume, "store", kind, 1000).await;
            // Another handle: it shares neither groups nor views.
            let other = Store::open(&env, volume.clone(), "store").await.unwrap();
            let writers: Vec<_> = (0..3_u64)
                .map(|writer| {
                    let (env, store, other) = (env.clone(), store.clone(), other.clone());
                    env.clone().spawn(async move {
                        let mut rng = env.rng();
                        for round in 1..80_u64 {
                            let key = (writer * 100 + rng.random_range(0..4)).to_be_bytes();
                            let by = if round % 2 == 0 { &store } else { &other };
                            by.put(&key, value(round)).await.unwrap();
                            env.sleep(Duration::from_micros(rng.random_range(0..300))).await;
                            for reader in [&store, &other] {
                                assert_eq!(number(reader.get(&key).await.unwrap()), round);
                            }
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.await.unwrap();
            }
        });
    }
}

#[test]
fn a_view_ends_when_the_volume_changes_as_a_whole() {
    run(4, |env| async move {
        let (manager, store) = managed(&env, Kind::Btree).await;
        store.put(b"key", value(1)).await.unwrap();
        assert_eq!(number(store.get(b"key").await.unwrap()), 1);
        manager.exclusively(async || ()).await;
        assert_eq!(manager.status().preempted, 1);
        assert_eq!(number(store.get(b"key").await.unwrap()), 1);
        assert_eq!(number(store.get(b"key").await.unwrap()), 1);
        assert_eq!(manager.status().preempted, 1);
    });
}

async fn open(env: &Env, shape: Shape, devices: &[DeviceRef]) -> Store {
    let chain = Chain::open(env, shape.parts(devices), options()).await.unwrap().0;
    let volume = transact(env, Arc::new(chain));
    if let Err(TreeError::NoCatalogue) = catalogue::list(&*volume).await {
        return create(env, &volume, "store", Kind::Btree, 300).await;
    }
    Store::open(env, volume, "store").await.unwrap()
}

/// Puts numbers from 1 on; most of the puts are only visible when they return.
async fn write(env: Env, synced: Store, last: u64) {
    let visible = synced.clone().with_durability(Durability::Visible);
    for number in 1..=last {
        let store = if number % 8 == 0 { &synced } else { &visible };
        store.put(b"key", value(number)).await.unwrap();
        env.sleep(Duration::from_micros(env.rng().random_range(0..400))).await;
    }
}

/// A volume on which another visible put comes between a question for the newest version and a beginning.
#[derive(Debug)]
struct Crossed {
    volume: Arc<dyn Transact>,
    store: Store,
    last: AtomicU64,
}

#[async_trait]
impl Transact for Crossed {
    fn blocks(&self) -> u64 {
        self.volume.blocks()
    }

    async fn begin(&self, begin: Begin) -> Result<Arc<dyn Transaction>, TxnError> {
        if begin == Begin::READ_ONLY {
            let next = self.last.fetch_add(1, Ordering::Relaxed);
            self.store.put(b"key", value(next)).await.unwrap();
        }
        self.volume.begin(begin).await
    }

    async fn takeover(&self, handle: Handle) -> Result<Arc<dyn Transaction>, TxnError> {
        self.volume.takeover(handle).await
    }

    async fn sync(&self) -> Result<EpochVersion, TxnError> {
        self.volume.sync().await
    }

    fn synced(&self) -> Option<EpochVersion> {
        self.volume.synced()
    }

    async fn versions(&self, lba: Lba) -> Result<(Epoch, Vec<BlockVersion>), TxnError> {
        self.volume.versions(lba).await
    }

    fn contention(&self) -> &Contention {
        self.volume.contention()
    }
}

/// Gets that ask for the newest version and begin on a later one, which a put has made visible in between. Each
/// follows so many rounds without a reader that the volume keeps no durable version. Returns the positions after them.
async fn read_crossed(env: &Env, store: &Store, recorder: &Recorder) -> Vec<usize> {
    let visible = store.clone().with_durability(Durability::Visible);
    let (volume, last) = (store.volume().clone(), AtomicU64::new(1000));
    let crossed = Arc::new(Crossed { volume, store: visible, last });
    let reader = Store::open(env, crossed.clone(), "store").await.unwrap();
    let mut ends = Vec::new();
    for _ in 0..3 {
        for _ in 0..70 {
            let next = crossed.last.fetch_add(1, Ordering::Relaxed);
            store.put(b"key", value(next)).await.unwrap();
        }
        recorder.mark(number(reader.get(b"key").await.unwrap()));
        ends.push(recorder.position());
    }
    ends
}

/// What a get has returned survives every crash after it.
#[test]
fn a_get_sees_only_what_survives_a_crash() {
    let (mut checked, mut behind) = (0, 0);
    for seed in campaign::seeds(3) {
        let some: (u64, u64) = run(seed, |env| async move {
            let shape = Shape { blocks: 900, ..Shape::small(Cleaning::MoveToTail) };
            let recorder = Recorder::with_latency(&env, Duration::from_micros(200));
            let devices = shape.devices(|name, geometry| recorder.device(name, geometry));
            shape.format(&env, &devices).await;
            let store = open(&env, shape, &devices).await;
            let begun = recorder.position();
            let writer = env.spawn(write(env.clone(), store.clone(), 120));
            let mut seen = 0;
            while !writer.is_finished() {
                let now = number(store.get(b"key").await.unwrap());
                assert!(now >= seen, "a get went back from {seen} to {now}");
                seen = now;
                recorder.mark(seen);
                env.sleep(Duration::from_micros(env.rng().random_range(0..100))).await;
            }
            let ends = read_crossed(&env, &store, &recorder).await;
            let end = recorder.position();
            drop(store);
            let mut rng = env.rng();
            let some = (0..40).map(|_| rng.random_range(begun..=end));
            let points = some.chain(ends).collect();
            let policy = Policy { prefixes: 1, missing: 1, torn: 1, ..Policy::sampled(1) };
            let (mut checked, mut behind) = (0, 0);
            for image in recorder.images(&mut rng, &policy.at(Points::At(points))) {
                let least = image.acknowledged().max().unwrap_or(0);
                let store = open(&env, shape, &image.devices).await;
                let found = number(store.get(b"key").await.unwrap());
                assert!(found >= least, "{}: {found} after a get of {least}", image.describe());
                checked += 1;
                behind += u64::from(found < seen);
            }
            (checked, behind)
        });
        (checked, behind) = (checked + some.0, behind + some.1);
    }
    assert!(checked > 100 && behind > 50, "{checked} images, {behind} before the end");
}
