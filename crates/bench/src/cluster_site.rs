//! Machines in virtual time: a server of files on a solid-state drive, whose processor handles one message at a time, and its
//! clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_cluster::client::{self, Client, JournaledData, KeeperTarget, MoveTarget, Receiver};
use thalweg_cluster::keeper::Keeper;
use thalweg_cluster::server::{self, Server, Visitor};
use thalweg_env::connection::{Listener, Stream};
use thalweg_env::{Env, Task, Time};
use thalweg_fs::local::{self, Format, LocalFs};
use thalweg_fs::{NewNode, Node};
use thalweg_net::hello;
use thalweg_net::keys::{Access, Squash};
use thalweg_sim::net::{Host, LinkSpec, LinkTally, Network};
use thalweg_sim::ssd::{SolidState, SolidStateSpec};
use thalweg_store::device::{DeviceRef, Partition};
use thalweg_store::inplace::{self, InPlace, NewInPlace, Parts};
use thalweg_store::txn::{self, TransactionManager};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::BenchError;
use crate::rig::failed;

/// What a server's processor takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processing {
    /// For a message.
    pub(crate) call: Duration,
    /// Nanoseconds for a byte.
    pub(crate) byte: u64,
}

/// A slow one, so that many clients are limited by it.
const SLOW: Processing = Processing { call: Duration::from_micros(25), byte: 50 };
const SIZE: u64 = 8 << 30;
const JOURNAL: u64 = 256 << 20;
const PORT: u16 = 7700;

/// A server's processor: it handles one message after the other.
#[derive(Clone, Debug)]
struct Processor {
    env: Env,
    processing: Processing,
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
                let Processing { call, byte } = processor.processing;
                processor.work(call + Duration::from_nanos(byte * u64::from(len))).await;
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
pub(crate) struct Site {
    env: Env,
    network: Network,
    server: Host,
    /// The device with the server's filesystem.
    pub(crate) drive: DeviceRef,
    /// The machines of the clients, by their names.
    hosts: Mutex<BTreeMap<String, Host>>,
    _accepting: Task<()>,
}

impl Site {
    /// The machines, with `link` between each two.
    pub(crate) async fn new(env: &Env, link: LinkSpec) -> Result<Site, BenchError> {
        let spec = SolidStateSpec::sata(2 * SIZE + JOURNAL);
        let drive: DeviceRef = Arc::new(SolidState::new(env, "drive", spec));
        let files = filesystem(env, drive.clone()).await?;
        Site::serve(env, link, SLOW, (files, drive)).await
    }

    /// The machines of a filesystem, which has this drive.
    pub(crate) async fn serve(
        env: &Env,
        link: LinkSpec,
        processing: Processing,
        (files, drive): (LocalFs, DeviceRef),
    ) -> Result<Site, BenchError> {
        let network = Network::new(env, link);
        let server = network.host("server");
        let service = Server::start(env, Arc::new(files), server::Options::default()).await;
        let service = service.map_err(failed)?;
        let listener = server.listen(PORT).map_err(failed)?;
        let processor = Processor { env: env.clone(), processing, free: Arc::default() };
        let own = env.clone();
        let accept = async move {
            while let Ok(stream) = listener.accept().await {
                let (service, stream) = (service.clone(), processor.end_of(stream));
                let (name, path) = ("client".to_owned(), "/".to_owned());
                let visitor = Visitor { name, path, access: Access::Write, squash: Squash::None };
                own.spawn(async move { drop(service.serve(stream, visitor).await) }).detach();
            }
        };
        let accepting = env.spawn(accept);
        let hosts = Mutex::default();
        Ok(Site { env: env.clone(), network, server, drive, hosts, _accepting: accepting })
    }

    /// Cuts a client off from the server.
    pub(crate) fn cut_off(&self, name: &str) {
        if let Some(host) = self.hosts.lock().get(name) {
            self.network.part(std::slice::from_ref(host), std::slice::from_ref(&self.server));
        }
    }

    /// A client on a machine of its own; with `alone`, it may hold directories exclusively.
    pub(crate) async fn client(&self, name: &str, alone: bool) -> Result<Client, BenchError> {
        let exclusive = alone.then_some(1);
        let options = client::Options { exclusive, ..client::Options::default() };
        self.connect(&self.env, name, options).await
    }

    /// A client on a machine of its own, whose program runs in `env`.
    pub(crate) async fn connect(
        &self,
        env: &Env,
        name: &str,
        options: client::Options,
    ) -> Result<Client, BenchError> {
        let host = self.network.host(name);
        let connector = host.connector(&self.server, PORT);
        self.hosts.lock().insert(name.to_owned(), host);
        Client::connect(env, Box::new(connector), options).await.map_err(failed)
    }

    /// Cuts the power of a client's machine, for good: one of the same name is another machine.
    pub(crate) fn power_off(&self, name: &str) {
        if let Some(host) = self.hosts.lock().get(name) {
            host.power_off();
        }
    }

