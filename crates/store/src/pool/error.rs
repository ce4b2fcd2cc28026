//! Errors of a volume's devices.

use std::path::PathBuf;
use std::sync::Arc;

use uuid::Uuid;

use crate::block::StoreError;
use crate::chain::ChainError;
use crate::device::{DeviceError, MirrorError, StripeError};

/// Why a volume cannot be made, opened, changed or destroyed.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The folder has no volume.
    #[error(
        "no volume in {}: there is no {}; name a volume's folder, or, if that file is lost, make it again from the \
         labels of the devices: thalweg volume assemble DEVICE...",
        folder.display(), super::manifest::FILE
    )]
    NoVolume {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder holds a volume already.
    #[error("{} already holds a volume; destroy it first, or name another folder", folder.display())]
    Exists {
        /// The folder.
        folder: PathBuf,
    },
    /// The list of devices cannot be read.
    #[error(
        "{} is damaged ({detail}); make it again from the labels of the volume's devices: thalweg volume assemble DEVICE...",
        path.display()
    )]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// A crash came while the volume was being made or destroyed.
    #[error(
        "the volume in {} was not made or destroyed to the end; destroy it, and create it again",
        folder.display()
    )]
    Unfinished {
        /// The folder.
        folder: PathBuf,
    },
    /// The request is invalid; the text says why.
    #[error("{0}")]
    Invalid(String),
    /// A device holds no label.
    #[error(
        "{device} carries no label of this volume: it is another device, or was wiped; \
        name the right one, or replace it"
    )]
    Blank {
        /// The device's path.
        device: String,
    },
    /// A label is damaged.
    #[error("the label of {device} is damaged in both copies; replace the device")]
    Damaged {
        /// The device's path.
        device: String,
    },
    /// A label was written by a newer program.
    #[error(
        "{device} has format {format}, and this program knows {known}; use a newer one",
        known = super::format::FORMAT_VERSION
    )]
    NewerFormat {
        /// The device's path.
        device: String,
        /// Its format.
        format: u32,
    },
    /// A device belongs to another volume.
    #[error(
        "{device} belongs to the volume {name} ({volume}); name another device. thalweg volume destroy frees the devices of a \
         volume that is not needed any more; if its volume.toml is lost, thalweg volume assemble makes that again"
    )]
    OtherVolume {
        /// The device's path.
        device: String,
        /// The other volume's name.
        name: String,
        /// Its identity.
        volume: Uuid,
    },
    /// A device holds something else.
    #[error("{device} holds {what}; name another device, or use force if nothing on it is needed")]
    Foreign {
        /// The device's path.
        device: String,
        /// What was found.
        what: &'static str,
    },
    /// A device is in use in a way that excludes sharing.
    #[error("{device} {is}; {do_what}")]
    Sharing {
        /// The device's path.
        device: String,
        /// Its present use.
        is: &'static str,
        /// The next step.
        do_what: &'static str,
    },
    /// The same device is named twice.
    #[error("{first} and {second} are the same device; name each device once")]
    Twice {
        /// One path.
        first: String,
        /// The other.
        second: String,
    },
    /// A device has too little room.
    #[error("{device} is too small: {need} bytes are needed, and it has {have}; use a larger one")]
    TooSmall {
        /// The device's path.
        device: String,
        /// Bytes needed.
        need: u64,
        /// Bytes that it has.
        have: u64,
    },
    /// A device shared by several volumes has no space left.
    #[error(
        "{device} has no {need} contiguous bytes left (at most {have}); name another device, \
        or ask for less"
    )]
    NoRoom {
        /// The device's path.
        device: String,
        /// Bytes needed.
        need: u64,
        /// The largest free gap in bytes.
        have: u64,
    },
    /// Every copy of a part of the volume is missing.
    #[error("{part} is missing ({}): {}; attach it, or, if it has another path now, thalweg volume assemble with all devices",
        paths.join(", "), causes.join("; "))]
    Missing {
        /// The part.
        part: String,
        /// The paths of its devices.
        paths: Vec<String>,
        /// Why each cannot be used.
        causes: Vec<String>,
    },
    /// Sides of a mirror were used without each other.
    #[error(
        "{first} and {second} are sides of one mirror and were each used without the other; \
        detach the one whose changes you give up, open the volume, and replace it"
    )]
    Diverged {
        /// One path.
        first: String,
        /// The other.
        second: String,
    },
    /// A device is no part of a chained volume.
    #[error("{device} holds {what}; name the devices of one chained volume")]
    NoPart {
        /// The device's path.
        device: String,
        /// What was found.
        what: &'static str,
    },
    /// Devices do not all belong to one volume.
    #[error("these devices do not belong to one volume: {}; name those of one", devices.join("; "))]
    SeveralVolumes {
        /// Each device with its volumes.
        devices: Vec<String>,
    },
    /// Two devices have the same place in a volume.
    #[error(
        "{first} and {second} are both the same part of the {part}: one of them was replaced, or is a copy; \
         leave out the one that the volume did not use last"
    )]
    SamePart {
        /// One path.
        first: String,
        /// The other.
        second: String,
        /// Their part of the volume.
        part: &'static str,
    },
    /// Devices of a volume were not named.
    #[error("devices of the volume {name} ({volume}) are missing: {}; name them, too", missing.join("; "))]
    Incomplete {
        /// The volume's name.
        name: String,
        /// Its identity.
        volume: Uuid,
        /// What is missing.
        missing: Vec<String>,
    },
    /// No member of the volume has this path.
    #[error("{device} is no member of the volume; `status` lists them")]
    NoMember {
        /// The path.
        device: String,
    },
    /// The volume has no snapshot of this name.
    #[error("there is no snapshot called {0}; `snapshot list` names them")]
    NoSnapshot(String),
    /// The chain's error.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The store's error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A mirror's error.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// A stripe's error.
    #[error(transparent)]
    Stripe(#[from] StripeError),
    /// A device's error.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An error of the operating system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
}

impl PoolError {
    pub(super) fn io(path: &std::path::Path, source: std::io::Error) -> PoolError {
        match source.get_ref().and_then(|inner| inner.downcast_ref::<DeviceError>()) {
            Some(error) => PoolError::Device(error.clone()),
            None => PoolError::Io { path: path.to_owned(), source: Arc::new(source) },
        }
    }
}
