//! A naive filesystem in memory: the reference for files.
//!
//! Everything is a map behind one mutex, and every call a few lines that follow the words of
//! [`Filesystem`]. Nothing is durable, and every call is atomic.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use thalweg_env::{Env, Time};
use thalweg_fs::filesystem::{
    MAX_FILE, MAX_LINKS, MAX_NAME, MAX_TARGET, MAX_XATTR_NAME, MAX_XATTR_VALUE,
};
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Change, Cookie, Entry, Filesystem, FsError, Ino, Kind,
    NewNode, Node, Rename, Seek, SetXattr, Statistics, TimeChange, Timestamp, Watcher, WriteAt,
    WriteHow,
};

use crate::acl::Acl;

/// Holes are whole blocks of this size.
const BLOCK: u64 = 4096;
/// The capacity that [`Filesystem::statistics`] reports.
const BLOCKS: u64 = 1 << 20;
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// A handle to files in memory. [`NaiveFiles::share`] gives another one to the same files.
pub struct NaiveFiles {
    id: u64,
    shared: Arc<Shared>,
}

impl fmt::Debug for NaiveFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NaiveFiles").field("id", &self.id).finish_non_exhaustive()
    }
}

struct Shared {
    env: Env,
    /// The wall clock, in seconds, when the other clock showed this.
    epoch: (u64, Time),
    files: Mutex<Files>,
    read_only: AtomicBool,
    handles: AtomicU64,
    watchers: RwLock<BTreeMap<u64, Watcher>>,
}

struct Files {
    inodes: BTreeMap<Ino, Inode>,
    next: u64,
    /// The changes of the call that has the lock.
    changes: Vec<Change>,
}

#[derive(Clone)]
struct Inode {
    attributes: Attributes,
    body: Body,
    xattrs: BTreeMap<Bytes, Bytes>,
    remembered: u64,
}

#[derive(Clone)]
enum Body {
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

impl NaiveFiles {
    /// An empty root directory of root's, mode 0755.
    pub fn new(env: &Env) -> NaiveFiles {
        let shared = Shared {
            env: env.clone(),
            epoch: (env.wall_clock(), env.now()),
            files: Mutex::new(Files { inodes: BTreeMap::new(), next: 2, changes: Vec::new() }),
            read_only: AtomicBool::new(false),
            handles: AtomicU64::new(1),
            watchers: RwLock::default(),
        };
        let root = NewNode { node: Node::Directory, mode: 0o755, umask: 0, uid: 0, gid: 0 };
        let mut inode = Inode::new(Ino::ROOT, &root, shared.now());
        inode.body = Body::directory(Ino::ROOT);
        shared.files.lock().inodes.insert(Ino::ROOT, inode);
        NaiveFiles { id: 0, shared: Arc::new(shared) }
    }

    /// Another handle to the same files; each handle's watcher is told of changes through the others.
    pub fn share(&self) -> NaiveFiles {
        let id = self.shared.handles.fetch_add(1, Ordering::SeqCst);
        NaiveFiles { id, shared: self.shared.clone() }
    }

    /// Refuses changes from now on, or accepts them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.shared.read_only.store(read_only, Ordering::SeqCst);
    }

    /// How many inodes live.
    pub fn inodes(&self) -> usize {
        self.shared.files.lock().inodes.len()
    }

    /// Makes one change, or none when it fails, and tells the watchers of the other handles.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Files, Timestamp) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        if self.shared.read_only.load(Ordering::SeqCst) {
            return Err(FsError::ReadOnly);
        }
        let now = self.shared.now();
        let mut files = self.shared.files.lock();
        let result = change(&mut files, now);
        let changes = std::mem::take(&mut files.changes);
        drop(files);
        for (_, watcher) in self.shared.watchers.read().iter().filter(|(id, _)| **id != self.id) {
            changes.iter().for_each(watcher);
        }
        result
    }
}

