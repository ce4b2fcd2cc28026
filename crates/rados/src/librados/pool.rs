//! A pool of a cluster, as an [`ObjectStore`].

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use thalweg_fs::contents::Space;
use thalweg_store::device::AlignedBuf;

use super::change::{WriteOperation, outcome};
use super::completion::request;
use super::handles::{Connection, Handle, closed};
use super::{c_string, check, errno, sys};
use crate::ObjectError;
use crate::object::{Change, LockHolder, LockName, ObjectStore};

/// Bytes of a cluster's identity, with a zero behind it, at most.
const CLUSTER: usize = 64;
/// Maximum bytes of an attribute that is read.
const ATTRIBUTE: usize = 4 << 10;
/// Maximum bytes of one of the texts about a lock's holders.
const HOLDERS: usize = 64 << 10;

/// A namespace of a pool. Clones share one handle, so that each settles the changes of all.
#[derive(Clone, Debug)]
pub struct Pool {
    handle: Arc<Handle>,
    name: String,
}

impl Pool {
    pub(super) fn open(
        connection: &Arc<Connection>,
        name: &str,
        namespace: &str,
    ) -> Result<Pool, ObjectError> {
        let mut ioctx = ptr::null_mut();
        let pool = c_string(name, name)?;
        // SAFETY: the connection is open, the name outlives the call, and the context is written on success.
        let returned =
            unsafe { sys::rados_ioctx_create(connection.handle(), pool.as_ptr(), &mut ioctx) };
        check(name, returned)?;
        let handle = Handle::of(ioctx, connection.clone());
        let space = c_string(name, namespace)?;
        // SAFETY: the context is not shared yet; the name outlives the call, which copies it. A full pool refuses
        // writes then, where it would keep them waiting.
        unsafe {
            sys::rados_ioctx_set_namespace(ioctx, space.as_ptr());
            sys::rados_set_pool_full_try(ioctx);
        }
        let name = match namespace {
            "" => name.to_owned(),
            space => format!("{name}/{space}"),
        };
        Ok(Pool { handle: Arc::new(handle), name })
    }

    /// Writes `data` at `offset` of an object, without any guard: what librados does by itself.
    ///
    /// # Errors
    /// As [`ObjectStore::apply`].
    pub async fn write_plainly(
        &self,
        object: &str,
        offset: u64,
        data: Bytes,
    ) -> Result<(), ObjectError> {
        let owned = (c_string(object, object)?, data);
        let writing = request(&self.handle, owned, |ioctx, completion, (name, data)| {
            let start = data.as_ptr().cast::<c_char>();
            // SAFETY: name and buffer live until the completion has run.
            unsafe {
                sys::rados_aio_write(ioctx, name.as_ptr(), completion, start, data.len(), offset)
            }
        });
        check(&self.path(object), writing.await?.0).map(drop)
    }

    fn path(&self, object: &str) -> String {
        format!("{}/{object}", self.name)
    }

    /// Runs a call that blocks, with the object's name.
    async fn blocking<T, F>(&self, object: &str, call: F) -> Result<T, ObjectError>
    where
        T: Send + 'static,
        F: FnOnce(&Handle, &CStr, &str) -> Result<T, ObjectError> + Send + 'static,
    {
        let (path, name) = (self.path(object), c_string(object, object)?);
        let handle = self.handle.clone();
        let called = tokio::task::spawn_blocking(move || call(&handle, &name, &path));
        called.await.unwrap_or_else(|_| Err(closed()))
    }
}

#[async_trait]
impl ObjectStore for Pool {
    fn name(&self) -> String {
        self.name.clone()
    }

