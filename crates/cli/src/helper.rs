//! The names under which other programs call this one: mount(8) calls `mount.thalweg`, and
//! `mount.fuse.thalweg` if the type comes from the mount table; umount(8) calls `umount.fuse.thalweg`, and
//! `umount.thalweg` for a mount with `uhelper`; mkfs(8) calls `mkfs.thalweg`, fsck(8) `fsck.thalweg`. Each is
//! a link to this program. mount.fuse3, in its role as `mount.fuse.thalweg`, calls the program itself with
//! mount(8)'s arguments: first a volume and a directory.

use std::ffi::OsString;
use std::path::Path;

use crate::places::NAME;

/// The exit codes that a caller expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codes {
    /// The arguments are invalid.
    pub(crate) usage: u8,
    /// The command failed.
    pub(crate) failed: u8,
}

/// A name, its command, and its exit codes.
const NAMES: [(&str, &str, Codes); 6] = [
    ("mount.thalweg", "mount", MOUNT),
    ("mount.fuse.thalweg", "mount", MOUNT),
    ("umount.thalweg", "umount", MOUNT),
    ("umount.fuse.thalweg", "umount", MOUNT),
    ("mkfs.thalweg", "mkfs", Codes { usage: 1, failed: 1 }),
    ("fsck.thalweg", "fsck", FSCK),
];

/// Those of mount(8).
const MOUNT: Codes = Codes { usage: 1, failed: 32 };
/// Those of fsck(8), also for `thalweg fsck`.
const FSCK: Codes = Codes { usage: 16, failed: 8 };

/// Inserts the command that the program's name means into the arguments; returns the exit codes that a caller
/// by that name expects.
pub(crate) fn translate(words: &mut Vec<OsString>) -> Codes {
    let called = words.first().and_then(|word| Path::new(word).file_name());
    let known = NAMES.into_iter().find(|(name, ..)| called.is_some_and(|called| called == *name));
    match known {
        Some((_, command, codes)) => {
            words[0] = NAME.into();
            words.insert(1, command.into());
            codes
        }
        // The first argument of mount.fuse3 is a path, and no command is one.
        None if words.len() > 2 && words[1].as_encoded_bytes().starts_with(b"/") => {
            words.insert(1, "mount".into());
            MOUNT
        }
        None if words.get(1).is_some_and(|word| word == "fsck") => FSCK,
        None => Codes { usage: 2, failed: 1 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(words: &[&str]) -> (Vec<String>, Codes) {
        let mut words = words.iter().map(OsString::from).collect();
        let codes = translate(&mut words);
        (words.into_iter().map(|word| word.into_string().unwrap()).collect(), codes)
    }

    #[test]
    fn a_helper_is_its_command() {
        let (words, codes) = translated(&["/sbin/mount.thalweg", "/srv/vol", "/mnt", "-o", "rw"]);
        assert_eq!(words, ["thalweg", "mount", "/srv/vol", "/mnt", "-o", "rw"]);
        assert_eq!((codes.usage, codes.failed), (1, 32));
        let (words, codes) = translated(&["thalweg", "/srv/vol", "/mnt", "-o", "rw"]);
        assert_eq!(words, ["thalweg", "mount", "/srv/vol", "/mnt", "-o", "rw"]);
        assert_eq!((codes.usage, codes.failed), (1, 32));
        let (words, codes) = translated(&["fsck.thalweg", "-a", "/srv/vol"]);
        assert_eq!(words, ["thalweg", "fsck", "-a", "/srv/vol"]);
        assert_eq!((codes.usage, codes.failed), (16, 8));
    }

    #[test]
    fn the_program_itself_is_left_alone() {
        let (words, codes) = translated(&["./thalweg", "mount", "v", "d"]);
        assert_eq!(words, ["./thalweg", "mount", "v", "d"]);
        assert_eq!((codes.usage, codes.failed), (2, 1));
        assert_eq!(translated(&["thalweg", "fsck", "v"]).1, FSCK);
    }
}
