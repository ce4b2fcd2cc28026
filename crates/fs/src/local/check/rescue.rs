//! Names for inodes without one.

use super::Outcome;
use crate::attributes::{Ino, Kind};
use crate::error::FsError;
use crate::filesystem::{NewNode, Node};
use crate::local::fs_call::FsCall;
use crate::local::fs_state::FsState;
use crate::local::records::kind_of;

/// The directory for inodes without names.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Names that are tried when the usual one exists.
const NAMES: u64 = 1000;

/// A number for the directory for lost inodes, should it have to be made; `None` when all are taken.
pub(super) async fn number(inner: &FsState) -> Result<Option<u64>, FsError> {
    match inner.number(Ino::ROOT.0).await {
        Ok(number) => Ok(Some(number)),
        Err(FsError::Invalid(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl FsCall<'_> {
    /// Gives an inode a name in the directory for lost ones, which is made if need be, with the number. Where that
    /// cannot be, the name is in the root.
    pub(super) async fn rescue(
        &mut self,
        ino: u64,
        number: Option<u64>,
    ) -> Result<Outcome, FsError> {
        let (directory, path) = match self.lost_and_found(number).await? {
            Some(lost) => (lost, "lost+found/"),
            None => (Ino::ROOT.0, "/"),
        };
        let Some(name) = self.name_nameless(directory, ino).await? else {
            return Ok(Outcome::Left);
        };
        Ok(Outcome::Lost(format!("the name of inode {ino}, which is now {path}{name}")))
    }

    /// The directory for inodes without names. `number`: the one that it gets when it is made. `None` when it can get
    /// none, or its name is that of something else.
    async fn lost_and_found(&mut self, number: Option<u64>) -> Result<Option<u64>, FsError> {
        match self.lookup(Ino::ROOT.0, LOST_AND_FOUND).await {
            Ok(there) => Ok((there.kind == Kind::Directory).then_some(there.ino.0)),
            Err(FsError::NotFound) => {
                let Some(number) = number else { return Ok(None) };
                let new = NewNode { node: Node::Directory, mode: 0o700, umask: 0, uid: 0, gid: 0 };
                self.create(Ino::ROOT.0, LOST_AND_FOUND, &new, number).await?;
                Ok(Some(number))
            }
            Err(error) => Err(error),
        }
    }

    /// Adds a name for an inode that has none to a directory, and returns it; `None` when all that are tried exist.
    async fn name_nameless(&mut self, directory: u64, ino: u64) -> Result<Option<String>, FsError> {
        let usual = std::iter::once(format!("#{ino}"));
        for name in usual.chain((1..NAMES).map(|nth| format!("#{ino}.{nth}"))) {
            let slot = match self.absent(directory, name.as_bytes()).await {
                Ok(slot) => slot,
                // Too many names may have the same hash.
                Err(FsError::Exists | FsError::NoSpace) => continue,
                Err(error) => return Err(error),
            };
            let mut record = self.inode(ino).await?;
            let kind = kind_of(ino, &record)?;
            record.parent = directory.into();
            if kind != Kind::Directory {
                record.links = 1.into();
            }
            self.set_inode(ino, record);
            self.add_name(directory, name.as_bytes(), slot, (ino, kind)).await?;
            if kind == Kind::Directory {
                self.count_subdirectory(directory, 1).await?;
            }
            return Ok(Some(name));
        }
        Ok(None)
    }
}
