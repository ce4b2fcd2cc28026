//! The calls of a server to its clients.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_fs::Ino;
use thalweg_net::frame::MAX_HEAD;

/// Bytes of a list of changes in a frame at most. The rest of the head are the numbers before it.
const LIST: usize = MAX_HEAD - 64;
/// Bytes of a change at most, beside a name: its kind, and three numbers or the length of the name.
const CHANGE: usize = 1 + 3 * 10;

/// A call of the server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum FromServer {
    /// The client is to drop what it caches of these. Answered with [`Invalidated`], or before that by a batch that
    /// [releases](super::Request::Batch) it.
    Invalidate {
        /// A number for that, if what is to be dropped is delegated to the client; otherwise 0.
        recall: u64,
        /// What is about to change.
        changes: Vec<Changed>,
    },
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
    Delegation(Ino),
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
            Changed::Delegation(ino)
            | Changed::Pages(ino)
            | Changed::Attributes(ino)
            | Changed::Names(ino)
            | Changed::Name { parent: ino, .. }
            | Changed::Content { ino, .. }
            | Changed::Size { ino, .. } => *ino,
        }
    }

    /// Bytes that it takes in a message, or more.
    fn bytes(&self) -> usize {
        match self {
            Changed::Name { name, .. } => CHANGE + name.len(),
            Changed::Delegation(_)
            | Changed::Pages(_)
            | Changed::Attributes(_)
            | Changed::Names(_)
            | Changed::Content { .. }
            | Changed::Size { .. } => CHANGE,
        }
    }

    /// The parts of a list that each fit into a message.
    pub fn messages_of(mut changes: &[Changed]) -> impl Iterator<Item = &[Changed]> {
        std::iter::from_fn(move || {
            let mut left = LIST;
            let fits = |change: &&Changed| {
                let rest = left.checked_sub(change.bytes());
                left = rest.unwrap_or(0);
                rest.is_some()
            };
            // A change that is too large by itself is left to the encoder, which refuses it.
            let count = changes.iter().take_while(fits).count().max(1).min(changes.len());
            let (part, rest) = changes.split_at(count);
            changes = rest;
            (!part.is_empty()).then_some(part)
        })
    }
}

/// The client has dropped it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Invalidated;

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(ino: u64) -> Changed {
        match ino % 7 {
            0 => Changed::Delegation(Ino(u64::MAX - ino)),
            1 => Changed::Pages(Ino(ino)),
            2 => Changed::Attributes(Ino(u64::MAX - ino)),
            3 => Changed::Names(Ino(ino)),
            4 => {
                let name = vec![b'n'; ino as usize % 256].into();
                Changed::Name { parent: Ino(u64::MAX), name }
            }
            5 => Changed::Content { ino: Ino(u64::MAX - ino), from: u64::MAX - 1, to: u64::MAX },
            _ => Changed::Size { ino: Ino(u64::MAX - ino), size: u64::MAX },
        }
    }

    #[test]
    fn long_lists_are_cut_into_messages_that_fit() {
        for len in [0, 1, 2, 100, 5000] {
            let all: Vec<Changed> = (0..len).map(changed).collect();
            let parts: Vec<&[Changed]> = Changed::messages_of(&all).collect();
            assert_eq!(parts.concat(), all);
            for part in parts {
                let call = FromServer::InvalidateUnlessHeld(part.to_vec());
                let bytes = postcard::to_allocvec(&(u64::MAX, &call)).unwrap();
                assert!(bytes.len() <= MAX_HEAD && !part.is_empty(), "{}", bytes.len());
            }
        }
    }
}
