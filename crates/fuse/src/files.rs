//! Serves a filesystem to the kernel, through FUSE.
//!
//! FUSE's threads decode a request and run it until it has to wait; a task finishes it and answers, so that
//! many requests are in flight. The kernel checks permissions, resolves paths, keeps locks, and caches
//! names, attributes, pages and links; [`Filesystem::watch`] tells it of changes through other handles.
//!
//! **Durability.** A write reaches the filesystem before it returns, byte for byte, unless the mount has
//! [`MountOptions::writeback_cache`]; `fsync` is [`Filesystem::sync`]. For a file open with `O_SYNC` or
//! `O_DSYNC` the kernel sends an fsync after every write; with `O_DIRECT` it does not, and the write syncs.
//! The kernel does not forward `sync` and `syncfs` to filesystems in user space; they push out the kernel's
//! own cache alone.
//!
//! **Unmounts.** The kernel does not wait for the server of a filesystem in user space that it unmounts,
//! unless a block device lies below. But umount(8) sends a statfs before it unmounts, and waits for the
//! answer: the server makes everything durable before it answers.
//!
//! **Direct and cached.** A direct write bypasses the kernel's cache. After an asynchronous one the kernel
//! does not drop pages that were read during the write. So where the file is open for cached access too,
//! the answer waits until they are dropped.
//!
//! **Privileges.** A write clears set-user-id, set-group-id and capabilities of a file. The kernel leaves
//! this to the filesystem, and saves a request before every write in return.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use thalweg_env::{Env, allow_blocking};
use thalweg_fs::{
    Allocation, AttributeChange, Attributes, Change, Cookie, Filesystem, FsError, Ino, Kind,
    NewNode, Node, Rename, Seek, SetXattr, WriteAt, WriteHow,
};
use tokio::sync::watch;

use crate::attributes::{file_attr, file_type, nothing, time_change};
use crate::coherence::Coherence;
use crate::errno::errno;
use crate::known::Known;
use crate::mounted::MountOptions;
use crate::stages::{Stage, Stages};

/// The longest request; the kernel's own default limit is 256 pages.
const MAX_REQUEST: u32 = 1 << 20;
/// Requests that the kernel keeps in flight beside those that a program waits for.
const MAX_BACKGROUND: u16 = 256;
/// How long the kernel may cache names and attributes: until an invalidation.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// No inode number is ever given again.
const GENERATION: Generation = Generation(0);
/// Entries of a directory that are read at a time.
const ENTRIES: usize = 128;
/// Places in a directory before the first entry: `.` and `..`.
const DOTS: u64 = 2;
/// Most bytes that one request copies: fits the answer's 32 bits.
const MAX_COPY: u64 = 1 << 30;
/// The handle of every file whose pages the kernel caches.
const CACHED: FileHandle = FileHandle(0);
/// The handle of every file whose pages it does not cache.
const DIRECT: FileHandle = FileHandle(1);
const CAPABILITIES: &[u8] = b"security.capability";

/// The callbacks of FUSE's threads.
pub(crate) struct Adapter {
    env: Env,
    served: Arc<Served>,
    runtime: tokio::runtime::Handle,
    writeback_cache: bool,
    private: bool,
    /// Whether a thread may wait for a device while another takes requests.
    may_block: bool,
    stages: Stages,
    /// Dropped when the mount has ended.
    _life: watch::Sender<()>,
}

/// The state that the tasks share.
pub(crate) struct Served {
    filesystem: Arc<dyn Filesystem>,
    known: Known,
    /// Set before the first request.
    notifier: OnceLock<(Notifier, Coherence)>,
}

