//! RocksDB (its `TransactionDB`) and LevelDB, through the C interfaces of the system's libraries.
//!
//! The two interfaces have the same shape, so each is a table of functions, and one database serves
//! both. RocksDB keeps its defaults; LevelDB's write buffer has 8 MB, as in the paper (4.4.2).

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

use bytes::Bytes;

use super::Rival;
use crate::BenchError;
use crate::engine::Pair;

/// A pointer to a type that only the library knows.
type Opaque = *mut c_void;
type Make = unsafe extern "C" fn() -> Opaque;
type Free = unsafe extern "C" fn(Opaque);
type SetFlag = unsafe extern "C" fn(Opaque, c_uchar);
type SetInt = unsafe extern "C" fn(Opaque, c_int);

/// Bytes of LevelDB's write buffer.
const WRITE_BUFFER: usize = 8 << 20;

/// The functions of a library.
pub(super) struct Api {
    options: Make,
    free_options: Free,
    set_create: SetFlag,
    set_compression: SetInt,
    /// Further settings before the database is opened.
    tune: unsafe fn(Opaque),
    write_options: Make,
    free_write_options: Free,
    set_sync: SetFlag,
    read_options: Make,
    free_read_options: Free,
    open: unsafe fn(Opaque, *const c_char, *mut *mut c_char) -> Opaque,
    close: Free,
    put: unsafe extern "C" fn(
        Opaque,
        Opaque,
        *const c_char,
        usize,
        *const c_char,
        usize,
        *mut *mut c_char,
    ),
    get: unsafe extern "C" fn(
        Opaque,
        Opaque,
        *const c_char,
        usize,
        *mut usize,
        *mut *mut c_char,
    ) -> *mut c_char,
    delete: unsafe extern "C" fn(Opaque, Opaque, *const c_char, usize, *mut *mut c_char),
    write: unsafe extern "C" fn(Opaque, Opaque, Opaque, *mut *mut c_char),
    batch: Make,
    free_batch: Free,
    batch_put: unsafe extern "C" fn(Opaque, *const c_char, usize, *const c_char, usize),
    free: Free,
}

