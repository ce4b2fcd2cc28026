//! A device of the store, striped over objects.
//!
//! The device has no cache and no state besides its fence: reads and writes go to the objects, several at once. RADOS
//! acknowledges what is durable, so a flush only waits for the changes that were started before it. A request whose
//! future is dropped may or may not be carried out; its objects are changed in any order.

mod open;

pub(crate) use open::How;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_env::{Env, Task, Term};
use thalweg_store::device::{
    Counters, Device, DeviceError, Geometry, Operation, Purpose, QueueDepth, Tallies, total_len,
};
use tokio::sync::Semaphore;

use crate::ObjectError;
use crate::fence::{Fence, LOCK};
use crate::files::FileObjects;
use crate::format::{Header, files_prefix};
use crate::object::{LockName, ObjectStoreRef};
use crate::striped::{Names, Striped};

/// Layout of a new device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RadosOptions {
    /// Bytes of an object: whole sectors, at most 64 MiB.
    pub object_size: u64,
    /// The sector in bytes, 512 or 4096. An operation on an object is atomic, whichever it is.
    pub sector: u32,
}

impl Default for RadosOptions {
    fn default() -> RadosOptions {
        RadosOptions { object_size: 4 << 20, sector: 4096 }
    }
}

/// What a device is opened for, and what becomes of another client that has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// For reading and writing. Another client that has it open: [`DeviceError::Locked`].
    Exclusive,
    /// For reading and writing. Another client is stopped: its address goes onto the cluster's blocklist, and its lock
    /// is broken. A client that did not close the device when it ended looks the same as a running one.
    TakeOver,
    /// For reading. Other readers may have it open too; a writer: [`DeviceError::Locked`].
    ReadOnly,
    /// For reading, without a lock: another client may change it meanwhile.
    Unlocked,
}

impl Opening {
    fn writes(self) -> bool {
        matches!(self, Opening::Exclusive | Opening::TakeOver)
    }
}

/// Tells when a device that was dropped has released its lock.
#[derive(Clone, Debug)]
pub struct Released(Arc<Semaphore>);

impl Released {
    /// Waits for the device's end: until it was dropped, and then for the changes in flight and the release.
    pub async fn wait(&self) {
        // It has no permits, and is closed at the end.
        let _closed = self.0.acquire().await;
    }
}

/// A device over the objects of an image. The image stays locked until [`RadosDevice::close`], or until the device is
/// dropped and its last change has ended.
#[derive(Debug)]
pub struct RadosDevice {
    shared: Arc<Shared>,
    size: AtomicU64,
    /// Held while the header is rewritten.
    growing: tokio::sync::Mutex<()>,
    counters: Counters,
    /// Writes the beats of an image that is served.
    _beating: Option<Task<()>>,
}

/// What outlives the device until its lock is released.
#[derive(Debug)]
struct Shared {
    env: Env,
    store: ObjectStoreRef,
    image: String,
    /// The header as this opening wrote it; the size may have grown since.
    header: Header,
    header_object: String,
    cookie: String,
    opening: Opening,
    /// Closed with the device.
    fence: Arc<Fence>,
    /// How long a server of the image may answer.
    term: Option<Arc<Term>>,
    /// Closed when nothing refers to the device any more.
    released: Arc<Semaphore>,
}

impl RadosDevice {
    /// Whether another client took the device over, so that every request fails.
    pub fn is_fenced(&self) -> bool {
        self.shared.fence.is_lost()
    }

    /// Whether it was closed; every request fails.
    pub fn is_closed(&self) -> bool {
        self.shared.fence.is_closed()
    }

    /// Contents of the files of a filesystem whose names lie on this device. They have the device's lock and its fence,
    /// and end with it.
    ///
    /// # Errors
    /// [`ObjectError::Invalid`] when the device's objects have no bytes.
    pub fn files(&self, filesystem: &str) -> Result<FileObjects, ObjectError> {
        let shared = &*self.shared;
        let prefix = files_prefix(&shared.image, filesystem);
        let (store, stripe) = (shared.store.clone(), shared.header.object_size);
        FileObjects::new(store, &prefix, stripe, shared.fence.clone())
    }

    /// The identity of the cluster.
    pub(crate) async fn cluster(&self) -> Result<String, ObjectError> {
        self.shared.store.cluster().await
    }

    /// The number of openings for writing so far, this one included.
    pub fn epoch(&self) -> u64 {
        self.shared.fence.epoch()
    }

    /// The identity that the image got when it was created.
    pub fn identity(&self) -> uuid::Uuid {
        self.shared.header.identity
    }

    /// Tells when the lock is released after the device was dropped.
    pub fn released(&self) -> Released {
        Released(self.shared.released.clone())
    }

    /// Waits for the changes in flight, and releases the lock. Later requests fail.
    ///
    /// After a change without an answer the lock stays, since the change may be made later: the next opening has to
    /// take over.
    ///
    /// # Errors
    /// The device's error when the lock cannot be released.
    pub async fn close(&self) -> Result<(), DeviceError> {
        let closed = self.shared.close().await;
        closed.map_err(|error| error.of_device(&self.name(), Operation::Lock))
    }

