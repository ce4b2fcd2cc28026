//! What all stages know: the filesystem, how it is served, and the stages that make no calls to clients.

use std::sync::Arc;

use thalweg_env::Env;
use thalweg_fs::{Filesystem, FsError, Ino, Kind};

use super::capabilities::Capabilities;
use super::counters::Counters;
use super::foreign_use::ForeignUses;
use super::inode_limit::InodeLimit;
use super::open_files::OpenFiles;
use super::options::Options;
use super::replay::Replay;

#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) env: Env,
    pub(super) files: Arc<dyn Filesystem>,
    pub(super) options: Arc<Options>,
    pub(super) counters: Arc<Counters>,
    pub(super) limit: Arc<InodeLimit>,
    pub(super) capabilities: Arc<Capabilities>,
    pub(super) open_files: Arc<OpenFiles>,
    pub(super) replay: Arc<Replay>,
    pub(super) foreign_uses: Arc<ForeignUses>,
}

impl Base {
    pub(super) fn new(env: &Env, files: Arc<dyn Filesystem>, options: Options) -> Base {
        Base {
            env: env.clone(),
            counters: Arc::default(),
            limit: Arc::new(InodeLimit::new(options.known, options.lease)),
            capabilities: Arc::new(Capabilities::new(
                env,
                4 * options.lease + options.hold + options.recall,
            )),
            open_files: Arc::new(OpenFiles::new(&files)),
            replay: Arc::new(Replay::new(&files)),
            foreign_uses: Arc::default(),
            files,
            options: Arc::new(options),
        }
    }
}

/// The directories on a path from the root, which is the first. No part of the path is a symbolic link.
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
