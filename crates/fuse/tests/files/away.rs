//! Mounts whose server is away: what waits for it can be killed, or fails after the time that the mount says.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_cluster::client::{self, Client};
use thalweg_cluster::server::{self, Server};
use thalweg_env::connection::{BoxStream, Connecting, Connector};
use thalweg_env::{Env, Task};
use thalweg_fuse::files::Locks;
use thalweg_fuse::mounted::{MountOptions, Soft};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rig::{Loopback, Rig, local};

/// The lease of the server.
const LEASE: Duration = Duration::from_secs(2);
/// A killed process has ended after so long.
const SOON: Duration = Duration::from_secs(5);

/// The network between a client and its server.
#[derive(Clone, Debug, Default)]
struct Network(Arc<Mutex<Wires>>);

#[derive(Debug, Default)]
struct Wires {
    is_cut: bool,
    /// What the server sends is kept back.
    is_held: bool,
    /// Carry what one side sends to the other.
    carriers: Vec<Task<()>>,
}

impl Network {
    /// Ends all connections, and lets no new one begin.
    fn cut(&self) {
        let mut wires = self.0.lock();
        (wires.is_cut, wires.carriers) = (true, Vec::new());
    }

    /// The server gets calls, and the client no answers.
    fn hold(&self) {
        self.0.lock().is_held = true;
    }

    fn mend(&self) {
        let mut wires = self.0.lock();
        (wires.is_cut, wires.is_held) = (false, false);
    }
}

#[derive(Debug)]
struct Wire {
    env: Env,
    network: Network,
    far: Loopback,
}

impl Connector for Wire {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            if self.network.0.lock().is_cut {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (mut answers, mut to_server) = tokio::io::split(self.far.connect().await?);
            let (near, middle) = tokio::io::duplex(1 << 20);
            let (mut calls, mut to_client) = tokio::io::split(middle);
            let (env, network) = (self.env.clone(), self.network.clone());
            let carrying = async move {
                let answering = async {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(len @ 1..) = answers.read(&mut buffer).await {
                        while network.0.lock().is_held {
                            env.sleep(Duration::from_millis(5)).await;
                        }
                        if to_client.write_all(&buffer[..len]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    _ = tokio::io::copy(&mut calls, &mut to_server) => {}
                    () = answering => {}
                }
            };
            self.network.0.lock().carriers.push(self.env.spawn(carrying));
            Ok(Box::new(near) as BoxStream)
        })
    }
}

/// A mount of a served filesystem, with a file `a` in it.
struct Scene {
    rig: Rig,
    network: Network,
    server: Server,
}

impl Scene {
    fn new(soft: Option<Soft>) -> Option<Scene> {
        let options = MountOptions { locks: Locks::Both, soft, ..MountOptions::default() };
        let network = Network::default();
        let mut served = None;
        let make = |env: &Env| {
            let block_on = tokio::runtime::Handle::current();
            let options =
                server::Options { lease: LEASE, expire: 30 * LEASE, ..Default::default() };
            let server = block_on.block_on(Server::start(env, local(env), options)).unwrap();
            served = Some(server.clone());
            let far = Loopback::new(env, &server);
            let wire = Wire { env: env.clone(), network: network.clone(), far };
            // Everything goes by calls.
            let options =
                client::Options { retry: None, exclusive: None, ..client::Options::default() };
            let client = block_on.block_on(Client::connect(env, Box::new(wire), options));
            Arc::new(client.unwrap()) as Arc<dyn thalweg_fs::Filesystem>
        };
        let rig = Rig::with(make, &options)?;
        fs::write(rig.path("a"), "there").unwrap();
        File::open(rig.path("a")).unwrap().sync_all().unwrap();
        Some(Scene { rig, network, server: served.unwrap() })
    }

    /// From now on the server is away, and what the kernel has cached is not to be used any more.
    fn cut(&self) {
        self.network.cut();
        pause(LEASE + Duration::from_millis(500));
    }

    /// A command on the mount.
    fn begin(&self, script: &str) -> Child {
        // The test's own process may ignore SIGINT, as one in the background does.
        let mut command = Command::new("env");
        command.args(["--default-signal", "sh", "-c"]);
        command.arg(format!("cd {}; exec {script}", self.rig.beside().display()));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn open_files(&self) -> usize {
        self.server.status().clients.iter().map(|client| client.open).sum()
    }
}

#[allow(clippy::disallowed_methods)]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
}

