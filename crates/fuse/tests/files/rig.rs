//! A filesystem mounted for a test.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use thalweg_cluster::client::{self, Client, JournaledData, journal};
use thalweg_cluster::server::{self, Server, Visitor};
use thalweg_env::Env;
use thalweg_env::connection::{BoxStream, Connecting, Connector};
use thalweg_fs::local::{Format, LocalFs, Options};
use thalweg_fs::{Filesystem, Watcher};
use thalweg_fuse::mounted::{MountOptions, Mounted, mount};
use thalweg_net::keys::{Access, Squash};
use thalweg_sim::files::NaiveFiles;
use thalweg_sim::versions::VersionedMemory;
use thalweg_store::block::BlockStore;
use thalweg_store::device::{DeviceRef, Geometry, MemoryDevice};
use thalweg_store::inplace::{self, InPlace, Mode, NewInPlace, Parts};
use thalweg_store::txn::{self, Transact, TransactionManager};
use tokio::runtime::Runtime;

use crate::busy::once_free;

/// Blocks of a volume in memory.
const BLOCKS: u64 = 64 << 8;

/// Makes an empty filesystem.
pub(crate) type Make = fn(&Env) -> Arc<dyn Filesystem>;

pub(crate) fn naive(env: &Env) -> Arc<dyn Filesystem> {
    Arc::new(NaiveFiles::new(env))
}

/// The filesystem on the transactions of a volume that keeps versions in memory.
pub(crate) fn local(env: &Env) -> Arc<dyn Filesystem> {
    on(env, Arc::new(VersionedMemory::new(BLOCKS)))
}

/// Connects to a server in this process.
#[derive(Debug)]
pub(crate) struct Loopback {
    env: Env,
    server: Server,
}

impl Loopback {
    pub(crate) fn new(env: &Env, server: &Server) -> Loopback {
        Loopback { env: env.clone(), server: server.clone() }
    }
}

impl Connector for Loopback {
    fn connect(&self) -> Connecting<'_> {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (name, path) = ("client".to_owned(), "/".to_owned());
        let visitor = Visitor { name, path, access: Access::Write, squash: Squash::None };
        let server = self.server.clone();
        self.env.spawn(async move { server.serve(far, visitor).await }).detach();
        Box::pin(async { Ok(Box::new(near) as BoxStream) })
    }
}

/// A server of a filesystem.
pub(crate) fn server(env: &Env, filesystem: Arc<dyn Filesystem>) -> Server {
    let starting = Server::start(env, filesystem, server::Options::default());
    tokio::runtime::Handle::current().block_on(starting).unwrap()
}

/// A client of a server.
pub(crate) fn client(env: &Env, server: &Server) -> Arc<dyn Filesystem> {
    let connector = Box::new(Loopback::new(env, server));
    let connecting = Client::connect(env, connector, client::Options::default());
    Arc::new(tokio::runtime::Handle::current().block_on(connecting).unwrap())
}

/// A filesystem behind a server, on the transactions of a volume that keeps versions in memory.
pub(crate) fn shared(env: &Env) -> Arc<dyn Filesystem> {
    client(env, &server(env, local(env)))
}

/// A client of a server with a journal in memory, so small that it is full now and then.
pub(crate) fn journaled_client(
    env: &Env,
    server: &Server,
    data: JournaledData,
) -> Arc<dyn Filesystem> {
    let device: DeviceRef = Arc::new(MemoryDevice::new(2 * journal::MIN_SIZE));
    let connector = Box::new(Loopback::new(env, server));
    let journal = Some(device.clone());
    let connected = tokio::runtime::Handle::current().block_on(async {
        journal::create(env, &device).await.unwrap();
        let options = client::Options { journal, data, ..client::Options::default() };
        Client::connect(env, connector, options).await
    });
    Arc::new(connected.unwrap())
}

/// A filesystem behind a server, on the transactions of a volume that keeps versions in memory, for a client with a journal.
pub(crate) fn journaled(env: &Env) -> Arc<dyn Filesystem> {
    journaled_client(env, &server(env, local(env)), JournaledData::Wasteless)
}

/// The filesystem on a volume in memory that is updated in place.
pub(crate) fn in_place(env: &Env, mode: Mode) -> Arc<dyn Filesystem> {
    // Everything that otherwise happens now and then is to happen in a test, too.
    let options = inplace::Options {
        mode,
        threshold: 2048,
        commit: Duration::from_millis(50),
        writeback: Duration::from_millis(50),
        expire: Duration::from_millis(200),
        cache: 16 << 20,
        ..inplace::Options::default()
    };
    on(env, store_in_place(env, options))
}

