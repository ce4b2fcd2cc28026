//! Inodes that several calls make at a time, made in one transaction.
//!
//! Most of what a transaction costs is there once, whatever it changes: pages are copied, compared and written to the journal. So while
//! calls come together a task carries them out together (flat combining: Hendler, Incze, Shavit and Tzafrir, SPAA 2010). A call
//! that comes alone has a transaction of its own, and waits for nothing.

use std::sync::Arc;

use thalweg_store::txn::{Durability, Transaction};

use super::create_queue::{Create, Entry, TaskTurn, Waiting};
use super::fs_call::FsCall;
use super::fs_state::FsState;
use crate::answer::Answer;
use crate::attributes::{Attributes, Timestamp};
use crate::error::FsError;
use crate::session_table::Committed;

/// A call that carries itself out.
pub(super) struct Alone<'a>(&'a FsState);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.creates.leave();
    }
}

/// What has become of an inode that was to be made.
pub(super) enum Joined<'a> {
    /// It was made with others.
    Made(Answer),
    /// The call makes it in a transaction of its own.
    Alone(Option<Alone<'a>>),
}

impl FsState {
    /// Makes an inode together with others that are made at the time, if there are any.
    pub(super) async fn create_with_others(
        self: &Arc<Self>,
        create: impl FnOnce() -> Create,
    ) -> Joined<'_> {
        match self.creates.enter(create) {
            Entry::Alone => Joined::Alone(Some(Alone(self))),
            Entry::Wait { answer, starts } => {
                if starts {
                    self.start_creates();
                }
                match answer.await {
                    Ok(Some(answer)) => Joined::Made(answer),
                    // A transaction of its own says why, or makes it after all; or that the task has made it, and did not live to say so.
                    Ok(None) | Err(_) => Joined::Alone(None),
                }
            }
        }
    }

    /// Starts the task that carries out the calls that wait, until none is left.
    fn start_creates(self: &Arc<Self>) {
        let state = self.clone();
        let task = async move {
            let mut turn = TaskTurn::of(&state.creates);
            loop {
                if !turn.has_enough() {
                    tokio::task::yield_now().await;
                }
                let calls = turn.next();
                if calls.is_empty() {
                    return;
                }
                // When the transaction fails, nothing was done for any of them.
                let made = state.create_together(&calls).await.unwrap_or_default();
                let mut made = made.into_iter();
                for Waiting(_, sender) in calls {
                    // A call that was given up is not told.
                    let _ = sender.send(made.next().flatten());
                }
            }
        };
        self.env.spawn(task).detach();
    }

    /// Makes inodes in one transaction; `None` for a call that was given up or is refused.
    async fn create_together(&self, calls: &[Waiting]) -> Result<Vec<Option<Answer>>, FsError> {
        let work = async |txn: Arc<dyn Transaction>| {
            let mut op = FsCall::new(self, &txn, false);
            let mut made = Vec::with_capacity(calls.len());
            for Waiting(create, sender) in calls {
                let is_wanted = !sender.is_closed();
                made.push(if is_wanted { op.create_one(create).await? } else { None });
            }
            Ok((made, op.finish().await?))
        };
        let (made, version) = self.change_at(Durability::Visible, work).await?;
        let answers = made.into_iter().zip(calls).map(|(made, Waiting(create, _))| {
            let (attributes, recorded) = made?;
            if let Some((recorder, (time, outcome))) = create.recorder.as_ref().zip(recorded) {
                recorder.commit(Committed { version: version.0, time, outcome });
            }
            Some(Answer::until_changed(attributes))
        });
        Ok(answers.collect())
    }
}

/// The attributes of a new inode, and the time and the outcome of the call that makes it, if that is recorded.
type Made = (Attributes, Option<(Timestamp, u64)>);

impl FsCall<'_> {
    /// Makes an inode as one of several; `None`, with nothing changed, when its name or its call is refused.
    ///
    /// # Errors
    /// Those of a call that has changed something already.
    async fn create_one(&mut self, create: &Create) -> Result<Option<Made>, FsError> {
        let Create { parent, name, new, number, recorder } = create;
        let Ok(place) = self.place_of_new(parent.0, name).await else { return Ok(None) };
        self.outcome = number.0;
        if self.record_call(recorder.as_deref()).await.is_err() {
            return Ok(None);
        }
        let recorded = self.effects.recorded.take();
        let attributes = self.create_at(place, (parent.0, name), new, number.0).await?;
        // Another inode that is made in the directory is a later change of it.
        self.end_change(parent.0);
        Ok(Some((attributes, recorded)))
    }
}
