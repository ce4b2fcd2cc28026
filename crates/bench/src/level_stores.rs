//! LevelDB and RocksDB (its `TransactionDB`), through the C interfaces of the system's libraries.
//!
//! The two interfaces have the same shape, so each is a table of functions, and one database serves both.

mod api;
mod database;
mod leveldb;
#[cfg(feature = "rivals")]
mod rocksdb;

pub(crate) use database::{Database, Settings};
pub(crate) use leveldb::LEVELDB;
#[cfg(feature = "rivals")]
pub(crate) use rocksdb::ROCKSDB;
