//! Open files and directories.

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
