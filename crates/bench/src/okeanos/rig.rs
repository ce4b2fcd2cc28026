//! A filesystem on an in-place store over simulated drives of 15,000 rpm.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use thalweg_env::{Env, Rng};
use thalweg_fs::local::{self, Format, LocalFs};
use thalweg_fs::{Filesystem, Ino, NewNode, Node, WriteAt, WriteHow};
use thalweg_sim::hdd::{HardDisk, HardDiskSpec};
use thalweg_store::block::{Blocks, StoreError};
use thalweg_store::device::{Device, DeviceRef, Purpose};
use thalweg_store::inplace::{InPlace, Mode, NewInPlace, Options, Parts, Recovered};
use thalweg_store::txn::{self, TransactionManager};

use crate::BenchError;
use crate::rig::failed;

/// Bytes of the journal: ext3's default, and the paper's.
pub(crate) const JOURNAL: u64 = 128 << 20;
/// Bytes of a drive's write cache, and the number of its segments.
const WRITE_CACHE: u64 = 16 << 20;
const WRITE_SEGMENTS: usize = 32;

/// Write caching of the drives (5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caches {
    /// Write caches are on and are never flushed: the paper's default.
    Loose,
    /// Write caches are on and are flushed.
    Flushed,
    /// There are no write caches.
    Off,
}

/// The parameters of a filesystem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) caches: Caches,
    /// Bytes of the data drive.
    pub(crate) size: u64,
    /// Bytes of memory for blocks.
    pub(crate) cache: usize,
}

impl Plan {
    pub(crate) fn new(mode: Mode, caches: Caches) -> Plan {
        Plan { mode, caches, size: 16 << 30, cache: 1 << 30 }
    }

    fn options(&self) -> Options {
        Options {
            mode: self.mode,
            barrier: self.caches == Caches::Flushed,
            cache: self.cache,
            ..Options::default()
        }
    }

    fn drive(&self, size: u64) -> HardDiskSpec {
        let write_cache = if self.caches == Caches::Off { 0 } else { WRITE_CACHE };
        HardDiskSpec { write_cache, write_segments: WRITE_SEGMENTS, ..HardDiskSpec::sas_15k(size) }
    }
}

/// A filesystem with data and journal on drives of their own.
pub(crate) struct Rig {
    pub(crate) env: Env,
    pub(crate) fs: LocalFs,
    pub(crate) store: Arc<InPlace>,
    pub(crate) data: Arc<HardDisk>,
    pub(crate) journal: Arc<HardDisk>,
    plan: Plan,
}

/// Bytes and flushes that reached the drives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) journal: u64,
    pub(crate) data: u64,
    pub(crate) metadata: u64,
    pub(crate) map: u64,
    pub(crate) flushes: u64,
}

impl Traffic {
    pub(crate) fn since(self, before: Traffic) -> Traffic {
        Traffic {
            journal: self.journal - before.journal,
            data: self.data - before.data,
            metadata: self.metadata - before.metadata,
            map: self.map - before.map,
            flushes: self.flushes - before.flushes,
        }
    }

    /// All bytes written in place.
    pub(crate) fn home(&self) -> u64 {
        self.data + self.metadata + self.map
    }
}

impl Rig {
    /// Makes and mounts the filesystem.
    pub(crate) async fn build(env: &Env, plan: Plan) -> Result<Rig, BenchError> {
        let drive = |name, size| Arc::new(HardDisk::new(env, name, plan.drive(size)));
        let (data, journal) = (drive("data", plan.size), drive("journal", JOURNAL));
        let parts = parts(&data, &journal);
        let new = NewInPlace { name: "okeanos".to_owned(), ..NewInPlace::default() };
        InPlace::create(env, &parts, &new).await.map_err(failed)?;
        let (store, fs, _) = mount(env, &parts, plan, true).await?;
        Ok(Rig { env: env.clone(), fs, store, data, journal, plan })
    }

    /// Cuts the power, and mounts again; returns the statistics of recovery.
    pub(crate) async fn crash(self) -> Result<(Rig, Recovered), BenchError> {
        let Rig { env, fs, store, data, journal, plan } = self;
        drop((fs, store));
        data.power_cut();
        journal.power_cut();
        data.power_on();
        journal.power_on();
        env.sleep(Duration::from_secs(60)).await;
        let (store, fs, recovered) = mount(&env, &parts(&data, &journal), plan, false).await?;
        Ok((Rig { env, fs, store, data, journal, plan }, recovered))
    }

    /// The counts of the drives so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let (data, journal) = (self.data.tallies(), self.journal.tallies());
        Traffic {
            journal: journal.of(Purpose::Journal).write_bytes,
            data: data.of(Purpose::UserData).write_bytes,
            metadata: data.of(Purpose::Metadata).write_bytes,
            map: data.of(Purpose::Map).write_bytes,
            flushes: data.total().flushes + journal.total().flushes,
        }
    }

    /// Makes everything durable and writes it back.
    pub(crate) async fn settle(&self) -> Result<(), BenchError> {
        let settled: Result<(), StoreError> = async {
            self.store.sync(self.store.now()).await?;
            self.store.checkpoint().await
        }
        .await;
        settled.map_err(failed)
    }

    /// Creates a file of `size` random bytes.
    pub(crate) async fn create(
        &self,
        parent: Ino,
        name: &str,
        size: usize,
        rng: &mut Rng,
    ) -> Result<Ino, BenchError> {
        let made = self.fs.create(parent, name.as_bytes(), &node(Node::File)).await;
        let ino = made.map_err(failed)?.ino;
        if size > 0 {
            self.write(ino, WriteAt::Offset(0), bytes(rng, size), false).await?;
        }
        Ok(ino)
    }

    /// Creates a directory.
    pub(crate) async fn mkdir(&self, parent: Ino, name: &str) -> Result<Ino, BenchError> {
        let made = self.fs.create(parent, name.as_bytes(), &node(Node::Directory)).await;
        Ok(made.map_err(failed)?.ino)
    }

    /// Writes to a file.
    pub(crate) async fn write(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Bytes,
        sync: bool,
    ) -> Result<(), BenchError> {
        let how = WriteHow { sync, clear_suid: false };
        self.fs.write(ino, at, vec![data], how).await.map(drop).map_err(failed)
    }
}

fn parts(data: &Arc<HardDisk>, journal: &Arc<HardDisk>) -> Parts {
    Parts { data: data.clone(), journal: Some(journal.clone() as DeviceRef) }
}

async fn mount(
    env: &Env,
    parts: &Parts,
    plan: Plan,
    make: bool,
) -> Result<(Arc<InPlace>, LocalFs, Recovered), BenchError> {
    let opened = InPlace::open(env, parts.clone(), plan.options()).await;
    let (store, recovered) = opened.map_err(failed)?;
    let store = Arc::new(store);
    let options = txn::Options { max_running: 16_384, ..txn::Options::default() };
    let volume = Arc::new(TransactionManager::new(env, store.clone(), options));
    if make {
        let format = Format::default();
        local::make(env, &(volume.clone() as Arc<dyn txn::Transact>), &format)
            .await
            .map_err(failed)?;
    }
    let fs = LocalFs::open(env, volume, "fs", local::Options::default()).await.map_err(failed)?;
    Ok((store, fs, recovered))
}

fn node(node: Node) -> NewNode {
    NewNode { node, mode: 0o755, umask: 0, uid: 0, gid: 0 }
}

/// Random bytes, which differ from those that they overwrite.
pub(crate) fn bytes(rng: &mut Rng, len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes[..]);
    bytes.into()
}

/// A duration in milliseconds.
pub(crate) fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
