//! Names of volumes on the command line: a folder, with a snapshot after an `@`; or the device of an in-place
//! volume.

use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_fuse::state;
use thalweg_store::device::kinds::kind_of;
use thalweg_store::open::{OpenError, VolumePath, sockets_name, unique};
use thalweg_store::pool::manifest;

use crate::failure::{Failure, Outcome};
use crate::places::SERVED;

/// A volume, or one of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The volume's folder or device, canonical.
    pub(crate) place: VolumePath,
    /// The folder with the sockets of the volume's server: its own, or for an in-place volume one of this
    /// user's.
    pub(crate) folder: PathBuf,
    /// The volume's name: that of its folder or device.
    pub(crate) name: String,
    /// The snapshot.
    pub(crate) snapshot: Option<String>,
    /// The journal's device, if the journal is outside of the volume.
    pub(crate) journal: Option<PathBuf>,
}

/// The place of an in-place volume's journal.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct JournalDev {
    /// The journal's device, if the journal is outside of an in-place volume
    #[arg(long, value_name = "PATH")]
    pub(crate) journal_dev: Option<PathBuf>,
}

impl Target {
    /// Finds a volume by a folder, `FOLDER@SNAPSHOT`, a device or file, or the name of an image.
    pub(crate) fn find(text: &str) -> Outcome<Target> {
        let lost = match VolumePath::find(Path::new(text)) {
            Ok(place) => return Target::at(place, None),
            Err(OpenError::NoVolume { .. }) => None,
            Err(error) => Some(error),
        };
        let with_snapshot = text.rsplit_once('@').and_then(|(volume, snapshot)| {
            match VolumePath::find(Path::new(volume)) {
                Err(OpenError::NoVolume { .. }) => None,
                found => Some((found, snapshot)),
            }
        });
        match with_snapshot {
            Some((Ok(place @ VolumePath::Folder(_)), snapshot)) => {
                Target::at(place, Some(snapshot.to_owned()))
            }
            Some((Ok(VolumePath::Device(device)), _)) => Err(no_snapshots(device.display())),
            Some((Err(error), _)) => Err(error.into()),
            None => Err(lost.map_or_else(|| not_there(Path::new(text)), Failure::from)),
        }
    }

    /// As [`Target::find`], but refuses a snapshot.
    pub(crate) fn volume(text: &str) -> Outcome<Target> {
        let target = Target::find(text)?;
        match target.snapshot {
            None => Ok(target),
            Some(_) => Err(Failure::new(format!("{text} names a snapshot"))
                .help("name the volume itself, without the part from the @ on")),
        }
    }

    /// Refuses an in-place volume, for requests that only chained volumes carry out.
    pub(crate) fn chained(self) -> Outcome<Target> {
        match self.is_in_place() {
            false => Ok(self),
            true => Err(self.refused()),
        }
    }

    /// The error for a request that only chained volumes carry out.
    pub(crate) fn refused(&self) -> Failure {
        Failure::new(format!(
            "{} is updated in place; only chained volumes can do that",
            self.place().display()
        ))
    }

    /// The same volume, with its journal on this device, if any.
    pub(crate) fn with_journal(self, journal: Option<&Path>) -> Target {
        Target { journal: journal.map(Path::to_owned), ..self }
    }

    /// The in-place volume on a device or in a file.
    pub(crate) fn in_place(device: &Path) -> Outcome<Target> {
        let device = match kind_of(device) {
            Some(_) => device.to_owned(),
            None => device.canonicalize()?,
        };
        Target::at(VolumePath::Device(device), None)
    }

    /// Whether it is an in-place volume.
    pub(crate) fn is_in_place(&self) -> bool {
        matches!(self.place, VolumePath::Device(_))
    }

    /// The volume's folder or device.
    pub(crate) fn place(&self) -> &Path {
        self.place.path()
    }

    fn at(place: VolumePath, snapshot: Option<String>) -> Outcome<Target> {
        let name = place.path().file_name().unwrap_or_default();
        let (name, folder) = match &place {
            VolumePath::Device(device) => {
                (name.to_string_lossy().into_owned(), state::find(&sockets_name(device))?)
            }
            VolumePath::Folder(folder) => (utf8_name(folder)?, folder.clone()),
        };
        Ok(Target { place, folder, name, snapshot, journal: None })
    }

    /// Makes the folder for the sockets of an in-place volume, which is missing while the volume is not
    /// served.
    pub(crate) fn make_folder(&self) -> Outcome<()> {
        match self.is_in_place() {
            true => Ok(state::make(&self.folder)?),
            false => Ok(()),
        }
    }

    /// A folder of this user's with second sockets of this process, which serves the volume. It stays in its
    /// place when the volume is moved.
    pub(crate) fn served(&self) -> Outcome<PathBuf> {
        match self.is_in_place() {
            true => Ok(self.folder.clone()),
            false => {
                let name = unique(&std::process::id().to_string(), &self.folder);
                Ok(state::folder()?.join(format!("{SERVED}{name}")))
            }
        }
    }

    /// The name of its export: `NAME` or `NAME@SNAPSHOT`.
    pub(crate) fn export(&self) -> String {
        export(&self.name, self.snapshot.as_deref())
    }

    /// The directory on which the file is mounted while the volume is attached. It differs between folders of
    /// the same name.
    pub(crate) fn mountpoint(&self) -> Outcome<PathBuf> {
        let name = unique(&self.export(), &self.folder);
        Ok(state::folder()?.join(name.trim_start_matches('.')))
    }
}

/// `NAME` or `NAME@SNAPSHOT`.
pub(crate) fn export(name: &str, snapshot: Option<&str>) -> String {
    match snapshot {
        None => name.to_owned(),
        Some(snapshot) => format!("{name}@{snapshot}"),
    }
}

/// A folder's name, which clients use.
fn utf8_name(folder: &Path) -> Outcome<String> {
    let name = folder.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    name.ok_or_else(|| {
        Failure::new(format!(
            "{}: its name is not UTF-8, so clients cannot use it",
            folder.display()
        ))
        .help("give the folder a name in UTF-8")
    })
}

/// The error for snapshots of an in-place volume.
pub(crate) fn no_snapshots(device: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{device} is updated in place, and has no snapshots"))
        .help("chained volumes have them: thalweg volume create FOLDER --size SIZE")
}

fn not_there(folder: &Path) -> Failure {
    match folder.is_dir() {
        true => Failure::new(format!(
            "{} is not a volume: it has no {}",
            folder.display(),
            manifest::FILE
        ))
        .help(format!(
            "name a volume's folder; if that is one whose {0} is lost, thalweg volume assemble --folder {1} DEVICE... \
             makes it again. A new volume: thalweg volume create FOLDER --size SIZE",
            manifest::FILE,
            folder.display()
        )),
        false => Failure::new(format!("there is no volume {}", folder.display()))
            .help("name a volume's folder, or make one: thalweg volume create FOLDER --size SIZE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_stands_behind_the_last_at() {
        let home = tempfile::tempdir().unwrap();
        for name in ["plain", "with@sign"] {
            let folder = home.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join(manifest::FILE), "").unwrap();
            let whole = Target::find(folder.to_str().unwrap()).unwrap();
            assert_eq!((whole.name.as_str(), whole.snapshot), (name, None));
            let text = format!("{}@monday", folder.display());
            let target = Target::find(&text).unwrap();
            assert_eq!(target.export(), format!("{name}@monday"));
            assert!(Target::volume(&text).is_err());
        }
        assert!(Target::find(home.path().to_str().unwrap()).is_err());
        assert!(Target::find("/nowhere@monday").is_err());
    }
}
