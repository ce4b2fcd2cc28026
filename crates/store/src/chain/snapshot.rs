//! Named snapshots: versions that stay readable until they are deleted, also across restarts.

use std::sync::Arc;

use super::label::{Label, MAX_SNAPSHOTS, MAX_VOIDS, Void};
use super::{Chain, ChainError, Inner, Snapshot, State, checkpoint, commit};
use crate::block::Version;

/// Keeps users from writing while it lives. Reads go on.
pub(super) struct Freeze<'a>(&'a Inner);

impl<'a> Freeze<'a> {
    pub(super) fn new(inner: &'a Inner) -> Freeze<'a> {
        inner.state.lock().frozen += 1;
        Freeze(inner)
    }
}

impl Drop for Freeze<'_> {
    fn drop(&mut self) {
        self.0.state.lock().frozen -= 1;
        self.0.room.notify_waiters();
    }
}

/// A snapshot and its space.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SnapshotUse {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Blocks that only this snapshot needs.
    pub exclusive_blocks: u64,
}

fn invalid(why: impl Into<String>) -> ChainError {
    ChainError::Invalid(why.into())
}

impl Inner {
    /// Changes the label durably, then in memory. The caller holds `label_lock`.
    pub(super) async fn change_label(
        &self,
        change: impl FnOnce(&mut Label),
    ) -> Result<(), ChainError> {
        self.check_writable()?;
        let mut label = self.state.lock().label.clone();
        change(&mut label);
        if let Err(error) = label.write(&self.map).await {
            // Either of the two labels may survive a crash, so no later change may build on one of them.
            self.poison(&error.to_string());
            return Err(error);
        }
        self.state.lock().label = label;
        self.room.notify_waiters();
        Ok(())
    }
}

impl Chain {
    /// The snapshot called `name`.
    pub fn snapshot(&self, name: &str) -> Option<Snapshot> {
        self.inner.state.lock().label.snapshot(name).cloned()
    }

    /// All snapshots, oldest first, each with its exclusive blocks: those that deleting it, and no other,
    /// makes free. Examines every block with old content.
    pub fn snapshots(&self) -> Vec<SnapshotUse> {
        let state = self.inner.state.lock();
        let mut snapshots = state.label.snapshots.clone();
        snapshots.sort_by_key(|snapshot| snapshot.version);
        let versions: Vec<Version> = snapshots.iter().map(|snapshot| snapshot.version).collect();
        let exclusive = state.index.only_seen_by(&versions);
        drop(state);
        let each = snapshots.into_iter().zip(exclusive);
        each.map(|(snapshot, exclusive_blocks)| SnapshotUse { snapshot, exclusive_blocks })
            .collect()
    }

    /// Keeps the newest version readable under `name`, durably.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] for a name that is taken, empty, longer than 64 bytes or contains one of `/ @`
    /// or a control character, and when there are too many snapshots.
    pub async fn create_snapshot(&self, name: &str) -> Result<Snapshot, ChainError> {
        let inner = &self.inner;
        let _label = inner.label_lock.lock().await;
        let version = {
            let mut state = inner.state.lock();
            state.poison_check()?;
            check_name(&state.label, name)?;
            let version = state.version;
            state.holds.take(version);
            version
        };
        let result = keep(inner, name, version).await;
        if result.is_err() {
            inner.state.lock().release(version);
        }
        result
    }

