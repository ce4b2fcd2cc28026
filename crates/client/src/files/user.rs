//! The user that calls act for.

use std::io;

use thalweg_fs::Credentials;
use thalweg_fs::access::Actor;

/// The user that calls act for: the owner of new inodes; modes and access control lists say what the user may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The user; 0, root, may do everything that Linux permits root.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Permission bits that new inodes do not get.
    pub umask: u16,
}

impl User {
    /// The user that the kernel checks for files of the calling thread, with the umask of the process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of_process() -> io::Result<User> {
        let text = std::fs::read_to_string("/proc/thread-self/status")?;
        User::parse(&text).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/thread-self/status names no user")
        })
    }

    fn parse(status: &str) -> Option<User> {
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // Real, effective, saved, and that of files.
        let of_files = |name| line(name)?.split_whitespace().nth(3)?.parse().ok();
        Some(User {
            uid: of_files("Uid:")?,
            gid: of_files("Gid:")?,
            groups: line("Groups:")?.split_whitespace().filter_map(|it| it.parse().ok()).collect(),
            umask: u16::from_str_radix(line("Umask:")?.trim(), 8).ok()?,
        })
    }

    /// The user, for a server.
    pub(super) fn credentials(&self) -> Credentials {
        Credentials::new(self.uid, self.gid, &self.groups)
    }

    /// The user, for the rules.
    pub(super) fn actor(&self) -> Actor<'_> {
        Actor { uid: self.uid, gid: self.gid, groups: &self.groups }
    }
}
