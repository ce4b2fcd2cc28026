//! `cluster-restart`: a server of files is killed under its clients and started again: how long until all of them go on (real
//! time, TLS over loopback, everything in this process).
//!
//! Ten clients cache the attributes of 10,000 files each, and make files all the time; the changes of the last second are not
//! durable. The server's tasks stop, with all that they had in memory; another server opens the volume, which lies in memory.
//! A client goes on when a call that it makes after the kill is answered. Then the same once more while one of the clients has
//! died with the server, so that the others wait for the grace period.
//!
//! Last a server and a standby in processes of their own, which act as on two machines, with the filesystem on a Ceph cluster of
//! three object servers, which the program that the variable `THALWEG_MINI_CLUSTER` names starts on this machine. The server is
//! killed while the clients make files, and the standby decides by itself to go on in its place. Without librados or a cluster this
//! part is left out, with a message.
//!
//! | figure | meaning |
//! |---|---|
//! | `capabilities` | inodes of which the clients cache something |
//! | `changes_made_again` | changes that were acknowledged and not durable |
//! | `restart_seconds` | from the kill until the last client goes on |
//! | `dead_client_seconds`, `grace_seconds`, `dead_client_seconds_beyond_grace` | the same with a dead client |
//! | `files_lost` | files that were acknowledged, and are not there afterwards |
//! | `rados_standby_seconds`, `rados_lease`, `rados_standby_seconds_beyond_lease` | with a standby: from the kill until the last client goes on; the server's lease; the difference, whose aim is 2 s at most |
//! | `rados_files_lost` | files that were acknowledged, and are not there at the standby |

mod standby;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use thalweg_cluster::client::Client;
use thalweg_cluster::server::{self, Server};
use thalweg_env::{Env, Node as Process, Task};
use thalweg_fs::{Cookie, Filesystem, FsError, Ino, NewNode, Node};
use thalweg_store::device::{DeviceRef, MemoryDevice};
use thalweg_store::inplace::Mode;

use crate::cluster_wire::Wire;
use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "cluster-restart",
    about: "a server of files is killed under ten clients with 100,000 capabilities: when all of them go on; with librados, also a standby on Ceph",
    clock: crate::Clock::Real,
    loads: Vec::new,
    traces: false,
    run,
};

/// Bytes of the volume.
const SIZE: u64 = 1 << 30;
const CLIENTS: usize = 10;
/// Files of each client at scale 1.
const FILES: f64 = 10_000.0;
const LEASE: Duration = Duration::from_secs(2);
const MODE: Mode = Mode::Data;

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    let files = ((FILES * scale) as usize).max(100);
    runtime.block_on(async {
        let mut scene = Scene::start(&Env::real(), files).await?;
        report.figure("capabilities", scene.capabilities() as f64);
        let first = scene.kill(None).await?;
        report
            .figure("changes_made_again", first.again as f64)
            .figure("restart_seconds", rounded(first.seconds));
        let second = scene.kill(Some(CLIENTS - 1)).await?;
        let grace = (LEASE + LEASE / 2).as_secs_f64();
        report
            .figure("dead_client_seconds", rounded(second.seconds))
            .figure("grace_seconds", grace)
            .figure("dead_client_seconds_beyond_grace", rounded(second.seconds - grace))
            .figure("files_lost", scene.lost().await? as f64);
        Ok::<(), BenchError>(())
    })?;
    standby::run(options, (scale, files as u64), &mut report)?;
    Ok(report)
}

/// A client that makes files.
struct Maker {
    process: Process,
    client: Client,
    /// The directory of its files, at the root.
    name: String,
    directory: Ino,
    /// Files that it has made.
    made: Arc<AtomicU64>,
    making: Option<Task<Result<(), FsError>>>,
    stops: Arc<AtomicBool>,
}

struct Scene {
    env: Env,
    device: DeviceRef,
    wire: Wire,
    process: Process,
    server: Server,
    makers: Vec<Maker>,
    dead: Option<usize>,
}

/// What a kill has cost.
struct Cost {
    seconds: f64,
    again: usize,
}

fn new(node: Node) -> NewNode {
    NewNode { node, mode: 0o755, umask: 0o022, uid: 0, gid: 0 }
}

async fn serve(
    env: &Env,
    device: &DeviceRef,
    wire: &Wire,
) -> Result<(Process, Server), BenchError> {
    let process = env.node();
    let files = crate::fs::made::open_served(process.env(), device.clone(), MODE).await?;
    let options = server::Options { lease: LEASE, ..server::Options::default() };
    let server = Server::start(process.env(), files, options).await.map_err(failed)?;
    wire.serve(Some((process.env().clone(), server.clone())));
    Ok((process, server))
}

