//! redb: copy-on-write B-trees; one writer at a time.

use std::path::Path;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, TableDefinition};

use super::Rival;
use crate::BenchError;
use crate::engine::Pair;
use crate::rig::failed;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pairs");

pub(super) struct Redb(Database);

impl Redb {
    pub(super) fn open(folder: &Path) -> Result<Redb, BenchError> {
        let engine = Redb(Database::create(folder.join("pairs.redb")).map_err(failed)?);
        engine.write(&[])?;
        Ok(engine)
    }
}

impl Rival for Redb {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        let txn = self.0.begin_write().map_err(failed)?;
        txn.open_table(TABLE).map_err(failed)?.insert(key, value).map_err(failed)?;
        txn.commit().map_err(failed)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BenchError> {
        let txn = self.0.begin_read().map_err(failed)?;
        let table = txn.open_table(TABLE).map_err(failed)?;
        let found = table.get(key).map_err(failed)?;
        Ok(found.map(|value| Bytes::copy_from_slice(value.value())))
    }

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        let txn = self.0.begin_write().map_err(failed)?;
        txn.open_table(TABLE).map_err(failed)?.remove(key).map_err(failed)?;
        txn.commit().map_err(failed)
    }

    fn write(&self, pairs: &[Pair]) -> Result<(), BenchError> {
        let txn = self.0.begin_write().map_err(failed)?;
        {
            let mut table = txn.open_table(TABLE).map_err(failed)?;
            for (key, value) in pairs {
                table.insert(&key[..], &value[..]).map_err(failed)?;
            }
        }
        txn.commit().map_err(failed)
    }
}
