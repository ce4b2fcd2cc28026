//! The chain among its replicas.

use async_trait::async_trait;
use uuid::Uuid;

use super::followed::BEFORE_COPY;
use super::{Chain, write};
use crate::block::{
    Applied, Blocks, Lineage, Position, Relation, Retention, StoreError, Version, WriteList,
};

#[async_trait]
impl Lineage for Chain {
    fn position(&self) -> Option<Position> {
        Chain::position_of(self, self.now())
    }

    fn position_of(&self, version: Version) -> Option<Position> {
        Chain::position_of(self, version)
    }

    fn timeline(&self) -> Option<Uuid> {
        self.inner.state.lock().label.history.timelines().last().map(|timeline| timeline.id)
    }

    fn relation(&self, position: Position) -> Option<Relation> {
        let state = self.inner.state.lock();
        if position.volume != state.label.volume {
            return Some(Relation::Strange);
        }
        let history = &state.label.history;
        Some(history.relation(position.timeline, position.version, state.version))
    }

    /// A follower waits also for timelines that it has not heard of: its primary may have begun one since they last met.
    async fn reached(&self, position: Position) -> Result<(), StoreError> {
        loop {
            // It is notified of each commit, and of changes of the label.
            let news = self.inner.room.notified();
            if self.has_reached(position)? {
                return Ok(());
            }
            news.await;
        }
    }

    async fn replicated(&self, version: Version) -> bool {
        let tap = self.inner.state.lock().tap.clone();
        match tap {
            Some(tap) => tap.replicated(version).await,
            None => false,
        }
    }

    fn term(&self) -> u32 {
        Chain::term(self)
    }

    fn is_fenced(&self) -> bool {
        self.inner.check_fence().is_err()
    }

    async fn submit_at(
        &self,
        version: Version,
        writes: WriteList,
        retention: Retention,
    ) -> Result<Applied, StoreError> {
        self.inner.check_writable()?;
        write::apply(&self.inner, &writes, retention, Some(version)).await
    }
}

impl Chain {
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
