//! Which sides of a mirror are in sync, on the sides themselves.
//!
//! Each side's slot has a count of the changes of who is in sync, and a mask of who was after the
//! last one. A change is written to every side that is in sync after it, those that were before it
//! first. So the highest count is the truth, a side with a lower one missed writes, and one that
//! says that it was alone, below the highest count, holds writes that the others miss.

use async_trait::async_trait;

use super::PoolError;
use super::label::Slot;
use crate::device::{DeviceError, SyncRecord};

/// What the sides' counts and masks say of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It holds every write.
    InSync,
    /// It missed writes.
    Stale,
    /// It is not there.
    Missing,
}

/// One side's count and mask; `None` when the side is not there.
pub(super) type Claim = Option<(u64, u64)>;

/// Decides from the claims who is in sync.
///
/// # Errors
/// Two sides that were used without each other.
pub(super) fn judge(claims: &[Claim]) -> Result<Vec<Standing>, (usize, usize)> {
    let newest = claims.iter().flatten().map(|(events, _)| *events).max().unwrap_or(0);
    let is_newest = |claim: &Claim| claim.is_some_and(|(events, _)| events == newest);
    for (side, claim) in claims.iter().enumerate() {
        let Some((events, mask)) = claim else { continue };
        for (other, theirs) in claims.iter().enumerate().filter(|(_, c)| is_newest(c)) {
            let left_out = *mask & (1 << other) == 0 && other != side && theirs.is_some();
            let both_newest = *events == newest && left_out;
            let was_alone = *events < newest && *mask == 1 << side;
            if both_newest || was_alone {
                return Err((side.min(other), side.max(other)));
            }
        }
    }
    let standing = |claim: &Claim| match claim {
        None => Standing::Missing,
        // A mask of nobody is a side that was never in sync.
        Some((_, mask)) if is_newest(claim) && *mask != 0 => Standing::InSync,
        Some(_) => Standing::Stale,
    };
    Ok(claims.iter().map(standing).collect())
}

/// The slots of a mirror's sides.
#[derive(Debug)]
pub(super) struct SideLabels {
    sides: tokio::sync::Mutex<Sides>,
}

#[derive(Debug)]
struct Sides {
    slots: Vec<Option<Slot>>,
    events: u64,
    in_sync: u64,
}

impl SideLabels {
    pub(super) fn new(slots: Vec<Option<Slot>>) -> SideLabels {
        let newest = slots.iter().flatten().max_by_key(|slot| slot.member.events);
        let (events, in_sync) =
            newest.map_or((0, 0), |slot| (slot.member.events, slot.member.in_sync));
        SideLabels { sides: tokio::sync::Mutex::new(Sides { slots, events, in_sync }) }
    }

    /// Has it recorded who is in sync if some side that was is not among them any more: it may
    /// come back, and must then be known to have missed what is written from now on.
    pub(super) async fn confirm(&self, in_sync: &[bool]) -> Result<(), DeviceError> {
        match self.sides.lock().await.in_sync == mask(in_sync) {
            true => Ok(()),
            false => self.record(in_sync).await,
        }
    }

    /// Puts another device's slot in the place of a side.
    pub(super) async fn replace(&self, side: usize, slot: Slot) {
        if let Some(place) = self.sides.lock().await.slots.get_mut(side) {
            *place = Some(slot);
        }
    }

    /// The slot of a side.
    pub(super) async fn slot(&self, side: usize) -> Option<Slot> {
        self.sides.lock().await.slots.get(side).cloned().flatten()
    }
}

fn mask(in_sync: &[bool]) -> u64 {
    in_sync.iter().enumerate().map(|(side, is)| u64::from(*is) << side).sum()
}

#[async_trait]
impl SyncRecord for SideLabels {
    async fn record(&self, in_sync: &[bool]) -> Result<(), DeviceError> {
        let mut sides = self.sides.lock().await;
        let new = mask(in_sync);
        let old = sides.in_sync;
        sides.events += 1;
        let events = sides.events;
        // The old ones first: as long as one of the new has not been told, it stays out.
        let (first, then): (Vec<usize>, Vec<usize>) = (0..in_sync.len())
            .filter(|side| new & (1 << side) != 0)
            .partition(|side| old & (1 << side) != 0);
        for side in first.into_iter().chain(then) {
            let Some(Some(slot)) = sides.slots.get_mut(side) else { continue };
            slot.member.events = events;
            slot.member.in_sync = new;
            slot.write().await?;
        }
        sides.in_sync = new;
        Ok(())
    }
}

/// The error for two sides that [`judge`] found to have diverged.
pub(super) fn diverged(first: Option<&Slot>, second: Option<&Slot>) -> PoolError {
    let name = |slot: Option<&Slot>| slot.map_or_else(String::new, |slot| slot.device.name());
    PoolError::Diverged { first: name(first), second: name(second) }
}

#[cfg(test)]
mod tests {
    use super::Standing::{InSync, Missing, Stale};
    use super::*;

    #[test]
    fn the_highest_count_is_the_truth() {
        assert_eq!(judge(&[Some((4, 3)), Some((4, 3))]), Ok(vec![InSync, InSync]));
        assert_eq!(judge(&[Some((5, 1)), Some((4, 3))]), Ok(vec![InSync, Stale]));
        assert_eq!(judge(&[None, Some((4, 3))]), Ok(vec![Missing, InSync]));
        assert_eq!(judge(&[None, None]), Ok(vec![Missing, Missing]));
        // A new side, beside one in sync and alone.
        assert_eq!(judge(&[Some((5, 1)), Some((0, 0))]), Ok(vec![InSync, Stale]));
        assert_eq!(judge(&[None, Some((0, 0))]), Ok(vec![Missing, Stale]));
        // Side 0 went out, then 2 did, and 0 was rebuilt from 1, which went out last.
        let claims = [Some((9, 0b001)), Some((8, 0b011)), Some((6, 0b110))];
        assert_eq!(judge(&claims), Ok(vec![InSync, Stale, Stale]));
    }

    #[test]
    fn sides_that_were_alone_are_told_apart() {
        assert_eq!(judge(&[Some((5, 1)), Some((5, 2))]), Err((0, 1)));
        assert_eq!(judge(&[Some((5, 1)), Some((7, 2))]), Err((0, 1)));
        assert_eq!(judge(&[Some((9, 1)), Some((7, 2))]), Err((0, 1)));
    }
}
