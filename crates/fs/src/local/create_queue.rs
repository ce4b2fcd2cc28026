//! The queue of calls that make inodes, and their turns.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::attributes::Ino;
use crate::filesystem::NewNode;
use crate::session_table::Recorder;

/// The most inodes that one transaction makes. The calls that wait go on early enough to have their next ones in line when the
/// task comes back, and the second processor has work meanwhile.
const MOST: usize = 8;
/// While fewer calls wait, the task lets those come that are about to.
const ENOUGH: usize = 4;

/// An inode to make; its number was reserved.
#[derive(Debug)]
pub(super) struct Create {
    pub(super) parent: Ino,
    pub(super) name: Bytes,
    pub(super) new: NewNode,
    pub(super) number: Ino,
    pub(super) recorder: Option<Arc<Recorder>>,
}

/// A call that waits: it learns what it has come to, or that nothing was done for it.
#[derive(Debug)]
pub(super) struct Waiting(pub(super) Create, pub(super) oneshot::Sender<Option<Answer>>);

/// The calls that make inodes.
#[derive(Debug, Default)]
pub(super) struct CreateQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A call carries itself out, or the task does it for those that wait.
    is_busy: bool,
    /// The last calls came together.
    is_crowded: bool,
    waiting: VecDeque<Waiting>,
}

/// What a call that comes does.
pub(super) enum Entry {
    /// It carries itself out.
    Turn,
    /// It waits, and starts the task if it comes first.
    Wait { answer: oneshot::Receiver<Option<Answer>>, starts: bool },
}

impl CreateQueue {
    pub(super) fn enter(&self, create: impl FnOnce() -> Create) -> Entry {
        let mut state = self.0.lock();
        let starts = !std::mem::replace(&mut state.is_busy, true);
        if starts && !state.is_crowded {
            return Entry::Turn;
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.push_back(Waiting(create(), sender));
        Entry::Wait { answer, starts }
    }

    /// The turn of a call that carried itself out ends. Whether calls wait, which the task is to carry out.
    pub(super) fn leave(&self) -> bool {
        let mut state = self.0.lock();
        assert!(state.is_busy, "a turn ends twice");
        state.is_busy = !state.waiting.is_empty();
        state.is_busy
    }
}

/// The turn of the task. When it is dropped before its end, the calls that wait learn that nothing was done for them.
pub(super) struct TaskTurn<'a> {
    queue: &'a CreateQueue,
    has_ended: bool,
}

impl TaskTurn<'_> {
    /// The turn of the task that was started.
    pub(super) fn of(queue: &CreateQueue) -> TaskTurn<'_> {
        TaskTurn { queue, has_ended: false }
    }

    pub(super) fn has_enough(&self) -> bool {
        self.queue.0.lock().waiting.len() >= ENOUGH
    }

    /// The next calls; none ends the turn.
    pub(super) fn next(&mut self) -> Vec<Waiting> {
        let mut state = self.queue.0.lock();
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
            *self.queue.0.lock() = State::default();
        }
    }
}
