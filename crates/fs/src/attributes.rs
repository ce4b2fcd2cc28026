//! The attributes of an inode.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of an inode: never given to another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Bytes.
    File,
    /// Names of inodes.
    Directory,
    /// A path.
    Symlink,
    /// A block device.
    BlockDevice,
    /// A character device.
    CharDevice,
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
}

/// A point in time: seconds since 1970, and nanoseconds below 10⁹ after them.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanos: u32,
}

impl Timestamp {
    /// The time so many nanoseconds after the start of 1970.
    pub fn of_nanos(nanos: u64) -> Timestamp {
        let seconds = (nanos / 1_000_000_000) as i64;
        Timestamp { seconds, nanos: (nanos % 1_000_000_000) as u32 }
    }

    /// The first one after it.
    pub fn next(self) -> Timestamp {
        match self.nanos {
            999_999_999.. => Timestamp { seconds: self.seconds + 1, nanos: 0 },
            nanos => Timestamp { nanos: nanos + 1, ..self },
        }
    }
}

/// Everything that `stat` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: Kind,
    /// Permission bits, with set-user-id, set-group-id and sticky: the low 12 bits.
    pub mode: u16,
    /// Names that it has; of a directory two, and one for each directory in it.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Of a device: its number, as the system encodes it.
    pub rdev: u32,
    /// Size in bytes. A directory has a size of the filesystem's choice, a symbolic link the length of its
    /// target.
    pub size: u64,
    /// Bytes of storage that are its own.
    pub stored: u64,
    /// Last read, as far as that is noted.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of content or attributes. Each one is later than the one before, also while the clock stands still or was
    /// set back: whether the inode was changed can be told by it.
    pub changed: Timestamp,
    /// When it was made.
    pub created: Timestamp,
}

/// A time to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimeChange {
    /// The time of the call.
    Now,
    /// This one.
    At(Timestamp),
}

/// Attributes to set; those that are `None` stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AttributeChange {
    /// The low 12 bits of the mode.
    pub mode: Option<u16>,
    /// The owner.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
    /// The size in bytes: the rest is cut off, or zeros follow.
    pub size: Option<u64>,
    /// The last read.
    pub accessed: Option<TimeChange>,
    /// The last change of the content.
    pub modified: Option<TimeChange>,
    /// Clears set-user-id, and set-group-id where the group may execute; directories keep both. The caller
    /// sets it for a write or a change of size without privilege, and for a change of owner.
    pub clear_suid: bool,
}
