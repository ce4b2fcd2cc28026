//! The manifest: where a volume's devices are. What they are stands on themselves, in their labels;
//! the rest of each line is there for messages about a device that cannot be read.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::PoolError;
use super::format::Role;
use super::media::Media;

/// The manifest's name in the volume's folder.
pub const FILE: &str = "volume.toml";
const VERSION: u32 = 1;

/// Whether the volume can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It is being made, or destroyed: its devices may or may not have labels.
    Unfinished,
    /// It can.
    Ready,
}

/// Where a volume's devices are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file.
    pub format: u32,
    /// The volume's identity.
    pub volume: Uuid,
    /// Its name.
    pub name: String,
    /// Whether it can be used.
    pub stage: Stage,
    /// The sector in bytes that its devices are opened with, instead of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sector: Option<u32>,
    /// The devices; one that serves two roles is there twice.
    #[serde(rename = "device", default)]
    pub devices: Vec<Place>,
}

/// Where one device is, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its path, in the volume's folder unless it is absolute.
    pub path: PathBuf,
    /// What it is for.
    pub role: Role,
    /// The link, or other group, that it is in.
    pub group: Uuid,
    /// Its number in a stripe.
    #[serde(default)]
    pub column: u8,
    /// Its number in a mirror.
    #[serde(default)]
    pub side: u8,
}

impl Manifest {
    pub(super) fn new(volume: Uuid, name: &str, sector: Option<u32>) -> Manifest {
        let name = name.to_owned();
        let devices = Vec::new();
        Manifest { format: VERSION, volume, name, stage: Stage::Unfinished, sector, devices }
    }

    /// Reads the manifest in `folder`.
    pub(super) async fn read(media: &dyn Media, folder: &Path) -> Result<Manifest, PoolError> {
        let path = folder.join(FILE);
        let text =
            media.read_manifest(folder).await.map_err(|error| PoolError::io(&path, error))?;
        let text = text.ok_or_else(|| PoolError::NoVolume { folder: folder.to_owned() })?;
        let manifest: Manifest = toml::from_str(&text).map_err(|error| PoolError::Manifest {
            path: path.clone(),
            detail: error.message().to_owned(),
        })?;
        match manifest.format {
            VERSION => Ok(manifest),
            format => Err(PoolError::NewerFormat { device: path.display().to_string(), format }),
        }
    }

    /// Replaces the manifest in `folder`, durably.
    pub(super) async fn write(&self, media: &dyn Media, folder: &Path) -> Result<(), PoolError> {
        let path = folder.join(FILE);
        let text = toml::to_string_pretty(self).map_err(|error| PoolError::Manifest {
            path: path.clone(),
            detail: error.to_string(),
        })?;
        media.write_manifest(folder, Some(&text)).await.map_err(|error| PoolError::io(&path, error))
    }
}

/// `path` as it stands in the manifest of `folder`: a folder can then be moved with what is in it.
pub(super) fn to_stored(folder: &Path, path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    absolute.strip_prefix(&folder).map_or(absolute.clone(), Path::to_owned)
}

/// A path of the manifest of `folder` as the system knows it.
pub(super) fn from_stored(folder: &Path, path: &Path) -> PathBuf {
    folder.join(path)
}
