//! Thalweg for C: `thalweg.h`. Each function is one call of [`thalweg_client::Volume`] or of
//! [`thalweg_client::Filesystem`].
//!
//! C callers must pass valid pointers, and each `unsafe` block relies on that: a volume is null or came from
//! [`tw_open`] and was not closed; a buffer is null or has as many bytes as the call says; a string is null
//! or ends with a zero.

// The names follow C, and the comments are written for C: cbindgen copies them into the header.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod failure;
pub mod files;
pub mod positions;
pub mod raw;
pub mod sessions;
pub mod snapshots;
pub mod stores;
pub mod versions;

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bytes::Bytes;
use thalweg_client::{Outcome, Volume};
use thalweg_store::block::{BLOCK_SIZE, EpochVersion, Lba};
use thalweg_store::open::Options;
use thalweg_store::txn::{Begin, Handle};

use failure::{Failure, call};

/// Bytes in a block.
pub const TW_BLOCK_SIZE: usize = 4096;
const _: () = assert!(TW_BLOCK_SIZE == BLOCK_SIZE);

/// As if transactions ran one after the other, in an order that agrees with real time.
pub const TW_STRICT: c_int = 0;
/// Reads see one snapshot; of two transactions that write the same bytes one commits. Permits write skew.
pub const TW_SNAPSHOT: c_int = 1;
/// Reads only: sees one snapshot, and always commits.
pub const TW_READ_ONLY: c_int = 2;

/// An open volume.
pub struct tw_volume {
    volume: Volume,
}

/// Names a released transaction until a takeover. It may be sent to another process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_handle {
    /// Opaque.
    pub bytes: [u8; 16],
}

/// The volume that a caller named.
///
/// # Safety
/// `volume` is null or came from [`tw_open`] and was not closed.
unsafe fn named<'a>(volume: *const tw_volume) -> Result<&'a Volume, Failure> {
    // SAFETY: as the caller says.
    let volume = unsafe { volume.as_ref() };
    volume.map(|it| &it.volume).ok_or_else(|| Failure::invalid("the volume is a null pointer"))
}

/// Bytes of `count` blocks that a caller has at `at`.
fn len<T>(at: *const T, count: u32) -> Result<usize, Failure> {
    match at.is_null() && count > 0 {
        true => Err(Failure::invalid("the buffer is a null pointer")),
        false => Ok(count as usize * BLOCK_SIZE),
    }
}

/// Copies blocks to a caller's buffer.
///
/// # Safety
/// `buffer` has room for `count` blocks.
unsafe fn copy_out(blocks: &[Bytes], count: u32, buffer: *mut c_void) {
    for (at, content) in blocks.iter().take(count as usize).enumerate() {
        let bytes = content.len().min(BLOCK_SIZE);
        // SAFETY: the buffer has room for `count` blocks, and `at` is below.
        unsafe {
            let to = buffer.cast::<u8>().add(at * BLOCK_SIZE);
            std::ptr::copy_nonoverlapping(content.as_ptr(), to, bytes);
        }
    }
}

/// The `count` blocks that a caller has at `buffer`.
///
/// # Safety
/// `buffer` is null or has `count` blocks.
unsafe fn content<'a>(buffer: *const c_void, count: u32) -> Result<&'a [u8], Failure> {
    Ok(match len(buffer, count)? {
        0 => &[],
        // SAFETY: the caller has `len` bytes there.
        len => unsafe { std::slice::from_raw_parts(buffer.cast(), len) },
    })
}

/// The bytes of a block that a mark is about.
fn marked(start: u32, size: u32) -> Range<usize> {
    // Wider than the sum: a range that leaves the block is refused, and does not wrap.
    let (start, end) = (u64::from(start), u64::from(start) + u64::from(size));
    start as usize..usize::try_from(end).unwrap_or(usize::MAX)
}

/// The path that a caller gives; `None` for a null pointer.
///
/// # Safety
/// `text` is null or a string that ends with a zero.
unsafe fn path<'a>(text: *const c_char) -> Option<&'a Path> {
    // SAFETY: as the caller says.
    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?;
    Some(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Opens a volume, by the folder of a chained one, or by the device or file of one that is updated in
/// place: through the process that serves it, or in this one; or by the address of one on another machine,
/// thalweg://HOST:PORT/NAME; or by the addresses of several nodes of one, a primary and replicas of it, with commas
/// between them, each such an address or the folder of a volume that is served: reads for a session then go to the
/// cheapest node that may serve them. Null when that fails; tw_errno() and tw_error() say why: EACCES when keys are
/// missing or refused, ENOTCONN when the server cannot be reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_open(path: *const c_char) -> *mut tw_volume {
    // SAFETY: as the caller says.
    unsafe { tw_open_journal(path, std::ptr::null()) }
}

/// As tw_open(), of a volume that is updated in place and has its journal on a device of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_open_journal(
    path: *const c_char,
    journal: *const c_char,
) -> *mut tw_volume {
    let mut opened = std::ptr::null_mut();
    call(|| {
        // SAFETY: the caller gives strings that end with a zero.
        let (path, journal) = unsafe { (self::path(path), self::path(journal)) };
        let path = path.ok_or_else(|| Failure::invalid("the path is a null pointer"))?;
        let options = Options { journal: journal.map(Path::to_owned), ..Options::default() };
        let volume = Volume::open_with(path, &options)?;
        opened = Box::into_raw(Box::new(tw_volume { volume }));
        Ok(0)
    });
    opened
}

/// Closes a volume. Transactions that run on it, of any thread, are aborted. No thread may be in a call
/// on it, nor call anything on it later, whatever this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_close(volume: *mut tw_volume) -> c_int {
    call(|| {
        if volume.is_null() {
            return Err(Failure::invalid("the volume is a null pointer"));
        }
        // SAFETY: it came from `tw_open`, and no other call uses it.
        let volume = unsafe { Box::from_raw(volume) };
        volume.volume.close()?;
        Ok(0)
    })
}

