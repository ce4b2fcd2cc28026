//! SQLite with a write-ahead log and `synchronous=FULL`: one connection writes, the others read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, params};

use super::Rival;
use crate::BenchError;
use crate::engine::Pair;
use crate::rig::failed;

const PUT: &str = "INSERT INTO pairs (key, value) VALUES (?1, ?2) \
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value";
const GET: &str = "SELECT value FROM pairs WHERE key = ?1";
const DELETE: &str = "DELETE FROM pairs WHERE key = ?1";

pub(super) struct Sqlite {
    path: PathBuf,
    /// There is one writer at a time anyway; waiting for a mutex avoids polling for SQLite's lock.
    writer: Mutex<Connection>,
    /// Idle connections for reading.
    readers: Mutex<Vec<Connection>>,
}

impl Sqlite {
    pub(super) fn open(folder: &Path) -> Result<Sqlite, BenchError> {
        let path = folder.join("pairs.sqlite");
        let writer = connect(&path)?;
        writer
            .execute_batch(
                "CREATE TABLE pairs (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
            )
            .map_err(failed)?;
        Ok(Sqlite { path, writer: Mutex::new(writer), readers: Mutex::default() })
    }

    fn change(&self, statement: &str, values: &[&[u8]]) -> Result<(), BenchError> {
        let writer = self.writer.lock();
        let mut statement = writer.prepare_cached(statement).map_err(failed)?;
        statement.execute(rusqlite::params_from_iter(values)).map_err(failed)?;
        Ok(())
    }
}

fn connect(path: &Path) -> Result<Connection, BenchError> {
    let connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(Duration::from_secs(30)).map_err(failed)?;
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        .map_err(failed)?;
    Ok(connection)
}

impl Rival for Sqlite {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        self.change(PUT, &[key, value])
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BenchError> {
        let idle = self.readers.lock().pop();
        let reader = match idle {
            Some(reader) => reader,
            None => connect(&self.path)?,
        };
        let found = {
            let mut statement = reader.prepare_cached(GET).map_err(failed)?;
            let found = statement.query_row(params![key], |row| row.get::<_, Vec<u8>>(0));
            found.optional().map_err(failed)?
        };
        self.readers.lock().push(reader);
        Ok(found.map(Bytes::from))
    }

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        self.change(DELETE, &[key])
    }

    fn write(&self, pairs: &[Pair]) -> Result<(), BenchError> {
        let mut writer = self.writer.lock();
        let txn = writer.transaction().map_err(failed)?;
        {
            let mut statement = txn.prepare_cached(PUT).map_err(failed)?;
            for (key, value) in pairs {
                statement.execute(params![&key[..], &value[..]]).map_err(failed)?;
            }
        }
        txn.commit().map_err(failed)
    }
}
