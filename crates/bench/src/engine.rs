//! Key-value engines that benchmarks compare: our stores, and, with the feature `rivals`, others.
//!
//! Every put and delete is durable when it returns. Our engine is asynchronous and its clients are
//! tasks; calls of the others block a thread, so each of their clients has a thread.

#[cfg(feature = "rivals")]
mod rivals;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use thalweg_env::Env;
use thalweg_store::pool::{self, DeviceSpec, LinkSpec, NewVolume, OpenOptions, Pool};
use thalweg_store::tree::{Batch, Kind, NewPartition, Store, catalogue};

use crate::BenchError;
use crate::rig::{self, failed};

/// RAM that caches the content of one of our volumes. The other engines read through the system's page
/// cache, which the machine's memory bounds; our engine bypasses it.
const RAM_CACHE: u64 = 256 << 20;

/// A key and its value.
pub(crate) type Pair = (Bytes, Bytes);

/// Puts in one batch of a load: with values of a few blocks, about the maximum of one transaction.
const LOAD_BATCH: usize = 32;
/// Clients of a load.
const LOADERS: u64 = 8;

/// An engine whose calls block. It is closed when dropped.
pub(crate) trait Rival: Send + Sync {
    /// Sets the value of a key, durably.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError>;
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BenchError>;
    /// Deletes a key, durably.
    fn delete(&self, key: &[u8]) -> Result<(), BenchError>;
    /// Puts all pairs in one batch, durably.
    fn write(&self, pairs: &[Pair]) -> Result<(), BenchError>;
}

/// One of our stores on a volume of its own.
pub(crate) struct Ours {
    pool: Pool,
    store: Store,
}

impl Ours {
    /// A store on a volume of its own, which [`create_volume`] makes.
    pub(crate) async fn create(
        env: &Env,
        folder: &Path,
        path: &Path,
        sizes: (u64, u64),
        kind: Kind,
    ) -> Result<Ours, BenchError> {
        let pool = create_volume(env, folder, path, sizes).await?;
        let partition = NewPartition { name: "store".to_owned(), kind, first: None, blocks: None };
        let manager = Arc::new(pool.transactions().clone());
        catalogue::create(env, &*manager, &partition).await.map_err(failed)?;
        let store = Store::open(env, manager, "store").await.map_err(failed)?;
        Ok(Ours { pool, store })
    }
}

/// A new volume of `size` bytes on the device or file at `path`, like one that
/// `thalweg volume create --link --ram-cache 256M` makes: the map is on the link. A file gets a size of
/// `room` bytes. The manifest goes to `folder`.
pub(crate) async fn create_volume(
    env: &Env,
    folder: &Path,
    path: &Path,
    (size, room): (u64, u64),
) -> Result<Pool, BenchError> {
    let device = match path.exists() {
        true => DeviceSpec::new(path),
        false => DeviceSpec::with_size(path, room).preallocated(),
    };
    let mut new = NewVolume::new("bench", size, vec![LinkSpec::plain(device)]);
    new.growth = 1.0;
    new.force = true;
    new.settings.ram_cache = Some(RAM_CACHE);
    pool::create(env, folder, &new, &|_, _| {}).await.map_err(failed)?;
    Pool::open(env, folder, &OpenOptions::default()).await.map_err(failed)
}

/// An engine, open in a folder or on a device.
pub(crate) enum Engine {
    Ours(Box<Ours>),
    #[cfg_attr(not(feature = "rivals"), allow(dead_code))]
    Rival(Box<dyn Rival>),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) async fn put(&self, key: &[u8], value: &Bytes) -> Result<(), BenchError> {
        match self {
            Engine::Ours(ours) => ours.store.put(key, value.clone()).await.map_err(failed),
            Engine::Rival(rival) => rival.put(key, value),
        }
    }

    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BenchError> {
        match self {
            Engine::Ours(ours) => ours.store.get(key).await.map_err(failed),
            Engine::Rival(rival) => rival.get(key),
        }
    }

    pub(crate) async fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        match self {
            Engine::Ours(ours) => ours.store.delete(key).await.map(drop).map_err(failed),
            Engine::Rival(rival) => rival.delete(key),
        }
    }

    async fn write(&self, pairs: &[Pair]) -> Result<(), BenchError> {
        match self {
            Engine::Ours(ours) => {
                let mut batch = Batch::new();
                for (key, value) in pairs {
                    batch.put(key.clone(), value.clone());
                }
                ours.store.write(&batch).await.map_err(failed)
            }
            Engine::Rival(rival) => rival.write(pairs),
        }
    }

    /// Blocks that our engine has written whole to end their mini-logs since it was opened; their bytes fall where a
    /// checkpoint does.
    pub(crate) fn settled(&self) -> Option<u64> {
        match self {
            Engine::Ours(ours) => Some(ours.pool.chain().status().minis.settled),
            Engine::Rival(_) => None,
        }
    }

    /// Writes back dirty data, and closes.
    pub(crate) async fn close(self) -> Result<(), BenchError> {
        match self {
            Engine::Ours(ours) => ours.pool.close().await.map_err(failed),
            Engine::Rival(rival) => {
                drop(rival);
                Ok(())
            }
        }
    }

    /// Puts the pair that `pair` returns for each number below `count`.
    pub(crate) async fn load(
        self: &Arc<Self>,
        env: &Env,
        count: u64,
        pair: fn(u64) -> Pair,
    ) -> Result<(), BenchError> {
        clients(env, self, LOADERS, |engine, client| async move {
            let mine: Vec<u64> = (0..count).filter(|number| number % LOADERS == client).collect();
            for batch in mine.chunks(LOAD_BATCH) {
                let pairs: Vec<Pair> = batch.iter().map(|number| pair(*number)).collect();
                engine.write(&pairs).await?;
            }
            Ok(())
        })
        .await
    }
}

