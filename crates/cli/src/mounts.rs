//! The mounts of a session: a volume's filesystem, and private views of it for transactions.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use thalweg_env::{Env, Task};
use thalweg_fs::{Filesystem, Ino};
use thalweg_fuse::mounted::{self as fuse, Mounted, mount};
use thalweg_fuse::{mounts, state};
use thalweg_store::latency::StageStatus;

use crate::failure::{Failure, Outcome};
use crate::files::{Committed, Files, View};
use crate::holder;
use crate::mount::change_flags;
use crate::mount_options::{AtimeWord, MountOptions};
use crate::opened::Opened;
use crate::request::{Answer, MountRequest};
use crate::resize::Grown;
use crate::session::Session;
use crate::target::export;

/// The type of our mounts in the mount table.
pub(crate) const KIND: &str = "fuse.thalweg";
/// The prefix of directories, among this user's, on which views are mounted.
pub(crate) const VIEW: &str = "tx-";
/// How often a transaction's view is accessed, so that it does not time out while its command does not use
/// it.
const TOUCH: Duration = Duration::from_millis(250);
/// How long the kernel may take to release an unmounted filesystem.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long another namespace may hold a filesystem before it is reported: processes that have just begun
/// soon release it.
const OTHERS: Duration = Duration::from_secs(2);
/// How long a lazy unmount waits for a filesystem's end.
const GLANCE: Duration = Duration::from_millis(200);
/// How often the holders of a filesystem are looked up.
const LOOK: Duration = Duration::from_millis(50);
/// How often a mount that is in use is tried again while its server ends.
const RETRY: Duration = Duration::from_millis(500);

/// A volume's filesystem, mounted.
#[derive(Debug)]
pub(crate) struct MountedVolume {
    pub(crate) volume: String,
    /// The snapshot that is mounted; `None` for the volume itself.
    pub(crate) snapshot: Option<String>,
    files: Files,
    mounted: Arc<Mounted>,
    options: fuse::MountOptions,
    views: Vec<MountedView>,
    /// Dropped when the filesystem has ended.
    name: Option<PublishedName>,
}

/// A symbolic link in this user's folder by which `thalweg umount` finds this process: from the number
/// of a filesystem's device to the folder of the control socket. Dropping it removes it.
#[derive(Debug)]
struct PublishedName {
    link: PathBuf,
    folder: PathBuf,
}

impl PublishedName {
    fn new(mounted: &Mounted, volume: &Opened) -> Outcome<PublishedName> {
        let link = state::folder()?.join(mounts::name_of(mounted.device()));
        let folder = volume.target.served()?;
        // Make the folder, so that the link is not taken for a killed server's.
        state::make(&folder)?;
        // Rename over a link that a killed server may have left.
        let new = link.with_extension(std::process::id().to_string());
        std::os::unix::fs::symlink(&folder, &new)?;
        std::fs::rename(new, &link)?;
        Ok(PublishedName { link, folder })
    }
}

impl Drop for PublishedName {
    fn drop(&mut self) {
        // By now the device number may belong to another filesystem.
        if std::fs::read_link(&self.link).is_ok_and(|folder| folder == self.folder) {
            let _ = std::fs::remove_file(&self.link);
        }
    }
}

/// Unmounts in progress: a client prepares each with a request, takes the mount away, and asks for the
/// result.
#[derive(Debug, Default)]
pub(crate) struct Unmounting {
    clients: AtomicUsize,
    /// Filesystems that failed to close, by device number.
    failures: parking_lot::Mutex<Vec<((u32, u32), Failure)>>,
}

impl Unmounting {
    /// Whether the session must not end yet.
    pub(crate) fn is_held(&self) -> bool {
        self.clients.load(Ordering::Acquire) > 0
    }
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
    /// Whether it is the mount of this volume, or of this snapshot of it.
    pub(crate) fn shows(&self, volume: &Opened, snapshot: Option<&str>) -> bool {
        self.volume == volume.target.name && self.snapshot.as_deref() == snapshot
    }

    /// The directory of the mount: its first mountpoint, or another one if that was unmounted.
    pub(crate) fn directory(&self) -> PathBuf {
        let first = self.mounted.mountpoint().to_owned();
        let places = mounts::of(self.mounted.identity()).unwrap_or_default();
        match places.contains(&first) {
            true => first,
            false => places.into_iter().next().unwrap_or(first),
        }
    }

    /// Grows the filesystem into the volume's free space.
    pub(crate) async fn grow(&self) -> Outcome<Grown> {
        self.files.grow().await
    }

    /// How long the kernel's requests took.
    pub(crate) fn stages(&self) -> Vec<StageStatus> {
        self.mounted.stages()
    }

