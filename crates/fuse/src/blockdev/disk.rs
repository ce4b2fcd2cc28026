//! A FUSE filesystem with one file, whose bytes are a volume.
//!
//! The kernel caches nothing of the file: it is opened with `FOPEN_DIRECT_IO`, so every write reaches the
//! volume before it returns, and a block device above the file has the only cache. `fsync` is
//! [`Volume::flush`](thalweg_store::volume::Volume::flush); a write under `O_SYNC` or `O_DSYNC` is one with
//! forced unit access. Only the user that runs the server has access: mode 0600, no `allow_other`.
//!
//! FUSE's threads only decode; every request that needs the volume runs as a task, which answers it.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, WriteFlags,
};
use parking_lot::Mutex;
use thalweg_env::{Env, Time, watch};
use thalweg_store::block::StoreError;
use thalweg_store::device::FrameBuf;
use thalweg_store::volume::VolumeRef;

use super::bytes::{ByteVolume, Seek};
use crate::connection::{Connection, KernelOptions};
use crate::errno::of_store;

/// The name of the one file.
pub const FILE_NAME: &str = "volume";

/// How the source of every such mount begins in the mount table.
pub const SOURCE: &str = "thalweg:";

const FILE: INodeNo = INodeNo(2);
/// The longest request; the kernel's own default limit is 256 pages.
const MAX_REQUEST: u32 = 1 << 20;
/// Requests that the kernel keeps in flight. A loop device's queue holds 128, and direct I/O that
/// is asynchronous counts against this limit.
const MAX_BACKGROUND: u16 = 256;
/// How long a count of the stored bytes is good for.
const COUNT_AGE: Duration = Duration::from_secs(1);
/// Attributes are not cached: the volume may grow at any time.
const TTL: Duration = Duration::ZERO;

/// How a [`mount`] is served.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Threads that take requests from the kernel, each with a queue of its own.
    pub threads: usize,
    /// The volume's name, which the mount table shows behind [`SOURCE`].
    pub name: String,
}

/// A mounted volume. Dropping it unmounts nothing.
#[derive(Debug)]
pub struct Mounted {
    session: BackgroundSession,
    connection: Connection,
    /// Counts the files that were closed for good; closed itself when the mount has ended.
    pub releases: watch::Receiver<u64>,
}

impl Mounted {
    /// Unmounts it, and no other filesystem.
    ///
    /// # Errors
    /// As of [`mounts::unmount`](crate::mounts::unmount).
    pub fn unmount(&self, flags: libc::c_int) -> io::Result<()> {
        match self.connection.has_ended() {
            true => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            false => self.connection.unmount(flags),
        }
    }

    /// Waits for the threads that serve the kernel, after the mount has ended.
    ///
    /// # Errors
    /// The error that ended one of them.
    pub fn join(self) -> io::Result<()> {
        self.session.join()
    }
}

/// Mounts the file of `volume` on the directory `mountpoint`. It blocks until the kernel has sent its first
/// request; requests run on the calling runtime.
///
/// # Errors
/// The system's error.
pub fn mount(
    env: &Env,
    runtime: tokio::runtime::Handle,
    volume: VolumeRef,
    mountpoint: &Path,
    options: &MountOptions,
) -> io::Result<Mounted> {
    let (sender, releases) = watch::channel(0);
    let read_only = if volume.is_read_only() { libc::MS_RDONLY } else { 0 };
    let kernel = KernelOptions {
        source: format!("{SOURCE}{}", options.name),
        subtype: None,
        flags: libc::MS_NODEV | libc::MS_NOSUID | libc::MS_NOEXEC | read_only,
        allow_other: false,
        checks_permissions: true,
    };
    let disk = Disk {
        served: Arc::new(Served {
            env: env.clone(),
            bytes: ByteVolume::new(volume),
            counted: Mutex::new(None),
            since: UNIX_EPOCH + Duration::from_secs(env.wall_clock()),
        }),
        runtime,
        releases: sender,
    };
    let (session, connection) = Connection::mount(disk, mountpoint, &kernel, options.threads)?;
    Ok(Mounted { session: session.spawn()?, connection, releases })
}

/// The filesystem.
struct Disk {
    served: Arc<Served>,
    runtime: tokio::runtime::Handle,
    releases: watch::Sender<u64>,
}

/// The state that the tasks share.
struct Served {
    env: Env,
    bytes: ByteVolume,
    /// How many bytes are stored, and when they were counted.
    counted: Mutex<Option<(Time, u64)>>,
    since: SystemTime,
}

impl Disk {
    /// Runs `work` as a task. Should it panic, the reply that it owns answers `EIO`.
    fn run<F, W>(&self, work: W)
    where
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let _runtime = self.runtime.enter();
        self.served.env.spawn(work(self.served.clone())).detach();
    }

    fn run_empty<F, W>(&self, reply: ReplyEmpty, operation: &'static str, work: W)
    where
        W: FnOnce(Arc<Served>) -> F,
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        self.run(|served| {
            let result = work(served);
            async move {
                match result.await {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(of_store(operation, &error)),
                }
            }
        });
    }
}

impl Served {
    fn root(&self) -> FileAttr {
        FileAttr {
            ino: INodeNo::ROOT,
            size: 0,
            blocks: 0,
            kind: FileType::Directory,
            perm: 0o500,
            nlink: 2,
            ..self.file(0)
        }
    }

