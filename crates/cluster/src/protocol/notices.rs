//! The calls of a server to its clients.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_fs::Ino;

/// A call of the server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum FromServer {
    /// The client is to drop what it caches of these. Answered with [`Invalidated`].
    Invalidate(Vec<Changed>),
    /// As [`FromServer::Invalidate`], of what calls of the client may hold. Answered with [`Invalidated`] when the client's
    /// caller has dropped it, or soon if it holds some of it: that is dropped when it can be.
    InvalidateUnlessHeld(Vec<Changed>),
    /// The client is promised no room any more. Answered with [`Invalidated`] when the server has everything
    /// that the client has made by itself. The number of such calls in the session.
    ReturnRoom(u64),
    /// Is not answered. Changes up to this version survive a crash.
    Durable(u64),
    /// Is not answered. These inodes have no names any more: the client forgets them as soon as none of its programs uses them.
    Removed(Vec<RemovedInode>),
    /// Is not answered. The clients know more inodes than the server has memory for: this one is to forget those that its
    /// caller does not refer to ([`Request::Forget`](super::Request::Forget)), until it knows so many at most.
    Release(u64),
}

/// An inode that was removed with its last name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemovedInode {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: Bytes,
    /// The inode.
    pub ino: Ino,
}

/// What is about to change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Changed {
    /// The directory or file is not the client's alone any more: what it has made of it is to be at the server when it answers.
    Exclusive(Ino),
    /// All pages of a file that the client does not have open.
    Pages(Ino),
    /// The attributes of an inode.
    Attributes(Ino),
    /// All names of a directory.
    Names(Ino),
    /// The inode of a name.
    Name {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Bytes,
    },
    /// Bytes of a file.
    Content {
        /// The file.
        ino: Ino,
        /// The first byte.
        from: u64,
        /// The byte behind the last one; `u64::MAX` for the rest of the file.
        to: u64,
    },
    /// A file has grown, which other clients have open. Nothing is to be dropped.
    Size {
        /// The file.
        ino: Ino,
        /// Its size in bytes.
        size: u64,
    },
}

impl Changed {
    /// The inode that it is about.
    pub fn ino(&self) -> Ino {
        match self {
            Changed::Exclusive(ino)
            | Changed::Pages(ino)
            | Changed::Attributes(ino)
            | Changed::Names(ino)
            | Changed::Name { parent: ino, .. }
            | Changed::Content { ino, .. }
            | Changed::Size { ino, .. } => *ino,
        }
    }
}

/// The client has dropped it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Invalidated;
