//! Old versions for C: reads of a given one, what they cost, and snapshots.

use std::ffi::{c_int, c_void};

use thalweg_store::block::{Lba, Version};
use thalweg_store::stale::VersionRange;

use super::raw::{self, tw_raw};
use super::stores::{self, bytes, copy_value, tw_kv};
use super::versions::{copy_all, place};
use super::{copy_out, len, named, tw_volume};
use crate::failure::call;

/// Versions from `oldest` to `newest`, as tw_version has them in `version`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_range {
    /// The oldest.
    pub oldest: u64,
    /// The newest.
    pub newest: u64,
}

/// A content of a block that can be read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_content {
    /// The versions that have it.
    pub versions: tw_range,
    /// What it costs to read, as tw_cost() says.
    pub cost: i64,
}

impl From<VersionRange> for tw_range {
    fn from(range: VersionRange) -> tw_range {
        tw_range { oldest: range.low.0, newest: range.up.0 }
    }
}

/// Opens a snapshot: until tw_close_snapshot() this thread's reads, of blocks and of keys, see this version, and its writes
/// fail with -EINVAL. It is a transaction of the thread, and keeps the version. Fails with -ESTALE when the version is not
/// kept, with -ENODATA when it is one of the future, and with -EINVAL inside of a transaction or another snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_open_snapshot(volume: *const tw_volume, version: u64) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { named(volume) }?.open_snapshot(Version(version))?;
        Ok(0)
    })
}

/// Closes this thread's snapshot. Fails with -EINVAL when none is open, so also when it was closed before, and when a
/// transaction is open inside of it; with -ECANCELED when it was idle for too long, and its last reads have failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_close_snapshot(volume: *const tw_volume) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { named(volume) }?.close_snapshot()?;
        Ok(0)
    })
}

/// As tw_read(), of a version. Fails as tw_open_snapshot().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_read_at(
    volume: *const tw_volume,
    version: u64,
    block: u64,
    count: u32,
    buffer: *mut c_void,
) -> c_int {
    call(|| {
        len(buffer, count)?;
        // SAFETY: as the caller says.
        let volume = unsafe { named(volume)? };
        let blocks = volume.read_at(Version(version), Lba(block), u64::from(count))?;
        // SAFETY: the buffer has room for `count` blocks.
        unsafe { copy_out(&blocks, count, buffer) };
        Ok(0)
    })
}

/// As tw_raw_read(), of a version. Fails as tw_open_snapshot(), and with -ENOENT when the version does not have the
/// partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_read_at(
    raw: *const tw_raw,
    version: u64,
    block: u64,
    count: u32,
    buffer: *mut c_void,
) -> c_int {
    call(|| {
        len(buffer, count)?;
        // SAFETY: as the caller says.
        let (volume, raw) = unsafe { raw::opened(raw)? };
        let blocks = volume.read_raw_at(Version(version), raw, block, u64::from(count))?;
        // SAFETY: the buffer has room for `count` blocks.
        unsafe { copy_out(&blocks, count, buffer) };
        Ok(0)
    })
}

/// As tw_kv_get(), of a version. Fails as tw_open_snapshot().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_get_at(
    kv: *const tw_kv,
    version: u64,
    key: *const c_void,
    key_len: usize,
    value: *mut c_void,
    value_len: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let ((volume, store), key) = (stores::opened(kv)?, bytes(key, key_len)?);
            let key = key.unwrap_or_default();
            copy_value(value, value_len, || Ok(volume.get_at(Version(version), store, key)?))
        }
    })
}

/// The contents of a block in the versions from `oldest` to `newest`, as far as they can be read, oldest first, each with
/// its cost; through a server, the newest ones only if there are tens of thousands. `count` is the room at `contents`, and becomes their number; with too little
/// room the call fails with -ERANGE and copies nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_contents(
    volume: *const tw_volume,
    block: u64,
    oldest: u64,
    newest: u64,
    contents: *mut tw_content,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let volume = named(volume)?;
            let range = VersionRange { low: Version(oldest), up: Version(newest) };
            copy_all(contents, count, || {
                let found = volume.contents(Lba(block), range)?.into_iter();
                let found = found
                    .map(|(versions, cost)| tw_content { versions: versions.into(), cost: cost.0 });
                Ok(found.collect())
            })
        }
    })
}

/// What it costs to read a block at a version: the estimated time in nanoseconds, -1 when the content is in memory. Fails
/// with -ESTALE when the version is not kept, and with -ENODATA when it is one of the future.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_cost(
    volume: *const tw_volume,
    block: u64,
    version: u64,
    cost: *mut i64,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, cost) = unsafe { (named(volume)?, place(cost)?) };
        *cost = volume.cost(Lba(block), Version(version))?.0;
        Ok(0)
    })
}

/// The versions in which a block has the content of a version, as far as they can be read. Fails as tw_cost().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_version_range(
    volume: *const tw_volume,
    block: u64,
    version: u64,
    versions: *mut tw_range,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, versions) = unsafe { (named(volume)?, place(versions)?) };
        *versions = volume.version_range(Lba(block), Version(version))?.into();
        Ok(0)
    })
}

/// The block of the volume that is a block of a raw partition, for tw_cost(), tw_version_range() and tw_contents().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_raw_place(raw: *const tw_raw, block: u64, at: *mut u64) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let ((_, raw), at) = unsafe { (raw::opened(raw)?, place(at)?) };
        *at = raw.place(block)?.0;
        Ok(0)
    })
}

/// What it costs to read a key at a version: that of the dearest block on the way to its value, as far as this is in memory,
/// or else of the first block that is not. Fails as tw_cost().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_cost(
    kv: *const tw_kv,
    key: *const c_void,
    key_len: usize,
    version: u64,
    cost: *mut i64,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let ((volume, store), key, cost) =
            unsafe { (stores::opened(kv)?, bytes(key, key_len)?, place(cost)?) };
        let key = key.unwrap_or_default();
        *cost = volume.cost_of_key(store, key, Version(version))?.0;
        Ok(0)
    })
}

/// The versions in which a key is known to have the value of a version. Fails as tw_cost().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_kv_version_range(
    kv: *const tw_kv,
    key: *const c_void,
    key_len: usize,
    version: u64,
    versions: *mut tw_range,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let ((volume, store), key, versions) =
            unsafe { (stores::opened(kv)?, bytes(key, key_len)?, place(versions)?) };
        let key = key.unwrap_or_default();
        *versions = volume.versions_of_key(store, key, Version(version))?.into();
        Ok(0)
    })
}
