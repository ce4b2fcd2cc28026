//! A shared mapping of a file on a mount of another process.

use std::fs::File;
use std::os::fd::AsRawFd;

pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    pub(super) fn of(file: &File, len: usize) -> Mapping {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let file = file.as_raw_fd();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file, 0) };
        assert!(start != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { start: start.cast(), len }
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at + len <= self.len, "{len} bytes at {at} of {}", self.len);
    }

    pub(super) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.check(at, len);
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping, which no other thread uses, and within the file.
        unsafe { self.start.add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    pub(super) fn store(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: as above.
        unsafe { self.start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(super) fn sync(&self) {
        // SAFETY: it is mapped.
        let done = unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