    async fn cluster(&self) -> Result<String, ObjectError> {
        let mut text = [0_u8; CLUSTER];
        // SAFETY: the connection is open; at most the given length of the buffer is written.
        let returned = unsafe {
            let start = text.as_mut_ptr().cast();
            sys::rados_cluster_fsid(self.handle.connection(), start, text.len())
        };
        check("cluster", returned)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    async fn address(&self) -> Result<String, ObjectError> {
        let mut text: *mut c_char = ptr::null_mut();
        // SAFETY: the connection is open; the pointer is written on success.
        check("cluster", unsafe { sys::rados_getaddrs(self.handle.connection(), &mut text) })?;
        if text.is_null() {
            return Err(closed());
        }
        // SAFETY: it is a text that librados allocated, and that is freed once.
        let address = unsafe {
            let address = CStr::from_ptr(text).to_string_lossy().into_owned();
            sys::rados_buffer_free(text);
            address
        };
        Ok(address)
    }

    fn client(&self) -> String {
        // SAFETY: the connection is open.
        let id = unsafe { sys::rados_get_instance_id(self.handle.connection()) };
        format!("client.{id}")
    }

    async fn read(&self, object: &str, offset: u64, len: usize) -> Result<Bytes, ObjectError> {
        let name = c_string(object, object)?;
        let owned = (name, AlignedBuf::zeroed(len));
        let reading = request(&self.handle, owned, |ioctx, completion, (name, buffer)| {
            let start = buffer.as_mut_ptr().cast::<c_char>();
            // SAFETY: name and buffer live until the completion has run, and do not move with their owner.
            unsafe {
                sys::rados_aio_read(ioctx, name.as_ptr(), completion, start, buffer.len(), offset)
            }
        });
        let (returned, (_, buffer)) = reading.await?;
        let read = check(&self.path(object), returned)?;
        Ok(buffer.freeze().slice(..usize::try_from(read).unwrap_or(0).min(len)))
    }

    async fn attribute(
        &self,
        object: &str,
        attribute: &'static str,
    ) -> Result<Option<Bytes>, ObjectError> {
        let attribute = c_string(object, attribute)?;
        self.blocking(object, move |handle, object, path| {
            let mut value = vec![0_u8; ATTRIBUTE];
            let start = value.as_mut_ptr().cast::<c_char>();
            // SAFETY: both names outlive the call, and at most the given length of the buffer is written.
            let returned = unsafe {
                let (object, attribute) = (object.as_ptr(), attribute.as_ptr());
                sys::rados_getxattr(handle.ioctx(), object, attribute, start, value.len())
            };
            if returned == -errno::NO_ATTRIBUTE {
                return Ok(None);
            }
            value.truncate(usize::try_from(check(path, returned)?).unwrap_or(0));
            Ok(Some(value.into()))
        })
        .await
    }

    async fn apply(&self, object: &str, change: Change) -> Result<(), ObjectError> {
        let path = self.path(object);
        let name = c_string(object, object)?;
        let operation = WriteOperation::new(&path, &change)?;
        let changing = request(
            &self.handle,
            (name, operation),
            |ioctx, completion, (name, operation): &mut (CString, WriteOperation)| {
                let (handle, flags) = (operation.handle(), 0);
                // SAFETY: operation, its buffers and the name live until the completion has run.
                unsafe {
                    sys::rados_aio_write_op_operate(
                        handle,
                        ioctx,
                        completion,
                        name.as_ptr(),
                        ptr::null_mut(),
                        flags,
                    )
                }
            },
        );
        let (returned, _) = changing.await?;
        outcome(&path, returned)
    }

    async fn settle(&self) -> Result<(), ObjectError> {
        let settling = request(&self.handle, (), |ioctx, completion, ()| {
            // SAFETY: the context is open.
            unsafe { sys::rados_aio_flush_async(ioctx, completion) }
        });
        check(&self.name, settling.await?.0).map(drop)
    }

    async fn list(&self) -> Result<Vec<String>, ObjectError> {
        self.blocking("", |handle, _, path| list(handle, path)).await
    }

    async fn space(&self) -> Result<Space, ObjectError> {
        self.blocking("", |handle, _, path| space(handle, path)).await
    }

    async fn lock(
        &self,
        object: &str,
        lock: &LockName<'_>,
        shared: bool,
    ) -> Result<(), ObjectError> {
        let (lock, cookie) = (c_string(object, lock.name)?, c_string(object, lock.cookie)?);
        self.blocking(object, move |handle, object, path| {
            let (ioctx, object) = (handle.ioctx(), object.as_ptr());
            let (lock, cookie, description) = (lock.as_ptr(), cookie.as_ptr(), c"thalweg".as_ptr());
            let (none, no_flags, tag) = (ptr::null_mut(), 0, c"".as_ptr());
            // SAFETY: all names outlive the call; without a duration the lock does not expire.
            let returned = unsafe {
                match shared {
                    true => sys::rados_lock_shared(
                        ioctx,
                        object,
                        lock,
                        cookie,
                        tag,
                        description,
                        none,
                        no_flags,
                    ),
                    false => sys::rados_lock_exclusive(
                        ioctx,
                        object,
                        lock,
                        cookie,
                        description,
                        none,
                        no_flags,
                    ),
                }
            };
            match check(path, returned) {
                Err(ObjectError::Exists { object }) => Err(ObjectError::Locked { object }),
                outcome => outcome.map(drop),
            }
        })
        .await
    }

    async fn unlock(&self, object: &str, lock: &LockName<'_>) -> Result<(), ObjectError> {
        let (lock, cookie) = (c_string(object, lock.name)?, c_string(object, lock.cookie)?);
        self.blocking(object, move |handle, object, path| {
            let (lock, cookie) = (lock.as_ptr(), cookie.as_ptr());
            // SAFETY: all names outlive the call.
            let returned =
                unsafe { sys::rados_unlock(handle.ioctx(), object.as_ptr(), lock, cookie) };
            check(path, returned).map(drop)
        })
        .await
    }

    async fn holders(&self, object: &str, lock: &str) -> Result<Vec<LockHolder>, ObjectError> {
        let lock = c_string(object, lock)?;
        self.blocking(object, move |handle, object, path| holders(handle, object, &lock, path))
            .await
    }

    async fn break_lock(
        &self,
        object: &str,
        lock: &str,
        holder: &LockHolder,
    ) -> Result<(), ObjectError> {
        let lock = c_string(object, lock)?;
        let (client, cookie) =
            (c_string(object, &holder.client)?, c_string(object, &holder.cookie)?);
        self.blocking(object, move |handle, object, path| {
            let (lock, client, cookie) = (lock.as_ptr(), client.as_ptr(), cookie.as_ptr());
            // SAFETY: all names outlive the call.
            let returned = unsafe {
                sys::rados_break_lock(handle.ioctx(), object.as_ptr(), lock, client, cookie)
            };
            check(path, returned).map(drop)
        })
        .await
    }

    async fn blocklist(&self, holder: &LockHolder, span: Duration) -> Result<(), ObjectError> {
        let address = c_string(&holder.client, &holder.address)?;
        let seconds = u32::try_from(span.as_secs().max(1)).unwrap_or(u32::MAX);
        self.blocking("", move |handle, _, _| {
            let connection = handle.connection();
            let start = address.as_ptr().cast_mut();
            // SAFETY: the connection is open; the address outlives the call, which does not change it.
            let returned = unsafe { sys::rados_blocklist_add(connection, start, seconds) };
            check("cluster", returned)?;
            // SAFETY: the connection is open.
            check("cluster", unsafe { sys::rados_wait_for_latest_osdmap(connection) }).map(drop)
        })
        .await
    }
}

/// A listing that is closed when dropped.
struct Listing(sys::rados_list_ctx_t);

impl Drop for Listing {
    fn drop(&mut self) {
        // SAFETY: the listing was opened, and is closed once.
        unsafe { sys::rados_nobjects_list_close(self.0) };
    }
}

fn list(handle: &Handle, path: &str) -> Result<Vec<String>, ObjectError> {
    let mut listing = ptr::null_mut();
    // SAFETY: the context is open; the listing is written on success.
    check(path, unsafe { sys::rados_nobjects_list_open(handle.ioctx(), &mut listing) })?;
    let listing = Listing(listing);
    let mut names = Vec::new();
    loop {
        let (mut name, mut len) = (ptr::null(), 0);
        // SAFETY: the listing is open; name and length are written on success, and key and namespace not asked for.
        let returned = unsafe {
            sys::rados_nobjects_list_next2(
                listing.0,
                &mut name,
                ptr::null_mut(),
                ptr::null_mut(),
                &mut len,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        match check(path, returned) {
            Err(ObjectError::NotFound { .. }) => return Ok(names),
            outcome => outcome.map(drop)?,
        }
        // SAFETY: the name has `len` bytes until the next call on the listing.
        let bytes = unsafe { std::slice::from_raw_parts(name.cast::<u8>(), len) };
        names.push(String::from_utf8_lossy(bytes).into_owned());
    }
}

/// The cluster counts what its drives have, and an object of the pool takes several copies of that.
fn space(handle: &Handle, path: &str) -> Result<Space, ObjectError> {
    // SAFETY: both are numbers, for which zeros are valid.
    let (mut cluster, mut pool): (sys::rados_cluster_stat_t, sys::rados_pool_stat_t) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: connection and context are open; the results are written on success.
    let returned = unsafe { sys::rados_cluster_stat(handle.connection(), &mut cluster) };
    check("cluster", returned)?;
    // SAFETY: as above.
    check(path, unsafe { sys::rados_ioctx_pool_stat(handle.ioctx(), &mut pool) })?;
    let copies = pool.num_object_copies.div_ceil(pool.num_objects.max(1)).max(1);
    let bytes = |kib: u64| kib.saturating_mul(1024) / copies;
    Ok(Space { size: bytes(cluster.kb), free: bytes(cluster.kb_avail) })
}

fn holders(
    handle: &Handle,
    object: &CStr,
    lock: &CStr,
    path: &str,
) -> Result<Vec<LockHolder>, ObjectError> {
    let mut texts = [(); 4].map(|()| (vec![0_u8; HOLDERS], HOLDERS));
    let [tag, clients, cookies, addresses] = &mut texts;
    let mut exclusive: c_int = 0;
    let start = |text: &mut (Vec<u8>, usize)| text.0.as_mut_ptr().cast::<c_char>();
    // SAFETY: each text is written up to the length beside it, and each length to what is needed.
    let count = unsafe {
        sys::rados_list_lockers(
            handle.ioctx(),
            object.as_ptr(),
            lock.as_ptr(),
            &mut exclusive,
            start(tag),
            &mut tag.1,
            start(clients),
            &mut clients.1,
            start(cookies),
            &mut cookies.1,
            start(addresses),
            &mut addresses.1,
        )
    };
    let count = check(path, i32::try_from(count).unwrap_or(i32::MAX))? as usize;
    let [_, clients, cookies, addresses] = &texts;
    // Texts end with a zero each.
    let list = |(text, _): &(Vec<u8>, usize)| -> Vec<String> {
        let texts = text.split(|byte| *byte == 0).take(count);
        texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    };
    let holders = list(clients).into_iter().zip(list(cookies)).zip(list(addresses));
    Ok(holders.map(|((client, cookie), address)| LockHolder { client, cookie, address }).collect())
}
