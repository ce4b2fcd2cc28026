//! Locks on files: requests of the kernel, and waits that a signal ends.
//!
//! By default the kernel keeps the locks of a mount by itself: no request is sent, and only processes that use
//! this mount see them. With [`Locks`](super::Locks) the kernel forwards them to the filesystem, where other mounts
//! and other machines see them.
//!
//! Locks of flock and of fcntl do not know each other, as on Linux's own filesystems: a program that takes both of one file does not
//! wait for itself. The FUSE library does not pass on the flag by which the kernel tells them apart; [`kind_of`] finds it behind
//! the header of the request.
//!
//! Any signal that its thread handles ends a wait for a lock ([`patience`](super::patience)).

use fuser::{Errno, FileHandle, ReplyEmpty, ReplyLock, Request};
use thalweg_fs::{Ino, Lock, LockKind, LockMode, LockOwner, LockRange};

use super::adapter::Adapter;
use super::opening::KernelHandle;
use super::patience::Signals;
use crate::errno::of_filesystem;

impl Adapter {
    /// Answers with a lock that excludes the wanted one.
    pub(super) fn show_lock(
        &self,
        request: &Request,
        ino: Ino,
        lock: Result<Option<Lock>, Errno>,
        reply: ReplyLock,
    ) {
        let lock = match lock {
            Ok(Some(lock)) => lock,
            Ok(None) => return reply.error(Errno::EINVAL),
            Err(errno) => return reply.error(errno),
        };
        self.by(request).run(
            "getlk",
            reply,
            move |served| async move { served.filesystem.conflicting_lock(ino, &lock).await },
            |reply, found| {
                let (first, last, mode, pid) = shown(found);
                reply.locked(first, last, mode, pid);
            },
        );
    }

    pub(super) fn release_lock(
        &self,
        request: &Request,
        (ino, kind): (Ino, LockKind),
        owner: fuser::LockOwner,
        range: LockRange,
        reply: ReplyEmpty,
    ) {
        let owner = LockOwner::local(owner.0);
        self.by(request).run_empty("unlock", reply, move |served| async move {
            served.filesystem.unlock(ino, kind, owner, range).await
        });
    }

    /// Takes a lock for a thread, which a signal may keep from waiting.
    pub(super) fn take_lock(
        &self,
        request: &Request,
        ino: Ino,
        lock: Lock,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let by = self.by(request);
        if !wait {
            by.run_or_undo(
                "lock",
                reply,
                move |served| async move { served.filesystem.lock(ino, &lock, false).await },
                |reply, ()| reply.ok(),
                move |served, ()| async move {
                    let Lock { kind, owner, range, .. } = lock;
                    if let Err(error) = served.filesystem.unlock(ino, kind, owner, range).await {
                        tracing::debug!(%error, "a lock that nothing waited for was not released");
                    }
                },
            );
            return;
        }
        let (served, patience) = (by.served.clone(), by.patience(Signals::All));
        self.start("lock", async move {
            // Dropping it takes the wait back.
            let locked = served.filesystem.lock(ino, &lock, wait);
            let answer = tokio::select! {
                biased;
                locked = locked => locked.map_err(|error| of_filesystem("lock", &error)),
                errno = patience.ended() => Err(errno),
            };
            match answer {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }
}

/// The lock that the kernel wants, or `None` for an unlock.
///
/// # Errors
/// `EINVAL`
pub(super) fn wanted_lock(
    kind: LockKind,
    (file, owner): (FileHandle, fuser::LockOwner),
    (start, end): (u64, u64),
    mode: i32,
    pid: u32,
) -> Result<Option<Lock>, Errno> {
    let lock = |mode| Lock {
        kind,
        owner: LockOwner::local(owner.0),
        handle: KernelHandle::of(file).handle,
        pid,
        mode,
        range: range(start, end),
    };
    Ok(wanted_mode(mode)?.map(lock))
}

/// The first bytes of each request: `fuse_in_header` of `linux/fuse.h`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RequestHeader {
    len: u32,
    opcode: u32,
    unique: u64,
    node: u64,
    uid: u32,
    gid: u32,
    pid: u32,
    rest: u32,
}

/// What follows in a request for a lock: `fuse_lk_in`.
#[derive(Clone, Copy)]
#[repr(C)]
struct LockRequest {
    handle: u64,
    owner: u64,
    start: u64,
    end: u64,
    mode: i32,
    pid: u32,
    flags: u32,
    padding: u32,
}

// The library's request is the kernel's header, in the buffer where the whole request was received.
const _: () = assert!(size_of::<RequestHeader>() == size_of::<Request>());

/// The flag of a lock of flock: `FUSE_LK_FLOCK`.
const FLOCK: u32 = 1;

/// The kind of the lock that a request is about.
pub(super) fn kind_of(
    request: &Request,
    (handle, owner): (FileHandle, fuser::LockOwner),
    (start, end): (u64, u64),
) -> LockKind {
    let at = std::ptr::from_ref(request).expose_provenance();
    // SAFETY: `Request` is a transparent wrapper of the header, of this size and alignment.
    let header = unsafe { *std::ptr::with_exposed_provenance::<RequestHeader>(at) };
    let len = size_of::<RequestHeader>() + size_of::<LockRequest>();
    if header.len as usize != len || header.unique != request.unique().0 {
        return LockKind::Posix;
    }
    let behind = at + size_of::<RequestHeader>();
    // SAFETY: the library borrows the header from the buffer that the kernel has filled, whose address was given to read(2); it
    // refuses a request that is shorter than the length in its header.
    let lock = unsafe { std::ptr::with_exposed_provenance::<LockRequest>(behind).read_unaligned() };
    // What the library says is there shows that it is there.
    let is_there =
        (lock.handle, lock.owner) == (handle.0, owner.0) && (lock.start, lock.end) == (start, end);
    match is_there && lock.flags & FLOCK != 0 {
        true => LockKind::Bsd,
        false => LockKind::Posix,
    }
}

/// The last byte of a lock up to the end of the file, for the kernel.
const END: u64 = i64::MAX as u64;

/// The range that the kernel means, both ends included.
pub(super) fn range(start: u64, end: u64) -> LockRange {
    LockRange { first: start, last: if end >= END { u64::MAX } else { end } }
}

/// What the kernel wants: a mode, or `None` to unlock.
///
/// # Errors
/// `EINVAL`
fn wanted_mode(kind: i32) -> Result<Option<LockMode>, Errno> {
    match kind {
        libc::F_RDLCK => Ok(Some(LockMode::Shared)),
        libc::F_WRLCK => Ok(Some(LockMode::Exclusive)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Errno::EINVAL),
    }
}

/// A lock in the kernel's terms: first and last byte, mode and process.
fn shown(lock: Option<Lock>) -> (u64, u64, i32, u32) {
    let Some(lock) = lock else { return (0, 0, libc::F_UNLCK, 0) };
    let mode = match lock.mode {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Exclusive => libc::F_WRLCK,
    };
    (lock.range.first.min(END), lock.range.last.min(END), mode, lock.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_up_to_the_end_are_without_end() {
        assert_eq!(range(0, END), LockRange::ALL);
        assert_eq!(range(7, 9), LockRange { first: 7, last: 9 });
        assert_eq!(shown(None).2, libc::F_UNLCK);
    }
}
