//! An `fsync` of a file that grows, without the server: this client stores the last bytes together with how the file ends
//! ([`SizeRecord`]). The server hears of it later; should this client end before, the server looks for the size record.
//!
//! A size record counts if it is further than the size that the server has. So the file has to be this client's alone, and since it is,
//! the server must have made everything durable once that was known of the file; what follows are bytes only, and some of
//! them are behind the former end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_env::Time;
use thalweg_fs::contents::SizeRecord;
use thalweg_fs::{FsError, Ino};

use super::base::ClientBase;
use super::delegated::{GrantNumber, SizeRecordState};
use super::direct_io::{DirectIo, ReachedContents};
use super::inodes::Node;
use super::queue::Growth;
use super::rpc::Rpc;
use super::writeback::Writeback;
use crate::protocol::{Answer, Request};

const MAX_FILES: usize = 64;
/// An `fsync` of a file that is longer than at the `fsync` before counts for this; after so many of them in a row the server is
/// asked. It has to sync for that.
const GROWTHS: u32 = 3;
/// The server is asked again after so long: the file may have a quota now.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

/// How a file is before an `fsync` at the server: the grant by which it is this client's alone, and its size.
pub(super) type BeforeSync = (Option<GrantNumber>, u64);

/// The bytes and the size record of an `fsync`.
struct NewSizeRecord {
    reached: ReachedContents,
    growth: Growth,
    size_record: SizeRecord,
}

pub(super) struct SizeRecords {
    base: Arc<ClientBase>,
    rpc: Arc<Rpc>,
    direct_io: Arc<DirectIo>,
    writeback: Arc<Writeback>,
    /// Files with stored size records, the oldest first. Lock order: before a stripe.
    files: Mutex<VecDeque<Ino>>,
}

/// Whether an `fsync` of a file at the server is followed by the question whether its size record may be stored.
fn counts(node: &mut Node, (before, size): BeforeSync, now: Time) -> bool {
    let grant = node.delegation.grant_number();
    let is_same = grant.is_some() && grant == before;
    let own = &mut node.delegation;
    let (next, asks) = match own.extra().size_record {
        SizeRecordState::Allowed { asked, generation, .. } => {
            let grant = before.filter(|_| is_same);
            let asks = is_same && now.since(asked) >= ASKED_AGAIN;
            (SizeRecordState::Allowed { generation, grant, asked }, asks)
        }
        SizeRecordState::Synced { size: last, growths } if is_same && last < size => {
            let growths = growths + 1;
            let asks = growths >= GROWTHS && own.extra().write_bound > 0;
            (SizeRecordState::Synced { size, growths }, asks)
        }
        SizeRecordState::Refused => return false,
        SizeRecordState::Synced { .. } | SizeRecordState::Unknown => {
            (SizeRecordState::Synced { size, growths: 0 }, false)
        }
    };
    own.extra_mut().size_record = next;
    asks
}

impl SizeRecords {
    pub(super) fn new(
        base: Arc<ClientBase>,
        rpc: Arc<Rpc>,
        direct_io: Arc<DirectIo>,
        writeback: Arc<Writeback>,
    ) -> SizeRecords {
        SizeRecords { base, rpc, direct_io, writeback, files: Mutex::default() }
    }

    pub(super) fn end_session(&self) {
        self.files.lock().clear();
    }

    /// What is to be stored so that a file ends where it does here.
    fn next(&self, ino: Ino, reached: ReachedContents, now: Time) -> Option<NewSizeRecord> {
        let growth = self.base.queue.growth_of(ino)?;
        let generation = reached.generation;
        let end = |node: &mut Node| {
            let grant = node.delegation.grant_number()?;
            let attributes = node.cached.attributes.filter(|_| !node.cached.is_changing())?;
            let kept = node.delegation.extra().size_record;
            let SizeRecordState::Allowed { asked, .. } = kept else { return None };
            let wanted = SizeRecordState::Allowed { generation, grant: Some(grant), asked };
            let is_kept = kept == wanted && now.since(asked) < ASKED_AGAIN;
            let is_in_reach = attributes.size <= node.delegation.extra().write_bound;
            // What was written since the growth was looked at is not part of it.
            let is_whole = node.delegation.unsent() as usize == growth.mutations;
            let size_record = SizeRecord { end: attributes.size, modified: attributes.modified };
            (is_kept && is_in_reach && is_whole && growth.mutations > 0).then_some(size_record)
        };
        let size_record = self.base.inodes.with(ino, end).flatten()?;
        Some(NewSizeRecord { reached, growth, size_record })
    }

