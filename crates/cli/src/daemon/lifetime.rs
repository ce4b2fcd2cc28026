//! When a session ends: at a signal, or, if it serves block devices and mounts only, with the last of them.

use std::sync::Arc;
use thalweg_env::watch;

use parking_lot::Mutex;

/// When a session ends.
#[derive(Debug)]
pub(crate) struct Lifetime {
    ends_when_idle: bool,
    users: Mutex<Users>,
    stop: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Users {
    /// Block devices and mounts.
    uses: usize,
    /// Unmounts in progress, whose clients are going to ask for the result.
    holds: usize,
}

/// A block device or a mount. Dropping the last one ends a session that ends when it is idle.
#[derive(Debug)]
pub(crate) struct Use(Arc<Lifetime>);

impl Lifetime {
    /// The lifetime of a new session. With `ends_when_idle` it ends with its last use.
    pub(crate) fn new(ends_when_idle: bool) -> Lifetime {
        Lifetime { ends_when_idle, users: Mutex::default(), stop: watch::Sender::new(false) }
    }

    /// Sending `true` ends the session.
    pub(crate) fn stop(&self) -> &watch::Sender<bool> {
        &self.stop
    }

    /// Whether the session has been asked to end.
    pub(crate) fn is_ending(&self) -> bool {
        *self.stop.borrow()
    }

    /// Notes a use.
    pub(crate) fn begin_use(self: &Arc<Self>) -> Use {
        self.users.lock().uses += 1;
        Use(self.clone())
    }

    /// As [`Lifetime::begin_use`]; `None` if the session has been asked to end.
    pub(crate) fn try_use(self: &Arc<Self>) -> Option<Use> {
        let mut users = self.users.lock();
        (!self.is_ending()).then(|| {
            users.uses += 1;
            Use(self.clone())
        })
    }

    /// Keeps an idle session from ending until [`Lifetime::release`].
    pub(crate) fn hold(&self) {
        self.users.lock().holds += 1;
    }

    /// Ends a hold.
    pub(crate) fn release(&self) {
        let mut users = self.users.lock();
        users.holds -= 1;
        self.end_if_idle(&users);
    }

    /// Whether the session ends because its last use has ended: now, or with the last hold.
    pub(crate) fn ends_idle(&self) -> bool {
        self.ends_when_idle && self.users.lock().uses == 0
    }

    fn end_if_idle(&self, users: &Users) {
        if self.ends_when_idle && users.uses == 0 && users.holds == 0 {
            self.stop.send_replace(true);
        }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut users = self.0.users.lock();
        users.uses -= 1;
        self.0.end_if_idle(&users);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_use_ends_an_attached_session() {
        let lifetime = Arc::new(Lifetime::new(true));
        assert!(!lifetime.is_ending(), "a new session has no use yet");
        let (first, second) = (lifetime.begin_use(), lifetime.try_use());
        drop(first);
        assert!(!lifetime.is_ending() && !lifetime.ends_idle());
        drop(second);
        assert!(lifetime.is_ending() && lifetime.ends_idle());
        assert!(lifetime.try_use().is_none(), "an ending session takes no further mount");
    }

    #[test]
    fn an_unmount_in_progress_holds_an_idle_session() {
        let lifetime = Arc::new(Lifetime::new(true));
        let mount = lifetime.begin_use();
        lifetime.hold();
        drop(mount);
        assert!(!lifetime.is_ending() && lifetime.ends_idle());
        lifetime.release();
        assert!(lifetime.is_ending());
    }

    #[test]
    fn a_server_outlives_its_mounts() {
        let lifetime = Arc::new(Lifetime::new(false));
        drop(lifetime.begin_use());
        assert!(!lifetime.is_ending() && !lifetime.ends_idle());
    }
}
