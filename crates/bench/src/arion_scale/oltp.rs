//! A database with a log and a table, as InnoDB has them with its usual settings of 2012 (MySQL 5.5).
//!
//! Ten threads update rows by their keys: 100,000 requests at scale 1, on a table of 24 MB that is in memory. A request takes 150 µs of one of two processors,
//! makes a page of 16 KiB dirty and appends 700 bytes to the log, which is 10 MB long and is written from its start again. It ends when the log is durable up to its
//! own record; requests that wait at the same time share an `fsync`, and the log is written in blocks of 512 bytes. In the background, as often as once in a
//! second, the database writes so many of its dirty pages that none keeps the log from its next round: first together to a place of their own, which it syncs
//! (doublewrite), then in place, which it syncs as well, up to 64 at a time. At seven eighths of the log, requests wait for that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::Ino;
use tokio::sync::Notify;

use super::client_run::{ClientLoad, ClientRun, settle};
use crate::BenchError;
use crate::arion_machines::{Machine, Machines};
use crate::rig::{all, failed};

const REQUESTS: f64 = 100_000.0;
const THREADS: usize = 10;
/// Bytes at scale 1.
const TABLE: f64 = 24e6;
const LOG: f64 = 10e6;
/// Least bytes of both.
const LEAST: u64 = 256 << 10;
const PAGE: u64 = 16 << 10;
const BLOCK: u64 = 512;
const RECORD: u64 = 700;
const REQUEST: Duration = Duration::from_micros(150);
/// Pages that are written together, and the file of their second copies.
const TOGETHER: usize = 64;
const DOUBLE: u64 = 2 * TOGETHER as u64 * PAGE;

struct Database {
    machine: Arc<Machine>,
    env: Env,
    log: Ino,
    table: Ino,
    double: Ino,
    /// Bytes of the log, and pages of the table.
    capacity: u64,
    pages: u64,
    /// How often pages are written.
    pause: Duration,
    state: Mutex<DatabaseState>,
    /// Bytes of the log that are durable.
    durable: tokio::sync::Mutex<u64>,
    left: AtomicU64,
    /// The log is nearly full.
    pressed: Notify,
    /// Pages were written.
    written: Notify,
}

#[derive(Default)]
struct DatabaseState {
    /// Bytes of the log so far.
    appended: u64,
    /// By page, where the log has its first change that is not in place.
    dirty: BTreeMap<u64, u64>,
    /// The same of the pages that are being written.
    writing: Option<u64>,
    /// Bytes of the log when pages were written last.
    seen: u64,
    is_over: bool,
}

impl DatabaseState {
    /// Bytes of the log that are needed still.
    fn needed(&self) -> u64 {
        let oldest = self.dirty.values().copied().chain(self.writing).min();
        self.appended - oldest.unwrap_or(self.appended)
    }
}

/// Makes the databases; what each client does with its own.
pub(super) async fn prepare(
    env: &Env,
    machines: &Machines,
    scale: f64,
) -> Result<Vec<ClientLoad>, BenchError> {
    let making = machines.clients.iter().enumerate().map(|(number, machine)| {
        let (machine, own) = (machine.clone(), env.clone());
        env.spawn(async move { Database::make(&own, machine, number, scale).await })
    });
    let databases = all(making.collect()).await?;
    settle(machines).await?;
    for database in &databases {
        // A database reads its log when it starts.
        let read = database.machine.subject.read(database.log, 0, database.capacity as usize);
        read.await.map_err(failed)?;
    }
    let loads = databases.into_iter().map(|database| {
        let run: ClientLoad = Box::pin(async move { database.run().await });
        run
    });
    Ok(loads.collect())
}

impl Database {
    async fn make(
        env: &Env,
        machine: Arc<Machine>,
        number: usize,
        scale: f64,
    ) -> Result<Arc<Database>, BenchError> {
        let subject = machine.subject.clone();
        let bytes = |bytes: f64| ((bytes * scale) as u64).max(LEAST).next_multiple_of(PAGE);
        let (capacity, table) = (bytes(LOG), bytes(TABLE));
        let directory = subject.make_directory(&format!("d{number}")).await.map_err(failed)?;
        let mut files = Vec::new();
        for (name, bytes) in [("log", capacity), ("table", table), ("double", DOUBLE)] {
            let file = subject.create(directory, name).await.map_err(failed)?;
            for offset in (0..bytes).step_by(1 << 20) {
                let len = (bytes - offset).min(1 << 20) as usize;
                subject.write(file, offset, len).await.map_err(failed)?;
            }
            files.push(file);
        }
        Ok(Arc::new(Database {
            machine,
            env: env.clone(),
            log: files[0],
            table: files[1],
            double: files[2],
            capacity,
            pages: table / PAGE,
            pause: Duration::from_secs_f64(scale),
            state: Mutex::default(),
            durable: tokio::sync::Mutex::new(0),
            left: AtomicU64::new(((REQUESTS * scale) as u64).max(THREADS as u64)),
            pressed: Notify::new(),
            written: Notify::new(),
        }))
    }

