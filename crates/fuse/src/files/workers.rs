//! Threads for tasks that may wait for each other.
//!
//! The kernel drops a page only when it is not locked, and a page may be locked until a write is answered. With a server,
//! that write may wait for another client, which waits for the kernel here to drop something else. So a task never waits
//! until an earlier one has ended: there is always a thread for the next one.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::{fmt, io};

use parking_lot::{Condvar, Mutex};
use thalweg_fs::invalidation::{Completion, Invalidation};

/// Threads at most that stay while there is nothing to do.
const MOST_IDLE: usize = 4;

/// Runs tasks on threads of their own. They end when this is dropped, after the tasks that it was given.
pub(super) struct Workers<T: Send + 'static>(Arc<Pool<T>>);

struct Pool<T> {
    name: &'static str,
    run: Box<dyn Fn(T) + Send + Sync>,
    state: Mutex<State<T>>,
    /// There is a task, or there will be none.
    more: Condvar,
}

struct State<T> {
    waiting: VecDeque<(u64, T, Completion)>,
    running: BTreeSet<u64>,
    /// The number of the last task.
    last: u64,
    /// Completed when all tasks up to this one have ended.
    settling: Vec<(u64, Completion)>,
    /// Threads that look for a task.
    idle: usize,
    has_ended: bool,
}

impl<T: Send + 'static> Workers<T> {
    /// Starts the first thread.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn start(
        name: &'static str,
        run: impl Fn(T) + Send + Sync + 'static,
    ) -> io::Result<Workers<T>> {
        let (waiting, running, settling) = Default::default();
        let state = State { waiting, running, last: 0, settling, idle: 0, has_ended: false };
        let (state, more) = (Mutex::new(state), Condvar::new());
        let pool = Arc::new(Pool { name, run: Box::new(run), state, more });
        pool.state.lock().idle += 1;
        pool.start_thread()?;
        Ok(Workers(pool))
    }

    /// Has a task run; the result is complete when it has ended.
    pub(super) fn run(&self, task: T) -> Invalidation {
        let (invalidation, completion) = Invalidation::pending();
        let mut state = self.0.state.lock();
        state.last += 1;
        let number = state.last;
        state.waiting.push_back((number, task, completion));
        self.0.more.notify_one();
        invalidation
    }

    /// Complete when all tasks so far have ended.
    pub(super) fn settle(&self) -> Invalidation {
        let (invalidation, completion) = Invalidation::pending();
        let mut state = self.0.state.lock();
        let last = state.last;
        state.settling.push((last, completion));
        state.tell_settled();
        invalidation
    }
}

impl<T: Send + 'static> fmt::Debug for Workers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Drop for Workers<T> {
    fn drop(&mut self) {
        self.0.state.lock().has_ended = true;
        self.0.more.notify_all();
    }
}

impl<T> State<T> {
    fn tell_settled(&mut self) {
        let waiting = self.waiting.front().map(|(number, ..)| *number);
        let first = waiting.into_iter().chain(self.running.first().copied()).min();
        self.settling.retain(|(last, _)| first.is_some_and(|first| first <= *last));
    }
}

impl<T: Send + 'static> Pool<T> {
    /// Starts a thread that was counted as idle.
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let pool = self.clone();
        let thread = std::thread::Builder::new().name(self.name.to_owned());
        thread.spawn(move || pool.work()).map(drop)
    }

    /// What a thread does.
    fn work(self: &Arc<Self>) {
        while let Some((number, task, completion)) = self.next() {
            (self.run)(task);
            drop(completion);
            let mut state = self.state.lock();
            state.running.remove(&number);
            state.tell_settled();
            if state.idle >= MOST_IDLE {
                return;
            }
            state.idle += 1;
        }
    }

    /// The next task for an idle thread; with it there is another such thread.
    fn next(self: &Arc<Self>) -> Option<(u64, T, Completion)> {
        let mut state = self.state.lock();
        while state.waiting.is_empty() && !state.has_ended {
            self.more.wait(&mut state);
        }
        let next = state.waiting.pop_front();
        let (number, ..) = next.as_ref()?;
        state.running.insert(*number);
        state.idle -= 1;
        let is_last = state.idle == 0;
        state.idle += usize::from(is_last);
        drop(state);
        if is_last && let Err(error) = self.start_thread() {
            tracing::warn!(%error, "tasks may wait for each other: there is no thread for the next one");
            self.state.lock().idle -= 1;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::task::{Context, Waker};

    use super::*;

    /// A task with a channel waits for a message.
    fn workers() -> Workers<Option<Receiver<()>>> {
        Workers::start("thalweg-test", |task: Option<Receiver<()>>| {
            task.map(|messages| messages.recv());
        })
        .unwrap()
    }

    fn block_on(future: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future);
    }

    fn wait(invalidation: Invalidation) {
        block_on(invalidation.wait());
    }

    #[test]
    fn a_task_waits_for_no_earlier_one() {
        let workers = workers();
        let (told, running): (Vec<_>, Vec<_>) = (0..20)
            .map(|_| {
                let (tell, messages) = channel();
                (tell, workers.run(Some(messages)))
            })
            .unzip();
        wait(workers.run(None));
        told.iter().for_each(|tell| tell.send(()).unwrap());
        running.into_iter().for_each(wait);
        wait(workers.settle());
        // Those that have nothing to do end; each counts itself when it has ended its task.
        while Arc::strong_count(&workers.0) > 1 + MOST_IDLE {
            std::thread::yield_now();
        }
        wait(workers.run(None));
    }

    #[test]
    fn all_earlier_tasks_are_waited_for() {
        let workers = workers();
        let (tell, messages) = channel();
        let first = workers.run(Some(messages));
        wait(workers.run(None));
        let mut settled = Box::pin(workers.settle().wait());
        let polled = settled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the first one runs");
        tell.send(()).unwrap();
        wait(first);
        block_on(settled);
        wait(workers.settle());
    }

    #[test]
    fn the_threads_end_after_all_tasks() {
        let workers = workers();
        let pool = workers.0.clone();
        let tasks: Vec<_> = (0..100).map(|_| workers.run(None)).collect();
        drop(workers);
        tasks.into_iter().for_each(wait);
        while Arc::strong_count(&pool) > 1 {
            std::thread::yield_now();
        }
    }
}