/// The number of blocks, 0 for a null pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_blocks(volume: *const tw_volume) -> u64 {
    // SAFETY: as the caller says.
    unsafe { named(volume) }.map_or(0, |volume| volume.blocks())
}

/// Whether another process serves the volume: 1, or 0 when this process has opened it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_is_served(volume: *const tw_volume) -> c_int {
    // SAFETY: as the caller says.
    call(|| Ok(c_int::from(unsafe { named(volume) }?.is_served())))
}

/// Begins this thread's transaction on the volume: with TW_STRICT, TW_SNAPSHOT or TW_READ_ONLY. Inside a
/// transaction it opens an inner pair, whatever the isolation.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_begin_tx(volume: *const tw_volume, isolation: c_int) -> c_int {
    call(|| {
        let begin = match isolation {
            TW_STRICT => Begin::STRICT,
            TW_SNAPSHOT => Begin::SNAPSHOT,
            TW_READ_ONLY => Begin::READ_ONLY,
            _ => return Err(Failure::invalid("there is no such isolation")),
        };
        // SAFETY: as the caller says.
        unsafe { named(volume) }?.begin(begin)?;
        Ok(0)
    })
}

/// Ends the innermost pair. 1: an inner pair ended, or the transaction has committed and is durable. 0: the
/// transaction was aborted; tw_errno() says why: EAGAIN for a conflict, ECANCELED when it had been aborted
/// before. A negative errno: no transaction has begun, or it is unknown whether it committed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_end_tx(volume: *const tw_volume) -> c_int {
    // SAFETY: as the caller says.
    call(|| end(unsafe { named(volume) }?).map(|(ended, _)| ended))
}

/// Ends the innermost pair; returns what tw_end_tx() returns, and the version of an outermost pair.
fn end(volume: &Volume) -> Result<(c_int, Option<EpochVersion>), Failure> {
    match volume.end()? {
        Outcome::Committed(version) => Ok((1, version)),
        Outcome::Aborted(why) => {
            failure::remember(&why.into());
            Ok((0, None))
        }
    }
}

/// Aborts the innermost pair, without any effect. An inner abort dooms the enclosing transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_abort_tx(volume: *const tw_volume) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { named(volume) }?.abort()?;
        Ok(0)
    })
}

/// Releases this thread's transaction: `handle` is for the takeover by another thread or, when the volume is
/// served, by another process. Not inside an inner pair. A transaction without a takeover is aborted after 60
/// s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_release_tx(volume: *const tw_volume, handle: *mut tw_handle) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, handle) = unsafe { (named(volume)?, handle.as_mut()) };
        let handle = handle.ok_or_else(|| Failure::invalid("the handle is a null pointer"))?;
        handle.bytes = volume.release()?.0.to_le_bytes();
        Ok(0)
    })
}

/// Takes over a released transaction, as this thread's, which must have none. A handle is valid once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_takeover_tx(
    volume: *const tw_volume,
    handle: *const tw_handle,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, handle) = unsafe { (named(volume)?, handle.as_ref()) };
        let handle = handle.ok_or_else(|| Failure::invalid("the handle is a null pointer"))?;
        volume.takeover(Handle(u128::from_le_bytes(handle.bytes)))?;
        Ok(0)
    })
}

/// Narrows this thread's last read or write of a block in its transaction to `size` bytes from `start` on.
/// Several marks add up. Without a transaction it has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_mark_accessed(
    volume: *const tw_volume,
    block: u64,
    start: u32,
    size: u32,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { named(volume) }?.mark_accessed(Lba(block), marked(start, size))?;
        Ok(0)
    })
}

/// Asks for a block to be kept in memory. A hint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_please_cache(volume: *const tw_volume, block: u64) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { named(volume) }?.please_cache(Lba(block))?;
        Ok(0)
    })
}

/// Reads `count` blocks of the volume into `buffer`, which has `count` * TW_BLOCK_SIZE bytes. Unwritten
/// blocks read as zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_read(
    volume: *const tw_volume,
    block: u64,
    count: u32,
    buffer: *mut c_void,
) -> c_int {
    call(|| {
        len(buffer, count)?;
        // SAFETY: as the caller says.
        let blocks = unsafe { named(volume) }?.read(Lba(block), u64::from(count))?;
        // SAFETY: the buffer has room for `count` blocks.
        unsafe { copy_out(&blocks, count, buffer) };
        Ok(0)
    })
}

/// Writes `count` blocks from `buffer`, which has `count` * TW_BLOCK_SIZE bytes. A transaction may write 256
/// blocks. Fails with -EINVAL on a volume with partitions, as tw_discard() and tw_mark_accessed(): there, raw
/// blocks are in raw partitions, see tw_raw_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_write(
    volume: *const tw_volume,
    block: u64,
    count: u32,
    buffer: *const c_void,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { named(volume)?.write(Lba(block), content(buffer, count)?)? };
        Ok(0)
    })
}

/// Discards `count` blocks: they read as zeros, and their space may be reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_discard(volume: *const tw_volume, block: u64, count: u32) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { named(volume) }?.discard(Lba(block), u64::from(count))?;
        Ok(0)
    })
}

/// The text of this thread's last error: of a call that failed, or of a transaction that did not commit. It
/// is valid until the thread's next such call.
#[unsafe(no_mangle)]
pub extern "C" fn tw_error() -> *const c_char {
    failure::text()
}

/// The last error as a (positive) errno; 0 when no call has failed.
#[unsafe(no_mangle)]
pub extern "C" fn tw_errno() -> c_int {
    failure::number()
}
