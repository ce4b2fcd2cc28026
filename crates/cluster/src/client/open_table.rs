//! The files that the caller has open, and which of them the server knows of.
//!
//! Files that are this client's alone it opens *quietly*, without a call. Before such a file is another client's too, the
//! server is told of it.

use thalweg_env::HashMap;
use thalweg_fs::{Caller, Handle, Ino, OpenFlags};

use super::user::User;

/// A file that the caller has open.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    pub(super) ino: Ino,
    pub(super) user: User,
    pub(super) caller: Caller,
    pub(super) flags: OpenFlags,
}

/// What the server knows of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    Quiet,
    /// A call that says so is under way.
    Asked,
    Told,
}

/// How often an inode is open.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    quiet: u32,
    asked: u32,
    told: u32,
}

#[derive(Debug, Default)]
pub(super) struct OpenTable {
    last: u64,
    files: HashMap<Handle, (Opening, Known)>,
    inodes: HashMap<Ino, Uses>,
}

impl OpenTable {
    /// A file is opened; its handle.
    pub(super) fn add(&mut self, opening: Opening, known: Known) -> Handle {
        self.last += 1;
        let handle = Handle(self.last);
        self.count(opening.ino, known, 1);
        let before = self.files.insert(handle, (opening, known));
        assert!(before.is_none(), "each open file has a handle of its own");
        handle
    }

    /// The server knows so much of it from now on.
    pub(super) fn set(&mut self, handle: Handle, known: Known) {
        let Some((opening, before)) = self.files.get_mut(&handle) else { return };
        let (ino, before) = (opening.ino, std::mem::replace(before, known));
        self.count(ino, known, 1);
        self.count(ino, before, -1);
    }

    /// A file is closed; what the server knew of it.
    pub(super) fn remove(&mut self, handle: Handle) -> Option<Known> {
        let (opening, known) = self.files.remove(&handle)?;
        self.count(opening.ino, known, -1);
        Some(known)
    }

    fn count(&mut self, ino: Ino, known: Known, by: i32) {
        let uses = self.inodes.entry(ino).or_default();
        let count = match known {
            Known::Quiet => &mut uses.quiet,
            Known::Asked => &mut uses.asked,
            Known::Told => &mut uses.told,
        };
        let counted = count.checked_add_signed(by);
        *count = counted.expect("a file is closed more often than it was opened");
        if (uses.quiet, uses.asked, uses.told) == (0, 0, 0) {
            self.inodes.remove(&ino);
        }
    }

    pub(super) fn known(&self, handle: Handle) -> Option<Known> {
        self.files.get(&handle).map(|(_, known)| *known)
    }

    pub(super) fn is_open(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    /// Whether an inode is open, and the server does not know of some of that.
    pub(super) fn is_quiet(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|uses| uses.quiet > 0)
    }

    /// Whether an inode is open, and the server knows of some of that, or is about to.
    pub(super) fn is_told(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|uses| uses.asked > 0 || uses.told > 0)
    }

    /// Whether the server knows of all opens of an inode.
    pub(super) fn is_settled(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_none_or(|uses| uses.quiet == 0 && uses.asked == 0)
    }

    pub(super) fn quiet(&self) -> Vec<Ino> {
        let quiet = self.inodes.iter().filter(|(_, uses)| uses.quiet > 0);
        let mut inodes: Vec<Ino> = quiet.map(|(ino, _)| *ino).collect();
        inodes.sort_unstable();
        inodes
    }

    /// The server is about to be told of the quiet opens of an inode: these.
    pub(super) fn begin_telling(&mut self, ino: Ino) -> Vec<(Handle, Opening)> {
        let asked = self.find(|opening, known| opening.ino == ino && known == Known::Quiet);
        asked.iter().for_each(|(handle, _)| self.set(*handle, Known::Asked));
        asked
    }

    /// Some of them, in the order in which they were opened.
    pub(super) fn find(&self, is_some: impl Fn(&Opening, Known) -> bool) -> Vec<(Handle, Opening)> {
        let found = self.files.iter().filter(|(_, (opening, known))| is_some(opening, *known));
        let mut found: Vec<_> = found.map(|(handle, (it, _))| (*handle, it.clone())).collect();
        found.sort_unstable_by_key(|(handle, _)| *handle);
        found
    }

    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.inodes.clear();
    }
}
