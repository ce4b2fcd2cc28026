//! The mount of a filesystem that a server on another machine shares: requests on its control socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use thalweg_cluster::client::Client;
use thalweg_fuse::state;
use thalweg_store::open::unique;

use super::control::Handler;
use super::session::Session;
use crate::failure::{Failure, Outcome};
use crate::places::SERVED;
use crate::progress::Report;
use crate::request::{Answer, Request};

/// A mount, for its control socket.
#[derive(Debug)]
pub(crate) struct SharedMount {
    pub(crate) session: Arc<Session>,
    pub(crate) client: Client,
    pub(crate) address: String,
}

/// This process's own folder, for the control socket of its mount of `address`.
pub(crate) fn folder_of(address: &str) -> Outcome<PathBuf> {
    let name = unique(&std::process::id().to_string(), Path::new(address));
    let folder = state::folder()?.join(format!("{SERVED}{name}"));
    state::make(&folder)?;
    Ok(folder)
}

impl Handler for SharedMount {
    async fn handle(&self, request: Request, _report: &dyn Report) -> Outcome<Answer> {
        let mounts = &self.session.mounts;
        match &request {
            Request::Status => Ok(Answer::Json(json!({
                "address": self.address,
                "client": serde_json::to_value(self.client.status())?,
            }))),
            Request::Remount { device, options } => {
                mounts.remount(None, *device, options).await.map(|()| Answer::Done)
            }
            Request::Unmounting { device, last, lazy } => {
                mounts.prepare_unmount(*device, *last, *lazy).await
            }
            Request::Unmounted { device, lazy } => mounts.unmounted(*device, *lazy).await,
            _ => Err(Failure::new(format!("{} is a shared filesystem", self.address))
                .help("do that on the machine that serves it")),
        }
    }

    async fn gone(&self, answer: &Answer) {
        if matches!(answer, Answer::Unmounting { .. }) {
            self.session.mounts.end_unmount();
        }
    }
}
