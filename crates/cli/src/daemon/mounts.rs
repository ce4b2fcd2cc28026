//! The mounts of a session: a volume's filesystem, and private views of it for transactions.

mod shared;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::Filesystem;
use thalweg_fuse::mounted::{self as fuse, Mounted};
use thalweg_fuse::mounts;
use thalweg_store::latency::StageStatus;
use tokio::sync::{Mutex, MutexGuard};

use super::lifetime::{Lifetime, Use};
use super::mount_flags::change_flags;
use super::mounted_files::{Ending, MountedFiles};
use super::published::PublishedName;
use super::views::{MountedView, blocking, mount_at};
use crate::failure::{Failure, Outcome};
use crate::holder;
use crate::request::mount_options::{AtimeWord, MountOptions};
use crate::request::sizes::Grown;
use crate::request::{Answer, MountRequest};
use crate::target::export;
use crate::volume::files::{Committed, Files};
use crate::volume::opened::Opened;

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

/// A filesystem, mounted.
#[derive(Debug)]
pub(crate) struct MountedVolume {
    /// The volume's name; of a filesystem that another machine shares, its address.
    volume: String,
    /// The snapshot that is mounted; `None` for the volume itself.
    snapshot: Option<String>,
    files: MountedFiles,
    mounted: Arc<Mounted>,
    options: fuse::MountOptions,
    views: Vec<MountedView>,
    /// What becomes of what is not durable when it is closed.
    ending: Ending,
    /// Dropped when the filesystem has ended.
    name: Option<PublishedName>,
    /// Dropped when the filesystem is closed.
    used: Use,
}

/// The mounts of a session.
#[derive(Debug)]
pub(crate) struct Mounts {
    env: Env,
    lifetime: Arc<Lifetime>,
    list: Mutex<Vec<MountedVolume>>,
    /// The number of the next view.
    views: AtomicU64,
    /// Filesystems that failed to close, by device number. A client that prepared its unmount asks for them.
    failures: parking_lot::Mutex<Vec<((u32, u32), Failure)>>,
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

    /// Requests that were answered with an I/O error.
    pub(crate) fn failures(&self) -> u64 {
        self.mounted.failures()
    }

    /// The filesystem that the kernel is shown.
    pub(crate) fn filesystem(&self) -> Arc<dyn Filesystem> {
        self.files.filesystem()
    }
}

impl Mounts {
    /// No mounts yet.
    pub(crate) fn new(env: &Env, lifetime: Arc<Lifetime>) -> Mounts {
        Mounts {
            env: env.clone(),
            lifetime,
            list: Mutex::default(),
            views: AtomicU64::new(1),
            failures: parking_lot::Mutex::default(),
        }
    }

