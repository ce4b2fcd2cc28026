//! The kernel's requests, each decoded and answered.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FopenFlags, INodeNo,
    IoctlFlags, KernelConfig, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use thalweg_fs::access::{READ, SEARCH, WRITE};
use thalweg_fs::{AttributeChange, Ino, LockKind, LockOwner, Node};

use super::adapter::Adapter;
use super::attributes::{file_attr, time_change};
use super::locks::{self, wanted_lock};
use super::names::bytes_of;
use super::opening::{KernelHandle, caller, open_flags, wanted_access};

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.look_up(request, parent, name, reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        let _runtime = self.runtime.enter();
        self.served.known.forget(&*self.served.filesystem, Ino(ino.0), count);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.show_attributes(request, Ino(ino.0), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = AttributeChange {
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            accessed: accessed.map(time_change),
            modified: modified.map(time_change),
            // A new owner, and a truncation by a user other than root, clear privileges. A mode in the same
            // request is the caller's own choice.
            clear_suid: mode.is_none()
                && (uid.is_some() || gid.is_some() || (size.is_some() && request.uid() != 0)),
        };
        let ino = Ino(ino.0);
        if mode.is_some() {
            self.served.known.granted(ino);
        }
        self.of(request).changing_inode(ino).run(
            "setattr",
            reply,
            |served| async move {
                let answer = served.set_attributes(ino, &change).await?;
                served.known.note_size(ino, answer.size);
                Ok((served.validity(&answer), answer))
            },
            |reply, (valid, answer)| reply.attr(&valid.attributes, &file_attr(&answer)),
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.by(request).run(
            "readlink",
            reply,
            |served| async move { served.filesystem.read_link(Ino(ino.0)).await },
            |reply, target| reply.data(&target),
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let node = match mode & libc::S_IFMT {
            libc::S_IFREG => Node::File,
            libc::S_IFBLK => Node::BlockDevice(rdev),
            libc::S_IFCHR => Node::CharDevice(rdev),
            libc::S_IFIFO => Node::Fifo,
            libc::S_IFSOCK => Node::Socket,
            _ => return reply.error(Errno::EINVAL),
        };
        self.make(request, (parent, name), node, (mode, umask), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.make(request, (parent, name), Node::Directory, (mode, umask), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let node = Node::Symlink(bytes_of(target.as_os_str()));
        self.make(request, (parent, name), node, (0o777, 0), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.make_open(request, (parent, name), (mode, umask), flags, reply);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.add_name(request, ino, (parent, name), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        self.of(request).changing_all().run_empty("unlink", reply, |served| async move {
            served.filesystem.unlink(parent, &name).await
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        self.of(request).changing_all().run_empty("rmdir", reply, |served| async move {
            served.filesystem.remove_directory(parent, &name).await
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.move_name(request, (parent, name), (new_parent, new_name), flags, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, open, flush) = (caller(request), open_flags(flags.0), self.locks.has_posix());
        let wanted = wanted_access(flags.0);
        self.of(request).run_or_undo(
            "open",
            reply,
            move |served| async move {
                served.check(Ino(ino.0), wanted).await?;
                served.open(&caller, Ino(ino.0), open, flush).await
            },
            |reply, (handle, how)| reply.opened(handle.file(), how),
            move |served, (handle, _)| async move { served.close(Ino(ino.0), handle).await },
        );
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, open) = (caller(request), open_flags(flags.0));
        self.of(request).run_or_undo(
            "opendir",
            reply,
            move |served| async move {
                served.check(Ino(ino.0), READ).await?;
                served.filesystem.open(&caller, Ino(ino.0), open).await
            },
            |reply, opened| {
                let handle =
                    KernelHandle { handle: opened.handle, is_direct: false, may_dirty: false };
                reply.opened(handle.file(), FopenFlags::empty());
            },
            move |served, opened| async move {
                served.filesystem.release(Ino(ino.0), opened.handle).await;
            },
        );
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let handle = KernelHandle::of(handle);
        self.for_none().run_empty("release", reply, move |served| async move {
            served.close(Ino(ino.0), handle).await;
            Ok(())
        });
    }

    fn releasedir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.release(request, ino, handle, flags, None, false, reply);
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let wanted = mask.bits() as u16 & (READ | WRITE | SEARCH);
        self.of(request).run_empty("access", reply, move |served| async move {
            served.check(Ino(ino.0), wanted).await
        });
    }

    fn getlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: fuser::LockOwner,
        start: u64,
        end: u64,
        mode: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        // Only fcntl asks for the holder of a lock.
        let lock = wanted_lock(LockKind::Posix, (handle, owner), (start, end), mode, request.pid());
        self.show_lock(request, Ino(ino.0), lock, reply);
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: fuser::LockOwner,
        start: u64,
        end: u64,
        mode: i32,
        pid: u32,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let kind = locks::kind_of(request, (handle, owner), (start, end));
        let lock = match wanted_lock(kind, (handle, owner), (start, end), mode, pid) {
            Ok(lock) => lock,
            Err(errno) => return reply.error(errno),
        };
        let ino = Ino(ino.0);
        match lock {
            Some(lock) => self.take_lock(request, ino, lock, wait, reply),
            None => self.release_lock(request, (ino, kind), owner, locks::range(start, end), reply),
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<fuser::LockOwner>,
        reply: ReplyData,
    ) {
        self.read_content(request, Ino(ino.0), (offset, size), lock_owner, reply);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        reply: ReplyWrite,
    ) {
        self.write_content(request, ino, (handle, flags, write_flags), offset, data, reply);
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: fuser::LockOwner,
        reply: ReplyEmpty,
    ) {
        let (handle, owner) = (KernelHandle::of(handle).handle, LockOwner::local(owner.0));
        self.by(request).run_empty("flush", reply, move |served| async move {
            served.filesystem.flush(Ino(ino.0), handle, owner).await
        });
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        content_only: bool,
        reply: ReplyEmpty,
    ) {
        self.by(request).run_empty("fsync", reply, move |served| async move {
            served.filesystem.sync(Ino(ino.0), content_only).await
        });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        content_only: bool,
        reply: ReplyEmpty,
    ) {
        self.fsync(request, ino, handle, content_only, reply);
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.list(request, ino, offset, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list_plus(request, ino, offset, reply);
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.show_capacity(request, reply);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.set_xattr(request, ino, name, value, flags, reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        self.get_xattr(request, ino, name, size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.list_xattrs(request, ino, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_xattr(request, ino, name, reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        _size: u32,
        reply: ReplyIoctl,
    ) {
        self.control(request, ino, command, data, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.allocate(request, ino, (offset, len), mode, reply);
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.seek(request, ino, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.copy(request, (from, from_offset), (to, to_offset), len, reply);
    }
}
