//! How a filesystem is mounted.

use std::time::Duration;

pub use super::patience::Soft;
use crate::connection::KernelOptions;

/// How a filesystem is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Threads that take requests from the kernel, each with a queue of its own.
    pub threads: usize,
    /// The source, as the mount table shows it.
    pub source: String,
    /// The kernel refuses changes.
    pub read_only: bool,
    /// All users may use the mount, as far as permissions go; otherwise its owner alone.
    pub allow_other: bool,
    /// The kernel collects writes and hands them over later, page by page.
    pub writeback_cache: bool,
    /// The filesystem checks what users may do, and the kernel does not: it would let every user open devices, so that none can be.
    pub checks_users: bool,
    /// Set-user-id and set-group-id count.
    pub suid: bool,
    /// Devices can be opened.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Every write is durable when it returns.
    pub sync: bool,
    /// Every change of a directory is durable when it returns.
    pub dirsync: bool,
    /// Reads of inodes are not noted.
    pub noatime: bool,
    /// No other handle changes the filesystem, so there is nothing to watch.
    pub private: bool,
    /// Which locks the kernel forwards to the filesystem.
    pub locks: Locks,
    /// How long calls wait for a server that is away; `None`: until it is back, or the program is killed.
    pub soft: Option<Soft>,
    /// Bytes that the kernel reads ahead of a program at most; `None` for its own default. Only root can set it.
    pub read_ahead: Option<u32>,
    /// How long a thread that has answered a request looks for the next one before it sleeps, if that is worth it; zero: not at all.
    pub spin: Duration,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            threads: 2,
            source: "thalweg".to_owned(),
            read_only: false,
            allow_other: false,
            writeback_cache: false,
            checks_users: false,
            suid: true,
            dev: true,
            exec: true,
            sync: false,
            dirsync: false,
            noatime: false,
            private: false,
            locks: Locks::Kernel,
            soft: None,
            read_ahead: None,
            spin: Duration::from_micros(50),
        }
    }
}

impl MountOptions {
    pub(super) fn for_kernel(&self) -> KernelOptions {
        let flags = [
            (self.read_only, libc::MS_RDONLY),
            (!self.suid, libc::MS_NOSUID),
            (!self.dev || self.checks_users, libc::MS_NODEV),
            (!self.exec, libc::MS_NOEXEC),
            (self.sync, libc::MS_SYNCHRONOUS),
            (self.dirsync, libc::MS_DIRSYNC),
            (self.noatime, libc::MS_NOATIME),
        ];
        KernelOptions {
            source: self.source.clone(),
            subtype: Some("thalweg"),
            flags: flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag),
            allow_other: self.allow_other,
            checks_permissions: !self.checks_users,
        }
    }
}

/// Which locks the kernel forwards to the filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Locks {
    /// None: the kernel keeps them, which costs no request.
    #[default]
    Kernel,
    /// Those of fcntl.
    Posix,
    /// Those of flock.
    Bsd,
    /// Both. As on Linux, they do not know each other.
    Both,
}

impl Locks {
    /// Whether locks of fcntl are forwarded: they end at each close of a descriptor.
    pub(super) fn has_posix(self) -> bool {
        matches!(self, Locks::Posix | Locks::Both)
    }

    /// Whether locks of flock are forwarded.
    pub(super) fn has_bsd(self) -> bool {
        matches!(self, Locks::Bsd | Locks::Both)
    }
}
