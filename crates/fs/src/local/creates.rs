//! Inodes that several calls make at a time, made in one transaction.
//!
//! Most of what a transaction costs is there once, whatever it changes: pages are copied, compared and written to the journal. So while
//! calls come together they are carried out together, by a task (flat combining: Hendler, Incze, Shavit and Tzafrir, SPAA 2010).
//! A call that comes alone has a transaction of its own, and waits for nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_store::txn::{Durability, Transaction};
use tokio::sync::oneshot;

use super::LocalFs;
use super::fs_call::FsCall;
use crate::answer::Answer;
use crate::attributes::{Attributes, Ino, Timestamp};
use crate::error::FsError;
use crate::filesystem::NewNode;
use crate::session_table::{Committed, Recorder};

/// The most inodes that one transaction makes: others use the second processor meanwhile, and the calls that wait go on early
/// enough to have their next ones in line when the task comes back.
const MOST: usize = 8;
/// The task waits for others that are about to come while fewer calls wait.
const ENOUGH: usize = 4;

/// An inode to make.
#[derive(Debug)]
struct Create {
    parent: Ino,
    name: Bytes,
    new: NewNode,
    number: Ino,
    recorder: Option<Arc<Recorder>>,
}

/// A call that waits: it learns what it has come to, or that nothing was done for it.
#[derive(Debug)]
struct Waiting(Create, oneshot::Sender<Option<Answer>>);

/// The calls that make inodes.
#[derive(Debug, Default)]
pub(super) struct Creates(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A call or the task carries out creates; the others wait until the task carries them out.
    is_busy: bool,
    /// The last calls came together.
    is_crowded: bool,
    waiting: VecDeque<Waiting>,
}

/// What a call that comes does.
enum Entry {
    /// It carries itself out.
    Turn,
    /// It waits, and starts the task if nobody is busy.
    Wait { answer: oneshot::Receiver<Option<Answer>>, starts: bool },
}

impl Creates {
    fn enter(&self, create: impl FnOnce() -> Create) -> Entry {
        let mut state = self.0.lock();
        let starts = !std::mem::replace(&mut state.is_busy, true);
        if starts && !state.is_crowded {
            return Entry::Turn;
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.push_back(Waiting(create(), sender));
        Entry::Wait { answer, starts }
    }
}

/// The turn of a call that carries itself out. At its end the task carries out the calls that wait.
struct Turn<'a>(&'a LocalFs);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.inner.creates.0.lock();
        state.is_busy = !state.waiting.is_empty();
        if state.is_busy {
            drop(state);
            self.0.start_creates();
        }
    }
}

/// The turn of the task. When it is dropped before its end, the calls that wait learn that nothing was done for them.
struct TaskTurn<'a> {
    creates: &'a Creates,
    has_ended: bool,
}

impl TaskTurn<'_> {
    fn has_enough(&self) -> bool {
        self.creates.0.lock().waiting.len() >= ENOUGH
    }

    /// The next calls; none ends the turn.
    fn next(&mut self) -> Vec<Waiting> {
        let mut state = self.creates.0.lock();
        assert!(state.is_busy && !self.has_ended, "inodes are made in nobody's turn");
        let some = state.waiting.len().min(MOST);
        if some == 0 {
            state.is_busy = false;
            self.has_ended = true;
        } else {
            state.is_crowded = some > 1;
        }
        state.waiting.drain(..some).collect()
    }
}

impl Drop for TaskTurn<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            *self.creates.0.lock() = State::default();
        }
    }
}

impl LocalFs {
    /// Makes an inode whose number was reserved, together with others that are made at the time.
    ///
    /// # Errors
    /// Those of [`FsCall::create`] and of the transaction.
    pub(super) async fn create_with_others(
        &self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
        number: Ino,
    ) -> Result<Answer, FsError> {
        if self.within.is_some() {
            return self.create_alone(parent, name, new, number).await;
        }
        let entry = self.inner.creates.enter(|| Create {
            parent,
            name: Bytes::copy_from_slice(name),
            new: new.clone(),
            number,
            recorder: self.recorder.clone(),
        });
        match entry {
            Entry::Turn => {
                let _turn = Turn(self);
                self.create_alone(parent, name, new, number).await
            }
            Entry::Wait { answer, starts } => {
                if starts {
                    self.start_creates();
                }
                match answer.await {
                    Ok(Some(answer)) => Ok(answer),
                    // A transaction of its own says why, or makes it after all.
                    Ok(None) | Err(_) => self.create_alone(parent, name, new, number).await,
                }
            }
        }
    }

    async fn create_alone(
        &self,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
        number: Ino,
    ) -> Result<Answer, FsError> {
        self.change(async |txn| {
            let mut op = self.op(&txn);
            let attributes = op.create(parent.0, name, new, number.0).await?;
            op.outcome = number.0;
            Ok((Answer::until_changed(attributes), op.finish().await?))
        })
        .await
    }

    /// Starts the task that carries out the calls that wait, until none is left.
    fn start_creates(&self) {
        let fs = LocalFs { recorder: None, ..self.clone() };
        let task = async move {
            let mut turn = TaskTurn { creates: &fs.inner.creates, has_ended: false };
            loop {
                if !turn.has_enough() {
                    tokio::task::yield_now().await;
                }
                let calls = turn.next();
                if calls.is_empty() {
                    return;
                }
                // When the transaction fails, nothing was done for any of them.
                let made = fs.create_together(&calls).await.unwrap_or_default();
                let mut made = made.into_iter();
                for Waiting(_, sender) in calls {
                    // A call that was given up is not told.
                    let _ = sender.send(made.next().flatten());
                }
            }
        };
        self.inner.env.spawn(task).detach();
    }

    /// Makes inodes in one transaction; `None` for a call that was given up or is refused.
    async fn create_together(&self, calls: &[Waiting]) -> Result<Vec<Option<Answer>>, FsError> {
        let work = async |txn: Arc<dyn Transaction>| {
            let mut op = FsCall::new(&self.inner, &txn, false);
            let mut made = Vec::with_capacity(calls.len());
            for Waiting(create, sender) in calls {
                let is_wanted = !sender.is_closed();
                made.push(if is_wanted { op.create_one(create).await? } else { None });
            }
            Ok((made, op.finish().await?))
        };
        let (made, version) = self.inner.change_at(Durability::Visible, work).await?;
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
