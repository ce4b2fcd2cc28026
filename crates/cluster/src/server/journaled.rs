//! The journals of clients: how a client goes on that has rebooted.
//!
//! A client with a journal numbers its mutations. The record of its last batch, which is a part of the batch's transaction, has
//! the position of the last mutation. So a client that has rebooted learns which mutations of its journal the server has.
//!
//! Until the client is back, its session goes on, and nothing that it may have changed in its journal is another client's.

use thalweg_fs::FsError;

use super::session::Session;
use super::sessions::encode;
use super::stages::Stages;
use crate::protocol::JournalMount;

/// A client attaches a session again that goes on, perhaps after a reboot. Whether it may: an earlier incarnation may not, which is
/// another mount of the same journal or of a copy.
///
/// # Errors
/// Those of the transaction.
pub(super) async fn take_over(
    stages: &Stages,
    session: &Session,
    journal: Option<JournalMount>,
) -> Result<bool, FsError> {
    let latest = *session.journal.incarnation.lock();
    let (before, next) = match (latest, journal) {
        (Some(latest), Some(JournalMount::Rebooted)) => (latest, latest + 1),
        (Some(latest), Some(JournalMount::Incarnation(own))) => return Ok(own == latest),
        (latest, journal) => return Ok(latest.is_none() && journal.is_none()),
    };
    let info = encode(session.id, &session.visitor, stages.options.lease, Some(next));
    let table = stages.files.session_table().ok_or(FsError::NotSupported)?;
    table.set_session(session.serial, info).await?;
    {
        let mut incarnation = session.journal.incarnation.lock();
        if *incarnation != Some(before) {
            // Another connection was faster; both are the client's, or one is a copy's.
            return Ok(false);
        }
        *incarnation = Some(next);
    }
    tracing::info!(client = session.visitor.name, "a client with a journal has rebooted");
    for file in session.handles.take() {
        stages.open_files.close(session.serial, file).await;
    }
    Ok(true)
}
