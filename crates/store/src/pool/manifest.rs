//! The manifest: the paths of a volume's devices. The labels on the devices have all other facts; the
//! manifest's copies of these serve messages about a device that cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::PoolError;
use super::format::Role;
use super::media::Media;
pub use super::settings::Settings;
use crate::device::kinds;

/// The manifest's name in the volume's folder.
pub const FILE: &str = "volume.toml";
/// A new manifest's name until it is durable.
const NEW: &str = "volume.toml.new";
const VERSION: u32 = 1;

/// The state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It is being made or destroyed: its devices may or may not have labels.
    Unfinished,
    /// It can be used.
    Ready,
}

/// The field that every version of the manifest has.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// The paths of a volume's devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file.
    pub format: u32,
    /// The volume's identity.
    pub volume: Uuid,
    /// Its name.
    pub name: String,
    /// The volume's state.
    pub stage: Stage,
    /// The sector in bytes that its devices are opened with, if not their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sector: Option<u32>,
    /// The settings for opening it; they override an opening's options.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    pub settings: Settings,
    /// The address of the volume that it follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<String>,
    /// The address of the primary that this volume has replaced, until that one knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// The devices; one that serves two roles is listed twice.
    #[serde(rename = "device", default)]
    pub devices: Vec<Place>,
    /// Devices that may carry a label of the volume without being part of it, while a change is in progress:
    /// after a crash, `open` frees them.
    #[serde(rename = "leftover", default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<Place>,
}

/// The path of one device, and its role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its path, relative to the volume's folder or absolute; or a name with a kind.
    pub path: PathBuf,
    /// Its role.
    pub role: Role,
    /// The link, or other group, that it belongs to.
    pub group: Uuid,
    /// Its number in a stripe.
    #[serde(default)]
    pub column: u8,
    /// Its number in a mirror.
    #[serde(default)]
    pub side: u8,
    /// The link that this one replaces; it leaves the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Uuid>,
}

impl Place {
    /// Whether `other` is for the same part of the volume, at any path.
    pub(super) fn is_for_same(&self, other: &Place) -> bool {
        let part = |place: &Place| (place.role, place.group, place.column, place.side);
        part(self) == part(other)
    }
}

impl Manifest {
    pub(super) fn new(volume: Uuid, name: &str, sector: Option<u32>) -> Manifest {
        let name = name.to_owned();
        Manifest {
            format: VERSION,
            volume,
            name,
            stage: Stage::Unfinished,
            sector,
            settings: Settings::default(),
            follows: None,
            replaces: None,
            devices: Vec::new(),
            leftovers: Vec::new(),
        }
    }

    /// Reads the manifest in `folder`.
    pub(super) async fn read(media: &dyn Media, folder: &Path) -> Result<Manifest, PoolError> {
        let path = folder.join(FILE);
        let text = media.read_text(&path).await.map_err(|error| PoolError::io(&path, error))?;
        let text = text.ok_or_else(|| PoolError::NoVolume { folder: folder.to_owned() })?;
        let damaged = |error: toml::de::Error| PoolError::Manifest {
            path: path.clone(),
            detail: error.message().to_owned(),
        };
        // In a newer manifest, any other field may differ.
        let Format { format } = toml::from_str(&text).map_err(damaged)?;
        match format {
            0..=VERSION => toml::from_str(&text).map_err(damaged),
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
        replace(media, folder, &text).await.map_err(|error| PoolError::io(&path, error))
    }

    /// Removes the manifest in `folder`, durably.
    pub(super) async fn remove(media: &dyn Media, folder: &Path) -> Result<(), PoolError> {
        let path = folder.join(FILE);
        let removed = async {
            media.remove(&path).await?;
            media.sync_folder(folder).await
        };
        removed.await.map_err(|error| PoolError::io(&path, error))
    }
}

/// The new text is durable under another name before it is renamed: after a crash the manifest is the old one
/// or the new one.
async fn replace(media: &dyn Media, folder: &Path, text: &str) -> io::Result<()> {
    let (new, path) = (folder.join(NEW), folder.join(FILE));
    media.write_text(&new, text).await?;
    media.sync(&new).await?;
    media.rename(&new, &path).await?;
    media.sync_folder(folder).await
}

/// `path` as the manifest of `folder` stores it: relative if it is inside, so that the folder can be moved.
pub(super) fn to_stored(folder: &Path, path: &Path) -> PathBuf {
    let absolute = kinds::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    absolute.strip_prefix(&folder).map_or(absolute.clone(), Path::to_owned)
}

/// A path of the manifest of `folder`, resolved.
pub(super) fn from_stored(folder: &Path, path: &Path) -> PathBuf {
    match kinds::kind_of(path) {
        Some(_) => path.to_owned(),
        None => folder.join(path),
    }
}