    /// Deletes a snapshot: blocks that only it needed may be reclaimed.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] when there is none of that name.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), ChainError> {
        let inner = &self.inner;
        let _label = inner.label_lock.lock().await;
        let version = self.find(name)?.version;
        inner.poison_check()?;
        inner
            .change_label(|label| label.snapshots.retain(|snapshot| snapshot.name != name))
            .await?;
        {
            let mut state = inner.state.lock();
            state.release(version);
            state.settle_holds();
            state.reap();
        }
        inner.bury_all();
        inner.clean_kick.notify_one();
        Ok(())
    }

    /// Rolls the volume back to a snapshot and drops everything written after it. The snapshot stays.
    ///
    /// # Errors
    /// [`ChainError::Invalid`] when there is none of that name, or a newer version is held: delete newer
    /// snapshots and stop serving them first.
    pub async fn rollback(&self, name: &str) -> Result<(), ChainError> {
        let inner = &self.inner;
        inner.check_fence()?;
        let _label = inner.label_lock.lock().await;
        let _cleaning = inner.cleaning_lock.lock().await;
        let snapshot = self.find(name)?;
        let _frozen = Freeze::new(inner);
        let newest = self.check_rollback(&snapshot)?;
        commit::sync(inner, newest).await?;
        // From the new label on, recovery drops these versions as well.
        inner
            .change_label(|label| {
                let seq = inner.state.lock().next_seq;
                let (from, to) = (snapshot.version, newest);
                label.voids.push(Void { from, to, seq, first: 0 });
                if !label.history.is_empty() {
                    // What follows is no future of the versions that are taken back.
                    label.history.begin(inner.env.uuid(), from);
                }
            })
            .await?;
        {
            let mut state = inner.state.lock();
            state.take_back(snapshot.version, newest);
            state.tell_reshaped();
        }
        inner.bury_all();
        checkpoint::write(inner).await?;
        Ok(())
    }

    fn find(&self, name: &str) -> Result<Snapshot, ChainError> {
        self.snapshot(name).ok_or_else(|| invalid(format!("there is no snapshot called {name}")))
    }

    /// The newest version, if all versions after `snapshot` may be dropped.
    fn check_rollback(&self, snapshot: &Snapshot) -> Result<Version, ChainError> {
        let mut state = self.inner.state.lock();
        state.poison_check()?;
        state.forget_synced();
        let newer = state.label.snapshots.iter().filter(|other| other.version > snapshot.version);
        let newer: Vec<&str> = newer.map(|other| other.name.as_str()).collect();
        if !newer.is_empty() {
            return Err(invalid(format!("delete the newer snapshots first: {}", newer.join(", "))));
        }
        if state.holds.any_above(snapshot.version) {
            return Err(invalid("a newer version is in use; end its readers first"));
        }
        check_voids(&mut state)?;
        Ok(state.version)
    }
}

/// Whether the label has room for one more void.
pub(super) fn check_voids(state: &mut State) -> Result<(), ChainError> {
    state.forget_voids();
    match state.label.voids.len() < MAX_VOIDS {
        true => Ok(()),
        false => Err(invalid(
            "the label has no room for another roll-back; close the volume and open it again",
        )),
    }
}

/// Makes a held version durable and gives it its name.
async fn keep(inner: &Arc<Inner>, name: &str, version: Version) -> Result<Snapshot, ChainError> {
    commit::sync(inner, version).await?;
    let blocks = inner.state.lock().index.blocks();
    let snapshot =
        Snapshot { name: name.to_owned(), version, created: inner.env.wall_clock(), blocks };
    inner.change_label(|label| label.snapshots.push(snapshot.clone())).await?;
    Ok(snapshot)
}

fn check_name(label: &Label, name: &str) -> Result<(), ChainError> {
    let odd = |c: char| c == '/' || c == '@' || c.is_control();
    if name.is_empty() || name.len() > 64 || name.chars().any(odd) {
        return Err(invalid(format!(
            "{name:?} is not a valid name for a snapshot: 1 to 64 bytes without '/', '@' or control \
             characters"
        )));
    }
    if label.snapshot(name).is_some() {
        return Err(invalid(format!("there is already a snapshot called {name}")));
    }
    match label.snapshots.len() < MAX_SNAPSHOTS {
        true => Ok(()),
        false => Err(invalid(format!("a volume has at most {MAX_SNAPSHOTS} snapshots"))),
    }
}