    /// Makes a file durable by storing its size record; whether that was possible.
    pub(super) async fn sync(self: &Arc<Self>, ino: Ino) -> Result<bool, FsError> {
        let is_kept = self.base.inodes.is(ino, |node| {
            let is_allowed =
                matches!(node.delegation.extra().size_record, SizeRecordState::Allowed { .. });
            is_allowed && node.delegation.unsent() > 0
        });
        if !is_kept {
            return Ok(false);
        }
        // Batches that are sent meanwhile would have bytes stored at the same time.
        let turn = self.writeback.hold().await;
        let now = self.base.now();
        let next = self.direct_io.contents().and_then(|it| self.next(ino, it, now));
        // What the server has of it, and has not made durable, may be more than its size.
        let Some(next) = next.filter(|_| !self.base.replay_log.has(ino)) else {
            return Ok(false);
        };
        if self.base.inodes.is(ino, |node| node.delegation.has_ended()) {
            return Ok(true);
        }
        let records = self.clone();
        let storing = async move {
            let outcome = records.store(ino, next).await;
            // Nothing else is sent before.
            drop(turn);
            outcome
        };
        self.base.run_apart(storing).await
    }

    async fn store(&self, ino: Ino, next: NewSizeRecord) -> Result<bool, FsError> {
        let NewSizeRecord { reached, growth: Growth { writes, mutations }, size_record } = next;
        let ReachedContents { contents, generation, .. } = reached;
        if let Err(error) = contents.write_with_size_record(ino, &writes, size_record).await {
            self.direct_io.leave(generation, &error).await?;
            return Ok(false);
        }
        // The changes of an earlier session are gone.
        if self.base.session.generation() != generation {
            return Ok(false);
        }
        self.base.queue.are_stored(mutations);
        self.base.inodes.with(ino, |node| node.delegation.end(mutations));
        Ok(true)
    }

    /// A file is durable by an `fsync` at the server, as it was before. When that has happened again and again while it grew, the
    /// server is asked whether the size record may be stored instead.
    pub(super) async fn after_sync(&self, ino: Ino, before: BeforeSync) {
        let asked = self.base.now();
        if !self.base.inodes.is(ino, |node| counts(node, before, asked)) {
            return;
        }
        let Some(reached) = self.direct_io.contents() else { return };
        let generation = reached.generation;
        let Some(instead_of) = self.leave_one(ino) else { return };
        let answer = self.rpc.own(Request::KeepSizeRecord { ino, instead_of }).await;
        if self.base.session.generation() != generation {
            return;
        }
        let next = if matches!(answer, Ok(Answer::Number(1))) {
            let mut files = self.files.lock();
            if !files.contains(&ino) {
                files.push_back(ino);
            }
            SizeRecordState::Allowed { generation, grant: before.0, asked }
        } else {
            SizeRecordState::Refused
        };
        self.base.inodes.with(ino, |node| node.delegation.extra_mut().size_record = next);
    }

    /// Makes room for a file: the file that is evicted for it, if there are too many. `None` if each of the other files has unsent changes.
    fn leave_one(&self, ino: Ino) -> Option<Option<Ino>> {
        let mut files = self.files.lock();
        if files.len() < MAX_FILES || files.contains(&ino) {
            return Some(None);
        }
        let at = files.iter().position(|ino| !self.base.inodes.is_unsent(*ino))?;
        let left = files.remove(at)?;
        drop(files);
        let unknown = SizeRecordState::Unknown;
        self.base.inodes.with(left, |node| node.delegation.extra_mut().size_record = unknown);
        Some(Some(left))
    }
}
