//! Where records lie.

use crate::copies::DeviceCopy;
use crate::device::{DeviceError, DeviceRef, Purpose};
use crate::journal::format::Geography;

/// Where a record lies in a log, for as long as it is not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordPlace {
    /// Its number.
    pub sequence: u64,
    /// Where it begins: bytes since the log was created.
    pub offset: u64,
}

/// The place of a transaction that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendPlace {
    pub(super) offset: u64,
    pub(super) sequence: u64,
    /// Transactions just before it that were not durable yet.
    pub(super) in_flight: u8,
}

/// A record that one copy of a device has, and another one lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissedRecord {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) from: DeviceCopy,
    pub(super) to: DeviceCopy,
}

impl MissedRecord {
    /// Writes it to the copy that lacks it. Nothing else may write there meanwhile; a flush makes it durable.
    ///
    /// # Errors
    /// The device's.
    pub(super) async fn mend(
        self,
        device: &DeviceRef,
        geography: Geography,
    ) -> Result<(), DeviceError> {
        let MissedRecord { offset, len, from, to: DeviceCopy::Only(to) } = self else {
            return Ok(());
        };
        // A side that has failed meanwhile is none that is mended.
        if !device.has_copy(to) {
            return Ok(());
        }
        let here = len.min(geography.until_end(offset));
        for (offset, len) in [(offset, here), (offset + here, len - here)] {
            let at = geography.place(offset);
            if len > 0 {
                let right = from.read(device, at, len as usize, Purpose::Repair).await?;
                device.repair_copy(to, at, right).await?;
            }
        }
        Ok(())
    }
}
