//! `cluster-creates`: clients of a server of files make files in directories of their own, and then another client makes some
//! in each of them (virtual time). The loads are those of figures 3a to 3c of the paper on Cudele.
//!
//! The server's filesystem is on a volume that is updated in place on a solid-state drive. Its processor handles one message at
//! a time, [`CALL`] for each and [`BYTE`] for each byte, which is about what `cluster-server` measures; a client takes
//! [`CLIENT`] for a create. Messages take 50 µs. A round ends when everything is durable.
//!
//! | figure | meaning |
//! |---|---|
//! | `creates_per_s_N` | files that N clients make in a second together, each by a call |
//! | `alone_creates_per_s_N` | the same when a client may hold its directory exclusively |
//! | `interference_creates_per_s_N`, `alone_interference_…` | with a client that makes files in all of the directories |
//! | `…slowdown_N` | time of the slowest of the N clients, over that of one client without interference |
//! | `…deviation_N` | standard deviation of the clients' times, over their mean |
//! | `calls_per_create`, `…_interference`, `…_exclusive`, `…_exclusive_interference` | messages of 10 clients to the server for each file that they make |
//! | `server_bytes_per_create`, `…_exclusive` | bytes that reach the server's drive for each file of 10 clients |
//! | `latency_us_N` | time of a create by a call, on average |

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_cluster::client::{self, Client};
use thalweg_cluster::server::{self, Server, Visitor};
use thalweg_env::connection::{Listener, Stream};
use thalweg_env::{Env, Task, Time};
use thalweg_fs::local::{self, Format, Local};
use thalweg_fs::{Filesystem, FsError, Ino, NewNode, Node};
use thalweg_net::hello;
use thalweg_net::keys::Access;
use thalweg_sim::net::{Host, LinkSpec, Network};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::device::{Device, DeviceRef, Partition};
use thalweg_store::inplace::{self, InPlace, NewInPlace, Parts};
use thalweg_store::txn::{self, TransactionManager};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::{self, failed, rounded};
use crate::{BenchEntry, BenchError, Options, Report};

/// This benchmark in the list.
pub const ENTRY: BenchEntry = BenchEntry {
    name: "cluster-creates",
    about: "creates of 1 to 20 clients at a server of files, with and without interference",
    clock: crate::Clock::Virtual,
    loads: Vec::new,
    traces: false,
    run,
};

/// Files that each client makes at scale 1: a tenth of the paper's.
const FILES: f64 = 10_000.0;
/// Of so many files that a client makes, the one that interferes makes one beside.
const INTERFERING: u32 = 100;
const CLIENTS: [u32; 4] = [1, 5, 10, 20];
/// The number of clients whose messages are counted.
const COUNTED: u32 = 10;
/// Time of the server's processor for a message.
const CALL: Duration = Duration::from_micros(25);
/// Nanoseconds of the server's processor for a byte.
const BYTE: u64 = 50;
/// Time of a client for a create.
const CLIENT: Duration = Duration::from_micros(10);
const SIZE: u64 = 8 << 30;
const JOURNAL: u64 = 256 << 20;
const PORT: u16 = 7700;

/// What is measured.
#[derive(Clone, Copy, Debug)]
struct Case {
    clients: u32,
    /// A client may hold its directory exclusively.
    alone: bool,
    interference: bool,
    files: u32,
}

/// What it comes to.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    creates_per_s: f64,
    /// Seconds of the slowest client.
    slowest: f64,
    /// Of the clients' times, over their mean.
    deviation: f64,
    calls_per_create: f64,
    bytes_per_create: f64,
    latency_us: f64,
}

fn run(options: &Options) -> Result<Report, BenchError> {
    let scale = rig::scale(options, 1.0)?;
    let files = ((FILES * scale) as u32).max(INTERFERING);
    let mut report = Report::new(ENTRY.name, options.seed);
    report.figure("scale", scale);
    for alone in [false, true] {
        let of = if alone { "alone_" } else { "" };
        let counted = if alone { "_exclusive" } else { "" };
        let mut first = None;
        for interference in [false, true] {
            let kind = if interference { "interference_" } else { "" };
            let counted =
                format!("{counted}{}", kind.trim_end_matches('_').replace("inter", "_inter"));
            for clients in CLIENTS {
                let case = Case { clients, alone, interference, files };
                let found = thalweg_sim::run(options.seed, |env| measure(env, case))?;
                let first = *first.get_or_insert(found.slowest);
                let mut row = |figure: &str, value: f64| {
                    report.figure(&format!("{of}{kind}{figure}_{clients}"), rounded(value));
                };
                row("creates_per_s", found.creates_per_s);
                row("slowdown", found.slowest / first);
                row("deviation", found.deviation);
                if !alone {
                    row("latency_us", found.latency_us);
                }
                if clients == COUNTED {
                    let calls = rounded(found.calls_per_create);
                    report.figure(&format!("calls_per_create{counted}"), calls);
                    let bytes = rounded(found.bytes_per_create);
                    report.figure(&format!("server_bytes_per_create{counted}"), bytes);
                }
            }
        }
    }
    Ok(report)
}