    async fn run(self: Arc<Database>) -> Result<ClientRun, BenchError> {
        let (begun, own) = (self.env.now(), self.clone());
        let flusher = self.env.spawn(async move { own.write_pages().await });
        let threads = (0..THREADS).map(|_| {
            let (own, mut rng) = (self.clone(), self.env.rng());
            self.env.spawn(async move {
                let mut latencies = Vec::new();
                let take = |left: u64| left.checked_sub(1);
                while own.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                    let start = own.env.now();
                    own.update(&mut rng).await?;
                    latencies.push(own.env.now().since(start).as_secs_f64());
                }
                Ok(latencies)
            })
        });
        let latencies = all(threads.collect()).await?.concat();
        let seconds = self.env.now().since(begun).as_secs_f64();
        self.state.lock().is_over = true;
        self.pressed.notify_one();
        all(vec![flusher]).await?;
        Ok(ClientRun { seconds, done: latencies.len() as f64, latencies })
    }

    /// A request.
    async fn update(&self, rng: &mut Rng) -> Result<(), BenchError> {
        self.machine.compute(REQUEST).await;
        let page = rng.random_range(0..self.pages);
        let end = loop {
            let written = self.written.notified();
            {
                let state = &mut *self.state.lock();
                if state.needed() + RECORD <= self.capacity / 8 * 7 {
                    state.dirty.entry(page).or_insert(state.appended);
                    state.appended += RECORD;
                    break state.appended;
                }
            }
            self.pressed.notify_one();
            written.await;
        };
        self.commit(end).await
    }

    /// Returns when the log is durable up to there.
    async fn commit(&self, end: u64) -> Result<(), BenchError> {
        let mut durable = self.durable.lock().await;
        if *durable >= end {
            return Ok(());
        }
        let appended = self.state.lock().appended;
        let (mut start, last) = (*durable / BLOCK * BLOCK, appended.next_multiple_of(BLOCK));
        while start < last {
            let at = start % self.capacity;
            let len = (last - start).min(self.capacity - at);
            self.write(self.log, at, len).await?;
            start += len;
        }
        self.sync(self.log).await?;
        *durable = appended;
        Ok(())
    }

    /// Writes dirty pages from time to time, and while the log is nearly full.
    async fn write_pages(&self) -> Result<(), BenchError> {
        loop {
            let _ = self.env.timeout(self.pause, self.pressed.notified()).await;
            let (mut pages, most) = {
                let state = &mut *self.state.lock();
                if state.is_over {
                    return Ok(());
                }
                let logged = state.appended - std::mem::replace(&mut state.seen, state.appended);
                // Over a round of three quarters of the log, all that are dirty now.
                let share = state.dirty.len() as u64 * logged * 4 / (self.capacity * 3);
                let is_full = state.needed() + RECORD > self.capacity / 4 * 3;
                let most = if is_full { TOGETHER as u64 } else { share } as usize;
                let mut oldest: Vec<(u64, u64)> =
                    state.dirty.iter().map(|(page, since)| (*since, *page)).collect();
                oldest.sort_unstable();
                (oldest.into_iter().map(|(_, page)| page).collect::<Vec<_>>(), most)
            };
            pages.truncate(most);
            for pages in pages.chunks(TOGETHER) {
                self.write_together(pages).await?;
            }
        }
    }

    async fn write_together(&self, pages: &[u64]) -> Result<(), BenchError> {
        // The log before the pages.
        let appended = {
            let state = &mut *self.state.lock();
            state.writing = pages.iter().filter_map(|page| state.dirty.remove(page)).min();
            state.appended
        };
        self.commit(appended).await?;
        self.write(self.double, 0, pages.len() as u64 * PAGE).await?;
        self.sync(self.double).await?;
        for page in pages {
            self.write(self.table, page * PAGE, PAGE).await?;
        }
        self.sync(self.table).await?;
        self.state.lock().writing = None;
        self.written.notify_waiters();
        Ok(())
    }

    async fn write(&self, file: Ino, offset: u64, len: u64) -> Result<(), BenchError> {
        self.machine.operation().await;
        self.machine.subject.write(file, offset, len as usize).await.map_err(failed)
    }

    async fn sync(&self, file: Ino) -> Result<(), BenchError> {
        self.machine.operation().await;
        self.machine.subject.sync(file).await.map_err(failed)
    }
}