impl Shared {
    fn now(&self) -> Timestamp {
        let (seconds, start) = self.epoch;
        let since = self.env.now().since(start);
        let seconds = i64::try_from(seconds + since.as_secs()).unwrap_or(i64::MAX);
        Timestamp { seconds, nanos: since.subsec_nanos() }
    }
}

impl Inode {
    fn new(ino: Ino, new: &NewNode, now: Timestamp) -> Inode {
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
        Inode { attributes, body, xattrs: BTreeMap::new(), remembered: 0 }
    }

    fn names(&self) -> Result<&BTreeMap<Bytes, (Ino, u64)>, FsError> {
        match &self.body {
            Body::Directory { names, .. } => Ok(names),
            _ => Err(FsError::NotDirectory),
        }
    }

    fn blocks(&self) -> Result<&BTreeMap<u64, Vec<u8>>, FsError> {
        match &self.body {
            Body::File(blocks) => Ok(blocks),
            Body::Directory { .. } => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("it has no bytes")),
        }
    }

    fn blocks_mut(&mut self) -> Result<&mut BTreeMap<u64, Vec<u8>>, FsError> {
        match &mut self.body {
            Body::File(blocks) => Ok(blocks),
            Body::Directory { .. } => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("it has no bytes")),
        }
    }

    fn is_directory(&self) -> bool {
        self.attributes.kind == Kind::Directory
    }

    fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, FsError> {
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

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), FsError> {
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
    fn punch(&mut self, offset: u64, end: u64) -> Result<(), FsError> {
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

    fn reserve(&mut self, offset: u64, end: u64) -> Result<(), FsError> {
        let blocks = self.blocks_mut()?;
        for number in offset / BLOCK..end.div_ceil(BLOCK) {
            blocks.entry(number).or_insert_with(|| vec![0; BLOCK as usize]);
        }
        Ok(())
    }

    fn resize(&mut self, size: u64) -> Result<(), FsError> {
        check_size(size)?;
        // Also blocks that were reserved behind the end go.
        self.punch(size, u64::MAX)?;
        self.attributes.size = size;
        Ok(())
    }

    /// The content changed.
    fn touch(&mut self, now: Timestamp) {
        self.attributes.modified = now;
        self.attributes.changed = now;
    }

    fn clear_suid(&mut self) {
        let mode = &mut self.attributes.mode;
        if self.attributes.kind != Kind::Directory {
            *mode &= !SETUID;
            if *mode & 0o010 != 0 {
                *mode &= !SETGID;
            }
        }
    }

    fn acl(&self, name: &[u8]) -> Option<Acl> {
        self.xattrs.get(name).and_then(|value| Acl::decode(value))
    }

    /// An access control list is stored where it says more than the mode can.
    fn set_access_acl(&mut self, acl: &Acl) {
        self.attributes.mode = self.attributes.mode & 0o7000 | acl.mode();
        match acl.is_only_mode() {
            true => self.xattrs.remove(ACCESS_ACL),
            false => self.xattrs.insert(Bytes::from_static(ACCESS_ACL), acl.encode()),
        };
    }

    fn shown(&self) -> Attributes {
        let stored = self.blocks().map_or(0, |blocks| blocks.len() as u64 * BLOCK);
        Attributes { stored, ..self.attributes }
    }
}

impl Body {
    fn directory(parent: Ino) -> Body {
        Body::Directory { names: BTreeMap::new(), parent, next_cookie: 1 }
    }
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        [] | b"." | b".." => Err(FsError::Invalid("such a name cannot be given")),
        _ if name.contains(&b'/') || name.contains(&0) => {
            Err(FsError::Invalid("a name has neither slash nor zero"))
        }
        _ if name.len() > MAX_NAME => Err(FsError::NameTooLong),
        _ => Ok(()),
    }
}

fn check_size(size: u64) -> Result<(), FsError> {
    if size > MAX_FILE { Err(FsError::FileTooLarge) } else { Ok(()) }
}

