//! A structure that a device holds in two copies, written in turns: the newest whole one counts.

use std::fmt;

use serde::Serialize;

use crate::device::{AlignedBuf, DeviceError, DeviceRef, Purpose};

/// Copies.
pub const COPIES: u64 = 2;
/// Bytes from one copy to the next.
pub const COPY: u64 = 4096;
/// Bytes of the structure.
pub(crate) const LEN: usize = 512;

/// What is kept in two copies.
pub(crate) trait Copied: Sized {
    /// What is said of a copy that is whole, and still is of no use.
    type Error: From<DeviceError> + fmt::Display;

    /// What reads and writes of it are for.
    const PURPOSE: Purpose;

    /// Higher in each one that is written.
    fn generation(&self) -> u64;

    /// Bytes of a sector of the device that it was made for.
    fn sector(&self) -> u32;

    /// What the device gets.
    fn encode(&self) -> [u8; LEN];

    /// A copy, if it is whole.
    fn decode(bytes: &[u8], device: &DeviceRef) -> Result<Option<Self>, Self::Error>;
}

/// What was found where a copy belongs.
enum Found<T: Copied> {
    Whole(T),
    Nothing,
    Refused(T::Error),
    Unread(DeviceError),
}

async fn find<T: Copied>(device: &DeviceRef, at: u64) -> Found<T> {
    match device.read(at, COPY as usize, T::PURPOSE).await {
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

/// The one that counts, if there is one.
///
/// # Errors
/// What is said of a whole copy; the device's, when it had no copy to show.
pub(crate) async fn read<T: Copied>(device: &DeviceRef) -> Result<Option<T>, T::Error> {
    let (mut newest, mut failure) = (None, None);
    for copy in 0..COPIES {
        match find(device, copy * COPY).await {
            Found::Whole(it) => newest = newer(newest, it),
            Found::Nothing => {}
            Found::Refused(error) => return Err(error),
            Found::Unread(error) => failure = Some(error),
        }
    }
    match (newest, failure) {
        (None, Some(error)) => Err(error.into()),
        (newest, _) => Ok(newest),
    }
}

/// A backup of it at an offset, if a whole one is there.
pub(crate) async fn read_backup<T: Copied>(device: &DeviceRef, at: u64) -> Option<T> {
    match find(device, at).await {
        Found::Whole(it) => Some(it),
        Found::Nothing | Found::Refused(_) | Found::Unread(_) => None,
    }
}

/// Writes it, not over the one that counts now.
///
/// # Errors
/// The device's.
pub(crate) async fn write<T: Copied>(it: &T, device: &DeviceRef) -> Result<(), DeviceError> {
    write_at(it, device, it.generation() % COPIES * COPY).await
}

/// Writes it where nothing of worth is.
///
/// # Errors
/// The device's.
pub(crate) async fn write_all<T: Copied>(it: &T, device: &DeviceRef) -> Result<(), DeviceError> {
    for copy in 0..COPIES {
        write_at(it, device, copy * COPY).await?;
    }
    Ok(())
}

/// Writes it at an offset.
///
/// # Errors
/// The device's.
pub(crate) async fn write_at<T: Copied>(
    it: &T,
    device: &DeviceRef,
    at: u64,
) -> Result<(), DeviceError> {
    let mut sector = AlignedBuf::zeroed((it.sector() as usize).max(LEN));
    sector[..LEN].copy_from_slice(&it.encode());
    device.write(at, vec![sector.freeze()], T::PURPOSE).await
}

/// One copy, for a person to read.
#[derive(Clone, Debug, Serialize)]
pub struct CopyDump<T> {
    /// Its place, in bytes.
    pub offset: u64,
    /// Why it is none, if it is none.
    pub error: Option<String>,
    /// What it says.
    pub superblock: Option<T>,
}

/// What is in the places of both copies, and the one that counts.
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
