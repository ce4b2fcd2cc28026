//! Records on a mirror's sides which of them are in sync.
//!
//! Each side's slot has a count of the changes of the set of sides in sync, and a mask of the set after the
//! last change. A change is written to every side that is in sync after it, first to those that were in sync
//! before it. So the highest count is right; a side with a lower count missed writes; and a side with a lower
//! count that says it was alone holds writes that the others miss.

use async_trait::async_trait;

use super::PoolError;
use super::label::Slot;
use crate::device::{DeviceError, SyncRecord};

/// The state of a side, by the counts and masks of all sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It holds every write.
    InSync,
    /// It missed writes.
    Stale,
    /// It is missing.
    Missing,
}

/// One side's count and mask; `None` when the side is missing.
pub(super) type Claim = Option<(u64, u64)>;

/// Decides from the claims which sides are in sync.
///
/// # Errors
/// The numbers of two sides that were used without each other.
pub(super) fn judge(claims: &[Claim]) -> Result<Vec<Standing>, (usize, usize)> {
    let newest = claims.iter().flatten().map(|(events, _)| *events).max().unwrap_or(0);
    let is_newest = |claim: &Claim| claim.is_some_and(|(events, _)| events == newest);
    for (side, claim) in claims.iter().enumerate() {
        // An empty mask marks a side that missed writes, so it claims nothing.
        let Some((events, mask)) = claim.filter(|(_, mask)| *mask != 0) else { continue };
        for (other, theirs) in claims.iter().enumerate().filter(|(_, c)| is_newest(c)) {
            let claims = theirs.is_some_and(|(_, mask)| mask != 0);
            let left_out = mask & (1 << other) == 0 && other != side && claims;
            let both_newest = events == newest && left_out;
            let was_alone = events < newest && mask == 1 << side;
            if both_newest || was_alone {
                return Err((side.min(other), side.max(other)));
            }
        }
    }
    let standing = |claim: &Claim| match claim {
        None => Standing::Missing,
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

    /// Records the set of sides in sync if a side dropped out of it: that side may return, and must then be
    /// known to have missed writes.
    pub(super) async fn confirm(&self, in_sync: &[bool]) -> Result<(), DeviceError> {
        let recorded = self.sides.lock().await.in_sync;
        match recorded == mask(in_sync) {
            true => Ok(()),
            false => self.record(in_sync).await,
        }
    }

    /// Marks sides as having missed writes, on themselves, so that one that returns alone is not taken for
    /// the last one in sync. A side that cannot be marked is known by its count.
    pub(super) async fn mark_stale(&self, stale: &[bool]) {
        let mut sides = self.sides.lock().await;
        for (slot, _) in sides.slots.iter_mut().zip(stale).filter(|(_, stale)| **stale) {
            let Some(slot) = slot.as_mut().filter(|slot| slot.member.in_sync != 0) else {
                continue;
            };
            slot.member.in_sync = 0;
            if let Err(error) = slot.write().await {
                tracing::warn!(%error, "a side that missed writes was not marked");
            }
        }
    }

    /// Replaces a side by another device's slot.
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
        // Sides that were in sync come first: a new side stays out until it is recorded on them.
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
        // A new side beside one in sync; and alone.
        assert_eq!(judge(&[Some((5, 1)), Some((0, 0))]), Ok(vec![InSync, Stale]));
        assert_eq!(judge(&[None, Some((0, 0))]), Ok(vec![Missing, Stale]));
        assert_eq!(judge(&[None, Some((4, 0)), Some((4, 0))]), Ok(vec![Missing, Stale, Stale]));
        // Side 0 went out, then side 2, and side 0 was rebuilt from side 1, which went out last.
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