impl Scene {
    async fn start(env: &Env, files: usize) -> Result<Scene, BenchError> {
        let device: DeviceRef = Arc::new(MemoryDevice::new(SIZE));
        let (local, store) = crate::fs::made::make(device.clone(), MODE).await?;
        local.close().await.map_err(failed)?;
        drop(local);
        store.close().await.map_err(failed)?;
        drop(store);
        let wire = Wire::start(env).await?;
        let (process, server) = serve(env, &device, &wire).await?;
        let mut makers = Vec::new();
        for number in 0..CLIENTS {
            let process = env.node();
            let client = wire.client_in(process.env()).await?;
            makers.push(Maker::new(process, client, number).await?);
        }
        let making = makers.iter().map(|it| it.make(files as u64));
        for made in futures::future::join_all(making).await {
            made.map_err(failed)?;
        }
        let env = env.clone();
        Ok(Scene { env, device, wire, process, server, makers, dead: None })
    }

    fn capabilities(&self) -> u64 {
        self.server.sessions().iter().map(|it| it.cached).sum()
    }

    /// Kills the server, and a client with it.
    async fn kill(&mut self, dies: Option<usize>) -> Result<Cost, BenchError> {
        self.makers.iter_mut().for_each(Maker::begin);
        self.env.sleep(Duration::from_millis(300)).await;
        self.makers.iter().for_each(Maker::stop);
        let again = self.makers.iter().map(|it| it.client.status().kept).sum();
        self.wire.serve(None);
        self.process.kill();
        let killed = self.env.now();
        if let Some(dies) = dies {
            self.makers[dies].process.kill();
            self.dead = Some(dies);
        }
        (self.process, self.server) = serve(&self.env, &self.device, &self.wire).await?;
        let alive = self.makers.iter_mut().enumerate();
        let alive = alive.filter(|(number, _)| Some(*number) != self.dead);
        let going = alive.map(|(_, maker)| async move {
            maker.end().await?;
            maker.client.statistics().await.map(|_| ())
        });
        for gone in futures::future::join_all(going).await {
            gone.map_err(failed)?;
        }
        Ok(Cost { seconds: self.env.now().since(killed).as_secs_f64(), again })
    }

    /// Acknowledged files that are not there.
    async fn lost(&self) -> Result<u64, BenchError> {
        let reader = self.wire.client().await?;
        let mut lost = 0;
        for (number, maker) in self.makers.iter().enumerate() {
            if Some(number) == self.dead {
                continue;
            }
            lost += maker.lost(&reader).await?;
        }
        Ok(lost)
    }
}

impl Maker {
    /// Makes a directory for its files.
    async fn new(process: Process, client: Client, number: usize) -> Result<Maker, BenchError> {
        let name = format!("d{number}");
        let made = client.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await;
        let directory = made.map_err(failed)?.ino;
        client.reference(directory);
        let (made, stops) = Default::default();
        Ok(Maker { process, client, name, directory, made, making: None, stops })
    }

    /// Acknowledged files that another client does not find.
    async fn lost(&self, reader: &Client) -> Result<u64, BenchError> {
        let directory = reader.find(Ino::ROOT, self.name.as_bytes()).await.map_err(failed)?.ino;
        let (mut there, mut from) = (0, Cookie::START);
        loop {
            let some = reader.read_directory(directory, from, 1000, false).await;
            let some = some.map_err(failed)?;
            let Some(last) = some.last() else { break };
            from = last.cookie;
            there += some.len() as u64;
        }
        Ok(self.made.load(Ordering::Relaxed).saturating_sub(there))
    }

    /// Makes files, which stay in its cache.
    async fn make(&self, files: u64) -> Result<(), FsError> {
        let (client, made, stops) = (self.client.clone(), self.made.clone(), self.stops.clone());
        make(client, self.directory, made, stops, files).await
    }

    /// Begins to make files until it is stopped.
    fn begin(&mut self) {
        self.stops = Arc::default();
        let (client, made, stops) = (self.client.clone(), self.made.clone(), self.stops.clone());
        let making = make(client, self.directory, made, stops, u64::MAX);
        self.making = Some(self.process.env().spawn(making));
    }

    fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    async fn end(&mut self) -> Result<(), FsError> {
        match self.making.take() {
            Some(making) => making.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }
}

async fn make(
    client: Client,
    directory: Ino,
    made: Arc<AtomicU64>,
    stops: Arc<AtomicBool>,
    files: u64,
) -> Result<(), FsError> {
    for _ in 0..files {
        if stops.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("file{}", made.load(Ordering::Relaxed));
        let ino = client.create(directory, name.as_bytes(), &new(Node::File)).await?.ino;
        // A client soon forgets what its caller does not hold.
        client.reference(ino);
        made.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
