//! Shared mappings of files on mounts of this process.
//!
//! A thread that waits for a page may keep others of its process from changing their memory. If these serve the mount, no page ever
//! comes. So a mapping is another process's, which has a copy of this one's memory, and the same descriptors.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use parking_lot::Mutex;

/// What the process is told: this, the first byte, and how many.
type Command = [u64; 3];

const LOAD: u64 = 1;
const STORE: u64 = 2;
const SYNC: u64 = 3;
const END: u64 = 4;
/// Bytes that it copies at a time.
const PIECE: usize = 4096;
/// Longer than a page takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shared mapping of a file, which may be longer than the file.
pub(crate) struct Mapping {
    process: libc::pid_t,
    len: usize,
    /// Commands go to the process, and answers come from it: one after the other.
    ends: Mutex<(File, File)>,
    /// The ends of the process, which has no descriptors of its own.
    _theirs: (OwnedFd, OwnedFd),
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors, which are new ones.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

impl Mapping {
    pub(crate) fn of(file: &File, len: usize, writable: bool) -> Mapping {
        let ((their_commands, commands), (answers, their_answers)) = (pipe(), pipe());
        let theirs = (their_commands.as_raw_fd(), their_answers.as_raw_fd());
        let access = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let what = (file.as_raw_fd(), len, access);
        // Descriptors are shared, since a file that another process closes is flushed.
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: the new process makes nothing but system calls, in memory of its own.
        let process = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if process == 0 {
            // SAFETY: this is the new process.
            unsafe { serve(what, theirs) };
        }
        let process = libc::pid_t::try_from(process).unwrap();
        assert!(process > 0, "{}", std::io::Error::last_os_error());
        let ends = Mutex::new((File::from(commands), File::from(answers)));
        let mapping = Mapping { process, len, ends, _theirs: (their_commands, their_answers) };
        let mut mapped = [0];
        mapping.take(&mut mapping.ends.lock().1, &mut mapped);
        assert_eq!(mapped, [1], "a file is not mapped");
        mapping
    }

    /// The next bytes of answers.
    fn take(&self, answers: &mut File, bytes: &mut [u8]) {
        let mut poll = libc::pollfd { fd: answers.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        let ready = unsafe { libc::poll(&raw mut poll, 1, PATIENCE.as_millis() as i32) };
        assert_eq!(ready, 1, "the mapping of process {} does not answer", self.process);
        answers.read_exact(bytes).unwrap();
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at + len <= self.len, "{len} bytes at {at} of {}", self.len);
    }

    pub(crate) fn load(&self, at: usize) -> u8 {
        self.read(at, 1)[0]
    }

    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.check(at, len);
        let (commands, answers) = &mut *self.ends.lock();
        let mut bytes = vec![0; len];
        for (nth, piece) in bytes.chunks_mut(PIECE).enumerate() {
            let command = [LOAD, (at + nth * PIECE) as u64, piece.len() as u64];
            commands.write_all(&encode(command)).unwrap();
            self.take(answers, piece);
        }
        bytes
    }

    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        let (commands, answers) = &mut *self.ends.lock();
        for (nth, piece) in bytes.chunks(PIECE).enumerate() {
            let command = [STORE, (at + nth * PIECE) as u64, piece.len() as u64];
            commands.write_all(&[&encode(command), piece].concat()).unwrap();
            self.take(answers, &mut [0]);
        }
    }

    pub(crate) fn sync(&self) {
        let (commands, answers) = &mut *self.ends.lock();
        commands.write_all(&encode([SYNC, 0, 0])).unwrap();
        let mut synced = [0];
        self.take(answers, &mut synced);
        assert_eq!(synced, [1]);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = self.ends.get_mut().0.write_all(&encode([END, 0, 0]));
        // SAFETY: a process of this one, which nothing else waits for.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

fn encode(command: Command) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (at, number) in bytes.chunks_exact_mut(8).zip(command) {
        at.copy_from_slice(&number.to_ne_bytes());
    }
    bytes
}

/// Reads so many bytes from a pipe; ends the process if there are fewer.
///
/// # Safety
/// There is room for them.
unsafe fn read_all(pipe: RawFd, to: *mut u8, count: usize) {
    let mut done = 0;
    while done < count {
        // SAFETY: within the room.
        let read = unsafe { libc::read(pipe, to.add(done).cast(), count - done) };
        if read <= 0 {
            // SAFETY: nothing is left to be done.
            unsafe { libc::_exit(1) };
        }
        done += read as usize;
    }
}

/// What the process does: it allocates nothing, and takes no lock.
///
/// # Safety
/// For a process of one thread that has copied its memory from one of several. Commands are within the mapping.
unsafe fn serve(
    (file, len, access): (RawFd, usize, i32),
    (commands, answers): (RawFd, RawFd),
) -> ! {
    // SAFETY: system calls with places on the stack, and with those of the mapping that commands name.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let map = libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file, 0);
        let answer = |is_done: bool| {
            let byte = u8::from(is_done);
            libc::write(answers, (&raw const byte).cast(), 1);
        };
        answer(map != libc::MAP_FAILED);
        let mut piece = [0u8; PIECE];
        let mut command: Command = [0; 3];
        loop {
            read_all(commands, command.as_mut_ptr().cast(), size_of::<Command>());
            let [what, at, count] = command;
            let (place, count) = (map.cast::<u8>().wrapping_add(at as usize), count as usize);
            match what {
                LOAD => {
                    std::ptr::copy_nonoverlapping(place, piece.as_mut_ptr(), count);
                    libc::write(answers, piece.as_ptr().cast(), count);
                }
                STORE => {
                    read_all(commands, piece.as_mut_ptr(), count);
                    std::ptr::copy_nonoverlapping(piece.as_ptr(), place, count);
                    answer(true);
                }
                SYNC => answer(libc::msync(map, len, libc::MS_SYNC) == 0),
                _ => libc::_exit(0),
            }
        }
    }
}
