#!/bin/sh
# fuser 0.18.0, Linux, Rust: a filesystem that announces both FUSE_FLOCK_LOCKS and FUSE_POSIX_LOCKS gets flock(2) and fcntl(F_SETLK) by
# the same callback, Filesystem::setlk. The kernel tells the two apart by a flag of its request (lk_flags, FUSE_LK_FLOCK). Expected: the
# callback has it, since the two kinds of locks do not know each other on Linux. Seen: it has no such argument. A lock of a whole
# file comes with the same type and range for both kinds, and only a lock owner differs, which says nothing of the kind. So
# a program that takes both, as mail programs do, excludes itself on a filesystem that keeps one table.
# Needs: cargo, fusermount3, python3, /dev/fuse. Ends with 0 while this is so.
set -eu
folder=$(mktemp -d)
trap 'fusermount3 -u "$folder/mnt" 2>/dev/null || true; rm -rf "$folder"' EXIT
mkdir "$folder/src" "$folder/mnt"
cat >"$folder/Cargo.toml" <<'T'
[package]
name = "locks"
version = "0.0.0"
edition = "2024"
[dependencies]
fuser = "=0.18.0"
libc = "0.2"
T
cat >"$folder/src/main.rs" <<'R'
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};

struct OneFile;

fn attributes(ino: u64) -> FileAttr {
    let (kind, perm) = if ino == 1 { (FileType::Directory, 0o755) } else { (FileType::RegularFile, 0o644) };
    FileAttr {
        ino: INodeNo(ino), size: 0, blocks: 0, atime: UNIX_EPOCH, mtime: UNIX_EPOCH, ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH, kind, perm, nlink: 1, uid: 0, gid: 0, rdev: 0, blksize: 4096, flags: 0,
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let both = InitFlags::FUSE_FLOCK_LOCKS | InitFlags::FUSE_POSIX_LOCKS;
        config.add_capabilities(both).map_err(|_| io::Error::other("the kernel lacks them"))
    }
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "file" {
            true => reply.entry(&Duration::ZERO, &attributes(2), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }
    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &attributes(ino.0));
    }
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), FopenFlags::empty());
    }
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }
    #[allow(clippy::too_many_arguments)]
    fn setlk(
        &self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, start: u64, end: u64, kind: i32, _: u32,
        sleep: bool, reply: ReplyEmpty,
    ) {
        if kind != libc::F_UNLCK {
            println!("type {kind}, from {start} to {end}, waits: {sleep}");
        }
        reply.ok();
    }
}

fn main() {
    fuser::mount(OneFile, std::env::args().nth(1).unwrap(), &Config::default()).unwrap();
}
R
(cd "$folder" && cargo build --quiet)
"$folder/target/debug/locks" "$folder/mnt" >"$folder/said" &
for _ in $(seq 100); do [ -e "$folder/mnt/file" ] && break; sleep 0.1; done
python3 - "$folder/mnt/file" <<'P'
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
P
fusermount3 -u "$folder/mnt"
wait
cat "$folder/said"
[ "$(wc -l <"$folder/said")" = 2 ] || { echo "changed: not one call for each lock"; exit 1; }
[ "$(sort -u "$folder/said" | wc -l)" = 1 ] || { echo "changed: the two kinds differ"; exit 1; }
echo "as described: fuser 0.18.0 gives flock(2) and fcntl(2) to setlk with the same arguments"
