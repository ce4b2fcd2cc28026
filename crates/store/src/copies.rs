//! A structure that a device holds in two copies, written alternately: the newest whole one counts.

use std::fmt;

use bytes::Bytes;
use serde::Serialize;

use crate::device::{AlignedBuf, DeviceError, DeviceRef, Purpose};

/// Number of copies.
pub const COPIES: u64 = 2;
/// Bytes from one copy to the next.
pub const COPY: u64 = 4096;
/// Bytes of the structure.
pub(crate) const LEN: usize = 512;

/// A structure that is kept in two copies.
pub(crate) trait Copied: Sized {
    /// Why a whole copy is unusable.
    type Error: From<DeviceError> + fmt::Display;

    /// The purpose of its reads and writes.
    const PURPOSE: Purpose;

    /// Increases with each one that is written.
    fn generation(&self) -> u64;

    /// Sector size in bytes of the device that it was made for.
    fn sector(&self) -> u32;

    /// Its stored form.
    fn encode(&self) -> [u8; LEN];

    /// Decodes a copy; `None` if it is not whole.
    fn decode(bytes: &[u8], device: &DeviceRef) -> Result<Option<Self>, Self::Error>;
}

/// Which copy of a device's bytes is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceCopy {
    /// The one that the device chooses.
    Any,
    /// This one alone.
    Only(usize),
}

impl DeviceCopy {
    /// Reads from it.
    ///
    /// # Errors
    /// The device's.
    pub(crate) async fn read(
        self,
        device: &DeviceRef,
        offset: u64,
        len: usize,
        purpose: Purpose,
    ) -> Result<Bytes, DeviceError> {
        match self {
            DeviceCopy::Any => device.read(offset, len, purpose).await,
            DeviceCopy::Only(copy) => device.read_copy(copy, offset, len, purpose).await,
        }
    }
}

/// The copies of a device's bytes that can be read; [`DeviceCopy::Any`] if there is no other one.
pub(crate) fn readable_copies(device: &DeviceRef) -> Vec<DeviceCopy> {
    let copies: Vec<_> = (0..device.copies()).filter(|copy| device.has_copy(*copy)).collect();
    match copies.len() {
        0 | 1 => vec![DeviceCopy::Any],
        _ => copies.into_iter().map(DeviceCopy::Only).collect(),
    }
}

/// The content of a copy's place.
enum Found<T: Copied> {
    Whole(T),
    Nothing,
    Refused(T::Error),
    Unread(DeviceError),
}

async fn find<T: Copied>(device: &DeviceRef, at: u64) -> Found<T> {
    decoded(device, device.read(at, COPY as usize, T::PURPOSE).await)
}

fn decoded<T: Copied>(device: &DeviceRef, read: Result<Bytes, DeviceError>) -> Found<T> {
    match read {
        Ok(bytes) => match T::decode(&bytes, device) {
            Ok(Some(it)) => Found::Whole(it),
            Ok(None) => Found::Nothing,
            Err(error) => Found::Refused(error),
        },
        Err(error) => Found::Unread(error),
    }
}

fn newer<T: Copied>(newest: Option<T>, it: T) -> Option<T> {
    match newest {
        Some(newest) if newest.generation() >= it.generation() => Some(newest),
        _ => Some(it),
    }
}

/// The copy that counts, if there is one.
///
/// # Errors
/// A whole copy's error; the device's, when no copy could be read.
pub(crate) async fn read<T: Copied>(device: &DeviceRef) -> Result<Option<T>, T::Error> {
    let (mut newest, mut failure) = (None, None);
    // What was written and not flushed at a crash may be on one copy of a mirrored device alone.
    for copy in readable_copies(device) {
        for place in 0..COPIES {
            match decoded(device, copy.read(device, place * COPY, COPY as usize, T::PURPOSE).await)
            {
                Found::Whole(it) => newest = newer(newest, it),
                Found::Nothing => {}
                Found::Refused(error) => return Err(error),
                Found::Unread(error) => failure = Some(error),
            }
        }
    }
    match (newest, failure) {
        (None, Some(error)) => Err(error.into()),
        (newest, _) => Ok(newest),
    }
}

/// A backup of it at an offset, if that is whole.
pub(crate) async fn read_backup<T: Copied>(device: &DeviceRef, at: u64) -> Option<T> {
    match find(device, at).await {
        Found::Whole(it) => Some(it),
        Found::Nothing | Found::Refused(_) | Found::Unread(_) => None,
    }
}

/// Writes it over the copy that does not count now.
///
/// # Errors
/// Device errors.
pub(crate) async fn write<T: Copied>(it: &T, device: &DeviceRef) -> Result<(), DeviceError> {
    write_at(it, device, it.generation() % COPIES * COPY).await
}

/// Writes both copies, over a place whose content is of no use.
///
/// # Errors
/// Device errors.
pub(crate) async fn write_all<T: Copied>(it: &T, device: &DeviceRef) -> Result<(), DeviceError> {
    for copy in 0..COPIES {
        write_at(it, device, copy * COPY).await?;
    }
    Ok(())
}

/// Writes it at an offset.
///
/// # Errors
/// Device errors.
pub(crate) async fn write_at<T: Copied>(
    it: &T,
    device: &DeviceRef,
    at: u64,
) -> Result<(), DeviceError> {
    let mut sector = AlignedBuf::zeroed((it.sector() as usize).max(LEN));
    sector[..LEN].copy_from_slice(&it.encode());
    device.write(at, vec![sector.freeze()], T::PURPOSE).await
}

/// One copy, in readable form.
#[derive(Clone, Debug, Serialize)]
pub struct CopyDump<T> {
    /// Its place, in bytes.
    pub offset: u64,
    /// Why it is not valid, if it is not.
    pub error: Option<String>,
    /// Its content.
    pub superblock: Option<T>,
}

/// The content of both places, and the copy that counts.
pub(crate) async fn dump<T: Copied + Clone>(device: &DeviceRef) -> (Vec<CopyDump<T>>, Option<T>) {
    let (mut copies, mut newest) = (Vec::new(), None);
    for copy in 0..COPIES {
        let (error, superblock) = match find::<T>(device, copy * COPY).await {
            Found::Whole(it) => {
                newest = newer(newest, it.clone());
                (None, Some(it))
            }
            Found::Nothing => (Some("no superblock, or damaged".to_owned()), None),
            Found::Refused(error) => (Some(error.to_string()), None),
            Found::Unread(error) => (Some(error.to_string()), None),
        };
        copies.push(CopyDump { offset: copy * COPY, error, superblock });
    }
    (copies, newest)
}
