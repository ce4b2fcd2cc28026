//! A naive filesystem in memory: the reference for files.
//!
//! Everything is a map behind one mutex, and every call a few lines that follow the words of
//! [`Filesystem`](thalweg_fs::Filesystem). Nothing is durable, and every call is atomic.

mod attributes;
mod calls;
mod inode;
mod names;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use thalweg_env::{Env, Time};
use thalweg_fs::locks::LockTable;
use thalweg_fs::{
    Answer, Attributes, Change, FsError, Ino, Invalidation, NewNode, Node, Timestamp, Validity,
    Watcher,
};

use inode::{Body, Inode};

/// Holes are whole blocks of this size.
const BLOCK: u64 = 4096;
/// The capacity that [`Filesystem::statistics`](thalweg_fs::Filesystem::statistics) reports.
const BLOCKS: u64 = 1 << 20;
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// A handle to files in memory. [`NaiveFiles::share`] gives another one to the same files.
pub struct NaiveFiles {
    id: u64,
    shared: Arc<Shared>,
}

impl fmt::Debug for NaiveFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NaiveFiles").field("id", &self.id).finish_non_exhaustive()
    }
}

struct Shared {
    env: Env,
    /// The wall clock, in seconds, when the other clock showed this.
    epoch: (u64, Time),
    files: Mutex<Files>,
    read_only: AtomicBool,
    handles: AtomicU64,
    watchers: RwLock<BTreeMap<u64, Watcher>>,
    /// Locks of all handles.
    locks: LockTable,
    opens: AtomicU64,
    /// How long answers may be cached.
    valid: Mutex<Validity>,
}

struct Files {
    inodes: BTreeMap<Ino, Inode>,
    next: u64,
    /// The changes of the call that has the lock.
    changes: Vec<Change>,
}

impl NaiveFiles {
    /// An empty root directory of root's, mode 0755.
    pub fn new(env: &Env) -> NaiveFiles {
        let shared = Shared {
            env: env.clone(),
            epoch: (env.wall_clock(), env.now()),
            files: Mutex::new(Files { inodes: BTreeMap::new(), next: 2, changes: Vec::new() }),
            read_only: AtomicBool::new(false),
            handles: AtomicU64::new(1),
            watchers: RwLock::default(),
            locks: LockTable::default(),
            opens: AtomicU64::new(1),
            valid: Mutex::new(Validity::UNTIL_CHANGED),
        };
        let root = NewNode { node: Node::Directory, mode: 0o755, umask: 0, uid: 0, gid: 0 };
        let mut inode = Inode::new(Ino::ROOT, &root, shared.now());
        inode.body = Body::directory(Ino::ROOT);
        shared.files.lock().inodes.insert(Ino::ROOT, inode);
        NaiveFiles { id: 0, shared: Arc::new(shared) }
    }

    /// Another handle to the same files; each handle's watcher is told of changes through the others.
    pub fn share(&self) -> NaiveFiles {
        let id = self.shared.handles.fetch_add(1, Ordering::SeqCst);
        NaiveFiles { id, shared: self.shared.clone() }
    }

    /// Sets how long answers may be cached from now on.
    pub fn set_validity(&self, valid: Validity) {
        *self.shared.valid.lock() = valid;
    }

    fn answer(&self, inode: &Inode) -> Answer {
        self.answer_of(inode.shown())
    }

    fn answer_of(&self, attributes: Attributes) -> Answer {
        Answer { attributes, valid: *self.shared.valid.lock() }
    }

    /// Tells every watcher that everything has changed, and returns when none caches anything older. For a test:
    /// the files are the same.
    pub async fn change_everything(&self) {
        let told: Vec<Invalidation> = self
            .shared
            .watchers
            .read()
            .values()
            .map(|watcher| watcher(Change::Everything))
            .collect();
        for invalidation in told {
            invalidation.wait().await;
        }
    }

    /// Refuses changes from now on, or accepts them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.shared.read_only.store(read_only, Ordering::SeqCst);
    }

    /// How many inodes live.
    pub fn inodes(&self) -> usize {
        self.shared.files.lock().inodes.len()
    }

    /// Makes one change, or none when it fails, and tells the watchers of the other handles.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Files, Timestamp) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        if self.shared.read_only.load(Ordering::SeqCst) {
            return Err(FsError::ReadOnly);
        }
        let now = self.shared.now();
        let mut files = self.shared.files.lock();
        let result = change(&mut files, now);
        let changes = std::mem::take(&mut files.changes);
        drop(files);
        for (_, watcher) in self.shared.watchers.read().iter().filter(|(id, _)| **id != self.id) {
            changes.iter().for_each(|change| drop(watcher(change.clone())));
        }
        result
    }
}

impl Shared {
    fn now(&self) -> Timestamp {
        let (seconds, start) = self.epoch;
        let since = self.env.now().since(start);
        let seconds = i64::try_from(seconds + since.as_secs()).unwrap_or(i64::MAX);
        Timestamp { seconds, nanos: since.subsec_nanos() }
    }
}
