//! Changes that their maker has made already, with everything that a filesystem would choose for them: the numbers of new
//! inodes, and times. A filesystem applies them later, many at a time ([`SessionTable::apply`](crate::SessionTable::apply)).
//!
//! The maker knows what they come to: it alone could see and change what they are about. The functions here say what the
//! attributes become; a filesystem that applies the mutations comes to the same ones.

pub mod runs;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::attributes::{AttributeChange, Attributes, Ino, Kind, TimeChange, Timestamp};
use crate::node::{NewNode, Node};

/// A change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mutation {
    /// When it was made.
    pub time: Timestamp,
    /// What it has made.
    pub kind: MutationKind,
}

/// The changes of bytes that a filesystem takes as mutations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ByteMutations {
    /// Writes to files that the filesystem does not have yet may end here at most; 0: there may be no writes.
    pub end: u64,
    /// Sizes may be set.
    pub sizes: bool,
    /// What files take follows from their sizes, whatever holes they have.
    pub dense: bool,
}

/// What a mutation has made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MutationKind {
    /// An inode with a name.
    Create {
        /// The directory.
        parent: Ino,
        /// The name there.
        name: Bytes,
        /// What it is.
        new: NewNode,
        /// Its number, which was reserved, and which no inode had before.
        number: Ino,
    },
    /// Other attributes.
    SetAttributes {
        /// The inode.
        ino: Ino,
        /// What is set.
        change: AttributeChange,
    },
    /// Bytes of a file.
    Write {
        /// The file.
        ino: Ino,
        /// The first byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
        /// As in [`WriteHow`](crate::WriteHow).
        clear_suid: bool,
    },
    /// Bytes of a file that its maker has stored: where contents are kept elsewhere, and below the file's
    /// [write bound](crate::DirectContents::write_bound). There is no hole before them.
    Stored {
        /// The file.
        ino: Ino,
        /// The first byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// As in [`WriteHow`](crate::WriteHow).
        clear_suid: bool,
        /// They are durable by a [size record](crate::contents::SizeRecord) of the file. No quota refuses them.
        by_size_record: bool,
    },
}

impl MutationKind {
    /// The inode that it changes beside the one that it makes.
    pub fn ino(&self) -> Ino {
        match self {
            MutationKind::Create { parent, .. } => *parent,
            MutationKind::SetAttributes { ino, .. }
            | MutationKind::Write { ino, .. }
            | MutationKind::Stored { ino, .. } => *ino,
        }
    }

    /// Bytes of a file that it has.
    pub fn data_len(&self) -> usize {
        match self {
            MutationKind::Write { data, .. } => data.len(),
            _ => 0,
        }
    }

    /// The inode that it makes.
    pub fn made(&self) -> Option<Ino> {
        match self {
            MutationKind::Create { number, .. } => Some(*number),
            MutationKind::SetAttributes { .. }
            | MutationKind::Write { .. }
            | MutationKind::Stored { .. } => None,
        }
    }
}

/// Under `relatime` a read is noted at least once in so many seconds.
const RELATIME_SECONDS: i64 = 24 * 3600;
/// Set-user-id.
const SUID: u16 = 0o4000;
/// Set-group-id.
const SGID: u16 = 0o2000;

impl Attributes {
    /// Those of a new inode in a directory without a default access control list.
    pub fn of_new(
        directory: &Attributes,
        new: &NewNode,
        number: Ino,
        time: Timestamp,
    ) -> Attributes {
        let kind = new.node.kind();
        let inherits = directory.mode & SGID != 0;
        let masked = if kind == Kind::Symlink { 0 } else { new.umask & 0o777 };
        let mode = new.mode & 0o7777 & !masked;
        let (size, rdev) = match &new.node {
            Node::Symlink(target) => (target.len() as u64, 0),
            Node::BlockDevice(rdev) | Node::CharDevice(rdev) => (0, *rdev),
            Node::File | Node::Directory | Node::Fifo | Node::Socket => (0, 0),
        };
        Attributes {
            ino: number,
            kind,
            mode: if inherits && kind == Kind::Directory { mode | SGID } else { mode },
            links: if kind == Kind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid: if inherits { directory.gid } else { new.gid },
            rdev,
            size,
            stored: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
        }
    }

    /// A change at this time.
    fn touch(&mut self, time: Timestamp) {
        self.changed = time.max(self.changed.next());
    }

    /// Whether a read at this time is to be noted, as under `relatime`.
    pub fn is_read_due(&self, time: Timestamp) -> bool {
        self.accessed <= self.modified
            || self.accessed <= self.changed
            || time.seconds - self.accessed.seconds >= RELATIME_SECONDS
    }

    /// The directory got a name of an inode of that type.
    pub fn got_name(&mut self, kind: Kind, time: Timestamp) {
        self.size += 1;
        assert!(self.links < u32::MAX, "a directory has fewer subdirectories");
        self.links += u32::from(kind == Kind::Directory);
        self.modified = time;
        self.touch(time);
    }

    /// Attributes were set, of an inode without an access control list or without another mode.
    pub fn set(&mut self, change: &AttributeChange, time: Timestamp) {
        let at = |change: TimeChange| match change {
            TimeChange::Now => time,
            TimeChange::At(other) => other,
        };
        self.mode = change.mode.map_or(self.mode, |mode| mode & 0o7777);
        self.uid = change.uid.unwrap_or(self.uid);
        self.gid = change.gid.unwrap_or(self.gid);
        if change.clear_suid && self.kind != Kind::Directory {
            self.clear_suid();
        }
        if let Some(size) = change.size {
            (self.size, self.modified) = (size, time);
        }
        self.accessed = change.accessed.map_or(self.accessed, at);
        self.modified = change.modified.map_or(self.modified, at);
        self.touch(time);
    }

    /// Bytes of the file were written, up to this one.
    pub fn wrote(&mut self, end: u64, clears_suid: bool, time: Timestamp) {
        self.size = self.size.max(end);
        if clears_suid {
            self.clear_suid();
        }
        self.modified = time;
        self.touch(time);
    }

    fn clear_suid(&mut self) {
        let group = if self.mode & 0o010 != 0 { SGID } else { 0 };
        self.mode &= !(SUID | group);
    }
}
