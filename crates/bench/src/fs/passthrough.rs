//! A folder of the system, passed through FUSE: measures the cost of FUSE alone.
//!
//! It implements the calls that the benchmark's loads need, and no others.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::{
    Allocation, Answer, AttributeChange, Attributes, Caller, Cookie, Entry, Filesystem, FsError,
    Handle, Ino, Kind, Level, Lock, LockKind, LockOwner, LockRange, Lookup, NewNode, Node,
    OpenFlags, Opened, Rename, Seek, SetXattr, Statistics, Timestamp, Watcher, WriteAt, WriteHow,
};

/// Maximum number of files that are kept open.
const OPEN: usize = 4096;

/// A folder.
#[derive(Debug)]
pub(super) struct Passthrough {
    root: u64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Path by inode.
    paths: HashMap<u64, PathBuf>,
    /// The most recently opened files, and their order.
    open: HashMap<u64, Arc<File>>,
    order: VecDeque<u64>,
}

impl Known {
    fn keep_open(&mut self, ino: u64, file: File) -> Arc<File> {
        let file = Arc::new(file);
        if self.open.insert(ino, file.clone()).is_none() {
            self.order.push_back(ino);
        }
        if self.order.len() > OPEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.open.remove(&oldest);
        }
        file
    }
}

fn refused(error: io::Error) -> FsError {
    match error.kind() {
        io::ErrorKind::NotFound => FsError::NotFound,
        io::ErrorKind::AlreadyExists => FsError::Exists,
        io::ErrorKind::DirectoryNotEmpty => FsError::NotEmpty,
        io::ErrorKind::StorageFull => FsError::NoSpace,
        _ => FsError::Damaged(error.to_string()),
    }
}

impl Passthrough {
    pub(super) fn new(root: PathBuf) -> io::Result<Passthrough> {
        let ino = fs::metadata(&root)?.ino();
        let mut known = Known::default();
        known.paths.insert(ino, root);
        Ok(Passthrough { root: ino, known: Mutex::new(known) })
    }

    fn inner(&self, ino: Ino) -> u64 {
        if ino == Ino::ROOT { self.root } else { ino.0 }
    }

    fn path(&self, ino: Ino) -> Result<PathBuf, FsError> {
        self.known.lock().paths.get(&self.inner(ino)).cloned().ok_or(FsError::Stale)
    }

    fn child(&self, parent: Ino, name: &[u8]) -> Result<PathBuf, FsError> {
        Ok(self.path(parent)?.join(std::ffi::OsStr::from_bytes(name)))
    }

    fn file(&self, ino: Ino) -> Result<Arc<File>, FsError> {
        let mut known = self.known.lock();
        let ino = self.inner(ino);
        if let Some(file) = known.open.get(&ino) {
            return Ok(file.clone());
        }
        let path = known.paths.get(&ino).ok_or(FsError::Stale)?;
        let opened = OpenOptions::new().read(true).write(true).open(path).map_err(refused)?;
        Ok(known.keep_open(ino, opened))
    }

    /// The attributes of the file at a path, whose inode is remembered.
    fn look(&self, path: PathBuf) -> Result<Attributes, FsError> {
        let found = fs::symlink_metadata(&path).map_err(refused)?;
        let ino = found.ino();
        self.known.lock().paths.insert(ino, path);
        let time = |seconds, nanos: i64| Timestamp { seconds, nanos: nanos as u32 };
        Ok(Attributes {
            ino: if ino == self.root { Ino::ROOT } else { Ino(ino) },
            kind: match found.mode() & libc::S_IFMT {
                libc::S_IFDIR => Kind::Directory,
                libc::S_IFLNK => Kind::Symlink,
                _ => Kind::File,
            },
            mode: (found.mode() & 0o7777) as u16,
            links: found.nlink() as u32,
            uid: found.uid(),
            gid: found.gid(),
            rdev: 0,
            size: found.size(),
            stored: found.blocks() * 512,
            accessed: time(found.atime(), found.atime_nsec()),
            modified: time(found.mtime(), found.mtime_nsec()),
            changed: time(found.ctime(), found.ctime_nsec()),
            created: time(found.ctime(), found.ctime_nsec()),
        })
    }

