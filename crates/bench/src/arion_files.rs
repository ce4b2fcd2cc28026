//! The files of a load with many: in directories, with sizes that have a gamma distribution, as those of Filebench.

use parking_lot::Mutex;
use rand::RngExt;
use rand_distr::{Distribution, Gamma};
use thalweg_env::Rng;
use thalweg_fs::Ino;

use crate::BenchError;
use crate::arion_subject::Subject;
use crate::rig::failed;

/// A file that one thread uses.
pub(crate) struct File {
    pub(crate) directory: Ino,
    pub(crate) name: String,
    pub(crate) ino: Ino,
    pub(crate) size: u64,
}

/// The files that no thread uses now.
pub(crate) struct FileSet {
    directories: Vec<Ino>,
    files: Mutex<Vec<File>>,
    made: Mutex<u64>,
}

impl FileSet {
    /// None yet, in so many directories.
    pub(crate) async fn new(subject: &dyn Subject, count: usize) -> Result<FileSet, BenchError> {
        let mut directories = Vec::new();
        for number in 0..count {
            let made = subject.make_directory(&format!("d{number}")).await;
            directories.push(made.map_err(failed)?);
        }
        let (files, made) = Default::default();
        Ok(FileSet { directories, files, made })
    }

    /// How many were made so far.
    pub(crate) fn made(&self) -> u64 {
        *self.made.lock()
    }

    /// Makes an empty one.
    pub(crate) async fn make(&self, subject: &dyn Subject) -> Result<File, BenchError> {
        let number = {
            let mut made = self.made.lock();
            *made += 1;
            *made
        };
        let directory = self.directories[number as usize % self.directories.len()];
        let name = format!("f{number}");
        let ino = subject.create(directory, &name).await.map_err(failed)?;
        Ok(File { directory, name, ino, size: 0 })
    }

    /// Takes a random one.
    pub(crate) fn take(&self, rng: &mut Rng) -> Option<File> {
        let mut files = self.files.lock();
        let count = files.len();
        (count > 0).then(|| files.swap_remove(rng.random_range(0..count)))
    }

    pub(crate) fn put(&self, file: File) {
        self.files.lock().push(file);
    }
}

/// Bytes with this mean (shape 1.5).
pub(crate) fn size(mean: f64, rng: &mut Rng) -> usize {
    let bytes = Gamma::new(1.5, mean / 1.5).map_or(mean, |gamma| gamma.sample(rng));
    (bytes as usize).max(1)
}