fn end_of(offset: u64, len: u64) -> Result<u64, FsError> {
    let end = offset.checked_add(len).ok_or(FsError::FileTooLarge)?;
    check_size(end).map(|()| end)
}

impl Files {
    fn get(&self, ino: Ino) -> Result<&Inode, FsError> {
        self.inodes.get(&ino).ok_or(FsError::Stale)
    }

    fn get_mut(&mut self, ino: Ino) -> Result<&mut Inode, FsError> {
        self.inodes.get_mut(&ino).ok_or(FsError::Stale)
    }

    fn find(&self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        let names = self.get(parent)?.names()?;
        if name.len() > MAX_NAME {
            return Err(FsError::NameTooLong);
        }
        names.get(name).map(|(ino, _)| *ino).ok_or(FsError::NotFound)
    }

    fn changed(&mut self, ino: Ino, content: bool) {
        self.changes.push(Change::Inode { ino, content });
    }

    /// Sets the inode of a name; an existing name is redirected.
    fn set_name(
        &mut self,
        parent: Ino,
        name: &[u8],
        ino: Ino,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let directory = self.get_mut(parent)?;
        directory.touch(now);
        let Body::Directory { names, next_cookie, .. } = &mut directory.body else {
            return Err(FsError::NotDirectory);
        };
        let name = Bytes::copy_from_slice(name);
        let cookie = names.get(&name).map(|(_, cookie)| *cookie);
        *next_cookie += u64::from(cookie.is_none());
        names.insert(name.clone(), (ino, cookie.unwrap_or(*next_cookie)));
        self.changed(parent, false);
        self.changes.push(Change::Name { parent, name });
        Ok(())
    }

    fn take_name(&mut self, parent: Ino, name: &[u8], now: Timestamp) -> Result<(), FsError> {
        let directory = self.get_mut(parent)?;
        directory.touch(now);
        if let Body::Directory { names, .. } = &mut directory.body {
            names.remove(name);
        }
        self.changed(parent, false);
        self.changes.push(Change::Name { parent, name: Bytes::copy_from_slice(name) });
        Ok(())
    }

    /// An inode has lost a name, a directory its only one.
    fn drop_link(&mut self, ino: Ino, now: Timestamp) -> Result<(), FsError> {
        let inode = self.get_mut(ino)?;
        inode.attributes.links = match inode.is_directory() {
            true => 0,
            false => inode.attributes.links - 1,
        };
        inode.attributes.changed = now;
        self.changed(ino, false);
        self.reap(ino);
        Ok(())
    }

