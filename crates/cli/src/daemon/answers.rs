//! The answers to requests on an open volume.

use std::sync::Arc;

use super::control::Handler;
use super::session::Session;
use super::shared_files::SharedFiles;
use crate::attention::in_words;
use crate::failure::{Failure, Outcome};
use crate::progress::Report;
use crate::request::sizes::{Grown, Resized};
use crate::request::{Answer, Change, Request};
use crate::target::export;
use crate::volume::opened::Opened;
use crate::volume::{check, files};

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
                let _ = self.session.mounts.end_view(&self.volume, *id, false).await;
            }
            Answer::Unmounting { .. } => self.session.mounts.end_unmount().await,
            _ => {}
        }
    }
}

/// The error for a request that only mounts of another machine's filesystem carry out.
fn is_own(volume: &Opened) -> Failure {
    let place = volume.target.place().display();
    Failure::new(format!("{place} is a volume of this machine"))
        .help("that is for mounts of filesystems that another machine shares")
}

impl Session {
    /// Answers a request on one of the volumes.
    async fn answer(
        &self,
        volume: &Opened,
        request: Request,
        report: &dyn Report,
    ) -> Outcome<Answer> {
        let of_replica = request.changes_devices() && volume.takes_changes_of_devices();
        if request.changes_volume() && !of_replica {
            volume.refuse_if_read_only()?;
        }
        self.refuse_if_shared(volume, &request)?;
        match &request {
            Request::Clients => {
                let mut status = self.shared(volume)?.status()?;
                status["degraded"] = in_words(&self.attention(volume).await).into();
                Ok(Answer::Json(status))
            }
            Request::Capabilities { path } => {
                self.shared(volume)?.capabilities(path).await.map(Answer::Json)
            }
            Request::Evict { client } => end(self.shared(volume)?.evict(client), client, "session"),
            Request::ForgetJournals { client } => {
                end(self.shared(volume)?.forget_journals(client), client, "lapsed journal")
            }
            Request::Status => self.status(volume).await,
            Request::Replicas => {
                let mut status = self.replicas.status(volume).await?;
                status["degraded"] = in_words(&self.attention(volume).await).into();
                Ok(Answer::Json(status))
            }
            Request::ListSnapshots => Ok(Answer::Json(volume.list_snapshots()?)),
            Request::CheckSnapshot { name, data } => {
                check::check_snapshot(&self.env, volume, name, *data).await.map(Answer::Json)
            }
            Request::Attach(how) => {
                self.attachments.attach(volume, how, &self.mounts).await.map(Answer::Attached)
            }
            Request::Detach { snapshot, force } => {
                self.attachments.detach(volume, snapshot, *force).await
            }
            Request::MakeFilesystem(new) => {
                self.mounts.refuse_if_mounted(volume, None).await?;
                files::make(&self.env, volume, new).await.map(|()| Answer::Done)
            }
            Request::Mount(request) => {
                let permitted = async {
                    match request.snapshot {
                        None => self.attachments.refuse_if_written(volume).await,
                        Some(_) => Ok(()),
                    }
                };
                self.mounts.mount(volume, request, permitted).await
            }
            Request::Remount { device, options } => {
                self.mounts.remount(Some(volume), *device, options).await.map(|()| Answer::Done)
            }
            Request::Pending | Request::Drain | Request::Move { .. } => Err(is_own(volume)),
            Request::SealCopies { .. } => Err(Failure::new("this is no keeper of copies")),
            Request::Unmounting { leave: true, .. } => Err(is_own(volume)),
            Request::Unmounting { device, last, lazy, leave: false } => {
                self.mounts.prepare_unmount(*device, *last, *lazy).await
            }
            Request::Unmounted { device, lazy } => self.mounts.unmounted(*device, *lazy).await,
            Request::BeginView => self.mounts.begin_view(volume).await,
            Request::EndView { id, commit } => self.mounts.end_view(volume, *id, *commit).await,
            Request::Change(change) => self.change(volume, change, report).await,
            Request::Resize { size } => self.resize(volume, *size).await,
            Request::Scrub => volume.scrub_for_report(report).await.map(Answer::Json),
        }
    }

    /// The shared filesystem of a volume.
    fn shared(&self, volume: &Opened) -> Outcome<&SharedFiles> {
        self.shared.get().filter(|shared| shared.is_of(volume)).ok_or_else(|| {
            Failure::new(format!("{} has no clients on other machines", volume.target.name))
                .help("thalweg cluster serve lets them in")
        })
    }

    /// Refuses requests that would change a shared filesystem behind its clients' backs.
    fn refuse_if_shared(&self, volume: &Opened, request: &Request) -> Outcome<()> {
        let bypasses = match request {
            Request::Mount(request) => request.snapshot.is_none(),
            Request::Attach(request) => request.snapshot.is_none(),
            Request::MakeFilesystem(_) => true,
            Request::Change(Change::Rollback { .. }) => true,
            _ => false,
        };
        match self.shared.get().is_some_and(|shared| shared.is_of(volume)) && bypasses {
            true => Err(Failure::new(format!(
                "the filesystem of {} is served to clients, which would not notice",
                volume.target.name
            ))
            .help("mount it as they do: thalweg mount SERVER:/ DIRECTORY")),
            false => Ok(()),
        }
    }

