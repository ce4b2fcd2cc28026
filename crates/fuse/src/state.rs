//! The folder of a user's sockets and mountpoints, which exist while something is served.
//!
//! Root's is `/run/thalweg`. Another user's is `thalweg` in `$XDG_RUNTIME_DIR` or in `/run/user/UID`, where
//! that directory is the user's own, and otherwise `/tmp/thalweg-UID`: so it exists in cron jobs,
//! containers and under su(1) too, and never collides with another user's.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

pub use thalweg_store::open::runtime_folders as folders;

/// The user of this process.
pub fn user() -> u32 {
    // SAFETY: the call only reads the process's identity and cannot fail.
    unsafe { libc::geteuid() }
}

/// This user's folder, made when missing.
///
/// # Errors
/// Those of the system; `PermissionDenied` when the folder is not this user's alone.
pub fn folder() -> io::Result<PathBuf> {
    let places = folders(user());
    let Some(place) = places.into_iter().next() else {
        return Err(io::Error::other("there is no folder for sockets"));
    };
    private(&place)?;
    Ok(place)
}

/// A directory in this user's folder, made when missing.
///
/// # Errors
/// As of [`folder`]; `InvalidInput` when `name` is not a plain name.
pub fn directory(name: &str) -> io::Result<PathBuf> {
    let place = folder()?.join(plain(name)?);
    match crate::mounts::at(&place)? {
        // Perhaps a dead mount, which cannot be looked into.
        Some(_) => {}
        None => private(&place)?,
    }
    Ok(place)
}

/// Makes a directory in one of this user's folders, and the folder.
///
/// # Errors
/// As of [`folder`].
pub fn make(place: &Path) -> io::Result<()> {
    place.parent().map_or(Ok(()), private)?;
    private(place)
}

/// The path of `name` in the first of this user's folders that has it; otherwise where [`directory`] would
/// make it. A server may have been started where the folder was another one: without a login session for
/// example.
///
/// # Errors
/// `InvalidInput` when `name` is not a plain name.
pub fn find(name: &str) -> io::Result<PathBuf> {
    let name = plain(name)?;
    let places: Vec<_> = folders(user()).iter().map(|folder| folder.join(name)).collect();
    let found = places.iter().find(|place| std::fs::symlink_metadata(place).is_ok());
    let place = found.or(places.first()).cloned();
    place.ok_or_else(|| io::Error::other("there is no folder for sockets"))
}

fn plain(name: &str) -> io::Result<&str> {
    match name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        false => Ok(name),
        true => {
            let said = format!("{name:?} cannot name a directory");
            Err(io::Error::new(io::ErrorKind::InvalidInput, said))
        }
    }
}

/// Makes a directory that is this user's alone, or checks that it is. A symbolic link is not one.
fn private(path: &Path) -> io::Result<()> {
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("{} cannot be used: {error}", path.display()))
    };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(named(error)),
        _ => {}
    }
    let found = std::fs::symlink_metadata(path).map_err(named)?;
    match found.is_dir() && found.uid() == user() && found.mode() & 0o077 == 0 {
        true => Ok(()),
        false => {
            let said = "it must be a directory of this user with mode 0700";
            Err(named(io::Error::new(io::ErrorKind::PermissionDenied, said)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_has_a_folder_of_its_own() {
        assert_eq!(folders(0), [Path::new("/run/thalweg")]);
        let last = folders(4_000_000_000).pop().unwrap();
        assert_eq!(last, Path::new("/tmp/thalweg-4000000000"));
        for name in ["", "..", ".hidden", "a/b", "/a", "a\0b"] {
            assert_eq!(directory(name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let open = home.path().join("open");
        DirBuilder::new().mode(0o755).create(&open).unwrap();
        assert_eq!(private(&open).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let link = home.path().join("link");
        std::os::unix::fs::symlink(home.path(), &link).unwrap();
        assert_eq!(private(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        private(&home.path().join("own")).unwrap();
    }
}
