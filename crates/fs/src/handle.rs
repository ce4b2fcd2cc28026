//! Open files and directories, and their users.

use serde::{Deserialize, Serialize};

/// The caller of a request: a process, and the user it acts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The process, or 0 when it is unknown.
    pub pid: u32,
}

/// Supplementary groups of [`Credentials`] at most. NFS has 16.
pub const MAX_GROUPS: usize = 32;

/// The user that a call is made for, as far as permissions go.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Credentials {
    /// The user; 0 is root.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Supplementary groups, at most [`MAX_GROUPS`].
    pub groups: Vec<u32>,
}

impl Credentials {
    /// A user with the first [`MAX_GROUPS`] of these supplementary groups.
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { uid, gid, groups: groups[..groups.len().min(MAX_GROUPS)].to_vec() }
    }
}

/// An open file or directory. A filesystem chooses the numbers, below 2⁶².
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Handle(pub u64);

/// How an inode is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OpenFlags {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Writes go to the end.
    pub append: bool,
    /// Reads and writes bypass the caller's cache.
    pub direct: bool,
    /// Each write is durable when it returns.
    pub sync: bool,
}

/// How a caller may cache the pages of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum PageCache {
    /// It keeps the pages that it has.
    #[default]
    Keep,
    /// It drops the pages that it has, and caches again.
    Renew,
    /// It caches none.
    Bypass,
}

/// The answer to an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Opened {
    /// The open file or directory.
    pub handle: Handle,
    /// How to cache its pages.
    pub pages: PageCache,
    /// Whether the filesystem wants a [`flush`](crate::Filesystem::flush) at each close. Without, a close is one
    /// call less.
    pub flush: bool,
}
