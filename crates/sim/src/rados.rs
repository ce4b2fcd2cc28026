//! A cluster of object servers in virtual time, behind the interface of a pool of objects.
//!
//! Each object server (OSD) has a journal on a disk of its own, and a filesystem on another one. A change goes to the
//! primary server of its object's placement group, is checked and applied in the group's order, and acknowledged when
//! the journals of all servers of the group have it. Each server writes what its journal has into its filesystem,
//! every few seconds or when the journal is half full. Reads go to the primary's filesystem, unless it has the bytes
//! in memory. The disks give the time that this takes; the contents are kept once, beside them.
//!
//! | fault | what clients notice |
//! |---|---|
//! | [`SimRados::kill`]: a server dies | its groups do not answer until the others find out, or it is back |
//! | fewer servers than [`RadosSpec::least`] | the groups on them do not answer |
//! | [`SimRados::stall`]: a group does not answer | [`ObjectError::NoAnswer`], and the change is made later |
//! | [`SimRados::fill`]: the pool is full | [`ObjectError::NoSpace`] |
//! | [`SimPool::delay`]: a client's messages are late | the same as a slow network |
//! | the blocklist | [`ObjectError::Fenced`], from each server that has the map |
//!
//! A server learns a new map some time after it is made, or with a request of a client that has it. A server that
//! comes back has the contents at once: recovery takes no time.
//!
//! [`ObjectError::NoAnswer`]: thalweg_rados::ObjectError::NoAnswer
//! [`ObjectError::NoSpace`]: thalweg_rados::ObjectError::NoSpace
//! [`ObjectError::Fenced`]: thalweg_rados::ObjectError::Fenced

mod disk;
mod group;
mod object;
mod pool;
mod port;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use thalweg_env::{Env, Rng, Task, Time, watch};
use thalweg_fs::contents::Space;
use thalweg_store::device::DeviceRef;
use tokio::sync::mpsc;

use crate::hdd::HardDiskSpec;
use crate::ssd::SolidStateSpec;
pub use disk::{DiskSpec, DiskTally};
use group::Message;
use object::Object;
pub use pool::SimPool;
use port::Port;
use server::{Liveness, Server};

/// The parameters of a cluster.
#[derive(Clone, Debug)]
pub struct RadosSpec {
    /// Object servers.
    pub servers: usize,
    /// Copies of each object, each on a server of its own.
    pub copies: usize,
    /// The fewest copies with which a group serves requests.
    pub least: usize,
    /// Placement groups.
    pub groups: u32,
    /// From a machine to another one.
    pub latency: Duration,
    /// How long the cluster takes to replace a server that died.
    pub detection: Duration,
    /// The longest time until a server learns a new map by itself.
    pub map_delay: Duration,
    /// How long clients wait for an answer.
    pub request_timeout: Duration,
    /// The longest time between two write-backs from a journal.
    pub sync_interval: Duration,
    /// Bytes per second that the port of a machine carries in each direction; `None` for any.
    pub bandwidth: Option<u64>,
    /// The disk with a server's journal.
    pub journal: DiskSpec,
    /// The disk with a server's filesystem.
    pub filesystem: DiskSpec,
}

impl Default for RadosSpec {
    /// Three servers with a journal on a SATA drive without moving parts, and a filesystem on a disk of 7200 rpm.
    fn default() -> RadosSpec {
        RadosSpec {
            servers: 3,
            copies: 3,
            least: 2,
            groups: 32,
            latency: Duration::from_micros(50),
            detection: Duration::from_secs(20),
            map_delay: Duration::from_secs(2),
            request_timeout: Duration::from_secs(60),
            sync_interval: Duration::from_secs(5),
            bandwidth: None,
            journal: DiskSpec::SolidState(SolidStateSpec::sata(1 << 30)),
            filesystem: DiskSpec::Rotational(HardDiskSpec::sata_7200(64 << 30)),
        }
    }
}

