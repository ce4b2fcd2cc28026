//! Locks of names.

use std::hash::BuildHasher;

use smallvec::SmallVec;
use thalweg_env::FixedState;
use thalweg_fs::Ino;
use tokio::sync::{Mutex, MutexGuard};

/// Names with equal hashes modulo this share a lock.
const LOCKS: usize = 256;

/// Changes of one name come one after the other, so that a change knows the inode that it is about.
#[derive(Debug)]
pub(super) struct NameLocks {
    locks: Vec<Mutex<()>>,
    hasher: FixedState,
}

impl Default for NameLocks {
    fn default() -> NameLocks {
        let locks = (0..LOCKS).map(|_| Mutex::default()).collect();
        NameLocks { locks, hasher: Default::default() }
    }
}

impl NameLocks {
    /// Locks one name, or two.
    pub(super) async fn lock(&self, names: &[(Ino, &[u8])]) -> SmallVec<[MutexGuard<'_, ()>; 2]> {
        let number =
            |name: &(Ino, &[u8])| self.hasher.hash_one((name.0.0, name.1)) as usize % LOCKS;
        let mut numbers: SmallVec<[usize; 2]> = names.iter().map(number).collect();
        // In one order, so that two changes never wait for each other.
        numbers.sort_unstable();
        numbers.dedup();
        let mut guards = SmallVec::new();
        for number in numbers {
            guards.push(self.locks[number].lock().await);
        }
        guards
    }
}
