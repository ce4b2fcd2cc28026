//! Regular files and raw block devices.
//!
//! Requests bypass the page cache (`O_DIRECT`) and go through io_uring. If a filesystem or the system refuses
//! one or the other, the device logs that once and works without it.
//!
//! A request whose future is dropped still completes: its buffers live until the kernel is done, and a
//! dropped write may or may not reach the medium.

mod blocking;
mod locked;
mod open;
mod queue;
mod transfer;
mod uring;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::may_block;

use self::locked::Locked;
use self::open::Opened;
use self::transfer::Transfer;
use self::uring::Driver;

use super::{
    AlignedBuf, Counters, Device, DeviceError, Geometry, Operation, Purpose, QueueDepth, Tallies,
    total_len,
};

/// Which other openers a device may have at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// None.
    Exclusive,
    /// Openers that ask for shared access too. Each owns the ranges that it locks with
    /// [`FileDevice::lock_range`].
    Shared,
    /// Openers that only read too: the device is opened for reading, and the lock excludes writers.
    ReadOnly,
    /// Any: this opener takes no lock, and only reads.
    Reading,
}

impl Access {
    /// Whether the device is opened for reading only, which a write-protected one permits too.
    pub const fn only_reads(self) -> bool {
        matches!(self, Access::ReadOnly | Access::Reading)
    }
}

/// How requests reach the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// io_uring, or blocking threads where it is refused.
    Auto,
    /// Blocking threads.
    Blocking,
}

/// Options for opening or making a file.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Which other openers it may have; none by default.
    pub access: Access,
    /// Whether to bypass the page cache if the filesystem allows it; true by default.
    pub direct: bool,
    /// How requests reach the operating system.
    pub engine: Engine,
    /// Whether to make a sparse file. By default its space is reserved.
    pub sparse: bool,
    /// The sector in bytes, 512 or 4096, in place of the medium's. With a sector smaller than the physical
    /// one, a power cut may damage the neighbours of a write.
    pub sector: Option<u32>,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            access: Access::Exclusive,
            direct: true,
            engine: Engine::Auto,
            sparse: false,
            sector: None,
        }
    }
}

/// Why a request to the operating system failed.
#[derive(Debug)]
enum Failure {
    /// The driver has ended.
    Closed,
    /// A system error.
    Io(io::Error),
}

#[derive(Debug)]
enum Runner {
    Uring(Driver),
    Blocking,
}

/// A regular file or a raw block device, locked while it is open.
#[derive(Debug)]
pub struct FileDevice {
    name: String,
    file: Arc<Locked>,
    size: AtomicU64,
    sector: u32,
    access: Access,
    is_block_device: bool,
    is_rotational: bool,
    drives: Vec<String>,
    direct: bool,
    memory_alignment: usize,
    runner: Runner,
    counters: Counters,
}

impl FileDevice {
    /// Opens the file or block device at `path`. The sector is the larger of the unit of direct I/O and the
    /// physical sector of the drive below, as far as they are known; the size is rounded down to it.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] when it is in use; otherwise the system's error.
    pub async fn open(
        path: impl AsRef<Path>,
        options: &FileOptions,
    ) -> Result<FileDevice, DeviceError> {
        FileDevice::start(path.as_ref(), options, open::open).await
    }

    /// Makes a file of `size` bytes at `path`, which must be free, and opens it. The file and its name are
    /// durable when this returns; its content is zeros.
    ///
    /// # Errors
    /// [`DeviceError::NoSpace`] when its space cannot be reserved, [`DeviceError::Misaligned`] when `size` is
    /// not whole sectors, otherwise the system's error. After an error there is no file.
    pub async fn create(
        path: impl AsRef<Path>,
        size: u64,
        options: &FileOptions,
    ) -> Result<FileDevice, DeviceError> {
        let make = move |path: &Path, options: &FileOptions| open::create(path, size, options);
        FileDevice::start(path.as_ref(), options, make).await
    }

    async fn start<F>(path: &Path, options: &FileOptions, get: F) -> Result<FileDevice, DeviceError>
    where
        F: FnOnce(&Path, &FileOptions) -> Result<Opened, DeviceError> + Send + 'static,
    {
        let name = path.display().to_string();
        let (owned, asked): (PathBuf, FileOptions) = (path.to_owned(), options.clone());
        let opened = tokio::task::spawn_blocking(move || get(&owned, &asked))
            .await
            .map_err(|_| DeviceError::Closed { device: name.clone() })??;
        if options.direct && !opened.direct {
            tracing::warn!(device = name, "no direct I/O here; using the page cache");
        }
        Ok(FileDevice {
            runner: runner(options.engine, &name),
            name,
            file: Arc::new(opened.file),
            size: AtomicU64::new(opened.geometry.size),
            sector: opened.geometry.sector,
            access: options.access,
            is_block_device: opened.is_block_device,
            is_rotational: opened.is_rotational,
            drives: opened.drives,
            direct: opened.direct,
            memory_alignment: opened.memory,
            counters: Counters::default(),
        })
    }

    /// Whether requests bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether requests go through io_uring.
    pub fn uses_io_uring(&self) -> bool {
        matches!(self.runner, Runner::Uring(_))
    }

