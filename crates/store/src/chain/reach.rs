//! Waiting for a position.

use super::followed::BEFORE_COPY;
use super::{Chain, Relation};
use crate::block::{Position, StoreError, Version};

impl Chain {
    /// Waits until the volume has the state that `position` names, or a later one, durably. A follower waits also for
    /// timelines that it has not heard of: its primary may have begun one since they last met.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] when it never will; [`StoreError::Fenced`]; [`StoreError::Poisoned`].
    pub async fn wait_for(&self, position: Position) -> Result<(), StoreError> {
        loop {
            // It is notified of each commit, and of changes of the label.
            let news = self.inner.room.notified();
            if self.has_reached(position)? {
                return Ok(());
            }
            news.await;
        }
    }

    /// Whether the volume has the state that `position` names, or a later one, durably.
    fn has_reached(&self, position: Position) -> Result<bool, StoreError> {
        let state = self.inner.state.lock();
        let label = &state.label;
        if position.volume != label.volume {
            let why = format!("the position {position} is of another volume than {}", label.volume);
            return Err(StoreError::Invalid(why));
        }
        let Position { timeline, version, .. } = position;
        let knows = label.history.timelines().iter().any(|known| known.id == timeline);
        match label.history.relation(timeline, version, state.version) {
            Relation::Past if version <= whole(&state) => Ok(true),
            Relation::Strange if label.follows && !knows => Ok(false),
            Relation::Past | Relation::Future => {
                state.poison_check()?;
                self.inner.check_fence().map(|()| false)
            }
            Relation::Apart(since) => Err(StoreError::Invalid(format!(
                "the volume has gone another way since version {since}, and never reaches {position}: that was lost in a \
                 crash, taken back, or written at another primary"
            ))),
            Relation::Strange => Err(StoreError::Invalid(format!(
                "nothing is known of the timeline of {position}: another primary wrote it, or it is too old"
            ))),
        }
    }
}

/// The newest durable version that is a state of the volume, and no part of a copy.
fn whole(state: &super::State) -> Version {
    let label = &state.label;
    match state.committed >= label.whole_from {
        true => state.committed,
        false => label.snapshot(BEFORE_COPY).map_or(Version(0), |before| before.version),
    }
}
