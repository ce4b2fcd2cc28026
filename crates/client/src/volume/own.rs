//! What of a volume is its process's alone.

use std::sync::Weak;

use parking_lot::Mutex;
use thalweg_env::Env;
use thalweg_store::open::AnyVolume;
use tokio::runtime::Runtime;

use super::{Bound, Middle};

/// What only the process has that opened the volume.
pub(super) struct Own {
    pub(super) env: Env,
    pub(super) bound: Mutex<Vec<Weak<Bound>>>,
    /// The volume, if this process has opened it.
    pub(super) volume: Option<AnyVolume>,
    /// Dropped last: the other fields need it.
    pub(super) runtime: Runtime,
}

impl Own {
    /// Aborts the transactions of all threads.
    pub(super) fn abort_all(&self) {
        for bound in self.bound.lock().drain(..).filter_map(|bound| bound.upgrade()) {
            if let Ok(bound) = bound.get() {
                *bound.lock() = Middle::default();
            }
        }
    }
}
