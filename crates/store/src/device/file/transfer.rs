//! One request to the operating system, with its memory.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use bytes::Bytes;

use super::locked::Locked;
use crate::device::{AlignedBuf, total_len};

/// The maximum of buffers in one call (IOV_MAX).
const MAX_SEGMENTS: usize = 1024;

/// The payload of a transfer.
#[derive(Debug)]
enum Payload {
    Read(AlignedBuf),
    Write(Vec<Bytes>),
    Sync,
}

/// The kind of system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// Read into the segments.
    Read,
    /// Write from the segments.
    Write,
    /// Make the file's data durable.
    Sync,
}

/// Whether a transfer needs another call.
#[derive(Debug)]
pub(super) enum Step {
    /// Call again for the rest.
    Again,
    /// It is complete.
    Done(io::Result<()>),
}

/// A read, a gathered write, a sync of `file`, or a write and then a sync. It owns its buffers: while the
/// kernel works on them, the owner of the transfer must not drop it.
#[derive(Debug)]
pub(super) struct Transfer {
    file: Arc<Locked>,
    payload: Payload,
    offset: u64,
    len: usize,
    done: usize,
    sector: usize,
    /// Whether a sync follows.
    syncs: bool,
    segments: Vec<libc::iovec>,
}

// SAFETY: the segments point into the payload, which the transfer owns and which is Send.
unsafe impl Send for Transfer {}

impl Transfer {
    pub(super) fn read(file: Arc<Locked>, offset: u64, len: usize, sector: u32) -> Transfer {
        Transfer::new(file, Payload::Read(AlignedBuf::zeroed(len)), offset, len, sector)
    }

    pub(super) fn write(file: Arc<Locked>, offset: u64, data: Vec<Bytes>, sector: u32) -> Transfer {
        let len = usize::try_from(total_len(&data)).unwrap_or(usize::MAX);
        Transfer::new(file, Payload::Write(data), offset, len, sector)
    }

    pub(super) fn sync(file: Arc<Locked>) -> Transfer {
        Transfer::new(file, Payload::Sync, 0, 0, 1)
    }

    fn new(file: Arc<Locked>, payload: Payload, offset: u64, len: usize, sector: u32) -> Transfer {
        let sector = sector as usize;
        let segments = Vec::new();
        Transfer { file, payload, offset, len, done: 0, sector, syncs: false, segments }
    }

    /// Adds a sync of the file after the write.
    pub(super) fn and_sync(self) -> Transfer {
        Transfer { syncs: true, ..self }
    }

    pub(super) fn call(&self) -> Call {
        match self.payload {
            Payload::Read(_) if self.done < self.len => Call::Read,
            Payload::Write(_) if self.done < self.len => Call::Write,
            _ => Call::Sync,
        }
    }