/// Requests that the placement groups of a cluster have served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RadosTally {
    /// Reads of objects.
    pub reads: u64,
    /// Bytes that were asked for.
    pub read_bytes: u64,
    /// Changes of objects, also those that a guard refused.
    pub changes: u64,
    /// Bytes that changes write, once for all copies.
    pub changed_bytes: u64,
    /// Requests about locks.
    pub locks: u64,
    /// Parts of listings.
    pub lists: u64,
    /// Requests of clients on the blocklist.
    pub refused: u64,
}

/// What a server of a cluster has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTally {
    /// Bytes that its port has received, heads of messages included.
    pub received: u64,
    /// Bytes that it has sent.
    pub sent: u64,
    /// The disk with its journal.
    pub journal: DiskTally,
    /// The disk with its filesystem.
    pub filesystem: DiskTally,
}

/// A simulated cluster with one pool. Its processes end when it is dropped.
#[derive(Debug)]
pub struct SimRados {
    shared: Arc<Shared>,
    _tasks: Vec<Task<()>>,
}

struct Shared {
    env: Env,
    spec: RadosSpec,
    servers: Vec<Server>,
    inboxes: Vec<mpsc::UnboundedSender<Message>>,
    clients: AtomicU64,
    /// Changes with the servers that are alive, and with groups that stall.
    health: watch::Sender<u64>,
    state: Mutex<ClusterState>,
}

struct ClusterState {
    rng: Rng,
    objects: BTreeMap<String, Object>,
    stalled: BTreeSet<u32>,
    full: bool,
    tally: RadosTally,
    /// The number of the newest map.
    map: u64,
    /// Refused addresses: from which map on, and until when.
    blocklist: BTreeMap<String, (u64, Time)>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl Shared {
    /// What the drives of all servers have, for one copy of each object.
    fn space(&self) -> Space {
        let spec = &self.spec;
        let size = spec.filesystem.size() * spec.servers as u64 / spec.copies as u64;
        let state = self.state.lock();
        let used: u64 = state.objects.values().map(Object::size).sum();
        Space { size, free: if state.full { 0 } else { size.saturating_sub(used) } }
    }
}

impl SimRados {
    /// A cluster without objects.
    ///
    /// # Panics
    /// When the parameters have no servers, or fewer than copies.
    pub fn new(env: &Env, spec: RadosSpec) -> SimRados {
        assert!((1..=spec.servers).contains(&spec.copies) && spec.groups > 0, "{spec:?}");
        let servers = (0..spec.servers).map(|number| Server::new(env, number, &spec)).collect();
        let (inboxes, queues): (Vec<_>, Vec<_>) =
            (0..spec.groups).map(|_| mpsc::unbounded_channel()).unzip();
        let state = ClusterState {
            rng: env.rng(),
            objects: BTreeMap::new(),
            stalled: BTreeSet::new(),
            full: false,
            tally: RadosTally::default(),
            map: 1,
            blocklist: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            env: env.clone(),
            spec,
            servers,
            inboxes,
            clients: AtomicU64::new(4100),
            health: watch::channel(0).0,
            state: Mutex::new(state),
        });
        let groups = queues.into_iter().zip(0..);
        let groups =
            groups.map(|(queue, number)| env.spawn(group::serve(shared.clone(), number, queue)));
        let writers = (0..shared.servers.len())
            .map(|number| env.spawn(server::write_back(shared.clone(), number)));
        let _tasks = groups.chain(writers).collect();
        SimRados { shared, _tasks }
    }

    /// A new client of the pool.
    pub fn client(&self) -> Arc<SimPool> {
        let number = self.shared.clients.fetch_add(1, Ordering::Relaxed);
        Arc::new(SimPool::new(self.shared.clone(), number))
    }

    /// Kills a server. The others find out after [`RadosSpec::detection`].
    pub fn kill(&self, server: usize) {
        let died = self.shared.servers[server].kill();
        self.shared.changed();
        let shared = self.shared.clone();
        let detect = async move {
            shared.env.sleep(shared.spec.detection).await;
            shared.servers[server].mark_out(died);
            shared.changed();
        };
        self.shared.env.spawn(detect).detach();
    }

    /// Starts a killed server again.
    pub fn revive(&self, server: usize) {
        self.shared.servers[server].revive();
        self.shared.changed();
    }

