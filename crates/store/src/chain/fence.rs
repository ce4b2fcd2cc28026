//! Fences: a primary that a promoted replica has replaced writes nothing any more.
//!
//! Each promotion raises the *term* of the volume. A primary that hears of a higher term fences itself, durably: it has
//! lost its place, and what it acknowledged from then on would be in no version of the new primary. The state that it had
//! keeps a name, as a snapshot.

use std::sync::atomic::Ordering;

use super::label::MAX_SNAPSHOTS;
use super::{Chain, ChainError, Fence, Inner, Label, Snapshot, commit};
use crate::block::StoreError;

/// The name of the snapshot of the state that a volume had when it was fenced.
fn snapshot_name(term: u32) -> String {
    format!("fenced-{term}")
}

impl Inner {
    /// Refuses what users of a fenced volume do.
    pub(super) fn check_fence(&self) -> Result<(), StoreError> {
        match self.gate.fenced.load(Ordering::Acquire) {
            0 => Ok(()),
            term => Err(StoreError::Fenced(term)),
        }
    }
}

impl Chain {
    /// The volume's term: see [`Label::term`].
    pub fn term(&self) -> u32 {
        self.inner.state.lock().label.term
    }

    /// The primary that has taken this one's place, if one has.
    pub fn fence(&self) -> Option<Fence> {
        self.inner.state.lock().label.fence
    }

    /// Fences the volume, durably, and keeps its newest state as a snapshot. From this call on no write of a user is
    /// acknowledged, even if it fails. Without an effect on a volume that a higher term has fenced.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] for a term that is not higher than the volume's; device errors.
    pub async fn fence_off(&self, fence: Fence) -> Result<(), ChainError> {
        let inner = &self.inner;
        inner.check_writable()?;
        if fence.term <= self.term() {
            let own = self.term();
            return Err(ChainError::Invalid(format!("term {} is not above {own}", fence.term)));
        }
        inner.gate.fenced.fetch_max(fence.term, Ordering::AcqRel);
        let _label = inner.label_lock.lock().await;
        if self.fence().is_some_and(|known| known.term >= fence.term) {
            return Ok(());
        }
        let version = {
            let mut state = inner.state.lock();
            if let Some(tap) = &state.tap {
                tap.fenced();
            }
            let version = state.version;
            state.holds.take(version);
            version
        };
        let blocks = inner.blocks();
        let name = snapshot_name(fence.term);
        let snapshot = Snapshot { name, version, created: inner.env.wall_clock(), blocks };
        // A state that does not survive gets no name; the volume is fenced all the same.
        let is_durable = commit::sync(inner, version).await.is_ok();
        let has_room = |label: &Label| {
            label.snapshots.len() < MAX_SNAPSHOTS && label.snapshot(&snapshot.name).is_none()
        };
        let is_kept = is_durable && has_room(&inner.state.lock().label);
        let changed = inner.change_label(|label| {
            label.fence = Some(fence);
            if is_kept {
                label.snapshots.push(snapshot);
            }
        });
        let changed = changed.await;
        let mut state = inner.state.lock();
        if changed.is_err() || !is_kept {
            state.release(version);
        }
        // Followers hear what has become of the volume.
        state.tell_reshaped();
        changed
    }
}

/// Refuses to open a fenced volume for writing.
pub(super) fn refuse_fenced(label: &Label) -> Result<(), ChainError> {
    let Some(Fence { term, from }) = label.fence else { return Ok(()) };
    let position = label.history.timeline(from);
    let position = position.map(|timeline| format!("{}:{timeline}:{from}", label.volume));
    let from = position.unwrap_or_else(|| format!("version {from}"));
    let kept = label.snapshot(&snapshot_name(term)).map(|snapshot| snapshot.name.clone());
    let snapshot = kept.unwrap_or_else(|| "(none)".to_owned());
    Err(ChainError::Fenced { term, from, snapshot })
}