/// Whether a process ends soon, and by which signal.
fn ends_by(child: &mut Child) -> Option<i32> {
    let (env, step) = (Env::real(), Duration::from_millis(20));
    let begun = env.now();
    while env.now().since(begun) < SOON {
        if let Some(status) = child.try_wait().unwrap() {
            return status.signal();
        }
        pause(step);
    }
    None
}

#[test]
fn a_program_that_waits_for_the_server_can_be_killed() {
    let Some(scene) = Scene::new(None) else { return };
    fs::create_dir(scene.rig.path("d")).unwrap();
    let held = File::options().append(true).open(scene.rig.path("a")).unwrap();
    scene.cut();
    let scripts = [
        "stat mnt/absent",
        "cat mnt/a",
        "ls -l mnt",
        "mkdir mnt/new",
        "rm mnt/a",
        "mv mnt/a mnt/b",
        "truncate -s 1 mnt/a",
        "dd if=/dev/zero of=mnt/made bs=4k count=1",
        "getfattr -d mnt/a",
        "flock -n mnt/a true",
        "sync mnt/a",
    ];
    let mut children = scripts.map(|script| scene.begin(script));
    pause(Duration::from_millis(500));
    let signals = [libc::SIGKILL, libc::SIGTERM, libc::SIGINT].into_iter().cycle();
    // All of them first: one that holds the lock of the directory keeps the others from noticing.
    let mut waiting = Vec::new();
    for ((child, script), fatal) in children.iter_mut().zip(scripts).zip(signals) {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(127), "{script} did not wait: {status}");
            continue;
        }
        signal(child, fatal);
        waiting.push((child, script, fatal));
    }
    for (child, script, fatal) in waiting {
        assert_eq!(ends_by(child), Some(fatal), "{script}");
    }
    scene.network.mend();
    // What was not sent is not made later, and everything goes on.
    assert_eq!(fs::read_to_string(scene.rig.path("a")).unwrap(), "there");
    for absent in ["new", "b", "made"] {
        assert!(!scene.rig.path(absent).exists(), "{absent}");
    }
    drop(held);
}

#[test]
fn what_a_killed_program_has_sent_counts_once_and_leaves_nothing_open() {
    for breaks in [false, true] {
        let Some(scene) = Scene::new(None) else { return };
        // The kernel knows the names, so that these calls are the first ones.
        assert!(!scene.rig.path("new").exists() && scene.rig.path("a").exists());
        scene.network.hold();
        let mut children = ["mkdir mnt/new", "cat mnt/a"].map(|script| scene.begin(script));
        pause(Duration::from_millis(500));
        for child in &mut children {
            signal(child, libc::SIGKILL);
            assert_eq!(ends_by(child), Some(libc::SIGKILL));
        }
        if breaks {
            scene.network.cut();
            pause(Duration::from_millis(200));
        }
        scene.network.mend();
        let made = fs::create_dir(scene.rig.path("new")).map_err(|error| error.kind());
        assert_eq!(made, Err(io::ErrorKind::AlreadyExists), "{breaks}");
        let (env, begun) = (Env::real(), Env::real().now());
        while scene.open_files() > 0 {
            let open = scene.open_files();
            assert!(env.now().since(begun) < SOON, "{open} files stay open ({breaks})");
            pause(Duration::from_millis(50));
        }
        fs::remove_dir(scene.rig.path("new")).unwrap();
    }
}

/// How often the handler below ran.
static RANG: AtomicUsize = AtomicUsize::new(0);

extern "C" fn ring(_: libc::c_int) {
    RANG.fetch_add(1, Ordering::SeqCst);
}

#[test]
#[allow(clippy::disallowed_methods)]
fn a_signal_that_a_program_handles_fails_no_call() {
    let Some(scene) = Scene::new(None) else { return };
    // SAFETY: all zeros are a valid value; the handler only adds to a number.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ring as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
    scene.cut();
    let path = scene.rig.path("a");
    let (tell, threads) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        // SAFETY: the call has no arguments and cannot fail.
        tell.send(unsafe { libc::pthread_self() }).unwrap();
        fs::read_to_string(path)
    });
    let thread = threads.recv().unwrap();
    pause(Duration::from_millis(300));
    // SAFETY: the thread is not joined yet.
    assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR2) }, 0);
    pause(Duration::from_millis(500));
    assert!(!waiting.is_finished(), "the call failed");
    scene.network.mend();
    assert_eq!(waiting.join().unwrap().unwrap(), "there");
    assert_eq!(RANG.load(Ordering::SeqCst), 1);
}