    fn answer(&self, path: PathBuf) -> Result<Answer, FsError> {
        self.look(path).map(Answer::until_changed)
    }
}

#[async_trait]
impl Filesystem for Passthrough {
    fn is_read_only(&self) -> bool {
        false
    }

    async fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Lookup, FsError> {
        match self.answer(self.child(parent, name)?) {
            Ok(found) => Ok(Lookup::Found(found)),
            Err(FsError::NotFound) => Ok(Lookup::ABSENT),
            Err(error) => Err(error),
        }
    }

    async fn parent(&self, directory: Ino) -> Result<Ino, FsError> {
        let path = self.path(directory)?;
        Ok(self.look(path.parent().ok_or(FsError::Stale)?.to_owned())?.ino)
    }

    async fn attributes(&self, ino: Ino) -> Result<Answer, FsError> {
        self.answer(self.path(ino)?)
    }

    async fn set_attributes(&self, ino: Ino, change: &AttributeChange) -> Result<Answer, FsError> {
        if let Some(size) = change.size {
            self.file(ino)?.set_len(size).map_err(refused)?;
        }
        if let Some(mode) = change.mode {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(u32::from(mode));
            fs::set_permissions(self.path(ino)?, mode).map_err(refused)?;
        }
        self.attributes(ino).await
    }

    async fn create(&self, parent: Ino, name: &[u8], new: &NewNode) -> Result<Answer, FsError> {
        let path = self.child(parent, name)?;
        match &new.node {
            Node::Directory => fs::create_dir(&path).map_err(refused)?,
            Node::Symlink(target) => {
                let target = std::ffi::OsStr::from_bytes(target);
                std::os::unix::fs::symlink(target, &path).map_err(refused)?;
            }
            Node::File => {
                let made = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
                let file = made.map_err(refused)?;
                let ino = file.metadata().map_err(refused)?.ino();
                self.known.lock().keep_open(ino, file);
            }
            _ => return Err(FsError::NotSupported),
        }
        self.answer(path)
    }

    async fn link(&self, _: Ino, _: Ino, _: &[u8]) -> Result<Answer, FsError> {
        Err(FsError::NotSupported)
    }

