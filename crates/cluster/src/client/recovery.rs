//! After a crash of the client: its journal is written back, in its order and as a part of the session that made it.
//!
//! The session goes on with the next incarnation of its client, which the server counts. Another client that wants a delegated file waits for that as
//! for any recall. Nothing of the journal is forgotten before the server has all of it, so a crash at any point repeats this.
//!
//! If the client was away for so long that other clients went on, the server refuses changes of what they have used. Write-back stops at
//! the first of these, and the rest becomes a set of conflict copies.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_env::connection::Connector;
use thalweg_fs::FsError;
use thalweg_store::device::DeviceRef;
use thalweg_store::journal::JournalError;
use uuid::Uuid;

use super::base::ClientBase;
use super::conflicts::{Keeper, is_conflict};
use super::copies::CopyError;
use super::error::AttachError;
use super::filesystem::Client;
use super::inode_changes::Rest;
use super::journal::{ClientJournal, FoundJournal};
use super::journal_slot::{Kept, Reopen};
use super::options::{OnConflict, Options};
use super::stages::Stages;
use crate::protocol::{Answer, JournalMount, Request};

impl Client {
    /// Connects, and begins a session. The journal of an earlier mount is written back first.
    ///
    /// # Errors
    /// [`AttachError`].
    pub async fn connect(
        env: &Env,
        connector: Box<dyn Connector>,
        options: Options,
    ) -> Result<Client, AttachError> {
        connect(env, connector.into(), options).await.map(Client::of)
    }
}

pub(super) async fn connect(
    env: &Env,
    connector: Arc<dyn Connector>,
    mut options: Options,
) -> Result<Stages, AttachError> {
    let Some(device) = options.journal.take() else {
        return Stages::start(env, connector, ClientBase::new(env, options)).await;
    };
    // What it stored itself would be at the servers before it is in the journal.
    options.contents = None;
    let reopen = reopening(env, &connector, &options, device);
    let journal = reopen(Kept::Session).await?;
    let base = ClientBase::new(env, options);
    base.session.keep_journal(journal.session, JournalMount::Incarnation(1));
    base.queue.begin_journal(journal.room().size);
    base.journal.reopen_by(reopen);
    base.journal.begin(env, journal);
    Stages::start(env, connector, base).await
}

/// Opens the journal on a device for a mount, with its copies: when the client begins, and whenever the server has ended its session.
pub(super) fn reopening(
    env: &Env,
    connector: &Arc<dyn Connector>,
    options: &Options,
    device: DeviceRef,
) -> Reopen {
    let (env, connector, options) = (env.clone(), connector.clone(), options.clone());
    Arc::new(move |kept| {
        let (env, connector, options) = (env.clone(), connector.clone(), options.clone());
        let device = device.clone();
        Box::pin(async move {
            let journal = match kept {
                Kept::Session => recover(&env, &connector, &options, device).await?,
                Kept::Nothing(session) => begin_empty(&env, &options, session, device).await?,
            };
            attach_copies(&journal).await?;
            Ok(journal)
        })
    })
}

/// Attaches the copies of a journal that begins. A keeper that is away gets its copy later.
///
/// # Errors
/// [`AttachError::Keeper`]: a keeper does not let this client in.
async fn attach_copies(journal: &ClientJournal) -> Result<(), AttachError> {
    let attaching = journal.copies.links.iter().map(|link| async move {
        match journal.attach_copy(link).await {
            Ok(()) => {}
            Err(CopyError::NotPermitted(why)) => {
                return Err(AttachError::Keeper { keeper: link.name().to_owned(), why });
            }
            Err(error) => link.set_down(&error),
        }
        Ok(())
    });
    futures::future::try_join_all(attaching).await.map(drop)
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
    if let Some(session) = found.chain.session {
        let is_arrival = found.chain.arrives_from.is_some();
        match resume(env, connector, options, (session, false), &mut found).await {
            Ok(Resumed { stages: None, .. }) if is_arrival => return Err(AttachError::NotArrived),
            Ok(found) => resumed = found.stages,
            // The other machine has all of it.
            Err(AttachError::Moved) => {
                tracing::warn!("the last mount of the journal has moved to another machine")
            }
            Err(error) => return Err(error),
        }
    }
    // The journal is empty before the server forgets its position.
    let journal = found.begin(env, options.keepers.clone()).await.map_err(AttachError::journal)?;
    if let Some(stages) = resumed {
        stages.connections.close().await;
    }
    Ok(journal)
}

/// Begins a journal anew that has nothing of a session, which has ended.
///
/// # Errors
/// [`AttachError::Pending`] if it has something, [`AttachError::Journal`]; also if another mount has begun there.
async fn begin_empty(
    env: &Env,
    options: &Options,
    session: Uuid,
    device: DeviceRef,
) -> Result<ClientJournal, AttachError> {
    let found = FoundJournal::open(env, device).await.map_err(AttachError::journal)?;
    let mutations = found.mutations();
    let is_ours = found.chain.session == Some(session);
    if mutations > 0 || !is_ours {
        let why = "the server has ended the session that made them".to_owned();
        return Err(AttachError::Pending { mutations, why });
    }
    found.begin(env, options.keepers.clone()).await.map_err(AttachError::journal)
}

