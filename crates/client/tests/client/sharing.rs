//! Filesystems for tests: of a volume, and shared over TCP by this process, as `thalweg cluster serve` does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_cluster::server::{Options, Server, Visitor};
use thalweg_env::{Env, Task};
use thalweg_fs::Filesystem;
use thalweg_fs::local::{self, Format, LocalFs};
use thalweg_net::entry::Service;
use thalweg_net::gate::Gate;
use thalweg_net::keys::{Access, Client, Home, Key, Offer, Squash, Token};
use thalweg_store::device::{FileDevice, FileOptions};
use thalweg_store::inplace::{InPlace, NewInPlace, Parts};
use thalweg_store::open::{self, AnyVolume, VolumePath};
use thalweg_store::txn::Transact;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Makes an empty filesystem on a volume.
pub(crate) async fn mkfs(path: &Path) {
    let env = Env::real();
    let place = VolumePath::find(path).unwrap();
    let volume = AnyVolume::open(&env, &place, &open::Options::default()).await.unwrap();
    let transact: Arc<dyn Transact> = Arc::new(volume.transactions().clone());
    local::make(&env, &transact, &Format::default()).await.unwrap();
    volume.close().await.unwrap();
}

/// A volume that is updated in place, in a file of 32 MiB, with an empty filesystem.
pub(crate) async fn volume_with_files(home: &Path, name: &str) -> PathBuf {
    let path = home.join(name);
    let file = FileDevice::create(&path, 32 << 20, &FileOptions::default()).await.unwrap();
    let parts = Parts { data: Arc::new(file), journal: None };
    let new = NewInPlace { name: name.to_owned(), journal_size: None, size: None };
    InPlace::create(&Env::real(), &parts, &new).await.unwrap();
    drop(parts);
    mkfs(&path).await;
    path
}

/// Sessions that the filesystem of a volume has records of.
pub(crate) async fn sessions(path: &Path) -> usize {
    let (volume, local) = open(&Env::real(), path).await;
    let found = local.session_table().unwrap().sessions().await.unwrap().len();
    local.close().await.unwrap();
    volume.close().await.unwrap();
    found
}

/// The filesystem of a volume, for a server.
async fn open(env: &Env, path: &Path) -> (AnyVolume, LocalFs) {
    let place = VolumePath::find(path).unwrap();
    let volume = AnyVolume::open(env, &place, &open::Options::default()).await.unwrap();
    let transact: Arc<dyn Transact> = Arc::new(volume.transactions().clone());
    let options = local::Options { keep_orphans: true, ..local::Options::default() };
    let local = LocalFs::open(env, transact, &Format::default().name, options).await.unwrap();
    (volume, local)
}

/// A filesystem that is shared.
pub(crate) struct Sharing {
    /// `HOST:PORT:/`
    pub(crate) address: String,
    env: Env,
    keys: Home,
    key: Key,
    local: LocalFs,
    volume: AnyVolume,
    _serving: Task<()>,
}

impl Sharing {
    /// Serves the filesystem of a volume, with keys in a folder.
    pub(crate) async fn begin(volume: &Path, keys: &Path) -> Sharing {
        let env = Env::real();
        let (home, key) = (Home::at(keys), Key::generate(&env).unwrap());
        home.add_key(&key).unwrap();
        let (volume, local) = open(&env, volume).await;
        let served = Arc::new(local.clone());
        let server = Server::start(&env, served, Options::default()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("{}:/", listener.local_addr().unwrap());
        let gate = Arc::new(Gate::new(&env, home.clone()).unwrap());
        let (seats, own) = (Arc::new(Semaphore::new(64)), env.clone());
        let serving = env.spawn(async move {
            // They end with this task.
            let mut connections = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (gate, seats, server) = (gate.clone(), seats.clone(), server.clone());
                let serve = async move {
                    let allows = |client: &Client, _: Service, name: &str| client.contains(name);
                    let admitted = gate.admit(stream, &seats, allows).await;
                    let Ok(Some(guest)) = admitted else { return };
                    let Client { name, access, squash, .. } = guest.permission.client().clone();
                    let visitor = Visitor { name, path: guest.name, access, squash };
                    let _ = server.serve(guest.stream, visitor).await;
                };
                connections.push(own.spawn(serve));
            }
        });
        Sharing { address, env, keys: home, key, local, volume, _serving: serving }
    }

    /// A token for a client that acts as every user.
    pub(crate) fn token(&self, client: &str, access: Access) -> String {
        let own = self.key.public();
        self.token_of(Client {
            squash: Squash::None,
            ..Client::with(own, client, "/", access).unwrap()
        })
    }

    /// A token for this client, which brings another key.
    pub(crate) fn token_of(&self, client: Client) -> String {
        let own = self.key.public();
        let token = Token::generate(&self.env, &own).unwrap();
        let now = self.env.wall_clock();
        Offer::new(&token, &client, now + 600).add_to(&self.keys.offers(), now).unwrap();
        token.to_string()
    }

    /// Ends the server and closes the volume.
    pub(crate) async fn end(self) {
        drop(self._serving);
        self.local.close().await.unwrap();
        self.volume.close().await.unwrap();
    }
}
