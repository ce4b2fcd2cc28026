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

/// A client attaches a session again that goes on. One with a later incarnation of its journal has rebooted. Whether it may: an
/// earlier incarnation may not, which is another mount of the same journal or of a copy.
///
/// # Errors
/// Those of the transaction.
pub(super) async fn take_over(
    stages: &Stages,
    session: &Session,
    journal: Option<u64>,
) -> Result<bool, FsError> {
    let before = *session.journal.incarnation.lock();
    let (Some(before), Some(now)) = (before, journal) else { return Ok(before == journal) };
    if now <= before {
        return Ok(now == before);
    }
    let info = encode(session.id, &session.visitor, stages.options.lease, journal);
    let table = stages.files.session_table().ok_or(FsError::NotSupported)?;
    table.set_session(session.serial, info).await?;
    {
        let mut incarnation = session.journal.incarnation.lock();
        if incarnation.is_some_and(|latest| latest >= now) {
            return Ok(false);
        }
        *incarnation = journal;
    }
    tracing::info!(client = session.visitor.name, "a client with a journal has rebooted");
    for file in session.handles.take() {
        stages.open_files.close(session.serial, file).await;
    }
    Ok(true)
}
