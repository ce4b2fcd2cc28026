//! Errors that mean that a medium is damaged.

use super::StoreError;
use crate::device::{DeviceError, Operation};

impl StoreError {
    /// Whether a block could not be read: no copy matches its checksum, or the device fails to read it.
    pub fn is_damage(&self) -> bool {
        match self {
            StoreError::Corrupt { .. } => true,
            StoreError::Device(DeviceError::Io { operation, .. }) => *operation == Operation::Read,
            _ => false,
        }
    }
}
