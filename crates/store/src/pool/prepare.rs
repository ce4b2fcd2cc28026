//! Devices before they become members: made, checked and labelled.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use thalweg_env::Env;
use uuid::Uuid;

use super::PoolError;
use super::format::{DATA_START, Member, PAIR, Role, Sharing};
use super::label::{self, Label, Slot, gap};
use super::media::{Media, Opened};
use super::probe;
use super::spec::{DeviceSpec, LinkSpec, Preallocation};
use crate::block::BLOCK_SIZE;
use crate::device::{Access, AlignedBuf, DeviceError, DeviceRef, Purpose, kinds};

/// What a device with a damaged label holds, in a message.
pub const DAMAGED_LABEL: &str = "a damaged volume label";

/// Progress of a long task: the part that is done, and the whole, in one unit.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// An extent to be taken on a device. On a shared device its place is chosen when it is labelled.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) path: PathBuf,
    pub(super) member: Member,
    /// Whether it may be shorter than its length.
    pub(super) at_most: bool,
}

/// Bytes of a request, and requests in flight, when a new file is filled with zeros.
const FILL_BYTES: u64 = 1 << 20;
const FILL_REQUESTS: usize = 4;

/// A shared device may be locked by another volume that changes its label: how often it is tried again, and
/// the pause before each attempt.
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Refuses two paths of the same device.
pub(super) async fn refuse_same<'a>(
    media: &dyn Media,
    devices: impl Iterator<Item = &'a DeviceSpec>,
) -> Result<(), PoolError> {
    let mut known: Vec<(PathBuf, Option<(u64, u64)>)> = Vec::new();
    for device in devices {
        let path = kinds::absolute(&device.path).unwrap_or_else(|_| device.path.clone());
        let found = media.find(&path).await.map_err(|error| PoolError::io(&path, error))?;
        let identity = found.map(|found| found.identity);
        let same = known
            .iter()
            .find(|(other, id)| *other == path || (identity.is_some() && *id == identity));
        if let Some((first, _)) = same {
            let (first, second) = (first.display().to_string(), path.display().to_string());
            return Err(PoolError::Twice { first, second });
        }
        known.push((path, identity));
    }
    Ok(())
}

/// Makes a file for each of `devices` that is absent.
pub(super) async fn make_files<'a>(
    media: &dyn Media,
    devices: impl Iterator<Item = &'a DeviceSpec>,
    default: u64,
    sector: Option<u32>,
    made: &mut Vec<PathBuf>,
) -> Result<(), PoolError> {
    for device in devices {
        make_file(media, device, default, sector, made, &|_| {}).await?;
    }
    Ok(())
}

/// Makes a file for `device` if it is absent, of `default` bytes unless it has a size. `filled` is told the
/// fraction that is written, if the file is to be written.
pub(super) async fn make_file(
    media: &dyn Media,
    device: &DeviceSpec,
    default: u64,
    sector: Option<u32>,
    made: &mut Vec<PathBuf>,
    filled: &(dyn Fn(f64) + Send + Sync),
) -> Result<(), PoolError> {
    let found = media.find(&device.path).await;
    if found.map_err(|error| PoolError::io(&device.path, error))?.is_some() {
        return Ok(());
    }
    let size = device.size.unwrap_or(default);
    let whole = size - size % BLOCK_SIZE as u64;
    if whole < 2 * DATA_START {
        let device = device.path.display().to_string();
        return Err(PoolError::TooSmall { device, need: 2 * DATA_START, have: size });
    }
    media.create(&device.path, whole, sector).await?;
    made.push(device.path.clone());
    match device.preallocation {
        Preallocation::Falloc => Ok(()),
        // Its space is taken by its first writes, whichever bytes they write.
        Preallocation::Full if kinds::kind_of(&device.path).is_some() => Ok(()),
        Preallocation::Full => fill(media, &device.path, whole, sector, filled).await,
    }
}

