//! The block devices of a session.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use thalweg_fuse::attach::{AttachError, AttachOptions, Attached, Force, attach};
use thalweg_fuse::stale::recover_stale;
use thalweg_store::txn::Occupation;
use thalweg_store::volume::VolumeRef;
use tokio::sync::Mutex;

use super::lifetime::{Lifetime, Use};
use super::mounts::{MountedVolume, Mounts, is_mounted};
use crate::failure::{Failure, Outcome};
use crate::request::{Answer, AttachRequest, MadeDevice};
use crate::target::{Target, export};
use crate::volume::opened::Opened;

/// How often a session checks whether its block devices still exist.
const LOOK: Duration = Duration::from_millis(500);
/// How long one check may take.
const GLANCE: Duration = Duration::from_millis(20);

/// The block devices of a session.
#[derive(Debug)]
pub(crate) struct Attachments {
    env: Env,
    lifetime: Arc<Lifetime>,
    list: Mutex<Vec<Attachment>>,
}

#[derive(Debug)]
struct Attachment {
    volume: String,
    /// The snapshot that is attached; `None` for the volume itself.
    snapshot: Option<String>,
    attached: Attached,
    /// While the device is writable, it keeps the volume's first partition from being made.
    writer: Option<Occupation>,
    /// Dropped when the device is detached.
    _use: Use,
}

impl Attachments {
    /// No block devices yet.
    pub(crate) fn new(env: &Env, lifetime: Arc<Lifetime>) -> Attachments {
        Attachments { env: env.clone(), lifetime, list: Mutex::default() }
    }

    /// Makes a block device of a volume or a snapshot.
    pub(crate) async fn attach(
        &self,
        volume: &Opened,
        request: &AttachRequest,
        mounts: &Mounts,
    ) -> Outcome<MadeDevice> {
        // Held until the device is in the list, so that nothing is mounted meanwhile. It comes first in the order
        // of locks.
        let mounts = match request.writable {
            true => Some(mounts.lock().await),
            false => None,
        };
        let mounted = mounts.as_ref().and_then(|all| all.iter().find(|it| it.shows(volume, None)));
        let mounted = mounted.map(MountedVolume::directory);
        let mut attachments = self.list.lock().await;
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
        let Bytes { bytes, writer, read_only } = device_bytes(volume, request, mounted).await?;
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
        let use_ = self.lifetime.begin_use();
        let attached = attach(&self.env, bytes, &mountpoint, &options).await?;
        let device = attached.device.clone();
        let Target { name: volume, snapshot, .. } = target;
        attachments.push(Attachment { volume, snapshot, attached, writer, _use: use_ });
        Ok(MadeDevice { device, read_only })
    }

    /// Refuses to use the files of a volume that is attached writable.
    pub(crate) async fn refuse_if_written(&self, volume: &Opened) -> Outcome<()> {
        let attachments = self.list.lock().await;
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
    pub(crate) async fn detach(
        &self,
        volume: &Opened,
        snapshot: &Option<String>,
        force: bool,
    ) -> Outcome<Answer> {
        let mut attachments = self.list.lock().await;
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
        Ok(Answer::Detached { device, ends: self.lifetime.ends_idle() })
    }

    /// Cleans up after block devices that were detached from outside.
    pub(crate) async fn watch(&self) {
        loop {
            self.env.sleep(LOOK).await;
            let mut attachments = self.list.lock().await;
            let mut gone = Vec::new();
            for (at, it) in attachments.iter().enumerate().rev() {
                if self.env.timeout(GLANCE, it.attached.wait()).await.is_some() {
                    gone.push(at);
                }
            }
            for at in gone {
                let mut it = attachments.remove(at);
                if let Err(error) = it.attached.detach(Force::Yes).await {
                    tracing::warn!(%error, "the rest of a detached block device could not be removed");
                }
            }
        }
    }

    /// Detaches every block device, each as soon as it is not in use.
    pub(crate) async fn detach_all(&self) {
        let mut told = false;
        let mut attachments = self.list.lock().await;
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

    /// The block devices made of a volume and its snapshots, as JSON.
    pub(crate) async fn of_volume(&self, volume: &Opened) -> serde_json::Value {
        let attachments = self.list.lock().await;
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
        let attachments = self.list.lock().await;
        let mut all = attachments.iter();
        all.any(|it| it.volume == volume.target.name && right(it.snapshot.as_deref()))
    }

    /// Refuses a change while the volume, or one of its snapshots, is attached: as `right` says.
    pub(crate) async fn refuse_if_attached(
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

    /// Updates the size of the volume's block devices.
    pub(crate) async fn resize(&self, volume: &Opened) -> Outcome<()> {
        for it in self.list.lock().await.iter() {
            if it.volume == volume.target.name {
                it.attached.resize().await?;
            }
        }
        Ok(())
    }
}

/// What is behind a block device.
struct Bytes {
    bytes: VolumeRef,
    /// Of a writable device, the occupation that excludes partitions.
    writer: Option<Occupation>,
    /// Why the device is read-only, unless the user asked for a snapshot.
    read_only: Option<String>,
}

async fn device_bytes(
    volume: &Opened,
    request: &AttachRequest,
    mounted: Option<PathBuf>,
) -> Outcome<Bytes> {
    if let Some(name) = &request.snapshot {
        return Ok(Bytes { bytes: volume.snapshot(name)?, writer: None, read_only: None });
    }
    let place = volume.target.place().display();
    if let Some(why) = volume.why_read_only().await {
        // No option helps: its partitions are not the reason.
        if request.writable {
            return Err(Failure::new(format!(
                "{place} cannot be attached for writing: {}",
                why.what
            ))
            .help(why.help));
        }
        let read_only = Some(format!("{}; {}", why.what, why.help));
        return Ok(Bytes { bytes: volume.volume(), writer: None, read_only });
    }
    volume.refuse_if_fenced()?;
    let writer = volume.transactions().occupy(format!(
        "{place} is attached as a block device, which could overwrite partitions; \
         detach it first: thalweg detach {place}"
    ));
    match (volume.transactions().settled_fence().await, request.writable) {
        (false, _) => Ok(Bytes { bytes: volume.volume(), writer: Some(writer), read_only: None }),
        (true, true) => {
            mounted.map_or(Ok(()), |place| Err(is_mounted(&place)))?;
            tracing::warn!(volume = %place, "attached for writing over its partitions");
            Ok(Bytes { bytes: volume.unfenced(), writer: Some(writer), read_only: None })
        }
        (true, false) => {
            tracing::info!(volume = %place, "attached read-only: it has partitions");
            let why = format!(
                "{} has partitions, which writes to the whole volume would destroy \
                 (attach --writable allows them)",
                volume.target.name
            );
            Ok(Bytes { bytes: volume.volume(), writer: None, read_only: Some(why) })
        }
    }
}
