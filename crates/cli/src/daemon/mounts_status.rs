//! What the mounts of a session are asked about: where they are, how full, how fast.

use std::path::PathBuf;

use thalweg_fs::Statistics;
use thalweg_store::latency::StageStatus;

use super::mounts::{MountedVolume, Mounts};
use crate::volume::opened::Opened;

impl Mounts {
    /// The directory where the filesystem of a volume, or of a snapshot, is mounted.
    pub(crate) async fn mount_of(
        &self,
        volume: &Opened,
        snapshot: Option<&str>,
    ) -> Option<PathBuf> {
        let mounts = self.lock().await;
        let of = mounts.iter().find(|it| it.shows(volume, snapshot));
        of.map(MountedVolume::directory)
    }

    /// How full a volume's filesystem is, if it is mounted.
    pub(crate) async fn statistics_of(&self, volume: &Opened) -> Option<Statistics> {
        let filesystem = {
            let mounts = self.lock().await;
            mounts.iter().find(|it| it.shows(volume, None))?.filesystem()
        };
        filesystem.statistics().await.ok()
    }

    /// How long the kernel's requests to a volume's filesystem took, if it is mounted.
    pub(crate) async fn mount_stages(&self, volume: &Opened) -> Vec<StageStatus> {
        let mounts = self.lock().await;
        let of = mounts.iter().find(|it| it.shows(volume, None));
        of.map(MountedVolume::stages).unwrap_or_default()
    }

    /// How many requests to a volume's filesystem were answered with an I/O error, since it was mounted.
    pub(crate) async fn failures_of(&self, volume: &Opened) -> u64 {
        let mounts = self.lock().await;
        let of = mounts.iter().filter(|it| it.shows(volume, None));
        of.map(MountedVolume::failures).sum()
    }
}
