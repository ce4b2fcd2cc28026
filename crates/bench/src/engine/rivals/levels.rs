//! RocksDB with its defaults, and LevelDB with a write buffer of 8 MB, as in the paper (4.4.2).

use std::path::Path;

use bytes::Bytes;

use super::Rival;
use crate::BenchError;
use crate::engine::Pair;
use crate::level_stores::{Database, LEVELDB, ROCKSDB, Settings};

/// Bytes of LevelDB's write buffer.
const WRITE_BUFFER: usize = 8 << 20;

pub(super) fn rocksdb(folder: &Path) -> Result<Database, BenchError> {
    Database::open(&ROCKSDB, folder, &Settings::default())
}

pub(super) fn leveldb(folder: &Path) -> Result<Database, BenchError> {
    let settings = Settings { write_buffer: Some(WRITE_BUFFER), ..Settings::default() };
    Database::open(&LEVELDB, folder, &settings)
}

impl Rival for Database {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        Database::put(self, key, value)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BenchError> {
        Database::get(self, key)
    }

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        Database::delete(self, key)
    }

    fn write(&self, pairs: &[Pair]) -> Result<(), BenchError> {
        Database::write(self, pairs)
    }
}