    /// The objects, if the device is open and not fenced.
    fn objects(&self) -> Result<Striped<'_>, ObjectError> {
        let shared = &*self.shared;
        shared.fence.admit()?;
        Ok(Striped {
            store: &*shared.store,
            fence: &shared.fence,
            unit: shared.header.object_size,
            names: Names::Image(&shared.image),
        })
    }

    /// The same, if it is open for writing.
    fn writable(&self) -> Result<Striped<'_>, ObjectError> {
        let objects = self.objects()?;
        match self.shared.opening.writes() {
            true => Ok(objects),
            false => Err(ObjectError::Invalid {
                object: self.shared.path(),
                reason: "the device is open for reading".to_owned(),
            }),
        }
    }

    async fn write_now(&self, offset: u64, data: &[Bytes]) -> Result<(), ObjectError> {
        self.writable()?.write(offset, data).await
    }

    async fn grow(&self, size: Option<u64>) -> Result<u64, ObjectError> {
        let shared = &self.shared;
        let _growing = self.growing.lock().await;
        self.writable()?;
        let sector = u64::from(shared.header.sector);
        let now = self.size.load(Ordering::Acquire);
        let size = size.map_or(0, |size| size.checked_next_multiple_of(sector).unwrap_or(0));
        if size <= now {
            return Ok(now);
        }
        let header = Header { size, ..shared.header };
        let object = shared.path();
        let valid = header.check();
        valid.map_err(|error| ObjectError::Invalid { object, reason: error.to_string() })?;
        let (name, data) = (&shared.header_object, header.encode());
        shared.fence.replace_locked(&*shared.store, name, &shared.cookie, data, &[]).await?;
        self.size.store(size, Ordering::Release);
        Ok(size)
    }

    fn error(&self, operation: Operation) -> impl FnOnce(ObjectError) -> DeviceError {
        let name = self.name();
        let closed = self.is_closed();
        move |error| match closed {
            true => DeviceError::Closed { device: name },
            false => error.of_device(&name, operation),
        }
    }
}

impl Shared {
    /// The header for messages.
    fn path(&self) -> String {
        format!("{}/{}", self.store.name(), self.header_object)
    }

    async fn close(&self) -> Result<(), ObjectError> {
        if self.fence.close() || self.fence.is_lost() {
            return Ok(());
        }
        if self.opening == Opening::Unlocked {
            return Ok(());
        }
        self.store.settle().await?;
        if self.fence.is_doubtful() {
            let image = self.path();
            tracing::warn!(
                image,
                "the lock stays, because a change without an answer may be made later"
            );
            return Ok(());
        }
        // From the release on, another server may answer.
        if let Some(term) = &self.term {
            term.expire();
        }
        let lock = LockName { name: LOCK, cookie: &self.cookie };
        match self.store.unlock(&self.header_object, &lock).await {
            // Another client broke it.
            Err(ObjectError::NotFound { .. }) => Ok(()),
            outcome => outcome,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.released.close();
    }
}

impl Drop for RadosDevice {
    fn drop(&mut self) {
        if self.is_closed() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let shared = self.shared.clone();
        let closing = async move {
            if let Err(error) = shared.close().await {
                let image = shared.path();
                tracing::warn!(image, %error, "the lock of a device stays: the next opening takes over");
            }
        };
        self.shared.env.spawn(closing).detach();
    }
}

#[async_trait]
impl Device for RadosDevice {
    fn geometry(&self) -> Geometry {
        let size = self.size.load(Ordering::Acquire);
        Geometry { size, sector: self.shared.header.sector }
    }

    async fn read(&self, offset: u64, len: usize, purpose: Purpose) -> Result<Bytes, DeviceError> {
        self.geometry().check(offset, len as u64)?;
        let _queued = self.counters.read(purpose, len as u64);
        let read = async { self.objects()?.read(offset, len).await };
        read.await.map_err(self.error(Operation::Read))
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
        self.write_now(offset, &data).await.map_err(self.error(Operation::Write))
    }

    async fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        let _queued = self.counters.flush(purpose);
        let settled = async { self.objects()?.settle().await };
        settled.await.map_err(self.error(Operation::Flush))
    }

    /// A write that is acknowledged is durable, and so is every one that was acknowledged before it.
    async fn write_durably(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        purpose: Purpose,
    ) -> Result<(), DeviceError> {
        let len = total_len(&data);
        self.geometry().check(offset, len)?;
        let _queued = (self.counters.write(purpose, len), self.counters.flush(purpose));
        let written = self.write_now(offset, &data).await;
        written.map_err(self.error(Operation::WriteDurably))
    }

    /// Removes whole objects, and zeros the parts of other ones.
    async fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.geometry().check(offset, len)?;
        let discarded = async { self.writable()?.discard(offset, len).await };
        discarded.await.map_err(self.error(Operation::Discard))
    }

    /// Rewrites the header; no object is made.
    async fn grow_to(&self, size: Option<u64>) -> Result<u64, DeviceError> {
        self.grow(size).await.map_err(self.error(Operation::Grow))
    }

    fn queue_depth(&self) -> QueueDepth {
        self.counters.queue_depth()
    }

    fn tallies(&self) -> Tallies {
        self.counters.tallies()
    }

    fn name(&self) -> String {
        format!("rados:{}/{}", self.shared.store.name(), self.shared.image)
    }
}
