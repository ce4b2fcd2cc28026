//! Headers and slots on their devices.

use std::sync::Arc;

use thalweg_env::Env;

use super::PoolError;
use super::format::{
    COPY, DATA_START, Fault, Header, Member, PAIR, RECORD, SLOTS, Sharing, slot_offset,
};
use crate::device::{AlignedBuf, Device, DeviceError, DeviceRef, Purpose};

/// The label at the start of a device.
#[derive(Debug)]
pub(super) struct Label {
    pub(super) header: Header,
    /// The slots in use, with their numbers.
    pub(super) members: Vec<(usize, Member)>,
    /// Slots with two damaged copies: their extents are unknown.
    pub(super) damaged: usize,
}

impl Label {
    /// The members of volumes other than `own`.
    pub(super) fn others(&self, own: Option<uuid::Uuid>) -> impl Iterator<Item = &Member> {
        let members = self.members.iter().map(|(_, member)| member);
        members.filter(move |member| Some(member.volume) != own)
    }

    /// The members that `volume` owns.
    pub(super) fn of(&self, volume: uuid::Uuid) -> impl Iterator<Item = &(usize, Member)> {
        self.members.iter().filter(move |(_, member)| member.volume == volume)
    }
}

/// The valid copy with the higher sequence, or else the more specific fault.
fn newest<T>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, Fault>,
    sequence: impl Fn(&T) -> u64,
) -> Result<T, Fault> {
    let (first, second) = bytes.split_at(COPY as usize);
    match (decode(first), decode(second)) {
        (Ok(first), Ok(second)) if sequence(&second) > sequence(&first) => Ok(second),
        (Ok(found), _) | (_, Ok(found)) => Ok(found),
        (Err(Fault::None), Err(fault)) | (Err(fault), Err(_)) => Err(fault),
    }
}

fn error(device: &dyn Device, fault: Fault) -> PoolError {
    let device = device.name();
    match fault {
        Fault::None => PoolError::Blank { device },
        Fault::Damaged => PoolError::Damaged { device },
        Fault::Newer(format) => PoolError::NewerFormat { device, format },
    }
}

/// Reads a device's label; `None` when it has none.
pub(super) async fn find(device: &dyn Device) -> Result<Option<Label>, PoolError> {
    if device.geometry().size < DATA_START {
        return Ok(None);
    }
    let bytes = read_start(device).await?;
    let header = match newest(&bytes[..PAIR as usize], Header::decode, |header| header.sequence) {
        Ok(header) => header,
        Err(Fault::None) => return Ok(None),
        Err(fault) => return Err(error(device, fault)),
    };
    let mut label = Label { header, members: Vec::new(), damaged: 0 };
    for slot in 0..SLOTS {
        let at = slot_offset(slot) as usize;
        let pair = &bytes[at..at + PAIR as usize];
        match newest(pair, Member::decode, |member| member.sequence) {
            Ok(member) if member.device == label.header.device => {
                label.members.push((slot, member));
            }
            Ok(_) | Err(Fault::Damaged) => label.damaged += 1,
            Err(Fault::None) => {}
            Err(fault) => return Err(error(device, fault)),
        }
    }
    Ok(Some(label))
}

