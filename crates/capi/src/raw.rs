//! Raw blocks for C.

use std::ffi::{c_char, c_int, c_void};

use thalweg_client::Volume;
use thalweg_store::tree::{Kind, Raw};

use super::stores::text;
use super::versions::{place, tw_version};
use super::{copy_out, len, named, tw_volume};
use crate::failure::{Failure, call};

/// A raw partition of a volume: blocks for a program that brings its own layout, numbered from 0. It must be
/// closed before the volume is.
pub struct tw_raw {
    volume: *const tw_volume,
    raw: Raw,
}

pub(crate) unsafe fn opened<'a>(raw: *const tw_raw) -> Result<(&'a Volume, &'a Raw), Failure> {
    // SAFETY: as the caller of the library says, of the raw partition and of its volume.
    unsafe {
        let raw = raw.as_ref();
        let raw = raw.ok_or_else(|| Failure::invalid("the raw partition is a null pointer"))?;
        Ok((named(raw.volume)?, &raw.raw))
    }
}

/// Makes a raw partition of `blocks` blocks; with 0, of the longest free run. Not inside a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_create(
    volume: *const tw_volume,
    name: *const c_char,
    blocks: u64,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, name) = unsafe { (named(volume)?, text(name)?) };
        volume.create_store(name, Kind::Raw, (blocks > 0).then_some(blocks))?;
        Ok(0)
    })
}

/// Opens a raw partition. Null when that fails; tw_errno() and tw_error() say why.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_open(volume: *const tw_volume, name: *const c_char) -> *mut tw_raw {
    let mut opened = std::ptr::null_mut();
    call(|| {
        // SAFETY: as the caller says.
        let raw = unsafe { named(volume)?.raw(text(name)?)? };
        opened = Box::into_raw(Box::new(tw_raw { volume, raw }));
        Ok(0)
    });
    opened
}

/// Closes a raw partition. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_close(raw: *mut tw_raw) {
    if !raw.is_null() {
        // SAFETY: it came from `tw_raw_open`, and no other call uses it.
        drop(unsafe { Box::from_raw(raw) });
    }
}

/// The number of blocks of a raw partition, 0 for a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_blocks(raw: *const tw_raw) -> u64 {
    // SAFETY: as the caller says.
    unsafe { opened(raw) }.map_or(0, |(_, raw)| raw.blocks())
}

/// Reads `count` blocks of a raw partition, as tw_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_read(
    raw: *const tw_raw,
    block: u64,
    count: u32,
    buffer: *mut c_void,
) -> c_int {
    call(|| {
        len(buffer, count)?;
        // SAFETY: as the caller says.
        let (volume, raw) = unsafe { opened(raw)? };
        let blocks = volume.read_raw(raw, block, u64::from(count))?;
        // SAFETY: the buffer has room for `count` blocks.
        unsafe { copy_out(&blocks, count, buffer) };
        Ok(0)
    })
}

/// As tw_raw_read(), and `version` becomes the version that the blocks are of: see tw_read_with_version().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_read_with_version(
    raw: *const tw_raw,
    block: u64,
    count: u32,
    buffer: *mut c_void,
    version: *mut tw_version,
) -> c_int {
    call(|| {
        len(buffer, count)?;
        // SAFETY: as the caller says.
        let ((volume, raw), version) = unsafe { (opened(raw)?, place(version)?) };
        let (served, blocks) = volume.read_raw_with_version(raw, block, u64::from(count))?;
        // SAFETY: the buffer has room for `count` blocks.
        unsafe { copy_out(&blocks, count, buffer) };
        *version = served.into();
        Ok(0)
    })
}

/// Writes `count` blocks of a raw partition, as tw_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_write(
    raw: *const tw_raw,
    block: u64,
    count: u32,
    buffer: *const c_void,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let content = unsafe { super::content(buffer, count)? };
        // SAFETY: as the caller says.
        let (volume, raw) = unsafe { opened(raw)? };
        volume.write_raw(raw, block, content)?;
        Ok(0)
    })
}

/// Discards `count` blocks of a raw partition: they read as zeros, and their space may be reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_discard(raw: *const tw_raw, block: u64, count: u32) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, raw) = unsafe { opened(raw)? };
        volume.discard_raw(raw, block, u64::from(count))?;
        Ok(0)
    })
}

/// Narrows this thread's last read or write of a block of a raw partition, as tw_mark_accessed().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_mark_accessed(
    raw: *const tw_raw,
    block: u64,
    start: u32,
    size: u32,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, raw) = unsafe { opened(raw)? };
        volume.mark_raw(raw, block, super::marked(start, size))?;
        Ok(0)
    })
}

/// Asks for a block of a raw partition to be kept in memory. A hint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_please_cache(raw: *const tw_raw, block: u64) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, raw) = unsafe { opened(raw)? };
        volume.please_cache_raw(raw, block)?;
        Ok(0)
    })
}
