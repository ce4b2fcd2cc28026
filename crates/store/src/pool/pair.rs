//! A mirror of two devices that is no part of a volume: the journal of a client.
//!
//! Its devices have the labels of a volume's members (`pool::format`): a header, and a slot of the role [`Role::ClientJournal`]
//! with the identity of the pair, the side, and which sides are in sync. No manifest says which device is the other one; the caller names both.
//!
//! **A side that was left behind is never used.** Which side is alone is durable on it before it goes on alone, so of two present
//! sides the newer one is known. A side that is present alone, and that does not say that it is the only one, may have been left
//! behind by the other one: it is refused ([`PairError::Undecided`]) until the caller says that the other one is lost for good
//! ([`NamedSide::Lost`]).

use std::fmt;
use std::sync::Arc;

use thalweg_env::{Env, watch};
use uuid::Uuid;

use super::PoolError;
use super::format::{DATA_START, Member, Role, Sharing};
use super::label::{self, Slot};
use super::media::Opened;
use super::prepare::{check_blank, room};
use super::sync::{SideLabels, Standing, judge};
use crate::device::{
    Access, DeviceError, DeviceRef, Geometry, Mirror, MirrorError, Partition, Purpose, Side,
    SideState, SyncRecord,
};

/// The name in the labels.
const NAME: &str = "a client's journal";
/// Bytes of one read of a device that may be empty.
const LOOKED_AT: u64 = DATA_START;

/// A device of a pair, as the caller names it.
#[derive(Clone, Debug)]
pub enum NamedSide {
    /// It is there.
    Present(DeviceRef),
    /// One with this name is not there now, or cannot be opened.
    Missing(String),
    /// It is lost for good.
    Lost,
}

impl NamedSide {
    /// The device, if it is there.
    fn device(&self) -> Option<&DeviceRef> {
        match self {
            NamedSide::Present(device) => Some(device),
            NamedSide::Missing(_) | NamedSide::Lost => None,
        }
    }
}

impl fmt::Display for NamedSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedSide::Present(device) => f.write_str(&device.name()),
            NamedSide::Missing(name) => f.write_str(name),
            NamedSide::Lost => f.write_str("the lost device"),
        }
    }
}

/// Why two devices are not made or opened as a pair.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// One device is named twice, or the other one is a copy of it.
    #[error(
        "{first} and {second} are the same device, or one is a copy of the other; name two devices"
    )]
    Twice {
        /// One name.
        first: String,
        /// The other.
        second: String,
    },
    /// Devices of different sizes.
    #[error(
        "{first} has {first_size} bytes and {second} has {second_size}; name two devices of the same size"
    )]
    Sizes {
        /// One name.
        first: String,
        /// Its size in bytes.
        first_size: u64,
        /// The other.
        second: String,
        /// Its size in bytes.
        second_size: u64,
    },
    /// A device that writes larger sectors than the pair.
    #[error(
        "{device} has sectors of {has} bytes, and the mirror has some of {sector}; name a device with those"
    )]
    Sector {
        /// The device.
        device: String,
        /// Bytes of its sectors.
        has: u32,
        /// Bytes of those of the pair.
        sector: u32,
    },
    /// Devices of two pairs.
    #[error("{first} and {second} belong to different mirrors; name the two devices of one")]
    OtherPair {
        /// One name.
        first: String,
        /// The other.
        second: String,
    },
    /// A device that is not empty, and no side of a pair.
    #[error(
        "{device} is not empty, and no side of a mirror of a journal; name another device, or empty it"
    )]
    OtherData {
        /// The device.
        device: String,
    },
    /// No device is a side of a pair.
    #[error("{first} and {second} are no mirror of a journal")]
    NoPair {
        /// One name.
        first: String,
        /// The other.
        second: String,
    },
    /// One side is there, and may have been left behind.
    #[error(
        "{absent} is {state}, and nothing says whether {present} has everything: {absent} may have gone on without it"
    )]
    Undecided {
        /// The side that is there.
        present: String,
        /// The other one.
        absent: String,
        /// What the other one is.
        state: &'static str,
    },
    /// The side that is there has missed changes.
    #[error(
        "{present} was left behind and is not used; bring back the other device of its mirror, which has everything"
    )]
    LeftBehind {
        /// The side that is there.
        present: String,
    },
    /// Both sides were used without each other.
    #[error("{first} and {second} were each used without the other one")]
    Diverged {
        /// One name.
        first: String,
        /// The other.
        second: String,
    },
    /// A device cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl From<DeviceError> for PairError {
    fn from(error: DeviceError) -> PairError {
        PairError::Pool(error.into())
    }
}

