//! Changes that their maker has made already, with everything that a filesystem would choose for them: the numbers of new
//! inodes, and times. A filesystem applies them later, many at a time ([`SessionTable::apply`](crate::SessionTable::apply)).
//!
//! The maker knows what they come to: it alone could see and change what they are about. The functions here say what the
//! attributes become; a filesystem that applies the mutations comes to the same ones.

pub mod runs;

use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::attributes::{AttributeChange, Attributes, Ino, Kind, TimeChange, Timestamp};
use crate::node::{NewNode, Node, Rename};

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
    /// A name is removed, of an inode that is no directory.
    Unlink {
        /// The directory.
        parent: Ino,
        /// The name there.
        name: Bytes,
        /// The inode that it led to.
        ino: Ino,
    },
    /// An empty directory is removed.
    RemoveDirectory {
        /// The directory that it was in.
        parent: Ino,
        /// Its name there.
        name: Bytes,
        /// The removed directory.
        ino: Ino,
    },
    /// An inode has another name.
    Rename {
        /// The directory and the name there that it had.
        from: (Ino, Bytes),
        /// Those that it has now.
        to: (Ino, Bytes),
        /// What becomes of the inode that had the new name.
        how: Rename,
        /// The inode.
        ino: Ino,
        /// The inode that had the new name.
        there: Option<Ino>,
    },
    /// An inode that is no directory has a further name.
    Link {
        /// The directory.
        parent: Ino,
        /// The name there.
        name: Bytes,
        /// The inode.
        ino: Ino,
    },
    /// A range of a file has storage; its bytes stay. Not where contents are kept elsewhere.
    Reserve {
        /// The file.
        ino: Ino,
        /// The first byte.
        offset: u64,
        /// Bytes: at least one, at most [`MAX_RESERVED`].
        len: u64,
        /// Whether the file may not grow by it.
        keep_size: bool,
    },
    /// An extended attribute has a value, whether it had another one or none.
    SetXattr {
        /// The inode.
        ino: Ino,
        /// Its name.
        name: Bytes,
        /// Its value.
        value: Bytes,
    },
    /// An extended attribute is removed.
    RemoveXattr {
        /// The inode.
        ino: Ino,
        /// Its name.
        name: Bytes,
    },
}

/// Most bytes of a [`MutationKind::Reserve`]: a batch of many mutations is one transaction, and each block may have a record of its own.
pub const MAX_RESERVED: u64 = 16 << 20;

impl MutationKind {
    /// The inode that it changes beside others: the directory of a name.
    pub fn ino(&self) -> Ino {
        match self {
            MutationKind::Create { parent, .. }
            | MutationKind::Unlink { parent, .. }
            | MutationKind::RemoveDirectory { parent, .. }
            | MutationKind::Link { parent, .. }
            | MutationKind::Rename { from: (parent, _), .. } => *parent,
            MutationKind::SetAttributes { ino, .. }
            | MutationKind::Write { ino, .. }
            | MutationKind::Stored { ino, .. }
            | MutationKind::Reserve { ino, .. }
            | MutationKind::SetXattr { ino, .. }
            | MutationKind::RemoveXattr { ino, .. } => *ino,
        }
    }

    /// Bytes of an extended attribute that it has.
    pub fn xattr_len(&self) -> usize {
        match self {
            MutationKind::SetXattr { name, value, .. } => name.len() + value.len(),
            MutationKind::RemoveXattr { name, .. } => name.len(),
            _ => 0,
        }
    }

    /// Bytes of a file that it has.
    pub fn data_len(&self) -> usize {
        match self {
            MutationKind::Write { data, .. } => data.len(),
            _ => 0,
        }
    }

    /// The bytes that it writes.
    pub fn written(&self) -> Option<Range<u64>> {
        match self {
            MutationKind::Write { offset, data, .. } => {
                Some(*offset..offset.saturating_add(data.len() as u64))
            }
            MutationKind::Stored { offset, len, .. } => Some(*offset..offset.saturating_add(*len)),
            MutationKind::Create { .. }
            | MutationKind::SetAttributes { .. }
            | MutationKind::Unlink { .. }
            | MutationKind::RemoveDirectory { .. }
            | MutationKind::Rename { .. }
            | MutationKind::Link { .. }
            | MutationKind::Reserve { .. }
            | MutationKind::SetXattr { .. }
            | MutationKind::RemoveXattr { .. } => None,
        }
    }

    /// The inode that it makes.
    pub fn made(&self) -> Option<Ino> {
        match self {
            MutationKind::Create { number, .. } => Some(*number),
            MutationKind::SetAttributes { .. }
            | MutationKind::Write { .. }
            | MutationKind::Stored { .. }
            | MutationKind::Unlink { .. }
            | MutationKind::RemoveDirectory { .. }
            | MutationKind::Link { .. }
            | MutationKind::Rename { .. }
            | MutationKind::Reserve { .. }
            | MutationKind::SetXattr { .. }
            | MutationKind::RemoveXattr { .. } => None,
        }
    }