    /// Whether this is a block device.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Locks `[offset, offset + len)` against every other open of the same file, in this process and others,
    /// until this device is closed. Locks are advisory, between openers that share a device; they do not
    /// restrict requests. A device that is open for reading shares the range with others of its kind.
    ///
    /// # Errors
    /// [`DeviceError::Locked`] when another open holds a part of the range.
    pub fn lock_range(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)?;
        self.file.lock_range(&self.name, offset, len)
    }

    async fn run(&self, operation: Operation, transfer: Transfer) -> Result<Transfer, DeviceError> {
        let outcome = match &self.runner {
            Runner::Uring(driver) => driver.run(transfer).await,
            Runner::Blocking => blocking::run(transfer).await,
        };
        outcome.map_err(|failure| match failure {
            Failure::Closed => DeviceError::Closed { device: self.name.clone() },
            Failure::Io(error) => DeviceError::io(&self.name, operation, error),
        })
    }

    /// A write.
    fn transfer(&self, offset: u64, data: Vec<Bytes>) -> Transfer {
        let data = self.aligned(data);
        Transfer::write(self.file.clone(), offset, data, self.sector)
    }

    /// `data` in memory that is aligned for direct I/O: adjacent buffers that must be copied share one copy.
    fn aligned(&self, data: Vec<Bytes>) -> Vec<Bytes> {
        let fits = |bytes: &Bytes| bytes.as_ptr().addr().is_multiple_of(self.memory_alignment);
        if !self.direct || data.iter().all(fits) {
            return data;
        }
        let gathered = data.chunk_by(|left, right| !fits(left) && !fits(right));
        gathered
            .map(|run| match run {
                [one] if fits(one) => one.clone(),
                run => gather(run),
            })
            .collect()
    }
}

fn gather(run: &[Bytes]) -> Bytes {
    let mut copy = AlignedBuf::zeroed(run.iter().map(Bytes::len).sum());
    let mut filled = 0;
    for bytes in run {
        copy[filled..filled + bytes.len()].copy_from_slice(bytes);
        filled += bytes.len();
    }
    copy.freeze()
}

fn runner(engine: Engine, name: &str) -> Runner {
    if engine == Engine::Blocking {
        return Runner::Blocking;
    }
    match Driver::start() {
        Ok(driver) => Runner::Uring(driver),
        Err(error) => {
            tracing::warn!(device = name, %error, "no io_uring here; using blocking threads");
            Runner::Blocking
        }
    }
}

#[async_trait]
impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size.load(Ordering::Acquire), sector: self.sector }
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry().check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        if len == 0 {
            return Ok(Bytes::new());
        }
        let transfer = Transfer::read(self.file.clone(), offset, len, self.sector);
        Ok(self.run(Operation::Read, transfer).await?.into_bytes())
    }

    async fn write(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry().check(offset, len)?;
        let _queued = self.counters.write(purpose, len);
        if len == 0 {
            return Ok(());
        }
        self.run(Operation::Write, self.transfer(offset, data)).await.map(drop)
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        self.run(Operation::Flush, Transfer::sync(self.file.clone())).await.map(drop)
    }

    async fn write_durably(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry().check(offset, len)?;
        if len == 0 {
            return self.flush(purpose).await;
        }
        let _queued = (self.counters.write(purpose, len), self.counters.flush(purpose));
        let transfer = self.transfer(offset, data).and_sync();
        let operation = Operation::WriteDurably;
        if may_block() {
            let outcome = blocking::finish(transfer);
            return outcome
                .map(drop)
                .map_err(|error| DeviceError::io(&self.name, operation, error));
        }
        self.run(operation, transfer).await.map(drop)
    }

    /// Discards a range of a block device (`BLKDISCARD`), or punches a hole into a file, which also releases
    /// its reserved space. Media that can do neither ignore it.
    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let (file, is_block) = (self.file.clone(), self.is_block_device);
        tokio::task::spawn_blocking(move || open::discard(&file, is_block, offset, len))
            .await
            .map_err(|_| DeviceError::Closed { device: self.name.clone() })?
            .map_err(|error| DeviceError::io(&self.name, Operation::Discard, error))
    }

    /// In a file whose space is fully reserved, the new bytes are reserved too. Of a block device, and of a
    /// file that is open for reading, only the size is read again.
    async fn grow_to(&self, size: Option<u64>) -> Result<u64, DeviceError> {
        let sector = u64::from(self.sector);
        let wanted = size.filter(|_| !self.is_block_device && !self.access.only_reads());
        let wanted = wanted.map_or(0, |size| size.checked_next_multiple_of(sector).unwrap_or(size));
        let (file, is_block) = (self.file.clone(), self.is_block_device);
        let size = tokio::task::spawn_blocking(move || open::grow(&file, is_block, wanted))
            .await
            .map_err(|_| DeviceError::Closed { device: self.name.clone() })?
            .map_err(|error| DeviceError::io(&self.name, Operation::Grow, error))?;
        let size = size - size % sector;
        Ok(self.size.fetch_max(size, Ordering::AcqRel).max(size))
    }

    fn queue_depth(&self) -> QueueDepth {
        self.counters.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.counters.tallies()
    }

    fn is_rotational(&self) -> bool {
        self.is_rotational
    }

    fn drives(&self) -> Vec<String> {
        self.drives.clone()
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
