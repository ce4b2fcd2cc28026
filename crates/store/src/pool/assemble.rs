//! From members to devices: columns of sides become mirrors, columns become stripes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_env::Env;
use uuid::Uuid;

use super::PoolError;
use super::format::{Member, PAIR, Role, Sharing, slot_offset};
use super::label::{self, Slot};
use super::manifest::{self, Manifest, Place};
use super::media::{Media, Opened};
use super::sync::{SideLabels, Standing, diverged, judge};
use crate::chain::{Link, Parts};
use crate::device::{Access, DeviceError, DeviceRef, Mirror, Partition, Side, Stripe};

/// How often a device that is in use is tried again, and the pause before each attempt.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// A device of the manifest, with the result of opening it.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) place: Place,
    /// The place's path, resolved against the manifest's folder.
    pub(super) path: PathBuf,
    pub(super) found: Result<Slot, PoolError>,
}

impl Seat {
    fn slot(&self) -> Option<&Slot> {
        self.found.as_ref().ok()
    }
}

/// A mirror in a volume.
#[derive(Clone, Debug)]
pub struct PoolMirror {
    /// Its part of the volume.
    pub role: Role,
    /// The link, or other group, that it belongs to.
    pub group: Uuid,
    /// Its number in the group's stripe.
    pub column: usize,
    /// The paths of its sides.
    pub paths: Vec<PathBuf>,
    /// The mirror itself.
    pub mirror: Mirror,
    pub(super) labels: Arc<SideLabels>,
}

impl PoolMirror {
    /// Whether the device at `place` is one of its sides.
    pub(super) fn holds(&self, place: &Place) -> bool {
        self.role == place.role
            && self.group == place.group
            && self.column == usize::from(place.column)
    }
}

/// The device of a group, assembled from its members.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) device: DeviceRef,
    pub(super) map_bytes: u64,
    pub(super) mirrors: Vec<PoolMirror>,
}

/// A path, the medium's identity there, and the result of opening it.
type Opening = (PathBuf, (u64, u64), Result<Opened, PoolError>);

/// Opens every device of the manifest and reads its label.
pub(super) async fn take_seats(
    env: &Env,
    media: &dyn Media,
    folder: &Path,
    manifest: &Manifest,
) -> Result<Vec<Seat>, PoolError> {
    let mut opened: Vec<Opening> = Vec::new();
    let mut seats = Vec::new();
    for place in &manifest.devices {
        let path = manifest::from_stored(folder, &place.path);
        let shared = place.role != Role::Link;
        let known = opened.iter().position(|(other, ..)| *other == path);
        let number = match known {
            Some(number) => number,
            None => {
                let identity = match media.find(&path).await {
                    Ok(Some(found)) => found.identity,
                    // A device that cannot be found has no identity, and cannot be found twice.
                    Ok(None) | Err(_) => (u64::MAX, opened.len() as u64),
                };
                if let Some((other, ..)) = opened.iter().find(|(_, id, _)| *id == identity) {
                    let (first, second) = (other.display().to_string(), path.display().to_string());
                    return Err(PoolError::Twice { first, second });
                }
                let access = if shared { Access::Shared } else { Access::Exclusive };
                let device = open_when_free(env, media, &path, access, manifest.sector).await;
                // If another process serves this volume, its devices are locked, not missing. Nor are those that this
                // program cannot open.
                if let Err(error @ (DeviceError::Locked { .. } | DeviceError::UnknownKind { .. })) =
                    device
                {
                    return Err(error.into());
                }
                opened.push((path.clone(), identity, device.map_err(PoolError::from)));
                opened.len() - 1
            }
        };
        let found = match &opened[number].2 {
            Ok(opened) => find_slot(opened, manifest, place).await,
            Err(PoolError::Device(error)) => Err(error.clone().into()),
            Err(_) => Err(PoolError::Blank { device: path.display().to_string() }),
        };
        if let Err(error @ PoolError::Device(DeviceError::Locked { .. })) = found {
            return Err(error);
        }
        seats.push(Seat { place: place.clone(), path, found });
    }
    same_device_twice(&seats)?;
    Ok(seats)
}