/// Writes zeros to a whole device.
async fn fill(
    media: &dyn Media,
    path: &Path,
    size: u64,
    sector: Option<u32>,
    filled: &(dyn Fn(f64) + Send + Sync),
) -> Result<(), PoolError> {
    let device = media.open(path, Access::Exclusive, sector).await?.device;
    let zeros = AlignedBuf::zeroed(FILL_BYTES as usize).freeze();
    let offsets = (0..size).step_by(FILL_BYTES as usize);
    let device = &device;
    let writes = offsets.map(|offset| {
        let zeros = zeros.slice(..FILL_BYTES.min(size - offset) as usize);
        async move {
            device.write(offset, vec![zeros], Purpose::UserData).await?;
            Ok::<_, PoolError>(offset)
        }
    });
    let mut writes = stream::iter(writes).buffered(FILL_REQUESTS);
    while let Some(offset) = writes.try_next().await? {
        filled(offset as f64 / size as f64);
    }
    Ok(device.flush(Purpose::UserData).await?)
}

/// The size of the extents of a link: the space of its smallest device.
pub(super) async fn link_room(
    media: &dyn Media,
    link: &LinkSpec,
    sector: Option<u32>,
    force: bool,
    own: Option<Uuid>,
) -> Result<u64, PoolError> {
    let mut smallest = u64::MAX;
    for device in link.devices() {
        let opened = media.open(&device.path, Access::Exclusive, sector).await?;
        check_blank(&opened, force, own).await?;
        smallest = smallest.min(room(&opened)?);
    }
    Ok(smallest)
}

/// Bytes that a device has for extents.
pub(super) fn room(opened: &Opened) -> Result<u64, PoolError> {
    let have = opened.device.geometry().size;
    let room = have.saturating_sub(DATA_START) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    match room {
        0 => {
            let device = opened.device.name();
            Err(PoolError::TooSmall { device, need: 2 * DATA_START, have })
        }
        room => Ok(room),
    }
}

/// Refuses a device that is not empty, unless its content may be lost. A label of the volume `own` is
/// allowed: the caller knows that the device is not a member of it.
pub(super) async fn check_blank(
    opened: &Opened,
    force: bool,
    own: Option<Uuid>,
) -> Result<(), PoolError> {
    let device = opened.device.name();
    match label::find(&*opened.device).await {
        _ if force => return Ok(()),
        Ok(None) => {}
        Ok(Some(label)) if label.others(own).next().is_some() => {
            let other = label.others(own).next().map(|member| (member.name.clone(), member.volume));
            let (name, volume) = other.unwrap_or_default();
            return Err(PoolError::OtherVolume { device, name, volume });
        }
        // A header without slots has no owner.
        Ok(Some(label)) if label.damaged == 0 => return Ok(()),
        Ok(Some(_)) | Err(PoolError::Damaged { .. }) => {
            return Err(PoolError::Foreign { device, what: DAMAGED_LABEL });
        }
        Err(error) => return Err(error),
    }
    match probe::foreign(&*opened.device).await? {
        Some(what) => Err(PoolError::Foreign { device, what }),
        None => Ok(()),
    }
}

/// Refuses a claim that the device cannot hold.
pub(super) async fn check_claim(
    media: &dyn Media,
    claim: &Claim,
    force: bool,
) -> Result<(), PoolError> {
    let sector = sector(claim);
    if claim.member.role == Role::Link {
        // The caller that computed the claim's length has checked it.
        return Ok(());
    }
    let opened = media.open(&claim.path, Access::Shared, sector).await?;
    let need = if claim.at_most { BLOCK_SIZE as u64 } else { claim.member.length };
    match label::find(&*opened.device).await {
        Ok(Some(mut label)) if label.header.sharing == Sharing::Shared => {
            label.members.retain(|(_, old)| !is_same_part(old, &claim.member));
            label::place(&opened.device, &label, need).map(drop)
        }
        Ok(Some(label)) if !label.members.is_empty() && !force => Err(not_shared(&opened)),
        _ => {
            check_blank(&opened, force, None).await?;
            let have = room(&opened)?;
            match have < need {
                true => Err(PoolError::TooSmall {
                    device: opened.device.name(),
                    need: need + DATA_START,
                    have: have + DATA_START,
                }),
                false => Ok(()),
            }
        }
    }
}

fn sector(claim: &Claim) -> Option<u32> {
    Some(claim.member.sector).filter(|sector| *sector != 0)
}