    /// What the link between the last machine of that name and the server has carried, there and back.
    pub(crate) fn link_use(&self, name: &str) -> (LinkTally, LinkTally) {
        let hosts = self.hosts.lock();
        let tally = |host: &Host| {
            let there = self.network.tally(host, &self.server);
            (there, self.network.tally(&self.server, host))
        };
        hosts.get(name).map(tally).unwrap_or_default()
    }
}

/// The client with a journal.
const JOURNALED: &str = "journaled";
/// The machine that its mount moves to.
const DESTINATION: &str = "destination";
/// The same machine, as its keeper sees it.
const COPIED: &str = "copied";
/// Its keeper.
const KEEPER: &str = "keeper";

impl Site {
    /// A client with a journal on a drive of its own, which it makes empty.
    pub(crate) async fn journaled(&self, drive: DeviceRef) -> Result<Client, BenchError> {
        self.journaled_with(drive, Vec::new()).await
    }

    /// The same, with these bytes of files in the journal.
    pub(crate) async fn journaled_as(
        &self,
        drive: DeviceRef,
        data: JournaledData,
    ) -> Result<Client, BenchError> {
        client::journal::create(&self.env, &drive).await.map_err(failed)?;
        let options = client::Options { data, ..journaled(drive) };
        self.connect(&self.env, JOURNALED, options).await
    }

    /// The same; its journal has copies at these keepers.
    pub(crate) async fn journaled_with(
        &self,
        drive: DeviceRef,
        keepers: Vec<KeeperTarget>,
    ) -> Result<Client, BenchError> {
        client::journal::create(&self.env, &drive).await.map_err(failed)?;
        let options = client::Options { keepers, ..journaled(drive) };
        self.connect(&self.env, JOURNALED, options).await
    }

    /// The machine with this name.
    fn host(&self, name: &str) -> Host {
        let mut hosts = self.hosts.lock();
        hosts.entry(name.to_owned()).or_insert_with(|| self.network.host(name)).clone()
    }

    /// A keeper of copies of that client's journal, on a machine of its own.
    pub(crate) fn keeper(&self, keeper: Keeper) -> Result<KeeperTarget, BenchError> {
        let host = self.host(KEEPER);
        let listener = host.listen(PORT).map_err(failed)?;
        let connector = Arc::new(self.host(COPIED).connector(&host, PORT));
        let env = self.env.clone();
        let accept = async move {
            while let Ok(stream) = listener.accept().await {
                let keeper = keeper.clone();
                env.spawn(async move { drop(keeper.serve(stream, JOURNALED).await) }).detach();
            }
        };
        self.env.spawn(accept).detach();
        Ok(KeeperTarget { name: KEEPER.to_owned(), connector, is_durable: true })
    }

    /// Bytes between that client and its keeper, in both directions.
    pub(crate) fn wire_bytes_of_keeper(&self) -> u64 {
        let (client, keeper) = (self.host(COPIED), self.host(KEEPER));
        let bytes = |from: &Host, to: &Host| self.network.tally(from, to).bytes;
        bytes(&client, &keeper) + bytes(&keeper, &client)
    }

    /// A machine that waits for a mount of that client, with a journal on this drive, which it makes empty.
    pub(crate) async fn receiver(
        &self,
        drive: DeviceRef,
    ) -> Result<(Receiver, MoveTarget), BenchError> {
        client::journal::create(&self.env, &drive).await.map_err(failed)?;
        let host = self.host(DESTINATION);
        let connector = Box::new(host.connector(&self.server, PORT));
        let receiver = Receiver::begin(&self.env, connector, journaled(drive)).await;
        let receiver = receiver.map_err(failed)?;
        let listener = host.listen(PORT).map_err(failed)?;
        let connector = Arc::new(self.host(JOURNALED).connector(&host, PORT));
        let (env, serving) = (self.env.clone(), receiver.clone());
        let accept = async move {
            while let Ok(stream) = listener.accept().await {
                let serving = serving.clone();
                env.spawn(async move { drop(serving.serve(stream).await) }).detach();
            }
        };
        self.env.spawn(accept).detach();
        Ok((receiver, MoveTarget { name: DESTINATION.to_owned(), connector }))
    }

    /// Bytes between that client and the machine that its mount moves to, in both directions.
    pub(crate) fn wire_bytes_of_move(&self) -> u64 {
        let (from, to) = (self.host(JOURNALED), self.host(DESTINATION));
        let bytes = |from: &Host, to: &Host| self.network.tally(from, to).bytes;
        bytes(&from, &to) + bytes(&to, &from)
    }

    /// Bytes that the server has sent to that client.
    pub(crate) fn sent_to_client(&self) -> u64 {
        self.link_use(JOURNALED).1.bytes
    }
}

/// The options of a client with a journal.
pub(crate) fn journaled(drive: DeviceRef) -> client::Options {
    let minute = Duration::from_secs(60);
    client::Options {
        writeback: minute,
        expire: minute,
        journal: Some(drive),
        ..client::Options::default()
    }
}

pub(crate) async fn filesystem(env: &Env, drive: DeviceRef) -> Result<LocalFs, BenchError> {
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
    LocalFs::open(env, volume, "fs", options).await.map_err(failed)
}

/// What is made.
pub(crate) fn new(node: Node) -> NewNode {
    NewNode { node, mode: 0o755, umask: 0o022, uid: 0, gid: 0 }
}

/// Messages that a client has sent.
pub(crate) fn messages(client: &Client) -> u64 {
    client.traffic().sent().values().map(|sent| sent.messages).sum()
}

pub(crate) fn died() -> BenchError {
    BenchError::Failed("a task of the simulation died".into())
}
