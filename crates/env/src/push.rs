//! Tasks that callers advance.
//!
//! A serving task sleeps until a request comes, and is then woken on a thread of the runtime. For one caller
//! with a short request, that wake-up costs more than the work. The caller can poll the task itself instead.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use crate::{Env, Task};

/// Advances a task that was started with [`Env::spawn_pushed`].
#[derive(Clone, Default)]
pub struct Push(Arc<Shared>);

/// The state that the task and its callers share. It is also the waker that the future gets on every poll.
#[derive(Default)]
struct Shared {
    /// `None` while there is no task, and while the task is dropped. Only the drop of the task waits for this
    /// lock: its holder may be in a system call.
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// A thread polls the future, or is about to.
    busy: AtomicBool,
    /// A wake-up arrived during a poll: poll again.
    again: AtomicBool,
    /// Wakes the task.
    task: Mutex<Option<Waker>>,
}

impl Wake for Shared {
    fn wake(self: Arc<Shared>) {
        self.again.store(true, Ordering::SeqCst);
        // A thread that is busy looks at `again` after it clears `busy`.
        if !self.busy.load(Ordering::SeqCst) {
            self.wake_task();
        }
    }
}

impl Push {
    /// Calls `ask`, which wakes the task, and polls the task on this thread until it has to wait. A task that
    /// another thread polls is woken instead. The caller must hold no lock that the task takes.
    pub fn push(&self, ask: impl FnOnce()) {
        // A task that has never run cannot be woken yet.
        let has_run = self.0.task.lock().is_some();
        if !has_run {
            return ask();
        }
        match self.step(ask) {
            Ok(Poll::Pending) => (),
            Ok(Poll::Ready(())) => self.0.wake_task(),
            Err(ask) => ask(),
        }
    }

    /// Calls `ask` and polls the future, unless another thread polls it. A future that panics is dropped.
    fn step<Ask: FnOnce()>(&self, ask: Ask) -> Result<Poll<()>, Ask> {
        let shared = &self.0;
        // Declared before the lock, so dropped after it: the task that it wakes needs the lock.
        let _idle;
        let Some(mut slot) = shared.future.try_lock() else { return Err(ask) };
        _idle = Idle(shared);
        shared.busy.store(true, Ordering::SeqCst);
        ask();
        shared.again.store(false, Ordering::SeqCst);
        let Some(mut future) = slot.take() else { return Ok(Poll::Ready(())) };
        let waker = Waker::from(shared.clone());
        let step = future.as_mut().poll(&mut Context::from_waker(&waker));
        if step.is_pending() {
            *slot = Some(future);
        }
        Ok(step)
    }
}

/// Clears `busy`. Dropped after the poll, when the lock is free.
struct Idle<'a>(&'a Shared);

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::SeqCst);
        if self.0.again.swap(false, Ordering::SeqCst) {
            self.0.wake_task();
        }
    }
}

impl Shared {
    fn wake_task(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }
}

/// The task's own future.
struct Pushed(Push);

impl Future for Pushed {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let shared = &self.0.0;
        {
            let mut task = shared.task.lock();
            if !task.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *task = Some(cx.waker().clone());
            }
        }
        // Set before the lock is tried: the thread that holds it looks at `again` after it releases the lock.
        shared.again.store(true, Ordering::SeqCst);
        self.0.step(|| ()).unwrap_or(Poll::Pending)
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        // Dropped without the lock: what the future owns may push in its `drop`.
        let future = self.0.0.future.lock().take();
        drop(future);
    }
}

impl Env {
    /// Starts a task as [`Env::spawn`] does, which `push` advances.
    pub fn spawn_pushed(
        &self,
        push: &Push,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Task<()> {
        let future = Box::pin(future);
        *push.0.future.lock() = Some(match self.group() {
            None => future,
            // A caller from outside of a killed node must not advance the task either.
            Some(group) => Box::pin(group.guard(future)),
        });
        self.spawn(Pushed(push.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_push_does_what_the_task_would_do() {
        let (env, push) = (Env::real(), Push::default());
        let (wanted, done) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let task = env.spawn_pushed(&push, {
            let (wanted, done) = (wanted.clone(), done.clone());
            async move {
                for _ in 0..3 {
                    wanted.notified().await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        // The task has not run, so there is no waker yet.
        push.push(|| ());
        tokio::task::yield_now().await;
        push.push(|| wanted.notify_one());
        assert_eq!(done.load(Ordering::Relaxed), 1);
        // Without a push the runtime polls the task, also after a push.
        wanted.notify_one();
        tokio::task::yield_now().await;
        assert_eq!(done.load(Ordering::Relaxed), 2);
        push.push(|| wanted.notify_one());
        assert_eq!(done.load(Ordering::Relaxed), 3);
        assert_eq!(task.await, Some(()));
        push.push(|| ());
    }

    #[tokio::test]
    async fn a_task_that_is_dropped_lets_go_of_what_it_owns() {
        let (env, push, owned) = (Env::real(), Push::default(), Arc::new(()));
        let task = env.spawn_pushed(&push, {
            let owned = owned.clone();
            async move {
                std::future::pending::<()>().await;
                drop(owned);
            }
        });
        tokio::task::yield_now().await;
        push.push(|| ());
        assert_eq!(Arc::strong_count(&owned), 2);
        drop(task);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&owned), 1);
    }

    /// The runtime's only thread goes on while a step blocks on another thread, and requests made meanwhile
    /// are carried out.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "real threads, and a limit in real time")]
    fn a_step_that_blocks_keeps_no_thread_of_the_runtime() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let (env, push, wanted) = (Env::real(), Push::default(), Arc::new(Notify::new()));
        let (blocked, release) = std::sync::mpsc::channel::<()>();
        let done = Arc::new(Notify::new());
        let task = {
            let _entered = runtime.enter();
            env.spawn_pushed(&push, {
                let (wanted, done) = (wanted.clone(), done.clone());
                async move {
                    wanted.notified().await;
                    release.recv().unwrap();
                    wanted.notified().await;
                    done.notify_one();
                }
            })
        };
        while push.0.task.lock().is_none() {
            std::thread::yield_now();
        }
        let pushing = std::thread::spawn({
            let (push, wanted) = (push.clone(), wanted.clone());
            move || push.push(|| wanted.notify_one())
        });
        while !push.0.busy.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        push.push(|| wanted.notify_one());
        // As a caller does that asked just before the step began.
        push.0.wake_task();
        let limit = std::time::Duration::from_secs(20);
        let (sender, others) = std::sync::mpsc::channel();
        // Yields once: the first poll may come before that of the woken task.
        runtime.spawn(async move {
            tokio::task::yield_now().await;
            sender.send(()).unwrap();
        });
        assert!(others.recv_timeout(limit).is_ok(), "the runtime's thread waits for the step");
        blocked.send(()).unwrap();
        pushing.join().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(limit, done.notified()).await.unwrap();
        });
        drop(task);
    }
}
