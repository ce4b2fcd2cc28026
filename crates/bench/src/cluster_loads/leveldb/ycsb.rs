//! The phases of YCSB on LevelDB, by one thread: each write is synced before the next operation.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use thalweg_env::Rng;

use super::super::stage::{Stage, Timed};
use crate::BenchError;
use crate::fs::loads::noise;
use crate::level_stores::{Database, LEVELDB, Settings};
use crate::rig::failed;

/// Bytes of a value: the ten fields of YCSB, of 100 bytes each.
const VALUE: usize = 1000;
/// The exponent of YCSB.
const ZIPF: f64 = 0.99;
/// The cache of the paper's first figures. The write buffer is LevelDB's own, of 4 MiB.
const CACHE: usize = 256 << 20;
/// Keys that are put together where putting them is not measured.
const BATCH: usize = 500;

/// A database with keys, and what each of them has.
struct Table {
    folder: PathBuf,
    database: Database,
    /// How often each key was put.
    versions: Vec<u64>,
}

/// YCSB spreads its keys over the database by the hash FNV-1a.
fn key(number: usize) -> Bytes {
    let octets = (number as u64).to_le_bytes();
    let hash = octets.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| {
        (hash ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("user{hash}").into()
}

/// The value of a key that was put so often, with both in front.
fn value(number: usize, version: u64) -> Bytes {
    let mut rng = Rng::seed_from_u64(version << 32 ^ number as u64);
    let head = [number as u64, version].map(u64::to_le_bytes).concat();
    let rest = noise(&mut rng, VALUE - head.len());
    [head, rest].concat().into()
}

impl Table {
    fn create(stage: &Stage<'_>, keys: usize) -> Result<Table, BenchError> {
        let folder = stage.first.join("db");
        let database = Table::open(&folder)?;
        Ok(Table { folder, database, versions: vec![0; keys] })
    }

    fn open(folder: &std::path::Path) -> Result<Database, BenchError> {
        let settings = Settings { cache: Some(CACHE), ..Settings::default() };
        Database::open(&LEVELDB, folder, &settings)
    }

    /// Closes it and opens it again, as a program does that goes on with it.
    fn reopen(self) -> Result<Table, BenchError> {
        let Table { folder, database, versions } = self;
        drop(database);
        let database = Table::open(&folder)?;
        Ok(Table { folder, database, versions })
    }

    fn put(&mut self, number: usize) -> Result<(), BenchError> {
        let version = self.versions[number] + 1;
        self.database.put(&key(number), &value(number, version))?;
        self.versions[number] = version;
        Ok(())
    }

    /// Puts all keys for the first time, many at a time.
    fn fill(&mut self) -> Result<(), BenchError> {
        let numbers: Vec<usize> = (0..self.versions.len()).collect();
        for batch in numbers.chunks(BATCH) {
            let pairs: Vec<_> =
                batch.iter().map(|number| (key(*number), value(*number, 1))).collect();
            self.database.write(&pairs)?;
        }
        self.versions.fill(1);
        Ok(())
    }

    fn get(&self, number: usize) -> Result<Bytes, BenchError> {
        let found = self.database.get(&key(number))?;
        found.ok_or_else(|| BenchError::Failed(format!("the key {number} is absent").into()))
    }

    /// Fails unless each key has what was put last.
    fn check(&self) -> Result<(), BenchError> {
        for (number, version) in self.versions.iter().enumerate() {
            if *version > 0 && self.get(number)? != value(number, *version) {
                let lost = format!("the key {number} does not have what was put last");
                return Err(BenchError::Failed(lost.into()));
            }
        }
        Ok(())
    }
}

/// Puts new keys.
pub(super) fn load(stage: &Stage<'_>, keys: usize) -> Result<Timed, BenchError> {
    let mut table = Table::create(stage, keys)?;
    let timed = stage.time(keys, || (0..keys).try_for_each(|number| table.put(number)))?;
    table.reopen()?.check()?;
    Ok(timed)
}

/// Reads keys, and updates as many, all by Zipf's law. The reads that stand alone are timed, unless the others come behind a read each.
pub(super) fn run(stage: &Stage<'_>, keys: usize, reads_before: bool) -> Result<Timed, BenchError> {
    let mut table = Table::create(stage, keys)?;
    table.fill()?;
    table = table.reopen()?;
    let mut rng = stage.rng(0);
    let popular = Zipf::new(keys as f64, ZIPF).map_err(failed)?;
    let (mut reads, mut reading) = (0_u32, Duration::ZERO);
    let timed = stage.time(keys, || {
        for _ in 0..keys {
            let number = popular.sample(&mut rng) as usize - 1;
            if rng.random::<bool>() {
                let begun = stage.env.now();
                let found = table.get(number)?;
                reading += stage.env.now().since(begun);
                reads += 1;
                if found.len() != VALUE {
                    let bytes = format!("a value has {} bytes", found.len());
                    return Err(BenchError::Failed(bytes.into()));
                }
            } else {
                if reads_before {
                    table.get(number)?;
                }
                table.put(number)?;
            }
        }
        Ok(())
    })?;
    table.reopen()?.check()?;
    let read = (!reads_before && reads > 0).then(|| reading.as_secs_f64() / f64::from(reads));
    Ok(Timed { read, ..timed })
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::on_stage;
    use super::super::LOADS;
    use super::*;

    #[test]
    fn loads_work_on_a_plain_directory() {
        on_stage(|stage| {
            for load in LOADS {
                let first = stage.first.join(load.name);
                std::fs::create_dir(&first).unwrap();
                let Stage { env, tree, scale, seed, .. } = *stage;
                let second = first.clone();
                let timed = (load.run)(&Stage { env, first, second, tree, scale, seed }).unwrap();
                assert!(timed.operations == 500.0 && timed.seconds > 0.0, "{}", load.name);
                let read = timed.read.filter(|read| *read > 0.0 && *read < timed.seconds);
                assert_eq!(read.is_some(), load.name == "run_a", "{}", load.name);
            }
        });
    }

    #[test]
    fn half_of_the_operations_update_a_key_and_some_keys_more_often() {
        on_stage(|stage| {
            run(stage, 500, false).unwrap();
            let settings = Settings::default();
            let database = Database::open(&LEVELDB, &stage.first.join("db"), &settings).unwrap();
            let version = |number| {
                let value = database.get(&key(number)).unwrap().unwrap();
                u64::from_le_bytes(value[8..16].try_into().unwrap())
            };
            let updates: Vec<u64> = (0..500).map(|number| version(number) - 1).collect();
            let all: u64 = updates.iter().sum();
            assert!((200..300).contains(&all), "{all}");
            // By this law 0.15 of the draws of 500 are the first one.
            assert!((15..70).contains(&updates[0]), "{updates:?}");
            assert!(updates[250..].iter().sum::<u64>() > 5, "{updates:?}");
        });
    }

    #[test]
    fn a_value_that_is_not_the_last_one_is_found() {
        on_stage(|stage| {
            let mut table = Table::create(stage, 3).unwrap();
            (0..3).for_each(|number| table.put(number).unwrap());
            let mut table = table.reopen().unwrap();
            table.check().unwrap();
            table.versions[1] += 1;
            let lost = table.check().unwrap_err().to_string();
            assert!(lost.contains("the key 1"), "{lost}");
            table.versions = vec![1; 4];
            let lost = table.check().unwrap_err().to_string();
            assert!(lost.contains("the key 3 is absent"), "{lost}");
        });
    }
}