/// The manifest in `folder`, and its devices, locked. The manifest is read again after they are locked:
/// before, another process that had them may have changed it.
pub(super) async fn take_all(
    env: &Env,
    media: &dyn Media,
    folder: &Path,
) -> Result<(Manifest, Vec<Seat>), PoolError> {
    let mut manifest = Manifest::read(media, folder).await?;
    loop {
        let seats = take_seats(env, media, folder, &manifest).await;
        let now = Manifest::read(media, folder).await?;
        if now == manifest {
            return Ok((manifest, seats?));
        }
        manifest = now;
    }
}

/// Refuses devices with a newer format: a mirror must not be opened without such a side.
pub(super) fn refuse_newer(seats: &[Seat]) -> Result<(), PoolError> {
    let newer = seats.iter().find_map(|seat| match &seat.found {
        Err(PoolError::NewerFormat { device, format }) => Some((device.clone(), *format)),
        _ => None,
    });
    match newer {
        Some((device, format)) => Err(PoolError::NewerFormat { device, format }),
        None => Ok(()),
    }
}

/// Opens a device. A process that has just closed it may release its lock a moment later, so a locked device
/// is tried again.
async fn open_when_free(
    env: &Env,
    media: &dyn Media,
    path: &Path,
    access: Access,
    sector: Option<u32>,
) -> Result<Opened, DeviceError> {
    for _ in 1..TRIES {
        match media.open(path, access, sector).await {
            Err(DeviceError::Locked { .. }) => env.sleep(PAUSE).await,
            opened => return opened,
        }
    }
    media.open(path, access, sector).await
}

/// Finds and locks the slot of a place of the manifest.
async fn find_slot(opened: &Opened, manifest: &Manifest, place: &Place) -> Result<Slot, PoolError> {
    let name = opened.device.name();
    let label = label::find(&*opened.device)
        .await?
        .ok_or_else(|| PoolError::Blank { device: name.clone() })?;
    let is_place = |member: &Member| {
        member.role == place.role
            && member.group == place.group
            && member.column == place.column
            && member.side == place.side
    };
    let own = label.of(manifest.volume).find(|(_, member)| is_place(member));
    let Some((number, member)) = own else {
        let other = label.members.iter().find(|(_, member)| member.volume != manifest.volume);
        return Err(match other {
            Some((_, other)) if label.header.sharing == Sharing::Owned => PoolError::OtherVolume {
                device: name,
                name: other.name.clone(),
                volume: other.volume,
            },
            _ => PoolError::Blank { device: name },
        });
    };
    if label.header.sharing == Sharing::Shared {
        opened.lock_range(slot_offset(*number), PAIR)?;
        opened.lock_range(member.start, member.length)?;
    }
    Ok(Slot { device: opened.device.clone(), number: *number, member: member.clone() })
}

/// A copy of a device carries the same identity, so it is refused too.
fn same_device_twice(seats: &[Seat]) -> Result<(), PoolError> {
    for (number, seat) in seats.iter().enumerate() {
        let Some(slot) = seat.slot() else { continue };
        for other in &seats[..number] {
            let same = other.slot().is_some_and(|other| {
                other.member.device == slot.member.device
                    && other.device.name() != slot.device.name()
            });
            if same {
                let (first, second) =
                    (other.path.display().to_string(), seat.path.display().to_string());
                return Err(PoolError::Twice { first, second });
            }
        }
    }
    Ok(())
}

/// The identities of the groups of a role, in the manifest's order.
pub(super) fn groups(seats: &[Seat], role: Role) -> Vec<Uuid> {
    let mut groups: Vec<Uuid> = Vec::new();
    for seat in seats.iter().filter(|seat| seat.place.role == role) {
        if !groups.contains(&seat.place.group) {
            groups.push(seat.place.group);
        }
    }
    groups
}

