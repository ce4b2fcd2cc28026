//! A volume in memory, and ImgStore on it in each composition.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use imgstore::process::{RemoteStore, StoreProcess};
use imgstore::{DATES, Endpoint, IMAGES, ImgStore, Photo, StoreThread};
use parking_lot::Mutex;
use tempfile::TempDir;
use thalweg_env::Env;
use thalweg_ipc::{Config, Server};
use thalweg_store::tree::Store;
use thalweg_store::txn::{Options, Transact, TransactionManager};

use crate::held::{self, HeldStore};

pub(crate) const BLOCKS: u64 = 4096;

/// Where the stores run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Composition {
    Libraries,
    Threads,
    Processes,
}

impl Composition {
    pub(crate) const ALL: [Composition; 3] =
        [Composition::Libraries, Composition::Threads, Composition::Processes];
}

/// A photo whose image shows its number and a stamp.
pub(crate) fn photo(id: u64, date: u64, stamp: u64) -> Photo {
    let pattern = [id.to_be_bytes(), stamp.to_be_bytes()].concat();
    // Longer than a record can hold, and of varying length.
    let image = Bytes::from(pattern.repeat(200 + (stamp % 3) as usize * 300));
    Photo { date, image }
}

pub(crate) struct Rig {
    pub(crate) env: Env,
    pub(crate) store: Arc<HeldStore>,
    pub(crate) manager: TransactionManager,
    processes: Mutex<BTreeMap<&'static str, StoreProcess>>,
    pub(crate) server: Option<Server>,
    pub(crate) folder: TempDir,
}

/// The program with a volume's folder and more arguments.
pub(crate) fn program(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imgstore"));
    command.arg(folder).args(args);
    command
}

impl Rig {
    /// A volume with room, and the two partitions on it.
    pub(crate) async fn new() -> Rig {
        Rig::with(Options::default()).await
    }

    /// The same with limits of its transactions.
    pub(crate) async fn with(options: Options) -> Rig {
        let rig = Rig::bare(options);
        imgstore::create(&rig.env, &rig.manager).await.unwrap();
        rig
    }

    /// A volume without partitions.
    pub(crate) fn bare(options: Options) -> Rig {
        let env = Env::real();
        let store = Arc::new(held::store(BLOCKS));
        let manager = TransactionManager::new(&env, store.clone(), options);
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(&env, &manager, folder.path(), Config::default()).unwrap();
        let processes = Mutex::default();
        Rig { env, store, manager, processes, server: Some(server), folder }
    }

    pub(crate) fn volume(&self) -> Arc<dyn Transact> {
        Arc::new(self.manager.clone())
    }

    /// ImgStore on the volume.
    pub(crate) async fn open(&self, composition: Composition) -> ImgStore {
        let (images, dates) = self.endpoints(composition).await;
        ImgStore::new(self.volume(), images, dates)
    }

    /// Its two stores.
    pub(crate) async fn endpoints(
        &self,
        composition: Composition,
    ) -> (Arc<dyn Endpoint>, Arc<dyn Endpoint>) {
        (self.endpoint(composition, IMAGES).await, self.endpoint(composition, DATES).await)
    }

    async fn endpoint(&self, composition: Composition, name: &'static str) -> Arc<dyn Endpoint> {
        let store = Store::open(&self.env, self.volume(), name).await.unwrap();
        match composition {
            Composition::Libraries => Arc::new(store),
            Composition::Threads => Arc::new(StoreThread::start(&self.env, store).unwrap()),
            Composition::Processes => {
                self.start(name).await;
                Arc::new(RemoteStore::new(self.volume(), self.folder.path(), name))
            }
        }
    }

    /// Gets a photo `readers` times at once: all calls wait for the volume before any of them continues.
    pub(crate) async fn get_at_once(&self, photos: &ImgStore, id: u64, readers: u64) {
        let wanted = self.store.around.held_up() + readers;
        self.store.around.hold_up(0..BLOCKS);
        let get = |photos: ImgStore| async move { photos.get(id).await.unwrap().unwrap() };
        let tasks: Vec<_> = (0..readers).map(|_| self.env.spawn(get(photos.clone()))).collect();
        let all_wait = async {
            while self.store.around.held_up() < wanted {
                self.env.sleep(Duration::from_millis(2)).await;
            }
        };
        self.env.timeout(Duration::from_secs(10), all_wait).await.expect("one keeps the others");
        self.store.around.hold_up(0..0);
        for task in tasks {
            task.await.unwrap();
        }
    }

    /// Starts the process of a store, unless it runs.
    pub(crate) async fn start(&self, name: &'static str) {
        if !self.processes.lock().contains_key(name) {
            let command = program(self.folder.path(), &["serve", name]);
            let started = StoreProcess::start(&self.env, command, self.folder.path(), name).await;
            self.processes.lock().insert(name, started.unwrap());
        }
    }

    /// Stops the process of a store (SIGSTOP).
    pub(crate) async fn stop(&self, name: &str) {
        let id = self.processes.lock()[name].id();
        let sent = Command::new("kill").args(["-STOP", &id.to_string()]).status();
        assert!(sent.unwrap().success());
        // Its threads stop one by one.
        let is_stopped = |thread: std::io::Result<DirEntry>| {
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
            stat.rsplit(')').next().unwrap().starts_with(" T")
        };
        while !std::fs::read_dir(format!("/proc/{id}/task")).unwrap().all(is_stopped) {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Kills the process of a store.
    pub(crate) fn kill(&self, name: &str) {
        drop(self.processes.lock().remove(name).unwrap());
    }

    /// Checks that both stores are sound and that no transaction is left.
    pub(crate) async fn check(&self) {
        for name in [IMAGES, DATES] {
            let store = Store::open(&self.env, self.volume(), name).await.unwrap();
            store.check().await.unwrap();
        }
        self.wait_for_running(0).await;
    }

    /// Waits until `count` transactions run: those of a dead process are aborted in the background.
    pub(crate) async fn wait_for_running(&self, count: u64) {
        for _ in 0..2000 {
            if self.manager.status().running == count {
                return;
            }
            self.env.sleep(Duration::from_millis(5)).await;
        }
        panic!("{} transactions run instead of {count}", self.manager.status().running);
    }
}
