//! The copies of a record on a mirrored device: what one of them lacks is read from another one, and written again.

use uuid::Uuid;

use super::place::{MissedRecord, RecordPlace};
use super::ring::LiveExtent;
use super::scan::{ExpectedRecord, FoundRecord, Looked, Reader};
use crate::copies;
use crate::device::DeviceRef;
use crate::journal::JournalError;
use crate::journal::format::Geography;

/// Reads a record again; also whether the copy of the device that was read first lacks it. `find` says where it lies, and `None` when
/// it is released.
pub(super) async fn read_place(
    device: &DeviceRef,
    (geography, id): (Geography, Uuid),
    place: RecordPlace,
    find: impl Fn() -> Option<LiveExtent>,
) -> Result<(FoundRecord, bool), JournalError> {
    let sequence = place.sequence;
    let Some(LiveExtent { bytes, epoch }) = find() else {
        return Err(JournalError::Released { sequence });
    };
    let expected = ExpectedRecord { place, epochs: epoch..=epoch, room: bytes };
    let any = Reader::of_epoch(device, geography, id, epoch).record(&expected, Some).await;
    let failure = match any {
        Ok(Looked::Whole(found, _, len)) if len == bytes => return Ok((found, false)),
        Ok(_) => None,
        Err(error) => Some(error),
    };
    for copy in copies::readable_copies(device) {
        let mut reader = Reader::of_epoch(device, geography, id, epoch).of_copy(copy);
        if let Ok(Looked::Whole(found, _, len)) = reader.record(&expected, Some).await
            && len == bytes
        {
            return Ok((found, true));
        }
    }
    match find() {
        // It was released meanwhile, and its room may have been written over.
        None => Err(JournalError::Released { sequence }),
        Some(_) => {
            Err(failure
                .unwrap_or_else(|| JournalError::Damaged { device: device.name(), sequence }))
        }
    }
}

/// Has every copy of the device hold a record that one of them holds. Nothing else may write there meanwhile.
///
/// # Errors
/// The device's.
pub(super) async fn mend_place(
    device: &DeviceRef,
    (geography, id): (Geography, Uuid),
    place: RecordPlace,
    LiveExtent { bytes, epoch }: LiveExtent,
) -> Result<(), JournalError> {
    let expected = ExpectedRecord { place, epochs: epoch..=epoch, room: bytes };
    let (mut whole, mut lacking) = (None, Vec::new());
    for copy in copies::readable_copies(device) {
        let mut reader = Reader::of_epoch(device, geography, id, epoch).of_copy(copy);
        match reader.record(&expected, Some).await {
            Ok(Looked::Whole(_, _, len)) if len == bytes => whole = Some(copy),
            _ => lacking.push(copy),
        }
    }
    let Some(from) = whole.filter(|_| !lacking.is_empty()) else { return Ok(()) };
    let (name, sequence) = (device.name(), place.sequence);
    tracing::warn!(
        device = name,
        sequence,
        "a record of a journal was damaged on one of its devices"
    );
    for to in lacking {
        let missed = MissedRecord { offset: place.offset, len: bytes, from, to };
        missed.mend(device, geography).await?;
    }
    Ok(())
}