    /// The file's attributes when `stored` of its bytes take space.
    fn file(&self, stored: u64) -> FileAttr {
        let volume = self.bytes.volume();
        // SAFETY: both calls only read the process's identity and cannot fail.
        let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
        FileAttr {
            ino: FILE,
            size: volume.size(),
            blocks: stored.div_ceil(512),
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: FileType::RegularFile,
            perm: if volume.is_read_only() { 0o400 } else { 0o600 },
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: volume.preferred_block(),
            flags: 0,
        }
    }

    /// The stored bytes, counted again when the last count is old.
    async fn stored(&self) -> Result<u64, StoreError> {
        let now = self.env.now();
        if let Some((when, stored)) = *self.counted.lock()
            && now.since(when) < COUNT_AGE
        {
            return Ok(stored);
        }
        let stored = self.bytes.stored().await?;
        *self.counted.lock() = Some((now, stored));
        Ok(stored)
    }

    async fn attributes(&self, ino: INodeNo) -> Result<FileAttr, StoreError> {
        match ino {
            FILE => Ok(self.file(self.stored().await?)),
            _ => Ok(self.root()),
        }
    }

    /// How much of a request of `len` bytes at `offset` lies inside the volume.
    fn within(&self, offset: u64, len: usize) -> usize {
        let left = self.bytes.volume().size().saturating_sub(offset);
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }
}

impl Filesystem for Disk {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A kernel that grants less works too, only slower.
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        if let Err(missing) = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO) {
            tracing::warn!(?missing, "the kernel sends direct I/O one request at a time");
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent != INodeNo::ROOT || name != FILE_NAME {
            return reply.error(Errno::ENOENT);
        }
        self.run(|served| async move {
            match served.attributes(FILE).await {
                Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
                Err(error) => reply.error(of_store("lookup", &error)),
            }
        });
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.run(move |served| async move {
            match served.attributes(ino).await {
                Ok(attr) => reply.attr(&TTL, &attr),
                Err(error) => reply.error(of_store("getattr", &error)),
            }
        });
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
        if ino != FILE {
            return reply.error(Errno::EISDIR);
        }
        if writes && self.served.bytes.volume().is_read_only() {
            return reply.error(Errno::EROFS);
        }
        let mut how = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        if !writes {
            how |= FopenFlags::FOPEN_NOFLUSH;
        }
        reply.opened(FileHandle(0), how);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.run(move |served| async move {
            let len = served.within(offset, size as usize);
            if len == 0 {
                return reply.data(&[]);
            }
            match served.bytes.read(offset, len).await {
                Ok(data) => reply.data(&data),
                Err(error) => reply.error(of_store("read", &error)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let len = self.served.within(offset, data.len());
        if len == 0 {
            // As a block device answers a write past its end.
            return if data.is_empty() { reply.written(0) } else { reply.error(Errno::ENOSPC) };
        }
        let Ok(written) = u32::try_from(len) else { return reply.error(Errno::EINVAL) };
        let data = FrameBuf::copy_of(&data[..len]).into_blocks();
        // O_SYNC includes this bit.
        let fua = flags.0 & libc::O_DSYNC != 0;
        self.run(move |served| async move {
            match served.bytes.write_vectored(offset, data, fua).await {
                Ok(()) => reply.written(written),
                Err(error) => reply.error(of_store("write", &error)),
            }
        });
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.fsync(req, ino, fh, false, reply);
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.run_empty(reply, "flush", |served| async move {
            match served.bytes.volume().is_read_only() {
                true => Ok(()),
                false => served.bytes.volume().flush().await,
            }
        });
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        self.releases.send_modify(|count| *count += 1);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let size = self.served.bytes.volume().size();
        let len = length.min(size.saturating_sub(offset));
        let ends_inside = offset.checked_add(length).is_some_and(|end| end <= size);
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE => {
                self.run_empty(reply, "punch", move |served| async move {
                    served.bytes.punch(offset, len).await
                });
            }
            libc::FALLOC_FL_ZERO_RANGE if ends_inside => {
                self.run_empty(reply, "zero", move |served| async move {
                    served.bytes.zero(offset, len, true).await
                });
            }
            // The file cannot grow.
            libc::FALLOC_FL_ZERO_RANGE => reply.error(Errno::ENOSPC),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let seek = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(from) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.run(move |served| async move {
            match served.bytes.seek(from, seek).await.map(|at| at.map(i64::try_from)) {
                Ok(Some(Ok(at))) => reply.offset(at),
                Ok(Some(Err(_))) => reply.error(Errno::EOVERFLOW),
                Ok(None) => reply.error(Errno::ENXIO),
                Err(error) => reply.error(of_store("seek", &error)),
            }
        });
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let resizes = size.is_some_and(|size| size != self.served.bytes.volume().size());
        if mode.is_some() || uid.is_some() || gid.is_some() || resizes {
            return reply.error(Errno::EPERM);
        }
        // Times are not kept.
        self.run(move |served| async move {
            match served.attributes(ino).await {
                Ok(attr) => reply.attr(&TTL, &attr),
                Err(error) => reply.error(of_store("setattr", &error)),
            }
        });
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, FILE_NAME),
        ];
        for (next, (ino, kind, name)) in (1..).zip(entries).skip(offset.min(3) as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let volume = self.served.bytes.volume();
        // A loop device takes its discard granularity from here.
        let unit = volume.preferred_block();
        reply.statfs(volume.size() / u64::from(unit.max(1)), 0, 0, 1, 0, unit, 255, unit);
    }
}