/// Assembles a group from its seats.
pub(super) async fn assemble(
    env: &Env,
    seats: &[Seat],
    role: Role,
    group: Uuid,
    standby: bool,
    warnings: &mut Vec<String>,
) -> Result<Assembled, PoolError> {
    let seats: Vec<&Seat> =
        seats.iter().filter(|seat| seat.place.role == role && seat.place.group == group).collect();
    let part = format!("{} {group}", role.name());
    let Some(model) = seats.iter().find_map(|seat| seat.slot()) else {
        return Err(missing(part, &seats));
    };
    let Member { columns, sides, unit, map_bytes, .. } = model.member;
    let mut devices = Vec::new();
    let mut mirrors = Vec::new();
    for column in 0..columns {
        let mut members: Vec<Option<&Seat>> = vec![None; usize::from(sides)];
        for seat in seats.iter().filter(|seat| seat.place.column == column) {
            if let Some(place) = members.get_mut(usize::from(seat.place.side)) {
                *place = Some(seat);
            }
        }
        let name = match columns {
            1 => part.clone(),
            _ => format!("column {column} of {part}"),
        };
        if let [only] = members[..] {
            let found: Vec<&Seat> = only.into_iter().collect();
            let slot = only.and_then(Seat::slot).ok_or_else(|| missing(name, &found))?;
            devices.push(slot.extent()?);
            continue;
        }
        let mirror = mirror(env, &name, &members, standby, warnings).await?;
        devices.push(Arc::new(mirror.mirror.clone()));
        mirrors.push(PoolMirror { role, group, column: usize::from(column), ..mirror });
    }
    let device = match <[DeviceRef; 1]>::try_from(devices) {
        Ok([only]) => only,
        Err(devices) => Arc::new(Stripe::new(devices, u64::from(unit))?),
    };
    Ok(Assembled { device, map_bytes, mirrors })
}

fn missing(part: String, seats: &[&Seat]) -> PoolError {
    let paths = seats.iter().map(|seat| seat.path.display().to_string()).collect();
    let cause = |seat: &&Seat| seat.found.as_ref().err().map(ToString::to_string);
    PoolError::Missing { part, paths, causes: seats.iter().filter_map(cause).collect() }
}

/// Makes a mirror of the sides that are present. Absent sides are recorded as out of sync before anything is
/// written to the others.
async fn mirror(
    env: &Env,
    name: &str,
    members: &[Option<&Seat>],
    standby: bool,
    warnings: &mut Vec<String>,
) -> Result<PoolMirror, PoolError> {
    let slots: Vec<Option<Slot>> =
        members.iter().map(|seat| seat.and_then(Seat::slot).cloned()).collect();
    let claim =
        |slot: &Option<Slot>| slot.as_ref().map(|slot| (slot.member.events, slot.member.in_sync));
    let claims: Vec<_> = slots.iter().map(claim).collect();
    let standings =
        judge(&claims).map_err(|(a, b)| diverged(slots[a].as_ref(), slots[b].as_ref()))?;
    let in_sync: Vec<bool> = standings.iter().map(|s| *s == Standing::InSync).collect();
    if !in_sync.contains(&true) {
        let seats: Vec<&Seat> = members.iter().flatten().copied().collect();
        return Err(missing(format!("every side in sync of {name}"), &seats));
    }
    let mut sides = Vec::new();
    for ((slot, standing), seat) in slots.iter().zip(&standings).zip(members) {
        let path = seat.map_or_else(|| "a side".to_owned(), |seat| seat.path.display().to_string());
        sides.push(match (slot, standing) {
            (Some(slot), Standing::InSync) => Side::InSync(slot.extent()?),
            (Some(slot), _) => {
                warnings.push(format!("{path} of {name} missed writes; rebuild it"));
                Side::Stale(slot.extent()?)
            }
            (None, _) => {
                let why = seat.and_then(|seat| seat.found.as_ref().err());
                let why = why.map_or_else(|| "it is not listed".to_owned(), ToString::to_string);
                warnings.push(format!("{path} of {name} is missing ({why}); replace it"));
                Side::Missing
            }
        });
    }
    let labels = Arc::new(SideLabels::new(slots));
    labels.confirm(&in_sync).await?;
    let stale: Vec<bool> = standings.iter().map(|s| *s == Standing::Stale).collect();
    labels.mark_stale(&stale).await;
    let path = |seat: &Option<&Seat>| seat.map(|seat| seat.path.clone()).unwrap_or_default();
    Ok(PoolMirror {
        role: Role::Link,
        group: Uuid::nil(),
        column: 0,
        paths: members.iter().map(path).collect(),
        mirror: Mirror::new(env, sides, labels.clone(), standby)?,
        labels,
    })
}

