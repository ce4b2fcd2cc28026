//! Contents of files that are kept elsewhere, and which calls change some now.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use thalweg_env::{HashMap, HashSet, Time};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};

use super::redirects::Redirects;
use crate::attributes::Ino;
use crate::contents::Contents;

/// Gates that are kept before unused ones are removed.
const GATES: usize = 1024;

/// Contents that are kept elsewhere, and what is under way.
#[derive(Debug)]
pub(super) struct ExternalContents {
    pub(super) contents: Arc<dyn Contents>,
    gates: Mutex<Gates>,
    /// Files whose write bound may not be durable yet.
    pub(super) raised: Mutex<HashSet<u64>>,
    /// Bytes that are not in their place, once an opening has found them.
    redirects: OnceLock<Arc<Redirects>>,
    /// Clients may reach the contents themselves, so that all bytes are to be in their place.
    pub(super) is_direct: AtomicBool,
    /// One at a time works off what was left.
    pub(super) turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Gates {
    by_inode: HashMap<u64, Weak<RwLock<()>>>,
    /// How many there were after unused ones were removed.
    used: usize,
}

impl ExternalContents {
    pub(super) fn new(contents: Arc<dyn Contents>) -> ExternalContents {
        ExternalContents {
            contents,
            gates: Mutex::default(),
            raised: Mutex::default(),
            redirects: OnceLock::new(),
            is_direct: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The gate of a file.
    pub(super) fn gate(&self, ino: u64) -> Arc<RwLock<()>> {
        let mut gates = self.gates.lock();
        if let Some(gate) = gates.by_inode.get(&ino).and_then(Weak::upgrade) {
            return gate;
        }
        if gates.by_inode.len() >= GATES.max(2 * gates.used) {
            gates.by_inode.retain(|_, gate| gate.strong_count() > 0);
            gates.used = gates.by_inode.len();
        }
        let gate = Arc::new(RwLock::new(()));
        gates.by_inode.insert(ino, Arc::downgrade(&gate));
        gate
    }

    /// Passes the gate of a file alone.
    pub(super) async fn alone(&self, ino: u64) -> OwnedRwLockWriteGuard<()> {
        self.gate(ino).write_owned().await
    }

    /// Passes the gates of files alone, which come in the order of their numbers.
    pub(super) async fn alone_all(
        &self,
        inodes: impl Iterator<Item = Ino>,
    ) -> Vec<OwnedRwLockWriteGuard<()>> {
        let mut gates = Vec::new();
        for ino in inodes {
            gates.push(self.alone(ino.0).await);
        }
        gates
    }

    /// Bytes that are not in their place.
    pub(super) fn redirects(&self) -> &Arc<Redirects> {
        self.redirects.get_or_init(|| {
            Arc::new(Redirects::new(self.contents.unit(), 0..0, Vec::new(), Time::default()))
        })
    }

    /// An opening has found these.
    pub(super) fn set_redirects(&self, found: Redirects) {
        assert!(self.redirects.set(Arc::new(found)).is_ok(), "redirects are found once");
    }
}
