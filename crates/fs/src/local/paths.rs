//! Paths of inodes, for logs.

use super::fs_call::FsCall;
use super::fs_state::FsState;
use crate::attributes::Ino;
use crate::error::FsError;
use crate::filesystem::Cookie;

/// Directories of a path at most: a longer one is a circle.
const MAX_DEPTH: usize = 1000;
/// Entries of a directory that are looked at; a name behind these is not found.
const MAX_ENTRIES: usize = 1 << 16;
const ENTRIES_AT_ONCE: usize = 512;

impl FsState {
    /// A path of an inode from the root: that by which it was made, or moved last.
    pub(super) async fn path_of(&self, ino: u64) -> Result<String, FsError> {
        let (mut names, mut at) = (Vec::new(), ino);
        while at != Ino::ROOT.0 && names.len() < MAX_DEPTH {
            let txn = self.look().await?;
            let parent = FsCall::new(self, &txn, false).inode(at).await?.parent.get();
            drop(txn);
            let name = self.name_in(parent, at).await?;
            names.push(name.unwrap_or_else(|| format!("(inode {at})")));
            at = parent;
        }
        names.reverse();
        Ok(format!("/{}", names.join("/")))
    }

    /// The name of an inode in a directory.
    async fn name_in(&self, directory: u64, ino: u64) -> Result<Option<String>, FsError> {
        let (mut from, mut seen) = (Cookie::START, 0);
        while seen < MAX_ENTRIES {
            let txn = self.look().await?;
            let mut op = FsCall::new(self, &txn, false);
            let some = op.read_directory(directory, from, ENTRIES_AT_ONCE, false).await?;
            let Some(last) = some.last() else { return Ok(None) };
            if let Some(found) = some.iter().find(|entry| entry.ino.0 == ino) {
                return Ok(Some(String::from_utf8_lossy(&found.name).into_owned()));
            }
            (from, seen) = (last.cookie, seen + some.len());
        }
        Ok(None)
    }
}
