//! An open database. Each write is durable when it returns, and nothing is compressed.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use bytes::Bytes;

use super::api::{Api, Opaque};
use crate::BenchError;

/// Settings that are not the library's defaults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// Bytes of the write buffer.
    pub(crate) write_buffer: Option<usize>,
    /// Bytes of the cache of blocks. RocksDB keeps its own.
    pub(crate) cache: Option<usize>,
}

/// An open database.
pub(crate) struct Database {
    api: &'static Api,
    database: Opaque,
    options: Opaque,
    write_options: Opaque,
    read_options: Opaque,
    /// Null if it has none of its own.
    cache: Opaque,
}

// SAFETY: both libraries allow any number of threads to call the functions used here on a database,
// and options are only read after they were made.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Opens the one in a folder, or makes it there.
    pub(crate) fn open(
        api: &'static Api,
        folder: &Path,
        settings: &Settings,
    ) -> Result<Database, BenchError> {
        let name = CString::new(folder.as_os_str().as_bytes());
        let name = name.map_err(|error| BenchError::Failed(error.into()))?;
        let mut error = null_mut();
        // SAFETY: options are of the same library and live until the database is closed, and the
        // name ends with a zero. Without a database the error is set.
        let database = unsafe {
            let options = (api.options)();
            (api.set_create)(options, 1);
            (api.set_compression)(options, 0);
            if let Some(bytes) = settings.write_buffer {
                (api.set_write_buffer)(options, bytes);
            }
            let cache =
                api.cache.as_ref().zip(settings.cache).map_or(null_mut(), |(api, bytes)| {
                    let cache = (api.make)(bytes);
                    (api.set)(options, cache);
                    cache
                });
            let write_options = (api.write_options)();
            (api.set_sync)(write_options, 1);
            let read_options = (api.read_options)();
            let database = (api.open)(options, name.as_ptr(), &mut error);
            Database { api, database, options, write_options, read_options, cache }
        };
        database.check(error)?;
        Ok(database)
    }

    /// Takes over an error that the library has allocated, if there is one.
    fn check(&self, error: *mut c_char) -> Result<(), BenchError> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: a non-null error is a string that ends with a zero and is ours to free.
        let message = unsafe {
            let message = CStr::from_ptr(error).to_string_lossy().into_owned();
            (self.api.free)(error.cast());
            message
        };
        Err(BenchError::Failed(message.into()))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: each was made by the same library and is freed once, the database first. It is
        // null when it could not be opened.
        unsafe {
            if !self.database.is_null() {
                (self.api.close)(self.database);
            }
            (self.api.free_read_options)(self.read_options);
            (self.api.free_write_options)(self.write_options);
            (self.api.free_options)(self.options);
            if let Some(api) = self.api.cache.as_ref().filter(|_| !self.cache.is_null()) {
                (api.free)(self.cache);
            }
        }
    }
}

impl Database {
    /// Sets the value of a key, durably.
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        let mut error = null_mut();
        let (name, content) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the database is open, and the slices live through the call.
        unsafe {
            (self.api.put)(
                self.database,
                self.write_options,
                name,
                key.len(),
                content,
                value.len(),
                &mut error,
            );
        }
        self.check(error)
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BenchError> {
        let (mut error, mut len) = (null_mut(), 0);
        let name = key.as_ptr().cast();
        // SAFETY: the database is open, and the slice lives through the call.
        let found = unsafe {
            (self.api.get)(self.database, self.read_options, name, key.len(), &mut len, &mut error)
        };
        self.check(error)?;
        if found.is_null() {
            return Ok(None);
        }
        // SAFETY: the value has `len` bytes and is ours to free.
        unsafe {
            let value = Bytes::copy_from_slice(std::slice::from_raw_parts(found.cast(), len));
            (self.api.free)(found.cast());
            Ok(Some(value))
        }
    }

    /// Deletes a key, durably.
    #[cfg(feature = "rivals")]
    pub(crate) fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        let mut error = null_mut();
        let name = key.as_ptr().cast();
        // SAFETY: the database is open, and the slice lives through the call.
        unsafe {
            (self.api.delete)(self.database, self.write_options, name, key.len(), &mut error);
        }
        self.check(error)
    }

    /// Puts all pairs in one batch, durably.
    pub(crate) fn write(&self, pairs: &[(Bytes, Bytes)]) -> Result<(), BenchError> {
        let mut error = null_mut();
        // SAFETY: the database is open; a batch copies its entries, and is freed once.
        unsafe {
            let batch = (self.api.batch)();
            for (key, value) in pairs {
                let (name, content) = (key.as_ptr().cast(), value.as_ptr().cast());
                (self.api.batch_put)(batch, name, key.len(), content, value.len());
            }
            (self.api.write)(self.database, self.write_options, batch, &mut error);
            (self.api.free_batch)(batch);
        }
        self.check(error)
    }
}
