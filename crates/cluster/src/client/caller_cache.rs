//! The caller's cache: a kernel, which is told of what it may not use any more.

use std::sync::Arc;

use parking_lot::RwLock;
use thalweg_fs::{Change, Ino, Invalidation, Watcher};

use super::session::Session;

/// The caller's cache, if it asks to be told of changes.
pub(super) struct CallerCache {
    session: Arc<Session>,
    watcher: RwLock<Option<Watcher>>,
}

impl CallerCache {
    pub(super) fn new(session: Arc<Session>) -> CallerCache {
        CallerCache { session, watcher: RwLock::default() }
    }

    pub(super) fn set(&self, watcher: Watcher) {
        *self.watcher.write() = Some(watcher);
    }

    /// Tells of changes; the invalidations that have begun.
    pub(super) fn notify(&self, changes: impl IntoIterator<Item = Change>) -> Vec<Invalidation> {
        let watcher = self.watcher.read();
        let Some(watcher) = &*watcher else { return Vec::new() };
        changes.into_iter().map(watcher).collect()
    }

    /// What the caller caches of these is wrong. Nothing waits for its cache: what it may still have of these was to be used
    /// until the lease ended.
    pub(super) fn drop_inodes(&self, inodes: Vec<Ino>) {
        let changes = inodes.into_iter().map(|ino| Change::content(self.session.ours(ino)));
        drop(self.notify(changes));
    }
}
