//! Paths from the filesystem's root.

use thalweg_fs::{Filesystem, FsError, Ino, Kind};

/// The directories on a path, from the root on. No part of it is a symbolic link.
pub(super) async fn resolve(files: &dyn Filesystem, path: &str) -> Result<Vec<Ino>, FsError> {
    let (mut ino, mut directories) = (Ino::ROOT, vec![Ino::ROOT]);
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let found = files.find(ino, name.as_bytes()).await?;
        if found.kind != Kind::Directory {
            return Err(FsError::NotDirectory);
        }
        ino = found.ino;
        directories.push(ino);
    }
    Ok(directories)
}
