//! Extended attributes, as the kernel asks for them.

use std::ffi::OsStr;

use bytes::Bytes;
use fuser::{Errno, INodeNo, ReplyEmpty, ReplyXattr, Request};
use thalweg_fs::{FsError, Ino, SetXattr};

use super::adapter::Adapter;
use super::names::bytes_of;
use super::privileges::CAPABILITIES;

impl Adapter {
    pub(super) fn set_xattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (ino, name, value) = (Ino(ino.0), bytes_of(name), Bytes::copy_from_slice(value));
        if name == CAPABILITIES {
            self.served.known.granted(ino);
        }
        self.of(request).changing_inode(ino).run_empty(
            "setxattr",
            reply,
            move |served| async move { served.filesystem.set_xattr(ino, &name, value, how).await },
        );
    }

    pub(super) fn get_xattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let (ino, name) = (Ino(ino.0), bytes_of(name));
        // The kernel asks for this again and again.
        if name == CAPABILITIES && self.served.known.is_plain(ino) {
            return reply.error(Errno::ENODATA);
        }
        self.of(request).run(
            "getxattr",
            reply,
            |served| async move { served.filesystem.xattr(ino, &name).await },
            move |reply, value| answer_sized(reply, &value, size),
        );
    }

    pub(super) fn list_xattrs(
        &self,
        request: &Request,
        ino: INodeNo,
        size: u32,
        reply: ReplyXattr,
    ) {
        let is_root = request.uid() == 0;
        self.of(request).run(
            "listxattr",
            reply,
            |served| async move { served.filesystem.xattrs(Ino(ino.0)).await },
            move |reply, names| {
                let mut list = Vec::new();
                for name in names.iter().filter(|name| is_root || !name.starts_with(b"trusted.")) {
                    list.extend_from_slice(name);
                    list.push(0);
                }
                answer_sized(reply, &list, size);
            },
        );
    }

    pub(super) fn remove_xattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        reply: ReplyEmpty,
    ) {
        let (ino, name) = (Ino(ino.0), bytes_of(name));
        self.of(request).changing_inode(ino).run_empty(
            "removexattr",
            reply,
            move |served| async move {
                match served.filesystem.remove_xattr(ino, &name).await {
                    // The kernel lets a program remove the list of a file without one.
                    Err(FsError::NoAttribute) if name.starts_with(b"system.posix_acl_") => Ok(()),
                    result => result,
                }
            },
        );
    }
}

/// Answers a request for the size, or sends the value if it fits.
fn answer_sized(reply: ReplyXattr, value: &[u8], size: u32) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}
