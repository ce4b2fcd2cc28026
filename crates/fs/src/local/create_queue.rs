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
    /// Calls that carry themselves out.
    alone: usize,
    /// The task carries out those that wait.
    is_running: bool,
    /// The last calls came together.
    is_crowded: bool,
    waiting: VecDeque<Waiting>,
}

/// What a call that comes does.
pub(super) enum Entry {
    /// It carries itself out.
    Alone,
    /// It waits for the task, which it starts if it comes first. It never waits for a call that carries itself out: the caller
    /// of that may be the one that waits.
    Wait { answer: oneshot::Receiver<Option<Answer>>, starts: bool },
}

impl CreateQueue {
    pub(super) fn enter(&self, create: impl FnOnce() -> Create) -> Entry {
        let mut state = self.0.lock();
        if state.alone == 0 && !state.is_running && !state.is_crowded {
            state.alone += 1;
            return Entry::Alone;
        }
        let (sender, answer) = oneshot::channel();
        state.waiting.push_back(Waiting(create(), sender));
        Entry::Wait { answer, starts: !std::mem::replace(&mut state.is_running, true) }
    }

    /// A call that has carried itself out ends.
    pub(super) fn leave(&self) {
        let mut state = self.0.lock();
        assert!(state.alone > 0, "a call ends twice");
        state.alone -= 1;
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
        assert!(state.is_running && !self.has_ended, "there is one task at a time");
        let some = state.waiting.len().min(MOST);
        if some == 0 {
            state.is_running = false;
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
            let mut state = self.queue.0.lock();
            state.is_running = false;
            state.waiting.clear();
        }
    }
}
