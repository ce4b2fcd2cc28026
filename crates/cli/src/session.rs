//! The volumes that this process has open, their clients, and the requests on them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fs::Statistics;
use thalweg_fuse::attach::{AttachError, AttachOptions, Attached, Force, attach};
use thalweg_fuse::stale::recover_stale;
use thalweg_nbd::{Export, Server, ServerConfig, ServerStats};
use thalweg_store::latency::StageStatus;
use thalweg_store::txn::Occupation;
use thalweg_store::volume::VolumeRef;
use tokio::sync::{Mutex, watch};

use crate::control::{self, Handler};
use crate::failure::{Failure, Outcome};
use crate::files;
use crate::fsck;
use crate::metrics;
use crate::mounts::{MountedVolume, Unmounting};
use crate::opened::{Numbers, Opened};
use crate::progress::Report;
use crate::request::{Answer, AttachRequest, Request};
use crate::resize::{Grown, Resized};
use crate::target::{Target, export};

/// How often a session checks whether its block devices still exist.
const LOOK: Duration = Duration::from_millis(500);
/// How long one check may take.
const GLANCE: Duration = Duration::from_millis(20);

/// Everything that one process has open.
#[derive(Debug)]
pub(crate) struct Session {
    env: Env,
    volumes: Vec<Arc<Opened>>,
    server: Server,
    attachments: Mutex<Vec<Attachment>>,
    mounts: Mutex<Vec<MountedVolume>>,
    views: AtomicU64,
    unmounting: Unmounting,
    /// The servers of the sockets for transactions, each with its volume's name.
    transactions: parking_lot::Mutex<Vec<(String, thalweg_ipc::Server)>>,
    /// Turns true when the session is to end.
    stop: watch::Sender<bool>,
    /// The session ends when its last block device and its last mount are gone.
    ends_when_idle: bool,
    exports_snapshots: bool,
    /// Exports may be written although the volume has partitions.
    writable: AtomicBool,
}

#[derive(Debug)]
struct Attachment {
    volume: String,
    snapshot: Option<String>,
    attached: Attached,
    /// While the device is writable, it keeps the volume's first partition from being made.
    writer: Option<Occupation>,
}

/// The purpose of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// One request on an idle volume.
    Request,
    /// Clients that connect.
    Serve,
    /// Block devices and mounts; the session ends with the last of them.
    Attach,
}

impl Session {
    /// A session over volumes that are open.
    pub(crate) fn new(env: &Env, volumes: Vec<Opened>, purpose: Purpose) -> Session {
        Session::with(env, volumes, purpose, ServerConfig::default())
    }

