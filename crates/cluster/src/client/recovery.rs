//! After a crash of the client: its journal is written back, in its order and as a part of the session that made it.
//!
//! The session goes on with the next incarnation of its client, which the server counts. Another client that wants a delegated file waits for that as
//! for any recall. Nothing of the journal is forgotten before the server has all of it, so a crash at any point repeats this.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_env::connection::Connector;
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::JournalError;
use uuid::Uuid;

use super::base::ClientBase;
use super::error::AttachError;
use super::journal::{ClientJournal, FoundJournal};
use super::options::Options;
use super::stages::Stages;
use crate::protocol::{Answer, JournalMount, Request};

/// Connects, and begins a session. The journal of an earlier mount is written back first.
///
/// # Errors
/// [`AttachError`].
pub(super) async fn connect(
    env: &Env,
    connector: Box<dyn Connector>,
    mut options: Options,
) -> Result<Stages, AttachError> {
    let connector: Arc<dyn Connector> = connector.into();
    let Some(device) = options.journal.take() else {
        return Stages::start(env, connector, ClientBase::new(env, options)).await;
    };
    // What it stored itself would be at the servers before it is in the journal.
    options.contents = None;
    let journal = recover(env, &connector, &options, device).await?;
    let base = ClientBase::new(env, options);
    base.session.keep_journal(journal.session, JournalMount::Incarnation(1));
    base.queue.begin_journal();
    base.journal.begin(journal);
    Stages::start(env, connector, base).await
}

/// Opens a journal for a mount, after everything that it has was written back.
///
/// # Errors
/// [`AttachError::Journal`], [`AttachError::Pending`] with the journal as it was; those of the connection.
async fn recover(
    env: &Env,
    connector: &Arc<dyn Connector>,
    options: &Options,
    device: DeviceRef,
) -> Result<ClientJournal, AttachError> {
    let mut found = FoundJournal::open(env, device).await.map_err(AttachError::journal)?;
    let mut resumed = None;
    if let Some(session) = found.session {
        resumed = resume(env, connector, options, session, &mut found).await?;
    }
    // The journal is empty before the server forgets its position.
    let journal = found.begin(env.uuid()).await.map_err(AttachError::journal)?;
    if let Some(stages) = resumed {
        stages.connections.close().await;
    }
    Ok(journal)
}

/// Goes on with a session, and writes back what the journal has of it; `None` if it has nothing, and the session has ended.
async fn resume(
    env: &Env,
    connector: &Arc<dyn Connector>,
    options: &Options,
    session: Uuid,
    found: &mut FoundJournal,
) -> Result<Option<Stages>, AttachError> {
    let mutations = found.mutations();
    let runs = std::mem::take(&mut found.runs);
    let base = ClientBase::new(env, options.clone());
    base.session.keep_journal(session, JournalMount::Rebooted);
    base.queue.recover(found.first, runs);
    let stages = match Stages::start(env, connector.clone(), base).await {
        Ok(stages) => stages,
        Err(AttachError::Ended) if mutations == 0 => return Ok(None),
        Err(AttachError::Ended) => {
            let why = "the server has ended the session that made them".to_owned();
            return Err(AttachError::Pending { mutations, why });
        }
        Err(error) => return Err(error),
    };
    let pending = |why: String| AttachError::Pending { mutations, why };
    let sent = stages.writeback.send(true).await;
    sent.map_err(|error| pending(error.to_string()))?;
    if let Some(error) = stages.base.losses.first() {
        return Err(pending(error.to_string()));
    }
    match stages.rpc.own(Request::SyncAll).await {
        Ok(Answer::Done) => {}
        Ok(_) => return Err(AttachError::lost("its answer does not fit the call")),
        Err(error) => return Err(pending(error.to_string())),
    }
    tracing::info!(mutations, "the journal was written back");
    Ok(Some(stages))
}

impl AttachError {
    fn journal(error: JournalError) -> AttachError {
        AttachError::Journal(Arc::new(error))
    }
}
