//! Inodes to be.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::attributes::Kind;

/// The type of a new inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Node {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link with this target.
    Symlink(Bytes),
    /// A block device with this number.
    BlockDevice(u32),
    /// A character device with this number.
    CharDevice(u32),
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
}

/// An inode to create.
///
/// In a directory with set-group-id the inode gets the directory's group, and a new directory gets
/// set-group-id too. The mode is `mode` without the bits of `umask`; in a directory with a default access
/// control list, that list takes the place of `umask`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewNode {
    /// Its type.
    pub node: Node,
    /// Permission bits asked for: the low 12 bits.
    pub mode: u16,
    /// Permission bits that it is not to have.
    pub umask: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Node {
    /// The type.
    pub fn kind(&self) -> Kind {
        match self {
            Node::File => Kind::File,
            Node::Directory => Kind::Directory,
            Node::Symlink(_) => Kind::Symlink,
            Node::BlockDevice(_) => Kind::BlockDevice,
            Node::CharDevice(_) => Kind::CharDevice,
            Node::Fifo => Kind::Fifo,
            Node::Socket => Kind::Socket,
        }
    }
}

/// What a rename does when the new name exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Rename {
    /// Takes its place.
    Replace,
    /// Fails with [`FsError::Exists`](crate::FsError::Exists).
    NoReplace,
    /// Exchanges the two.
    Exchange,
}
