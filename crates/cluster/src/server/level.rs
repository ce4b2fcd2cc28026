//! How far inodes have come at the server.

use std::time::Duration;

use thalweg_fs::{FsError, Ino, Level};

use super::Shared;

/// The server waits for replicas no longer than this in one call; the client asks again.
const MOST: Duration = Duration::from_secs(1);

impl Shared {
    /// How far an inode has come, after a wait for a level of at most so many milliseconds.
    pub(super) async fn level(
        &self,
        ino: Ino,
        wait: Option<(Level, u32)>,
    ) -> Result<Level, FsError> {
        if let Some((level, millis)) = wait {
            let within = Duration::from_millis(u64::from(millis)).min(MOST);
            if self.filesystem.wait_for(ino, level, within).await? {
                return Ok(level);
            }
        }
        self.filesystem.level(ino).await
    }
}
