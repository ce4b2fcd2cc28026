//! Take-over: the machine of a client is lost, and a copy of its journal is written back in its place.

use std::sync::Arc;

use serde::Serialize;
use thalweg_env::Env;
use thalweg_env::connection::Connector;
use uuid::Uuid;

use super::error::AttachError;
use super::found_journal::FoundJournal;
use super::options::Options;
use super::recovery::{Resumed, resume};

/// What became of a copy of a journal.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct TakenOver {
    /// The session of the client; `None` if the copy was never used.
    pub session: Option<Uuid>,
    /// Changes that the server did not have, and has now.
    pub written: u64,
    /// Changes that were not written back, since the session has ended at the server: another copy was taken over, the client has
    /// ended in order while this keeper was away, or the journal was given up. They stay in the copy.
    pub stale: u64,
    /// Changes that are in conflict copies instead, or discarded: other clients have made them impossible.
    pub set_aside: u64,
}

/// Writes back what a copy has ([`Options::journal`]), as the client that has made it, and ends the client's session. The client is refused from
/// now on, by the server and by the keeper. After an error it can be repeated.
///
/// # Errors
/// [`AttachError`].
pub async fn take_over(
    env: &Env,
    connector: Box<dyn Connector>,
    mut options: Options,
) -> Result<TakenOver, AttachError> {
    let connector: Arc<dyn Connector> = connector.into();
    let nothing = TakenOver::default();
    let Some(device) = options.journal.take() else { return Ok(nothing) };
    options.contents = None;
    options.keepers.clear();
    let open = || FoundJournal::open(env, device.clone(), options.memory / 2);
    let mut found = open().await.map_err(AttachError::journal)?;
    let Some(session) = found.chain.session else { return Ok(nothing) };
    // The client acknowledges nothing more before the server is asked what it has.
    let sealed = open().await.map_err(AttachError::journal)?.seal().await;
    let sealed = sealed.map_err(AttachError::journal)?;
    let resumed = resume(env, &connector, &options, (session, true), &mut found).await?;
    let Resumed { stages, written, set_aside, .. } = resumed;
    let Some(stages) = stages else {
        let stale = found.chain.next - found.chain.first;
        return Ok(TakenOver { session: Some(session), stale, ..nothing });
    };
    sealed.forget().await.map_err(AttachError::journal)?;
    stages.connections.close().await;
    Ok(TakenOver { session: Some(session), written, set_aside, ..nothing })
}