    /// Whether the call is followed by a sync, if it moves the whole rest.
    pub(super) fn is_synced_next(&self) -> bool {
        self.syncs && self.call() != Call::Sync
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The offset of the next call.
    pub(super) fn position(&self) -> u64 {
        self.offset + self.done as u64
    }

    /// The memory of the next call: valid until the transfer is changed or dropped, even if it is moved.
    pub(super) fn segments(&mut self) -> &[libc::iovec] {
        self.segments.clear();
        match &mut self.payload {
            Payload::Read(buffer) => self.segments.push(segment_mut(&mut buffer[self.done..])),
            Payload::Write(data) => {
                let mut skip = self.done;
                for buffer in data.iter() {
                    if skip < buffer.len() {
                        self.segments.push(segment(&buffer[skip..]));
                        skip = 0;
                    } else {
                        skip -= buffer.len();
                    }
                    if self.segments.len() == MAX_SEGMENTS {
                        break;
                    }
                }
            }
            Payload::Sync => {}
        }
        &self.segments
    }

    /// Processes the result of a call: the number of bytes that it moved, or a negative error.
    pub(super) fn advance(&mut self, result: i64) -> Step {
        if result < 0 {
            let error = i32::try_from(-result).unwrap_or(libc::EIO);
            return match error {
                // Cancelled, because the thread that submitted it has ended. Call again.
                libc::EINTR | libc::EAGAIN | libc::ECANCELED => Step::Again,
                _ => Step::Done(Err(io::Error::from_raw_os_error(error))),
            };
        }
        let moved = usize::try_from(result).unwrap_or(0);
        if self.call() == Call::Sync {
            return Step::Done(Ok(()));
        }
        if self.done + moved >= self.len {
            self.done = self.len;
            return if self.syncs { Step::Again } else { Step::Done(Ok(())) };
        }
        // Direct I/O can only continue at the start of a sector, so a partial sector is moved again.
        let whole = moved - moved % self.sector;
        if whole > 0 {
            self.done += whole;
            return Step::Again;
        }
        Step::Done(Err(match self.call() {
            Call::Read => io::ErrorKind::UnexpectedEof.into(),
            Call::Write | Call::Sync => io::ErrorKind::WriteZero.into(),
        }))
    }

    /// The bytes that were read; empty for other transfers.
    pub(super) fn into_bytes(self) -> Bytes {
        match self.payload {
            Payload::Read(buffer) => buffer.freeze(),
            Payload::Write(_) | Payload::Sync => Bytes::new(),
        }
    }
}

fn segment(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn segment_mut(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Access;

    fn lengths(transfer: &mut Transfer) -> Vec<usize> {
        transfer.segments().iter().map(|segment| segment.iov_len).collect()
    }

    fn file() -> Arc<Locked> {
        let file = std::fs::File::open("/dev/null").unwrap();
        Arc::new(Locked::new(file, "null", Access::Reading).unwrap())
    }

    #[test]
    fn a_short_write_goes_on_from_the_last_whole_sector() {
        let data = vec![Bytes::from(vec![0; 1024]), Bytes::from(vec![0; 2048])];
        let mut transfer = Transfer::write(file(), 4096, data, 512);
        assert_eq!(lengths(&mut transfer), [1024, 2048]);
        assert!(matches!(transfer.advance(1024 + 700), Step::Again));
        assert_eq!(transfer.position(), 4096 + 1536);
        assert_eq!(lengths(&mut transfer), [1536]);
        assert!(matches!(transfer.advance(-i64::from(libc::EINTR)), Step::Again));
        assert!(matches!(transfer.advance(1536), Step::Done(Ok(()))));
    }

    #[test]
    fn a_sync_follows_when_all_is_written() {
        let data = vec![Bytes::from(vec![0; 1024])];
        let mut transfer = Transfer::write(file(), 0, data, 512).and_sync();
        assert!(transfer.is_synced_next());
        assert!(matches!(transfer.advance(512), Step::Again));
        assert_eq!((transfer.call(), transfer.position()), (Call::Write, 512));
        assert!(transfer.is_synced_next());
        assert!(matches!(transfer.advance(512), Step::Again));
        assert_eq!(transfer.call(), Call::Sync);
        assert!(!transfer.is_synced_next());
        assert!(matches!(transfer.advance(-i64::from(libc::ECANCELED)), Step::Again));
        assert_eq!(transfer.call(), Call::Sync);
        assert!(matches!(transfer.advance(0), Step::Done(Ok(()))));
    }

    #[test]
    fn no_progress_is_an_error() {
        let mut transfer = Transfer::read(file(), 0, 4096, 512);
        assert!(matches!(transfer.advance(100), Step::Done(Err(_))));
        assert!(matches!(transfer.advance(0), Step::Done(Err(_))));
        assert!(matches!(transfer.advance(-i64::from(libc::EIO)), Step::Done(Err(_))));
    }

    #[test]
    fn a_call_takes_no_more_buffers_than_the_kernel_does() {
        let mut transfer = Transfer::write(file(), 0, vec![Bytes::from(vec![0; 512]); 1500], 512);
        assert_eq!(transfer.segments().len(), MAX_SEGMENTS);
        assert!(matches!(transfer.advance(1024 * 512), Step::Again));
        assert_eq!(transfer.segments().len(), 1500 - MAX_SEGMENTS);
    }
}
