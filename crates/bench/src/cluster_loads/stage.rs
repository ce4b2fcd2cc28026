//! What a load is, what it is run on, and what it comes to.

use std::fs::File;
use std::path::{Path, PathBuf};

use rand::SeedableRng;
use thalweg_env::{Env, Rng};

use crate::BenchError;
use crate::fs::loads::SourceTree;

/// A new directory, as two clients see it, and the settings of a load.
pub(crate) struct Stage<'a> {
    pub(crate) env: &'a Env,
    /// The directory as the first client sees it, which has made it.
    pub(crate) first: PathBuf,
    /// The same directory as the second client sees it.
    pub(crate) second: PathBuf,
    pub(crate) tree: &'a SourceTree,
    pub(crate) scale: f64,
    pub(crate) seed: u64,
}

impl Stage<'_> {
    /// A count at this run's scale.
    pub(crate) fn count(&self, full: f64, least: usize) -> usize {
        ((full * self.scale) as usize).max(least)
    }

    pub(crate) fn rng(&self, thread: usize) -> Rng {
        Rng::seed_from_u64(self.seed ^ thread as u64)
    }

    /// Times so many operations.
    pub(crate) fn time(
        &self,
        operations: usize,
        work: impl FnOnce() -> Result<(), BenchError>,
    ) -> Result<Timed, BenchError> {
        let begun = self.env.now();
        work()?;
        let seconds = self.env.now().since(begun).as_secs_f64();
        Ok(Timed::new(operations as f64, seconds))
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync(folder: &Path) -> Result<(), BenchError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| BenchError::Io { path: folder.to_owned(), source })
}

/// The result of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) operations: f64,
    pub(crate) seconds: f64,
    /// Operations that had no lasting effect, and are not among the others; `None` for a load that does not count them.
    pub(crate) lost: Option<u64>,
    /// Mean seconds of a read; `None` for a load that does not time them.
    pub(crate) read: Option<f64>,
}

impl Timed {
    /// So many operations, none of them lost, and no reads.
    pub(super) fn new(operations: f64, seconds: f64) -> Timed {
        Timed { operations, seconds, lost: None, read: None }
    }

    pub(super) fn rate(&self) -> f64 {
        self.operations / self.seconds.max(1e-9)
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// The unit of its rate.
    pub(crate) unit: &'static str,
    pub(crate) run: fn(&Stage<'_>) -> Result<Timed, BenchError>,
}
