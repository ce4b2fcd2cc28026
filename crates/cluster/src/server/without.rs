//! A filesystem is used without its server, by a mount of its volume: no client hears of that.

use bytes::Bytes;
use thalweg_fs::session_table::SessionRecord;
use thalweg_fs::{FsError, SessionTable};

use super::session::{JournalInfo, Presence};
use super::session_record::{Recorded, decode, encode};
use crate::protocol::BATCH_SLOT;

/// What became of the sessions of a server's clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionsWithoutServer {
    /// They have ended: their clients cannot go on with what they cache.
    pub ended: usize,
    /// Their clients have journals, and are away from here on.
    pub away: usize,
}

/// Has the sessions on record end, before a filesystem is used without a server. Those of clients that may have changes in their journals
/// stay: each inode counts as used by others from here on. When this returns, that is durable.
///
/// # Errors
/// Those of the transactions; [`FsError::Damaged`].
pub async fn use_without_server(
    table: &dyn SessionTable,
) -> Result<SessionsWithoutServer, FsError> {
    let (records, mut ended) = (table.sessions().await?, Vec::new());
    if let Some(direct) = table.direct().filter(|_| !records.is_empty()) {
        let all: Vec<u64> = records.iter().map(|it| it.session).collect();
        direct.shut_out(&all).await?;
    }
    let mut away = 0;
    for record in &records {
        let Some(info) = lapsed(record) else {
            ended.push(record.session);
            continue;
        };
        away += 1;
        let applied = record.slots.iter().find(|it| it.slot == BATCH_SLOT);
        let position = applied.map_or(0, |it| it.outcome);
        let is_noted = record.held.all.is_some_and(|it| it.position == position);
        if !is_noted || !record.held.made.is_empty() || info != record.info {
            table.use_all(record.session, info, position).await?;
        }
    }
    if !ended.is_empty() {
        table.end_sessions(&ended).await?;
    }
    Ok(SessionsWithoutServer { ended: ended.len(), away })
}

/// The record of a session from here on, if its client may have changes in a journal: it is away.
fn lapsed(record: &SessionRecord) -> Option<Bytes> {
    let Recorded { identity, visitor, lease, journal } = decode(&record.info)?;
    let held = &record.held;
    let has_applied = record.slots.iter().any(|it| it.slot == BATCH_SLOT && it.outcome > 0);
    let may_have_changes = has_applied || !held.inodes.is_empty() || !held.numbers.is_empty();
    let journal = journal.filter(|_| may_have_changes)?;
    let journal = JournalInfo { presence: Presence::Lapsed, ..journal };
    Some(encode(&identity, &visitor, lease, Some(journal)))
}
