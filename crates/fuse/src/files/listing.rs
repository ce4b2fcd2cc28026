//! Listings of directories, with `.` and `..`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use bytes::Bytes;
use fuser::{FileAttr, INodeNo, ReplyDirectory, ReplyDirectoryPlus, Request};
use thalweg_fs::{Answer, Cookie, FsError, Ino, Kind};

use super::adapter::Adapter;
use super::attributes::{file_type, nothing};
use super::patience::Signals;
use super::served::{GENERATION, Served};
use crate::errno::of_filesystem;

/// Entries of a directory that are read at a time.
const ENTRIES: usize = 128;
/// Places in a directory before the first entry: `.` and `..`.
const DOTS: u64 = 2;

impl Served {
    /// Calls `add` with the entries from a place on, until it has room for no more. `add` gets the
    /// inode, the next place, the name, the kind and, where `plus` is set, the attributes.
    async fn list(
        &self,
        ino: Ino,
        from: u64,
        plus: bool,
        mut add: impl FnMut(Ino, u64, &[u8], Kind, Option<Answer>) -> bool,
    ) -> Result<(), FsError> {
        let mut place = from;
        while let Some((next, name)) = [(1, &b"."[..]), (2, b"..")].get(place as usize) {
            let shown = if *next == 1 { ino } else { self.filesystem.parent(ino).await? };
            if add(shown, *next, name, Kind::Directory, None) {
                return Ok(());
            }
            place = *next;
        }
        loop {
            let from = Cookie(place - DOTS);
            let entries = self.filesystem.read_directory(ino, from, ENTRIES, plus).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let next = entry.cookie.0 + DOTS;
                if add(entry.ino, next, &entry.name, entry.kind, entry.attributes) {
                    return Ok(());
                }
                place = next;
            }
        }
    }
}

impl Adapter {
    pub(super) fn list(
        &self,
        request: &Request,
        ino: INodeNo,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let by = self.of(request);
        let failures = self.stages().failures();
        let (patience, served) = (by.patience(Signals::Requests), by.served);
        self.start("readdir", async move {
            let add = |ino: Ino, next, name: &[u8], kind, _| {
                reply.add(INodeNo(ino.0), next, file_type(kind), OsStr::from_bytes(name))
            };
            let listed = tokio::select! {
                biased;
                listed = served.list(Ino(ino.0), offset, false, add) => {
                    listed.map_err(|error| failures.counted(of_filesystem("readdir", &error)))
                }
                errno = patience.ended() => Err(errno),
            };
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    pub(super) fn list_plus(
        &self,
        request: &Request,
        ino: INodeNo,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let by = self.of(request);
        let failures = self.stages().failures();
        let (patience, served) = (by.patience(Signals::Requests), by.served);
        self.start("readdirplus", async move {
            let mut told_of = Vec::new();
            let (directory, epoch) = (Ino(ino.0), served.known.epoch());
            let add = |ino: Ino, next, bytes: &[u8], kind, answer: Option<Answer>| {
                let name = OsStr::from_bytes(bytes);
                let inode = INodeNo(ino.0);
                let Some(answer) = answer else {
                    // The kernel takes the number and the kind, and counts nothing.
                    let dots = FileAttr { ino: inode, kind: file_type(kind), ..nothing() };
                    return reply.add(inode, next, name, &Duration::ZERO, &dots, GENERATION);
                };
                // Before the kernel can forget it.
                let told =
                    served.tell_name(directory, &Bytes::copy_from_slice(bytes), &answer, epoch);
                let full = reply.add(inode, next, name, &told.valid(), &told.attr, GENERATION);
                match full {
                    true => served.known.forget(&*served.filesystem, ino, 1),
                    false => told_of.push(ino),
                }
                full
            };
            let listed = tokio::select! {
                biased;
                listed = served.list(Ino(ino.0), offset, true, add) => {
                    listed.map_err(|error| failures.counted(of_filesystem("readdirplus", &error)))
                }
                errno = patience.ended() => Err(errno),
            };
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => {
                    // The kernel hears of none of them.
                    for ino in told_of {
                        served.known.forget(&*served.filesystem, ino, 1);
                    }
                    reply.error(errno);
                }
            }
        });
    }
}