fn not_shared(opened: &Opened) -> PoolError {
    PoolError::Sharing {
        device: opened.device.name(),
        is: "is a link of a volume",
        do_what: "a link's device cannot be shared; name another device",
    }
}

/// Labels a claim's device, and takes the extent. A link's device is overwritten; on a shared one the claim
/// becomes another slot, which takes its space in one atomic write.
pub(super) async fn label(
    env: &Env,
    media: &dyn Media,
    claim: &Claim,
    force: bool,
) -> Result<Slot, PoolError> {
    let mut slot = match claim.member.role {
        Role::Link => {
            let opened = media.open(&claim.path, Access::Exclusive, sector(claim)).await?;
            let header = label::format(env, &opened.device, Sharing::Owned).await?;
            let member = Member { device: header.device, ..claim.member.clone() };
            Slot { device: opened.device, number: 0, member }
        }
        _ => take_shared(env, media, claim, force).await?,
    };
    slot.write().await?;
    Ok(slot)
}

async fn take_shared(
    env: &Env,
    media: &dyn Media,
    claim: &Claim,
    force: bool,
) -> Result<Slot, PoolError> {
    let (opened, mut label) = directory(env, media, claim, force).await?;
    let device = &opened.device;
    free_same(device, &mut label, &claim.member).await?;
    let mut member = Member { device: label.header.device, ..claim.member.clone() };
    if claim.at_most {
        let (_, largest) = gap(&label, device.geometry().size, u64::MAX);
        let most = largest / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        member.length = member.length.min(most.max(BLOCK_SIZE as u64));
    }
    let (number, start) = label::place(device, &label, member.length)?;
    member.start = start;
    // The lock on the header is held until the device is closed.
    let mut slot = Slot { device: device.clone(), number, member };
    slot.write().await?;
    Ok(slot)
}

/// Whether two extents belong to the same part of the same volume.
fn is_same_part(one: &Member, other: &Member) -> bool {
    let part = |member: &Member| {
        let Member { volume, role, group, column, side, .. } = member;
        (*volume, *role, *group, *column, *side)
    };
    part(one) == part(other)
}

/// Frees leftover slots of the volume for the same part of it, which would be taken for the new one.
async fn free_same(device: &DeviceRef, label: &mut Label, new: &Member) -> Result<(), DeviceError> {
    let (same, others) =
        std::mem::take(&mut label.members).into_iter().partition(|(_, old)| is_same_part(old, new));
    label.members = others;
    for (number, member) in same {
        Slot { device: device.clone(), number, member }.free().await?;
    }
    Ok(())
}

/// Opens a shared device with its header locked, so that only the caller takes or frees slots; formats it if
/// it is new.
async fn directory(
    env: &Env,
    media: &dyn Media,
    claim: &Claim,
    force: bool,
) -> Result<(Opened, Label), PoolError> {
    let (opened, found) = lock_directory(env, media, &claim.path, sector(claim)).await?;
    match found {
        Ok(Some(label)) if label.header.sharing == Sharing::Shared => return Ok((opened, label)),
        Ok(Some(label)) if !label.members.is_empty() && !force => return Err(not_shared(&opened)),
        _ => check_blank(&opened, force, None).await?,
    }
    let header = label::format(env, &opened.device, Sharing::Shared).await?;
    Ok((opened, Label { header, members: Vec::new(), damaged: 0 }))
}

/// Opens a device that other processes may have open too, and waits for the lock on its header.
pub(super) async fn lock_directory(
    env: &Env,
    media: &dyn Media,
    path: &std::path::Path,
    sector: Option<u32>,
) -> Result<(Opened, Result<Option<Label>, PoolError>), PoolError> {
    for _ in 1..TRIES {
        let opened = media.open(path, Access::Shared, sector).await?;
        match opened.lock_range(0, PAIR) {
            Ok(()) => {
                let found = label::find(&*opened.device).await;
                return Ok((opened, found));
            }
            Err(DeviceError::Locked { .. }) => env.sleep(PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
    Err(DeviceError::Locked { device: path.display().to_string(), holder: None }.into())
}
