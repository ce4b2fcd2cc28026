//! Names of inodes, as requests have them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use bytes::Bytes;
use fuser::{Errno, INodeNo, RenameFlags, ReplyCreate, ReplyEmpty, ReplyEntry, Request};
use thalweg_fs::access::SEARCH;
use thalweg_fs::{FsError, Ino, Lookup, NewNode, Node, Rename};

use super::adapter::Adapter;
use super::opening::{caller, open_flags};
use super::served::{GENERATION, Served, Told};

impl Adapter {
    /// Makes an inode with a name.
    pub(super) fn make(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        node: Node,
        (mode, umask): (u32, u32),
        reply: ReplyEntry,
    ) {
        let new = new_node(request, node, mode, umask);
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        self.of(request).changing_name(parent, &name).run_or_undo(
            "make",
            reply,
            |served| async move {
                let epoch = served.known.epoch();
                let made = served.filesystem.create(parent, &name, &new).await?;
                Ok(served.tell_name(parent, &name, &made, epoch))
            },
            |reply, made| made.answer(reply),
            forget,
        );
    }

    pub(super) fn look_up(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        self.of(request).run_or_undo(
            "lookup",
            reply,
            |served| async move {
                let epoch = served.known.epoch();
                served.check(parent, SEARCH).await?;
                Ok(match served.filesystem.lookup(parent, &name).await? {
                    Lookup::Found(found) => served.tell_name(parent, &name, &found, epoch),
                    Lookup::Absent(valid) => {
                        Told::absent(served.name_valid(parent, &name, valid, epoch))
                    }
                })
            },
            |reply, told| told.answer(reply),
            forget,
        );
    }

    pub(super) fn make_open(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        (mode, umask): (u32, u32),
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = new_node(request, Node::File, mode, umask);
        let (parent, name) = (Ino(parent.0), bytes_of(name));
        let (caller, open, flush) = (caller(request), open_flags(flags), self.locks.has_posix());
        self.of(request).changing_name(parent, &name).run_or_undo(
            "create",
            reply,
            move |served| async move {
                let epoch = served.known.epoch();
                let made = match served.filesystem.create(parent, &name, &new).await {
                    Ok(made) => made,
                    // The kernel thought the name was free: it is to look again, and to check whether
                    // the file there may be opened.
                    Err(FsError::Exists) if flags & libc::O_EXCL == 0 => {
                        return Err(FsError::Stale);
                    }
                    Err(error) => return Err(error),
                };
                let told = served.tell_name(parent, &name, &made, epoch);
                match served.open(&caller, made.ino, open, flush).await {
                    Ok(opened) => Ok((told, opened)),
                    Err(error) => {
                        // The kernel is not told after all.
                        served.known.forget(&*served.filesystem, made.ino, 1);
                        Err(error)
                    }
                }
            },
            |reply, (told, (handle, how))| {
                reply.created(&told.valid(), &told.attr, GENERATION, handle.file(), how);
            },
            |served, (told, (handle, _))| async move {
                served.close(Ino(told.attr.ino.0), handle).await;
                forget(served, told).await;
            },
        );
    }

    pub(super) fn move_name(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = match flags.bits() {
            0 => Rename::Replace,
            libc::RENAME_NOREPLACE => Rename::NoReplace,
            libc::RENAME_EXCHANGE => Rename::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (from, name) = (Ino(parent.0), bytes_of(name));
        let (to, new_name) = (Ino(new_parent.0), bytes_of(new_name));
        self.of(request).changing_all().run_empty("rename", reply, move |served| async move {
            served.filesystem.rename((from, &name), (to, &new_name), how).await?;
            // The kernel moves the entries that it has.
            for (parent, name) in [(from, &name), (to, &new_name)] {
                served.known.note_name(parent, name, served.known.epoch());
            }
            Ok(())
        });
    }

    pub(super) fn add_name(
        &self,
        request: &Request,
        ino: INodeNo,
        (parent, name): (INodeNo, &OsStr),
        reply: ReplyEntry,
    ) {
        let (ino, parent, name) = (Ino(ino.0), Ino(parent.0), bytes_of(name));
        self.of(request).changing_all().run_or_undo(
            "link",
            reply,
            |served| async move {
                let epoch = served.known.epoch();
                let linked = served.filesystem.link(ino, parent, &name).await?;
                Ok(served.tell_name(parent, &name, &linked, epoch))
            },
            |reply, linked| linked.answer(reply),
            forget,
        );
    }
}

/// The kernel was not told of an inode after all.
fn forget(served: Arc<Served>, told: Told) -> std::future::Ready<()> {
    let ino = Ino(told.attr.ino.0);
    if ino.0 != 0 {
        served.known.forget(&*served.filesystem, ino, 1);
    }
    std::future::ready(())
}

pub(super) fn bytes_of(name: &OsStr) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

fn new_node(request: &Request, node: Node, mode: u32, umask: u32) -> NewNode {
    NewNode {
        node,
        mode: (mode & 0o7777) as u16,
        umask: (umask & 0o777) as u16,
        uid: request.uid(),
        gid: request.gid(),
    }
}
