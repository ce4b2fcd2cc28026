//! The systems that the benchmarks of a client's journal compare: a client with a journal, and a model of one of Ceph, on the same object servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_cluster::client::{Client, journal};
use thalweg_env::Env;
use thalweg_fs::{Caller, Filesystem, FsError, Ino, Node, OpenFlags, WriteAt, WriteHow};
use thalweg_sim::rados::{ServerTally, SimRados};
use tokio::sync::Semaphore;

use crate::BenchError;
use crate::arion_site::{self, RadosSite, striped_drive};
use crate::arion_subject::{PAGE, PageCache, Subject, pages_of};
use crate::ceph_model::{CephModel, CephSpec};
use crate::cluster_site::{journaled, new};
use crate::rig::failed;

/// Bytes of a client's memory, and of its journal, at scale 1.
const MEMORY: f64 = 2e9;
/// A client has two processors, and an operation takes one of them for so long.
const PROCESSORS: usize = 2;
const OPERATION: Duration = Duration::from_micros(25);
/// Never, in a run.
pub(crate) const NEVER: Duration = Duration::from_secs(1_000_000);

/// The systems of the thesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// A client with a journal, which writes back what is so old.
    Arion(Duration),
    /// 5 s and 30 s.
    Ceph,
    /// 1 s and 1 s.
    Ceph1,
    /// Mounted synchronously.
    CephSync,
}

/// Arion-60.
pub(crate) const ARION: System = System::Arion(Duration::from_secs(60));

/// A system that runs.
pub(crate) struct Machines {
    pub(crate) subject: Arc<dyn Subject>,
    rados: Rados,
    processors: Semaphore,
    env: Env,
}

enum Rados {
    Ours(RadosSite),
    Ceph(SimRados),
}

impl Machines {
    /// With this part of the memory and of the journal: 1 for loads whose bytes in a second do not depend on their scale.
    pub(crate) async fn start(
        env: &Env,
        system: System,
        part: f64,
    ) -> Result<Machines, BenchError> {
        let memory = (MEMORY * part) as u64;
        let (subject, rados): (Arc<dyn Subject>, _) = match system {
            System::Arion(expire) => {
                let site = RadosSite::new(env).await?;
                let size = memory.max(2 * journal::MIN_SIZE).next_multiple_of(1 << 20);
                let (drive, _) = striped_drive(env, size)?;
                journal::create(env, &drive).await.map_err(failed)?;
                let options = thalweg_cluster::client::Options {
                    writeback: expire.min(Duration::from_secs(60)),
                    expire,
                    // The hard limit of a client without a journal.
                    memory: (memory / 5) as usize,
                    ..journaled(drive)
                };
                let client = site.site.connect(env, "journaled", options).await?;
                let pages = Mutex::new(PageCache::new((memory / PAGE) as usize));
                let sizes = Mutex::default();
                (Arc::new(Journaled { client, pages, sizes }), Rados::Ours(site))
            }
            System::Ceph | System::Ceph1 | System::CephSync => {
                let rados = SimRados::new(env, arion_site::rados());
                let second = Duration::from_secs(1);
                let (writeback, expire) = match system {
                    System::Ceph1 => (second, second),
                    _ => (second * 5, second * 30),
                };
                let is_synchronous = system == System::CephSync;
                let spec = CephSpec { writeback, expire, is_synchronous, memory };
                let model = CephModel::start(env, &rados, spec);
                (model, Rados::Ceph(rados))
            }
        };
        let processors = Semaphore::new(PROCESSORS);
        Ok(Machines { subject, rados, processors, env: env.clone() })
    }

    /// An operation takes a processor.
    pub(crate) async fn operation(&self) {
        // The semaphore is never closed.
        let _processor = self.processors.acquire().await;
        self.env.sleep(OPERATION).await;
    }

    /// What the object servers have done, together.
    pub(crate) fn servers(&self) -> ServerTally {
        let rados = match &self.rados {
            Rados::Ours(site) => &site.rados,
            Rados::Ceph(rados) => rados,
        };
        arion_site::tallies(rados).into_iter().fold(ServerTally::default(), add)
    }
}

