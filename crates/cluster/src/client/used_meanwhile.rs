//! What other clients have used of what a journal may change, while its client was away.

use thalweg_env::HashMap;
use thalweg_fs::session_table::AllUsed;
use thalweg_fs::{Attributes, FsError, Ino};

use super::stages::Stages;
use crate::protocol::{Answer, MAX_CLAIMS, Request, UsedInode, decode_list};

/// What was used.
#[derive(Debug, Default)]
pub(super) struct UsedMeanwhile {
    pub(super) inodes: HashMap<Ino, UsedInode>,
    /// Beside these each inode that was there when the filesystem was used without a server.
    pub(super) all: Option<AllUsed>,
}

impl UsedMeanwhile {
    /// Asks the server; with how much of a message its answer takes.
    pub(super) async fn ask(stages: &Stages) -> Result<(UsedMeanwhile, usize), FsError> {
        let (reply, list) = stages.rpc.call(Request::UsedMeanwhile, Vec::new(), |_, _| {}).await?;
        let Answer::Used(all) = reply.answer else {
            return Err(FsError::Invalid("its answer does not fit the call"));
        };
        let used = decode_list::<UsedInode>(&list, MAX_CLAIMS)?;
        let inodes = used.into_iter().map(|it| (it.ino, it)).collect();
        Ok((UsedMeanwhile { inodes, all }, list.len()))
    }

    /// Whether a file may have been changed by another client or without a server, which has these attributes now, and the client knows by this number.
    pub(super) fn may_be_changed(&self, ino: Ino, now: &Attributes) -> bool {
        match (self.inodes.get(&ino), self.all) {
            (Some(it), _) => it.changed != now.changed,
            (None, Some(all)) => now.changed > all.noted,
            (None, None) => false,
        }
    }
}
