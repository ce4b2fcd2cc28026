#!/bin/sh
# Linux 6.18 (fuse), fuser 0.18.0, Rust: a network filesystem's file is made shorter by another client, and the kernel still has the
# old size. A process reads the last page that the file has left, and another one a page behind it, at the same time. The filesystem
# answers the second one first, with no bytes, as it has to at and behind the end, then the first one with the 100 bytes that there are.
# Expected: the first process gets 100 bytes, as it does without the other one: a short answer to a read of a page shows the kernel the end.
# Seen: it gets 4096, the rest of them zeros that nobody has written. From the answer of nothing the kernel has taken that page's
# offset for the end; after that, an answer to a request that was sent before does not count (fuse_read_update_size compares the
# versions of the attributes), though it shows the true end. Only the next stat(2) mends the size. A filesystem can avoid it by
# answering reads behind the end last. It does not depend on how long attributes are valid: here it is no time at all.
# Needs: cargo, fusermount3, python3, /dev/fuse. Ends with 0 while this is so.
set -eu
folder=$(mktemp -d)
trap 'fusermount3 -u "$folder/mnt" 2>/dev/null || true; rm -rf "$folder"' EXIT
mkdir "$folder/src" "$folder/mnt"
cat >"$folder/Cargo.toml" <<'T'
[package]
name = "ends"
version = "0.0.0"
edition = "2024"
[dependencies]
fuser = "=0.18.0"
T
cat >"$folder/src/main.rs" <<'R'
use std::ffi::OsStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};

const PAGE: u64 = 4096;
const SHORTER: u64 = 3 * PAGE + 100;

#[derive(Default)]
struct OneFile {
    /// The numbers of the files that were opened: each gets shorter right after that.
    opens: AtomicU64,
    /// The answer to the read of the last page of the second file, which waits for one behind it.
    held: Mutex<Option<ReplyData>>,
}

fn attributes(ino: u64, size: u64) -> FileAttr {
    let (kind, perm) = if ino == 1 { (FileType::Directory, 0o755) } else { (FileType::RegularFile, 0o644) };
    FileAttr {
        ino: INodeNo(ino), size, blocks: 0, atime: UNIX_EPOCH, mtime: UNIX_EPOCH, ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH, kind, perm, nlink: 1, uid: 0, gid: 0, rdev: 0, blksize: 4096, flags: 0,
    }
}

impl OneFile {
    fn size(&self, ino: u64) -> u64 {
        if self.opens.load(Ordering::SeqCst) & ino != 0 { SHORTER } else { 5 * PAGE }
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ino = match name.to_str() {
            Some("alone") => 2,
            Some("crossed") => 4,
            _ => return reply.error(Errno::ENOENT),
        };
        reply.entry(&Duration::ZERO, &attributes(ino, self.size(ino)), Generation(0));
    }
    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &attributes(ino.0, self.size(ino.0)));
    }
    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.opens.fetch_or(ino.0, Ordering::SeqCst);
        reply.opened(FileHandle(1), FopenFlags::empty());
    }
    #[allow(clippy::too_many_arguments)]
    fn read(
        &self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, size: u32, _: OpenFlags, _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        println!("{}: read of {size} at {offset}", if ino.0 == 2 { "alone" } else { "crossed" });
        match offset {
            o if o > SHORTER => {
                reply.data(&[]);
                if let Some(held) = self.held.lock().unwrap().take() {
                    held.data(&[b'x'; 100]);
                }
            }
            o if o == 3 * PAGE && ino.0 == 4 => *self.held.lock().unwrap() = Some(reply),
            o if o == 3 * PAGE => reply.data(&[b'x'; 100]),
            _ => reply.data(&vec![b'x'; size as usize]),
        }
    }
}

fn main() {
    fuser::mount(OneFile::default(), std::env::args().nth(1).unwrap(), &Config::default()).unwrap();
}
R
(cd "$folder" && cargo build --quiet)
"$folder/target/debug/ends" "$folder/mnt" >"$folder/said" &
for _ in $(seq 100); do [ -e "$folder/mnt/alone" ] && break; sleep 0.1; done
timeout 60 python3 - "$folder/mnt" <<'P'
import os, sys, threading, time
def last_page(name, beside):
    file = os.open(f"{sys.argv[1]}/{name}", os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    found = []
    reading = threading.Thread(target=lambda: found.append(os.pread(file, 4096, 3 * 4096)))
    reading.start()
    time.sleep(0.5)
    if beside:
        assert os.pread(file, 4096, 4 * 4096) == b"", "changed: bytes behind the end"
    reading.join()
    size = os.fstat(file).st_size
    os.close(file)
    return found[0], size
alone, _ = last_page("alone", False)
crossed, size = last_page("crossed", True)
print(f"alone: {len(alone)} bytes; with a read behind it: {len(crossed)}, {crossed.count(0)} of them zeros; the size is {size}")
assert alone == b"x" * 100, "changed: a short answer shows no end"
assert crossed == b"x" * 100 + bytes(3996) and size == 3 * 4096 + 100, "changed"
P
fusermount3 -u "$folder/mnt"
wait
cat "$folder/said"
echo "as described: zeros behind the end of a file, on $(uname -r | cut -d. -f1,2)"
