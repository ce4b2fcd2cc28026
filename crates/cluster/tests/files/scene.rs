//! A server of files and its clients, each on a machine of its own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_cluster::client::{self, AttachError, Client};
use thalweg_cluster::server::{Options, Server, Visitor, use_without_server};
use thalweg_env::connection::Listener;
use thalweg_env::{Env, Node};
use thalweg_fs::{
    Filesystem, FsError, Ino, Lock, LockKind, LockMode, LockOwner, LockRange, NewNode,
    Node as Kind, OpenFlags, WriteAt, WriteHow,
};
use thalweg_net::keys::{Access, Squash};
use thalweg_sim::crash::Shape;
use thalweg_sim::faults::Faults;
use thalweg_sim::files::NaiveFiles;
use thalweg_sim::net::{Host, LinkSpec, Network, SimConnector};

use crate::objects::Objects;
use crate::volume::Disk;

pub(crate) const PORT: u16 = 7700;
pub(crate) const LEASE: Duration = Duration::from_secs(2);
pub(crate) const EXPIRE: Duration = Duration::from_secs(8);

/// The machines.
pub(crate) struct Scene {
    pub(crate) env: Env,
    pub(crate) network: Network,
    pub(crate) files: Arc<dyn Filesystem>,
    pub(crate) server: Host,
    process: Node,
    pub(crate) service: Server,
    /// What the files lie on, if they survive crashes.
    disk: Option<Disk>,
    /// Where contents of files are, if clients reach them.
    pub(crate) objects: Option<Objects>,
    options: Options,
}

/// A client, and its machine.
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) process: Node,
    pub(crate) client: Client,
}

pub(crate) fn options() -> Options {
    Options { lease: LEASE, expire: EXPIRE, share: LEASE / 2, ..Options::default() }
}

/// What a client may do everywhere, as every user.
pub(crate) fn visitor(name: &str) -> Visitor {
    let (name, path) = (name.to_owned(), "/".to_owned());
    Visitor { name, path, access: Access::Write, squash: Squash::None }
}

/// What a client may do.
pub(crate) struct Visit {
    pub(crate) path: &'static str,
    pub(crate) access: Access,
}

impl Visit {
    pub(crate) fn of(self, name: &str) -> Visitor {
        let path = self.path.to_owned();
        Visitor { path, access: self.access, ..visitor(name) }
    }
}

impl Scene {
    pub(crate) async fn new(env: &Env) -> Scene {
        Scene::of(env, Arc::new(NaiveFiles::new(env))).await
    }

    /// A server of this filesystem.
    pub(crate) async fn of(env: &Env, files: Arc<dyn Filesystem>) -> Scene {
        Scene::with(env, files, options()).await
    }

    /// A server with these limits.
    pub(crate) async fn with(env: &Env, files: Arc<dyn Filesystem>, options: Options) -> Scene {
        let network = Network::new(env, LinkSpec::of(Duration::from_micros(100)));
        let server = network.host("server");
        let process = env.node();
        let service = serve(&process, &server, &files, &options).await;
        let (env, disk, objects) = (env.clone(), None, None);
        Scene { env, network, files, server, process, service, disk, objects, options }
    }

    /// A server of a filesystem on a volume that survives crashes.
    pub(crate) async fn durable(env: &Env) -> Scene {
        Scene::durable_with(env, options()).await
    }

    /// The same, with these limits.
    pub(crate) async fn durable_with(env: &Env, options: Options) -> Scene {
        Scene::made(env, options, None, Duration::ZERO).await
    }

    /// The same, where requests to the volume's devices take so long at most.
    pub(crate) async fn slow(env: &Env, latency: Duration) -> Scene {
        Scene::made(env, options(), None, latency).await
    }

    /// The same, with contents of files as objects, which the clients reach.
    pub(crate) async fn direct(env: &Env) -> Scene {
        Scene::made(env, options(), Some(Objects::new(env)), Duration::ZERO).await
    }

    /// With contents of files as objects, or on the volume.
    pub(crate) async fn either(env: &Env, options: Options, is_direct: bool) -> Scene {
        let objects = is_direct.then(|| Objects::new(env));
        Scene::made(env, options, objects, Duration::ZERO).await
    }