    /// Removes an inode without names and references.
    fn reap(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|it| it.attributes.links == 0 && it.remembered == 0) {
            self.inodes.remove(&ino);
        }
    }

    /// A directory holds one directory more or less.
    fn count_directory(&mut self, parent: Ino, more: bool) -> Result<(), FsError> {
        let links = &mut self.get_mut(parent)?.attributes.links;
        *links = if more { *links + 1 } else { *links - 1 };
        Ok(())
    }

    /// Whether `ino` is `ancestor` or below it.
    fn is_below(&self, mut ino: Ino, ancestor: Ino) -> bool {
        loop {
            match self.inodes.get(&ino).map(|inode| &inode.body) {
                _ if ino == ancestor => return true,
                Some(Body::Directory { parent, .. }) if *parent != ino => ino = *parent,
                _ => return false,
            }
        }
    }

    fn create(
        &mut self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
        now: Timestamp,
    ) -> Result<Attributes, FsError> {
        let directory = self.get(parent)?;
        if directory.names()?.contains_key(name) {
            return Err(FsError::Exists);
        }
        check_name(name)?;
        if directory.attributes.links == 0 {
            return Err(FsError::NotFound);
        }
        if matches!(&new.node, Node::Symlink(target) if target.len() > MAX_TARGET) {
            return Err(FsError::NameTooLong);
        }
        let ino = Ino(self.next);
        let mut inode = Inode::new(ino, new, now);
        inherit(&mut inode, directory, new.umask);
        if let Body::Directory { parent: up, .. } = &mut inode.body {
            *up = parent;
        }
        self.next += 1;
        let shown = inode.shown();
        if inode.is_directory() {
            self.count_directory(parent, true)?;
        }
        self.inodes.insert(ino, inode);
        self.set_name(parent, name, ino, now)?;
        Ok(shown)
    }

    fn remove(
        &mut self,
        parent: Ino,
        name: &[u8],
        directory: bool,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let ino = self.find(parent, name)?;
        let inode = self.get(ino)?;
        match (inode.is_directory(), directory) {
            (true, false) => return Err(FsError::IsDirectory),
            (false, true) => return Err(FsError::NotDirectory),
            (true, true) if !inode.names()?.is_empty() => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.take_name(parent, name, now)?;
        if directory {
            self.count_directory(parent, false)?;
        }
        self.drop_link(ino, now)
    }

    fn rename(
        &mut self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let moved = self.find(from.0, from.1)?;
        check_name(to.1)?;
        let there = match self.find(to.0, to.1) {
            Ok(ino) => Some(ino),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let is_directory = self.get(moved)?.is_directory();
        if is_directory && self.is_below(to.0, moved) {
            return Err(FsError::Invalid("a directory cannot come below itself"));
        }
        if self.get(to.0)?.attributes.links == 0 {
            return Err(FsError::NotFound);
        }
        match (how, there) {
            (Rename::NoReplace, Some(_)) => return Err(FsError::Exists),
            (Rename::Exchange, None) => return Err(FsError::NotFound),
            // Two names of one inode: nothing is to be done.
            (_, Some(other)) if other == moved => return Ok(()),
            (Rename::Exchange, Some(other)) => {
                return self.exchange((from, moved), (to, other), now);
            }
            (Rename::Replace, Some(other)) => {
                let other = self.get(other)?;
                match (is_directory, other.is_directory()) {
                    (true, false) => return Err(FsError::NotDirectory),
                    (false, true) => return Err(FsError::IsDirectory),
                    (true, true) if !other.names()?.is_empty() => return Err(FsError::NotEmpty),
                    _ => {}
                }
            }
            (Rename::Replace | Rename::NoReplace, None) => {}
        }
        self.take_name(from.0, from.1, now)?;
        self.set_name(to.0, to.1, moved, now)?;
        if is_directory {
            self.count_directory(from.0, false)?;
            // A directory that was there makes room for this one.
            if there.is_none() {
                self.count_directory(to.0, true)?;
            }
        }
        if let Some(there) = there {
            self.drop_link(there, now)?;
        }
        self.arrived(moved, to.0, now)
    }

    fn exchange(
        &mut self,
        (from, moved): ((Ino, &[u8]), Ino),
        (to, other): ((Ino, &[u8]), Ino),
        now: Timestamp,
    ) -> Result<(), FsError> {
        let directories = (self.get(moved)?.is_directory(), self.get(other)?.is_directory());
        if directories.1 && self.is_below(from.0, other) {
            return Err(FsError::Invalid("a directory cannot come below itself"));
        }
        self.set_name(from.0, from.1, other, now)?;
        self.set_name(to.0, to.1, moved, now)?;
        if directories.0 != directories.1 && from.0 != to.0 {
            self.count_directory(from.0, directories.1)?;
            self.count_directory(to.0, directories.0)?;
        }
        self.arrived(moved, to.0, now)?;
        self.arrived(other, from.0, now)
    }

    /// Updates the parent of a renamed inode, which is in `directory` now.
    fn arrived(&mut self, ino: Ino, directory: Ino, now: Timestamp) -> Result<(), FsError> {
        let inode = self.get_mut(ino)?;
        inode.attributes.changed = now;
        if let Body::Directory { parent, .. } = &mut inode.body {
            *parent = directory;
        }
        self.changed(ino, false);
        Ok(())
    }

    fn set_attributes(
        &mut self,
        ino: Ino,
        change: &AttributeChange,
        now: Timestamp,
    ) -> Result<Attributes, FsError> {
        let inode = self.get_mut(ino)?;
        if let Some(size) = change.size {
            inode.resize(size)?;
            inode.touch(now);
        }
        if let Some(mode) = change.mode {
            inode.attributes.mode = mode & 0o7777;
            if let Some(mut acl) = inode.acl(ACCESS_ACL) {
                acl.set_mode(mode);
                inode.set_access_acl(&acl);
            }
        }
        let attributes = &mut inode.attributes;
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        let time = |change| match change {
            TimeChange::Now => now,
            TimeChange::At(time) => time,
        };
        attributes.accessed = change.accessed.map_or(attributes.accessed, time);
        attributes.modified = change.modified.map_or(attributes.modified, time);
        attributes.changed = now;
        if change.clear_suid {
            inode.clear_suid();
        }
        let shown = inode.shown();
        self.changed(ino, change.size.is_some());
        Ok(shown)
    }

    fn allocate(
        &mut self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
        now: Timestamp,
    ) -> Result<(), FsError> {
        let inode = self.get_mut(ino)?;
        if len == 0 {
            return Err(FsError::Invalid("nothing to allocate"));
        }
        let keep_size = match how {
            Allocation::Punch => {
                inode.punch(offset, offset.saturating_add(len))?;
                true
            }
            Allocation::Reserve { keep_size } => {
                inode.reserve(offset, end_of(offset, len)?)?;
                keep_size
            }
            Allocation::Zero { keep_size } => {
                let end = end_of(offset, len)?;
                inode.punch(offset, end)?;
                inode.reserve(offset, end)?;
                keep_size
            }
        };
        if !keep_size {
            inode.attributes.size = inode.attributes.size.max(offset + len);
        }
        inode.touch(now);
        self.changed(ino, true);
        Ok(())
    }

    fn write(
        &mut self,
        ino: Ino,
        at: WriteAt,
        data: &[u8],
        how: WriteHow,
        now: Timestamp,
    ) -> Result<u64, FsError> {
        let inode = self.get_mut(ino)?;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => inode.attributes.size,
        };
        inode.blocks()?;
        end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(offset);
        }
        inode.write(offset, data)?;
        inode.touch(now);
        if how.clear_suid {
            inode.clear_suid();
        }
        self.changed(ino, true);
        Ok(offset)
    }

    fn set_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
        now: Timestamp,
    ) -> Result<(), FsError> {
        check_xattr_name(name)?;
        if value.len() > MAX_XATTR_VALUE {
            return Err(FsError::AttributeTooLarge);
        }
        let inode = self.get_mut(ino)?;
        match (how, inode.xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(FsError::Exists),
            (SetXattr::Replace, false) => return Err(FsError::NoAttribute),
            _ => {}
        }
        match name {
            ACCESS_ACL | DEFAULT_ACL => {
                let acl = Acl::decode(&value).ok_or(FsError::Invalid("no access control list"))?;
                match name {
                    ACCESS_ACL => inode.set_access_acl(&acl),
                    _ if !inode.is_directory() => return Err(FsError::NotPermitted),
                    _ => drop(inode.xattrs.insert(Bytes::copy_from_slice(name), value)),
                }
            }
            _ => drop(inode.xattrs.insert(Bytes::copy_from_slice(name), value)),
        }
        inode.attributes.changed = now;
        self.changed(ino, false);
        Ok(())
    }
}

