//! A session in operation.

use std::path::Path;
use std::sync::Arc;

use thalweg_env::{Env, Task, watch};
use thalweg_fuse::state;

use super::answers::Administered;
use super::control::{self, Control, Owned};
use super::session::Session;
use super::shared_mount::SharedMount;
use super::{leftover, metrics, signals};
use crate::failure::Outcome;
use crate::listen::ListenAddress;

/// A session with its control sockets, metrics and signals.
pub(crate) struct Running {
    session: Arc<Session>,
    stopped: watch::Receiver<bool>,
    controls: Vec<Control>,
    _tasks: Vec<Task<()>>,
}

impl Running {
    pub(crate) fn start(
        session: &Arc<Session>,
        metrics: Option<&ListenAddress>,
    ) -> Outcome<Running> {
        let env = session.env.clone();
        leftover::remove_all();
        let mut tasks = vec![signals::watch(&env, session.lifetime.stop().clone())?];
        if let Some(address) = metrics {
            tasks.extend(metrics::start(&env, address.first(), session.clone())?);
        }
        let attachments = session.attachments.clone();
        tasks.push(env.spawn(async move { attachments.watch().await }));
        let mut controls = Vec::new();
        for volume in &session.volumes {
            let administered = Administered { session: session.clone(), volume: volume.clone() };
            controls.extend(listen(&env, Arc::new(administered))?);
        }
        session.volumes.iter().try_for_each(|volume| session.exports.serve_transactions(volume))?;
        let stopped = session.lifetime.stop().subscribe();
        Ok(Running { session: session.clone(), stopped, controls, _tasks: tasks })
    }

    /// As [`Running::start`], for a mount of a filesystem that another machine shares: requests come in `folder`.
    pub(crate) fn start_shared(
        mount: SharedMount,
        folder: &Path,
        metrics: Option<&ListenAddress>,
    ) -> Outcome<Running> {
        let mut running = Running::start(&mount.session, metrics)?;
        let mount = Arc::new(mount);
        let control = control::listen(&mount.session.env, folder, Owned::Yes, mount.clone());
        running.controls.push(control?);
        Ok(running)
    }

    /// Serves until the session is asked to end, then ends it.
    pub(crate) async fn until_stopped(mut self) -> Outcome<()> {
        // The session keeps the sender, so the wait ends with `true`, never with an error.
        let _ = self.stopped.wait_for(|stopped| *stopped).await;
        self.close().await
    }

    pub(crate) async fn close(self) -> Outcome<()> {
        let result = self.session.close().await;
        // Clients that wait on a control socket for the end see it only now.
        drop(self.controls);
        result
    }
}

/// Listens for requests on a volume: in its folder, and in this process's own folder, which stays in place
/// when the volume is moved.
fn listen(env: &Env, administered: Arc<Administered>) -> Outcome<Vec<Control>> {
    let target = administered.volume.target.clone();
    target.make_folder()?;
    let owned = if target.is_in_place() { Owned::Yes } else { Owned::No };
    let first = control::listen(env, &target.folder, owned, administered.clone())?;
    let mut controls = vec![first];
    if owned == Owned::No {
        let second = target.served().and_then(|place| {
            state::make(&place)?;
            control::listen(env, &place, Owned::Yes, administered)
        });
        match second {
            Ok(control) => controls.push(control),
            Err(failure) => {
                tracing::warn!(%failure, "if the volume is moved, umount cannot find this server")
            }
        }
    }
    Ok(controls)
}
