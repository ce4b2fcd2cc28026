//! Transfers through io_uring: one ring and one driver thread for the process.
//!
//! Callers append to a queue; the driver thread takes the whole queue at once, so that requests
//! which meet share a system call. While the thread sleeps in the kernel it also waits for an
//! eventfd, which a caller rings only when the thread said that it is going to sleep. The thread
//! owns every transfer from the moment it is queued until the kernel is done with it, so a caller
//! that goes away takes no memory from under the kernel.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Failure;
use super::transfer::{Call, Step, Transfer};

/// Entries of the submission ring.
const ENTRIES: u32 = 256;
/// Transfers that the kernel may hold at once; the completion ring has room for all of them.
const IN_KERNEL: usize = 2 * ENTRIES as usize - 1;
/// The tag of the eventfd's read among the completions.
const DOORBELL: u64 = u64::MAX;
/// The longest single segment of one call.
const MAX_CALL: usize = 1 << 30;

/// The driver of all open devices; its thread ends with the last of them.
static DRIVER: Mutex<Weak<Driver>> = Mutex::new(Weak::new());

/// A handle to the driver thread.
#[derive(Debug)]
pub(super) struct Driver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inbox: Mutex<Inbox>,
    /// An eventfd.
    doorbell: std::fs::File,
}

#[derive(Debug, Default)]
struct Inbox {
    jobs: VecDeque<Job>,
    /// The thread sleeps, or is about to, and must be woken.
    asleep: bool,
    /// No device is left.
    closing: bool,
    /// The thread has ended.
    closed: bool,
}

#[derive(Debug)]
struct Job {
    transfer: Transfer,
    reply: oneshot::Sender<Result<Transfer, Failure>>,
}

impl Driver {
    /// The process's driver, started when there is none.
    ///
    /// # Errors
    /// What the system says where io_uring cannot be had.
    pub(super) fn shared() -> io::Result<Arc<Driver>> {
        let mut current = DRIVER.lock();
        if let Some(driver) = current.upgrade().filter(|driver| !driver.shared.inbox.lock().closed)
        {
            return Ok(driver);
        }
        let driver = Arc::new(Driver::start()?);
        *current = Arc::downgrade(&driver);
        Ok(driver)
    }

    fn start() -> io::Result<Driver> {
        let doorbell =
            nix::sys::eventfd::EventFd::from_flags(nix::sys::eventfd::EfdFlags::EFD_CLOEXEC)?;
        let doorbell = std::fs::File::from(std::os::fd::OwnedFd::from(doorbell));
        let shared = Arc::new(Shared { inbox: Mutex::default(), doorbell });
        let (started, ready) = std::sync::mpsc::channel();
        let for_thread = shared.clone();
        // The ring belongs to the one thread that submits, so that thread makes it.
        std::thread::Builder::new().name("thalweg-io".to_owned()).spawn(move || match ring() {
            Ok(ring) => {
                let _ = started.send(Ok(()));
                Loop::new(ring, for_thread).run();
            }
            Err(error) => drop(started.send(Err(error))),
        })?;
        ready.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Driver { shared })
    }

    /// Runs `transfer` to its end. A caller that goes away leaves it running.
    pub(super) async fn run(&self, transfer: Transfer) -> Result<Transfer, Failure> {
        let (reply, answer) = oneshot::channel();
        self.shared.push(Job { transfer, reply });
        answer.await.unwrap_or(Err(Failure::Closed))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.inbox.lock().closing = true;
        self.shared.ring();
    }
}

impl Shared {
    /// Queues a job; one that comes after the thread's end is dropped, which its caller sees.
    fn push(&self, job: Job) {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            return;
        }
        inbox.jobs.push_back(job);
        let asleep = std::mem::take(&mut inbox.asleep);
        drop(inbox);
        if asleep {
            self.ring();
        }
    }

    fn ring(&self) {
        // An eventfd refuses only when its counter is full, and then the thread is awake anyway.
        let _ = (&self.doorbell).write(&1_u64.to_ne_bytes());
    }
}

/// A ring that completes requests only when the driver thread asks (Linux 6.1), or a plain one.
fn ring() -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(ENTRIES)
        .or_else(|_| IoUring::new(ENTRIES))
}

/// The driver thread's state.
struct Loop {
    ring: IoUring,
    shared: Arc<Shared>,
    /// Taken from the inbox, not yet given to the kernel.
    waiting: VecDeque<Job>,
    /// Given to the kernel, by tag.
    in_kernel: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Where the eventfd's counter is read to; on the heap, since the kernel writes there.
    rung: Box<u64>,
    armed: bool,
    completions: Vec<(u64, i32)>,
}

