//! Sends a request to the process that has the volume open: its server, through the control socket, or this
//! process when the volume is idle. A read-only request changes no byte of the volume.

use std::sync::Arc;

use thalweg_env::Env;

use crate::control::Client;
use crate::daemon::answers::Administered;
use crate::daemon::control::Handler;
use crate::daemon::session::{Purpose, Session};
use crate::failure::Outcome;
use crate::progress;
use crate::request::{Answer, Request};
use crate::target::Target;
use crate::volume::opened::Opened;

/// Has the volume's server, or this process, answer the request.
pub(crate) async fn ask(
    env: &Env,
    target: &Target,
    request: Request,
    json: bool,
) -> Outcome<Answer> {
    let report = progress::for_user(json);
    let looks = matches!(
        request,
        Request::Status
            | Request::Replicas
            | Request::Clients
            | Request::Capabilities { .. }
            | Request::ListSnapshots
            | Request::CheckSnapshot { .. }
    );
    let client = match looks {
        true => Client::connect_to_look(&target.folder).await?,
        false => Client::connect(&target.folder).await?,
    };
    if let Some(mut client) = client {
        return client.ask(&request, &*report).await;
    }
    let opened = match (looks, request.changes_devices()) {
        (true, _) => Opened::open_read_only(env, target).await?,
        (false, true) => Opened::open_for_devices(env, target).await?,
        (false, false) => Opened::open(env, target).await?,
    };
    let session = Arc::new(Session::new(env, vec![opened], Purpose::Request));
    let volume = session.volumes[0].clone();
    let answer = Administered { session: session.clone(), volume }.handle(request, &*report).await;
    let closed = session.close().await;
    let answer = answer?;
    closed?;
    Ok(answer)
}