/// Reads the bytes before the extents. A bad sector there costs only the structures in it.
async fn read_start(device: &dyn Device) -> Result<Vec<u8>, PoolError> {
    if let Ok(bytes) = device.read(0, DATA_START as usize, Purpose::Label).await {
        return Ok(bytes.to_vec());
    }
    let mut all = Vec::with_capacity(DATA_START as usize);
    let mut failure = None;
    for at in (0..DATA_START).step_by(COPY as usize) {
        match device.read(at, COPY as usize, Purpose::Label).await {
            Ok(bytes) => all.extend_from_slice(&bytes),
            Err(error) => {
                all.resize(all.len() + COPY as usize, 0);
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if all.iter().all(|byte| *byte == 0) => Err(error.into()),
        _ => Ok(all),
    }
}

/// Writes both copies in one request, durably: after a crash each is the old one or the new one.
async fn write_pair(
    device: &DeviceRef,
    offset: u64,
    record: &[u8; RECORD],
) -> Result<(), DeviceError> {
    let mut pair = AlignedBuf::zeroed(PAIR as usize);
    pair[..RECORD].copy_from_slice(record);
    pair[COPY as usize..COPY as usize + RECORD].copy_from_slice(record);
    device.write(offset, vec![pair.freeze()], Purpose::Label).await?;
    device.flush(Purpose::Label).await
}

/// Writes a header without slots over the start of the device.
///
/// A crash in between leaves a device without a label.
pub(super) async fn format(
    env: &Env,
    device: &DeviceRef,
    sharing: Sharing,
) -> Result<Header, DeviceError> {
    let zeros = AlignedBuf::zeroed(DATA_START as usize).freeze();
    device.write(0, vec![zeros], Purpose::Label).await?;
    device.flush(Purpose::Label).await?;
    let header = Header {
        sequence: 1,
        device: env.uuid(),
        sharing,
        size: device.geometry().size,
        created: env.wall_clock(),
    };
    write_pair(device, 0, &header.encode()).await?;
    Ok(header)
}

/// Wipes the header, which makes the whole label invalid.
pub(super) async fn wipe(device: &DeviceRef) -> Result<(), DeviceError> {
    write_pair(device, 0, &[0; RECORD]).await
}

/// A slot that this volume owns.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) device: DeviceRef,
    pub(super) number: usize,
    pub(super) member: Member,
}

impl Slot {
    /// Writes the slot, durably.
    pub(super) async fn write(&mut self) -> Result<(), DeviceError> {
        self.member.sequence += 1;
        write_pair(&self.device, slot_offset(self.number), &self.member.encode()).await
    }

    /// Frees the slot, durably.
    pub(super) async fn free(&self) -> Result<(), DeviceError> {
        write_pair(&self.device, slot_offset(self.number), &[0; RECORD]).await
    }

    /// The extent as a device.
    pub(super) fn extent(&self) -> Result<DeviceRef, PoolError> {
        let have = self.device.geometry().size;
        if have < self.member.end() {
            let (device, need) = (self.device.name(), self.member.end());
            return Err(PoolError::TooSmall { device, need, have });
        }
        let Member { start, length, .. } = self.member;
        Ok(Arc::new(crate::device::Partition::new(self.device.clone(), start, length)?))
    }
}

/// Where `length` bytes fit between the extents of `label`: the lowest gap.
pub(super) fn place(
    device: &DeviceRef,
    label: &Label,
    length: u64,
) -> Result<(usize, u64), PoolError> {
    let name = device.name();
    if label.damaged > 0 {
        return Err(PoolError::Damaged { device: name });
    }
    let used = |slot: &usize| label.members.iter().any(|(other, _)| other == slot);
    let slot = (0..SLOTS).find(|slot| !used(slot)).ok_or_else(|| {
        PoolError::Invalid(format!("{name} has no slot left; name another device"))
    })?;
    let (gap, largest) = gap(label, device.geometry().size, length);
    let start = gap.ok_or(PoolError::NoRoom { device: name, need: length, have: largest })?;
    Ok((slot, start))
}

/// The lowest gap of `length` bytes, and the size of the largest one.
pub(super) fn gap(label: &Label, size: u64, length: u64) -> (Option<u64>, u64) {
    let mut extents: Vec<_> =
        label.members.iter().map(|(_, member)| (member.start, member.end())).collect();
    extents.sort_unstable();
    extents.push((size, size));
    let (mut at, mut largest, mut found) = (DATA_START, 0, None);
    for (start, end) in extents {
        let room = start.saturating_sub(at);
        largest = largest.max(room);
        if room >= length && found.is_none() {
            found = Some(at);
        }
        at = at.max(end.next_multiple_of(DATA_START));
    }
    (found, largest)
}
