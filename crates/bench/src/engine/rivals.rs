//! Other key-value engines, as a careful user would set them: every commit is durable when it
//! returns (`fdatasync`), and nothing is compressed. All else is at its default but for what a
//! file here says.

mod levels;
mod lmdb;
mod redb;
mod sqlite;

use std::path::Path;

use super::Rival;
use crate::BenchError;

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lmdb,
    RocksDb,
    LevelDb,
    Sqlite,
    Redb,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Kind; 5] =
        [Kind::Lmdb, Kind::RocksDb, Kind::LevelDb, Kind::Sqlite, Kind::Redb];

    /// Its name in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Lmdb => "lmdb",
            Kind::RocksDb => "rocksdb",
            Kind::LevelDb => "leveldb",
            Kind::Sqlite => "sqlite",
            Kind::Redb => "redb",
        }
    }

    /// Makes a new one in `folder`.
    pub(crate) fn open(self, folder: &Path) -> Result<Box<dyn Rival>, BenchError> {
        Ok(match self {
            Kind::Lmdb => Box::new(lmdb::Lmdb::open(folder)?),
            Kind::RocksDb => Box::new(levels::Database::open(&levels::ROCKSDB, folder)?),
            Kind::LevelDb => Box::new(levels::Database::open(&levels::LEVELDB, folder)?),
            Kind::Sqlite => Box::new(sqlite::Sqlite::open(folder)?),
            Kind::Redb => Box::new(redb::Redb::open(folder)?),
        })
    }
}
