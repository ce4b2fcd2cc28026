//! Loads on a directory of any filesystem.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rand::RngExt;
use tempfile::TempDir;
use thalweg_env::Rng;

use crate::BenchError;
use crate::rig::failed as other;

fn failed(what: impl Into<String>) -> BenchError {
    BenchError::Failed(what.into().into())
}

pub(crate) fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes[..]);
    bytes
}

/// Runs a function in each of several threads.
pub(crate) fn threads(
    count: usize,
    work: impl Fn(usize) -> io::Result<()> + Sync,
) -> Result<(), BenchError> {
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..count).map(|at| scope.spawn(move || work(at))).collect();
        let mut joined = running.into_iter().map(|thread| thread.join());
        // After a failure the scope waits for the other threads.
        joined.try_for_each(|done| {
            done.map_err(|_| failed("a client thread panicked"))?.map_err(other)
        })
    })
}

/// Runs a program to its end; its output is dropped.
pub(crate) fn command(program: &str, arguments: &[&Path]) -> Result<(), BenchError> {
    let mut command = Command::new(program);
    let done = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!("{program} ended with {status}"))),
        Err(error) => Err(failed(format!("{program}: {error}"))),
    }
}

/// The path of a file that [`create`] makes.
pub(crate) fn created(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("file{number}"))
}

/// Empty files in one directory.
pub(crate) fn create(folder: &Path, count: usize) -> Result<(), BenchError> {
    (0..count).try_for_each(|number| {
        let path = created(folder, number);
        File::create(&path).map(drop).map_err(|source| BenchError::Io { path, source })
    })
}

/// Small files that are created, appended to and deleted; each is synced after each write. Each thread makes `each`.
pub(crate) fn postmark(
    folder: &Path,
    count: usize,
    each: usize,
    rng: impl Fn(usize) -> Rng + Sync,
) -> Result<(), BenchError> {
    threads(count, |thread| {
        let mut rng = rng(thread);
        let mut files = Vec::new();
        for nth in 0..each {
            let path = folder.join(format!("{thread}.{nth}"));
            let mut file = File::create(&path)?;
            let size = rng.random_range(500..20_000);
            file.write_all(&noise(&mut rng, size))?;
            file.sync_all()?;
            files.push(path);
            let at = rng.random_range(0..files.len());
            if rng.random_bool(0.5) {
                fs::read(&files[at])?;
            } else {
                let mut file = OpenOptions::new().append(true).open(&files[at])?;
                file.write_all(&noise(&mut rng, 1000))?;
                file.sync_all()?;
            }
            if rng.random_bool(0.1) {
                fs::remove_file(files.swap_remove(at))?;
            }
        }
        Ok(())
    })
}

/// A tree of C sources, and an archive of it.
#[derive(Debug)]
pub(crate) struct SourceTree(TempDir);

impl SourceTree {
    /// Files of the tree.
    pub(crate) const FILES: usize = 800;

    /// Makes the tree in a folder of its own in `parent`.
    pub(crate) fn make(parent: &Path) -> Result<SourceTree, BenchError> {
        let io = |source| BenchError::Io { path: parent.to_owned(), source };
        let folder = tempfile::tempdir_in(parent).map_err(io)?;
        let tree = folder.path().join("tree");
        for unit in 0..SourceTree::FILES / 2 {
            let place = tree.join(format!("part{}", unit / 20));
            fs::create_dir_all(&place).map_err(io)?;
            let body: String = (0..60)
                .map(|nth| {
                    format!("int f{unit}_{nth}(int x) {{ return printf(\"%d\", x * {nth}); }}\n")
                })
                .collect();
            let text = format!("#include <stdio.h>\n#include <stdlib.h>\n{body}");
            fs::write(place.join(format!("unit{unit}.c")), text).map_err(io)?;
            fs::write(place.join(format!("unit{unit}.h")), "#pragma once\n".repeat(40))
                .map_err(io)?;
        }
        SourceTree(folder).archive()
    }

    /// A copy of the tree in a folder of its own, after changes that are made to it.
    pub(crate) fn and(
        &self,
        change: impl FnOnce(&Path) -> Result<(), BenchError>,
    ) -> Result<SourceTree, BenchError> {
        let parent = self.0.path().parent().unwrap_or(self.0.path());
        let folder = tempfile::tempdir_in(parent);
        let folder = folder.map_err(|source| BenchError::Io { path: parent.to_owned(), source })?;
        self.extract(folder.path())?;
        change(folder.path())?;
        SourceTree(folder).archive()
    }

    fn archive(self) -> Result<SourceTree, BenchError> {
        let (folder, archive) = (self.0.path(), self.0.path().join("tree.tar"));
        command(
            "tar",
            &["-cf".as_ref(), archive.as_ref(), "-C".as_ref(), folder, "tree".as_ref()],
        )?;
        Ok(self)
    }

    /// Unpacks the archive; the tree is `tree` in `folder` then.
    pub(crate) fn extract(&self, folder: &Path) -> Result<(), BenchError> {
        let archive = self.0.path().join("tree.tar");
        command("tar", &["-xf".as_ref(), archive.as_ref(), "-C".as_ref(), folder])
    }
}
