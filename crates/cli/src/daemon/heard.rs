//! What a replica has last heard of its primary, in a small file beside the manifest: a hint for a promotion when the
//! primary cannot be reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thalweg_env::Env;
use thalweg_replica::Follower;

/// The file in the replica's folder.
const FILE: &str = "heard.json";
/// The shortest time between two writes of the file.
const PAUSE: Duration = Duration::from_secs(1);

/// What a replica knew of its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heard {
    /// When the primary was heard, in seconds since 1970 by the replica's clock.
    pub(crate) at: u64,
    /// The replica's version then.
    pub(crate) version: u64,
    /// The primary's.
    pub(crate) primary: u64,
    /// Bytes that the replica lacked.
    pub(crate) behind_bytes: Option<u64>,
    /// How many milliseconds before `at` the replica's state was the newest one.
    pub(crate) behind_ms: Option<u64>,
}

impl Heard {
    /// What the file in a folder says, if there is one.
    pub(crate) fn read(folder: &Path) -> Option<Heard> {
        serde_json::from_slice(&std::fs::read(folder.join(FILE)).ok()?).ok()
    }

    fn of(env: &Env, follower: &Follower) -> Option<Heard> {
        let status = follower.status();
        let silent = Duration::from_millis(status.silent_ms?);
        Some(Heard {
            at: env.wall_clock().saturating_sub(silent.as_secs()),
            version: status.version,
            primary: status.primary?,
            behind_bytes: status.behind_bytes,
            behind_ms: status
                .behind_ms
                .map(|behind| behind.saturating_sub(silent.as_millis() as u64)),
        })
    }

    fn write(&self, folder: &Path) -> std::io::Result<()> {
        let (place, new) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
        std::fs::write(&new, serde_json::to_vec(self)?)?;
        std::fs::rename(new, place)
    }
}

/// The file of a follower that runs.
#[derive(Debug)]
pub(super) struct HeardFile {
    pub(super) env: Env,
    pub(super) folder: PathBuf,
    pub(super) follower: Arc<Follower>,
}

impl HeardFile {
    /// Writes what is known now, if anything is.
    pub(super) fn write(&self) {
        let Some(heard) = Heard::of(&self.env, &self.follower) else { return };
        if let Err(error) = heard.write(&self.folder) {
            tracing::debug!(%error, "cannot note what was heard of the primary");
        }
    }

    /// Keeps the file up to date.
    pub(super) async fn keep(self: Arc<HeardFile>) {
        loop {
            self.env.sleep(PAUSE).await;
            self.write();
        }
    }
}