    /// The inode that it makes, and whether that is a directory.
    pub fn made_node(&self) -> Option<(Ino, bool)> {
        match self {
            MutationKind::Create { number, new, .. } => {
                Some((*number, new.node == Node::Directory))
            }
            _ => None,
        }
    }

    /// The inode that loses a name to it, and perhaps its last one.
    pub fn unlinked(&self) -> Option<Ino> {
        match self {
            MutationKind::Unlink { ino, .. } | MutationKind::RemoveDirectory { ino, .. } => {
                Some(*ino)
            }
            MutationKind::Rename { how: Rename::Replace, there, .. } => *there,
            MutationKind::Create { .. }
            | MutationKind::SetAttributes { .. }
            | MutationKind::Write { .. }
            | MutationKind::Stored { .. }
            | MutationKind::Link { .. }
            | MutationKind::Rename { .. }
            | MutationKind::Reserve { .. }
            | MutationKind::SetXattr { .. }
            | MutationKind::RemoveXattr { .. } => None,
        }
    }

    /// The names that it changes, each with its directory.
    pub fn names(&self) -> impl Iterator<Item = (Ino, &Bytes)> {
        let names = match self {
            MutationKind::Create { parent, name, .. }
            | MutationKind::Unlink { parent, name, .. }
            | MutationKind::Link { parent, name, .. }
            | MutationKind::RemoveDirectory { parent, name, .. } => [Some((*parent, name)), None],
            MutationKind::Rename { from, to, .. } => [Some((from.0, &from.1)), Some((to.0, &to.1))],
            MutationKind::SetAttributes { .. }
            | MutationKind::Write { .. }
            | MutationKind::Stored { .. }
            | MutationKind::Reserve { .. }
            | MutationKind::SetXattr { .. }
            | MutationKind::RemoveXattr { .. } => [None, None],
        };
        names.into_iter().flatten()
    }

    /// The inodes that it is about beside the directories of names, and that were there before.
    pub fn subjects(&self) -> impl Iterator<Item = Ino> + use<> {
        let subjects = match self {
            MutationKind::Create { .. } => [None, None],
            MutationKind::SetAttributes { ino, .. }
            | MutationKind::Write { ino, .. }
            | MutationKind::Stored { ino, .. }
            | MutationKind::Reserve { ino, .. }
            | MutationKind::SetXattr { ino, .. }
            | MutationKind::RemoveXattr { ino, .. }
            | MutationKind::Unlink { ino, .. }
            | MutationKind::RemoveDirectory { ino, .. }
            | MutationKind::Link { ino, .. } => [Some(*ino), None],
            MutationKind::Rename { ino, there, .. } => [Some(*ino), *there],
        };
        subjects.into_iter().flatten()
    }

    /// All inodes that it changes or makes, each once.
    pub fn inodes(&self) -> impl Iterator<Item = Ino> + use<> {
        let others = match self {
            MutationKind::Rename { to, ino, there, .. } => [Some(*ino), Some(to.0), *there],
            MutationKind::Link { ino, .. } => [Some(*ino), None, None],
            kind => [kind.made(), kind.unlinked(), None],
        };
        let all = [Some(self.ino()), others[0], others[1], others[2]];
        (0..all.len()).filter_map(move |at| all[at].filter(|_| !all[..at].contains(&all[at])))
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
        self.changed_names(Some(kind), None, time);
    }

    /// The directory got a name of an inode of one type, and lost one of the other, in one change; or names of it lead to other
    /// inodes.
    pub fn changed_names(&mut self, got: Option<Kind>, lost: Option<Kind>, time: Timestamp) {
        let directories = |kind: Option<Kind>| u32::from(kind == Some(Kind::Directory));
        let (more, less) = (u64::from(got.is_some()), u64::from(lost.is_some()));
        self.size = self.size.saturating_add(more).saturating_sub(less);
        self.links = self.links.saturating_add(directories(got)).saturating_sub(directories(lost));
        self.modified = time;
        self.touch(time);
    }

    /// The inode, which is no directory, got a name.
    pub fn got_link(&mut self, time: Timestamp) {
        self.links = self.links.saturating_add(1);
        self.touch(time);
    }

    /// The inode lost a name; a directory has no other one.
    pub fn lost_name(&mut self, time: Timestamp) {
        let is_directory = self.kind == Kind::Directory;
        self.links = if is_directory { 0 } else { self.links.saturating_sub(1) };
        self.touch(time);
    }

    /// The inode has another name.
    pub fn moved(&mut self, time: Timestamp) {
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

    /// A range of the file got storage, up to this byte.
    pub fn reserved(&mut self, end: u64, keep_size: bool, time: Timestamp) {
        if !keep_size {
            self.size = self.size.max(end);
        }
        self.modified = time;
        self.touch(time);
    }

    /// An extended attribute of the inode was set or removed, which is no access control list.
    pub fn changed_xattr(&mut self, time: Timestamp) {
        self.touch(time);
    }

    fn clear_suid(&mut self) {
        let group = if self.mode & 0o010 != 0 { SGID } else { 0 };
        self.mode &= !(SUID | group);
    }
}
