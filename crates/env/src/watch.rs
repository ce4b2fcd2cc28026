//! A value that tasks watch for changes.
//!
//! It is used like `tokio::sync::watch`, which wakes tasks in a random order. Here they wake in the order in which they
//! began to wait, so that a run stays a function of its seed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use tokio::sync::Notify;

/// All senders of the value are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the watched value does not change any more")
    }
}

impl std::error::Error for Closed {}

/// The value, as it is while this exists: senders wait for its end.
pub type Ref<'a, T> = MappedRwLockReadGuard<'a, T>;

struct Value<T> {
    content: T,
    /// How often it has been sent.
    version: u64,
}

struct Shared<T> {
    value: RwLock<Value<T>>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    /// The value was sent, or the last sender is gone.
    changed: Notify,
    /// The last receiver is gone.
    unwatched: Notify,
}

impl<T> Shared<T> {
    fn borrow(&self) -> Ref<'_, T> {
        RwLockReadGuard::map(self.value.read(), |value| &value.content)
    }

    fn receiver(self: &Arc<Self>, seen: u64) -> Receiver<T> {
        self.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver { shared: self.clone(), seen }
    }
}

/// Changes the value. Clones change the same one.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// Watches the value. A clone has seen what the original has seen.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The version of the value that it has seen.
    seen: u64,
}

/// A value with a sender and a receiver, which has seen it.
pub fn channel<T>(content: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(content);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    /// A value without a receiver.
    pub fn new(content: T) -> Sender<T> {
        let shared = Shared {
            value: RwLock::new(Value { content, version: 0 }),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
            changed: Notify::new(),
            unwatched: Notify::new(),
        };
        Sender { shared: Arc::new(shared) }
    }

    /// A new receiver, which has seen the value of now.
    pub fn subscribe(&self) -> Receiver<T> {
        let seen = self.shared.value.read().version;
        self.shared.receiver(seen)
    }

    /// The value of now.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// Sets the value and wakes the receivers, equal or not. Returns the value before.
    pub fn send_replace(&self, mut content: T) -> T {
        self.send_modify(|value| std::mem::swap(value, &mut content));
        content
    }

    /// Changes the value in place and wakes the receivers.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Wakes the receivers if `change` returns true, which says that it has changed the value. Returns the same.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let is_changed = {
            let mut value = self.shared.value.write();
            let is_changed = change(&mut value.content);
            value.version += u64::from(is_changed);
            is_changed
        };
        if is_changed {
            self.shared.changed.notify_waiters();
        }
        is_changed
    }

    /// Waits until there is no receiver.
    pub async fn closed(&self) {
        loop {
            let unwatched = self.shared.unwatched.notified();
            if self.shared.receivers.load(Ordering::Acquire) == 0 {
                return;
            }
            unwatched.await;
        }
    }
}

impl<T> Receiver<T> {
    /// The value of now, which does not count as seen.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.borrow()
    }

    /// The value of now, which counts as seen.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.value.read();
        self.seen = value.version;
        RwLockReadGuard::map(value, |value| &value.content)
    }

    /// Whether the value was sent since this receiver saw it.
    ///
    /// # Errors
    /// All senders are gone.
    pub fn has_changed(&self) -> Result<bool, Closed> {
        match self.shared.senders.load(Ordering::Acquire) {
            0 => Err(Closed),
            _ => Ok(self.shared.value.read().version != self.seen),
        }
    }

    /// Waits until the value is sent once more, if it was not since this receiver saw it. It counts as seen then.
    ///
    /// # Errors
    /// All senders are gone, and the receiver has seen the last value.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let changed = self.shared.changed.notified();
            // Whether a sender is left is asked first: a last value may come before the end.
            let senders = self.shared.senders.load(Ordering::Acquire);
            let version = self.shared.value.read().version;
            if std::mem::replace(&mut self.seen, version) != version {
                return Ok(());
            }
            if senders == 0 {
                return Err(Closed);
            }
            changed.await;
        }
    }

    /// Waits until the value is as `wanted`, which it may be already. It counts as seen then.
    ///
    /// # Errors
    /// All senders are gone, and the last value is not as wanted.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<(), Closed> {
        loop {
            if wanted(&self.borrow_and_update()) {
                return Ok(());
            }
            self.changed().await?;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Sender { shared: self.shared.clone() }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.shared.receiver(self.seen)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.changed.notify_waiters();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.shared.receivers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.unwatched.notify_waiters();
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sender").field(&*self.borrow()).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receiver").field(&*self.borrow()).finish()
    }
}
