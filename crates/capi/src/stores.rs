//! Key-value stores for C.

use std::ffi::{CStr, c_char, c_int, c_void};

use bytes::Bytes;
use thalweg_client::Volume;
use thalweg_store::tree::{Iter, Kind, Pair, Store};

use super::versions::{place, tw_version};
use super::{named, tw_volume};
use crate::failure::{Failure, call};

/// A B-tree: keys have an order.
pub const TW_KV_BTREE: c_int = 0;
/// A hash table.
pub const TW_KV_HASH: c_int = 1;

/// A key-value store in a partition of a volume. It must be closed before the volume is.
pub struct tw_kv {
    volume: *const tw_volume,
    store: Store,
}

/// An iterator over a store. It must be closed before the store is.
pub struct tw_kv_iter {
    volume: *const tw_volume,
    iter: Iter,
    /// The pair that the caller's pointers refer to.
    last: Option<Pair>,
}

pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid("the name is a null pointer"));
    }
    // SAFETY: the caller gives a string that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid("the name is not UTF-8"))
}

/// The caller's bytes; `None` for a null pointer.
pub(crate) unsafe fn bytes<'a>(at: *const c_void, len: usize) -> Result<Option<&'a [u8]>, Failure> {
    match (at.is_null(), len) {
        (true, 0) => Ok(None),
        (true, _) => Err(Failure::invalid("bytes at a null pointer")),
        (false, _) if len > isize::MAX as usize => Err(Failure::invalid("too many bytes")),
        // SAFETY: the caller has `len` bytes there.
        (false, _) => Ok(Some(unsafe { std::slice::from_raw_parts(at.cast(), len) })),
    }
}

pub(crate) unsafe fn opened<'a>(kv: *const tw_kv) -> Result<(&'a Volume, &'a Store), Failure> {
    // SAFETY: as the caller of the library says, of the store and of its volume.
    unsafe {
        let kv = kv.as_ref().ok_or_else(|| Failure::invalid("the store is a null pointer"))?;
        Ok((named(kv.volume)?, &kv.store))
    }
}

/// Makes a partition for a store, TW_KV_BTREE or TW_KV_HASH, of `blocks` blocks; with 0, of the longest free
/// run. Not inside a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_create(
    volume: *const tw_volume,
    name: *const c_char,
    kind: c_int,
    blocks: u64,
) -> c_int {
    call(|| {
        let kind = match kind {
            TW_KV_BTREE => Kind::Btree,
            TW_KV_HASH => Kind::Hash,
            _ => return Err(Failure::invalid("there is no such kind of store")),
        };
        // SAFETY: as the caller says.
        let (volume, name) = unsafe { (named(volume)?, text(name)?) };
        volume.create_store(name, kind, (blocks > 0).then_some(blocks))?;
        Ok(0)
    })
}

/// Opens the store in a partition. Null when that fails; tw_errno() and tw_error() say why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_open(volume: *const tw_volume, name: *const c_char) -> *mut tw_kv {
    let mut kv = std::ptr::null_mut();
    call(|| {
        // SAFETY: as the caller says.
        let store = unsafe { named(volume)?.open_store(text(name)?)? };
        kv = Box::into_raw(Box::new(tw_kv { volume, store }));
        Ok(0)
    });
    kv
}

/// Closes a store. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_close(kv: *mut tw_kv) {
    if !kv.is_null() {
        // SAFETY: it came from `tw_kv_open`, and no other call uses it.
        drop(unsafe { Box::from_raw(kv) });
    }
}

/// Sets the value of a key. Inside this thread's transaction it is part of that; otherwise it is durable when
/// the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_put(
    kv: *const tw_kv,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let ((volume, store), key, value) =
            unsafe { (opened(kv)?, bytes(key, key_len)?, bytes(value, value_len)?) };
        volume.put(store, key.unwrap_or_default(), value.unwrap_or_default())?;
        Ok(0)
    })
}

/// Gets the value of a key: 1, or 0 when the key is absent. `value_len` is the room at `value`, and becomes
/// the value's length; with too little room the call fails with -ERANGE, and the value is not copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_get(
    kv: *const tw_kv,
    key: *const c_void,
    key_len: usize,
    value: *mut c_void,
    value_len: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let (volume, store) = opened(kv)?;
            let key = bytes(key, key_len)?.unwrap_or_default();
            copy_value(value, value_len, || Ok(volume.get(store, key)?))
        }
    })
}

