//! The journals of clients: how a client goes on that has rebooted, or was away.
//!
//! A client with a journal numbers its mutations. The record of its last batch, which is a part of the batch's transaction, has
//! the position of the last mutation. So a client that has rebooted learns which mutations of its journal the server has.
//!
//! Until the client is back, its session goes on, and nothing that it may have changed in its journal is another client's. If it
//! stays away while others want that, its journal *lapses*: they go on, and before they use an inode of it, that is put on record.
//! When the client comes back it writes back what its journal has of inodes that no other client has used; the rest is refused.

use std::sync::Arc;

use thalweg_fs::FsError;
use uuid::Uuid;

use super::base::resolve;
use super::options::Visitor;
use super::session::{JournalInfo, Presence, Session};
use super::session_record::encode;
use super::stages::Stages;
use crate::protocol::JournalMount;

/// A client attaches a session again that goes on, perhaps after a reboot. Whether it may: an earlier incarnation may not, which is
/// another mount of the same journal or of a copy; nor may one that has not rebooted since the journal has lapsed, since it has
/// acted on what it cached.
///
/// # Errors
/// Those of the transactions.
pub(super) async fn take_over(
    stages: &Stages,
    session: &Arc<Session>,
    visitor: &Visitor,
    journal: Option<JournalMount>,
) -> Result<bool, FsError> {
    let Some(identity) = session.identity().attached_by(&session.visitor, visitor) else {
        return Ok(false);
    };
    stages.sessions.left(session.serial).await;
    // Nothing is noted of a client that is back.
    let _turn = session.journal.noting.lock().await;
    let before = match (session.journal.info(), journal) {
        (Some(latest), Some(JournalMount::Rebooted)) => latest,
        (Some(latest), Some(JournalMount::Incarnation(own))) => {
            return Ok(own == latest.incarnation && latest.presence != Presence::Lapsed);
        }
        (latest, journal) => return Ok(latest.is_none() && journal.is_none()),
    };
    let presence = match before.presence {
        Presence::Present => Presence::Present,
        Presence::Lapsed | Presence::Returned => Presence::Returned,
    };
    let next = JournalInfo { incarnation: before.incarnation + 1, presence };
    let table = stages.files.session_table().ok_or(FsError::NotSupported)?;
    if before.presence == Presence::Lapsed {
        match resolve(&*stages.files, &session.visitor.path).await {
            Ok(path) if path == session.path => {}
            // What its journal is about may lie elsewhere.
            Ok(_) | Err(FsError::NotFound | FsError::NotDirectory) => return Ok(false),
            Err(error) => return Err(error),
        }
        let records = table.sessions().await?.into_iter();
        let Some(record) = records.rev().find(|it| it.session == session.serial) else {
            return Ok(false);
        };
        stages.sessions.know_held(session, &record.held);
    }
    let info = encode(&identity, &session.visitor, stages.options.lease, Some(next));
    table.set_session(session.serial, info).await?;
    if session.identity().is_on_its_way() {
        // The other machine goes on if a crash undoes that it has handed the session over.
        stages.files.sync_all().await?;
    }
    // Otherwise another connection was faster; both are the client's, or one is a copy's.
    if !session.journal.reboot(before, next) {
        return Ok(false);
    }
    session.set_identity(identity);
    tracing::info!(client = session.client(), ?presence, "a client with a journal has rebooted");
    for file in session.handles.take() {
        stages.open_files.close(session.serial, file).await;
    }
    Ok(true)
}

/// A client hands its session over to the one on another machine that its mount moves to: the session has another name, which that one knows.
/// Returns when that is durable, so that no crash makes the session both theirs.
///
/// # Errors
/// [`FsError::Invalid`] for a session that cannot move. After any other one it may have moved: the client attaches it again to learn that.
pub(super) async fn hand_over(
    stages: &Stages,
    session: &Arc<Session>,
    to: Uuid,
) -> Result<(), FsError> {
    let _turn = session.journal.noting.lock().await;
    let present = session.journal.info().filter(|it| it.presence == Presence::Present);
    let before = present.ok_or(FsError::Invalid("only a mount with a journal moves"))?;
    let table = stages.files.session_table().ok_or(FsError::NotSupported)?;
    if to.is_nil() || stages.sessions.get(to).is_some() {
        return Err(FsError::Invalid("a session that is handed over has a name of its own"));
    }
    session.journal.batches_ended().await;
    let next = JournalInfo { incarnation: before.incarnation + 1, ..before };
    let identity = session.identity().handed_over(to);
    let info = encode(&identity, &session.visitor, stages.options.lease, Some(next));
    table.set_session(session.serial, info).await?;
    if !session.journal.reboot(before, next) {
        return Err(FsError::Invalid("the session lapses while it is handed over"));
    }
    // Here as on record: no client learns of it before it is durable.
    stages.sessions.rename(session, identity);
    stages.files.sync_all().await?;
    tracing::info!(client = session.client(), "a client has handed its session over");
    Ok(())
}
