//! How a volume is named on the command line: by its folder, a snapshot behind an `@`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// The file that makes a folder a volume.
pub(crate) const CONFIG: &str = "volume.toml";

/// A volume, or one of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The volume's folder, absolute.
    pub(crate) folder: PathBuf,
    /// The volume's name: its folder's.
    pub(crate) name: String,
    /// The snapshot.
    pub(crate) snapshot: Option<String>,
}

impl Target {
    /// Finds what `text` names: a folder, or `FOLDER@SNAPSHOT`.
    pub(crate) fn find(text: &str) -> Outcome<Target> {
        if is_volume(Path::new(text)) {
            return Target::of(Path::new(text), None);
        }
        match text.rsplit_once('@') {
            Some((folder, snapshot)) if is_volume(Path::new(folder)) => {
                Target::of(Path::new(folder), Some(snapshot.to_owned()))
            }
            _ => Err(not_there(Path::new(text))),
        }
    }

    /// Finds a volume where a snapshot makes no sense.
    pub(crate) fn volume(text: &str) -> Outcome<Target> {
        let target = Target::find(text)?;
        match target.snapshot {
            None => Ok(target),
            Some(_) => Err(Failure::new(format!("{text} names a snapshot"))
                .help("name the volume itself, without the part from the @ on")),
        }
    }

    fn of(folder: &Path, snapshot: Option<String>) -> Outcome<Target> {
        let folder = folder.canonicalize()?;
        let name = folder.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| {
            Failure::new(format!("{} has no name that clients could use", folder.display()))
                .help("give the folder a name in UTF-8")
        })?;
        Ok(Target { name: name.to_owned(), folder, snapshot })
    }

    /// `NAME` or `NAME@SNAPSHOT`: what clients call it.
    pub(crate) fn export(&self) -> String {
        export(&self.name, self.snapshot.as_deref())
    }

    /// The directory on which its file is mounted while it is attached; another one for each
    /// folder, also where names are the same.
    pub(crate) fn mountpoint(&self) -> Outcome<PathBuf> {
        let mut hasher = DefaultHasher::new();
        self.folder.hash(&mut hasher);
        let name = format!("{}-{:08x}", self.export(), hasher.finish() as u32);
        Ok(thalweg_fuse::attach::directory(name.trim_start_matches('.'))?)
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

fn not_there(folder: &Path) -> Failure {
    match folder.is_dir() {
        true => Failure::new(format!("{} is no volume: it has no {CONFIG}", folder.display()))
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
