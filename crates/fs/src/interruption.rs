//! Calls whose callers do not wait for them any more.
//!
//! A caller may be killed while its call waits: for a server that is away, say. The caller gets its answer at once, and the call
//! goes on by itself. A filesystem that has not begun the call, and would have to wait further, fails it instead: its change
//! would surprise if it were made an hour later. A call that may have been carried out has to come to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_env::watch;

tokio::task_local! {
    static CALL: Interruption;
}

/// Whether the caller of a call still waits for it. Clones are of the same call.
#[derive(Clone, Debug, Default)]
pub struct Interruption(Arc<CallState>);

#[derive(Debug)]
struct CallState {
    given_up: watch::Sender<bool>,
    has_begun: AtomicBool,
}

impl Default for CallState {
    fn default() -> CallState {
        CallState { given_up: watch::Sender::new(false), has_begun: AtomicBool::new(false) }
    }
}

impl Interruption {
    /// The call that runs in this task, if its caller may give it up.
    pub fn current() -> Option<Interruption> {
        CALL.try_with(Interruption::clone).ok()
    }

    /// Makes a call, which finds this as [`Interruption::current`].
    pub async fn scope<T>(self, call: impl Future<Output = T>) -> T {
        CALL.scope(self, call).await
    }

    /// The caller does not wait any more.
    pub fn give_up(&self) {
        self.0.given_up.send_replace(true);
    }

    /// The call may change something from here on, so that it goes on to its end.
    pub fn begin(&self) {
        self.0.has_begun.store(true, Ordering::SeqCst);
    }

    /// Whether the call is not to be made any more: its caller does not wait, and it has not begun.
    pub fn is_given_up(&self) -> bool {
        *self.0.given_up.borrow() && !self.0.has_begun.load(Ordering::SeqCst)
    }

    /// Returns when the call is not to be made any more.
    pub async fn given_up(&self) {
        let mut given_up = self.0.given_up.subscribe();
        // This holds the sender, so the wait ends with `true`.
        let _ = given_up.wait_for(|it| *it).await;
        if self.0.has_begun.load(Ordering::SeqCst) {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn is_over(call: &Interruption) -> bool {
        pin!(call.given_up()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_call_that_has_begun_goes_on() {
        let (one, begun) = (Interruption::default(), Interruption::default());
        assert!(!one.is_given_up() && !is_over(&one));
        begun.begin();
        for call in [&one, &begun] {
            call.clone().give_up();
        }
        assert!(one.is_given_up() && is_over(&one));
        assert!(!begun.is_given_up() && !is_over(&begun));
        assert!(Interruption::current().is_none());
    }
}
