//! The systems that the benchmarks of a client's journal compare, on the same object servers: clients with a journal and without, and a model of Ceph's.

use std::sync::Arc;
use std::time::Duration;

use thalweg_cluster::client::{self, journal};
use thalweg_env::Env;
use thalweg_sim::hdd::HardDiskSpec;
use thalweg_sim::rados::{DiskSpec, RadosSpec, ServerTally, SimRados};
use thalweg_sim::ssd::SolidStateSpec;
use tokio::sync::Semaphore;

use crate::BenchError;
use crate::arion_own_client::OwnClient;
use crate::arion_site::{self, RadosSite, striped_over};
use crate::arion_subject::Subject;
use crate::ceph_metadata::CephMetadata;
use crate::ceph_model::{CephModel, CephSpec};
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
    /// A client of ours without a journal, which reaches the object servers itself, and writes back what is so old.
    Unjournaled(Duration),
}

/// Arion-60.
pub(crate) const ARION: System = System::Arion(Duration::from_secs(60));

/// The machines of a system.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) clients: usize,
    /// Bytes of a client's memory, and of its journal.
    pub(crate) memory: u64,
    pub(crate) journal: u64,
    /// The disks with that journal, which is striped over them; their size is set.
    pub(crate) journal_disks: usize,
    pub(crate) journal_disk: DiskSpec,
    /// The object servers.
    pub(crate) rados: RadosSpec,
    /// The part of their length that timers have here: 1, or the scale of a load that takes that part of its time.
    pub(crate) time: f64,
}

impl Plan {
    /// One client of the local cluster (8.1), with this part of the memory and of the journal: 1 for loads whose bytes in a second do not
    /// depend on their scale.
    pub(crate) fn local(part: f64) -> Plan {
        let memory = (MEMORY * part) as u64;
        Plan {
            clients: 1,
            memory,
            journal: memory,
            journal_disks: 2,
            journal_disk: DiskSpec::Rotational(HardDiskSpec::sas_15k(0)),
            rados: arion_site::rados(),
            time: 1.0,
        }
    }

    fn timer(&self, span: Duration) -> Duration {
        span.mul_f64(self.time)
    }

    /// How a client of ours treats its server, without a journal.
    fn options(&self, expire: Duration) -> client::Options {
        let usual = client::Options::default();
        client::Options {
            writeback: self.timer(expire.min(Duration::from_secs(60))),
            expire: self.timer(expire),
            commit: self.timer(usual.commit),
            recall: self.timer(usual.recall),
            // The hard limit of a client of Ceph.
            memory: (self.memory / 5) as usize,
            background: Some((self.memory / 10) as usize),
            ..usual
        }
    }

    fn ceph(&self, system: System) -> CephSpec {
        let second = self.timer(Duration::from_secs(1));
        let (writeback, expire) = match system {
            System::Ceph1 => (second, second),
            _ => (second * 5, second * 30),
        };
        let is_synchronous = system == System::CephSync;
        CephSpec { writeback, expire, is_synchronous, memory: self.memory }
    }
}

/// A client's machine.
pub(crate) struct Machine {
    pub(crate) subject: Arc<dyn Subject>,
    processors: Semaphore,
    env: Env,
}

impl Machine {
    /// An operation takes a processor.
    pub(crate) async fn operation(&self) {
        self.compute(OPERATION).await;
    }

    /// A processor works for so long.
    pub(crate) async fn compute(&self, span: Duration) {
        // The semaphore is never closed.
        let _processor = self.processors.acquire().await;
        self.env.sleep(span).await;
    }
}

/// A system that runs.
pub(crate) struct Machines {
    /// Of the first client.
    pub(crate) subject: Arc<dyn Subject>,
    pub(crate) clients: Vec<Arc<Machine>>,
    rados: Rados,
}

enum Rados {
    Ours(RadosSite),
    Ceph(SimRados),
}

impl Machines {
    pub(crate) async fn start(
        env: &Env,
        system: System,
        plan: &Plan,
    ) -> Result<Machines, BenchError> {
        let (rados, subjects) = match system {
            System::Arion(expire) => {
                let site =
                    RadosSite::on(env, plan.rados.clone(), |contents| Arc::new(contents)).await?;
                let clients = own_clients(env, plan, &site, expire, true).await?;
                (Rados::Ours(site), clients)
            }
            System::Unjournaled(expire) => {
                let site = RadosSite::reachable(env, plan.rados.clone()).await?;
                let clients = own_clients(env, plan, &site, expire, false).await?;
                (Rados::Ours(site), clients)
            }
            System::Ceph | System::Ceph1 | System::CephSync => {
                let rados = SimRados::new(env, plan.rados.clone());
                let metadata = CephMetadata::start(env, &rados);
                let client = |_| -> Arc<dyn Subject> {
                    CephModel::join(env, &rados, &metadata, plan.ceph(system))
                };
                let clients = (0..plan.clients).map(client).collect();
                (Rados::Ceph(rados), clients)
            }
        };
        let machine = |subject: &Arc<dyn Subject>| {
            let (subject, processors) = (subject.clone(), Semaphore::new(PROCESSORS));
            Arc::new(Machine { subject, processors, env: env.clone() })
        };
        let clients = subjects.iter().map(machine).collect();
        let none = || BenchError::Failed("a system has no clients".into());
        let subject = subjects.first().ok_or_else(none)?.clone();
        Ok(Machines { subject, clients, rados })
    }

    /// An operation takes a processor of the first client.
    pub(crate) async fn operation(&self) {
        self.clients[0].operation().await;
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

/// The clients of a server of ours.
async fn own_clients(
    env: &Env,
    plan: &Plan,
    site: &RadosSite,
    expire: Duration,
    has_journal: bool,
) -> Result<Vec<Arc<dyn Subject>>, BenchError> {
    let mut clients: Vec<Arc<dyn Subject>> = Vec::new();
    for number in 0..plan.clients {
        let mut options = plan.options(expire);
        if has_journal {
            let size = plan.journal.max(2 * journal::MIN_SIZE).next_multiple_of(1 << 20);
            let disk = |size| sized(&plan.journal_disk, size);
            let drive = striped_over(env, plan.journal_disks, disk, size)?;
            journal::create(env, &drive).await.map_err(failed)?;
            options.journal = Some(drive);
        } else {
            options.contents = Some(arion_site::finder(&site.rados));
        }
        let client = site.site.connect(env, &format!("client {number}"), options).await?;
        clients.push(Arc::new(OwnClient::new(client, plan.memory)));
    }
    Ok(clients)
}

/// A disk like this one, of another size.
fn sized(disk: &DiskSpec, size: u64) -> DiskSpec {
    match disk.clone() {
        DiskSpec::SolidState(spec) => DiskSpec::SolidState(SolidStateSpec { size, ..spec }),
        DiskSpec::Rotational(spec) => DiskSpec::Rotational(HardDiskSpec { size, ..spec }),
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