impl Loop {
    fn new(ring: IoUring, shared: Arc<Shared>) -> Loop {
        Loop {
            ring,
            shared,
            waiting: VecDeque::new(),
            in_kernel: (0..IN_KERNEL).map(|_| None).collect(),
            free: (0..IN_KERNEL).rev().collect(),
            rung: Box::new(0),
            armed: false,
            completions: Vec::with_capacity(IN_KERNEL + 1),
        }
    }

    fn run(mut self) {
        loop {
            let closing = self.take();
            self.submit();
            if closing && self.waiting.is_empty() && self.idle() {
                break;
            }
            if let Err(error) = self.wait() {
                tracing::error!(%error, "io_uring failed; its devices are closed");
                break;
            }
            self.complete();
        }
    }

    fn idle(&self) -> bool {
        self.free.len() == IN_KERNEL
    }

    /// Takes what callers queued. From here to the next call a caller rings.
    fn take(&mut self) -> bool {
        let mut inbox = self.shared.inbox.lock();
        self.waiting.append(&mut inbox.jobs);
        inbox.asleep = true;
        inbox.closing
    }

    fn submit(&mut self) {
        if !self.armed {
            let fd = types::Fd(self.shared.doorbell.as_raw_fd());
            let target: *mut u64 = &mut *self.rung;
            let read = opcode::Read::new(fd, target.cast(), 8).build().user_data(DOORBELL);
            self.armed = self.push(&read);
        }
        while !self.waiting.is_empty() && !self.free.is_empty() {
            let (Some(mut job), Some(tag)) = (self.waiting.pop_front(), self.free.pop()) else {
                return;
            };
            let entry = entry(&mut job.transfer).user_data(tag as u64);
            if !self.push(&entry) {
                self.waiting.push_front(job);
                self.free.push(tag);
                return;
            }
            self.in_kernel[tag] = Some(job);
        }
    }

    /// Appends to the submission ring, making room once when it is full.
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        for _ in 0..2 {
            // SAFETY: `in_kernel` and `rung` keep the entry's memory until its completion is seen;
            // `drop` waits for that, or leaks them.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return true;
            }
            if self.ring.submit().is_err() {
                return false;
            }
        }
        false
    }

    /// Sleeps until something has completed.
    fn wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            // Nothing is lost: the entries stay in the ring, and completions make room.
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn complete(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        completions.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (tag, result) in completions.drain(..) {
            if tag == DOORBELL {
                self.armed = false;
                continue;
            }
            let tag = tag as usize;
            let Some(mut job) = self.in_kernel[tag].take() else { continue };
            self.free.push(tag);
            match job.transfer.advance(i64::from(result)) {
                Step::Again => self.waiting.push_front(job),
                Step::Done(outcome) => {
                    let answer = outcome.map(|()| job.transfer).map_err(Failure::Io);
                    // Nobody listens when the caller has gone away.
                    let _ = job.reply.send(answer);
                }
            }
        }
        self.completions = completions;
    }
}

impl Drop for Loop {
    /// Outlives the kernel's work on our memory, also when the thread panics.
    fn drop(&mut self) {
        {
            let mut inbox = self.shared.inbox.lock();
            inbox.closed = true;
            inbox.jobs.clear();
        }
        self.waiting.clear();
        // A closing thread is woken by the eventfd, so that its read ends as well.
        self.shared.ring();
        while !self.idle() || self.armed {
            if self.wait().is_err() {
                std::mem::forget(std::mem::take(&mut self.in_kernel));
                std::mem::forget(std::mem::take(&mut self.rung));
                return;
            }
            self.complete();
            self.waiting.clear();
        }
    }
}

fn entry(transfer: &mut Transfer) -> squeue::Entry {
    let (fd, call, position) = (types::Fd(transfer.fd()), transfer.call(), transfer.position());
    let segments = transfer.segments();
    let count = segments.len() as u32;
    match (call, segments) {
        (Call::Sync, _) => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        (Call::Read, [one]) => {
            let len = one.iov_len.min(MAX_CALL) as u32;
            opcode::Read::new(fd, one.iov_base.cast(), len).offset(position).build()
        }
        (Call::Write, [one]) => {
            let len = one.iov_len.min(MAX_CALL) as u32;
            opcode::Write::new(fd, one.iov_base.cast(), len).offset(position).build()
        }
        (Call::Read, many) => opcode::Readv::new(fd, many.as_ptr(), count).offset(position).build(),
        (Call::Write, many) => {
            opcode::Writev::new(fd, many.as_ptr(), count).offset(position).build()
        }
    }
}
