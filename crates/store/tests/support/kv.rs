//! Stores of keys and values beside sorted maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_sim::passing::{Around, Passing};
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::{BlockStore, Lba, StoreError};
use thalweg_store::tree::{Batch, Kind, NewPartition, Store, TreeError, catalogue};
use thalweg_store::txn::{Options, Transact, TransactionManager};

/// Both kinds of stores.
pub const KINDS: [Kind; 2] = [Kind::Btree, Kind::Hash];

/// What a store should hold.
pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A volume in memory that runs transactions.
pub fn volume(env: &Env, blocks: u64) -> Arc<dyn Transact> {
    transact(env, Arc::new(VersionedMemory::new(blocks)))
}

/// Transactions over a block store.
pub fn transact(env: &Env, store: Arc<dyn BlockStore>) -> Arc<dyn Transact> {
    Arc::new(TransactionManager::new(env, store, Options::default()))
}

/// A partition to be made.
pub fn partition(name: &str, kind: Kind, blocks: u64) -> NewPartition {
    NewPartition { name: name.to_owned(), kind, first: None, blocks: Some(blocks) }
}

/// A new store in a new partition.
pub async fn create(
    env: &Env,
    volume: &Arc<dyn Transact>,
    name: &str,
    kind: Kind,
    blocks: u64,
) -> Store {
    catalogue::create(env, &**volume, &partition(name, kind, blocks)).await.unwrap();
    Store::open(env, volume.clone(), name).await.unwrap()
}

/// What keys and values look like.
#[derive(Clone, Copy, Debug)]
pub struct Taste {
    /// Different keys.
    pub keys: u64,
    /// Bytes of the longest key beyond its number.
    pub long_keys: usize,
    /// Bytes of the largest value in a record.
    pub small: usize,
    /// Bytes of the largest value.
    pub large: usize,
}

impl Taste {
    pub fn key(&self, rng: &mut Rng) -> Vec<u8> {
        self.numbered(rng.random_range(0..self.keys))
    }

    /// A key that is always the same for a number, of a length of its own.
    pub fn numbered(&self, number: u64) -> Vec<u8> {
        if number == 0 {
            return Vec::new();
        }
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut key = mixed.to_be_bytes()[..4].to_vec();
        key.extend_from_slice(&number.to_be_bytes());
        let long = if number % 4 == 3 { mixed as usize % (self.long_keys + 1) } else { 0 };
        key.resize(key.len() + long, b'k');
        key
    }

    /// A part of a value, and where it begins; sometimes in whole blocks.
    pub fn part(&self, rng: &mut Rng) -> (usize, Vec<u8>) {
        let most = if rng.random_bool(0.5) { self.small } else { self.large };
        let (mut offset, mut len) = (rng.random_range(0..=most), rng.random_range(0..=most / 3));
        if rng.random_bool(0.3) {
            (offset, len) = (offset / 4096 * 4096, len.next_multiple_of(4096));
        }
        let stamp: u64 = rng.random();
        (offset, stamp.to_le_bytes().into_iter().cycle().take(len).collect())
    }

    pub fn value(&self, rng: &mut Rng) -> Vec<u8> {
        let len = match rng.random_range(0..20) {
            0 => rng.random_range(0..=self.large),
            1..6 => self.small.min(174),
            _ => rng.random_range(0..=self.small),
        };
        let stamp: u64 = rng.random();
        stamp.to_le_bytes().into_iter().cycle().take(len).collect()
    }
}

/// Overwrites a part of a value in a map. Returns whether there was one that is long enough.
pub fn overwrite(map: &mut Map, key: &[u8], offset: usize, part: &[u8]) -> bool {
    let value = map.get_mut(key).and_then(|value| value.get_mut(offset..offset + part.len()));
    value.map(|place| place.copy_from_slice(part)).is_some()
}

/// A store and what it should hold, in step.
pub struct Pair {
    pub store: Store,
    pub map: Map,
    pub taste: Taste,
    /// Times when there was no room.
    pub full: u64,
}

impl Pair {
    pub fn new(store: Store, taste: Taste) -> Pair {
        Pair { store, map: Map::new(), taste, full: 0 }
    }

    /// A batch of `count` changes, and what holds after it.
    pub fn batch(&self, rng: &mut Rng, count: usize, deletes: f64) -> (Batch, Map) {
        let (mut batch, mut map) = (Batch::new(), self.map.clone());
        for _ in 0..count {
            let key = self.taste.key(rng);
            if rng.random_bool(deletes) {
                map.remove(&key);
                batch.delete(key);
            } else {
                let value = self.taste.value(rng);
                map.insert(key.clone(), value.clone());
                batch.put(key, value);
            }
        }
        (batch, map)
    }