/// Any kind of reply.
trait Refuse: Send + 'static {
    fn refuse(self, errno: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => {
        $(impl Refuse for $reply {
            fn refuse(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyLseek,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

impl Adapter {
    /// An adapter that lives as long as its mount.
    pub(crate) fn new(
        env: &Env,
        runtime: tokio::runtime::Handle,
        filesystem: Arc<dyn Filesystem>,
        options: &MountOptions,
        life: watch::Sender<()>,
    ) -> Adapter {
        let (known, notifier) = (Known::default(), OnceLock::new());
        Adapter {
            env: env.clone(),
            served: Arc::new(Served { filesystem, known, notifier }),
            runtime,
            writeback_cache: options.writeback_cache,
            private: options.private,
            may_block: options.threads > 1,
            stages: Stages::new(env),
            _life: life,
        }
    }

    /// How long requests take.
    pub(crate) fn stages(&self) -> &Stages {
        &self.stages
    }

    /// The state that its tasks share.
    pub(crate) fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Runs `work` as a task, and answers with `tell`. If it panics, the reply answers `EIO`.
    fn run<R, T, W, F>(
        &self,
        operation: &'static str,
        reply: R,
        work: W,
        tell: impl FnOnce(R, T) + Send + 'static,
    ) where
        R: Refuse,
        T: Send,
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<T, FsError>> + Send + 'static,
    {
        let work = work(self.served.clone());
        self.start(operation, async move {
            match work.await {
                Ok(result) => tell(reply, result),
                Err(error) => reply.refuse(errno(operation, &error)),
            }
        });
    }

    /// Runs a task: on this thread until it has to wait, and from there on in the runtime. A request that
    /// memory can answer never waits, which saves two switches between threads.
    fn start(&self, operation: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let _runtime = self.runtime.enter();
        let (stages, begun) = (self.stages.clone(), self.stages.now());
        let mut task = Box::pin(async move {
            task.await;
            stages.end(Stage::of(operation), begun);
        });
        let mut first = || task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let first = move || match self.may_block {
            true => allow_blocking(first),
            false => first(),
        };
        match std::panic::catch_unwind(AssertUnwindSafe(first)) {
            Ok(false) => {
                let (stages, queued) = (self.stages.clone(), self.stages.now());
                // The runtime polls the task again right away, with a real waker.
                let task = async move {
                    stages.end(Stage::Queue, queued);
                    task.await;
                };
                self.env.spawn(task).detach();
            }
            Ok(true) => {}
            Err(_) => tracing::error!("a request panicked"),
        }
    }

    fn run_empty<W, F>(&self, operation: &'static str, reply: ReplyEmpty, work: W)
    where
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<(), FsError>> + Send + 'static,
    {
        self.run(operation, reply, work, |reply, ()| reply.ok());
    }

    /// Makes an inode with a name.
    fn make(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        node: Node,
        (mode, umask): (u32, u32),
        reply: ReplyEntry,
    ) {
        let new = new_node(request, node, mode, umask);
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        self.run(
            "make",
            reply,
            |served| async move {
                let made = served.filesystem.create(parent, &name, &new).await?;
                Ok(served.tell_of(made))
            },
            |reply, made| reply.entry(&TTL, &made, GENERATION),
        );
    }

    /// The handle of a file that was opened with these flags, and how the kernel is to treat it.
    fn opened(flags: i32) -> (FileHandle, FopenFlags) {
        let flush = FopenFlags::FOPEN_NOFLUSH;
        match flags & libc::O_DIRECT {
            0 => (CACHED, flush | FopenFlags::FOPEN_KEEP_CACHE),
            _ => {
                let parallel = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
                (DIRECT, flush | FopenFlags::FOPEN_DIRECT_IO | parallel)
            }
        }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if !self.private {
            self.served.filesystem.watch(Box::new(|_| {}));
        }
        let _runtime = self.runtime.enter();
        self.served.known.forget_all(&*self.served.filesystem);
    }
}

impl Served {
    /// Before the first request: how the kernel is told things.
    pub(crate) fn greet(&self, notifier: Notifier, coherence: Coherence) {
        let _ = self.notifier.set((notifier, coherence));
    }

    /// An inode may have privileges from now on, which did not come through the kernel.
    pub(crate) fn granted(&self, ino: Ino) {
        self.known.granted(ino);
    }

    /// The kernel counts that it was told of an inode, and so do we.
    fn tell_of(&self, attributes: Attributes) -> FileAttr {
        self.known.remember(&*self.filesystem, attributes.ino);
        file_attr(&attributes)
    }

    /// Changes content, which clears privileges: the capabilities here, set-user-id and set-group-id within
    /// `change`.
    async fn change_content<T, F>(&self, ino: Ino, change: F) -> Result<T, FsError>
    where
        F: Future<Output = Result<T, FsError>>,
    {
        if self.known.is_plain(ino) || !self.has_privileges(ino).await? {
            return change.await;
        }
        match self.filesystem.remove_xattr(ino, CAPABILITIES).await {
            Ok(()) | Err(FsError::NoAttribute) => {}
            Err(error) => return Err(error),
        }
        let result = change.await;
        if let Some((notifier, _)) = self.notifier.get() {
            // For attributes alone the kernel takes no lock.
            let _ = notifier.inval_inode(INodeNo(ino.0), -1, 0);
        }
        result
    }

    /// Takes set-user-id and set-group-id away, where there is a file that may have them.
    async fn clear_suid(&self, ino: Ino) -> Result<(), FsError> {
        if self.known.is_plain(ino) {
            return Ok(());
        }
        let change = AttributeChange { clear_suid: true, ..AttributeChange::default() };
        self.filesystem.set_attributes(ino, &change).await.map(drop)
    }

    /// Whether an inode has privileges that a write clears. A negative answer is cached.
    async fn has_privileges(&self, ino: Ino) -> Result<bool, FsError> {
        let grants = self.known.grants();
        let attributes = self.filesystem.attributes(ino).await?;
        let capable = match self.filesystem.xattr(ino, CAPABILITIES).await {
            Ok(_) => true,
            Err(FsError::NoAttribute | FsError::NotSupported) => false,
            Err(error) => return Err(error),
        };
        let privileged = capable || attributes.mode & 0o6000 != 0;
        if !privileged {
            self.known.note_plain(ino, grants);
        }
        Ok(privileged)
    }

    /// Calls `add` with the entries from a place on, until it has room for no more. `add` gets the
    /// inode, the next place, the name, the kind and, where `plus` is set, the attributes.
    async fn list(
        &self,
        ino: Ino,
        from: u64,
        plus: bool,
        mut add: impl FnMut(Ino, u64, &[u8], Kind, Option<Attributes>) -> bool,
    ) -> Result<(), FsError> {
        let mut place = from;
        while let Some((next, name)) = [(1, &b"."[..]), (2, b"..")].get(place as usize) {
            let shown = if *next == 1 { ino } else { self.filesystem.parent(ino).await? };
            if add(shown, *next, name, Kind::Directory, None) {
                return Ok(());
            }
            place = *next;
        }
        loop {
            let from = Cookie(place - DOTS);
            let entries = self.filesystem.read_directory(ino, from, ENTRIES, plus).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let next = entry.cookie.0 + DOTS;
                if add(entry.ino, next, &entry.name, entry.kind, entry.attributes) {
                    return Ok(());
                }
                place = next;
            }
        }
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A kernel that grants less works too, only slower.
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_readahead(MAX_REQUEST);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        // Without these, the kernel would not apply the filesystem's permissions.
        let needed = InitFlags::FUSE_DONT_MASK | InitFlags::FUSE_POSIX_ACL;
        config.add_capabilities(needed).map_err(|missing| {
            io::Error::new(io::ErrorKind::Unsupported, format!("the kernel lacks {missing:?}"))
        })?;
        let mut wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        if self.writeback_cache {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        for flag in wanted.iter() {
            if config.add_capabilities(flag).is_err() {
                tracing::info!(?flag, "the kernel does not do this");
            }
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        self.run(
            "lookup",
            reply,
            |served| async move {
                match served.filesystem.lookup(parent, &name).await {
                    Ok(found) => Ok(served.tell_of(found)),
                    // That there is no such name may be believed as long.
                    Err(FsError::NotFound) => Ok(nothing()),
                    Err(error) => Err(error),
                }
            },
            |reply, found| reply.entry(&TTL, &found, GENERATION),
        );
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        let _runtime = self.runtime.enter();
        self.served.known.forget(&*self.served.filesystem, Ino(ino.0), count);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.run(
            "getattr",
            reply,
            |served| async move { served.filesystem.attributes(Ino(ino.0)).await },
            |reply, attributes| reply.attr(&TTL, &file_attr(&attributes)),
        );
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = AttributeChange {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            accessed: accessed.map(time_change),
            modified: modified.map(time_change),
            // A new owner, and a truncation by a user other than root, clear privileges. A mode in the same
            // request is the caller's own choice.
            clear_suid: mode.is_none()
                && (uid.is_some() || gid.is_some() || (size.is_some() && request.uid() != 0)),
        };
        let ino = Ino(ino.0);
        if mode.is_some() {
            self.served.known.granted(ino);
        }
        self.run(
            "setattr",
            reply,
            |served| async move { served.filesystem.set_attributes(ino, &change).await },
            |reply, attributes| reply.attr(&TTL, &file_attr(&attributes)),
        );
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        self.run(
            "readlink",
            reply,
            |served| async move { served.filesystem.read_link(Ino(ino.0)).await },
            |reply, target| reply.data(&target),
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let node = match mode & libc::S_IFMT {
            libc::S_IFREG => Node::File,
            libc::S_IFBLK => Node::BlockDevice(rdev),
            libc::S_IFCHR => Node::CharDevice(rdev),
            libc::S_IFIFO => Node::Fifo,
            libc::S_IFSOCK => Node::Socket,
            _ => return reply.error(Errno::EINVAL),
        };
        self.make(request, (parent, name), node, (mode, umask), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.make(request, (parent, name), Node::Directory, (mode, umask), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let node = Node::Symlink(bytes_of(target.as_os_str()));
        self.make(request, (parent, name), node, (0o777, 0), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = new_node(request, Node::File, mode, umask);
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        let served = self.served.clone();
        self.run(
            "create",
            reply,
            move |served| async move {
                match served.filesystem.create(parent, &name, &new).await {
                    Ok(made) => Ok(served.tell_of(made)),
                    // The kernel thought the name was free: it is to look again, and to check whether
                    // the file there may be opened.
                    Err(FsError::Exists) if flags & libc::O_EXCL == 0 => Err(FsError::Stale),
                    Err(error) => Err(error),
                }
            },
            move |reply, made| {
                let (handle, how) = Adapter::opened(flags);
                if handle == CACHED {
                    served.known.note_cached(Ino(made.ino.0));
                }
                reply.created(&TTL, &made, GENERATION, handle, how);
            },
        );
    }

    fn link(
        &self,
        _request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (ino, parent, name) = (Ino(ino.0), Ino(parent.0), bytes_of(name));
        self.run(
            "link",
            reply,
            |served| async move {
                let linked = served.filesystem.link(ino, parent, &name).await?;
                Ok(served.tell_of(linked))
            },
            |reply, linked| reply.entry(&TTL, &linked, GENERATION),
        );
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        self.run_empty("unlink", reply, |served| async move {
            served.filesystem.unlink(parent, &name).await
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        self.run_empty("rmdir", reply, |served| async move {
            served.filesystem.remove_directory(parent, &name).await
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = match flags.bits() {
            0 => Rename::Replace,
            libc::RENAME_NOREPLACE => Rename::NoReplace,
            libc::RENAME_EXCHANGE => Rename::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (from, name) = (Ino(parent.0), bytes_of(name));
        let (to, new_name) = (Ino(new_parent.0), bytes_of(new_name));
        self.run_empty("rename", reply, move |served| async move {
            served.filesystem.rename((from, &name), (to, &new_name), how).await
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // The kernel knows an open inode, and so it has a reference.
        let writes = flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
        if writes && self.served.filesystem.is_read_only() {
            return reply.error(Errno::EROFS);
        }
        let (handle, how) = Adapter::opened(flags.0);
        if handle == CACHED {
            self.served.known.note_cached(Ino(ino.0));
        }
        reply.opened(handle, how);
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.run(
            "read",
            reply,
            move |served| async move {
                served.filesystem.read(Ino(ino.0), offset, size as usize).await
            },
            |reply, data| match &data[..] {
                [] => reply.data(&[]),
                [one] => reply.data(one),
                several => reply.data(&several.concat()),
            },
        );
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Ok(len) = u32::try_from(data.len()) else { return reply.error(Errno::EINVAL) };
        // A write of the kernel's cache has its offset already, and belongs to no handle.
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = !cached && flags.0 & libc::O_APPEND != 0;
        let at = if appends { WriteAt::End } else { WriteAt::Offset(offset) };
        let how = WriteHow {
            // O_SYNC includes this bit. Where it keeps the pages, the kernel itself asks for a sync
            // after the write.
            sync: handle == DIRECT && !cached && flags.0 & libc::O_DSYNC != 0,
            clear_suid: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let (ino, data) = (Ino(ino.0), Bytes::copy_from_slice(data));
        let direct = !cached && (handle == DIRECT || flags.0 & libc::O_DIRECT != 0);
        self.run(
            "write",
            reply,
            move |served| async move {
                let write = served.filesystem.write(ino, at, vec![data], how);
                let went = served.change_content(ino, write).await?;
                let Some((_, coherence)) = served.notifier.get() else { return Ok(()) };
                if went != offset {
                    // Another handle made the file longer: the kernel has the page at a wrong offset.
                    coherence.invalidate(Change::Inode { ino, content: true });
                } else if direct && served.known.is_cached(ino) {
                    match handle {
                        DIRECT => coherence.drop_pages(ino, offset, u64::from(len)).await,
                        // The flag was set later. Should it come and go, the kernel might hold the pages
                        // until this write is answered, so the answer does not wait.
                        _ => coherence.invalidate(Change::Inode { ino, content: true }),
                    }
                }
                Ok(())
            },
            move |reply, ()| reply.written(len),
        );
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing promises nothing.
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        content_only: bool,
        reply: ReplyEmpty,
    ) {
        self.run_empty("fsync", reply, move |served| async move {
            served.filesystem.sync(Ino(ino.0), content_only).await
        });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        content_only: bool,
        reply: ReplyEmpty,
    ) {
        self.fsync(request, ino, handle, content_only, reply);
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let served = self.served.clone();
        self.start("readdir", async move {
            let add = |ino: Ino, next, name: &[u8], kind, _| {
                reply.add(INodeNo(ino.0), next, file_type(kind), OsStr::from_bytes(name))
            };
            match served.list(Ino(ino.0), offset, false, add).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno("readdir", &error)),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let served = self.served.clone();
        self.start("readdirplus", async move {
            let add = |ino: Ino, next, name: &[u8], kind, attributes: Option<Attributes>| {
                let name = OsStr::from_bytes(name);
                let inode = INodeNo(ino.0);
                let Some(attributes) = attributes else {
                    // The kernel takes the number and the kind, and counts nothing.
                    let dots = FileAttr { ino: inode, kind: file_type(kind), ..nothing() };
                    return reply.add(inode, next, name, &Duration::ZERO, &dots, GENERATION);
                };
                // Before the kernel can forget it.
                let attr = served.tell_of(attributes);
                let full = reply.add(inode, next, name, &TTL, &attr, GENERATION);
                if full {
                    served.known.forget(&*served.filesystem, ino, 1);
                }
                full
            };
            match served.list(Ino(ino.0), offset, true, add).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno("readdirplus", &error)),
            }
        });
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let leaves = is_umount(request.pid()) && !self.served.filesystem.is_read_only();
        self.run(
            "statfs",
            reply,
            move |served| async move {
                if leaves && let Err(error) = served.filesystem.sync_all().await {
                    tracing::error!(%error, "writes before the unmount are not durable");
                }
                served.filesystem.statistics().await
            },
            |reply, it| {
                let (used, most) = it.inodes;
                let free = most.saturating_sub(used);
                reply.statfs(
                    it.blocks,
                    it.free,
                    it.free,
                    most,
                    free,
                    it.block,
                    thalweg_fs::filesystem::MAX_NAME as u32,
                    it.block,
                );
            },
        );
    }

    fn setxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (ino, name, value) = (Ino(ino.0), bytes_of(name), Bytes::copy_from_slice(value));
        if name == CAPABILITIES {
            self.served.known.granted(ino);
        }
        self.run_empty("setxattr", reply, move |served| async move {
            served.filesystem.set_xattr(ino, &name, value, how).await
        });
    }

    fn getxattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let (ino, name) = (Ino(ino.0), bytes_of(name));
        // The kernel asks for this again and again.
        if name == CAPABILITIES && self.served.known.is_plain(ino) {
            return reply.error(Errno::ENODATA);
        }
        self.run(
            "getxattr",
            reply,
            |served| async move { served.filesystem.xattr(ino, &name).await },
            move |reply, value| answer_sized(reply, &value, size),
        );
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let is_root = request.uid() == 0;
        self.run(
            "listxattr",
            reply,
            |served| async move { served.filesystem.xattrs(Ino(ino.0)).await },
            move |reply, names| {
                let mut list = Vec::new();
                for name in names.iter().filter(|name| is_root || !name.starts_with(b"trusted.")) {
                    list.extend_from_slice(name);
                    list.push(0);
                }
                answer_sized(reply, &list, size);
            },
        );
    }

    fn removexattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (ino, name) = (Ino(ino.0), bytes_of(name));
        self.run_empty("removexattr", reply, move |served| async move {
            match served.filesystem.remove_xattr(ino, &name).await {
                // The kernel lets a program remove the list of a file without one.
                Err(FsError::NoAttribute) if name.starts_with(b"system.posix_acl_") => Ok(()),
                result => result,
            }
        });
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocation::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero { keep_size },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let (ino, is_root) = (Ino(ino.0), request.uid() == 0);
        self.run_empty("fallocate", reply, move |served| async move {
            let change = async {
                served.filesystem.allocate(ino, offset, len, how).await?;
                if is_root { Ok(()) } else { served.clear_suid(ino).await }
            };
            served.change_content(ino, change).await
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.run(
            "lseek",
            reply,
            move |served| async move { served.filesystem.seek(Ino(ino.0), offset, what).await },
            |reply, at| match i64::try_from(at) {
                Ok(at) => reply.offset(at),
                Err(_) => reply.error(Errno::EOVERFLOW),
            },
        );
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((Ino(from.0), from_offset), (Ino(to.0), to_offset));
        let is_root = request.uid() == 0;
        self.run(
            "copy",
            reply,
            move |served| async move {
                let change = async {
                    let copied = served.filesystem.copy(from, to, len.min(MAX_COPY)).await?;
                    if copied > 0 && !is_root {
                        served.clear_suid(to.0).await?;
                    }
                    Ok(copied)
                };
                served.change_content(to.0, change).await
            },
            |reply, copied| reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
        );
    }
}

/// Whether a process is umount(8).
fn is_umount(process: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
    name.is_ok_and(|name| name.trim_end() == "umount")
}

fn bytes_of(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn new_node(request: &Request, node: Node, mode: u32, umask: u32) -> NewNode {
    NewNode {
        node,
        mode: (mode & 0o7777) as u16,
        umask: (umask & 0o777) as u16,
        uid: request.uid(),
        gid: request.gid(),
    }
}

/// Answers a request for the size, or sends the value if it fits.
fn answer_sized(reply: ReplyXattr, value: &[u8], size: u32) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}