    /// As [`Session::new`], with limits for the NBD server.
    pub(crate) fn with(
        env: &Env,
        volumes: Vec<Opened>,
        purpose: Purpose,
        limits: ServerConfig,
    ) -> Session {
        Session {
            env: env.clone(),
            volumes: volumes.into_iter().map(Arc::new).collect(),
            server: Server::new(env.clone(), limits),
            attachments: Mutex::default(),
            mounts: Mutex::default(),
            views: AtomicU64::new(1),
            unmounting: Unmounting::default(),
            transactions: parking_lot::Mutex::default(),
            stop: watch::Sender::new(false),
            ends_when_idle: purpose == Purpose::Attach,
            exports_snapshots: purpose == Purpose::Serve,
            writable: AtomicBool::new(false),
        }
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    pub(crate) fn volumes(&self) -> &[Arc<Opened>] {
        &self.volumes
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// The mounted filesystems.
    pub(crate) fn mounts(&self) -> &Mutex<Vec<MountedVolume>> {
        &self.mounts
    }

    /// The next number of a transaction's view.
    pub(crate) fn next_view(&self) -> u64 {
        self.views.fetch_add(1, Ordering::Relaxed)
    }

    /// The unmounts in progress.
    pub(crate) fn unmounting(&self) -> &Unmounting {
        &self.unmounting
    }

    /// Ends a session of [`Purpose::Attach`] that has no block device and no mount left, unless an unmount is
    /// in progress, whose client then asks for the result. Returns whether the session ends, now or after
    /// that.
    pub(crate) async fn end_if_idle(&self, mounts: &[MountedVolume]) -> bool {
        let idle = mounts.is_empty() && self.attachments.lock().await.is_empty();
        let ends = self.ends_when_idle && idle;
        if ends && !self.unmounting.is_held() {
            self.stop.send_replace(true);
        }
        ends
    }

    /// Sending `true` ends the session.
    pub(crate) fn stop(&self) -> &watch::Sender<bool> {
        &self.stop
    }

    /// Makes later exports writable although their volume has partitions.
    pub(crate) fn allow_writes(&self) {
        self.writable.store(true, Ordering::Relaxed);
    }

    /// Exports a volume, or a snapshot of it, to NBD clients.
    pub(crate) fn export(&self, volume: &Opened, snapshot: Option<&str>) -> Outcome<()> {
        let name = export(&volume.target.name, snapshot);
        let place = volume.target.place().display();
        let is_fenced = snapshot.is_none() && volume.transactions().is_fenced();
        let bytes = match snapshot {
            Some(snapshot) => volume.snapshot(snapshot)?,
            None if is_fenced && self.writable.load(Ordering::Relaxed) => volume.unfenced(),
            None => volume.volume(),
        };
        if is_fenced {
            let is_read_only = bytes.is_read_only();
            tracing::info!(volume = %place, is_read_only, "exported; it has partitions");
        }
        let mut exported = Export::new(name, bytes).description(place.to_string());
        if snapshot.is_none() {
            let transactions = volume.transactions().clone();
            let why = format!(
                "an NBD client is connected to {place}, and could overwrite partitions; \
                 end its connection first"
            );
            exported = exported.on_use(move || Box::new(transactions.occupy(why.clone())));
        }
        // With a single volume, clients that name no export get the volume itself, not a snapshot.
        if let (1, None) = (self.volumes.len(), snapshot) {
            exported = exported.default_export();
        }
        Ok(self.server.add_export(exported)?)
    }

    /// Exports a volume and all its snapshots.
    pub(crate) fn export_all(&self, volume: &Opened) -> Outcome<()> {
        self.export(volume, None)?;
        volume.snapshots().iter().try_for_each(|name| self.export(volume, Some(name)))
    }

    /// Lets other processes run transactions on a volume, through the socket in its folder.
    pub(crate) fn serve_transactions(&self, volume: &Opened) -> Outcome<()> {
        let folder = &volume.target.folder;
        if volume.is_read_only() && control::elsewhere(folder).is_some() {
            // Programs open a read-only volume themselves, beside this process.
            tracing::debug!(volume = volume.target.name, "no socket for transactions");
            return Ok(());
        }
        let manager = volume.transactions();
        let config = thalweg_ipc::Config::default();
        let server = thalweg_ipc::Server::start(&self.env, manager, folder, config);
        let server = server.map_err(|error| {
            let path = folder.join(thalweg_ipc::SOCKET);
            Failure::of(&error).while_doing(format!("cannot listen on {}", path.display()))
        })?;
        self.transactions.lock().push((volume.target.name.clone(), server));
        Ok(())
    }

    /// Ends other processes' transactions on a volume; returns whether its socket was served.
    fn withdraw_transactions(&self, volume: &Opened) -> bool {
        let mut servers = self.transactions.lock();
        let before = servers.len();
        servers.retain(|(name, _)| *name != volume.target.name);
        servers.len() < before
    }

    /// Removes the exports whose names satisfy `right`; their connections end.
    async fn withdraw(&self, right: impl Fn(&str) -> bool) -> Outcome<Vec<String>> {
        let mut names = self.server.exports();
        names.retain(|name| right(name));
        for name in &names {
            self.server.remove_export(name).await?;
        }
        Ok(names)
    }

    /// Makes a block device of a volume or a snapshot.
    pub(crate) async fn attach(
        &self,
        volume: &Opened,
        request: &AttachRequest,
    ) -> Outcome<PathBuf> {
        let mut attachments = self.attachments.lock().await;
        let target = Target { snapshot: request.snapshot.clone(), ..volume.target.clone() };
        let same =
            |known: &&Attachment| known.volume == target.name && known.snapshot == request.snapshot;
        if let Some(known) = attachments.iter().find(same) {
            let device = known.attached.device.display();
            return Err(Failure::new(format!(
                "{} is attached already, as {device}",
                target.export()
            ))
            .help("use that device, or detach it first"));
        }
        let (bytes, writer) = self.device_bytes(volume, request).await?;
        let mountpoint = target.mountpoint()?;
        let stale = recover_stale(&self.env, &mountpoint).await?;
        for (device, mounts) in &stale.in_use {
            tracing::warn!(device = %device.display(), ?mounts, "a dead server's device is still in use");
        }
        let options = AttachOptions {
            block_size: request.block_size,
            partition_scan: request.partition_scan,
            name: export(&target.place().display().to_string(), request.snapshot.as_deref()),
            ..AttachOptions::default()
        };
        let attached = attach(&self.env, bytes, &mountpoint, &options).await?;
        let device = attached.device.clone();
        let Target { name: volume, snapshot, .. } = target;
        attachments.push(Attachment { volume, snapshot, attached, writer });
        Ok(device)
    }

    /// The volume behind a block device; for a writable one, also the occupation that excludes partitions.
    async fn device_bytes(
        &self,
        volume: &Opened,
        request: &AttachRequest,
    ) -> Outcome<(VolumeRef, Option<Occupation>)> {
        if let Some(name) = &request.snapshot {
            return Ok((volume.snapshot(name)?, None));
        }
        let place = volume.target.place().display();
        let writer = volume.transactions().occupy(format!(
            "{place} is attached as a block device, which could overwrite partitions; \
             detach it first: thalweg detach {place}"
        ));
        match (volume.transactions().settled_fence().await, request.writable) {
            (false, _) => Ok((volume.volume(), Some(writer))),
            (true, true) => {
                self.refuse_if_mounted(volume, None).await?;
                tracing::warn!(volume = %place, "attached for writing over its partitions");
                Ok((volume.unfenced(), Some(writer)))
            }
            (true, false) => {
                tracing::info!(volume = %place, "attached read-only: it has partitions");
                Ok((volume.volume(), None))
            }
        }
    }

    /// Refuses to use the files of a volume that is attached writable.
    async fn refuse_if_written(&self, volume: &Opened) -> Outcome<()> {
        let attachments = self.attachments.lock().await;
        let of = attachments.iter().filter(|it| it.volume == volume.target.name);
        match of.filter(|it| it.writer.is_some()).map(|it| &it.attached.device).next() {
            None => Ok(()),
            Some(device) => {
                Err(Failure::new(format!("it is attached for writing as {}", device.display()))
                    .help("detach it first: thalweg detach VOLUME"))
            }
        }
    }

    /// Flushes a block device and detaches it.
    async fn detach(
        &self,
        volume: &Opened,
        snapshot: &Option<String>,
        force: bool,
    ) -> Outcome<Answer> {
        let mut attachments = self.attachments.lock().await;
        let name = &volume.target.name;
        let found =
            attachments.iter().position(|it| it.volume == *name && it.snapshot == *snapshot);
        let Some(found) = found else {
            let name = export(name, snapshot.as_deref());
            return Err(Failure::new(format!("{name} is not attached"))
                .help("thalweg volume status shows what is attached"));
        };
        let force = if force { Force::Yes } else { Force::No };
        attachments[found].attached.detach(force).await?;
        let device = attachments.remove(found).attached.device.clone();
        drop(attachments);
        let ends = self.end_if_idle(&self.mounts.lock().await).await;
        Ok(Answer::Detached { device, ends })
    }

    /// Ends the session when its last block device was detached from outside.
    pub(crate) async fn watch_devices(&self) {
        loop {
            self.env.sleep(LOOK).await;
            let mut attachments = self.attachments.lock().await;
            let mut gone = Vec::new();
            for (at, it) in attachments.iter().enumerate().rev() {
                if self.env.timeout(GLANCE, it.attached.wait()).await.is_some() {
                    gone.push(at);
                }
            }
            for at in &gone {
                let mut it = attachments.remove(*at);
                if let Err(error) = it.attached.detach(Force::Yes).await {
                    tracing::warn!(%error, "the rest of a detached block device could not be removed");
                }
            }
            if !gone.is_empty() {
                drop(attachments);
                self.end_if_idle(&self.mounts.lock().await).await;
            }
        }
    }

    /// Detaches every block device, each as soon as it is not in use.
    async fn detach_all(&self) {
        let mut told = false;
        let mut attachments = self.attachments.lock().await;
        while let Some(last) = attachments.last_mut() {
            match last.attached.detach(Force::No).await {
                Ok(()) => drop(attachments.pop()),
                Err(error @ AttachError::Busy { .. }) => {
                    if !told {
                        tracing::warn!(
                            "{error}; waiting until it is not, a second signal ends at once"
                        );
                    }
                    told = true;
                    self.env.sleep(LOOK).await;
                }
                Err(error) => {
                    tracing::error!(%error, "a block device could not be detached in order");
                    attachments.pop();
                }
            }
        }
    }

    /// Ends everything in order: clients, mounts, block devices, volumes. Goes on after a failure, and
    /// returns the first.
    pub(crate) async fn close(&self) -> Outcome<()> {
        self.transactions.lock().clear();
        let mut result = self.server.shutdown().await.map_err(Failure::from);
        self.unmount_all().await;
        self.detach_all().await;
        for volume in &self.volumes {
            result = result.and(volume.close().await);
        }
        result
    }

    /// The block devices made of a volume and its snapshots, as JSON.
    async fn devices_of(&self, volume: &Opened) -> serde_json::Value {
        let attachments = self.attachments.lock().await;
        let of = attachments.iter().filter(|it| it.volume == volume.target.name);
        of.map(|it| {
            serde_json::json!({
                "export": export(&it.volume, it.snapshot.as_deref()),
                "device": it.attached.device,
            })
        })
        .collect()
    }

    async fn is_attached(&self, volume: &Opened, right: impl Fn(Option<&str>) -> bool) -> bool {
        let attachments = self.attachments.lock().await;
        let mut all = attachments.iter();
        all.any(|it| it.volume == volume.target.name && right(it.snapshot.as_deref()))
    }

    /// The directory where the filesystem of a volume, or of a snapshot, is mounted.
    async fn mount_of(&self, volume: &Opened, snapshot: Option<&str>) -> Option<PathBuf> {
        let mounts = self.mounts.lock().await;
        let of = mounts.iter().find(|it| it.shows(volume, snapshot));
        of.map(MountedVolume::directory)
    }

    /// The mounted snapshots of a volume, as JSON.
    async fn mounted_snapshots(&self, volume: &Opened) -> serde_json::Value {
        let mounts = self.mounts.lock().await;
        let of = mounts.iter().filter(|it| it.volume == volume.target.name);
        of.filter_map(|it| Some((it.snapshot.as_deref()?, it.directory())))
            .map(|(name, place)| serde_json::json!({ "snapshot": name, "directory": place }))
            .collect()
    }

    /// How full a volume's filesystem is, if it is mounted.
    async fn statistics_of(&self, volume: &Opened) -> Option<Statistics> {
        let filesystem = {
            let mounts = self.mounts.lock().await;
            mounts.iter().find(|it| it.shows(volume, None))?.filesystem()
        };
        filesystem.statistics().await.ok()
    }

    /// How long the kernel's requests to a volume's filesystem took, if it is mounted.
    async fn mount_stages(&self, volume: &Opened) -> Vec<StageStatus> {
        let mounts = self.mounts.lock().await;
        let of = mounts.iter().find(|it| it.shows(volume, None));
        of.map(MountedVolume::stages).unwrap_or_default()
    }

    async fn refuse_if_mounted(&self, volume: &Opened, snapshot: Option<&str>) -> Outcome<()> {
        match self.mount_of(volume, snapshot).await {
            None => Ok(()),
            Some(place) => {
                Err(Failure::new(format!("its filesystem is mounted on {}", place.display()))
                    .help("unmount it first: thalweg umount DIRECTORY"))
            }
        }
    }

    async fn refuse_if_attached(
        &self,
        volume: &Opened,
        right: impl Fn(Option<&str>) -> bool,
    ) -> Outcome<()> {
        match self.is_attached(volume, right).await {
            false => Ok(()),
            true => Err(Failure::new(
                "it is attached as a block device, and the kernel would not notice the change",
            )
            .help("unmount and detach it first: thalweg detach VOLUME")),
        }
    }

    /// Answers a request on one of the volumes.
    async fn answer(
        self: &Arc<Self>,
        volume: &Opened,
        request: Request,
        report: &dyn Report,
    ) -> Outcome<Answer> {
        if request.changes_volume() {
            volume.refuse_if_read_only()?;
        }
        match &request {
            Request::Status => self.status(volume).await,
            Request::ListSnapshots => Ok(Answer::Json(volume.list_snapshots()?)),
            Request::CheckSnapshot { name, data } => {
                fsck::check_snapshot(&self.env, volume, name, *data).await.map(Answer::Json)
            }
            Request::Attach(how) => {
                Ok(Answer::Attached { device: self.attach(volume, how).await? })
            }
            Request::Detach { snapshot, force } => self.detach(volume, snapshot, *force).await,
            Request::MakeFilesystem(new) => {
                self.refuse_if_mounted(volume, None).await?;
                files::make(&self.env, volume, new).await.map(|()| Answer::Done)
            }
            Request::Mount(request) => {
                if request.snapshot.is_none() {
                    self.refuse_if_written(volume).await?;
                }
                self.mount(volume, request).await
            }
            Request::Remount { device, options } => {
                self.remount(volume, *device, options).await.map(|()| Answer::Done)
            }
            Request::Unmounting { device, last, lazy } => {
                self.prepare_unmount(*device, *last, *lazy).await
            }
            Request::Unmounted { device, lazy } => self.unmounted(*device, *lazy).await,
            Request::BeginView => self.begin_view(volume).await,
            Request::EndView { id, commit } => self.end_view(volume, *id, *commit).await,
            Request::CreateSnapshot { name } => {
                let answer = volume.execute(&request, report).await?;
                if self.exports_snapshots {
                    self.export(volume, Some(name))?;
                }
                Ok(answer)
            }
            Request::DeleteSnapshot { name } => {
                self.refuse_if_attached(volume, |snapshot| snapshot == Some(name)).await?;
                self.refuse_if_mounted(volume, Some(name)).await?;
                let gone = export(&volume.target.name, Some(name));
                self.withdraw(|name| name == gone).await?;
                volume.execute(&request, report).await
            }
            Request::Rollback { .. } => self.roll_back(volume, &request, report).await,
            Request::Extend { .. } | Request::Shrink { .. } => {
                self.set_size(volume, &request, report).await
            }
            Request::Resize { size } => self.resize(volume, *size).await,
            _ => volume.execute(&request, report).await,
        }
    }

    async fn status(&self, volume: &Opened) -> Outcome<Answer> {
        let mut status = volume.status_json()?;
        status["attached"] = self.devices_of(volume).await;
        status["mounted"] = serde_json::to_value(self.mount_of(volume, None).await)?;
        status["mounted_snapshots"] = self.mounted_snapshots(volume).await;
        if let Some(files) = self.statistics_of(volume).await {
            status["files"] = serde_json::json!({
                "blocks": files.blocks,
                "free_blocks": files.free,
                "inodes": files.inodes.0,
                "most_inodes": files.inodes.1,
            });
        }
        let mut requests = self.mount_stages(volume).await;
        requests.extend(self.server.stats().stages());
        status["requests"] = serde_json::to_value(requests)?;
        let own = &volume.target.name;
        let mut exports = self.server.exports();
        exports.retain(|name| name == own || name.starts_with(&format!("{own}@")));
        status["exports"] = exports.into();
        status["connections"] = self.server.stats().connections_open.get().into();
        Ok(Answer::Json(status))
    }

    /// Clients may have cached content of the volume, so their connections end.
    async fn roll_back(
        &self,
        volume: &Opened,
        request: &Request,
        report: &dyn Report,
    ) -> Outcome<Answer> {
        self.refuse_if_attached(volume, |snapshot| snapshot.is_none()).await?;
        self.refuse_if_mounted(volume, None).await?;
        let own = volume.target.name.clone();
        let withdrawn = self.withdraw(|name| name == own).await?;
        let had_transactions = self.withdraw_transactions(volume);
        let result = volume.execute(request, report).await;
        if had_transactions {
            self.serve_transactions(volume)?;
        }
        if !withdrawn.is_empty() {
            self.export(volume, None)?;
        }
        result
    }

    /// Makes a volume larger, and its filesystem.
    async fn resize(&self, volume: &Opened, size: Option<u64>) -> Outcome<Answer> {
        // While this lock is held, nothing is mounted or unmounted.
        let mounts = self.mounts.lock().await;
        let mounted = mounts.iter().find(|it| it.shows(volume, None));
        let has_files = files::room(volume).await?.is_some();
        if has_files && mounted.is_none() {
            self.refuse_if_written(volume).await?;
        }
        let before = volume.size();
        volume.grow(size).await?;
        self.tell_attachments(volume).await?;
        let volume_size = Grown { before, size: volume.size() };
        let filesystem = match mounted {
            Some(mounted) => Some(mounted.grow().await?),
            None if has_files => Some(files::grow(&self.env, volume).await?),
            None => None,
        };
        let resized = Resized { volume: volume_size, filesystem };
        Ok(Answer::Json(serde_json::to_value(resized)?))
    }

    /// Updates the size of the volume's block devices.
    async fn tell_attachments(&self, volume: &Opened) -> Outcome<()> {
        for it in self.attachments.lock().await.iter() {
            if it.volume == volume.target.name {
                it.attached.resize().await?;
            }
        }
        Ok(())
    }

    async fn set_size(
        &self,
        volume: &Opened,
        request: &Request,
        report: &dyn Report,
    ) -> Outcome<Answer> {
        if matches!(request, Request::Shrink { size: Some(_), .. }) {
            self.refuse_if_attached(volume, |snapshot| snapshot.is_none()).await?;
            self.refuse_if_mounted(volume, None).await?;
        }
        let answer = volume.execute(request, report).await?;
        self.tell_attachments(volume).await?;
        match files::room(volume).await {
            Ok(Some(room)) => Ok(Answer::Json(serde_json::to_value(room)?)),
            Ok(None) => Ok(answer),
            Err(failure) => {
                tracing::warn!(%failure, "cannot tell whether its filesystem could grow");
                Ok(answer)
            }
        }
    }
}

impl metrics::Source for Session {
    async fn volumes(&self) -> Vec<Numbers> {
        let mut all = Vec::with_capacity(self.volumes.len());
        for volume in &self.volumes {
            let files = self.statistics_of(volume).await;
            let mount_stages = self.mount_stages(volume).await;
            all.push(Numbers { files, mount_stages, ..volume.numbers() });
        }
        all
    }

    fn server(&self) -> Option<&ServerStats> {
        Some(self.server.stats())
    }
}

/// One volume of a session, for its control socket.
#[derive(Debug)]
pub(crate) struct Administered {
    pub(crate) session: Arc<Session>,
    pub(crate) volume: Arc<Opened>,
}

impl Handler for Administered {
    async fn handle(&self, request: Request, report: &dyn Report) -> Outcome<Answer> {
        self.session.answer(&self.volume, request, report).await
    }

    async fn gone(&self, answer: &Answer) {
        match answer {
            // The command may not have finished, and its changes must not be applied in part.
            Answer::View { id, .. } => {
                let _ = self.session.end_view(&self.volume, *id, false).await;
            }
            Answer::Unmounting => self.session.end_unmount().await,
            _ => {}
        }
    }
}
