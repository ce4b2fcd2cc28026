//! LevelDB.

use std::ffi::{c_char, c_int, c_uchar};

use super::api::{Api, CacheApi, Opaque, declare};

declare! { "leveldb",
    leveldb_options_create() -> Opaque;
    leveldb_options_destroy(Opaque);
    leveldb_options_set_create_if_missing(Opaque, c_uchar);
    leveldb_options_set_compression(Opaque, c_int);
    leveldb_options_set_write_buffer_size(Opaque, usize);
    leveldb_cache_create_lru(usize) -> Opaque;
    leveldb_cache_destroy(Opaque);
    leveldb_options_set_cache(Opaque, Opaque);
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

pub(crate) static LEVELDB: Api = Api {
    options: leveldb_options_create,
    free_options: leveldb_options_destroy,
    set_create: leveldb_options_set_create_if_missing,
    set_compression: leveldb_options_set_compression,
    set_write_buffer: leveldb_options_set_write_buffer_size,
    cache: Some(CacheApi {
        make: leveldb_cache_create_lru,
        free: leveldb_cache_destroy,
        set: leveldb_options_set_cache,
    }),
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