fn add(sum: ServerTally, more: ServerTally) -> ServerTally {
    combine(sum, more, |a, b| a + b, |a, b| a + b)
}

/// What was done since.
pub(crate) fn since(now: ServerTally, before: ServerTally) -> ServerTally {
    combine(now, before, |a, b| a - b, |a, b| a - b)
}

fn combine(
    one: ServerTally,
    other: ServerTally,
    bytes: fn(u64, u64) -> u64,
    time: fn(Duration, Duration) -> Duration,
) -> ServerTally {
    let mut all = one;
    for (into, from) in [(&mut all.journal, other.journal), (&mut all.filesystem, other.filesystem)]
    {
        into.read_bytes = bytes(into.read_bytes, from.read_bytes);
        into.write_bytes = bytes(into.write_bytes, from.write_bytes);
        into.busy = time(into.busy, from.busy);
    }
    all.received = bytes(one.received, other.received);
    all.sent = bytes(one.sent, other.sent);
    all
}

const WRITING: OpenFlags =
    OpenFlags { read: true, write: true, append: false, direct: false, sync: false };

/// A client with a journal, and the page cache of its machine.
struct Journaled {
    client: Client,
    pages: Mutex<PageCache>,
    sizes: Mutex<BTreeMap<Ino, u64>>,
}

#[async_trait]
impl Subject for Journaled {
    async fn make_directory(&self, name: &str) -> Result<Ino, FsError> {
        let made = self.client.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await?.ino;
        self.client.reference(made);
        Ok(made)
    }

    async fn create(&self, directory: Ino, name: &str) -> Result<Ino, FsError> {
        let made = self.client.create(directory, name.as_bytes(), &new(Node::File)).await?.ino;
        self.client.reference(made);
        Ok(made)
    }

    async fn unlink(&self, directory: Ino, name: &str, file: Ino) -> Result<(), FsError> {
        self.client.unlink(directory, name.as_bytes()).await?;
        self.client.unreference(file, 1);
        self.sizes.lock().remove(&file);
        Ok(())
    }

    async fn write(&self, file: Ino, offset: u64, len: usize) -> Result<(), FsError> {
        let data = vec![Bytes::from(vec![1; len])];
        // A program opens a file to write it, by which that becomes the client's own.
        let handle = self.client.open(&Caller::default(), file, WRITING).await?.handle;
        self.client.write(file, WriteAt::Offset(offset), data, WriteHow::default()).await?;
        self.client.release(file, handle).await;
        let (size, end) = {
            let mut sizes = self.sizes.lock();
            let size = sizes.entry(file).or_default();
            let before = *size;
            *size = before.max(offset + len as u64);
            (before, offset + len as u64)
        };
        let mut cache = self.pages.lock();
        for page in pages_of(offset, len) {
            // Of a page that is there in part, the rest is not in memory. Behind the end of the file there is none.
            let has_start = offset <= page * PAGE;
            let has_end = end >= ((page + 1) * PAGE).min(size);
            if has_start && has_end || page * PAGE >= size || cache.touch(file, page) {
                cache.insert(file, page);
            }
        }
        Ok(())
    }

    async fn sync(&self, file: Ino) -> Result<(), FsError> {
        self.client.sync(file, true).await
    }

    async fn read(&self, file: Ino, offset: u64, len: usize) -> Result<(), FsError> {
        let is_there = {
            let mut cache = self.pages.lock();
            pages_of(offset, len).all(|page| cache.touch(file, page))
        };
        if !is_there {
            self.client.read(file, offset, len).await?;
            let mut cache = self.pages.lock();
            pages_of(offset, len).for_each(|page| cache.insert(file, page));
        }
        Ok(())
    }

    async fn drain(&self) -> Result<(), FsError> {
        self.client.drain().await
    }

    fn forget_pages(&self) {
        self.pages.lock().clear();
    }

    fn vulnerable(&self) -> u64 {
        let pending = self.client.pending();
        pending.unsent.bytes.saturating_sub(pending.in_journal.bytes)
    }
}
