//! A server over a store in memory.

use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use thalweg_env::Env;
use thalweg_ipc::{Config, Server};
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::BLOCK_SIZE;
use thalweg_store::txn::{Options, TransactionManager};

pub(crate) const BLOCKS: u64 = 2048;

pub(crate) fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK_SIZE])
}

pub(crate) struct Rig {
    pub(crate) env: Env,
    pub(crate) store: Arc<VersionedMemory>,
    pub(crate) manager: TransactionManager,
    pub(crate) folder: TempDir,
    pub(crate) server: Option<Server>,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(Options::default(), Config::default())
    }

    pub(crate) fn with(options: Options, config: Config) -> Rig {
        let env = Env::real();
        let store = Arc::new(VersionedMemory::new(BLOCKS));
        let manager = TransactionManager::new(&env, store.clone(), options);
        let folder = tempfile::tempdir().unwrap();
        let server = Some(Server::start(&env, &manager, folder.path(), config).unwrap());
        Rig { env, store, manager, folder, server }
    }
}
