//! The user that a call is made for.
//!
//! The handles of one client for several users ([`Filesystem::for_user`](thalweg_fs::Filesystem::for_user)) share
//! everything. A call through one of them asks the server for that handle's user, and notes its changes as that user's: the
//! user belongs to the task for the time of the call.

use std::sync::Arc;

use thalweg_fs::Credentials;
use thalweg_net::keys::Squash;

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

/// The same for a call that does not wait.
pub(super) fn act_now<T>(user: &User, call: impl FnOnce() -> T) -> T {
    match user {
        Some(user) => USER.sync_scope(user.clone(), call),
        None => call(),
    }
}

/// The user of the call that runs.
pub(super) fn current() -> User {
    USER.try_with(Arc::clone).ok()
}

/// The user that the call which runs counts for at the server; `None` when it does not check users.
pub(super) fn seen_as(squash: Squash) -> User {
    if squash == Squash::None {
        return None;
    }
    acting(squash, current().as_deref()).map(Arc::new)
}
