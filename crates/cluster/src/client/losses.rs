//! Changes that were lost: which program is told, and which files lack bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::{FsError, Ino};

use super::error::LinkError;

/// Inodes at most of which is remembered that changes were lost.
const MAX_FAILED: usize = 65536;

#[derive(Clone, Debug)]
struct Loss {
    error: FsError,
    /// A sync or a close has told that.
    is_told: bool,
    lacks_bytes: bool,
}

/// Changes that were lost. The lock is taken under that of a stripe, and takes no other one.
#[derive(Debug, Default)]
pub(super) struct Losses {
    inodes: Mutex<HashMap<Ino, Loss>>,
    changes: AtomicU64,
}

impl Losses {
    /// So many changes are, or may be, lost.
    pub(super) fn count(&self, changes: usize) {
        self.changes.fetch_add(changes as u64, Ordering::Relaxed);
    }

    pub(super) fn counted(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Changes of an inode were lost, for this reason, with `bytes` of it. Returns whether that is remembered, and was not before.
    pub(super) fn add(&self, ino: Ino, error: &FsError, bytes: bool) -> bool {
        let mut inodes = self.inodes.lock();
        let before = inodes.get(&ino);
        let is_new = before.is_none();
        let lacks_bytes = bytes || before.is_some_and(|it| it.lacks_bytes);
        if is_new && inodes.len() >= MAX_FAILED {
            return false;
        }
        inodes.insert(ino, Loss { error: error.clone(), is_told: false, lacks_bytes });
        is_new
    }

    /// So many changes of these may be lost: the next sync of each of them fails.
    pub(super) fn add_all(&self, changes: usize, inodes: Vec<Ino>) {
        self.count(changes);
        let error = LinkError::Lost.into();
        for ino in inodes {
            self.add(ino, &error, false);
        }
    }

    /// Why changes of an inode were lost, if no sync or close has told that.
    pub(super) fn untold(&self, ino: Ino) -> Option<FsError> {
        self.inodes.lock().get(&ino).filter(|it| !it.is_told).map(|it| it.error.clone())
    }

    /// The same; it is told now.
    pub(super) fn report(&self, ino: Ino) -> Option<FsError> {
        let mut inodes = self.inodes.lock();
        let loss = inodes.get_mut(&ino).filter(|it| !it.is_told)?;
        loss.is_told = true;
        Some(loss.error.clone())
    }

    /// Why a file does not have all of what was written to it.
    pub(super) fn of_bytes(&self, ino: Ino) -> Option<FsError> {
        self.inodes.lock().get(&ino).filter(|it| it.lacks_bytes).map(|it| it.error.clone())
    }

    /// Nothing is left of what was written to an inode.
    pub(super) fn forget(&self, ino: Ino) {
        self.inodes.lock().remove(&ino);
    }

    /// Why something was lost.
    pub(super) fn first(&self) -> Option<FsError> {
        self.inodes.lock().values().next().map(|it| it.error.clone())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inodes.lock().is_empty()
    }
}
