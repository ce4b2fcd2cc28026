//! The inodes that the kernel knows.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use thalweg_env::{HashMap, HashSet};
use thalweg_fs::{Filesystem, Ino};

use super::page_reads::{PageRead, PageReads};
use super::sizes::Growing;

/// Names in the list, at most.
const MAX_NAMES: usize = 1 << 20;

/// The inodes that the kernel knows, until it forgets them.
#[derive(Debug, Default)]
pub(crate) struct Known {
    state: Mutex<State>,
    /// The names that the kernel may cache, where everything may change at once.
    names: Option<Mutex<Names>>,
    /// The files that writes make longer.
    growing: Arc<Mutex<Growing>>,
}

#[derive(Debug, Default)]
struct Names {
    cached: HashSet<(Ino, Bytes)>,
    /// How often everything has changed.
    epoch: u64,
}

/// What a name is to the list of cached names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    /// The kernel may cache it.
    Cached,
    /// It may not: everything has changed since the answer began.
    Outdated,
    /// It may, and the list is full.
    Full,
}

#[derive(Debug, Default)]
struct State {
    inodes: HashMap<Ino, Inode>,
    /// Counts changes that may have given an inode privileges.
    grants: u64,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    /// How often the kernel was told of it.
    lookups: u64,
    /// It has neither set-user-id nor set-group-id, nor capabilities.
    plain: bool,
    /// The kernel may have pages of it in its cache.
    cached: bool,
    /// The size that it was told last.
    size: u64,
    /// The requests for pages of it, once there was one.
    page_reads: Option<Arc<PageReads>>,
}

impl Known {
    /// With a list of names, if the filesystem may change everything at once.
    pub(crate) fn new(filesystem: &dyn Filesystem) -> Known {
        let names = filesystem.may_change_everything().then(Mutex::default);
        Known { names, ..Known::default() }
    }

    /// The time of an answer to come, for [`Known::note_name`].
    pub(crate) fn epoch(&self) -> u64 {
        self.names.as_ref().map_or(0, |names| names.lock().epoch)
    }

    /// Notes that the kernel is about to be told of a name, by an answer that began at `epoch`.
    pub(crate) fn note_name(&self, parent: Ino, name: &Bytes, epoch: u64) -> Noted {
        let Some(names) = &self.names else { return Noted::Cached };
        let mut names = names.lock();
        if names.epoch != epoch {
            return Noted::Outdated;
        }
        names.cached.insert((parent, name.clone()));
        if names.cached.len() < MAX_NAMES { Noted::Cached } else { Noted::Full }
    }

    /// Everything has changed: answers that began before are outdated.
    pub(crate) fn begin_epoch(&self) {
        if let Some(names) = &self.names {
            names.lock().epoch += 1;
        }
        let mut state = self.state.lock();
        state.grants += 1;
        state.inodes.values_mut().for_each(|inode| inode.plain = false);
    }

    /// Empties the list of names.
    pub(crate) fn take_names(&self) -> HashSet<(Ino, Bytes)> {
        self.names
            .as_ref()
            .map(|names| std::mem::take(&mut names.lock().cached))
            .unwrap_or_default()
    }

    /// The inodes.
    pub(crate) fn inodes(&self) -> Vec<Ino> {
        self.state.lock().inodes.keys().copied().collect()
    }

    /// The kernel is about to be told of an inode.
    pub(crate) fn tell(&self, filesystem: &dyn Filesystem, ino: Ino) {
        filesystem.reference(ino);
        self.state.lock().inodes.entry(ino).or_default().lookups += 1;
    }

