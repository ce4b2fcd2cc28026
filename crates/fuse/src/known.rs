//! The inodes that the kernel knows.

use parking_lot::Mutex;
use thalweg_env::HashMap;
use thalweg_fs::{Filesystem, Ino};

/// The inodes that the kernel knows, until it forgets them.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    inodes: HashMap<Ino, Inode>,
    /// Counts changes that may have given an inode privileges.
    grants: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Inode {
    /// How often the kernel was told of it.
    lookups: u64,
    /// It has neither set-user-id nor set-group-id, nor capabilities.
    plain: bool,
    /// The kernel may have pages of it in its cache.
    cached: bool,
}

impl Known {
    /// The kernel is about to be told of an inode.
    pub(crate) fn remember(&self, filesystem: &dyn Filesystem, ino: Ino) {
        filesystem.remember(ino);
        self.0.lock().inodes.entry(ino).or_default().lookups += 1;
    }

    /// The kernel takes back `count` of the times that it was told of an inode.
    pub(crate) fn forget(&self, filesystem: &dyn Filesystem, ino: Ino, count: u64) {
        let mut state = self.0.lock();
        if let Some(inode) = state.inodes.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(count);
            if inode.lookups == 0 {
                state.inodes.remove(&ino);
            }
        }
        drop(state);
        filesystem.forget(ino, count);
    }

    /// The kernel has dropped every inode at the end of the mount, without a message for each.
    pub(crate) fn forget_all(&self, filesystem: &dyn Filesystem) {
        let inodes = std::mem::take(&mut self.0.lock().inodes);
        for (ino, inode) in inodes.into_iter().filter(|(_, inode)| inode.lookups > 0) {
            filesystem.forget(ino, inode.lookups);
        }
    }

    /// Whether the inode is known to have no privileges that a write clears.
    pub(crate) fn is_plain(&self, ino: Ino) -> bool {
        self.0.lock().inodes.get(&ino).is_some_and(|inode| inode.plain)
    }

    /// The kernel may cache pages of an inode from now on.
    pub(crate) fn note_cached(&self, ino: Ino) {
        if let Some(inode) = self.0.lock().inodes.get_mut(&ino) {
            inode.cached = true;
        }
    }

    /// Whether the kernel may have pages of an inode in its cache. Of a file that was only opened for
    /// direct access it has none, unless that was mapped into memory.
    pub(crate) fn is_cached(&self, ino: Ino) -> bool {
        self.0.lock().inodes.get(&ino).is_some_and(|inode| inode.cached)
    }

    /// The count to pass to [`Known::note_plain`], taken before the inode is read.
    pub(crate) fn grants(&self) -> u64 {
        self.0.lock().grants
    }

    /// An inode was found without privileges, unless some were given since.
    pub(crate) fn note_plain(&self, ino: Ino, grants: u64) {
        let mut state = self.0.lock();
        if state.grants == grants
            && let Some(inode) = state.inodes.get_mut(&ino)
        {
            inode.plain = true;
        }
    }

    /// An inode may have privileges from now on.
    pub(crate) fn granted(&self, ino: Ino) {
        let mut state = self.0.lock();
        state.grants += 1;
        if let Some(inode) = state.inodes.get_mut(&ino) {
            inode.plain = false;
        }
    }
}