    /// Makes the placement group of `object` answer no request, or answer again.
    pub fn stall(&self, object: &str, stalled: bool) {
        let group = self.shared.group_of(object);
        let mut state = self.shared.state.lock();
        match stalled {
            true => state.stalled.insert(group),
            false => state.stalled.remove(&group),
        };
        drop(state);
        self.shared.changed();
    }

    /// Makes the pool full, or gives it space again.
    pub fn fill(&self, full: bool) {
        self.shared.state.lock().full = full;
    }

    /// How many servers it has, those that are dead included.
    pub fn servers(&self) -> usize {
        self.shared.servers.len()
    }

    /// The disk with a server's journal.
    pub fn journal(&self, server: usize) -> DeviceRef {
        self.shared.servers[server].journal.device()
    }

    /// The disk with a server's filesystem.
    pub fn filesystem(&self, server: usize) -> DeviceRef {
        self.shared.servers[server].filesystem.device()
    }

    /// What a server has received, sent, read and written so far.
    pub fn server(&self, server: usize) -> ServerTally {
        let server = &self.shared.servers[server];
        let (received, sent) = server.port.bytes();
        let (journal, filesystem) = (server.journal.tally(), server.filesystem.tally());
        ServerTally { received, sent, journal, filesystem }
    }

    /// Empties the blocklist, as time or an administrator does.
    pub fn clear_blocklist(&self) {
        self.shared.state.lock().blocklist.clear();
    }

    /// The requests so far.
    pub fn tally(&self) -> RadosTally {
        self.shared.state.lock().tally
    }

    /// The names of all objects.
    pub fn objects(&self) -> Vec<String> {
        self.shared.state.lock().objects.keys().cloned().collect()
    }
}

impl Shared {
    fn changed(&self) {
        self.health.send_modify(|version| *version += 1);
    }

    /// The placement group of an object.
    fn group_of(&self, object: &str) -> u32 {
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        object.bytes().fold(0x811c_9dc5, mix) % self.spec.groups
    }

    /// The servers with the copies of a group, its usual primary first.
    fn servers_of(&self, group: u32) -> impl Iterator<Item = &Server> {
        let count = self.servers.len();
        (0..self.spec.copies).map(move |copy| &self.servers[(group as usize + copy) % count])
    }

    /// The server that a group's clients ask: the first one that lives.
    fn primary(&self, group: u32) -> &Server {
        let servers: Vec<&Server> = self.servers_of(group).collect();
        let alive = servers.iter().find(|server| server.liveness() == Liveness::Alive);
        alive.unwrap_or(&servers[0])
    }

    /// Sends a message with so many bytes beside its head; when it arrives.
    fn carry(&self, from: &Port, to: &Port, bytes: u64) -> Time {
        let carried = port::carry(from, to, bytes, self.spec.bandwidth, self.env.now());
        carried + self.spec.latency
    }

    /// Refuses an address from a new map on, and returns that map. Servers learn it one after the other.
    fn blocklist(self: &Arc<Self>, address: &str, until: Time) -> u64 {
        let (map, delays) = {
            let mut state = self.state.lock();
            state.map += 1;
            let map = state.map;
            state.blocklist.insert(address.to_owned(), (map, until));
            let longest = self.spec.map_delay.as_nanos().max(1) as u64;
            let delays: Vec<_> =
                self.servers.iter().map(|_| state.rng.random_range(0..longest)).collect();
            (map, delays)
        };
        for (server, delay) in delays.into_iter().enumerate() {
            let shared = self.clone();
            let learn = async move {
                shared.env.sleep(Duration::from_nanos(delay)).await;
                shared.servers[server].learn_map(map);
            };
            self.env.spawn(learn).detach();
        }
        map
    }

    /// Whether a server with the map numbered `map` refuses `address`.
    fn refuses(&self, address: &str, map: u64) -> bool {
        let state = self.state.lock();
        let entry = state.blocklist.get(address);
        entry.is_some_and(|(since, until)| map >= *since && self.env.now() < *until)
    }
}