impl From<MirrorError> for PairError {
    fn from(error: MirrorError) -> PairError {
        PairError::Pool(error.into())
    }
}

/// A side of a pair, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideReport {
    /// Its name.
    pub device: String,
    /// Its state.
    pub state: SideState,
}

/// Two devices with the same bytes. Clones share it.
#[derive(Clone, Debug)]
pub struct DevicePair {
    mirror: Mirror,
    states: watch::Receiver<Vec<SideState>>,
    names: Arc<[String; 2]>,
}

impl DevicePair {
    /// Makes two devices a pair. All of their content is lost. A crash leaves them as they were, empty, or a pair, of which one side may have
    /// to be filled.
    ///
    /// # Errors
    /// [`PairError::Twice`], [`PairError::Sizes`]; [`PairError::Pool`] for a device that another program's signature is on, or a volume's,
    /// or that is too small; the device's.
    pub async fn create(env: &Env, devices: [DeviceRef; 2]) -> Result<DevicePair, PairError> {
        let [first, second] = &devices;
        refuse_sizes(first, second)?;
        for device in &devices {
            refuse_use(device).await?;
        }
        let (pair, length) = (env.uuid(), room(&Opened::unlocked(first.clone()))?);
        let sector = first.geometry().sector.max(second.geometry().sector);
        let member = Member { sector, ..member_of(pair, length) };
        let one = take(env, first, Member { events: 1, in_sync: 1, ..member.clone() }).await?;
        let two = take(env, second, Member { side: 1, ..member }).await?;
        let slots = vec![Some(one), Some(two)];
        let sides = slots.iter().flatten().map(|slot| Ok(Side::InSync(extent(slot)?)));
        let sides = sides.collect::<Result<Vec<_>, PoolError>>()?;
        let labels = SideLabels::new(slots);
        labels.record(&[true, true]).await?;
        DevicePair::of(env, sides, Arc::new(labels), [first.name(), second.name()])
    }

    /// Opens a pair. An empty device in the place of one that is lost becomes a side that [`DevicePair::fill`] fills. Nothing is written if
    /// the pair is only `read`.
    ///
    /// # Errors
    /// [`PairError`]; nothing was written then.
    pub async fn open(
        env: &Env,
        named: [NamedSide; 2],
        access: Access,
    ) -> Result<DevicePair, PairError> {
        let found = FoundSides::read(named).await?;
        let (names, standings) = (found.names(), found.judged()?);
        let FoundSides { mut slots, empty, .. } = found;
        let writes = !access.only_reads();
        if let Some((side, device)) = empty.filter(|_| writes) {
            let model = slots[1 - side].as_ref().map(|slot| slot.member.clone());
            let model = model.unwrap_or_else(|| member_of(env.uuid(), 0));
            let side = side as u8;
            let new = Member { side, events: 0, in_sync: 0, sequence: 0, ..model };
            slots[usize::from(side)] = Some(take(env, &device, new).await?);
        }
        let mut sides = Vec::new();
        for (slot, standing) in slots.iter().zip(&standings) {
            sides.push(match slot {
                Some(slot) if *standing == Standing::InSync => Side::InSync(extent(slot)?),
                Some(slot) => Side::Stale(extent(slot)?),
                None => Side::Missing,
            });
        }
        if !writes {
            return DevicePair::of(env, sides, Arc::new(()), names);
        }
        let in_sync: Vec<bool> = standings.iter().map(|it| *it == Standing::InSync).collect();
        let stale: Vec<bool> = standings.iter().map(|it| *it == Standing::Stale).collect();
        let labels = Arc::new(SideLabels::new(slots));
        labels.confirm(&in_sync).await?;
        labels.mark_stale(&stale).await;
        DevicePair::of(env, sides, labels, names)
    }

