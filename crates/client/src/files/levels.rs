//! How far files have come, and waiting for it.

use std::time::Duration;

use thalweg_fs::{Ino, Level};

use super::access::UserView;
use super::error::FileError;
use super::{File, Filesystem};

/// One wait of many, where no time is said.
const LONG: Duration = Duration::from_secs(60);

impl UserView<'_> {
    async fn wait_for(
        &self,
        ino: Ino,
        level: Level,
        within: Option<Duration>,
    ) -> Result<bool, FileError> {
        loop {
            let has_come = self.files.wait_for(ino, level, within.unwrap_or(LONG)).await?;
            if has_come || within.is_some() {
                return Ok(has_come);
            }
        }
    }
}

impl Filesystem {
    /// How far all changes have come of what a path leads to; `follow` a symbolic link at its end. Nothing is synced for it.
    ///
    /// # Errors
    /// As stat(2); as an fsync(2) would fail when changes were lost.
    pub fn level(&self, path: &[u8], follow: bool) -> Result<Level, FileError> {
        self.run_on_path(async |view| {
            let it = view.resolve(path, follow).await?;
            Ok(view.files.level(it.ino).await?)
        })
    }

    /// Brings all changes of what a path leads to to a level, and says whether they have come to it: as
    /// [`File::wait_for`].
    ///
    /// # Errors
    /// As stat(2), and as there.
    pub fn wait_for(
        &self,
        path: &[u8],
        follow: bool,
        level: Level,
        within: Option<Duration>,
    ) -> Result<bool, FileError> {
        self.run_on_path(async |view| {
            let it = view.resolve(path, follow).await?;
            view.wait_for(it.ino, level, within).await
        })
    }
}

impl File {
    /// How far all changes of the file have come, or of a directory, those of its names. Nothing is synced for it.
    ///
    /// # Errors
    /// As [`File::sync`] would fail when changes were lost.
    pub fn level(&self) -> Result<Level, FileError> {
        self.run(async |view| Ok(view.files.level(self.ino()).await?))
    }

    /// Brings all changes of the file to a level, and says whether they have come to it. The call waits for
    /// replicas at most `within`, or for any time; the levels before that take as long as [`File::sync`].
    ///
    /// # Errors
    /// Those of [`File::sync`]; [`FsError::NoReplicas`](thalweg_fs::FsError::NoReplicas) when none is connected.
    pub fn wait_for(&self, level: Level, within: Option<Duration>) -> Result<bool, FileError> {
        self.run(async |view| view.wait_for(self.ino(), level, within).await)
    }
}
