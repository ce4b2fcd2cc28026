//! Mounts of a filesystem, and their end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuser::BackgroundSession;
use thalweg_env::{Env, watch};
use thalweg_fs::{Filesystem, Watcher};
use thalweg_store::latency::StageStatus;

use super::adapter::Adapter;
use super::coherence::Coherence;
pub use super::options::{MountOptions, Soft};
use super::sizes::Sizes;
use super::stages::Stages;
use crate::connection::Connection;
use crate::mounts::{self, Identity};

/// A mounted filesystem. Dropping it unmounts, unless a file on it is in use.
#[derive(Debug)]
pub struct Mounted {
    session: Option<BackgroundSession>,
    connection: Connection,
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

    /// Requests that were answered with an I/O error, or with that of damaged structures.
    pub fn failures(&self) -> u64 {
        self.stages.failures().count()
    }

    /// Returns when the kernel has released the mount, whichever process unmounted it.
    pub async fn ended(&self) {
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }

    /// The watcher of the mount, which its filesystem has unless the mount is private.
    pub fn watcher(&self) -> Watcher {
        watcher_of(&self.coherence)
    }

    /// Returns when every change told so far has reached the kernel's caches.
    pub async fn settle(&self) {
        self.coherence.settle().await;
    }

    /// Unmounts, bind mounts too, and nothing of another filesystem; with `detach` also while files are in use, which live on
    /// until they are closed. It blocks while the kernel writes its cache, so never call it on a thread that serves the mount.
    ///
    /// # Errors
    /// `EBUSY` while files are in use and `detach` is not set, or while another filesystem is mounted over
    /// this one; then it stays mounted.
    pub fn unmount(&self, detach: bool) -> io::Result<()> {
        let flags = if detach { libc::MNT_DETACH } else { 0 };
        for mount in mounts::list()?.iter().rev().filter(|mount| mount.is_of(&self.identity)) {
            // Until it has ended no other filesystem has its number, and after that it has no mounts.
            if self.alive.has_changed().is_err() || self.connection.has_ended() {
                return Ok(());
            }
            match mounts::unmount(mount, flags) {
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
    pub fn join(mut self) -> io::Result<()> {
        self.session.take().map_or(Ok(()), BackgroundSession::join)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.unmount(false) {
            tracing::debug!(%error, mountpoint = %self.mountpoint.display(), "it stays mounted");
        }
    }
}

fn watcher_of(coherence: &Coherence) -> Watcher {
    let coherence = coherence.clone();
    Box::new(move |change| coherence.change(change))
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
    let handle = runtime.clone();
    let mountpoint = mountpoint.canonicalize()?;
    let adapter = Adapter::new(env, runtime, filesystem.clone(), options, life);
    let (served, stages) = (adapter.served().clone(), adapter.stages().clone());
    let spinning = adapter.spinning().clone();
    let (session, connection) =
        Connection::mount(adapter, &mountpoint, &options.for_kernel(), options.threads)?;
    spinning.begin(connection.device())?;
    let identity = connection.mounted().identity();
    if let Some(bytes) = options.read_ahead {
        set_read_ahead(identity.device, bytes);
    }
    let notify = (session.notifier(), Sizes::new(connection.device())?);
    let coherence = Coherence::start(notify, served.known.clone(), served.grace.clone())?;
    served.greet(coherence.clone());
    if !options.private {
        filesystem.watch(watcher_of(&coherence));
    }
    let session = Some(session.spawn()?);
    if filesystem.is_remote() {
        let _runtime = handle.enter();
        env.spawn(async move { served.know_something().await }).detach();
    }
    Ok(Mounted { session, connection, mountpoint, identity, coherence, stages, alive })
}

/// Has the kernel read so many bytes ahead of programs on a filesystem. The kernel takes no more than 128 KiB from the
/// filesystem itself.
fn set_read_ahead((major, minor): (u32, u32), bytes: u32) {
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, (bytes >> 10).to_string()) {
        tracing::info!(%error, path, "the kernel keeps its own read-ahead");
    }
}
