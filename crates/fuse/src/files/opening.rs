//! Open files, in the kernel's terms.

use fuser::{FileHandle, FopenFlags, Request};
use thalweg_fs::access::{READ, SEARCH, WRITE};
use thalweg_fs::{Caller, FsError, Handle, Ino, OpenFlags, Opened, PageCache};

use super::served::Served;

/// The caller of a request.
pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

/// The flags of open(2).
pub(super) fn open_flags(flags: i32) -> OpenFlags {
    let access = flags & libc::O_ACCMODE;
    OpenFlags {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        append: flags & libc::O_APPEND != 0,
        direct: flags & libc::O_DIRECT != 0,
        // O_SYNC includes this bit.
        sync: flags & libc::O_DSYNC != 0,
    }
}

/// The kernel's flag of an open of a program that is to be executed: `__FMODE_EXEC`.
const EXECUTES: i32 = 0x20;

/// What a user must be allowed to do with a file that is opened with the flags of open(2).
pub(super) fn wanted_access(flags: i32) -> u16 {
    if flags & EXECUTES != 0 {
        return SEARCH;
    }
    let OpenFlags { read, write, .. } = open_flags(flags);
    (if read { READ } else { 0 }) | (if write { WRITE } else { 0 })
}

/// An open file as the kernel knows it: the filesystem's handle, and whether the kernel caches its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KernelHandle {
    pub(super) handle: Handle,
    pub(super) is_direct: bool,
    /// Whether the kernel may have pages of it that are not written yet.
    pub(super) may_dirty: bool,
}

impl KernelHandle {
    pub(super) fn of(file: FileHandle) -> KernelHandle {
        let bit = |at: u32| file.0 >> at & 1 == 1;
        KernelHandle { handle: Handle(file.0 >> 2), is_direct: bit(0), may_dirty: bit(1) }
    }

    pub(super) fn file(self) -> FileHandle {
        FileHandle(self.handle.0 << 2 | u64::from(self.may_dirty) << 1 | u64::from(self.is_direct))
    }
}

/// The handle of a file that was opened with these flags, and how the kernel treats its pages and its closes.
fn file_opened(opened: &Opened, flags: OpenFlags, wants_flush: bool) -> (KernelHandle, FopenFlags) {
    let is_direct = flags.direct || opened.pages == PageCache::Bypass;
    let mut how = match (is_direct, opened.pages) {
        (true, _) => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        (false, PageCache::Keep) => FopenFlags::FOPEN_KEEP_CACHE,
        (false, _) => FopenFlags::empty(),
    };
    if !(opened.flush || wants_flush) {
        how |= FopenFlags::FOPEN_NOFLUSH;
    }
    (KernelHandle { handle: opened.handle, is_direct, may_dirty: false }, how)
}

impl Served {
    /// Opens a file; how the kernel knows it, and treats it.
    pub(super) async fn open(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: OpenFlags,
        wants_flush: bool,
    ) -> Result<(KernelHandle, FopenFlags), FsError> {
        let opened = self.filesystem.open(caller, ino, flags).await?;
        let (mut handle, how) = file_opened(&opened, flags, wants_flush);
        if !handle.is_direct {
            self.known.note_cached(ino);
        }
        handle.may_dirty = self.dirty.open(ino, flags, handle.is_direct);
        Ok((handle, how))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_comes_back() {
        for (is_direct, may_dirty) in [(false, false), (false, true), (true, false), (true, true)] {
            let handle = KernelHandle { handle: Handle((1 << 62) - 1), is_direct, may_dirty };
            assert_eq!(KernelHandle::of(handle.file()), handle);
        }
    }

    #[test]
    fn the_filesystem_says_how_pages_are_cached() {
        let (keep, direct) = (FopenFlags::FOPEN_KEEP_CACHE, FopenFlags::FOPEN_DIRECT_IO);
        let cases = [
            (PageCache::Keep, 0, Some(keep), false),
            (PageCache::Renew, 0, None, false),
            (PageCache::Bypass, 0, Some(direct), true),
            (PageCache::Keep, libc::O_DIRECT, Some(direct), true),
        ];
        for (pages, flags, expected, is_direct) in cases {
            let opened = Opened { pages, ..Opened::default() };
            let (handle, how) = file_opened(&opened, open_flags(flags), false);
            assert_eq!(how & (keep | direct), expected.unwrap_or(FopenFlags::empty()));
            assert_eq!(handle.is_direct, is_direct);
            assert!(how.contains(FopenFlags::FOPEN_NOFLUSH));
            let (_, how) = file_opened(&opened, open_flags(flags), true);
            assert!(!how.contains(FopenFlags::FOPEN_NOFLUSH));
        }
        let flags = open_flags(libc::O_WRONLY | libc::O_APPEND | libc::O_SYNC);
        assert_eq!((flags.read, flags.write, flags.append, flags.sync), (false, true, true, true));
    }
}
