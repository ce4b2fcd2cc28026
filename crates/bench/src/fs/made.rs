//! A new filesystem on a new volume that is updated in place.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_fs::local::{self, Format, LocalFs};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::{InPlace, Mode, NewInPlace, Options as StoreOptions, Parts};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::BenchError;
use crate::rig::failed as other;

/// Makes a volume on a device, and a filesystem on it.
pub(crate) async fn make(
    data: DeviceRef,
    mode: Mode,
) -> Result<(Arc<LocalFs>, Arc<InPlace>), BenchError> {
    let env = Env::real();
    let parts = Parts { data: data.clone(), journal: None };
    let new = NewInPlace { name: "bench".to_owned(), ..NewInPlace::default() };
    InPlace::create(&env, &parts, &new).await.map_err(other)?;
    let (volume, store) = open_volume(&env, data, mode).await?;
    local::make(&env, &volume, &Format::default()).await.map_err(other)?;
    let files =
        LocalFs::open(&env, volume, "fs", local::Options::default()).await.map_err(other)?;
    Ok((Arc::new(files), store))
}

/// Opens the filesystem that [`make`] has made, for a server that runs in `env`.
pub(crate) async fn open_served(
    env: &Env,
    data: DeviceRef,
    mode: Mode,
) -> Result<Arc<LocalFs>, BenchError> {
    let (volume, _) = open_volume(env, data, mode).await?;
    let options = local::Options { keep_orphans: true, ..local::Options::default() };
    Ok(Arc::new(LocalFs::open(env, volume, "fs", options).await.map_err(other)?))
}

async fn open_volume(
    env: &Env,
    data: DeviceRef,
    mode: Mode,
) -> Result<(Arc<dyn Transact>, Arc<InPlace>), BenchError> {
    let options = StoreOptions { mode, cache: 1 << 30, ..StoreOptions::default() };
    let parts = Parts { data, journal: None };
    let store = Arc::new(InPlace::open(env, parts, options).await.map_err(other)?.0);
    let options = txn::Options { max_running: 4096, ..txn::Options::default() };
    Ok((Arc::new(TransactionManager::new(env, store.clone(), options)), store))
}
