//! Names of volumes on the command line: a folder, with a snapshot after an `@`; or the device of an in-place
//! volume.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use thalweg_fuse::state;
use thalweg_store::open::{sockets_name, unique};

use crate::failure::{Failure, Outcome};

/// The file that marks a folder as a volume.
pub(crate) const CONFIG: &str = "volume.toml";
/// The prefix of folders, among this user's, with second sockets of volumes that have folders of their own.
pub(crate) const SERVED: &str = "volume-";

/// A volume, or one of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The volume's folder, absolute.
    pub(crate) folder: PathBuf,
    /// The volume's name: its folder's.
    pub(crate) name: String,
    /// The snapshot.
    pub(crate) snapshot: Option<String>,
    /// The device of an in-place volume. It has no folder of its own; its server's sockets are in a folder of
    /// this user's.
    pub(crate) device: Option<PathBuf>,
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
    /// Finds a volume by a folder, `FOLDER@SNAPSHOT`, or a device or file.
    pub(crate) fn find(text: &str) -> Outcome<Target> {
        if is_volume(Path::new(text)) {
            return Target::of(Path::new(text), None);
        }
        if is_device(Path::new(text)) {
            return Target::in_place(Path::new(text));
        }
        match text.rsplit_once('@') {
            Some((folder, snapshot)) if is_volume(Path::new(folder)) => {
                Target::of(Path::new(folder), Some(snapshot.to_owned()))
            }
            Some((device, _)) if is_device(Path::new(device)) => Err(no_snapshots(device)),
            _ => Err(not_there(Path::new(text))),
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
        match self.device {
            None => Ok(self),
            Some(_) => Err(self.refused()),
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
        let device = device.canonicalize()?;
        let name = device.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or_else(|| Failure::new("the path has no file name"))?;
        let folder = state::find(&sockets_name(&device))?;
        Ok(Target { folder, name, snapshot: None, device: Some(device), journal: None })
    }

    /// The volume's folder or device.
    pub(crate) fn place(&self) -> &Path {
        self.device.as_deref().unwrap_or(&self.folder)
    }

    fn of(folder: &Path, snapshot: Option<String>) -> Outcome<Target> {
        let folder = folder.canonicalize()?;
        let name = folder.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| {
            Failure::new(format!(
                "{}: its name is not UTF-8, so clients cannot use it",
                folder.display()
            ))
            .help("give the folder a name in UTF-8")
        })?;
        Ok(Target { name: name.to_owned(), folder, snapshot, device: None, journal: None })
    }

    /// Makes the folder for the sockets of an in-place volume, which is missing while the volume is not
    /// served.
    pub(crate) fn make_folder(&self) -> Outcome<()> {
        match self.device {
            Some(_) => Ok(state::make(&self.folder)?),
            None => Ok(()),
        }
    }

    /// A folder of this user's with second sockets of this process, which serves the volume. It stays in its
    /// place when the volume is moved.
    pub(crate) fn served(&self) -> Outcome<PathBuf> {
        match self.device {
            Some(_) => Ok(self.folder.clone()),
            None => {
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

fn is_volume(folder: &Path) -> bool {
    folder.join(CONFIG).exists()
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|it| it.is_file() || it.file_type().is_block_device())
}

/// The error for snapshots of an in-place volume.
pub(crate) fn no_snapshots(device: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{device} is updated in place, and has no snapshots"))
        .help("chained volumes have them: thalweg volume create FOLDER --size SIZE")
}

fn not_there(folder: &Path) -> Failure {
    match folder.is_dir() {
        true => Failure::new(format!("{} is not a volume: it has no {CONFIG}", folder.display()))
            .help("name a volume's folder, or make one: thalweg volume create FOLDER --size SIZE"),
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
            std::fs::write(folder.join(CONFIG), "").unwrap();
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
