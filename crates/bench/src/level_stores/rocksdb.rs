//! RocksDB.

use std::ffi::{c_char, c_int, c_uchar};

use super::api::{Api, Opaque, declare};

declare! { "rocksdb",
    rocksdb_options_create() -> Opaque;
    rocksdb_options_destroy(Opaque);
    rocksdb_options_set_create_if_missing(Opaque, c_uchar);
    rocksdb_options_set_compression(Opaque, c_int);
    rocksdb_options_set_write_buffer_size(Opaque, usize);
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

pub(crate) static ROCKSDB: Api = Api {
    options: rocksdb_options_create,
    free_options: rocksdb_options_destroy,
    set_create: rocksdb_options_set_create_if_missing,
    set_compression: rocksdb_options_set_compression,
    set_write_buffer: rocksdb_options_set_write_buffer_size,
    cache: None,
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
