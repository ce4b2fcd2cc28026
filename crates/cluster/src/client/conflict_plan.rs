//! Which mutations of a journal are skipped is on record at the server before any of them is: a client that crashes while it writes the
//! others back finds there what is still to become conflict copies.
//!
//! The record is a file beside the lists of conflict sets. The session of the journal writes it: its calls recall nothing from itself.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_fs::ranges::Ranges;
use thalweg_fs::{Attributes, FsError, Ino, NewNode, Node, Rename, WriteAt, WriteHow};
use uuid::Uuid;

use super::error::{expect_answer, unexpected};
use super::stages::Stages;
use crate::conflicts::DIRECTORY;
use crate::protocol::{Answer, Request};

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
    stages: &'a Stages,
    session: Uuid,
}

impl<'a> PlanFile<'a> {
    pub(super) fn new(stages: &'a Stages, session: Uuid) -> PlanFile<'a> {
        PlanFile { stages, session }
    }

    fn name(&self) -> Bytes {
        format!("{}.plan", self.session).into()
    }

    async fn call(
        &self,
        request: Request,
        payload: Vec<Bytes>,
    ) -> Result<(Answer, Bytes), FsError> {
        let (reply, payload) = self.stages.rpc.call(request, payload, |_, _| {}).await?;
        Ok((reply.answer, payload))
    }

    async fn lookup(&self, parent: Ino, name: Bytes) -> Result<Option<Attributes>, FsError> {
        match self.call(Request::Lookup { parent, name }, Vec::new()).await {
            Ok((Answer::Inode(found), _)) => Ok(Some(found)),
            Ok((Answer::Absent, _)) | Err(FsError::NotFound) => Ok(None),
            Ok(_) => unexpected(),
            Err(error) => Err(error),
        }
    }

    /// The directory of the lists, if it is there.
    async fn directory(&self) -> Result<Option<Ino>, FsError> {
        let root = self.stages.base.session.theirs(Ino::ROOT);
        Ok(self.lookup(root, DIRECTORY.into()).await?.map(|found| found.ino))
    }

    async fn make(
        &self,
        parent: Ino,
        name: Bytes,
        (node, mode): (Node, u16),
    ) -> Result<Ino, FsError> {
        let new = NewNode { node, mode, umask: 0, uid: 0, gid: 0 };
        let (answer, _) = self.call(Request::Create { parent, name, new }, Vec::new()).await?;
        expect_answer!(answer, Answer::Inode(made) => made.ino)
    }

    /// What is skipped, as the last attempt has left it; nothing if none has come so far.
    pub(super) async fn load(&self) -> Result<Ranges, FsError> {
        let Some(directory) = self.directory().await? else { return Ok(Ranges::default()) };
        let Some(file) = self.lookup(directory, self.name()).await? else {
            return Ok(Ranges::default());
        };
        let mut text = Vec::new();
        while (text.len() as u64) < file.size {
            let (ino, offset) = (file.ino, text.len() as u64);
            let request = Request::Read { ino, offset, len: BYTES_AT_ONCE as u32, pages: false };
            let (_, some) = self.call(request, Vec::new()).await?;
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
        let directory = match self.directory().await? {
            Some(found) => found,
            None => {
                let root = self.stages.base.session.theirs(Ino::ROOT);
                self.make(root, DIRECTORY.into(), (Node::Directory, 0o700)).await?
            }
        };
        let new: Bytes = format!("{}.plan.new", self.session).into();
        if self.lookup(directory, new.clone()).await?.is_some() {
            self.unlink(directory, new.clone()).await?;
        }
        let ino = self.make(directory, new.clone(), (Node::File, 0o600)).await?;
        let skipped = skipped.iter().map(|it| (it.start, it.end)).collect();
        let plan = Plan { format: FORMAT, session: self.session, skipped };
        let mut text = Bytes::from(serde_json::to_vec(&plan).expect("memory takes a plan"));
        let mut offset = 0;
        while !text.is_empty() {
            let some = text.split_to(text.len().min(BYTES_AT_ONCE));
            let len = some.len() as u64;
            let at = WriteAt::Offset(offset);
            let request = Request::Write { ino, at, how: WriteHow::default() };
            self.call(request, vec![some]).await?;
            offset += len;
        }
        // The file has its bytes before it has its name.
        self.stages.rpc.make_durable().await?;
        let (from, to) = ((directory, new), (directory, self.name()));
        let request = Request::Rename { from, to, how: Rename::Replace, targets: [None, None] };
        self.call(request, Vec::new()).await?;
        self.stages.rpc.make_durable().await
    }

    async fn unlink(&self, parent: Ino, name: Bytes) -> Result<(), FsError> {
        self.call(Request::Unlink { parent, name, target: None }, Vec::new()).await.map(drop)
    }

    /// Nothing of the journal is left to be skipped.
    pub(super) async fn remove(&self) -> Result<(), FsError> {
        let Some(directory) = self.directory().await? else { return Ok(()) };
        match self.unlink(directory, self.name()).await {
            Err(FsError::NotFound) => Ok(()),
            removed => removed,
        }
    }
}