    /// On a volume that is soon full.
    pub(crate) async fn small(env: &Env) -> Scene {
        Scene::small_with(env, options()).await
    }

    /// The same, with these limits.
    pub(crate) async fn small_with(env: &Env, options: Options) -> Scene {
        Scene::on(env, options, None, Disk::small(env).await).await
    }

    /// On a volume with devices that fail when they are told to.
    pub(crate) async fn failing(env: &Env, options: Options) -> (Scene, Vec<Faults>) {
        let (disk, faults) = Disk::make(env, None, Duration::ZERO).await.failing(env);
        (Scene::on(env, options, None, disk).await, faults)
    }

    async fn made(
        env: &Env,
        options: Options,
        objects: Option<Objects>,
        latency: Duration,
    ) -> Scene {
        let disk = Disk::make(env, objects.clone(), latency).await;
        Scene::on(env, options, objects, disk).await
    }

    async fn on(env: &Env, options: Options, objects: Option<Objects>, disk: Disk) -> Scene {
        let network = Network::new(env, LinkSpec::of(Duration::from_micros(100)));
        let server = network.host("server");
        let process = env.node();
        let files = disk.open(process.env()).await;
        let service = serve(&process, &server, &files, &options).await;
        let (env, disk) = (env.clone(), Some(disk));
        Scene { env, network, files, server, process, service, disk, objects, options }
    }

    /// A client that has the name of its host.
    pub(crate) async fn client(&self, name: &str) -> Machine {
        self.client_as(visitor(name)).await.unwrap()
    }

    /// The way to the server from a new host, for a client of that name.
    pub(crate) fn entrance(&self, name: &str) -> SimConnector {
        VISITORS.with(|all| all.borrow_mut().insert(name.to_owned(), visitor(name)));
        self.network.host(name).connector(&self.server, PORT)
    }

    pub(crate) async fn client_as(&self, visitor: Visitor) -> Result<Machine, AttachError> {
        self.client_with(visitor, patient()).await
    }

    pub(crate) async fn client_with(
        &self,
        visitor: Visitor,
        options: client::Options,
    ) -> Result<Machine, AttachError> {
        let finder = self.objects.as_ref().map(|objects| objects.finder(&visitor.name));
        let options = client::Options { contents: finder, ..options };
        let host = self.admit(visitor);
        let process = self.env.node();
        let connector = Box::new(host.connector(&self.server, PORT));
        let client = Client::connect(process.env(), connector, options).await?;
        Ok(Machine { host, process, client })
    }

    /// The machine of a visitor that the server lets in.
    pub(crate) fn admit(&self, visitor: Visitor) -> Host {
        let host = self.network.host(&visitor.name);
        VISITORS.with(|all| all.borrow_mut().insert(visitor.name.clone(), visitor));
        host
    }

    /// A machine without a client, for a peer that may do everything.
    pub(crate) fn visit(&self, name: &str) -> Host {
        self.admit(visitor(name))
    }

    /// Stops the server, and starts another one on the same files.
    pub(crate) async fn restart(&mut self) {
        self.process.kill();
        self.env.sleep(Duration::from_millis(1)).await;
        self.process = self.env.node();
        self.service = serve(&self.process, &self.server, &self.files, &self.options).await;
    }

    /// The server's process stands still.
    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    /// It goes on.
    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    /// Whether the files survive a crash of the server's machine.
    pub(crate) fn is_durable(&self) -> bool {
        self.disk.is_some()
    }

    /// The server's machine stops.
    pub(crate) async fn stop(&mut self) {
        self.process.kill();
        self.process.gone().await;
    }

    /// Starts it again: of what was not durable, `left` is on the disk.
    pub(crate) async fn start(&mut self, left: Shape) {
        self.process = self.env.node();
        let disk = self.disk.take().unwrap().crash(&self.env, left);
        self.files = disk.open(self.process.env()).await;
        self.disk = Some(disk);
        self.service = serve(&self.process, &self.server, &self.files, &self.options).await;
    }