/// Sets what a new inode inherits from its directory: the group, set-group-id, and access control lists.
fn inherit(inode: &mut Inode, directory: &Inode, umask: u16) {
    if directory.attributes.mode & SETGID != 0 {
        inode.attributes.gid = directory.attributes.gid;
        if inode.is_directory() {
            inode.attributes.mode |= SETGID;
        }
    }
    if inode.attributes.kind == Kind::Symlink {
        return;
    }
    match directory.acl(DEFAULT_ACL) {
        None => inode.attributes.mode &= !(umask & 0o777),
        Some(default) => {
            let mut access = default.clone();
            access.mask_with(inode.attributes.mode);
            inode.set_access_acl(&access);
            if inode.is_directory() {
                inode.xattrs.insert(Bytes::from_static(DEFAULT_ACL), default.encode());
            }
        }
    }
}

fn check_xattr_name(name: &[u8]) -> Result<(), FsError> {
    let spaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let in_space = |space: &&[u8]| name.len() > space.len() && name.starts_with(space);
    if name == ACCESS_ACL || name == DEFAULT_ACL || spaces.iter().any(in_space) {
        return if name.len() > MAX_XATTR_NAME { Err(FsError::AttributeTooLarge) } else { Ok(()) };
    }
    Err(FsError::NotSupported)
}

