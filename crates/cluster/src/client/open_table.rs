//! The files that the caller has open, and which of them the server knows of.
//!
//! Files and directories that are this client's alone it opens *quietly*, without a call, and locks such files here. Before one is
//! another client's too, the server is told of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
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

/// Where the locks on an inode that is open are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LockPlace {
    /// This client alone.
    Here,
    /// The server is being told of those that were taken here.
    Telling,
    Server,
}

/// A call about locks is under way while this is kept.
pub(super) type LockCall = Arc<()>;

/// How an inode is open.
#[derive(Debug)]
struct Uses {
    quiet: u32,
    asked: u32,
    told: u32,
    locks: LockPlace,
    lock_calls: LockCall,
}

impl Uses {
    /// Of an inode whose first open is about to be known like this. Before the server knows of an open it knows of no lock.
    fn new(known: Known) -> Uses {
        let locks = if known == Known::Quiet { LockPlace::Here } else { LockPlace::Server };
        Uses { quiet: 0, asked: 0, told: 0, locks, lock_calls: LockCall::default() }
    }

    fn is_settled(&self) -> bool {
        self.asked == 0 && !self.is_untold()
    }

    /// Whether there is something that the server does not know, and is not about to.
    fn is_untold(&self) -> bool {
        self.quiet > 0 || self.locks != LockPlace::Server
    }
}

#[derive(Debug, Default)]
pub(super) struct OpenTable {
    last: u64,
    files: HashMap<Handle, (Opening, Known)>,
    inodes: HashMap<Ino, Uses>,
    /// Those of a session that has ended, which may go on in the next one.
    suspended: BTreeMap<Handle, Opening>,
    /// Where their files are.
    paths: HashMap<Ino, Bytes>,
}

impl OpenTable {
    /// The session has ended. Files that may go on in the next one are kept, and no program uses a handle of the others.
    pub(super) fn suspend(&mut self, may_go_on: impl Fn(Ino) -> bool) {
        let files = std::mem::take(&mut self.files).into_iter();
        let files = files.map(|(handle, (opening, _))| (handle, opening));
        self.suspended = files.filter(|(_, opening)| may_go_on(opening.ino)).collect();
        self.inodes.clear();
        self.paths.clear();
    }

    /// The inodes that are suspended.
    pub(super) fn suspended(&self) -> Vec<Ino> {
        let mut inodes: Vec<Ino> = self.suspended.values().map(|opening| opening.ino).collect();
        inodes.sort_unstable();
        inodes.dedup();
        inodes
    }

    /// These are there, and no other client has used them.
    pub(super) fn found(&mut self, paths: Vec<(Ino, Bytes)>) {
        self.paths.extend(paths);
    }

    /// The next one that may go on, with the path of its file. It stays suspended until [`OpenTable::go_on`].
    pub(super) fn next_suspended(&mut self) -> Option<(Handle, Opening, Bytes)> {
        let OpenTable { suspended, paths, .. } = self;
        suspended.retain(|_, opening| paths.contains_key(&opening.ino));
        let (handle, opening) = suspended.first_key_value()?;
        Some((*handle, opening.clone(), paths[&opening.ino].clone()))
    }

    /// The server of the next session has this file open, or has not; whether it is open here.
    pub(super) fn go_on(&mut self, handle: Handle, is_open: bool) -> bool {
        let Some(opening) = self.suspended.remove(&handle) else { return false };
        if is_open {
            self.count(opening.ino, Known::Told, 1);
            self.files.insert(handle, (opening, Known::Told));
        }
        is_open
    }

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
        self.suspended.remove(&handle);
        let (opening, known) = self.files.remove(&handle)?;
        self.count(opening.ino, known, -1);
        Some(known)
    }

    fn count(&mut self, ino: Ino, known: Known, by: i32) {
        let uses = self.inodes.entry(ino).or_insert_with(|| Uses::new(known));
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

    /// Whether the server knows of all opens of an inode, and all its locks are taken there.
    pub(super) fn is_settled(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_none_or(Uses::is_settled)
    }

    /// Whether the server has to be told of opens of an inode, or of locks on it.
    pub(super) fn is_untold(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(Uses::is_untold)
    }

    /// Those inodes.
    pub(super) fn untold(&self) -> Vec<Ino> {
        let found = self.inodes.iter().filter(|(_, uses)| uses.is_untold());
        let mut inodes: Vec<Ino> = found.map(|(ino, _)| *ino).collect();
        inodes.sort_unstable();
        inodes
    }

    /// The server is about to be told of the quiet opens of an inode, these, and of its locks. From here on no lock is taken here.
    pub(super) fn begin_telling(&mut self, ino: Ino) -> Vec<(Handle, Opening)> {
        if let Some(uses) = self.inodes.get_mut(&ino).filter(|uses| uses.is_untold()) {
            uses.locks = LockPlace::Telling;
        }
        let asked = self.find(|opening, known| opening.ino == ino && known == Known::Quiet);
        asked.iter().for_each(|(handle, _)| self.set(*handle, Known::Asked));
        asked
    }

    /// The server knows of all locks on an inode.
    pub(super) fn end_telling(&mut self, ino: Ino) {
        if let Some(uses) = self.inodes.get_mut(&ino) {
            uses.locks = LockPlace::Server;
        }
    }

    /// Whether the server may know of locks on an inode, or is about to.
    pub(super) fn has_locks_at_server(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_none_or(|uses| uses.locks != LockPlace::Here)
    }

    /// A call about the locks of an inode begins.
    pub(super) fn begin_lock_call(&self, ino: Ino) -> LockCall {
        self.inodes.get(&ino).map(|uses| uses.lock_calls.clone()).unwrap_or_default()
    }

    /// Whether locks on an inode, which is this client's alone, are taken here from now on: those at the server are, while it
    /// has none. Then no lock is held, and no call about one is under way.
    pub(super) fn locks_here(&mut self, ino: Ino, none_is_held: impl FnOnce() -> bool) -> bool {
        let Some(uses) = self.inodes.get_mut(&ino) else { return false };
        match uses.locks {
            LockPlace::Here => true,
            LockPlace::Telling => false,
            LockPlace::Server => {
                let is_free =
                    uses.asked == 0 && Arc::strong_count(&uses.lock_calls) == 1 && none_is_held();
                if is_free {
                    uses.locks = LockPlace::Here;
                }
                is_free
            }
        }
    }

    /// Some of them, in the order in which they were opened.
    pub(super) fn find(&self, is_some: impl Fn(&Opening, Known) -> bool) -> Vec<(Handle, Opening)> {
        let found = self.files.iter().filter(|(_, (opening, known))| is_some(opening, *known));
        let mut found: Vec<_> = found.map(|(handle, (it, _))| (*handle, it.clone())).collect();
        found.sort_unstable_by_key(|(handle, _)| *handle);
        found
    }
}
