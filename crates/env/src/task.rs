//! Tasks that are aborted when dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

/// A running task; aborted when dropped. Awaiting it gives its result, `None` when it panicked or
/// was killed with its [`Node`](crate::Node).
#[derive(Debug)]
pub struct Task<T> {
    handle: Option<JoinHandle<T>>,
}

impl<T> Task<T> {
    pub(crate) fn new(handle: JoinHandle<T>) -> Task<T> {
        Task { handle: Some(handle) }
    }

    /// Lets the task run to its end without a handle.
    pub fn detach(mut self) {
        self.handle = None;
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(|handle| handle.is_finished())
    }
}

impl<T> Future for Task<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match &mut self.handle {
            Some(handle) => Pin::new(handle).poll(cx).map(Result::ok),
            None => Poll::Ready(None),
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Env;

    #[tokio::test]
    async fn dropping_a_task_aborts_it() {
        let env = Env::real();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let task = env.spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        drop(task);
        assert!(receiver.await.is_err());
    }
}
