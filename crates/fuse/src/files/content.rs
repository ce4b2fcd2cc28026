//! Bytes of files, as the kernel writes, reserves, seeks and copies them.

use bytes::Bytes;
use fuser::{
    Errno, FileHandle, INodeNo, LockOwner, OpenFlags, ReplyData, ReplyEmpty, ReplyLseek,
    ReplyWrite, Request, WriteFlags,
};
use thalweg_fs::payload::copy_by_blocks;
use thalweg_fs::{Allocation, Change, Ino, Seek, WriteAt, WriteHow};

use super::adapter::Adapter;
use super::ends::behind_the_end;
use super::opening::KernelHandle;
use super::sizes::GrowingWrite;

/// Most bytes that one request copies: fits the answer's 32 bits.
const MAX_COPY: u64 = 1 << 30;

impl Adapter {
    pub(super) fn write_content(
        &self,
        request: &Request,
        ino: INodeNo,
        (handle, flags, write_flags): (FileHandle, OpenFlags, WriteFlags),
        offset: u64,
        data: &[u8],
        reply: ReplyWrite,
    ) {
        let Ok(len) = u32::try_from(data.len()) else { return reply.error(Errno::EINVAL) };
        let is_direct = KernelHandle::of(handle).is_direct;
        // A write of the kernel's cache has its offset already, and belongs to no handle.
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = !cached && flags.0 & libc::O_APPEND != 0;
        let at = if appends { WriteAt::End } else { WriteAt::Offset(offset) };
        let how = WriteHow {
            // O_SYNC includes this bit. Where it keeps the pages, the kernel itself asks for a sync
            // after the write.
            sync: is_direct && !cached && flags.0 & libc::O_DSYNC != 0,
            clear_suid: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let (ino, data) = (Ino(ino.0), copy_by_blocks(offset, data));
        let end = if appends { u64::MAX } else { offset.saturating_add(len.into()) };
        let known = &self.served().known;
        let growing = (!cached && known.is_longer(ino, end))
            .then(|| GrowingWrite::begin(known.growing_files(), ino, request.pid(), is_direct));
        let bypasses = !cached && (is_direct || flags.0 & libc::O_DIRECT != 0);
        self.of(request).changing_inode(ino).run(
            "write",
            reply,
            move |served| async move {
                let write = served.filesystem.write(ino, at, data, how);
                let went = served.change_content(ino, write).await?;
                let Some(coherence) = served.coherence() else { return Ok(()) };
                if bypasses && is_direct {
                    if served.known.is_cached(ino) {
                        coherence.drop_pages(ino, went, u64::from(len)).await;
                    }
                } else if went != offset || bypasses && served.known.is_cached(ino) {
                    // Another handle made the file longer, and the kernel has the page at a wrong offset; or the flag
                    // was set after the open. The kernel may hold the pages until this write is answered, so the answer
                    // does not wait.
                    drop(coherence.invalidate(Change::content(ino)));
                }
                Ok(())
            },
            move |reply, ()| {
                reply.written(len);
                drop(growing);
            },
        );
    }

    pub(super) fn read_content(
        &self,
        request: &Request,
        ino: Ino,
        (offset, len): (u64, u32),
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Only a read past the kernel's pages has an owner. Through a file that was opened to bypass them, mappings, sendfile,
        // splice and readahead still fill pages.
        let page_read = owner.is_none().then(|| self.served().known.begin_page_read(ino));
        // A kernel that writes pages back itself takes no end from an answer.
        let learns_ends = !self.writeback_cache;
        let env = self.env.clone();
        self.of(request).run(
            "read",
            reply,
            move |served| async move {
                let Some(page_read) = page_read else {
                    let found = served.filesystem.read(ino, offset, len as usize).await?;
                    return Ok((found, None));
                };
                let found = served.filesystem.read_cached(ino, offset, len as usize).await?;
                if !learns_ends || !found.iter().all(Bytes::is_empty) {
                    return Ok((found, Some(page_read)));
                }
                let page_read = behind_the_end(&env, &served, (ino, offset), page_read).await;
                Ok((found, page_read))
            },
            |reply, (data, page_read)| {
                match &data[..] {
                    [] => reply.data(&[]),
                    [one] => reply.data(one),
                    several => reply.data(&several.concat()),
                }
                drop(page_read);
            },
        );
    }

    pub(super) fn allocate(
        &self,
        request: &Request,
        ino: INodeNo,
        (offset, len): (u64, u64),
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Allocation::Reserve { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Allocation::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Allocation::Zero { keep_size },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let (ino, is_root) = (Ino(ino.0), request.uid() == 0);
        self.of(request).changing_inode(ino).run_empty(
            "fallocate",
            reply,
            move |served| async move {
                let change = async {
                    served.filesystem.allocate(ino, offset, len, how).await?;
                    if is_root { Ok(()) } else { served.clear_suid(ino).await }
                };
                served.change_content(ino, change).await
            },
        );
    }

    pub(super) fn seek(
        &self,
        request: &Request,
        ino: INodeNo,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.of(request).run(
            "lseek",
            reply,
            move |served| async move {
                served.write_back(Ino(ino.0)).await;
                served.filesystem.seek(Ino(ino.0), offset, what).await
            },
            |reply, at| match i64::try_from(at) {
                Ok(at) => reply.offset(at),
                Err(_) => reply.error(Errno::EOVERFLOW),
            },
        );
    }

    pub(super) fn copy(
        &self,
        request: &Request,
        (from, from_offset): (INodeNo, u64),
        (to, to_offset): (INodeNo, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((Ino(from.0), from_offset), (Ino(to.0), to_offset));
        let is_root = request.uid() == 0;
        self.of(request).changing_inode(to.0).run(
            "copy",
            reply,
            move |served| async move {
                let change = async {
                    let copied = served.filesystem.copy(from, to, len.min(MAX_COPY)).await?;
                    if copied > 0 && !is_root {
                        served.clear_suid(to.0).await?;
                    }
                    Ok(copied)
                };
                served.change_content(to.0, change).await
            },
            |reply, copied| reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
        );
    }
}
