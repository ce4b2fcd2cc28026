//! What calls need: whether they change something, and which inodes they name.

use thalweg_fs::Ino;

use super::Request;

impl Request {
    /// Whether it is to be carried out once: it may change something, or its answer is a new thing.
    pub fn is_once(&self) -> bool {
        let uses_files = matches!(
            self,
            Request::Open { .. }
                | Request::Flush { .. }
                | Request::Release { .. }
                | Request::Lock { .. }
                | Request::Unlock { .. }
                | Request::Reserve
                | Request::Room { .. }
        );
        uses_files || self.is_change()
    }

    /// The inodes that it names, and whether it needs the right to change something.
    pub fn touched(&self) -> ([Option<Ino>; 2], bool) {
        match self {
            Request::Attach { .. }
            | Request::Claim
            | Request::ClaimOpen { .. }
            | Request::ClaimLock { .. }
            | Request::ClaimNumbers { .. }
            | Request::ClaimRoom { .. }
            | Request::Room { .. }
            | Request::Claimed
            | Request::Reserve
            | Request::ReachContents { .. }
            | Request::Renew
            | Request::Detach
            | Request::Forget
            | Request::Cancel(_)
            | Request::SyncAll
            | Request::Statistics => ([None, None], false),
            Request::Batch { .. } => ([None, None], true),
            Request::Lookup { parent: ino, .. }
            | Request::Acquire { ino }
            | Request::Parent { directory: ino }
            | Request::Attributes { ino, .. }
            | Request::ReadLink { ino }
            | Request::ReadDirectory { ino, .. }
            | Request::Read { ino, .. }
            | Request::Seek { ino, .. }
            | Request::Sync { ino, .. }
            | Request::Level { ino, .. }
            | Request::Xattr { ino, .. }
            | Request::Xattrs { ino }
            | Request::Flush { ino, .. }
            | Request::Release { ino, .. }
            | Request::Lock { ino, .. }
            | Request::Unlock { ino, .. }
            | Request::ConflictingLock { ino, .. } => ([Some(*ino), None], false),
            Request::Open { ino, flags, .. } => ([Some(*ino), None], flags.write),
            Request::SetAttributes { ino, .. }
            | Request::RaiseReach { ino, .. }
            | Request::KeepTail { ino, .. }
            | Request::Create { parent: ino, .. }
            | Request::Unlink { parent: ino, .. }
            | Request::RemoveDirectory { parent: ino, .. }
            | Request::Write { ino, .. }
            | Request::Allocate { ino, .. }
            | Request::SetXattr { ino, .. }
            | Request::RemoveXattr { ino, .. } => ([Some(*ino), None], true),
            Request::Link { ino: one, parent: two, .. } => ([Some(*one), Some(*two)], true),
            Request::Rename { from: (one, _), to: (two, _), .. }
            | Request::Copy { from: (one, _), to: (two, _), .. } => {
                ([Some(*one), Some(*two)], true)
            }
        }
    }

    /// Whether the client's caller shows the attributes in the answer to programs. It asks so only where it holds no pages.
    pub fn shows_attributes(&self) -> bool {
        match self {
            Request::Lookup { .. } | Request::ReadDirectory { .. } => true,
            Request::Attributes { shown, .. } => *shown,
            _ => false,
        }
    }

    /// Whether it changes files: it uses a slot.
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Request::SetAttributes { .. }
                | Request::Batch { .. }
                | Request::Create { .. }
                | Request::Link { .. }
                | Request::Unlink { .. }
                | Request::RemoveDirectory { .. }
                | Request::Rename { .. }
                | Request::Write { .. }
                | Request::Allocate { .. }
                | Request::Copy { .. }
                | Request::SetXattr { .. }
                | Request::RemoveXattr { .. }
        )
    }
}
