//! Tasks that others push on.
//!
//! A task that serves others sleeps until one of them asks for something, and is then woken on a thread
//! of the runtime: for a request that is short, and for one caller who is alone, that wake-up costs more
//! than the work. Who asks can take the task's next step itself instead.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::{Env, Task};

/// Pushes a task on that was started with [`Env::spawn_pushed`].
#[derive(Clone, Default)]
pub struct Push(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// Nothing while there is no task, and while it is dropped.
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Wakes the task.
    waker: Option<Waker>,
}

impl Push {
    /// Has the task go as far as it gets without waiting, here and now, unless it is running already.
    /// The caller must hold no lock that the task takes.
    pub fn push(&self) {
        let Some(mut shared) = self.0.try_lock() else { return };
        let Some(waker) = shared.waker.clone() else { return };
        if shared.step(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
    }
}

impl Shared {
    /// What the future asks to be woken by wakes the task, whoever polls it. A future that panics is
    /// dropped.
    fn step(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut future) = self.future.take() else { return Poll::Ready(()) };
        let step = future.as_mut().poll(cx);
        if step.is_pending() {
            self.future = Some(future);
        }
        step
    }
}

/// The task's own future.
struct Pushed(Push);

impl Future for Pushed {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.0.0.lock();
        if !shared.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            shared.waker = Some(cx.waker().clone());
        }
        shared.step(cx)
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        // Dropped without the lock: what it owns may push when it goes.
        let future = self.0.0.lock().future.take();
        drop(future);
    }
}

impl Env {
    /// Starts a task as [`Env::spawn`] does, which `push` pushes on.
    pub fn spawn_pushed(
        &self,
        push: &Push,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Task<()> {
        push.0.lock().future = Some(Box::pin(future));
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
        // Nobody is to be woken yet.
        push.push();
        tokio::task::yield_now().await;
        wanted.notify_one();
        push.push();
        assert_eq!(done.load(Ordering::Relaxed), 1);
        // Without a push it goes on by itself, also after one.
        wanted.notify_one();
        tokio::task::yield_now().await;
        assert_eq!(done.load(Ordering::Relaxed), 2);
        wanted.notify_one();
        push.push();
        assert_eq!(done.load(Ordering::Relaxed), 3);
        assert_eq!(task.await, Some(()));
        push.push();
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
        push.push();
        assert_eq!(Arc::strong_count(&owned), 2);
        drop(task);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&owned), 1);
    }
}
