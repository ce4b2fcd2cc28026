//! One inode of a naive filesystem, and its bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use thalweg_fs::filesystem::MAX_FILE;
use thalweg_fs::{Attributes, FsError, Ino, Kind, NewNode, Node, Timestamp};

use super::{ACCESS_ACL, BLOCK, SETGID, SETUID};
use crate::acl::Acl;

#[derive(Clone)]
pub(super) struct Inode {
    pub(super) attributes: Attributes,
    pub(super) body: Body,
    pub(super) xattrs: BTreeMap<Bytes, Bytes>,
    pub(super) references: u64,
}

#[derive(Clone)]
pub(super) enum Body {
    /// Blocks with storage.
    File(BTreeMap<u64, Vec<u8>>),
    Directory {
        /// Each name's inode, and its place in the order of reading.
        names: BTreeMap<Bytes, (Ino, u64)>,
        parent: Ino,
        next_cookie: u64,
    },
    Symlink(Bytes),
    /// A device, a pipe, a socket.
    Special,
}

impl Inode {
    pub(super) fn new(ino: Ino, new: &NewNode, now: Timestamp) -> Inode {
        let (kind, body, size, rdev) = match &new.node {
            Node::File => (Kind::File, Body::File(BTreeMap::new()), 0, 0),
            Node::Directory => (Kind::Directory, Body::directory(ino), BLOCK, 0),
            Node::Symlink(to) => (Kind::Symlink, Body::Symlink(to.clone()), to.len() as u64, 0),
            Node::BlockDevice(number) => (Kind::BlockDevice, Body::Special, 0, *number),
            Node::CharDevice(number) => (Kind::CharDevice, Body::Special, 0, *number),
            Node::Fifo => (Kind::Fifo, Body::Special, 0, 0),
            Node::Socket => (Kind::Socket, Body::Special, 0, 0),
        };
        let attributes = Attributes {
            ino,
            kind,
            mode: new.mode & 0o7777,
            links: if kind == Kind::Directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            rdev,
            size,
            stored: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
        };
        Inode { attributes, body, xattrs: BTreeMap::new(), references: 0 }
    }

    pub(super) fn names(&self) -> Result<&BTreeMap<Bytes, (Ino, u64)>, FsError> {
        match &self.body {
            Body::Directory { names, .. } => Ok(names),
            _ => Err(FsError::NotDirectory),
        }
    }

    pub(super) fn blocks(&self) -> Result<&BTreeMap<u64, Vec<u8>>, FsError> {
        match &self.body {
            Body::File(blocks) => Ok(blocks),
            Body::Directory { .. } => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("it has no bytes")),
        }
    }

    pub(super) fn blocks_mut(&mut self) -> Result<&mut BTreeMap<u64, Vec<u8>>, FsError> {
        match &mut self.body {
            Body::File(blocks) => Ok(blocks),
            Body::Directory { .. } => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("it has no bytes")),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attributes.kind == Kind::Directory
    }

    pub(super) fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, FsError> {
        let blocks = self.blocks()?;
        let end = offset.saturating_add(len).min(self.attributes.size);
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let (from, upto) = (at % BLOCK, BLOCK.min(end - at / BLOCK * BLOCK));
            match blocks.get(&(at / BLOCK)) {
                Some(block) => bytes.extend_from_slice(&block[from as usize..upto as usize]),
                None => bytes.resize(bytes.len() + (upto - from) as usize, 0),
            }
            at += upto - from;
        }
        Ok(bytes)
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), FsError> {
        let blocks = self.blocks_mut()?;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let from = (at % BLOCK) as usize;
            let (now, later) = rest.split_at(rest.len().min(BLOCK as usize - from));
            let block = blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
            block[from..from + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
        self.attributes.size = self.attributes.size.max(at);
        Ok(())
    }

    /// Makes a range read as zeros; blocks that it covers lose their storage.
    pub(super) fn punch(&mut self, offset: u64, end: u64) -> Result<(), FsError> {
        let blocks = self.blocks_mut()?;
        blocks.retain(|number, _| !(offset <= number * BLOCK && (number + 1) * BLOCK <= end));
        for (number, block) in blocks.iter_mut() {
            let start = number * BLOCK;
            let (from, upto) = (offset.max(start), end.min(start + BLOCK));
            if from < upto {
                block[(from - start) as usize..(upto - start) as usize].fill(0);
            }
        }
        Ok(())
    }

    pub(super) fn reserve(&mut self, offset: u64, end: u64) -> Result<(), FsError> {
        let blocks = self.blocks_mut()?;
        for number in offset / BLOCK..end.div_ceil(BLOCK) {
            blocks.entry(number).or_insert_with(|| vec![0; BLOCK as usize]);
        }
        Ok(())
    }

    pub(super) fn resize(&mut self, size: u64) -> Result<(), FsError> {
        check_size(size)?;
        // Also blocks that were reserved behind the end go.
        self.punch(size, u64::MAX)?;
        self.attributes.size = size;
        Ok(())
    }

    /// The content changed.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.attributes.modified = now;
        self.attributes.changed = now;
    }

    pub(super) fn clear_suid(&mut self) {
        let mode = &mut self.attributes.mode;
        if self.attributes.kind != Kind::Directory {
            *mode &= !SETUID;
            if *mode & 0o010 != 0 {
                *mode &= !SETGID;
            }
        }
    }

    pub(super) fn acl(&self, name: &[u8]) -> Option<Acl> {
        self.xattrs.get(name).and_then(|value| Acl::decode(value))
    }

    /// An access control list is stored where it says more than the mode can.
    pub(super) fn set_access_acl(&mut self, acl: &Acl) {
        self.attributes.mode = self.attributes.mode & 0o7000 | acl.mode();
        match acl.is_only_mode() {
            true => self.xattrs.remove(ACCESS_ACL),
            false => self.xattrs.insert(Bytes::from_static(ACCESS_ACL), acl.encode()),
        };
    }

    pub(super) fn shown(&self) -> Attributes {
        let stored = self.blocks().map_or(0, |blocks| blocks.len() as u64 * BLOCK);
        Attributes { stored, ..self.attributes }
    }
}

impl Body {
    pub(super) fn directory(parent: Ino) -> Body {
        Body::Directory { names: BTreeMap::new(), parent, next_cookie: 1 }
    }
}

pub(super) fn check_size(size: u64) -> Result<(), FsError> {
    if size > MAX_FILE { Err(FsError::FileTooLarge) } else { Ok(()) }
}

pub(super) fn end_of(offset: u64, len: u64) -> Result<u64, FsError> {
    let end = offset.checked_add(len).ok_or(FsError::FileTooLarge)?;
    check_size(end).map(|()| end)
}