    async fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        fs::remove_file(self.child(parent, name)?).map_err(refused)
    }

    async fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        fs::remove_dir(self.child(parent, name)?).map_err(refused)
    }

    async fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), _: Rename) -> Result<(), FsError> {
        let to = self.child(to.0, to.1)?;
        fs::rename(self.child(from.0, from.1)?, &to).map_err(refused)?;
        self.look(to).map(drop)
    }

    async fn read_link(&self, ino: Ino) -> Result<Bytes, FsError> {
        let target = fs::read_link(self.path(ino)?).map_err(refused)?;
        Ok(Bytes::copy_from_slice(target.as_os_str().as_bytes()))
    }

    async fn read_directory(
        &self,
        ino: Ino,
        from: Cookie,
        most: usize,
        attributes: bool,
    ) -> Result<Vec<Entry>, FsError> {
        let listed = fs::read_dir(self.path(ino)?).map_err(refused)?;
        let listed = listed.flatten().enumerate().skip(from.0 as usize).take(most);
        let entries = listed.map(|(at, entry)| {
            let found = self.answer(entry.path())?;
            Ok(Entry {
                name: Bytes::copy_from_slice(entry.file_name().as_bytes()),
                ino: found.ino,
                kind: found.kind,
                cookie: Cookie(at as u64 + 1),
                attributes: attributes.then_some(found),
            })
        });
        entries.collect()
    }

    async fn read(&self, ino: Ino, offset: u64, len: usize) -> Result<Vec<Bytes>, FsError> {
        let mut buffer = vec![0; len];
        let read = self.file(ino)?.read_at(&mut buffer, offset).map_err(refused)?;
        buffer.truncate(read);
        Ok(vec![buffer.into()])
    }

    async fn write(
        &self,
        ino: Ino,
        at: WriteAt,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u64, FsError> {
        let file = self.file(ino)?;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => file.metadata().map_err(refused)?.len(),
        };
        let mut at = offset;
        for part in data {
            file.write_all_at(&part, at).map_err(refused)?;
            at += part.len() as u64;
        }
        if how.sync {
            file.sync_all().map_err(refused)?;
        }
        Ok(offset)
    }

    async fn allocate(&self, _: Ino, _: u64, _: u64, _: Allocation) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    async fn seek(&self, _: Ino, _: u64, _: Seek) -> Result<u64, FsError> {
        Err(FsError::NotSupported)
    }

    async fn copy(&self, _: (Ino, u64), _: (Ino, u64), _: u64) -> Result<u64, FsError> {
        Err(FsError::NotSupported)
    }

    async fn sync(&self, ino: Ino, content_only: bool) -> Result<(), FsError> {
        let file = self.file(ino)?;
        if content_only { file.sync_data() } else { file.sync_all() }.map_err(refused)
    }

    async fn level(&self, _: Ino) -> Result<Level, FsError> {
        Ok(Level::Memory)
    }

    async fn wait_for(&self, ino: Ino, level: Level, _: Duration) -> Result<bool, FsError> {
        match level {
            Level::Memory => Ok(true),
            Level::Journal | Level::Server => self.sync(ino, false).await.map(|()| true),
            Level::Replicas => Err(FsError::NoReplicas),
        }
    }

    async fn sync_all(&self) -> Result<(), FsError> {
        Ok(())
    }

    async fn xattr(&self, _: Ino, _: &[u8]) -> Result<Bytes, FsError> {
        Err(FsError::NoAttribute)
    }

    async fn set_xattr(&self, _: Ino, _: &[u8], _: Bytes, _: SetXattr) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    async fn xattrs(&self, _: Ino) -> Result<Vec<Bytes>, FsError> {
        Ok(Vec::new())
    }

    async fn remove_xattr(&self, _: Ino, _: &[u8]) -> Result<(), FsError> {
        Err(FsError::NoAttribute)
    }

    async fn statistics(&self) -> Result<Statistics, FsError> {
        Ok(Statistics { block: 4096, blocks: 1 << 20, free: 1 << 19, inodes: (1, 1 << 20) })
    }

    fn reference(&self, _: Ino) {}

    fn unreference(&self, ino: Ino, _: u64) {
        let inner = self.inner(ino);
        if inner != self.root {
            let mut known = self.known.lock();
            known.paths.remove(&inner);
            known.open.remove(&inner);
            known.order.retain(|open| *open != inner);
        }
    }

    async fn open(&self, _: &Caller, _: Ino, _: OpenFlags) -> Result<Opened, FsError> {
        Ok(Opened::default())
    }

    async fn flush(&self, _: Ino, _: Handle, _: LockOwner) -> Result<(), FsError> {
        Ok(())
    }

    async fn release(&self, _: Ino, _: Handle) {}

    async fn lock(&self, _: Ino, _: &Lock, _: bool) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    async fn unlock(&self, _: Ino, _: LockKind, _: LockOwner, _: LockRange) -> Result<(), FsError> {
        Err(FsError::NotSupported)
    }

    async fn conflicting_lock(&self, _: Ino, _: &Lock) -> Result<Option<Lock>, FsError> {
        Err(FsError::NotSupported)
    }

    fn locks(&self, _: Ino) -> Vec<Lock> {
        Vec::new()
    }

    fn watch(&self, _: Watcher) {}
}
