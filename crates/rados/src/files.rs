//! Contents of files in objects named by inode and stripe.
//!
//! Sizes and times of files are kept elsewhere: a byte that was never written reads as zero, whether the file has it
//! or not. Several clients may write with the same epoch, as the server of the namespace permits them; a client with
//! an older epoch changes no object that one with a newer epoch has written.
//!
//! [`RadosDevice::files`](crate::RadosDevice::files) are those of a filesystem whose names lie on the device. They have the
//! device's fence, and end with it. Their names begin with `IMAGE@FILESYSTEM`, which is the name of no image.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_fs::contents::{SizeRecord, Space, Stored};

use crate::ObjectError;
use crate::fence::{Fence, shut_out};
use crate::format::{NO_TAIL, SIZE_RECORD, size_record_of, size_record_value, stripe_number};
use crate::location::Location;
use crate::object::{ObjectStoreRef, Step};
use crate::striped::{Names, Striped, each};

/// Contents of the files of one filesystem.
#[derive(Clone, Debug)]
pub struct FileObjects {
    store: ObjectStoreRef,
    prefix: String,
    stripe: u64,
    fence: Arc<Fence>,
    /// The identity of the cluster, if programs on other machines may find them.
    cluster: Option<String>,
}

impl FileObjects {
    /// Contents in objects of `stripe` bytes, whose names begin with `prefix`; writes are guarded by `fence`.
    ///
    /// # Errors
    /// [`ObjectError::Invalid`] when a stripe has no bytes.
    pub fn new(
        store: ObjectStoreRef,
        prefix: &str,
        stripe: u64,
        fence: Arc<Fence>,
    ) -> Result<FileObjects, ObjectError> {
        if stripe == 0 || i64::try_from(stripe).is_err() {
            return Err(ObjectError::Invalid {
                object: format!("{}/{prefix}", store.name()),
                reason: format!("a stripe of {stripe} bytes; expected 1 byte or more"),
            });
        }
        Ok(FileObjects { store, prefix: prefix.to_owned(), stripe, fence, cluster: None })
    }

    /// The same, for programs on other machines too: the objects are in the cluster with this identity.
    #[must_use]
    pub fn located(self, cluster: String) -> FileObjects {
        FileObjects { cluster: Some(cluster), ..self }
    }

    /// Bytes of an object.
    pub(crate) fn stripe(&self) -> u64 {
        self.stripe
    }

    /// Where they are.
    pub(crate) fn location(&self) -> Option<Location> {
        Some(Location {
            cluster: self.cluster.clone()?,
            pool: self.store.name(),
            prefix: self.prefix.clone(),
            stripe: self.stripe,
            epoch: self.fence.epoch(),
        })
    }

    /// The address of this client.
    ///
    /// # Errors
    /// Any [`ObjectError`].
    pub async fn address(&self) -> Result<String, ObjectError> {
        self.store.address().await
    }

    /// Has the cluster refuse the client with this address. Returns when every placement group does.
    ///
    /// # Errors
    /// Any [`ObjectError`].
    pub async fn shut_out(&self, address: &str) -> Result<(), ObjectError> {
        self.fence.admit()?;
        self.fence.learn(shut_out(&*self.store, address).await)
    }