    fn of(
        env: &Env,
        sides: Vec<Side>,
        record: Arc<dyn SyncRecord>,
        names: [String; 2],
    ) -> Result<DevicePair, PairError> {
        let mirror = Mirror::new(env, sides, record, false)?;
        let states = mirror.states();
        Ok(DevicePair { mirror, states, names: Arc::new(names) })
    }

    /// The pair as one device.
    pub fn device(&self) -> DeviceRef {
        Arc::new(self.mirror.clone())
    }

    /// Its sides.
    pub fn sides(&self) -> Vec<SideReport> {
        let states = self.states.borrow();
        let named = self.names.iter().zip(states.iter());
        named.map(|(name, state)| SideReport { device: name.clone(), state: *state }).collect()
    }

    /// Copies everything to the side that lacks it, while the pair is used; whether there was one. A crash meanwhile leaves it lacking.
    ///
    /// # Errors
    /// A device's.
    pub async fn fill(&self) -> Result<bool, PairError> {
        let states = self.states.borrow().clone();
        let Some(side) = states.iter().position(|state| *state == SideState::Stale) else {
            return Ok(false);
        };
        self.mirror.rebuild(side).await?;
        Ok(true)
    }
}

/// The extent of a device that is a side of a pair: as it is, though it may have missed changes. `None` if it is none.
///
/// # Errors
/// The label's; the device's.
pub async fn lone_side(device: &DeviceRef) -> Result<Option<DeviceRef>, PoolError> {
    match side_of(device).await? {
        FoundSide::Side(slot) => Ok(Some(extent(&slot)?)),
        FoundSide::Empty | FoundSide::Other => Ok(None),
    }
}

/// The bytes of a side, in sectors of the pair: those of the device may be smaller.
fn extent(slot: &Slot) -> Result<DeviceRef, PoolError> {
    slot.extent()?;
    let Member { start, length, sector, .. } = slot.member;
    let extent = Partition::new(slot.device.clone(), start, length)?;
    Ok(Arc::new(extent.in_sectors_of(sector)))
}

fn member_of(pair: Uuid, length: u64) -> Member {
    Member {
        sequence: 0,
        device: Uuid::nil(),
        volume: pair,
        name: NAME.to_owned(),
        role: Role::ClientJournal,
        group: pair,
        columns: 1,
        column: 0,
        sides: 2,
        side: 0,
        unit: 0,
        sector: 0,
        start: DATA_START,
        length,
        map_bytes: 0,
        events: 0,
        in_sync: 0,
    }
}

/// Labels a device as a side.
async fn take(env: &Env, device: &DeviceRef, member: Member) -> Result<Slot, PairError> {
    let header = label::format(env, device, Sharing::Owned).await?;
    let member = Member { device: header.device, ..member };
    let mut slot = Slot { device: device.clone(), number: 0, member };
    slot.write().await?;
    Ok(slot)
}

fn refuse_sizes(first: &DeviceRef, second: &DeviceRef) -> Result<(), PairError> {
    let size = |device: &DeviceRef| {
        let Geometry { size, .. } = device.geometry();
        (device.name(), size)
    };
    let ((first, first_size), (second, second_size)) = (size(first), size(second));
    match first_size == second_size {
        true => Ok(()),
        false => Err(PairError::Sizes { first, first_size, second, second_size }),
    }
}

/// Refuses a device that has something of another program, or of a volume.
async fn refuse_use(device: &DeviceRef) -> Result<(), PairError> {
    let own = match side_of(device).await? {
        FoundSide::Side(slot) => Some(slot.member.volume),
        FoundSide::Empty | FoundSide::Other => None,
    };
    Ok(check_blank(&Opened::unlocked(device.clone()), false, own).await?)
}

/// What a device is for a pair.
enum FoundSide {
    Side(Slot),
    Empty,
    Other,
}

