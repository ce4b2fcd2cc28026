//! The mounts of a session: a volume's filesystem for everybody, and private views of it for
//! transactions.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_fs::{Filesystem, Ino};
use thalweg_fuse::mounted::{self as fuse, Mounted, mount};
use thalweg_fuse::mounts;
use thalweg_store::env::{Env, Task};

use crate::failure::{Failure, Outcome};
use crate::files::{Committed, Files, View};
use crate::mount_options::MountOptions;
use crate::opened::Opened;
use crate::request::{Answer, MountRequest};
use crate::session::Session;
use crate::target::export;

/// How mounts of filesystems are called in the mount table.
pub(crate) const KIND: &str = "fuse.thalweg";
/// How often a transaction is touched that its command may not touch for long.
const TOUCH: Duration = Duration::from_millis(250);
/// How long the kernel may take to tell that it has let go of a mount.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a mount is tried again that is in use while its server ends.
const RETRY: Duration = Duration::from_millis(500);

/// A volume's filesystem, mounted.
#[derive(Debug)]
pub(crate) struct MountedVolume {
    pub(crate) volume: String,
    /// The snapshot that it shows; `None` for the volume itself.
    pub(crate) snapshot: Option<String>,
    files: Files,
    mounted: Arc<Mounted>,
    options: fuse::MountOptions,
    views: Vec<MountedView>,
}

/// A transaction's view, mounted.
#[derive(Debug)]
struct MountedView {
    id: u64,
    view: View,
    mounted: Mounted,
    _keeper: Task<()>,
}

impl MountedVolume {
    /// Whether it is the mount of a volume, or of this snapshot of it.
    pub(crate) fn shows(&self, volume: &Opened, snapshot: Option<&str>) -> bool {
        self.volume == volume.target.name && self.snapshot.as_deref() == snapshot
    }

    /// Where it is mounted.
    pub(crate) fn directory(&self) -> &Path {
        self.mounted.mountpoint()
    }

    /// What the kernel is shown.
    pub(crate) fn filesystem(&self) -> Arc<dyn Filesystem> {
        self.files.filesystem()
    }
}

/// Runs `work` where it may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

async fn mount_at(
    env: &Env,
    filesystem: Arc<dyn Filesystem>,
    directory: &Path,
    options: &fuse::MountOptions,
) -> Outcome<Mounted> {
    let (env, directory, options) = (env.clone(), directory.to_owned(), options.clone());
    let runtime = tokio::runtime::Handle::current();
    let shown = directory.display().to_string();
    blocking(move || mount(&env, runtime, filesystem, &directory, &options))
        .await
        .map_err(|error| Failure::of(&error).while_doing(format!("cannot mount on {shown}")))
}

impl Session {
    /// Mounts the filesystem of a volume.
    pub(crate) async fn mount(
        self: &Arc<Self>,
        volume: &Opened,
        request: &MountRequest,
    ) -> Outcome<Answer> {
        let mut all = self.mounts().lock().await;
        let snapshot = request.snapshot.as_deref();
        let name = &export(&volume.target.name, snapshot);
        if let Some(at) = all.iter().position(|it| it.shows(volume, snapshot)) {
            let known = &all[at];
            let place = known.directory().to_owned();
            if mounts::at(&place)?.is_some_and(|found| found.kind == KIND) {
                return Err(Failure::new(format!(
                    "{name} is mounted already, on {}",
                    place.display()
                ))
                .help("to see it in another place too: mount --bind"));
            }
            // It has just been unmounted.
            let ended = self.env().timeout(PATIENCE, known.mounted.ended()).await;
            if ended.is_none() {
                return Err(Failure::new(format!("files of {name} are still in use"))
                    .help("it was unmounted from under them; close them first"));
            }
            finish(all.swap_remove(at)).await?;
            self.end_if_idle(&all).await;
        }
        if *self.stop().borrow() {
            return Ok(Answer::Ending);
        }
        if request.options.read_only != Some(true) {
            volume.refuse_if_read_only()?;
        }
        let files = Files::open(self.env(), volume, snapshot, &request.options).await?;
        let place = volume.target.place().display().to_string();
        let options = request.options.for_kernel(export(&place, snapshot));
        let mounted = mount_at(self.env(), files.filesystem(), &request.directory, &options).await;
        let mounted = match mounted {
            Ok(mounted) => Arc::new(mounted),
            Err(failure) => {
                files.close().await?;
                return Err(failure);
            }
        };
        self.watch_mount(name.clone(), mounted.clone());
        let directory = mounted.mountpoint().to_owned();
        let views = Vec::new();
        let (volume, snapshot) = (volume.target.name.clone(), request.snapshot.clone());
        all.push(MountedVolume { volume, snapshot, files, mounted, options, views });
        Ok(Answer::Mounted { directory })
    }

    /// Cleans up when the mount is taken away from outside, as `umount` does.
    fn watch_mount(self: &Arc<Self>, volume: String, mounted: Arc<Mounted>) {
        let session = Arc::downgrade(self);
        let watch = async move {
            mounted.ended().await;
            let Some(session) = session.upgrade() else { return };
            let mut all = session.mounts().lock().await;
            let at = all.iter().position(|it| Arc::ptr_eq(&it.mounted, &mounted));
            if let Some(at) = at
                && let Err(failure) = finish(all.swap_remove(at)).await
            {
                tracing::error!(volume, %failure, "the filesystem could not be closed in order");
            }
            session.end_if_idle(&all).await;
        };
        self.env().spawn(watch).detach();
    }