    /// The filesystem that the kernel is shown.
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
            let known = all[at].mounted.clone();
            if let Some(place) = mounts::of(known.identity())?.first() {
                return Err(Failure::new(format!(
                    "{name} is mounted already, on {}",
                    place.display()
                ))
                .help("to mount it on another directory too: mount --bind"));
            }
            // It was unmounted, and the kernel may still hold it.
            if let Some(users) = self.users_of(&known, PATIENCE).await? {
                return Err(Failure::new(format!(
                    "{name} was unmounted, and is still in use: {}",
                    users.join(", ")
                ))
                .help("end the processes that use it first"));
            }
            self.finish(all.swap_remove(at)).await?;
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
        let published = PublishedName::new(&mounted, volume)
            .inspect_err(|failure| {
                tracing::warn!(%failure, "umount finds this server by the volume's path alone");
            })
            .ok();
        self.watch_mount(name.clone(), mounted.clone());
        if request.options.atime == Some(AtimeWord::Strict) {
            show_strict_atime(mounted.mountpoint()).await;
        }
        let directory = mounted.mountpoint().to_owned();
        all.push(MountedVolume {
            volume: volume.target.name.clone(),
            snapshot: request.snapshot.clone(),
            files,
            mounted,
            options,
            views: Vec::new(),
            name: published,
        });
        Ok(Answer::Mounted { directory })
    }

    /// Cleans up after an unmount from outside, for example by `umount`.
    fn watch_mount(self: &Arc<Self>, volume: String, mounted: Arc<Mounted>) {
        let session = Arc::downgrade(self);
        let watch = async move {
            mounted.ended().await;
            let Some(session) = session.upgrade() else { return };
            let mut all = session.mounts().lock().await;
            let at = all.iter().position(|it| Arc::ptr_eq(&it.mounted, &mounted));
            if let Some(at) = at
                && let Err(failure) = session.finish(all.swap_remove(at)).await
            {
                tracing::error!(volume, %failure, "the filesystem could not be closed in order");
                session.unmounting().failures.lock().push((mounted.device(), failure));
            }
            session.end_if_idle(&all).await;
        };
        self.env().spawn(watch).detach();
    }

    /// Before a client's unmount: makes everything durable, and keeps the session from ending until the
    /// client is done.
    pub(crate) async fn prepare_unmount(
        &self,
        device: (u32, u32),
        last: bool,
        lazy: bool,
    ) -> Outcome<Answer> {
        let filesystem = {
            let all = self.mounts().lock().await;
            let it = all.iter().find(|it| it.mounted.device() == device);
            let it = it.ok_or_else(|| Failure::new("this server has no such mount"))?;
            if last && !lazy && !it.views.is_empty() {
                let place = it.directory();
                return Err(Failure::new(format!(
                    "{} is in use: a transaction (thalweg tx) runs on it",
                    place.display()
                ))
                .help("--lazy unmounts when it has ended"));
            }
            self.unmounting().clients.fetch_add(1, Ordering::AcqRel);
            it.filesystem()
        };
        match sync(&*filesystem).await {
            Err(failure) if !lazy => {
                self.end_unmount().await;
                Err(failure.help("--lazy unmounts nevertheless, and loses unsynced writes"))
            }
            Err(failure) => {
                tracing::error!(%failure, "unsynced writes are lost");
                Ok(Answer::Unmounting)
            }
            Ok(()) => Ok(Answer::Unmounting),
        }
    }

    /// A client has finished its unmount.
    pub(crate) async fn end_unmount(&self) {
        self.unmounting().clients.fetch_sub(1, Ordering::AcqRel);
        self.end_if_idle(&self.mounts().lock().await).await;
    }

    /// After a client's unmount: waits for the filesystem's end if that was the last mount.
    pub(crate) async fn unmounted(&self, device: (u32, u32), lazy: bool) -> Outcome<Answer> {
        let known = {
            let all = self.mounts().lock().await;
            all.iter().find(|it| it.mounted.device() == device).map(|it| it.mounted.clone())
        };
        if let Some(mounted) = known
            && let Some(users) =
                self.users_of(&mounted, if lazy { GLANCE } else { PATIENCE }).await?
        {
            let filesystem = {
                let all = self.mounts().lock().await;
                all.iter().find(|it| it.mounted.device() == device).map(MountedVolume::filesystem)
            };
            if let Some(filesystem) = filesystem {
                sync(&*filesystem).await?;
            }
            // While it is mounted elsewhere in this namespace, it is served as before.
            let users = if mounts::of(mounted.identity())?.is_empty() { users } else { Vec::new() };
            return Ok(Answer::Unmounted { ends: false, users });
        }
        let mut all = self.mounts().lock().await;
        if let Some(at) = all.iter().position(|it| it.mounted.device() == device) {
            self.finish(all.swap_remove(at)).await?;
        }
        let failed = {
            let mut failures = self.unmounting().failures.lock();
            let at = failures.iter().position(|(of, _)| *of == device);
            at.map(|at| failures.swap_remove(at).1)
        };
        let ends = self.end_if_idle(&all).await;
        match failed {
            Some(failure) => Err(failure),
            None => Ok(Answer::Unmounted { ends, users: Vec::new() }),
        }
    }

    /// The holders of a filesystem, as text for the user; `None` if it has ended, or ends within `patience`.
    async fn users_of(
        &self,
        mounted: &Arc<Mounted>,
        patience: Duration,
    ) -> Outcome<Option<Vec<String>>> {
        let begun = self.env().now();
        let identity = mounted.identity();
        while self.env().timeout(LOOK, mounted.ended()).await.is_none() {
            let waited = self.env().now().since(begun);
            if !mounts::of(identity)?.is_empty() {
                return Ok(Some(Vec::new()));
            }
            let looked_for = identity.clone();
            let holders = blocking(move || mounts::elsewhere(&looked_for)).await?;
            if !holders.is_empty() && waited > OTHERS.min(patience) {
                let shown = holders
                    .iter()
                    .map(|it| format!("{} in another mount namespace", holder::shown(it.process)));
                return Ok(Some(shown.collect()));
            }
            if waited > patience {
                return Ok(Some(vec!["files of it are open".to_owned()]));
            }
        }
        Ok(None)
    }

    /// Cleans up when the kernel has released a mount.
    async fn finish(&self, it: MountedVolume) -> Outcome<()> {
        drop(it.name);
        for view in it.views {
            if let Err(failure) = view.view.abort().await {
                tracing::debug!(%failure, "a transaction had failed already");
            }
            view.unmount(self.env()).await;
        }
        it.files.close().await
    }

    /// Applies a remount's options, except those that the kernel keeps.
    pub(crate) async fn remount(
        &self,
        volume: &Opened,
        device: (u32, u32),
        options: &MountOptions,
    ) -> Outcome<()> {
        let all = self.mounts().lock().await;
        let it = all.iter().find(|it| it.mounted.device() == device);
        let it = it.ok_or_else(|| Failure::new("this server has no such mount"))?;
        if options.read_only == Some(false) && it.options.read_only {
            let place = it.directory();
            return Err(Failure::new(format!(
                "{} was mounted read-only, which a remount cannot change",
                place.display()
            ))
            .help("unmount it, and mount it again without -o ro"));
        }
        it.files.remount(volume, options).await
    }

    /// Unmounts everything, each as soon as it is not in use.
    pub(crate) async fn unmount_all(&self) {
        let mut told = false;
        let mut all = self.mounts().lock().await;
        while let Some(last) = all.last() {
            let mounted = last.mounted.clone();
            let place = last.directory();
            match blocking(move || mounted.unmount(false)).await {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    if !told {
                        let place = place.display();
                        tracing::warn!(%place, "in use; waiting until it is not, a second signal ends at once");
                    }
                    told = true;
                    self.env().sleep(RETRY).await;
                    continue;
                }
                Err(error) => tracing::debug!(%error, "it was already unmounted"),
                Ok(()) => {}
            }
            last.mounted.ended().await;
            if let Some(last) = all.pop()
                && let Err(failure) = self.finish(last).await
            {
                tracing::error!(%failure, "a filesystem could not be closed in order");
            }
        }
    }

    /// Mounts a view of a volume's filesystem, as a new transaction sees it.
    pub(crate) async fn begin_view(&self, volume: &Opened) -> Outcome<Answer> {
        let mut all = self.mounts().lock().await;
        let at = position(&all, volume, None)?;
        let id = self.next_view();
        let it = &mut all[at];
        let view = it.files.begin().await?;
        let directory = directory_of(id)?;
        let options =
            fuse::MountOptions { private: true, writeback_cache: false, ..it.options.clone() };
        let mounted = mount_at(self.env(), view.filesystem(), &directory, &options).await;
        let mounted = match mounted {
            Ok(mounted) => mounted,
            Err(failure) => {
                if let Err(failure) = view.abort().await {
                    tracing::debug!(%failure, "a transaction had failed already");
                }
                let _ = std::fs::remove_dir(&directory);
                return Err(failure);
            }
        };
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

    /// Ends a view: all its changes appear, or none.
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
            false => view.view.abort().await,
        };
        view.unmount(self.env()).await;
        // The client must see the changes in the main mount at once.
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

/// The mountpoint of the view `id`; only this user can reach it.
fn directory_of(id: u64) -> Outcome<PathBuf> {
    let name = format!("{VIEW}{}-{id}", std::process::id());
    Ok(state::directory(&name)?)
}

/// Has the kernel show `strictatime`, which it is not told at the mount. If this user may not change that, it
/// shows `relatime`, but every read updates the access time all the same.
async fn show_strict_atime(mountpoint: &Path) {
    let mountpoint = mountpoint.to_owned();
    let options = MountOptions { atime: Some(AtimeWord::Strict), ..MountOptions::default() };
    let changed = blocking(move || change_flags(&mountpoint, &options)).await;
    if let Err(error) = changed {
        tracing::debug!(%error, "the kernel shows relatime");
    }
}

/// Makes everything durable.
async fn sync(filesystem: &dyn Filesystem) -> Outcome<()> {
    match filesystem.is_read_only() {
        true => Ok(()),
        false => filesystem.sync_all().await.map_err(|error| {
            Failure::of(&error).while_doing("the latest writes could not be made durable")
        }),
    }
}

impl MountedView {
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