/// A new store in memory that updates in place.
pub(crate) fn store_in_place(env: &Env, options: inplace::Options) -> Arc<InPlace> {
    let geometry = Geometry { size: BLOCKS * 4096 + (16 << 20), sector: 512 };
    let data = Arc::new(MemoryDevice::with_geometry("data", geometry));
    let parts = Parts { data, journal: None };
    let opened = tokio::runtime::Handle::current().block_on(async {
        InPlace::create(env, &parts, &NewInPlace::default()).await?;
        InPlace::open(env, parts, options).await
    });
    Arc::new(opened.unwrap().0)
}

/// A new filesystem on a store.
pub(crate) fn on(env: &Env, store: Arc<dyn BlockStore>) -> Arc<dyn Filesystem> {
    let manager = TransactionManager::new(env, store, txn::Options::default());
    let volume: Arc<dyn Transact> = Arc::new(manager);
    let opened = tokio::runtime::Handle::current().block_on(async {
        thalweg_fs::local::make(env, &volume, &Format::default()).await?;
        LocalFs::open(env, volume, &Format::default().name, Options::default()).await
    });
    Arc::new(opened.unwrap())
}

/// A mounted filesystem. Dropping it unmounts.
pub(crate) struct Rig {
    mounted: Option<Mounted>,
    filesystem: Arc<dyn Filesystem>,
    runtime: Option<Runtime>,
    folder: TempDir,
}

impl Rig {
    /// Mounts the filesystem of `make` for all users; prints a note and returns `None` where mounts are
    /// impossible.
    pub(crate) fn new(make: Make) -> Option<Rig> {
        Rig::with(|env| make(env), &MountOptions::default())
    }

    pub(crate) fn with(
        make: impl FnOnce(&Env) -> Arc<dyn Filesystem>,
        options: &MountOptions,
    ) -> Option<Rig> {
        if !can_mount() {
            return None;
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let folder = TempDir::with_prefix("thalweg-files").unwrap();
        let (root, env) = (folder.path().join("mnt"), Env::real());
        std::fs::create_dir(&root).unwrap();
        open_to_all(folder.path());
        let options = MountOptions { allow_other: true, ..options.clone() };
        let _runtime = runtime.enter();
        let filesystem = make(&env);
        let mounted = mount(&env, runtime.handle().clone(), filesystem.clone(), &root, &options);
        let mounted = Some(mounted.unwrap());
        drop(_runtime);
        Some(Rig { mounted, filesystem, runtime: Some(runtime), folder })
    }

    /// The root of the mount.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn filesystem(&self) -> &dyn Filesystem {
        &*self.filesystem
    }

    /// A directory outside of the mount.
    pub(crate) fn beside(&self) -> &Path {
        self.folder.path()
    }

    /// Runs a future on the rig's runtime.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    /// The watcher of the mount.
    pub(crate) fn watcher(&self) -> Watcher {
        self.mounted.as_ref().unwrap().watcher()
    }

    /// The mount.
    pub(crate) fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// The mount, which is not unmounted at the end any more.
    pub(crate) fn take_mounted(&mut self) -> Mounted {
        self.mounted.take().unwrap()
    }

    /// Mounts another filesystem on the same directory.
    pub(crate) fn mount_another(&self, make: Make) -> Mounted {
        let env = Env::real();
        let runtime = self.runtime.as_ref().unwrap().handle().clone();
        let _runtime = runtime.enter();
        let options = MountOptions { allow_other: true, ..MountOptions::default() };
        mount(&env, runtime.clone(), make(&env), &self.root(), &options).unwrap()
    }

    /// Waits until the kernel has heard of all changes.
    pub(crate) fn settle(&self) {
        self.block_on(self.mounted.as_ref().unwrap().settle());
    }

    /// Unmounts, and waits for the end of the mount.
    pub(crate) fn unmount(&mut self) {
        let mounted = self.mounted.take().unwrap();
        let busy = |outcome: &io::Result<()>| matches!(outcome, Err(it) if it.kind() == ErrorKind::ResourceBusy);
        once_free(|| mounted.unmount(false), busy).unwrap();
        self.block_on(mounted.ended());
        mounted.join().unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            // A test that failed may have left files open.
            let _ = mounted.unmount(true);
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Lets every user through a directory.
pub(crate) fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Whether this machine can mount; says so when not.
pub(crate) fn can_mount() -> bool {
    // SAFETY: reads the process's identity.
    let root = unsafe { libc::geteuid() } == 0;
    let fuse = Path::new("/dev/fuse").exists();
    if !(root && fuse) {
        eprintln!("SKIPPED: mounting for all users needs root and /dev/fuse");
    }
    root && fuse
}

/// Runs a command as a user without privileges.
pub(crate) fn as_nobody(program: &str, arguments: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    Command::new(program).args(arguments).uid(65534).gid(65534).output().unwrap()
}

/// Lets time pass.
#[allow(clippy::disallowed_methods)]
pub(crate) fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}
