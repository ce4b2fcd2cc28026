//! A new filesystem on a new volume that is updated in place.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_fs::local::{self, Format, Local};
use thalweg_store::device::DeviceRef;
use thalweg_store::inplace::{InPlace, Mode, NewInPlace, Options as StoreOptions, Parts};
use thalweg_store::txn::{self, Transact, TransactionManager};

use crate::BenchError;
use crate::rig::failed as other;

/// Makes a volume on a device, and a filesystem on it.
pub(crate) async fn make(
    data: DeviceRef,
    mode: Mode,
) -> Result<(Arc<Local>, Arc<InPlace>), BenchError> {
    let env = Env::real();
    let parts = Parts { data, journal: None };
    let new = NewInPlace { name: "bench".to_owned(), ..NewInPlace::default() };
    InPlace::create(&env, &parts, &new).await.map_err(other)?;
    let options = StoreOptions { mode, cache: 1 << 30, ..StoreOptions::default() };
    let store = Arc::new(InPlace::open(&env, parts, options).await.map_err(other)?.0);
    let options = txn::Options { max_running: 4096, ..txn::Options::default() };
    let volume: Arc<dyn Transact> = Arc::new(TransactionManager::new(&env, store.clone(), options));
    local::make(&env, &volume, &Format::default()).await.map_err(other)?;
    let files = Local::open(&env, volume, "fs", local::Options::default()).await.map_err(other)?;
    Ok((Arc::new(files), store))
}