    /// Locks the list: nothing is mounted or unmounted meanwhile.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, Vec<MountedVolume>> {
        self.list.lock().await
    }

    /// Mounts the filesystem of a volume, if `permitted` permits it: it runs while nothing else is mounted or
    /// unmounted.
    pub(crate) async fn mount(
        self: &Arc<Self>,
        volume: &Opened,
        request: &MountRequest,
        permitted: impl Future<Output = Outcome<()>>,
    ) -> Outcome<Answer> {
        let mut all = self.list.lock().await;
        permitted.await?;
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
        }
        let Some(used) = self.lifetime.try_use() else { return Ok(Answer::Ending) };
        if request.options.read_only != Some(true) {
            volume.refuse_if_read_only()?;
        }
        let files = Files::open(&self.env, volume, snapshot, &request.options).await?;
        let place = volume.target.place().display().to_string();
        let options = request.options.for_kernel(export(&place, snapshot));
        let mounted = mount_at(&self.env, files.filesystem(), &request.directory, &options).await;
        let mounted = match mounted {
            Ok(mounted) => Arc::new(mounted),
            Err(failure) => {
                files.close().await?;
                return Err(failure);
            }
        };
        let published = volume.target.served().and_then(|at| PublishedName::new(&mounted, at));
        let published = published
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
            files: MountedFiles::Own(Arc::new(files)),
            mounted,
            options,
            views: Vec::new(),
            ending: Ending::Whole,
            name: published,
            used,
        });
        Ok(Answer::Mounted { directory })
    }

    /// Cleans up after an unmount from outside, for example by `umount`.
    fn watch_mount(self: &Arc<Self>, volume: String, mounted: Arc<Mounted>) {
        let mounts = Arc::downgrade(self);
        let watch = async move {
            mounted.ended().await;
            let Some(mounts) = mounts.upgrade() else { return };
            let mut all = mounts.list.lock().await;
            let at = all.iter().position(|it| Arc::ptr_eq(&it.mounted, &mounted));
            if let Some(at) = at
                && let Err(failure) = mounts.finish(all.swap_remove(at)).await
            {
                tracing::error!(volume, %failure, "the filesystem could not be closed in order");
                mounts.failures.lock().push((mounted.device(), failure));
            }
        };
        self.env.spawn(watch).detach();
    }

    /// Before a client's unmount: makes everything durable, and keeps the session from ending until the
    /// client is done.
    pub(crate) async fn prepare_unmount(
        &self,
        device: (u32, u32),
        last: bool,
        lazy: bool,
    ) -> Outcome<Answer> {
        let synced = {
            let all = self.list.lock().await;
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
            self.lifetime.hold();
            it.files.clone()
        };
        match synced.sync(&self.env, lazy).await {
            Err(failure) if !lazy => {
                self.lifetime.release();
                Err(failure.help("--lazy unmounts nevertheless, and loses unsynced writes"))
            }
            Err(failure) => {
                tracing::error!(%failure, "unsynced writes are lost");
                let mut all = self.list.lock().await;
                let it = all.iter_mut().find(|it| it.mounted.device() == device);
                it.into_iter().for_each(|it| it.ending = Ending::GivenUp);
                Ok(Answer::Unmounting { lost: Some(failure.to_string()), left: 0 })
            }
            Ok(()) => Ok(Answer::Unmounting { lost: None, left: 0 }),
        }
    }

    /// What becomes of what is not durable when this filesystem is closed.
    pub(crate) async fn end_with(&self, device: (u32, u32), ending: Ending) {
        let mut all = self.list.lock().await;
        let it = all.iter_mut().find(|it| it.mounted.device() == device);
        it.into_iter().for_each(|it| it.ending = ending);
    }

    /// A client has finished its unmount, or given it up: what is still mounted is closed as ever.
    pub(crate) async fn end_unmount(&self) {
        for it in &mut *self.list.lock().await {
            if it.ending == Ending::Left
                && mounts::of(it.mounted.identity()).is_ok_and(|all| !all.is_empty())
            {
                it.ending = Ending::Whole;
            }
        }
        self.lifetime.release();
    }

    /// After a client's unmount: waits for the filesystem's end if that was the last mount.
    pub(crate) async fn unmounted(&self, device: (u32, u32), lazy: bool) -> Outcome<Answer> {
        let known = {
            let all = self.list.lock().await;
            all.iter().find(|it| it.mounted.device() == device).map(|it| it.mounted.clone())
        };
        if let Some(mounted) = known
            && let Some(users) =
                self.users_of(&mounted, if lazy { GLANCE } else { PATIENCE }).await?
        {
            let files = {
                let all = self.list.lock().await;
                let it = all.iter().find(|it| it.mounted.device() == device);
                it.map(|it| it.files.clone())
            };
            if let Some(files) = files
                && let Err(failure) = files.sync(&self.env, lazy).await
                && !lazy
            {
                return Err(failure);
            }
            // While it is mounted elsewhere in this namespace, it is served as before.
            let users = if mounts::of(mounted.identity())?.is_empty() { users } else { Vec::new() };
            return Ok(Answer::Unmounted { ends: false, users });
        }
        let mut all = self.list.lock().await;
        let finished = match all.iter().position(|it| it.mounted.device() == device) {
            Some(at) => self.finish(all.swap_remove(at)).await,
            None => {
                let mut failures = self.failures.lock();
                let at = failures.iter().position(|(of, _)| *of == device);
                at.map_or(Ok(()), |at| Err(failures.swap_remove(at).1))
            }
        };
        match finished {
            Err(failure) if !lazy => return Err(failure),
            // It said already whether writes are lost.
            Err(failure) => tracing::error!(%failure, "a lazy unmount ended with an error"),
            Ok(()) => {}
        }
        Ok(Answer::Unmounted { ends: self.lifetime.ends_idle(), users: Vec::new() })
    }

    /// The holders of a filesystem, as text for the user; `None` if it has ended, or ends within `patience`.
    async fn users_of(
        &self,
        mounted: &Arc<Mounted>,
        patience: Duration,
    ) -> Outcome<Option<Vec<String>>> {
        let begun = self.env.now();
        let identity = mounted.identity();
        while self.env.timeout(LOOK, mounted.ended()).await.is_none() {
            let waited = self.env.now().since(begun);
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
            view.discard(&self.env).await;
        }
        let closed = it.files.close(&self.env, it.ending).await;
        // Only now may the session end.
        drop(it.used);
        closed
    }

    /// Applies a remount's options, except those that the kernel keeps.
    pub(crate) async fn remount(
        &self,
        volume: Option<&Opened>,
        device: (u32, u32),
        options: &MountOptions,
    ) -> Outcome<()> {
        let all = self.list.lock().await;
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
        let mut all = self.list.lock().await;
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
                    self.env.sleep(RETRY).await;
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
        let mut all = self.list.lock().await;
        let it = mounted_volume(&mut all, volume)?;
        let id = self.views.fetch_add(1, Ordering::Relaxed);
        let view = MountedView::begin(&self.env, it.files.own()?, &it.options, id).await?;
        let directory = view.directory();
        it.views.push(view);
        Ok(Answer::View { id, directory })
    }

    /// Ends a view: all its changes appear, or none.
    pub(crate) async fn end_view(&self, volume: &Opened, id: u64, commit: bool) -> Outcome<Answer> {
        let (view, main) = {
            let mut all = self.list.lock().await;
            let it = mounted_volume(&mut all, volume)?;
            let found = it.views.iter().position(|view| view.id == id);
            let found = found.ok_or_else(|| Failure::new("this transaction has ended"))?;
            (it.views.swap_remove(found), it.mounted.clone())
        };
        let result = view.end(&self.env, commit).await;
        // The client must see the changes in the main mount at once.
        main.settle().await;
        match result? {
            Committed::Yes => Ok(Answer::Done),
            Committed::Conflict => Ok(Answer::Conflict),
        }
    }

    /// The mounted snapshots of a volume, as JSON.
    pub(crate) async fn mounted_snapshots(&self, volume: &Opened) -> serde_json::Value {
        let mounts = self.list.lock().await;
        let of = mounts.iter().filter(|it| it.volume == volume.target.name);
        of.filter_map(|it| Some((it.snapshot.as_deref()?, it.directory())))
            .map(|(name, place)| serde_json::json!({ "snapshot": name, "directory": place }))
            .collect()
    }

    /// Refuses a change while the filesystem of a volume, or of a snapshot, is mounted.
    pub(crate) async fn refuse_if_mounted(
        &self,
        volume: &Opened,
        snapshot: Option<&str>,
    ) -> Outcome<()> {
        match self.mount_of(volume, snapshot).await {
            None => Ok(()),
            Some(place) => Err(is_mounted(&place)),
        }
    }
}

/// The error for a change while the filesystem is mounted on `place`.
pub(crate) fn is_mounted(place: &Path) -> Failure {
    Failure::new(format!("its filesystem is mounted on {}", place.display()))
        .help("unmount it first: thalweg umount DIRECTORY")
}

fn mounted_volume<'a>(
    all: &'a mut [MountedVolume],
    volume: &Opened,
) -> Outcome<&'a mut MountedVolume> {
    all.iter_mut().find(|it| it.shows(volume, None)).ok_or_else(|| {
        Failure::new(format!("{} is not mounted", volume.target.name))
            .help("mount it: thalweg mount VOLUME DIR")
    })
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