/// What became of a journal that was written back.
#[derive(Default)]
pub(super) struct Resumed {
    /// Its session goes on; `None` if that has ended. Then the journal has nothing, or it is a copy.
    pub(super) stages: Option<Stages>,
    /// Changes that the server did not have.
    pub(super) written: u64,
    /// Those of them that other clients have made impossible.
    pub(super) set_aside: u64,
}

/// Goes on with a session, and writes back what the journal has of it.
pub(super) async fn resume(
    env: &Env,
    connector: &Arc<dyn Connector>,
    options: &Options,
    (session, is_copy): (Uuid, bool),
    found: &mut FoundJournal,
) -> Result<Resumed, AttachError> {
    let (mutations, first) = (found.mutations(), found.chain.first);
    let runs = std::mem::take(&mut found.runs);
    let base = ClientBase::new(env, options.clone());
    base.session.keep_journal(session, JournalMount::Rebooted);
    base.queue.begin_recovery(first);
    base.queue.recover(runs);
    let stages = match Stages::start(env, connector.clone(), base).await {
        Ok(stages) => stages,
        Err(AttachError::Ended)
            if mutations == 0 || is_copy || found.chain.arrives_from.is_some() =>
        {
            return Ok(Resumed::default());
        }
        Err(AttachError::Ended) => {
            let why = "the server has ended the session that made them".to_owned();
            return Err(AttachError::Pending { mutations, why });
        }
        Err(error) => return Err(error),
    };
    let pending = |why: String| AttachError::Pending { mutations, why };
    let reached = stages.writeback.reached();
    // Nothing is sent that is not in the journal, whose last record stays. A copy may lack what was sent while its keeper was away.
    if !is_copy && reached >= found.chain.next {
        let why = "the server has later ones: this is an older copy of the journal".to_owned();
        return Err(pending(why));
    }
    // What the server has refused has a position there, too.
    if !is_copy && mutations > 0 && first > reached + 1 {
        let lost = first - reached - 1;
        let why = format!(
            "the server has lost {lost} changes before them: its volume is of an earlier time"
        );
        return Err(pending(why));
    }
    let mut set_aside = 0;
    if let Err(error) = stages.writeback.send(true).await {
        match stages.writeback.refused().filter(|(error, _)| is_conflict(error)) {
            Some((why, reached)) if options.on_conflict != OnConflict::Refuse => {
                let again = FoundJournal::open(env, found.device()).await;
                let runs = again.map_err(AttachError::journal)?.runs;
                let rest = Rest::of(runs, (reached + 1).saturating_sub(first));
                set_aside = rest.count() as u64;
                keep_rest(env, connector, &stages, rest, &why).await?;
            }
            _ => return Err(pending(error.to_string())),
        }
    }
    if let Some(error) = stages.base.losses.first() {
        return Err(pending(error.to_string()));
    }
    match stages.rpc.own(Request::SyncAll).await {
        Ok(Answer::Done) => {}
        Ok(_) => return Err(AttachError::lost("its answer does not fit the call")),
        Err(error) => return Err(pending(error.to_string())),
    }
    tracing::info!(mutations, "the journal was written back");
    let written = found.chain.next.saturating_sub(first.max(reached + 1));
    Ok(Resumed { stages: Some(stages), written, set_aside })
}

/// Other clients have made the rest of a journal impossible: keeps it in conflict copies, or drops it.
async fn keep_rest(
    env: &Env,
    connector: &Arc<dyn Connector>,
    journaled: &Stages,
    rest: Rest,
    why: &FsError,
) -> Result<(), AttachError> {
    journaled.writeback.set_aside();
    let options = &journaled.base.options;
    let (changes, files) = (rest.count(), rest.files());
    if options.on_conflict == OnConflict::Discard {
        tracing::error!(changes, files, %why, "changes of the journal are discarded, which others have made impossible");
        return Ok(());
    }
    let used = journaled.base.session.info().used;
    let used = used.iter().copied().collect();
    let base = ClientBase::new(env, Options { exclusive: None, ..options.clone() });
    let client = Client::of(Stages::start(env, connector.clone(), base).await?);
    let kept = Keeper::new(&client, journaled, &used, &options.host).keep(rest, why).await;
    client.close().await;
    let set = kept.map_err(|error| {
        let why = format!("no conflict copies can be made: {error}");
        AttachError::Pending { mutations: changes, why }
    })?;
    tracing::warn!(
        set = set.name, changes, files, %why,
        "others have used what the journal is about: the rest of it is in conflict copies"
    );
    Ok(())
}

impl AttachError {
    pub(super) fn journal(error: JournalError) -> AttachError {
        AttachError::Journal(Arc::new(error))
    }
}