/// A server's processor: it handles one message after the other.
#[derive(Clone, Debug)]
struct Processor {
    env: Env,
    free: Arc<Mutex<Time>>,
}

impl Processor {
    /// Returns when it has worked for so long on what came before, and on this.
    async fn work(&self, span: Duration) {
        let until = {
            let mut free = self.free.lock();
            *free = (*free).max(self.env.now()) + span;
            *free
        };
        self.env.sleep_until(until).await;
    }

    /// The server's end of a connection: what comes over `stream`, as the processor gets to it.
    fn end_of(&self, stream: impl Stream) -> tokio::io::DuplexStream {
        let (own, end) = tokio::io::duplex(1 << 20);
        let (mut from, mut to) = tokio::io::split(stream);
        let (mut answers, mut calls) = tokio::io::split(own);
        let processor = self.clone();
        let receive = async move {
            let mut hello = [0; hello::LEN];
            from.read_exact(&mut hello).await?;
            calls.write_all(&hello).await?;
            loop {
                let len = from.read_u32_le().await?;
                let mut frame = vec![0; len as usize];
                from.read_exact(&mut frame).await?;
                let bytes = Duration::from_nanos(BYTE * u64::from(len));
                processor.work(CALL + bytes).await;
                calls.write_u32_le(len).await?;
                calls.write_all(&frame).await?;
            }
            #[expect(unreachable_code, reason = "gives the type of the errors")]
            Ok::<(), std::io::Error>(())
        };
        let send = async move { tokio::io::copy(&mut answers, &mut to).await };
        self.env.spawn(async move { drop(receive.await) }).detach();
        self.env.spawn(async move { drop(send.await) }).detach();
        end
    }
}

/// The machines.
struct Site {
    env: Env,
    network: Network,
    server: Host,
    drive: Arc<SolidState>,
    _accepting: Task<()>,
}

impl Site {
    async fn new(env: &Env) -> Result<Site, BenchError> {
        let network = Network::new(env, LinkSpec::default());
        let server = network.host("server");
        let spec = SolidStateSpec::sata(2 * SIZE + JOURNAL);
        let drive = Arc::new(SolidState::new(env, "drive", spec));
        let files = filesystem(env, drive.clone()).await?;
        let service = Server::start(env, Arc::new(files), server::Options::default()).await;
        let service = service.map_err(failed)?;
        let listener = server.listen(PORT).map_err(failed)?;
        let processor = Processor { env: env.clone(), free: Arc::default() };
        let own = env.clone();
        let accept = async move {
            while let Ok(stream) = listener.accept().await {
                let (service, stream) = (service.clone(), processor.end_of(stream));
                let (name, path) = ("client".to_owned(), "/".to_owned());
                let visitor = Visitor { name, path, access: Access::Write };
                own.spawn(async move { drop(service.serve(stream, visitor).await) }).detach();
            }
        };
        let accepting = env.spawn(accept);
        Ok(Site { env: env.clone(), network, server, drive, _accepting: accepting })
    }

    async fn client(&self, name: &str, alone: bool) -> Result<Client, BenchError> {
        let connector = self.network.host(name).connector(&self.server, PORT);
        let exclusive = alone.then_some(1);
        let options = client::Options { exclusive, ..client::Options::default() };
        Client::connect(&self.env, Box::new(connector), options).await.map_err(failed)
    }
}

async fn filesystem(env: &Env, drive: Arc<SolidState>) -> Result<Local, BenchError> {
    let part = |start, size| -> Result<DeviceRef, BenchError> {
        Ok(Arc::new(Partition::new(drive.clone(), start, size).map_err(failed)?))
    };
    let parts = || -> Result<Parts, BenchError> {
        Ok(Parts { data: part(JOURNAL, 2 * SIZE)?, journal: Some(part(0, JOURNAL)?) })
    };
    let new =
        NewInPlace { name: "creates".to_owned(), journal_size: Some(JOURNAL), size: Some(SIZE) };
    InPlace::create(env, &parts()?, &new).await.map_err(failed)?;
    let options = inplace::Options { cache: 2 << 30, ..inplace::Options::default() };
    let (store, _) = InPlace::open(env, parts()?, options).await.map_err(failed)?;
    let volume = TransactionManager::new(env, Arc::new(store), txn::Options::default());
    let volume: Arc<dyn txn::Transact> = Arc::new(volume);
    local::make(env, &volume, &Format::default()).await.map_err(failed)?;
    let options = local::Options { keep_orphans: true, ..local::Options::default() };
    Local::open(env, volume, "fs", options).await.map_err(failed)
}

