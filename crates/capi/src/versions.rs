//! Versions for C.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;

use thalweg_store::block::{Epoch, EpochVersion, Lba, Version};
use thalweg_store::txn::Begin;

use super::{copy_out, len, named, tw_volume};
use crate::failure::{Failure, call};

/// Bytes that the text of any version takes, with the zero at its end.
pub const TW_VERSION_TEXT: usize = 42;

/// The name of a state of a volume. Each opening of the volume for writing begins an epoch, in which versions are
/// counted; so no other state ever has the same name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_version {
    /// The epoch.
    pub epoch: u64,
    /// The version.
    pub version: u64,
}

impl From<EpochVersion> for tw_version {
    fn from(version: EpochVersion) -> tw_version {
        tw_version { epoch: version.epoch.0, version: version.version.0 }
    }
}

impl From<tw_version> for EpochVersion {
    fn from(version: tw_version) -> EpochVersion {
        EpochVersion { epoch: Epoch(version.epoch), version: Version(version.version) }
    }
}

/// Content that a block has in some of the versions that can be read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tw_block_version {
    /// The oldest version that has it and can be read.
    pub oldest: tw_version,
    /// The newest one. The versions in between have it too.
    pub newest: tw_version,
    /// 1 if something is stored, 0 if the block reads as zeros.
    pub stored: c_int,
}

/// The place where a caller wants a result.
///
/// # Safety
/// `at` is null or valid.
pub(crate) unsafe fn place<'a, T>(at: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: as the caller says.
    let place = unsafe { at.as_mut() };
    place.ok_or_else(|| Failure::invalid("the place for the result is a null pointer"))
}

/// Writes the text of a version, EPOCH.VERSION, into `text`, which has TW_VERSION_TEXT bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_version_text(version: tw_version, text: *mut c_char) -> c_int {
    call(|| {
        // SAFETY: the caller has so many bytes there.
        let text = unsafe { place(text.cast::<[u8; TW_VERSION_TEXT]>())? };
        // The longest text has two numbers of 20 digits.
        write!(&mut text[..], "{}\0", EpochVersion::from(version))
            .map_err(|_| Failure::invalid("the text of the version is too long"))?;
        Ok(0)
    })
}

/// Reads a version from its text, as in 7.1234. Fails with -EINVAL for any other text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_version_parse(text: *const c_char, version: *mut tw_version) -> c_int {
    call(|| {
        if text.is_null() {
            return Err(Failure::invalid("the text is a null pointer"));
        }
        // SAFETY: the caller gives a string that ends with a zero.
        let (text, version) = unsafe { (CStr::from_ptr(text), place(version)?) };
        let parsed: EpochVersion = text.to_string_lossy().parse()?;
        *version = parsed.into();
        Ok(0)
    })
}

/// Begins this thread's transaction on a version: read-only, and for as long as the transaction runs the version is
/// kept. Fails with -ESTALE when the version is not kept, and with -EINVAL inside a transaction that reads another
/// version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_begin_tx_at(volume: *const tw_volume, version: tw_version) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe { named(volume) }?.begin(Begin::at(version.into()))?;
        Ok(0)
    })
}

/// The version that this thread's transaction reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_tx_version(
    volume: *const tw_volume,
    version: *mut tw_version,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, version) = unsafe { (named(volume)?, place(version)?) };
        *version = volume.version()?.into();
        Ok(0)
    })
}

/// As tw_end_tx(), and when the outermost pair has committed, `version` becomes the version of the commit: the one
/// that the transaction read if it wrote nothing. Otherwise `version` is left alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_end_tx_with_version(
    volume: *const tw_volume,
    version: *mut tw_version,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        let (volume, version) = unsafe { (named(volume)?, place(version)?) };
        let (ended, committed) = super::end(volume)?;
        if let Some(committed) = committed {
            *version = committed.into();
        }
        Ok(ended)
    })
}

/// As tw_read(), and `version` becomes the version that the blocks are of. Outside of a transaction a crash may
/// still lose that version. Inside of one the blocks also have what the transaction itself wrote.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_read_with_version(
    volume: *const tw_volume,
    block: u64,
    count: u32,
    buffer: *mut c_void,
    version: *mut tw_version,
) -> c_int {
    call(|| {
        len(buffer, count)?;
        // SAFETY: as the caller says.
        let (volume, version) = unsafe { (named(volume)?, place(version)?) };
        let (served, blocks) = volume.read_with_version(Lba(block), u64::from(count))?;
        // SAFETY: the buffer has room for `count` blocks.
        unsafe { copy_out(&blocks, count, buffer) };
        *version = served.into();
        Ok(0)
    })
}

/// The contents of a block that can be read, oldest first; a transaction can begin on the oldest and on the newest
/// version of each. `count` is the room at `versions`, and becomes their number; with too little room the call fails
/// with -ERANGE and copies nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_versions(
    volume: *const tw_volume,
    block: u64,
    versions: *mut tw_block_version,
    count: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let volume = named(volume)?;
            copy_all(versions, count, || {
                let (epoch, found) = volume.versions(Lba(block))?;
                let named = |version| EpochVersion { epoch, version }.into();
                let found = found.into_iter().map(|content| tw_block_version {
                    oldest: named(content.oldest),
                    newest: named(content.newest),
                    stored: content.stored.into(),
                });
                Ok(found.collect())
            })
        }
    })
}

/// Copies what `find` returns to a caller, and stores the number.
///
/// # Safety
/// `count` is null or valid, and `to` is null or has room for as many as it says.
pub(crate) unsafe fn copy_all<T>(
    to: *mut T,
    count: *mut usize,
    find: impl FnOnce() -> Result<Vec<T>, Failure>,
) -> Result<c_int, Failure> {
    // SAFETY: as the caller says.
    let count = unsafe { place(count)? };
    if to.is_null() && *count > 0 {
        return Err(Failure::invalid("the place for the versions is a null pointer"));
    }
    let found = find()?;
    let room = std::mem::replace(count, found.len());
    if found.len() > room {
        let text = format!("the block has {} contents, and there is room for {room}", found.len());
        return Err(Failure::new(libc::ERANGE, text));
    }
    for (nth, content) in found.into_iter().enumerate() {
        // SAFETY: the caller has room for `room` of them, and `nth` is below.
        unsafe { to.add(nth).write(content) };
    }
    Ok(0)
}