    /// The server's machine has stopped, and the volume is used without it: of what was not durable, `left` is on the disk.
    pub(crate) async fn without_server(
        &mut self,
        left: Shape,
        work: impl AsyncFnOnce(&Arc<dyn Filesystem>),
    ) {
        let process = self.env.node();
        let disk = self.disk.take().unwrap().crash(&self.env, left);
        let files = disk.open(process.env()).await;
        use_without_server(files.session_table().unwrap()).await.unwrap();
        work(&files).await;
        process.kill();
        process.gone().await;
        self.disk = Some(disk);
    }

    /// A moment that the server's disk can be brought back to.
    pub(crate) fn position(&self) -> usize {
        self.disk.as_ref().unwrap().position()
    }

    /// The server's disk is as it was at a position, as from a backup.
    pub(crate) async fn restore(&mut self, position: usize) {
        self.stop().await;
        self.disk = Some(self.disk.take().unwrap().at(&self.env, position, Shape::Everything));
        self.start(Shape::Everything).await;
    }

    /// The server's volume is lost: a new one has its name, and nothing of what it had.
    pub(crate) async fn replace(&mut self) {
        self.stop().await;
        self.disk = Some(Disk::make(&self.env, None, Duration::ZERO).await);
        self.start(Shape::Everything).await;
    }

    /// The wall clock of the server's machine jumps.
    pub(crate) fn shift_wall_clock(&self, nanos: i64) {
        self.process.shift_wall_clock(nanos);
    }

    /// The server's machine crashes, and starts again.
    pub(crate) async fn crash(&mut self, left: Shape) {
        self.stop().await;
        self.env.sleep(Duration::from_millis(1)).await;
        self.start(left).await;
    }
}

/// How many messages it has sent.
pub(crate) fn calls(client: &Client) -> u64 {
    client.traffic().sent().values().map(|sent| sent.messages).sum()
}

pub(crate) fn patient() -> client::Options {
    client::Options { retry: Some(Duration::from_secs(60)), ..client::Options::default() }
}

thread_local! {
    /// What the server knows of its clients.
    pub(crate) static VISITORS: std::cell::RefCell<std::collections::BTreeMap<String, Visitor>> =
        const { std::cell::RefCell::new(std::collections::BTreeMap::new()) };
}

async fn serve(
    process: &Node,
    host: &Host,
    files: &Arc<dyn Filesystem>,
    options: &Options,
) -> Server {
    let service = Server::start(process.env(), files.clone(), options.clone()).await.unwrap();
    let listener = host.listen(PORT).unwrap();
    let (serving, own) = (service.clone(), process.env().clone());
    let accept = async move {
        loop {
            let Ok(stream) = listener.accept().await else { return };
            let name = stream.peer();
            let visitor = VISITORS.with(|all| all.borrow()[&name].clone());
            let serving = serving.clone();
            own.spawn(async move {
                let _ = serving.serve(stream, visitor).await;
            })
            .detach();
        }
    };
    process.env().spawn(accept).detach();
    service
}

/// How a file is opened.
pub(crate) const WRITING: OpenFlags =
    OpenFlags { read: true, write: true, append: false, direct: false, sync: false };

/// An exclusive lock of a whole file.
pub(crate) fn whole(handle: thalweg_fs::Handle, number: u64) -> Lock {
    Lock {
        kind: LockKind::Posix,
        owner: LockOwner::local(number),
        handle,
        pid: 1,
        mode: LockMode::Exclusive,
        range: LockRange::ALL,
    }
}

pub(crate) fn new(node: Kind) -> NewNode {
    NewNode { node, mode: 0o755, umask: 0, uid: 7, gid: 7 }
}

/// Makes a file or a directory.
pub(crate) async fn make(fs: &dyn Filesystem, parent: Ino, name: &str, node: Kind) -> Ino {
    let made = fs.create(parent, name.as_bytes(), &new(node)).await.unwrap();
    made.ino
}

pub(crate) async fn put(fs: &dyn Filesystem, ino: Ino, text: &str) -> Result<(), FsError> {
    let data = vec![Bytes::copy_from_slice(text.as_bytes())];
    fs.write(ino, WriteAt::Offset(0), data, WriteHow::default()).await.map(|_| ())
}

pub(crate) async fn text(fs: &dyn Filesystem, ino: Ino) -> String {
    let read = fs.read(ino, 0, 1000).await.unwrap();
    String::from_utf8(read.concat()).unwrap()
}
