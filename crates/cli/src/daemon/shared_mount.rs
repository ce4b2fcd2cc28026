//! The mount of a filesystem that a server on another machine shares: requests on its control socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_cluster::client::address::KeeperEntrance;
use thalweg_cluster::client::{Client, MoveError, MoveTarget, PendingReport};
use thalweg_fs::FsError;
use thalweg_fuse::state;
use thalweg_net::keys::Home;
use thalweg_store::open::unique;

use super::control::Handler;
use super::mounted_files::Ending;
use super::session::Session;
use crate::failure::{Failure, Outcome};
use crate::places::SERVED;
use crate::progress::{Report, Step};
use crate::request::{Answer, Request};

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long an unmount waits for a server that takes nothing, if there is a journal for the rest.
const PATIENCE: Duration = Duration::from_secs(8);

/// A mount, for its control socket.
#[derive(Debug)]
pub(crate) struct SharedMount {
    pub(crate) session: Arc<Session>,
    pub(crate) client: Client,
    pub(crate) address: String,
    pub(crate) home: Home,
}

/// This process's own folder, for the control socket of its mount of `address`.
pub(crate) fn folder_of(address: &str) -> Outcome<PathBuf> {
    let name = unique(&std::process::id().to_string(), Path::new(address));
    let folder = state::folder()?.join(format!("{SERVED}{name}"));
    state::make(&folder)?;
    Ok(folder)
}

/// Why a mount does not move, with what to do about it.
fn explain_move(error: &MoveError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        MoveError::NoJournal => failure.help("mount it with -o journal_dev=PATH"),
        MoveError::Lost { .. } => {
            failure.help("look there whether `thalweg mount -o receive` runs, and on which port")
        }
        MoveError::NotPermitted { target, .. } => failure.help(format!(
            "thalweg key authorize NAME --token there prints a token; thalweg key enrol {target} TOKEN uses it here, \
             as the user who has mounted it"
        )),
        MoveError::Refused { .. } => failure.help(
            "the mount that waits there has to be one of the same directory, by a client with the same rights",
        ),
        MoveError::Ended => failure.help(
            "if the other machine has the mount it comes up there; the log of this one says what became of its own",
        ),
        _ => failure,
    }
}

/// What is left of a drain.
fn left(pending: &PendingReport) -> u64 {
    pending.unsent.changes + pending.undurable
}

impl SharedMount {
    fn status(&self) -> Outcome<Value> {
        Ok(json!({
            "address": self.address,
            "client": serde_json::to_value(self.client.status())?,
            "pending": serde_json::to_value(self.client.pending())?,
        }))
    }

    /// Has the server make everything durable. `None` if it has taken nothing for as long as `patience`.
    async fn drain(
        &self,
        patience: Option<Duration>,
        report: &dyn Report,
    ) -> Option<Result<(), FsError>> {
        let env = &self.session.env;
        let total = left(&self.client.pending());
        let mut least = (total, env.now());
        let mut draining = std::pin::pin!(self.client.drain());
        loop {
            if let Some(drained) = env.timeout(LOOK, &mut draining).await {
                return Some(drained);
            }
            let left = left(&self.client.pending());
            if left < least.0 {
                least = (left, env.now());
            }
            let what = match self.client.status().connected {
                true => format!("sending changes to {}", self.address),
                false => format!("waiting for {}", self.address),
            };
            let total = total.max(left);
            report.step(Step { what, done: total - left, total });
            if patience.is_some_and(|patience| env.now().since(least.1) > patience) {
                return None;
            }
        }
    }

    async fn drain_all(&self, report: &dyn Report) -> Outcome<Answer> {
        let lost = self.client.status().lost;
        let drained = self.drain(None, report).await.unwrap_or(Ok(()));
        let lost = self.client.status().lost.saturating_sub(lost);
        let failed = || format!("not everything has come to {}", self.address);
        match drained {
            Err(error) => Err(Failure::of(&error).while_doing(failed())),
            Ok(()) if lost > 0 => {
                Err(Failure::new(format!("{}: {lost} changes were lost", failed()))
                    .help("the log of the mount says why"))
            }
            Ok(()) => Ok(Answer::Json(self.status()?)),
        }
    }

    /// Moves the mount to another machine. The mount is stale here then.
    async fn move_to(&self, target: &str, force: bool) -> Outcome<Answer> {
        let failed = || format!("the mount of {} does not move to {target}", self.address);
        let entrance = KeeperEntrance::to_move(target, &self.session.env, self.home.clone());
        let entrance = entrance.map_err(|error| Failure::new(error.to_string()))?;
        let at = MoveTarget { name: target.to_owned(), connector: Arc::new(entrance) };
        let moved = self.client.move_to(at, force).await;
        let moved = moved.map_err(|error| explain_move(&error).while_doing(failed()))?;
        Ok(Answer::Json(serde_json::to_value(moved)?))
    }

    /// Before an unmount: sends everything. The journal, if there is one, keeps what the server does not take.
    async fn prepare_unmount(
        &self,
        (device, last, lazy, leave): ((u32, u32), bool, bool, bool),
        report: &dyn Report,
    ) -> Outcome<Answer> {
        let has_moved = self.client.status().moved;
        let has_journal = !has_moved && self.client.pending().journal.is_some();
        if leave && !has_journal {
            return Err(Failure::new(format!("the mount of {} has no journal", self.address))
                .help("leave --leave out, so that everything is sent"));
        }
        let mounts = &self.session.mounts;
        // Nothing is left to be synced of one that has moved.
        let prepared = mounts.prepare_unmount(device, last, lazy || has_moved).await?;
        // Without a journal everything is at the server now.
        if !(has_journal && last && matches!(prepared, Answer::Unmounting { lost: None, .. })) {
            return Ok(prepared);
        }
        let is_drained =
            !leave && !lazy && matches!(self.drain(Some(PATIENCE), report).await, Some(Ok(())));
        let ending = if is_drained || (lazy && !leave) { Ending::Whole } else { Ending::Left };
        mounts.end_with(device, ending).await;
        let left = if ending == Ending::Left { left(&self.client.pending()) } else { 0 };
        Ok(Answer::Unmounting { lost: None, left })
    }
}

impl Handler for SharedMount {
    async fn handle(&self, request: Request, report: &dyn Report) -> Outcome<Answer> {
        let mounts = &self.session.mounts;
        match &request {
            Request::Status | Request::Pending => Ok(Answer::Json(self.status()?)),
            Request::Drain => self.drain_all(report).await,
            Request::Move { target, force } => self.move_to(target, *force).await,
            Request::Remount { device, options } => {
                mounts.remount(None, *device, options).await.map(|()| Answer::Done)
            }
            Request::Unmounting { device, last, lazy, leave } => {
                self.prepare_unmount((*device, *last, *lazy, *leave), report).await
            }
            Request::Unmounted { device, lazy } => mounts.unmounted(*device, *lazy).await,
            _ => Err(Failure::new(format!("{} is a shared filesystem", self.address))
                .help("do that on the machine that serves it")),
        }
    }

    async fn gone(&self, answer: &Answer) {
        if matches!(answer, Answer::Unmounting { .. }) {
            self.session.mounts.end_unmount().await;
        }
    }
}