    /// One random change, and a look at its key.
    pub async fn change(&mut self, rng: &mut Rng, deletes: f64) {
        let key = self.taste.key(rng);
        if rng.random_bool(deletes) {
            let was = self.store.delete(&key).await.unwrap();
            assert_eq!(was, self.map.remove(&key).is_some(), "{key:?}");
        } else if rng.random_bool(0.1) {
            let (offset, part) = self.taste.part(rng);
            let expected = overwrite(&mut self.map, &key, offset, &part);
            match self.store.overwrite(&key, offset, part).await {
                Ok(was_there) => assert_eq!(was_there, expected, "{key:?}"),
                Err(error) => panic!("{error}"),
            }
        } else if rng.random_bool(0.2) {
            let count = rng.random_range(1..12);
            let (batch, map) = self.batch(rng, count, deletes);
            match self.store.write(&batch).await {
                Ok(()) => self.map = map,
                Err(error) => self.refused(error),
            }
        } else {
            let value = self.taste.value(rng);
            match self.store.put(&key, value.clone()).await {
                Ok(()) => drop(self.map.insert(key.clone(), value)),
                Err(error) => self.refused(error),
            }
        }
        let found = self.store.get(&key).await.unwrap();
        assert_eq!(found.as_deref(), self.map.get(&key).map(Vec::as_slice), "{key:?}");
    }

    fn refused(&mut self, error: TreeError) {
        assert!(matches!(error, TreeError::Full(_)), "{error}");
        self.full += 1;
    }

    /// Compares everything.
    pub async fn compare(&self) {
        let report = self.store.check().await.unwrap();
        assert_eq!(report.keys, self.map.len() as u64);
        assert_eq!(contents(&self.store).await, self.map);
    }
}

/// Everything in a store; of a B-tree it is checked to be in order.
pub async fn contents(store: &Store) -> Map {
    let pairs = store.iter().await.unwrap().collect().await.unwrap();
    if store.kind() == Kind::Btree {
        assert!(pairs.windows(2).all(|pair| pair[0].0 < pair[1].0), "not in order");
    }
    let count = pairs.len();
    let map: Map = pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert_eq!(map.len(), count, "a key came twice");
    map
}

/// Pairs as a map has them.
pub fn owned<'m>(pairs: impl Iterator<Item = (&'m Vec<u8>, &'m Vec<u8>)>) -> Vec<(Bytes, Bytes)> {
    pairs.map(|(key, value)| (Bytes::from(key.clone()), Bytes::from(value.clone()))).collect()
}

/// A block store whose reads take a while, so that other requests come in between.
#[derive(Debug)]
pub struct Slow {
    env: Env,
    rng: parking_lot::Mutex<Rng>,
}

impl Slow {
    pub fn store(env: &Env, blocks: u64) -> Arc<dyn BlockStore> {
        let slow = Slow { env: env.clone(), rng: parking_lot::Mutex::new(env.rng()) };
        Arc::new(Passing::new(Arc::new(VersionedMemory::new(blocks)), slow))
    }
}

#[async_trait::async_trait]
impl Around for Slow {
    async fn before_read(&self, _: Lba, _: u64) -> Result<(), StoreError> {
        let micros = self.rng.lock().random_range(0..80);
        self.env.sleep(Duration::from_micros(micros)).await;
        Ok(())
    }

    async fn before_sync(&self) {
        self.env.sleep(Duration::from_micros(200)).await;
    }
}

/// A value of which two transactions overwrote parts in different blocks.
fn merged(before: &[u8], mine: &[u8], theirs: &[u8]) -> Vec<u8> {
    assert!(before.len() == mine.len() && before.len() == theirs.len(), "two wrote one value");
    let blocks = before.chunks(4096).zip(mine.chunks(4096)).zip(theirs.chunks(4096));
    let block = |((before, mine), theirs)| match (mine == before, theirs == before) {
        (_, true) => mine,
        (true, false) => theirs,
        (false, false) => panic!("two transactions wrote one block of a value"),
    };
    blocks.flat_map(block).copied().collect()
}

/// Asserts that no other transaction wrote a key that this one wrote, but for other blocks of its value.
pub fn beside_others(map: &mut Map, snapshot: &Map, own: &Map) {
    let keys: BTreeSet<_> = snapshot.keys().chain(own.keys()).cloned().collect();
    for key in keys {
        let (before, mine) = (snapshot.get(&key), own.get(&key));
        if before == mine {
            continue;
        }
        let theirs = map.get(&key);
        let merged = match (before, mine, theirs) {
            _ if theirs == before => mine.cloned(),
            (Some(before), Some(mine), Some(theirs)) => Some(merged(before, mine, theirs)),
            _ => panic!("two transactions wrote {key:?}"),
        };
        match merged {
            Some(value) => drop(map.insert(key, value)),
            None => drop(map.remove(&key)),
        }
    }
}