/// As tw_kv_get(), and `version` becomes the version that the value is of, or of which the key is absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_get_with_version(
    kv: *const tw_kv,
    key: *const c_void,
    key_len: usize,
    value: *mut c_void,
    value_len: *mut usize,
    version: *mut tw_version,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let (volume, store) = opened(kv)?;
            let key = bytes(key, key_len)?.unwrap_or_default();
            let version = place(version)?;
            copy_value(value, value_len, || {
                let (served, found) = volume.get_with_version(store, key)?;
                *version = served.into();
                Ok(found)
            })
        }
    })
}

/// Copies the value that `get` returns to a caller's buffer; see [`tw_kv_get`].
///
/// # Safety
/// `len` is null or valid, and `to` is null or has as many bytes as it says.
pub(crate) unsafe fn copy_value(
    to: *mut c_void,
    len: *mut usize,
    get: impl FnOnce() -> Result<Option<Bytes>, Failure>,
) -> Result<c_int, Failure> {
    // SAFETY: as the caller says.
    let len = unsafe { len.as_mut() };
    let len = len.ok_or_else(|| Failure::invalid("the length is a null pointer"))?;
    if to.is_null() && *len > 0 {
        return Err(Failure::invalid("the buffer is a null pointer"));
    }
    let Some(found) = get()? else { return Ok(0) };
    let room = std::mem::replace(len, found.len());
    if found.len() > room {
        let text = format!("the value has {} bytes, and the buffer {room}", found.len());
        return Err(Failure::new(libc::ERANGE, text));
    }
    if !found.is_empty() {
        // SAFETY: the caller has room for `found.len()` bytes there.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), to.cast(), found.len()) };
    }
    Ok(1)
}

/// Deletes a key: 1, or 0 when it was absent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_delete(
    kv: *const tw_kv,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let ((volume, store), key) = unsafe { (opened(kv)?, bytes(key, key_len)?) };
        Ok(c_int::from(volume.delete(store, key.unwrap_or_default())?))
    })
}

/// Iterates over the keys in order, from `from` (inclusive) to `to` (exclusive), each unless it is null; for
/// a hash table both must be null. The iterator sees what this thread's transaction sees, or the state now.
/// Null when that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_scan(
    kv: *const tw_kv,
    from: *const c_void,
    from_len: usize,
    to: *const c_void,
    to_len: usize,
) -> *mut tw_kv_iter {
    let mut walk = std::ptr::null_mut();
    call(|| {
        // SAFETY: as the caller says.
        let ((volume, store), from, to) =
            unsafe { (opened(kv)?, bytes(from, from_len)?, bytes(to, to_len)?) };
        let iter = volume.scan(store, from, to)?;
        // SAFETY: `opened` looked at it.
        let volume = unsafe { (*kv).volume };
        walk = Box::into_raw(Box::new(tw_kv_iter { volume, iter, last: None }));
        Ok(0)
    });
    walk
}

/// The next key and value: 1, or 0 at the end. The pointers are valid until the next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_next(
    walk: *mut tw_kv_iter,
    key: *mut *const c_void,
    key_len: *mut usize,
    value: *mut *const c_void,
    value_len: *mut usize,
) -> c_int {
    call(|| {
        if [key, value].iter().any(|it| it.is_null())
            || [key_len, value_len].iter().any(|it| it.is_null())
        {
            return Err(Failure::invalid("a place for the result is a null pointer"));
        }
        // SAFETY: as the caller says.
        let walk = unsafe { walk.as_mut() };
        let walk = walk.ok_or_else(|| Failure::invalid("the walk is a null pointer"))?;
        // SAFETY: the volume is closed after the iterator.
        let volume = unsafe { named(walk.volume)? };
        walk.last = volume.next(&mut walk.iter)?;
        let Some((found, content)) = &walk.last else { return Ok(0) };
        // SAFETY: the caller may write there.
        unsafe {
            (*key, *key_len) = (found.as_ptr().cast(), found.len());
            (*value, *value_len) = (content.as_ptr().cast(), content.len());
        }
        Ok(1)
    })
}

/// Closes an iterator. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_iter_close(walk: *mut tw_kv_iter) {
    if !walk.is_null() {
        // SAFETY: it came from `tw_kv_scan`, and no other call uses it.
        drop(unsafe { Box::from_raw(walk) });
    }
}
