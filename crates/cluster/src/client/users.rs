//! The user that a call is made for.
//!
//! The handles of one client for several users ([`Filesystem::for_user`](thalweg_fs::Filesystem::for_user)) share
//! everything. A call through one of them asks the server for that handle's user, and notes its changes as that user's: the
//! user belongs to the task for the time of the call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_fs::access::{Actor, Rules};
use thalweg_fs::{Credentials, Filesystem, FsError, Ino};
use thalweg_net::keys::Squash;

use super::{Client, Shared};
use crate::squash::acting;

/// A user; `None` for calls that the client makes for itself, or that its caller makes without one.
pub(super) type User = Option<Arc<Credentials>>;

tokio::task_local! {
    static USER: Arc<Credentials>;
}

/// Makes a call for a user.
pub(super) async fn act<T>(user: &User, call: impl Future<Output = T>) -> T {
    match user {
        Some(user) => USER.scope(user.clone(), call).await,
        None => call.await,
    }
}

/// The user of the call that runs.
pub(super) fn current() -> User {
    USER.try_with(Arc::clone).ok()
}

/// The user that the call which runs counts for at the server; `None` when it does not check users.
pub(super) fn seen_as(squash: Squash) -> User {
    let acting = acting(squash, current().as_deref());
    acting.map(Arc::new)
}

impl Client {
    /// Whether all users of this client act as one at the server, so that a kernel, which knows them apart, cannot check what they
    /// may do. The caller is about to leave that to [`Filesystem::check_access`]: should a later session have other users, this
    /// client is refused.
    pub fn checks_for_kernel(&self) -> bool {
        let is_one = matches!(self.shared.session.lock().squash, Squash::All(_));
        self.shared.checks_for_kernel.store(is_one, Ordering::Relaxed);
        is_one
    }
}

impl Shared {
    /// Whether a session with these users may go on: a kernel that checks nothing relies on the checks here.
    pub(super) fn fits(&self, squash: Squash) -> bool {
        !self.checks_for_kernel.load(Ordering::Relaxed) || matches!(squash, Squash::All(_))
    }

    /// Fails unless the user of the call may use an inode in these ways.
    pub(super) async fn check_access(
        self: &Arc<Self>,
        files: &Client,
        ino: Ino,
        wanted: u16,
    ) -> Result<(), FsError> {
        let squash = self.session.lock().squash;
        let Some(user) = seen_as(squash) else { return Ok(()) };
        // Owner and mode are not estimates, also where size and times are.
        let known = {
            let cache = self.cache.lock();
            let is_valid = cache.lease_end > self.env.now();
            cache.nodes.get(&ino).and_then(|node| node.attributes).filter(|_| is_valid)
        };
        let it = match known {
            Some(known) => known,
            None => self.attributes(ino, false).await?.attributes,
        };
        let files: &dyn Filesystem = files;
        Rules { files, user: Actor::of(&user), lists: &self.lists }.check(&it, wanted).await
    }
}
