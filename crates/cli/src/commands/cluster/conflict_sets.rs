//! The lists of conflict sets below the root of a mount: those of a client that acts as every user, and those of the users of other ones.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thalweg_cluster::conflicts::{ConflictSet, DIRECTORY, FORMAT, decode_path, user_of_folder};

use crate::failure::{Failure, Outcome};

/// The sets below a root.
pub(super) struct Sets {
    pub(super) root: PathBuf,
}

/// A list of a set.
pub(super) struct Listed {
    /// The folder that it is in.
    pub(super) folder: PathBuf,
    /// The user that the folder belongs to; `None` for a client without squashed users.
    pub(super) user: Option<u32>,
    pub(super) set: String,
}

impl Listed {
    pub(super) fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.json", self.set))
    }

    /// What names it among those of all users.
    pub(super) fn name(&self) -> String {
        match self.user {
            Some(user) => format!("{user}/{}", self.set),
            None => self.set.clone(),
        }
    }
}

impl Sets {
    /// Of the filesystem that a directory is on.
    pub(super) fn of(directory: &Path) -> Outcome<Sets> {
        let failed = |error: io::Error| {
            Failure::of(&error).while_doing(format!("cannot look at {}", directory.display()))
        };
        let mut root = directory.canonicalize().map_err(failed)?;
        let device = root.metadata().map_err(failed)?.dev();
        while let Some(above) = root.parent()
            && above.metadata().map_err(failed)?.dev() == device
        {
            root = above.to_path_buf();
        }
        Ok(Sets { root })
    }

    /// The lists that the caller may read. Those of other users, in folders that are theirs alone, are named.
    pub(super) fn lists(&self) -> Outcome<Vec<Listed>> {
        let own = self.root.join(DIRECTORY);
        let failed = |error: io::Error| {
            Failure::of(&error).while_doing(format!("cannot read {}", own.display()))
        };
        let entries = match fs::read_dir(&own) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut lists = Vec::new();
        for entry in entries {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if let Some(set) = name.strip_suffix(".json") {
                let (folder, set) = (own.clone(), set.to_owned());
                lists.push(Listed { folder, user: None, set });
            } else if let Some(user) = user_of_folder(&name) {
                let folder = own.join(&name);
                let inside = match fs::read_dir(&folder) {
                    Ok(inside) => inside,
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        eprintln!(
                            "{} is for the user {user} to read: run the command as that user",
                            folder.display()
                        );
                        continue;
                    }
                    Err(error) => return Err(failed(error)),
                };
                for entry in inside {
                    let name = entry?.file_name().into_string().unwrap_or_default();
                    let set = name.strip_suffix(".json").map(str::to_owned);
                    let of = |set| Listed { folder: folder.clone(), user: Some(user), set };
                    lists.extend(set.map(of));
                }
            }
        }
        lists.sort_by_key(|list| (list.user, list.set.clone()));
        Ok(lists)
    }

    /// The list of a set that a user names: with the user that has it, unless one alone has one of that name.
    pub(super) fn find(&self, set: &str) -> Outcome<Listed> {
        let is_named = |list: &Listed| list.name() == set || list.set == set;
        let mut found: Vec<Listed> = self.lists()?.into_iter().filter(is_named).collect();
        let root = self.root.display();
        match found.len() {
            0 => Err(Failure::new(format!("{root} has no set {set}"))
                .help(format!("thalweg cluster conflicts list {root} names the sets"))),
            1 => Ok(found.remove(0)),
            _ => {
                let names: Vec<String> = found.iter().map(Listed::name).collect();
                Err(Failure::new(format!("several users have a set {set}"))
                    .help(format!("name one: {}", names.join(", "))))
            }
        }
    }

    pub(super) fn read(list: &Listed) -> Outcome<ConflictSet> {
        let path = list.path();
        let failed = || format!("cannot read {}", path.display());
        let text = fs::read(&path).map_err(|error| Failure::of(&error).while_doing(failed()))?;
        let set: ConflictSet = serde_json::from_slice(&text)
            .map_err(|error| Failure::of(&error).while_doing(failed()))?;
        if set.format != FORMAT {
            let format = set.format;
            return Err(Failure::new(format!("the set has the format {format}, not {FORMAT}"))
                .help("use the version of thalweg that has made it"));
        }
        Ok(set)
    }

    /// Where a path of a list leads. It leads to no place above the root.
    pub(super) fn at(&self, path: &str) -> Outcome<PathBuf> {
        let bytes = decode_path(path).filter(|bytes| {
            bytes.split(|byte| *byte == b'/').all(|name| !matches!(name, b".." | b"."))
        });
        let Some(bytes) = bytes else {
            return Err(Failure::new(format!("{path} is no path of a set")));
        };
        let path = PathBuf::from(OsString::from_vec(bytes));
        Ok(self.root.join(path.strip_prefix("/").unwrap_or(&path)))
    }

    /// Removes the list of a set, and the directory of copies that had no other place, if that is empty.
    pub(super) fn forget(&self, list: &Listed) -> Outcome<()> {
        fs::remove_file(list.path())?;
        // They stay if something is there, or if they are not the caller's to remove.
        let _ = fs::remove_dir(list.folder.join(&list.set));
        let _ = fs::remove_dir(&list.folder);
        let _ = fs::remove_dir(self.root.join(DIRECTORY));
        Ok(())
    }
}