#[async_trait]
impl Filesystem for NaiveFiles {
    fn is_read_only(&self) -> bool {
        self.shared.read_only.load(Ordering::SeqCst)
    }

    async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        let files = self.shared.files.lock();
        let ino = files.find(parent, name)?;
        Ok(files.get(ino)?.shown())
    }

    async fn parent(&self, directory: Ino) -> Result<Ino, FsError> {
        match self.shared.files.lock().get(directory)?.body {
            Body::Directory { parent, .. } => Ok(parent),
            _ => Err(FsError::NotDirectory),
        }
    }

    async fn attributes(&self, ino: Ino) -> Result<Attributes, FsError> {
        Ok(self.shared.files.lock().get(ino)?.shown())
    }

    async fn set_attributes(
        &self,
        ino: Ino,
        change: &AttributeChange,
    ) -> Result<Attributes, FsError> {
        self.change(|files, now| files.set_attributes(ino, change, now))
    }

    async fn create(&self, parent: Ino, name: &[u8], new: &NewNode) -> Result<Attributes, FsError> {
        self.change(|files, now| files.create(parent, name, new, now))
    }

    async fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        self.change(|files, now| {
            if files.get(parent)?.names()?.contains_key(name) {
                return Err(FsError::Exists);
            }
            check_name(name)?;
            let inode = files.get(ino)?;
            match inode.attributes.links {
                _ if inode.is_directory() => return Err(FsError::NotPermitted),
                0 => return Err(FsError::NotFound),
                MAX_LINKS.. => return Err(FsError::TooManyLinks),
                _ if files.get(parent)?.attributes.links == 0 => return Err(FsError::NotFound),
                _ => {}
            }
            files.set_name(parent, name, ino, now)?;
            let inode = files.get_mut(ino)?;
            inode.attributes.links += 1;
            inode.attributes.changed = now;
            let shown = inode.shown();
            files.changed(ino, false);
            Ok(shown)
        })
    }

    async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.change(|files, now| files.remove(parent, name, false, now))
    }

    async fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.change(|files, now| files.remove(parent, name, true, now))
    }

    async fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        how: Rename,
    ) -> Result<(), FsError> {
        self.change(|files, now| files.rename(from, to, how, now))
    }

    async fn read_link(&self, ino: Ino) -> Result<Bytes, FsError> {
        match &self.shared.files.lock().get(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(FsError::Invalid("it is no symbolic link")),
        }
    }

    async fn read_directory(
        &self,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError> {
        let files = self.shared.files.lock();
        let names = files.get(ino)?.names()?.iter();
        let mut rest: Vec<_> = names.filter(|(_, (_, cookie))| *cookie > from.0).collect();
        rest.sort_by_key(|(_, (_, cookie))| *cookie);
        rest.truncate(most);
        let entry = |(name, (ino, cookie)): (&Bytes, &(Ino, u64))| {
            let shown = files.get(*ino)?.shown();
            Ok(Entry {
                name: name.clone(),
                ino: *ino,
                kind: shown.kind,
                cookie: Cookie(*cookie),
                attributes: attributes.then_some(shown),
            })
        };
        rest.into_iter().map(entry).collect()
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        let bytes = self.shared.files.lock().get(ino)?.read(offset, len as u64)?;
        Ok(if bytes.is_empty() { Vec::new() } else { vec![bytes.into()] })
    }

    async fn write(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        self.change(|files, now| files.write(ino, at, &data.concat(), how, now))
    }

    async fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        how: Allocation,
    ) -> Result<(), FsError> {
        self.change(|files, now| files.allocate(ino, offset, len, how, now))
    }

    async fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, FsError> {
        let files = self.shared.files.lock();
        let inode = files.get(ino)?;
        let (blocks, size) = (inode.blocks()?, inode.attributes.size);
        if offset >= size {
            return Err(FsError::NothingThere);
        }
        let mut numbers = offset / BLOCK..size.div_ceil(BLOCK);
        let found = match what {
            Seek::Data => numbers.find(|number| blocks.contains_key(number)),
            Seek::Hole => numbers.find(|number| !blocks.contains_key(number)),
        };
        match (found, what) {
            (Some(number), _) => Ok(offset.max(number * BLOCK)),
            (None, Seek::Hole) => Ok(size),
            (None, Seek::Data) => Err(FsError::NothingThere),
        }
    }

    async fn copy(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64, FsError> {
        self.change(|files, now| {
            let bytes = files.get(from.0)?.read(from.1, len)?;
            files.write(to.0, WriteAt::Offset(to.1), &bytes, WriteHow::default(), now)?;
            Ok(bytes.len() as u64)
        })
    }

    async fn sync(&self, ino: Ino, _content_only: bool) -> Result<(), FsError> {
        self.shared.files.lock().get(ino).map(drop)
    }

    async fn sync_all(&self) -> Result<(), FsError> {
        Ok(())
    }

    async fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, FsError> {
        check_xattr_name(name)?;
        let files = self.shared.files.lock();
        files.get(ino)?.xattrs.get(name).cloned().ok_or(FsError::NoAttribute)
    }

    async fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: Bytes,
        how: SetXattr,
    ) -> Result<(), FsError> {
        self.change(|files, now| files.set_xattr(ino, name, value, how, now))
    }

    async fn xattrs(&self, ino: Ino) -> Result<Vec<Bytes>, FsError> {
        Ok(self.shared.files.lock().get(ino)?.xattrs.keys().cloned().collect())
    }

    async fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        check_xattr_name(name)?;
        self.change(|files, now| {
            let inode = files.get_mut(ino)?;
            inode.xattrs.remove(name).ok_or(FsError::NoAttribute)?;
            inode.attributes.changed = now;
            files.changed(ino, false);
            Ok(())
        })
    }

    async fn statistics(&self) -> Result<Statistics, FsError> {
        let files = self.shared.files.lock();
        let used: u64 = files.inodes.values().map(|inode| inode.shown().stored / BLOCK).sum();
        Ok(Statistics {
            block: BLOCK as u32,
            blocks: BLOCKS,
            free: BLOCKS.saturating_sub(used),
            inodes: (files.inodes.len() as u64, u64::from(u32::MAX)),
        })
    }

    fn remember(&self, ino: Ino) {
        if let Some(inode) = self.shared.files.lock().inodes.get_mut(&ino) {
            inode.remembered += 1;
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut files = self.shared.files.lock();
        if let Some(inode) = files.inodes.get_mut(&ino) {
            inode.remembered = inode.remembered.saturating_sub(count);
            files.reap(ino);
        }
    }

    fn watch(&self, watcher: Watcher) {
        self.shared.watchers.write().insert(self.id, watcher);
    }
}