    /// Unmounts the filesystem of a volume or a snapshot; with `detach` also while it is in use.
    pub(crate) async fn unmount(
        &self,
        volume: &Opened,
        snapshot: Option<&str>,
        detach: bool,
    ) -> Outcome<Answer> {
        let mut all = self.mounts().lock().await;
        let at = position(&all, volume, snapshot)?;
        let mounted = all[at].mounted.clone();
        let place = mounted.mountpoint().to_owned();
        let copy = mounted.clone();
        match blocking(move || copy.unmount(detach)).await {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(Failure::new(format!("{} is in use", place.display())).help(
                    "fuser -vm DIRECTORY shows by whom; --lazy unmounts when they are done",
                ));
            }
            // Somebody else was faster.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            result => result?,
        }
        if self.env().timeout(PATIENCE, mounted.ended()).await.is_none() {
            // It goes when its last user does.
            return Ok(Answer::Unmounted { ends: false });
        }
        finish(all.swap_remove(at)).await?;
        let ends = self.end_if_idle(&all).await;
        Ok(Answer::Unmounted { ends })
    }

    /// Changes how a filesystem is mounted, as far as that is not the kernel's.
    pub(crate) async fn remount(
        &self,
        volume: &Opened,
        snapshot: Option<&str>,
        options: &MountOptions,
    ) -> Outcome<()> {
        let all = self.mounts().lock().await;
        let it = &all[position(&all, volume, snapshot)?];
        if options.read_only == Some(false) && it.options.read_only {
            let place = it.directory().display();
            return Err(Failure::new(format!("{place} was mounted read-only, and stays so"))
                .help("unmount it, and mount it again without -o ro"));
        }
        it.files.remount(volume, options).await
    }

    /// Unmounts everything, as soon as nobody uses it.
    pub(crate) async fn unmount_all(&self) {
        let mut told = false;
        let mut all = self.mounts().lock().await;
        while let Some(last) = all.last() {
            let mounted = last.mounted.clone();
            let place = last.directory().to_owned();
            match blocking(move || mounted.unmount(false)).await {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    if !told {
                        let place = place.display();
                        tracing::warn!(%place, "in use; waiting for that, a second signal ends at once");
                    }
                    told = true;
                    self.env().sleep(RETRY).await;
                    continue;
                }
                Err(error) => tracing::debug!(%error, "unmounted by somebody else"),
                Ok(()) => {}
            }
            last.mounted.ended().await;
            if let Some(last) = all.pop()
                && let Err(failure) = finish(last).await
            {
                tracing::error!(%failure, "a filesystem could not be closed in order");
            }
        }
    }

    /// Shows the filesystem of a volume as a new transaction sees it.
    pub(crate) async fn begin_view(&self, volume: &Opened) -> Outcome<Answer> {
        let mut all = self.mounts().lock().await;
        let at = position(&all, volume, None)?;
        let id = self.next_view();
        let it = &mut all[at];
        let view = it.files.begin().await?;
        let directory = directory_of(id)?;
        let options =
            fuse::MountOptions { private: true, writeback_cache: false, ..it.options.clone() };
        let mounted = mount_at(self.env(), view.filesystem(), &directory, &options).await?;
        let (env, touched) = (self.env().clone(), view.filesystem());
        let keeper = self.env().spawn(async move {
            loop {
                env.sleep(TOUCH).await;
                if touched.attributes(Ino::ROOT).await.is_err() {
                    return;
                }
            }
        });
        it.views.push(MountedView { id, view, mounted, _keeper: keeper });
        Ok(Answer::View { id, directory })
    }

    /// Ends a view: everything in it appears, or nothing.
    pub(crate) async fn end_view(&self, volume: &Opened, id: u64, commit: bool) -> Outcome<Answer> {
        let (view, main) = {
            let mut all = self.mounts().lock().await;
            let at = position(&all, volume, None)?;
            let views = &mut all[at].views;
            let found = views.iter().position(|view| view.id == id);
            let found = found.ok_or_else(|| Failure::new("this transaction has ended"))?;
            (views.swap_remove(found), all[at].mounted.clone())
        };
        let result = match commit {
            true => view.commit().await,
            false => {
                view.view.abort().await;
                Ok(Committed::Yes)
            }
        };
        view.unmount(self.env()).await;
        // Who asked sees it in the main mount at once.
        main.settle().await;
        match result? {
            Committed::Yes => Ok(Answer::Done),
            Committed::Conflict => Ok(Answer::Conflict),
        }
    }
}

fn position(all: &[MountedVolume], volume: &Opened, snapshot: Option<&str>) -> Outcome<usize> {
    let name = export(&volume.target.name, snapshot);
    let at = all.iter().position(|it| it.shows(volume, snapshot));
    at.ok_or_else(|| {
        Failure::new(format!("{name} is not mounted")).help("mount it: thalweg mount VOLUME DIR")
    })
}

/// Where the view with this number is mounted: nobody but this user gets there.
fn directory_of(id: u64) -> Outcome<PathBuf> {
    let name = format!("tx-{}-{id}", std::process::id());
    Ok(thalweg_fuse::attach::directory(&name)?)
}

/// What is left to be done when the kernel has let go of a mount.
async fn finish(it: MountedVolume) -> Outcome<()> {
    for view in &it.views {
        view.view.abort().await;
    }
    it.files.close().await
}

impl MountedView {
    /// Commits what was written, also through memory maps.
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

    /// Takes the mount away; what still uses it gets errors, since its transaction has ended.
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
