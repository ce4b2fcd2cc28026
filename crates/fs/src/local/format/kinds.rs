//! Types of inodes in records.

use crate::attributes::Kind;

/// The stored form of a kind.
pub const fn encode_kind(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::Symlink => 3,
        Kind::BlockDevice => 4,
        Kind::CharDevice => 5,
        Kind::Fifo => 6,
        Kind::Socket => 7,
    }
}

/// The kind, or `None` when it is unknown.
pub const fn decode_kind(byte: u8) -> Option<Kind> {
    Some(match byte {
        1 => Kind::File,
        2 => Kind::Directory,
        3 => Kind::Symlink,
        4 => Kind::BlockDevice,
        5 => Kind::CharDevice,
        6 => Kind::Fifo,
        7 => Kind::Socket,
        _ => return None,
    })
}
