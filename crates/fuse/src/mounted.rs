//! Mounts of a filesystem, and their end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use thalweg_env::Env;
use thalweg_fs::{Change, Filesystem};
use thalweg_store::latency::StageStatus;
use tokio::sync::watch;

use crate::coherence::Coherence;
use crate::files::Adapter;
use crate::mounts::{self, Identity};
use crate::stages::Stages;

/// How a filesystem is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Threads that take requests from the kernel, each with a queue of its own.
    pub threads: usize,
    /// The source, as the mount table shows it.
    pub source: String,
    /// The kernel refuses changes.
    pub read_only: bool,
    /// All users may use the mount, as far as permissions go; otherwise its owner alone.
    pub allow_other: bool,
    /// The kernel collects writes and hands them over later, page by page.
    pub writeback_cache: bool,
    /// Set-user-id and set-group-id count.
    pub suid: bool,
    /// Devices can be opened.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Every write is durable when it returns.
    pub sync: bool,
    /// Every change of a directory is durable when it returns.
    pub dirsync: bool,
    /// Reads of inodes are not noted.
    pub noatime: bool,
    /// No other handle changes the filesystem, so there is nothing to watch.
    pub private: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            threads: 2,
            source: "thalweg".to_owned(),
            read_only: false,
            allow_other: false,
            writeback_cache: false,
            suid: true,
            dev: true,
            exec: true,
            sync: false,
            dirsync: false,
            noatime: false,
            private: false,
        }
    }
}

impl MountOptions {
    fn config(&self) -> Config {
        let flag = |is_set, yes, no| if is_set { yes } else { no };
        let mut options = vec![
            MountOption::FSName(self.source.replace([',', '\0'], "_")),
            // As an option, since the library itself keeps the subtype from the kernel.
            MountOption::CUSTOM("subtype=thalweg".to_owned()),
            MountOption::DefaultPermissions,
            flag(self.read_only, MountOption::RO, MountOption::RW),
            flag(self.suid, MountOption::Suid, MountOption::NoSuid),
            flag(self.dev, MountOption::Dev, MountOption::NoDev),
            flag(self.exec, MountOption::Exec, MountOption::NoExec),
        ];
        options.extend(self.sync.then_some(MountOption::Sync));
        options.extend(self.dirsync.then_some(MountOption::DirSync));
        options.extend(self.noatime.then_some(MountOption::NoAtime));
        let mut config = Config::default();
        config.mount_options = options;
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.threads.max(1));
        config.clone_fd = self.threads > 1;
        config
    }
}

/// A mounted filesystem. Dropping it unmounts, unless a file on it is in use.
#[derive(Debug)]
pub struct Mounted {
    session: BackgroundSession,
    mountpoint: PathBuf,
    identity: Identity,
    coherence: Coherence,
    stages: Stages,
    alive: watch::Receiver<()>,
}

impl Mounted {
    /// Where it was mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Major and minor number of the filesystem's device: no other filesystem has them before this
    /// one has ended.
    pub fn device(&self) -> (u32, u32) {
        self.identity.device
    }

    /// The filesystem, for the mount table.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How long requests of the kernel took, from the time at which they left its queue.
    pub fn stages(&self) -> Vec<StageStatus> {
        self.stages.status()
    }

    /// Returns when the kernel has released the mount, whichever process unmounted it.
    pub async fn ended(&self) {
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }

    /// Returns when every change told so far has reached the kernel's caches.
    pub async fn settle(&self) {
        self.coherence.settle().await;
    }

    /// Unmounts, bind mounts too; with `detach` also while files are in use, which live on until they are
    /// closed. It blocks while the kernel writes its cache, so never call it on a thread that serves the
    /// mount.
    ///
    /// # Errors
    /// `EBUSY` while files are in use and `detach` is not set, or while another filesystem is mounted over
    /// this one; then it stays mounted.
    pub fn unmount(&self, detach: bool) -> io::Result<()> {
        if self.alive.has_changed().is_err() {
            return Ok(());
        }
        for mount in mounts::list()?.iter().rev().filter(|mount| mount.is_of(&self.identity)) {
            let top = mounts::at(&mount.mountpoint)?;
            if top.is_some_and(|top| !top.is_of(&self.identity)) {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            match mounts::unmount(&mount.mountpoint, if detach { libc::MNT_DETACH } else { 0 }) {
                // It went with another one, or by another hand.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Waits for the threads after [`Mounted::ended`].
    ///
    /// # Errors
    /// The error that ended one of them.
    pub fn join(self) -> io::Result<()> {
        self.session.join()
    }
}

/// Mounts `filesystem` on the directory `mountpoint`. It blocks until the kernel has sent its first
/// request; requests run on the runtime.
///
/// # Errors
/// The system's error.
pub fn mount(
    env: &Env,
    runtime: tokio::runtime::Handle,
    filesystem: Arc<dyn Filesystem>,
    mountpoint: &Path,
    options: &MountOptions,
) -> io::Result<Mounted> {
    let (life, alive) = watch::channel(());
    let mountpoint = mountpoint.canonicalize()?;
    let adapter = Adapter::new(env, runtime, filesystem.clone(), options, life);
    let (served, stages) = (adapter.served().clone(), adapter.stages().clone());
    let session = Session::new(adapter, &mountpoint, &options.config())?;
    let identity = mounts::at(&mountpoint)?.ok_or(io::ErrorKind::NotConnected)?.identity();
    let coherence = Coherence::start(session.notifier())?;
    served.greet(session.notifier(), coherence.clone());
    if !options.private {
        let told = coherence.clone();
        filesystem.watch(Box::new(move |change| {
            if let Change::Inode { ino, .. } = change {
                served.granted(*ino);
            }
            told.invalidate(change.clone());
        }));
    }
    let session = session.spawn()?;
    Ok(Mounted { session, mountpoint, identity, coherence, stages, alive })
}