#[test]
fn a_wait_for_a_lock_that_is_killed_while_the_server_is_away_is_taken_back() {
    let Some(scene) = Scene::new(None) else { return };
    let options = MountOptions { locks: Locks::Both, ..MountOptions::default() };
    let Some(second) = Rig::with(|env| crate::rig::client(env, &scene.server), &options) else {
        return;
    };
    let lock = |file: &File, how| {
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(file.as_raw_fd(), how) }
    };
    let mine = File::open(second.path("a")).unwrap();
    assert_eq!(lock(&mine, libc::LOCK_EX), 0);
    let mut waiting = scene.begin("flock mnt/a true");
    pause(Duration::from_millis(500));
    scene.network.cut();
    pause(Duration::from_millis(200));
    signal(&waiting, libc::SIGKILL);
    assert_eq!(ends_by(&mut waiting), Some(libc::SIGKILL));
    assert_eq!(lock(&mine, libc::LOCK_UN), 0);
    scene.network.mend();
    let (env, begun) = (Env::real(), Env::real().now());
    while lock(&mine, libc::LOCK_EX | libc::LOCK_NB) != 0 {
        assert!(env.now().since(begun) < 4 * LEASE, "the lock belongs to a process that is gone");
        pause(Duration::from_millis(50));
    }
}

fn statvfs(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all zeros are a valid value; the path is a terminated string, and the pointer is valid for the call.
    unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        match libc::statvfs(path.as_ptr(), &raw mut found) {
            0 => Ok(found.f_blocks),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[test]
fn a_program_that_looks_at_all_mounts_does_not_wait() {
    let Some(scene) = Scene::new(None) else { return };
    let blocks = statvfs(&scene.rig.root()).unwrap();
    let root = fs::metadata(scene.rig.root()).unwrap();
    scene.cut();
    let (env, begun) = (Env::real(), Env::real().now());
    assert_eq!(statvfs(&scene.rig.root()).unwrap(), blocks);
    assert_eq!(fs::metadata(scene.rig.root()).unwrap().ino(), root.ino());
    let df = Command::new("df").output().unwrap();
    let shown = String::from_utf8_lossy(&df.stdout).into_owned();
    assert!(shown.contains(&scene.rig.root().display().to_string()), "{shown}");
    assert!(env.now().since(begun) < 2 * SOON);
    scene.network.mend();
    fs::write(scene.rig.path("b"), "new").unwrap();
}

#[test]
fn calls_of_a_soft_mount_fail_when_the_server_is_away() {
    for (is_told_apart, errno) in [(false, libc::EIO), (true, libc::ETIMEDOUT)] {
        let limit = Duration::from_millis(600);
        let soft = Soft { limit: Some(limit), is_told_apart };
        let Some(scene) = Scene::new(Some(soft)) else { return };
        scene.cut();
        let (env, begun) = (Env::real(), Env::real().now());
        let code = |result: io::Result<()>| result.unwrap_err().raw_os_error();
        let path = |name| scene.rig.path(name);
        assert_eq!(code(fs::read(path("a")).map(drop)), Some(errno));
        assert_eq!(code(fs::create_dir(path("new"))), Some(errno));
        assert!(env.now().since(begun) >= 2 * limit && env.now().since(begun) < SOON);
        scene.network.mend();
        pause(Duration::from_millis(500));
        assert_eq!(fs::read_to_string(path("a")).unwrap(), "there");
        assert!(!path("new").exists());
        fs::create_dir(path("new")).unwrap();
    }
}

#[test]
fn calls_fail_at_once_when_the_lease_is_over() {
    let soft = Soft { limit: None, is_told_apart: false };
    let Some(scene) = Scene::new(Some(soft)) else { return };
    scene.cut();
    let (env, begun) = (Env::real(), Env::real().now());
    let code = |result: io::Result<()>| result.unwrap_err().raw_os_error();
    let path = |name| scene.rig.path(name);
    // The first one waits for that.
    assert_eq!(code(fs::write(path("a"), "new")), Some(libc::EIO));
    assert!(env.now().since(begun) < 2 * SOON);
    let begun = env.now();
    assert_eq!(code(fs::read(path("b")).map(drop)), Some(libc::EIO));
    assert_eq!(code(fs::create_dir(path("new"))), Some(libc::EIO));
    assert!(env.now().since(begun) < Duration::from_secs(1));
    scene.network.mend();
    pause(Duration::from_millis(500));
    assert_eq!(fs::read_to_string(path("a")).unwrap(), "there");
}