    fn file(&self, inode: u64) -> Striped<'_> {
        Striped {
            store: &*self.store,
            fence: &self.fence,
            unit: self.stripe,
            names: Names::File { prefix: &self.prefix, inode },
        }
    }

    /// The `len` bytes at `offset` of a file. The range must end below 2⁶⁴.
    ///
    /// # Errors
    /// Any [`ObjectError`] but [`ObjectError::NotFound`].
    pub async fn read(&self, inode: u64, offset: u64, len: usize) -> Result<Bytes, ObjectError> {
        self.check(inode, offset, len as u64)?;
        self.file(inode).read(offset, len).await
    }

    /// Writes buffer after buffer at `offset` of a file; durable when this returns.
    ///
    /// # Errors
    /// [`ObjectError::Fenced`] when an object has a newer epoch; any other but [`ObjectError::NotFound`].
    pub async fn write(&self, inode: u64, offset: u64, data: &[Bytes]) -> Result<(), ObjectError> {
        self.check(inode, offset, data.iter().map(|buffer| buffer.len() as u64).sum())?;
        self.file(inode).write(offset, data).await
    }

    /// Makes writes in their order, each an offset and buffers. Those to one object are made together, and objects are changed at the
    /// same time; those that begin at `absent_from` or behind with fewer requests if they are absent.
    ///
    /// # Errors
    /// As for [`FileObjects::write`].
    pub async fn write_all(
        &self,
        inode: u64,
        writes: &[(u64, Vec<Bytes>)],
        absent_from: u64,
    ) -> Result<(), ObjectError> {
        for (offset, data) in writes {
            self.check(inode, *offset, data.iter().map(|buffer| buffer.len() as u64).sum())?;
        }
        self.file(inode).write_all(writes, absent_from).await
    }

    /// Makes writes in their order, each an offset and buffers, and has the file end with `size_record`, behind which none of them goes.
    /// The last object gets its bytes and the size record in one change, after the others.
    ///
    /// # Errors
    /// As for [`FileObjects::write`]; [`ObjectError::Invalid`] for writes behind the size record.
    pub async fn write_with_size_record(
        &self,
        inode: u64,
        writes: &[(u64, Vec<Bytes>)],
        size_record: SizeRecord,
    ) -> Result<(), ObjectError> {
        for (offset, data) in writes {
            let len = data.iter().map(|buffer| buffer.len() as u64).sum();
            self.check(inode, *offset, len)?;
            if offset + len > size_record.end {
                return Err(self.invalid(inode, "a write behind the end".to_owned()));
            }
        }
        let last = size_record.end.saturating_sub(1) / self.stripe;
        let with =
            Step::SetAttribute { attribute: SIZE_RECORD, value: size_record_value(size_record) };
        self.file(inode).write_with(writes, (last, with)).await
    }

    /// The furthest size record on the objects of a range, of which all up to that have bytes.
    ///
    /// # Errors
    /// Any [`ObjectError`] but [`ObjectError::NotFound`].
    pub async fn size_record(
        &self,
        inode: u64,
        range: Range<u64>,
    ) -> Result<Option<SizeRecord>, ObjectError> {
        let file = self.file(inode);
        let mut furthest: Option<SizeRecord> = None;
        for stripe in range.start / self.stripe..range.end.div_ceil(self.stripe) {
            let Some(value) = file.attribute(stripe, SIZE_RECORD).await? else { break };
            if let Some(size_record) =
                size_record_of(&value).filter(|it| (it.end - 1) / self.stripe == stripe)
            {
                furthest = Some(size_record);
            }
        }
        Ok(furthest)
    }

    /// Removes the bytes of a file from `size` to its former size, and the size records there: they read as zeros when the file grows again.
    ///
    /// # Errors
    /// As for [`FileObjects::write`].
    pub async fn truncate(&self, inode: u64, former: u64, size: u64) -> Result<(), ObjectError> {
        let file = self.file(inode);
        let (kept, inside) = (size.div_ceil(self.stripe), size % self.stripe);
        if inside > 0 && size < former {
            let no_tail = Step::SetAttribute { attribute: SIZE_RECORD, value: NO_TAIL };
            file.change_present(kept - 1, &[Step::Truncate { size: inside }, no_tail]).await?;
        }
        let gone = kept..former.div_ceil(self.stripe);
        each(gone.map(|stripe| file.change_present(stripe, &[Step::Remove]))).await
    }

    /// Removes the contents of a file, whose size is at most `size`. Removing it again is harmless.
    ///
    /// # Errors
    /// As for [`FileObjects::write`].
    pub async fn remove(&self, inode: u64, size: u64) -> Result<(), ObjectError> {
        self.truncate(inode, size, 0).await
    }

    /// Has a range of a file read as zeros, and removes objects that lie in it. The range must end below 2⁶⁴.
    ///
    /// # Errors
    /// As for [`FileObjects::write`].
    pub async fn zero(&self, inode: u64, range: Range<u64>) -> Result<(), ObjectError> {
        let len = range.end.saturating_sub(range.start);
        self.file(inode).discard(range.start, len).await
    }

    /// What is stored of each inode that has objects. It lists the whole pool.
    ///
    /// # Errors
    /// Any [`ObjectError`] but [`ObjectError::NotFound`].
    pub async fn list(&self) -> Result<BTreeMap<u64, Stored>, ObjectError> {
        self.fence.admit()?;
        let mut files = BTreeMap::<u64, Stored>::new();
        for name in self.fence.learn(self.store.list().await)? {
            if let Some((inode, stripe)) = stripe_number(&self.prefix, &name) {
                let stored = files.entry(inode).or_default();
                stored.objects += 1;
                stored.last = stored.last.max(stripe.saturating_mul(self.stripe));
                stored.end = stored.last.saturating_add(self.stripe);
            }
        }
        Ok(files)
    }

    /// Waits for the writes that were started before, also those whose futures were dropped.
    ///
    /// # Errors
    /// [`ObjectError::Fenced`], or what the cluster reports.
    pub async fn settle(&self) -> Result<(), ObjectError> {
        self.fence.admit()?;
        self.file(0).settle().await
    }

    /// How full the cluster is, for objects of this pool.
    ///
    /// # Errors
    /// Any [`ObjectError`].
    pub async fn space(&self) -> Result<Space, ObjectError> {
        self.fence.admit()?;
        self.fence.learn(self.store.space().await)
    }

    /// The pool, and what the names of the objects begin with.
    pub(crate) fn shown(&self) -> String {
        format!("{}/{}", self.store.name(), self.prefix)
    }

    fn check(&self, inode: u64, offset: u64, len: u64) -> Result<(), ObjectError> {
        match offset.checked_add(len) {
            Some(_) => Ok(()),
            None => {
                let reason = format!("{len} bytes at {offset} end beyond the largest offset");
                Err(self.invalid(inode, reason))
            }
        }
    }

    fn invalid(&self, inode: u64, reason: String) -> ObjectError {
        let object = format!("{}/{}.{inode:016x}", self.store.name(), self.prefix);
        ObjectError::Invalid { object, reason }
    }
}