    /// The kernel takes back `count` of the times that it was told of an inode.
    pub(crate) fn forget(&self, filesystem: &dyn Filesystem, ino: Ino, count: u64) {
        let mut state = self.state.lock();
        if let Some(inode) = state.inodes.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(count);
            if inode.lookups == 0 {
                state.inodes.remove(&ino);
                self.growing.lock().forget(ino);
            }
        }
        drop(state);
        filesystem.unreference(ino, count);
    }

    /// The kernel has dropped every inode at the end of the mount, without a message for each.
    pub(crate) fn forget_all(&self, filesystem: &dyn Filesystem) {
        let inodes = std::mem::take(&mut self.state.lock().inodes);
        for (ino, inode) in inodes.into_iter().filter(|(_, inode)| inode.lookups > 0) {
            filesystem.unreference(ino, inode.lookups);
        }
    }

    /// The files that writes make longer.
    pub(super) fn growing(&self) -> MutexGuard<'_, Growing> {
        self.growing.lock()
    }

    /// The same, to be locked later.
    pub(super) fn growing_files(&self) -> &Arc<Mutex<Growing>> {
        &self.growing
    }

    /// The kernel is about to be told the size of a file.
    pub(super) fn note_size(&self, ino: Ino, size: u64) {
        if let Some(inode) = self.state.lock().inodes.get_mut(&ino) {
            inode.size = size;
        }
    }

    /// The size that it was told last.
    pub(super) fn size(&self, ino: Ino) -> Option<u64> {
        self.state.lock().inodes.get(&ino).map(|inode| inode.size)
    }

    /// Whether a write that ends there makes a file longer than the kernel was told.
    pub(super) fn is_longer(&self, ino: Ino, end: u64) -> bool {
        self.state.lock().inodes.get(&ino).is_none_or(|inode| inode.size < end)
    }

    /// Whether the inode is known to have no privileges that a write clears.
    pub(crate) fn is_plain(&self, ino: Ino) -> bool {
        self.state.lock().inodes.get(&ino).is_some_and(|inode| inode.plain)
    }

    /// The kernel may cache pages of an inode from now on.
    pub(crate) fn note_cached(&self, ino: Ino) {
        if let Some(inode) = self.state.lock().inodes.get_mut(&ino) {
            inode.cached = true;
        }
    }

    /// The kernel asks for pages of an inode, and may cache them from now on.
    pub(super) fn begin_page_read(&self, ino: Ino) -> PageRead {
        let mut state = self.state.lock();
        let reads = state.inodes.get_mut(&ino).map(|inode| {
            inode.cached = true;
            inode.page_reads.get_or_insert_default().clone()
        });
        drop(state);
        PageRead::begin(reads.unwrap_or_default())
    }

    /// Whether the kernel may have pages of an inode in its cache. Of a file that was only opened for
    /// direct access it has none, unless that was mapped into memory.
    pub(crate) fn is_cached(&self, ino: Ino) -> bool {
        self.state.lock().inodes.get(&ino).is_some_and(|inode| inode.cached)
    }

    /// The count to pass to [`Known::note_plain`], taken before the inode is read.
    pub(crate) fn grants(&self) -> u64 {
        self.state.lock().grants
    }

    /// An inode was found without privileges, unless some were given since.
    pub(crate) fn note_plain(&self, ino: Ino, grants: u64) {
        let mut state = self.state.lock();
        if state.grants == grants
            && let Some(inode) = state.inodes.get_mut(&ino)
        {
            inode.plain = true;
        }
    }

    /// An inode may have privileges from now on.
    pub(crate) fn granted(&self, ino: Ino) {
        let mut state = self.state.lock();
        state.grants += 1;
        if let Some(inode) = state.inodes.get_mut(&ino) {
            inode.plain = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_an_earlier_epoch_are_outdated() {
        let known = Known { names: Some(Mutex::default()), ..Known::default() };
        let name = |name: &'static str| Bytes::from_static(name.as_bytes());
        let epoch = known.epoch();
        assert_eq!(known.note_name(Ino::ROOT, &name("a"), epoch), Noted::Cached);
        known.begin_epoch();
        assert_eq!(known.note_name(Ino::ROOT, &name("b"), epoch), Noted::Outdated);
        assert_eq!(known.note_name(Ino::ROOT, &name("c"), known.epoch()), Noted::Cached);
        let mut names: Vec<_> = known.take_names().into_iter().map(|(_, name)| name).collect();
        names.sort();
        assert_eq!(names, [name("a"), name("c")]);
        assert!(known.take_names().is_empty());
        let without = Known::default();
        assert_eq!(without.note_name(Ino::ROOT, &name("a"), 7), Noted::Cached);
    }
}
