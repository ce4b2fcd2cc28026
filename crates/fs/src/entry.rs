//! Entries of directories.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::attributes::{Ino, Kind};

/// A place in a directory: behind an entry. It stays valid while entries come and go. A filesystem gives ones below 2⁶², a client that
/// lists a directory by itself ones from there to 2⁶³ − 4.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before the first entry.
    pub const START: Cookie = Cookie(0);
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: Bytes,
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
    /// The place behind this entry.
    pub cookie: Cookie,
    /// The inode's attributes, if they were asked for.
    pub attributes: Option<Answer>,
}
