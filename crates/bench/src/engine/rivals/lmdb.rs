//! LMDB: one writer at a time; readers need no lock.

use std::path::Path;

use bytes::Bytes;
use heed::types::Bytes as Raw;
use heed::{Database, Env, EnvOpenOptions};

use super::Rival;
use crate::BenchError;
use crate::engine::Pair;
use crate::rig::failed;

/// Bytes of address space, more than any load needs.
const MAP: usize = 8 << 30;
/// Maximum number of reading threads; the default is 126.
const READERS: u32 = 600;

pub(super) struct Lmdb {
    env: Env,
    database: Database<Raw, Raw>,
}

impl Lmdb {
    pub(super) fn open(folder: &Path) -> Result<Lmdb, BenchError> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP).max_readers(READERS);
        // SAFETY: the folder belongs to this benchmark, so no other process changes or maps its file.
        let env = unsafe { options.open(folder) }.map_err(failed)?;
        let mut txn = env.write_txn().map_err(failed)?;
        let database = env.create_database(&mut txn, None).map_err(failed)?;
        txn.commit().map_err(failed)?;
        Ok(Lmdb { env, database })
    }
}

impl Rival for Lmdb {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        let mut txn = self.env.write_txn().map_err(failed)?;
        self.database.put(&mut txn, key, value).map_err(failed)?;
        txn.commit().map_err(failed)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BenchError> {
        let txn = self.env.read_txn().map_err(failed)?;
        let found = self.database.get(&txn, key).map_err(failed)?;
        Ok(found.map(Bytes::copy_from_slice))
    }

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        let mut txn = self.env.write_txn().map_err(failed)?;
        self.database.delete(&mut txn, key).map_err(failed)?;
        txn.commit().map_err(failed)
    }

    fn write(&self, pairs: &[Pair]) -> Result<(), BenchError> {
        let mut txn = self.env.write_txn().map_err(failed)?;
        for (key, value) in pairs {
            self.database.put(&mut txn, key, value).map_err(failed)?;
        }
        txn.commit().map_err(failed)
    }
}
