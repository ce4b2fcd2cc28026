//! Other key-value engines, with the settings of a careful user: every commit is durable when it
//! returns (`fdatasync`), and compression is off. Other settings have their defaults, except those
//! named in a module here.

mod levels;
mod lmdb;
mod redb;
mod sqlite;

use std::path::Path;

use super::Rival;
use crate::BenchError;

/// The engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lmdb,
    RocksDb,
    LevelDb,
    Sqlite,
    Redb,
}

impl Kind {
    /// Every engine.
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
            Kind::RocksDb => Box::new(levels::rocksdb(folder)?),
            Kind::LevelDb => Box::new(levels::leveldb(folder)?),
            Kind::Sqlite => Box::new(sqlite::Sqlite::open(folder)?),
            Kind::Redb => Box::new(redb::Redb::open(folder)?),
        })
    }
}