    async fn change(
        &self,
        volume: &Opened,
        change: &Change,
        report: &dyn Report,
    ) -> Outcome<Answer> {
        match change {
            Change::CreateSnapshot { name } => {
                volume.change(change, report).await?;
                if self.exports_snapshots {
                    self.exports.export(volume, Some(name))?;
                }
            }
            Change::DeleteSnapshot { name } => {
                let is_it = |snapshot: Option<&str>| snapshot == Some(name);
                self.attachments.refuse_if_attached(volume, is_it).await?;
                self.mounts.refuse_if_mounted(volume, Some(name)).await?;
                let gone = export(&volume.target.name, Some(name));
                self.exports.withdraw(|name| name == gone).await?;
                volume.change(change, report).await?;
            }
            Change::Rollback { .. } => self.roll_back(volume, change, report).await?,
            Change::Extend { .. } | Change::Shrink { .. } => {
                return self.set_size(volume, change, report).await;
            }
            Change::Replace { .. } | Change::Rebuild { .. } | Change::Set { .. } => {
                volume.change(change, report).await?;
            }
        }
        Ok(Answer::Done)
    }

    async fn status(&self, volume: &Opened) -> Outcome<Answer> {
        let mut status = volume.status_json()?;
        status["degraded"] = in_words(&self.attention(volume).await).into();
        status["attached"] = self.attachments.of_volume(volume).await;
        status["mounted"] = serde_json::to_value(self.mounts.mount_of(volume, None).await)?;
        status["mounted_snapshots"] = self.mounts.mounted_snapshots(volume).await;
        if let Some(files) = self.statistics_of(volume).await {
            status["files"] = serde_json::json!({
                "blocks": files.blocks,
                "free_blocks": files.free,
                "inodes": files.inodes.0,
                "most_inodes": files.inodes.1,
            });
        }
        let mut requests = self.mounts.mount_stages(volume).await;
        requests.extend(self.exports.server().stats().stages());
        status["requests"] = serde_json::to_value(requests)?;
        let own = &volume.target.name;
        let mut exports = self.exports.server().exports();
        exports.retain(|name| name == own || name.starts_with(&format!("{own}@")));
        status["exports"] = exports.into();
        status["connections"] = self.exports.server().stats().connections_open.get().into();
        Ok(Answer::Json(status))
    }

    /// Clients may have cached content of the volume, so their connections end.
    async fn roll_back(
        &self,
        volume: &Opened,
        change: &Change,
        report: &dyn Report,
    ) -> Outcome<()> {
        self.attachments.refuse_if_attached(volume, |snapshot| snapshot.is_none()).await?;
        self.mounts.refuse_if_mounted(volume, None).await?;
        let own = volume.target.name.clone();
        let withdrawn = self.exports.withdraw(|name| name == own).await?;
        let had_transactions = self.exports.withdraw_transactions(volume);
        let result = volume.change(change, report).await;
        if had_transactions {
            self.exports.serve_transactions(volume)?;
        }
        if !withdrawn.is_empty() {
            self.exports.export(volume, None)?;
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
            self.attachments.refuse_if_written(volume).await?;
        }
        let before = volume.size();
        volume.grow(size).await?;
        self.attachments.resize(volume).await?;
        let volume_size = Grown { before, size: volume.size() };
        let filesystem = match mounted {
            Some(mounted) => Some(mounted.grow().await?),
            None if has_files => Some(files::grow(&self.env, volume).await?),
            None => None,
        };
        let resized = Resized { volume: volume_size, filesystem };
        Ok(Answer::Json(serde_json::to_value(resized)?))
    }

    async fn set_size(
        &self,
        volume: &Opened,
        change: &Change,
        report: &dyn Report,
    ) -> Outcome<Answer> {
        if matches!(change, Change::Shrink { size: Some(_), .. }) {
            self.attachments.refuse_if_attached(volume, |snapshot| snapshot.is_none()).await?;
            self.mounts.refuse_if_mounted(volume, None).await?;
        }
        volume.change(change, report).await?;
        self.attachments.resize(volume).await?;
        match files::room(volume).await {
            Ok(Some(room)) => Ok(Answer::Json(serde_json::to_value(room)?)),
            Ok(None) => Ok(Answer::Done),
            Err(failure) => {
                tracing::warn!(%failure, "cannot tell whether its filesystem could grow");
                Ok(Answer::Done)
            }
        }
    }
}

/// The answer to a request that ends something of a client.
fn end(count: usize, client: &str, what: &str) -> Outcome<Answer> {
    match count {
        0 => Err(Failure::new(format!("{client} has no {what}"))
            .help("thalweg cluster status lists the clients")),
        _ => Ok(Answer::Json(serde_json::json!({ "ended": count }))),
    }
}
