//! `journal_dev=PATH` or `PATH+PATH` of a client of a shared filesystem: where its journal is.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// In the place of a device that is lost for good.
pub(crate) const MISSING: &str = "missing";

/// A file or a device, or two that are a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalPlace {
    One(PathBuf),
    Two([PathBuf; 2]),
}

impl JournalPlace {
    /// What is named. A file that is there may have a `+` in its name.
    pub(crate) fn parse(text: &Path) -> Outcome<JournalPlace> {
        let names = text.to_str().filter(|_| !text.exists());
        let parts: Vec<&str> = names.map(|names| names.split('+').collect()).unwrap_or_default();
        let wrong = |why: &str| {
            let help = format!(
                "write PATH, PATH+PATH for a mirror of two, or PATH+{MISSING} if the other one is lost for good"
            );
            Failure::new(format!("{} {why}", text.display())).help(help)
        };
        match parts[..] {
            [] | [_] => Ok(JournalPlace::One(text.to_owned())),
            [first, second] if first.is_empty() || second.is_empty() => {
                Err(wrong("names one file or device, and none behind the +"))
            }
            [MISSING, MISSING] => Err(wrong("names no device that is there")),
            [first, second] => Ok(JournalPlace::Two([first.into(), second.into()])),
            _ => Err(wrong("names more than two files or devices")),
        }
    }

    /// The files and devices that are named.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        match self {
            JournalPlace::One(path) => std::slice::from_ref(path),
            JournalPlace::Two(paths) => paths,
        }
    }

    /// Whether none of them is there, and none is said to be lost.
    pub(crate) fn is_new(&self) -> bool {
        self.paths().iter().all(|path| !path.exists() && path.as_os_str() != MISSING)
    }

    /// Whether those that are there have so many bytes.
    pub(crate) fn has_size(&self, bytes: u64) -> bool {
        let sizes = self.paths().iter().filter_map(|path| path.metadata().ok());
        sizes.filter(|it| it.is_file()).all(|it| it.len() == bytes)
    }

    /// The same with absolute paths, for a process in another directory.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn absolute(&self) -> std::io::Result<JournalPlace> {
        let absolute = |path: &PathBuf| match path.as_os_str() == MISSING {
            true => Ok(path.clone()),
            false => std::path::absolute(path),
        };
        Ok(match self {
            JournalPlace::One(path) => JournalPlace::One(std::path::absolute(path)?),
            JournalPlace::Two([first, second]) => {
                JournalPlace::Two([absolute(first)?, absolute(second)?])
            }
        })
    }
}

impl fmt::Display for JournalPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalPlace::One(path) => path.display().fmt(f),
            JournalPlace::Two([first, second]) => {
                write!(f, "{}+{}", first.display(), second.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<JournalPlace, String> {
        JournalPlace::parse(Path::new(text)).map_err(|error| error.to_string())
    }

    #[test]
    fn two_paths_are_a_mirror() {
        let two = |first: &str, second: &str| JournalPlace::Two([first.into(), second.into()]);
        assert_eq!(parse("/x/a"), Ok(JournalPlace::One("/x/a".into())));
        assert_eq!(parse("/x/a+/x/b"), Ok(two("/x/a", "/x/b")));
        assert_eq!(parse("/x/a+missing"), Ok(two("/x/a", MISSING)));
        assert_eq!(two("/x/a", MISSING).absolute().unwrap().to_string(), "/x/a+missing");
        for (wrong, word) in [
            ("+/x/b", "none behind"),
            ("/x/a+", "none behind"),
            ("/x/a+/x/b+/x/c", "more than two"),
            ("missing+missing", "no device"),
        ] {
            assert!(parse(wrong).unwrap_err().contains(word), "{wrong}");
        }
    }

    #[test]
    fn a_file_with_a_plus_in_its_name_is_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a+b");
        std::fs::write(&file, "").unwrap();
        assert_eq!(JournalPlace::parse(&file).ok(), Some(JournalPlace::One(file)));
    }
}