macro_rules! declare {
    ($library:literal, $($name:ident($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        #[link(name = $library)]
        unsafe extern "C" {
            $(fn $name($(_: $argument),*) $(-> $answer)?;)*
        }
    };
}

declare! { "rocksdb",
    rocksdb_options_create() -> Opaque;
    rocksdb_options_destroy(Opaque);
    rocksdb_options_set_create_if_missing(Opaque, c_uchar);
    rocksdb_options_set_compression(Opaque, c_int);
    rocksdb_writeoptions_create() -> Opaque;
    rocksdb_writeoptions_destroy(Opaque);
    rocksdb_writeoptions_set_sync(Opaque, c_uchar);
    rocksdb_readoptions_create() -> Opaque;
    rocksdb_readoptions_destroy(Opaque);
    rocksdb_transactiondb_options_create() -> Opaque;
    rocksdb_transactiondb_options_destroy(Opaque);
    rocksdb_transactiondb_open(Opaque, Opaque, *const c_char, *mut *mut c_char) -> Opaque;
    rocksdb_transactiondb_close(Opaque);
    rocksdb_transactiondb_put(Opaque, Opaque, *const c_char, usize, *const c_char, usize, *mut *mut c_char);
    rocksdb_transactiondb_get(Opaque, Opaque, *const c_char, usize, *mut usize, *mut *mut c_char) -> *mut c_char;
    rocksdb_transactiondb_delete(Opaque, Opaque, *const c_char, usize, *mut *mut c_char);
    rocksdb_transactiondb_write(Opaque, Opaque, Opaque, *mut *mut c_char);
    rocksdb_writebatch_create() -> Opaque;
    rocksdb_writebatch_destroy(Opaque);
    rocksdb_writebatch_put(Opaque, *const c_char, usize, *const c_char, usize);
    rocksdb_free(Opaque);
}

declare! { "leveldb",
    leveldb_options_create() -> Opaque;
    leveldb_options_destroy(Opaque);
    leveldb_options_set_create_if_missing(Opaque, c_uchar);
    leveldb_options_set_compression(Opaque, c_int);
    leveldb_options_set_write_buffer_size(Opaque, usize);
    leveldb_writeoptions_create() -> Opaque;
    leveldb_writeoptions_destroy(Opaque);
    leveldb_writeoptions_set_sync(Opaque, c_uchar);
    leveldb_readoptions_create() -> Opaque;
    leveldb_readoptions_destroy(Opaque);
    leveldb_open(Opaque, *const c_char, *mut *mut c_char) -> Opaque;
    leveldb_close(Opaque);
    leveldb_put(Opaque, Opaque, *const c_char, usize, *const c_char, usize, *mut *mut c_char);
    leveldb_get(Opaque, Opaque, *const c_char, usize, *mut usize, *mut *mut c_char) -> *mut c_char;
    leveldb_delete(Opaque, Opaque, *const c_char, usize, *mut *mut c_char);
    leveldb_write(Opaque, Opaque, Opaque, *mut *mut c_char);
    leveldb_writebatch_create() -> Opaque;
    leveldb_writebatch_destroy(Opaque);
    leveldb_writebatch_put(Opaque, *const c_char, usize, *const c_char, usize);
    leveldb_free(Opaque);
}

pub(super) static ROCKSDB: Api = Api {
    options: rocksdb_options_create,
    free_options: rocksdb_options_destroy,
    set_create: rocksdb_options_set_create_if_missing,
    set_compression: rocksdb_options_set_compression,
    tune: |_| {},
    write_options: rocksdb_writeoptions_create,
    free_write_options: rocksdb_writeoptions_destroy,
    set_sync: rocksdb_writeoptions_set_sync,
    read_options: rocksdb_readoptions_create,
    free_read_options: rocksdb_readoptions_destroy,
    open: open_rocksdb,
    close: rocksdb_transactiondb_close,
    put: rocksdb_transactiondb_put,
    get: rocksdb_transactiondb_get,
    delete: rocksdb_transactiondb_delete,
    write: rocksdb_transactiondb_write,
    batch: rocksdb_writebatch_create,
    free_batch: rocksdb_writebatch_destroy,
    batch_put: rocksdb_writebatch_put,
    free: rocksdb_free,
};

pub(super) static LEVELDB: Api = Api {
    options: leveldb_options_create,
    free_options: leveldb_options_destroy,
    set_create: leveldb_options_set_create_if_missing,
    set_compression: leveldb_options_set_compression,
    // SAFETY: the caller's options are LevelDB's.
    tune: |options| unsafe { leveldb_options_set_write_buffer_size(options, WRITE_BUFFER) },
    write_options: leveldb_writeoptions_create,
    free_write_options: leveldb_writeoptions_destroy,
    set_sync: leveldb_writeoptions_set_sync,
    read_options: leveldb_readoptions_create,
    free_read_options: leveldb_readoptions_destroy,
    // SAFETY: the caller promises what the function requires.
    open: |options, name, error| unsafe { leveldb_open(options, name, error) },
    close: leveldb_close,
    put: leveldb_put,
    get: leveldb_get,
    delete: leveldb_delete,
    write: leveldb_write,
    batch: leveldb_writebatch_create,
    free_batch: leveldb_writebatch_destroy,
    batch_put: leveldb_writebatch_put,
    free: leveldb_free,
};

/// # Safety
/// `options` are RocksDB's, `name` ends with a zero, and `error` may be written.
unsafe fn open_rocksdb(options: Opaque, name: *const c_char, error: *mut *mut c_char) -> Opaque {
    // SAFETY: the library copies its options, so they may be freed; the caller promises the rest.
    unsafe {
        let locking = rocksdb_transactiondb_options_create();
        let database = rocksdb_transactiondb_open(options, locking, name, error);
        rocksdb_transactiondb_options_destroy(locking);
        database
    }
}

/// An open database.
pub(super) struct Database {
    api: &'static Api,
    database: Opaque,
    options: Opaque,
    write_options: Opaque,
    read_options: Opaque,
}

// SAFETY: both libraries allow any number of threads to call the functions used here on a database,
// and options are only read after they were made.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    pub(super) fn open(api: &'static Api, folder: &Path) -> Result<Database, BenchError> {
        let name = CString::new(folder.as_os_str().as_bytes());
        let name = name.map_err(|error| BenchError::Failed(error.into()))?;
        let mut error = null_mut();
        // SAFETY: options are of the same library and live until the database is closed, and the
        // name ends with a zero. Without a database the error is set.
        let database = unsafe {
            let options = (api.options)();
            (api.set_create)(options, 1);
            (api.set_compression)(options, 0);
            (api.tune)(options);
            let write_options = (api.write_options)();
            (api.set_sync)(write_options, 1);
            let read_options = (api.read_options)();
            let database = (api.open)(options, name.as_ptr(), &mut error);
            Database { api, database, options, write_options, read_options }
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
        }
    }
}

impl Rival for Database {
    fn put(&self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
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

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BenchError> {
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

    fn delete(&self, key: &[u8]) -> Result<(), BenchError> {
        let mut error = null_mut();
        let name = key.as_ptr().cast();
        // SAFETY: the database is open, and the slice lives through the call.
        unsafe {
            (self.api.delete)(self.database, self.write_options, name, key.len(), &mut error);
        }
        self.check(error)
    }

    fn write(&self, pairs: &[Pair]) -> Result<(), BenchError> {
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