async fn side_of(device: &DeviceRef) -> Result<FoundSide, PoolError> {
    if let Some(label) = label::find(&**device).await? {
        // A crash came when the device was made a side: nothing is on it.
        if label.members.is_empty() && label.damaged == 0 {
            return Ok(FoundSide::Empty);
        }
        let mut members = label.members.into_iter();
        let side = members.find(|(_, member)| {
            member.role == Role::ClientJournal
                && member.sides == 2
                && member.side < 2
                && member.columns == 1
        });
        return Ok(side.map_or(FoundSide::Other, |(number, member)| {
            FoundSide::Side(Slot { device: device.clone(), number, member })
        }));
    }
    let start = device.geometry().size.min(LOOKED_AT);
    let bytes = device.read(0, start as usize, Purpose::Label).await?;
    match bytes.iter().all(|byte| *byte == 0) {
        true => Ok(FoundSide::Empty),
        false => Ok(FoundSide::Other),
    }
}

/// The devices of a pair, by their sides.
struct FoundSides {
    named: [NamedSide; 2],
    slots: Vec<Option<Slot>>,
    /// An empty device, for the side without a slot.
    empty: Option<(usize, DeviceRef)>,
}

impl FoundSides {
    async fn read(mut named: [NamedSide; 2]) -> Result<FoundSides, PairError> {
        let mut found = Vec::new();
        for (order, side) in named.iter().enumerate() {
            let Some(device) = side.device() else { continue };
            match side_of(device).await? {
                FoundSide::Other => return Err(PairError::OtherData { device: device.name() }),
                FoundSide::Side(slot) => found.push((order, device.clone(), Some(slot))),
                FoundSide::Empty => found.push((order, device.clone(), None)),
            }
        }
        if let [(_, first, Some(one)), (_, second, Some(two))] = &found[..] {
            let (one, two) = (&one.member, &two.member);
            let (first, second) = (first.name(), second.name());
            if one.device == two.device || (one.volume == two.volume && one.side == two.side) {
                return Err(PairError::Twice { first, second });
            }
            if one.volume != two.volume {
                return Err(PairError::OtherPair { first, second });
            }
        }
        if let [(_, first, one), (_, second, two)] = &found[..] {
            refuse_sizes(first, second)?;
            for (device, other) in [(first, two), (second, one)] {
                let (has, of_pair) =
                    (device.geometry().sector, other.as_ref().map(|it| it.member.sector));
                if let Some(sector) = of_pair.filter(|sector| has > *sector) {
                    return Err(PairError::Sector { device: device.name(), has, sector });
                }
            }
        }
        let known = found.iter().find_map(|(order, _, slot)| Some((*order, slot.as_ref()?)));
        let Some((order, side)) = known.map(|(order, slot)| (order, slot.member.side)) else {
            let [first, second] = named.map(|side| side.to_string());
            return Err(PairError::NoPair { first, second });
        };
        // The caller may name them in any order.
        if order != usize::from(side) {
            named.reverse();
        }
        let (mut slots, mut empty) = (vec![None, None], None);
        for (_, device, slot) in found {
            match slot {
                Some(slot) => {
                    let side = usize::from(slot.member.side);
                    slots[side] = Some(slot);
                }
                None => empty = Some((usize::from(1 - side), device)),
            }
        }
        Ok(FoundSides { named, slots, empty })
    }

    fn names(&self) -> [String; 2] {
        self.named.each_ref().map(ToString::to_string)
    }

    /// Which sides are in sync. A side that may have been left behind is refused.
    fn judged(&self) -> Result<Vec<Standing>, PairError> {
        let claim = |slot: &Option<Slot>| {
            slot.as_ref().map(|slot| (slot.member.events, slot.member.in_sync))
        };
        let claims: Vec<_> = self.slots.iter().map(claim).collect();
        let standings = judge(&claims).map_err(|_| {
            let [first, second] = self.names();
            PairError::Diverged { first, second }
        })?;
        let Some(current) = standings.iter().position(|it| *it == Standing::InSync) else {
            let present = self.slots.iter().position(Option::is_some).unwrap_or_default();
            return Err(PairError::LeftBehind { present: self.names()[present].clone() });
        };
        let other = 1 - current;
        let mask = claims[current].map_or(0, |(_, mask)| mask);
        let may_be_newer = self.slots[other].is_none() && mask & (1 << other) != 0;
        if may_be_newer && !matches!(self.named[other], NamedSide::Lost) {
            let [present, absent] = [current, other].map(|side| self.names()[side].clone());
            let state = if self.empty.is_some() { "empty" } else { "missing" };
            return Err(PairError::Undecided { present, absent, state });
        }
        Ok(standings)
    }
}