fn new(node: Node) -> NewNode {
    NewNode { node, mode: 0o755, umask: 0o022, uid: 0, gid: 0 }
}

fn messages(client: &Client) -> u64 {
    client.traffic().sent().values().map(|sent| sent.messages).sum()
}

/// Makes files in a directory; the time, and that of a create on average in microseconds.
async fn make(env: Env, fs: Client, directory: Ino, files: u32) -> Result<(f64, f64), FsError> {
    let (begun, mut within) = (env.now(), Duration::ZERO);
    for file in 0..files {
        env.sleep(CLIENT).await;
        let at = env.now();
        fs.create(directory, format!("file{file}").as_bytes(), &new(Node::File)).await?;
        within += env.now().since(at);
    }
    fs.sync(directory, false).await?;
    let took = env.now().since(begun).as_secs_f64();
    Ok((took, within.as_secs_f64() * 1e6 / f64::from(files)))
}

/// Makes files in all directories, in turns, for as long as the others take about.
async fn interfere(fs: Client, directories: Vec<Ino>, files: u32) -> Result<(), FsError> {
    for file in 0..files / INTERFERING {
        for directory in &directories {
            let name = format!("other{file}");
            fs.create(*directory, name.as_bytes(), &new(Node::File)).await?;
        }
    }
    Ok(())
}

async fn measure(env: Env, case: Case) -> Result<Outcome, BenchError> {
    let site = Site::new(&env).await?;
    let mut clients = Vec::new();
    for number in 0..case.clients {
        let client = site.client(&format!("c{number}"), case.alone).await?;
        let name = format!("d{number}");
        let made = client.create(Ino::ROOT, name.as_bytes(), &new(Node::Directory)).await;
        let directory = made.map_err(failed)?.ino;
        client.reference(directory);
        clients.push((client, directory));
    }
    let bytes = || site.drive.tallies().total().write_bytes;
    let (before, begun) = (bytes(), env.now());
    let calls: u64 = clients.iter().map(|(client, _)| messages(client)).sum();
    let mut making = Vec::new();
    for (client, directory) in &clients {
        let (own, fs, directory) = (env.clone(), client.clone(), *directory);
        making.push(env.spawn(make(own, fs, directory, case.files)));
    }
    let interfering = match case.interference {
        true => Some(disturb(&env, &site, &clients, case.files).await?),
        false => None,
    };
    let (mut times, mut latency) = (Vec::new(), 0.0);
    for task in making {
        let (took, within) = task.await.ok_or_else(died)?.map_err(failed)?;
        times.push(took);
        latency += within;
    }
    let took = env.now().since(begun).as_secs_f64();
    let calls = clients.iter().map(|(client, _)| messages(client)).sum::<u64>() - calls;
    drop(interfering);
    let made = f64::from(case.files) * f64::from(case.clients);
    let count = times.len() as f64;
    let mean = times.iter().sum::<f64>() / count;
    let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
    Ok(Outcome {
        creates_per_s: made / took,
        slowest: times.iter().copied().fold(0.0, f64::max),
        deviation: variance.sqrt() / mean,
        calls_per_create: calls as f64 / made,
        bytes_per_create: (bytes() - before) as f64 / made,
        latency_us: latency / count,
    })
}

/// A client that makes files in the directories of the others, until it is dropped.
async fn disturb(
    env: &Env,
    site: &Site,
    clients: &[(Client, Ino)],
    files: u32,
) -> Result<Task<Result<(), FsError>>, BenchError> {
    let other = site.client("other", false).await?;
    let mut directories = Vec::new();
    for number in 0..clients.len() {
        let found = other.find(Ino::ROOT, format!("d{number}").as_bytes()).await;
        let found = found.map_err(failed)?.ino;
        other.reference(found);
        directories.push(found);
    }
    Ok(env.spawn(interfere(other, directories, files)))
}

fn died() -> BenchError {
    BenchError::Failed("a task of the simulation died".into())
}
