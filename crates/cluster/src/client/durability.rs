//! How far the changes of a file have come: from this client to its journal, to the server's drives, and to the replicas of its
//! volume.
//!
//! A change that the server has answered, and not made durable, is still a change in memory: it survives a crash of the server
//! or of this client, and not of both.

use std::time::Duration;

use thalweg_fs::{FsError, Ino, Level};

use super::base::ClientBase;
use super::error::expect_answer;
use super::stages::Stages;
use crate::protocol::{Answer, Request};

const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How far the changes of this client have come: to its memory, to its journal or to the server.
fn own_level(stages: &Stages, ino: Ino) -> Result<Level, FsError> {
    // Before the rest: a mutation that is made meanwhile counts for one of the looks that follow.
    let is_journaled = is_journaled(stages);
    let is_durable = stages.base.inodes.with(ino, |node| {
        let is_unsent = node.delegation.unsent() > 0;
        is_unsent.then(|| node.delegation.has_ended())
    });
    // What was sent is kept before it counts as sent.
    let is_durable = is_durable.flatten().unwrap_or_else(|| !stages.base.replay_log.has(ino));
    // What is lost is noted before it counts as sent, too.
    if let Some(error) = stages.base.losses.untold(ino) {
        return Err(error);
    }
    Ok(match (is_durable, is_journaled) {
        (true, _) => Level::Server,
        (false, true) => Level::Journal,
        (false, false) => Level::Memory,
    })
}

/// Whether the journal has all that this client has made, and what that depends on survives too: calls of programs are in no journal.
fn is_journaled(stages: &Stages) -> bool {
    let ClientBase { queue, journal, replay_log, .. } = &*stages.base;
    // In this order: a journal that fails is gone before its mutations count as those of none.
    let last = queue.last();
    queue.is_journaled(last)
        && journal.live().is_some_and(|journal| journal.copies.have(last))
        && !replay_log.has_calls()
}

pub(super) async fn level(stages: &Stages, ino: Ino) -> Result<Level, FsError> {
    let own = own_level(stages, ino)?;
    if own == Level::Server && !stages.base.inodes.is_unsent(ino) {
        return level_at_server(stages, ino, None).await;
    }
    Ok(own)
}

async fn level_at_server(
    stages: &Stages,
    ino: Ino,
    wait: Option<(Level, u32)>,
) -> Result<Level, FsError> {
    let (answer, _) = stages.request(Request::Level { ino, wait }).await?;
    expect_answer!(answer, Answer::Level(level) => level)
}

pub(super) async fn wait_for(
    stages: &Stages,
    ino: Ino,
    level: Level,
    within: Duration,
) -> Result<bool, FsError> {
    if level == Level::Memory {
        return own_level(stages, ino).map(|_| true);
    }
    if !own_level(stages, ino).is_ok_and(|own| own >= level.min(Level::Server)) {
        sync_inode(stages, ino, false).await?;
    }
    // Where there is no journal, or it does not take them, the server has to.
    if level == Level::Journal && own_level(stages, ino)? >= level {
        return Ok(true);
    }
    let level = level.max(Level::Server);
    if own_level(stages, ino)? < Level::Server {
        // It is in the journal; or it is durable, and the server has not said up to which version.
        stages.writeback.sync(Request::SyncAll).await?;
    }
    if stages.base.inodes.is_unsent(ino) {
        if level == Level::Server {
            return Ok(true);
        }
        stages.writeback.sync(Request::SyncAll).await?;
    }
    let start = stages.base.now();
    loop {
        let left = within.saturating_sub(stages.base.now().since(start));
        let millis = left.min(LONGEST_WAIT).as_millis() as u32;
        let come = level_at_server(stages, ino, Some((level, millis))).await?;
        if come >= level {
            return Ok(true);
        }
        if left <= LONGEST_WAIT {
            return Ok(false);
        }
    }
}

/// Returns when all changes of an inode survive a crash of the server.
pub(super) async fn sync_inode(
    stages: &Stages,
    ino: Ino,
    content_only: bool,
) -> Result<(), FsError> {
    let records = &stages.size_records;
    let synced = match records.sync(ino).await {
        Ok(false) => {
            let before = stages.base.grant_of(ino);
            let request = Request::Sync { ino, content_only };
            let synced = stages.writeback.sync_here(Some(ino), request).await;
            if let (Ok(()), Some(before)) = (&synced, before) {
                records.after_sync(ino, before).await;
            }
            synced
        }
        synced => synced.map(drop),
    };
    stages.base.losses.report(ino).map_or(synced, Err)
}
