//! Which mutations of a journal are skipped is on record at the server before any of them is: a client that crashes while it writes the
//! others back finds there what is still to become conflict copies.
//!
//! The record is a file beside the lists of conflict sets. The client writes it for itself, whatever its users may do
//! ([`conflict_folders`](super::conflict_folders)).

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_fs::ranges::Ranges;
use thalweg_fs::{FsError, Ino, NewNode, Node, Rename, WriteAt, WriteHow};
use uuid::Uuid;

use super::conflict_folders::ConflictFolders;
use super::stages::Stages;
use crate::conflicts::plan_names;
use crate::protocol::Request;

/// The version of the format.
const FORMAT: u32 = 1;
/// Bytes that one call reads or writes.
const BYTES_AT_ONCE: usize = 512 << 10;
/// The record is written so often when servers crash meanwhile.
const ATTEMPTS: u32 = 8;

/// What the file has, as JSON.
#[derive(Serialize, Deserialize)]
struct Plan {
    format: u32,
    session: Uuid,
    /// The positions that are skipped: the first one of each range, and the one behind its last.
    skipped: Vec<(u64, u64)>,
}

/// The record of what is skipped of the journal of a session.
pub(super) struct PlanFile<'a> {
    folders: ConflictFolders<'a>,
    session: Uuid,
}

impl<'a> PlanFile<'a> {
    pub(super) fn new(stages: &'a Stages, session: Uuid) -> PlanFile<'a> {
        PlanFile { folders: ConflictFolders { stages }, session }
    }

    /// Its name, and that of the next one.
    fn names(&self) -> [Bytes; 2] {
        plan_names(self.session)
    }

    /// What is skipped, as the last attempt has left it; nothing if none has come so far.
    pub(super) async fn load(&self) -> Result<Ranges, FsError> {
        let Some(folder) = self.folders.folder().await? else { return Ok(Ranges::default()) };
        let [name, _] = self.names();
        let Some(file) = self.folders.lookup(folder, name).await? else {
            return Ok(Ranges::default());
        };
        let mut text = Vec::new();
        while (text.len() as u64) < file.size {
            let (ino, offset) = (file.ino, text.len() as u64);
            let request = Request::Read { ino, offset, len: BYTES_AT_ONCE as u32, pages: false };
            let (_, some) = self.folders.call(request, Vec::new()).await?;
            if some.is_empty() {
                break;
            }
            text.extend_from_slice(&some);
        }
        let damaged = || FsError::Damaged("the plan of a conflict set".to_owned());
        let plan: Plan = serde_json::from_slice(&text).map_err(|_| damaged())?;
        if plan.format != FORMAT || plan.session != self.session {
            return Err(damaged());
        }
        Ok(plan.skipped.into_iter().map(|(start, end)| start..end).collect())
    }

    /// Replaces what is on record. When this returns, it is durable.
    pub(super) async fn save(&self, skipped: &Ranges) -> Result<(), FsError> {
        let mut attempts = 1;
        loop {
            match self.try_save(skipped).await {
                // A server that starts again may have made a call whose answer was lost.
                Err(FsError::Exists | FsError::NotFound | FsError::Stale)
                    if attempts < ATTEMPTS => {}
                Ok(()) if self.load().await? != *skipped && attempts < ATTEMPTS => {}
                saved => return saved,
            }
            attempts += 1;
        }
    }

    async fn try_save(&self, skipped: &Ranges) -> Result<(), FsError> {
        let folder = self.folders.make_folder().await?;
        let [name, next] = self.names();
        if self.folders.lookup(folder, next.clone()).await?.is_some() {
            self.unlink(folder, next.clone()).await?;
        }
        let new = NewNode { node: Node::File, mode: 0o600, umask: 0, uid: 0, gid: 0 };
        let ino = self.folders.make(folder, next.clone(), new).await?;
        let skipped = skipped.iter().map(|it| (it.start, it.end)).collect();
        let plan = Plan { format: FORMAT, session: self.session, skipped };
        let mut text = Bytes::from(serde_json::to_vec(&plan).expect("memory takes a plan"));
        let mut offset = 0;
        while !text.is_empty() {
            let some = text.split_to(text.len().min(BYTES_AT_ONCE));
            let len = some.len() as u64;
            let at = WriteAt::Offset(offset);
            let request = Request::Write { ino, at, how: WriteHow::default() };
            self.folders.call(request, vec![some]).await?;
            offset += len;
        }
        // The file has its bytes before it has its name.
        self.folders.stages.rpc.make_durable().await?;
        let (from, to) = ((folder, next), (folder, name));
        let request = Request::Rename { from, to, how: Rename::Replace, targets: [None, None] };
        self.folders.call(request, Vec::new()).await?;
        self.folders.stages.rpc.make_durable().await
    }

    async fn unlink(&self, parent: Ino, name: Bytes) -> Result<(), FsError> {
        let request = Request::Unlink { parent, name, target: None };
        self.folders.call(request, Vec::new()).await.map(drop)
    }

    /// Nothing of the journal is left to be skipped.
    pub(super) async fn remove(&self) -> Result<(), FsError> {
        let Some(folder) = self.folders.folder().await? else { return Ok(()) };
        let [name, _] = self.names();
        match self.unlink(folder, name).await {
            Err(FsError::NotFound) => Ok(()),
            removed => removed,
        }
    }
}
