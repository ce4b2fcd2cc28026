//! Invalidations: changes that a caller's caches do not know of.

use std::ops::Range;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::attributes::Ino;

/// A change that came through another handle, for callers that cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Attributes of an inode, and perhaps bytes.
    Inode {
        /// The inode.
        ino: Ino,
        /// The bytes that changed; up to [`u64::MAX`] for the rest of the file.
        content: Option<Range<u64>>,
    },
    /// The inode of a name in a directory.
    Name {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Bytes,
    },
    /// The inode of a name was removed with that name, its last one: a cache keeps nothing of it.
    Removed {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Bytes,
        /// The inode.
        ino: Ino,
    },
    /// A file has grown, and a cache that has its size is to have this one. Its pages have not changed.
    Grown {
        /// The file.
        ino: Ino,
        /// Its size in bytes.
        size: u64,
    },
    /// Any number of inodes and names. Only filesystems that
    /// [announce it](crate::Filesystem::may_change_everything) send it.
    Everything,
}

impl Change {
    /// All bytes of an inode changed.
    pub fn content(ino: Ino) -> Change {
        Change::Inode { ino, content: Some(0..u64::MAX) }
    }
}

/// An invalidation that was sent. To drop it is not to wait.
///
/// A cache may wait for dirty pages to be written before it drops them, and for requests under way. So never
/// wait in the handler of a request, nor in a task that such a write needs.
#[derive(Debug)]
pub struct Invalidation(Option<oneshot::Receiver<()>>);

/// Completes an [`Invalidation`] when it is dropped.
#[derive(Debug)]
pub struct Completion(#[expect(dead_code, reason = "its drop completes")] oneshot::Sender<()>);

impl Invalidation {
    /// One that is complete: nothing was cached.
    pub fn complete() -> Invalidation {
        Invalidation(None)
    }

    /// One that is complete when the other half is dropped.
    pub fn pending() -> (Invalidation, Completion) {
        let (sender, receiver) = oneshot::channel();
        (Invalidation(Some(receiver)), Completion(sender))
    }

    /// Returns when the caches no longer hold what changed.
    pub async fn wait(self) {
        if let Some(receiver) = self.0 {
            // The other half is dropped, never sent through.
            let _ = receiver.await;
        }
    }
}

/// Invalidates a caller's caches.
pub type Watcher = Box<dyn Fn(Change) -> Invalidation + Send + Sync>;
