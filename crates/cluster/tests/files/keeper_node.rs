//! A machine that keeps copies of the journals of clients.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use thalweg_cluster::client::{self, AttachError, KeeperTarget, TakenOver, take_over};
use thalweg_cluster::keeper::{Keeper, Shelf};
use thalweg_env::connection::Listener;
use thalweg_env::{Env, Node};
use thalweg_sim::crash::Shape;
use thalweg_sim::net::Host;
use thalweg_sim::recording::Recorder;
use thalweg_store::device::{DeviceRef, Geometry};

use crate::journal::Journaled;
use crate::scene::*;

const KEEPER_PORT: u16 = 7701;
/// Bytes of copies in memory.
const MEMORY: u64 = 2 << 20;
const LATENCY: Duration = Duration::from_micros(100);

/// The drive of a keeper. Names are durable at once.
#[derive(Clone)]
pub(crate) struct SimShelf {
    drive: Arc<Mutex<Drive>>,
}

struct Drive {
    recorder: Recorder,
    /// In the order in which they were made; those that were removed have no name.
    files: Vec<(Option<String>, DeviceRef)>,
}

#[async_trait]
impl Shelf for SimShelf {
    async fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.drive.lock().files.iter().filter_map(|(name, _)| name.clone()).collect())
    }

    async fn open(&self, name: &str) -> io::Result<Option<DeviceRef>> {
        Ok(self.device(name))
    }

    async fn create(&self, name: &str, size: u64) -> io::Result<DeviceRef> {
        self.remove(name).await?;
        let mut drive = self.drive.lock();
        let device = drive.recorder.device(name, Geometry { size, sector: 512 });
        drive.files.push((Some(name.to_owned()), device.clone()));
        Ok(device)
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        for (other, _) in &mut self.drive.lock().files {
            *other = other.take().filter(|other| other != name);
        }
        Ok(())
    }
}

impl SimShelf {
    pub(crate) fn device(&self, name: &str) -> Option<DeviceRef> {
        let drive = self.drive.lock();
        let mut files = drive.files.iter();
        files.find(|(other, _)| other.as_deref() == Some(name)).map(|(_, device)| device.clone())
    }
}

pub(crate) struct KeeperNode {
    env: Env,
    pub(crate) host: Host,
    process: Node,
    pub(crate) shelf: SimShelf,
    pub(crate) keeper: Keeper,
    is_durable: bool,
}

impl KeeperNode {
    pub(crate) fn new(scene: &Scene, name: &str, is_durable: bool) -> KeeperNode {
        let (env, host) = (scene.env.clone(), scene.network.host(name));
        let recorder = Recorder::with_latency(&env, LATENCY);
        let drive = Arc::new(Mutex::new(Drive { recorder, files: Vec::new() }));
        let shelf = SimShelf { drive };
        let (process, keeper) = serve(&env, &host, &shelf);
        KeeperNode { env, host, process, shelf, keeper, is_durable }
    }

    /// This keeper, for a client.
    pub(crate) fn target(&self, machine: &Journaled) -> KeeperTarget {
        KeeperTarget {
            name: self.host.name(),
            connector: Arc::new(machine.host().connector(&self.host, KEEPER_PORT)),
            is_durable: self.is_durable,
        }
    }

    /// The power fails, and the keeper begins again: of what was not durable, `left` is on the drive.
    pub(crate) fn crash(&mut self, left: Shape) {
        self.process.kill();
        self.host.power_off();
        {
            let mut drive = self.shelf.drive.lock();
            let image = drive.recorder.image(drive.recorder.position(), left);
            let (recorder, devices) = Recorder::from_image(&self.env, LATENCY, &image);
            drive.recorder = recorder;
            for ((_, file), device) in drive.files.iter_mut().zip(devices) {
                *file = device;
            }
        }
        self.host.power_on();
        (self.process, self.keeper) = serve(&self.env, &self.host, &self.shelf);
    }

    /// The power fails. One that has copies in memory ends in order instead.
    pub(crate) async fn fail(&mut self, left: Shape) {
        match self.is_durable {
            true => self.crash(left),
            false => self.restart().await,
        }
    }

    /// It ends in order, and begins again.
    pub(crate) async fn restart(&mut self) {
        self.keeper.close().await.unwrap();
        self.process.kill();
        self.env.sleep(Duration::from_millis(1)).await;
        (self.process, self.keeper) = serve(&self.env, &self.host, &self.shelf);
    }

    /// Takes over what the copies here have of this client.
    pub(crate) fn taking_over(
        &self,
        scene: &Scene,
        client: &str,
    ) -> impl Future<Output = Result<Vec<TakenOver>, AttachError>> + Send + 'static + use<> {
        VISITORS.with(|all| {
            let mut all = all.borrow_mut();
            let as_client = all.get(client).cloned().unwrap_or_else(|| visitor(client));
            all.insert(self.host.name(), as_client);
        });
        let connect = {
            let (host, server) = (self.host.clone(), scene.server.clone());
            move || Box::new(host.connector(&server, PORT))
        };
        let (keeper, shelf) = (self.keeper.clone(), self.shelf.clone());
        let (env, client) = (self.process.env().clone(), client.to_owned());
        async move {
            let mut taken = Vec::new();
            for name in keeper.seal(&client).await.unwrap() {
                let journal = shelf.device(&name);
                let options = client::Options { journal, ..patient() };
                taken.push(take_over(&env, connect(), options).await?);
            }
            Ok(taken)
        }
    }

    pub(crate) fn process(&self) -> &Env {
        self.process.env()
    }

    pub(crate) async fn take_over(&self, scene: &Scene, client: &str) -> Vec<TakenOver> {
        self.taking_over(scene, client).await.unwrap()
    }
}

fn serve(env: &Env, host: &Host, shelf: &SimShelf) -> (Node, Keeper) {
    let process = env.node();
    let keeper = Keeper::new(process.env(), Box::new(shelf.clone()), MEMORY);
    let listener = host.listen(KEEPER_PORT).unwrap();
    let (serving, own) = (keeper.clone(), process.env().clone());
    let accept = async move {
        loop {
            let Ok(stream) = listener.accept().await else { return };
            let client = stream.peer();
            let serving = serving.clone();
            own.spawn(async move {
                let _ = serving.serve(stream, &client).await;
            })
            .detach();
        }
    };
    process.env().spawn(accept).detach();
    (process, keeper)
}