/// Runs this many clients of an engine concurrently, each with its number, until all have ended.
pub(crate) async fn clients<Work>(
    env: &Env,
    engine: &Arc<Engine>,
    count: u64,
    client: impl Fn(Arc<Engine>, u64) -> Work,
) -> Result<(), BenchError>
where
    Work: Future<Output = Result<(), BenchError>> + Send + 'static,
{
    let tasks: Vec<_> = (0..count)
        .map(|number| {
            let work = client(engine.clone(), number);
            match **engine {
                Engine::Ours(_) => env.spawn(work),
                Engine::Rival(_) => rig::in_thread(env, work),
            }
        })
        .collect();
    rig::all(tasks).await.map(drop)
}

/// The engines of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Btree,
    Hash,
    #[cfg(feature = "rivals")]
    Rival(rivals::Kind),
}

#[cfg(feature = "rivals")]
pub(crate) use rivals::Kind as RivalKind;

impl Contender {
    /// Its name in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Btree => "btree",
            Contender::Hash => "hash",
            #[cfg(feature = "rivals")]
            Contender::Rival(kind) => kind.name(),
        }
    }

    /// Opens a new one in `folder`, which is empty. Our engine gets a volume of `size` bytes in a file
    /// of `room` bytes.
    pub(crate) async fn create(
        self,
        env: &Env,
        folder: &Path,
        sizes: (u64, u64),
    ) -> Result<Arc<Engine>, BenchError> {
        let image: PathBuf = folder.join("link.img");
        let engine = match self {
            Contender::Btree => {
                Engine::Ours(Box::new(Ours::create(env, folder, &image, sizes, Kind::Btree).await?))
            }
            Contender::Hash => {
                Engine::Ours(Box::new(Ours::create(env, folder, &image, sizes, Kind::Hash).await?))
            }
            #[cfg(feature = "rivals")]
            Contender::Rival(kind) => Engine::Rival(kind.open(folder)?),
        };
        Ok(Arc::new(engine))
    }
}

/// Closes an engine that has no other users.
pub(crate) async fn close(engine: Arc<Engine>) -> Result<(), BenchError> {
    match Arc::into_inner(engine) {
        Some(engine) => engine.close().await,
        None => Err(BenchError::Failed("an engine is still in use".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::RngExt;

    use super::*;

    fn contenders() -> Vec<Contender> {
        #[cfg_attr(not(feature = "rivals"), allow(unused_mut))]
        let mut all = vec![Contender::Btree, Contender::Hash];
        #[cfg(feature = "rivals")]
        all.extend(rivals::Kind::ALL.map(Contender::Rival));
        all
    }

    async fn behaves_like_a_map(env: &Env, contender: Contender) {
        let folder = tempfile::tempdir().unwrap();
        let sizes = (32 << 20, 96 << 20);
        let engine = contender.create(env, folder.path(), sizes).await.unwrap();
        let mut model = BTreeMap::new();
        let key = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
        engine
            .load(env, 100, |number| (number.to_be_bytes().to_vec().into(), vec![7; 9].into()))
            .await
            .unwrap();
        (0..100).for_each(|number| drop(model.insert(key(number), Bytes::from(vec![7; 9]))));
        let mut rng = env.rng();
        for step in 0..300_u64 {
            let key = key(rng.random_range(0..150));
            match rng.random_range(0..3) {
                0 => {
                    let value = Bytes::from(vec![step as u8; rng.random_range(0..9000)]);
                    engine.put(&key, &value).await.unwrap();
                    model.insert(key, value);
                }
                1 => {
                    engine.delete(&key).await.unwrap();
                    model.remove(&key);
                }
                _ => assert_eq!(engine.get(&key).await.unwrap(), model.get(&key).cloned()),
            }
        }
        for number in 0..150 {
            let found = engine.get(&key(number)).await.unwrap();
            assert_eq!(found, model.get(&key(number)).cloned(), "{}", contender.name());
        }
        close(engine).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_engine_behaves_like_a_map() {
        for contender in contenders() {
            behaves_like_a_map(&Env::real(), contender).await;
        }
    }
}