/// A link, with the map area if it lies on the link.
pub(super) fn split(
    group: Uuid,
    assembled: &Assembled,
) -> Result<(Link, Option<DeviceRef>), PoolError> {
    let Assembled { device, map_bytes, .. } = assembled;
    if *map_bytes == 0 {
        return Ok((Link { id: group, device: device.clone() }, None));
    }
    let size = device.geometry().size;
    let rest = size.checked_sub(*map_bytes).ok_or_else(|| PoolError::TooSmall {
        device: device.name(),
        need: *map_bytes,
        have: size,
    })?;
    let map: DeviceRef = Arc::new(Partition::new(device.clone(), 0, *map_bytes)?);
    let link = Arc::new(Partition::new(device.clone(), *map_bytes, rest)?);
    Ok((Link { id: group, device: link }, Some(map)))
}

/// Every part of a volume.
pub(super) struct Put {
    pub(super) parts: Parts,
    pub(super) mirrors: Vec<PoolMirror>,
    pub(super) warnings: Vec<String>,
}

/// Assembles a volume's parts from its seats. An absent link is left out, with its error in its place: the
/// chain's own label decides whether it is needed.
pub(super) async fn put_together(
    env: &Env,
    seats: &[Seat],
    standby: bool,
) -> Result<(Put, Vec<(Uuid, PoolError)>), PoolError> {
    let mut warnings = Vec::new();
    let mut mirrors = Vec::new();
    let (mut links, mut absent) = (Vec::new(), Vec::new());
    let (mut map, mut map_link) = (None, None);
    for group in groups(seats, Role::Link) {
        match assemble(env, seats, Role::Link, group, standby, &mut warnings).await {
            Ok(assembled) => {
                let (link, own_map) = split(group, &assembled)?;
                if let Some(own_map) = own_map {
                    (map, map_link) = (Some(own_map), Some(group));
                }
                links.push(link);
                mirrors.extend(assembled.mirrors);
            }
            Err(error @ (PoolError::Missing { .. } | PoolError::TooSmall { .. })) => {
                absent.push((group, error));
            }
            Err(error) => return Err(error),
        }
    }
    for group in groups(seats, Role::Map) {
        let assembled = assemble(env, seats, Role::Map, group, false, &mut warnings).await?;
        map = Some(assembled.device);
        mirrors.extend(assembled.mirrors);
    }
    let mut caches = [None, None];
    for (cache, role) in caches.iter_mut().zip([Role::TailCache, Role::BodyCache]) {
        for group in groups(seats, role) {
            match assemble(env, seats, role, group, false, &mut warnings).await {
                Ok(assembled) => *cache = Some(assembled.device),
                Err(error) => warnings.push(format!("no {}: {error}", role.name())),
            }
        }
    }
    let map = match (map, absent.pop()) {
        (Some(map), None) => map,
        (Some(map), Some(last)) => {
            absent.push(last);
            map
        }
        // The map lies on an absent link.
        (None, Some((_, error))) => return Err(error),
        (None, None) => return Err(PoolError::Invalid("volume.toml lists no link".to_owned())),
    };
    let [tail_cache, body_cache] = caches;
    let parts = Parts { links, map, map_link, tail_cache, body_cache };
    Ok((Put { parts, mirrors, warnings }, absent))
}
