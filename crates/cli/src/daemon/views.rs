//! Views of a mounted filesystem: each shows it as a transaction sees it, on a private mount.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::{Env, Task};
use thalweg_fs::{Filesystem, Ino};
use thalweg_fuse::mounted::{self as fuse, Mounted, mount};
use thalweg_fuse::state;

use crate::failure::{Failure, Outcome};
use crate::places::VIEW;
use crate::volume::files::{Committed, Files, View};

/// How often a transaction's view is accessed, so that it does not time out while its command does not use
/// it.
const TOUCH: Duration = Duration::from_millis(250);

/// A transaction's view, mounted.
#[derive(Debug)]
pub(crate) struct MountedView {
    pub(crate) id: u64,
    view: View,
    mounted: Mounted,
    _keeper: Task<()>,
}

/// Runs `work` where it may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Mounts a filesystem.
pub(super) async fn mount_at(
    env: &Env,
    filesystem: Arc<dyn Filesystem>,
    directory: &Path,
    options: &fuse::MountOptions,
) -> Outcome<Mounted> {
    let (env, directory, options) = (env.clone(), directory.to_owned(), options.clone());
    let runtime = tokio::runtime::Handle::current();
    let shown = directory.display().to_string();
    let mounted = blocking(move || mount(&env, runtime, filesystem, &directory, &options)).await;
    mounted.map_err(|error| {
        let failure = Failure::of(&error).while_doing(format!("cannot mount on {shown}"));
        match help_with_device() {
            Some(help) => failure.help(help),
            None => failure,
        }
    })
}

/// What this user needs to open the device that mounts go through.
fn help_with_device() -> Option<&'static str> {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse").err()?.kind() {
        ErrorKind::PermissionDenied => {
            Some("this user may not open /dev/fuse; root can: chmod 666 /dev/fuse")
        }
        ErrorKind::NotFound => Some("there is no /dev/fuse; root may try: modprobe fuse"),
        _ => None,
    }
}

/// The mountpoint of the view `id`; only this user can reach it.
fn directory_of(id: u64) -> Outcome<PathBuf> {
    let name = format!("{VIEW}{}-{id}", std::process::id());
    Ok(state::directory(&name)?)
}

impl MountedView {
    /// Begins a transaction on the filesystem, and mounts its view of it.
    pub(crate) async fn begin(
        env: &Env,
        files: &Files,
        options: &fuse::MountOptions,
        id: u64,
    ) -> Outcome<MountedView> {
        let view = files.begin().await?;
        let directory = directory_of(id)?;
        let options =
            fuse::MountOptions { private: true, writeback_cache: false, ..options.clone() };
        let mounted = match mount_at(env, view.filesystem(), &directory, &options).await {
            Ok(mounted) => mounted,
            Err(failure) => {
                abort(&view).await;
                let _ = std::fs::remove_dir(&directory);
                return Err(failure);
            }
        };
        let (env2, touched) = (env.clone(), view.filesystem());
        let keeper = env.spawn(async move {
            loop {
                env2.sleep(TOUCH).await;
                if touched.attributes(Ino::ROOT).await.is_err() {
                    return;
                }
            }
        });
        Ok(MountedView { id, view, mounted, _keeper: keeper })
    }

    /// The directory of the view.
    pub(crate) fn directory(&self) -> PathBuf {
        self.mounted.mountpoint().to_owned()
    }

    /// Ends the transaction: all its changes appear, or none. Then unmounts the view.
    pub(crate) async fn end(self, env: &Env, commit: bool) -> Outcome<Committed> {
        let result = match commit {
            true => self.commit().await,
            false => self.view.abort().await,
        };
        self.unmount(env).await;
        result
    }

    /// Discards the transaction's changes, and unmounts the view.
    pub(crate) async fn discard(self, env: &Env) {
        abort(&self.view).await;
        self.unmount(env).await;
    }

    /// Commits all writes, including those through memory maps.
    async fn commit(&self) -> Outcome<Committed> {
        let directory = self.mounted.mountpoint().to_owned();
        blocking(move || {
            let root = std::fs::File::open(directory)?;
            // SAFETY: the descriptor is open for the call.
            match unsafe { libc::syncfs(root.as_raw_fd()) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
        .await?;
        self.view.commit().await
    }

    /// Unmounts the view. Processes that still use it get errors, since the transaction has ended.
    async fn unmount(self, env: &Env) {
        let directory = self.mounted.mountpoint().to_owned();
        let MountedView { mounted, view, .. } = self;
        let result = blocking(move || mounted.unmount(true).map(|()| mounted)).await;
        if let Err(error) = std::fs::remove_dir(&directory) {
            tracing::debug!(%error, directory = %directory.display(), "it stays");
        }
        match result {
            Ok(mounted) => env
                .spawn(async move {
                    mounted.ended().await;
                    drop((mounted, view));
                })
                .detach(),
            Err(error) => tracing::warn!(%error, "a transaction's view stays mounted"),
        }
    }
}

async fn abort(view: &View) {
    if let Err(failure) = view.abort().await {
        tracing::debug!(%failure, "a transaction had failed already");
    }
}
