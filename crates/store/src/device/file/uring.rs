//! Transfers through io_uring: a ring for each open device.
//!
//! The caller's thread submits the transfer to the kernel, and a task of the runtime in which the device was
//! opened takes the completions. There is no other thread between them: its wake-ups would cost a single
//! request more than the request itself. The ring owns every transfer from the moment it is queued until the
//! kernel is done with it, so a caller whose future is dropped takes no memory from the kernel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};

use super::Failure;
use super::transfer::{Call, Step, Transfer};

/// Entries of the submission ring.
const ENTRIES: u32 = 256;
/// The maximum of transfers in the kernel. Each has up to two completions, for which the completion ring has
/// space.
const IN_KERNEL: usize = ENTRIES as usize;
/// The maximum length of a segment in one call.
const MAX_CALL: usize = 1 << 30;

/// A device's ring.
#[derive(Debug)]
pub(super) struct Driver {
    shared: Arc<Shared>,
}

struct Shared {
    ring: Mutex<Ring>,
    fd: RawFd,
    /// The kernel did not take all of the queue: the task tries again.
    refused: Notify,
    /// The device was closed.
    closed: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("fd", &self.fd).finish_non_exhaustive()
    }
}

struct Ring {
    uring: IoUring,
    /// Queued, not yet submitted to the kernel.
    waiting: VecDeque<Job>,
    /// Submitted to the kernel, by tag.
    in_kernel: Vec<Option<Flight>>,
    free: Vec<usize>,
    state: Life,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// The device was closed; its transfers still complete.
    Closing,
    /// The task has ended: completions are no longer taken.
    Dead,
}

#[derive(Debug)]
struct Job {
    transfer: Transfer,
    reply: oneshot::Sender<Outcome>,
}

/// A job in the kernel. Some of its calls may have completed: the first, and a sync that is linked to it.
#[derive(Debug)]
struct Flight {
    job: Job,
    results: [Option<i32>; 2],
    calls: usize,
}

impl Flight {
    /// Records the result of one of the calls. When all of them have completed, returns the next step.
    fn land(&mut self, call: usize, result: i32) -> Option<Step> {
        self.results[call] = Some(result);
        match (self.calls, self.results) {
            (1, [Some(first), _]) => Some(self.job.transfer.advance(i64::from(first))),
            (2, [Some(first), Some(sync)]) => {
                Some(match self.job.transfer.advance(i64::from(first)) {
                    // If the write moved less than all, the linked sync was cancelled, or has synced too
                    // little.
                    Step::Again if self.job.transfer.call() == Call::Sync => {
                        self.job.transfer.advance(i64::from(sync))
                    }
                    step => step,
                })
            }
            _ => None,
        }
    }
}

type Outcome = Result<Transfer, Failure>;

/// A completed job. Its caller is notified without the lock held, since it may run at once.
struct Over {
    reply: oneshot::Sender<Outcome>,
    outcome: Outcome,
}

impl Over {
    fn tell(self) {
        // There is no receiver if the caller's future was dropped.
        let _ = self.reply.send(self.outcome);
    }
}

impl Driver {
    /// Makes a ring and spawns the task that serves it. Must be called inside a tokio runtime that drives
    /// I/O.
    ///
    /// # Errors
    /// The system's error if io_uring is not available.
    pub(super) fn start() -> io::Result<Driver> {
        let uring = uring()?;
        let fd = uring.as_raw_fd();
        let shared = Arc::new(Shared {
            ring: Mutex::new(Ring::new(uring)),
            fd,
            refused: Notify::new(),
            closed: Notify::new(),
        });
        // SAFETY: the descriptor's ring is open for as long as `shared` lives, and the watched value holds
        // `shared`.
        let watched =
            unsafe { AsyncFd::register_with_interest(Watched(shared.clone()), Interest::READABLE) }
                .map_err(|error| io::Error::other(error.to_string()))?;
        // Not `env`'s tasks: this one serves a real device, which a simulation does not have.
        #[allow(clippy::disallowed_methods)]
        drop(tokio::spawn(serve(watched)));
        Ok(Driver { shared })
    }

    /// Runs `transfer` to its end, even if the caller's future is dropped.
    pub(super) async fn run(&self, transfer: Transfer) -> Outcome {
        let (reply, answer) = oneshot::channel();
        self.shared.submit(Job { transfer, reply });
        answer.await.unwrap_or(Err(Failure::Closed))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let mut ring = self.shared.ring.lock();
        if ring.state == Life::Open {
            ring.state = Life::Closing;
        }
        drop(ring);
        self.shared.closed.notify_one();
    }
}

impl Shared {
    /// Queues a job and submits as much as the kernel takes. After the task's end the job is dropped, and its
    /// caller gets an error.
    fn submit(&self, job: Job) {
        let mut ring = self.ring.lock();
        if ring.state == Life::Dead {
            return;
        }
        ring.waiting.push_back(job);
        if !ring.submit() {
            self.refused.notify_one();
        }
    }

    /// Takes completions, and submits waiting jobs.
    fn reap(&self) {
        let mut over = Vec::new();
        let mut ring = self.ring.lock();
        ring.complete(&mut over);
        if !ring.submit() {
            self.refused.notify_one();
        }
        drop(ring);
        over.into_iter().for_each(Over::tell);
    }
}

/// The ring's descriptor, which is readable when there are completions.
struct Watched(Arc<Shared>);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd
    }
}

impl Drop for Watched {
    /// The task ends, maybe with its runtime and before the device is closed: from here on no completion
    /// would be taken.
    fn drop(&mut self) {
        let mut over = Vec::new();
        let mut ring = self.0.ring.lock();
        ring.state = Life::Dead;
        ring.waiting.clear();
        ring.drain(&mut over);
        drop(ring);
        over.into_iter().for_each(Over::tell);
    }
}

/// Serves a ring until its device is closed and nothing is in the kernel.
async fn serve(watched: AsyncFd<Watched>) {
    let shared = watched.get_ref().0.clone();
    loop {
        tokio::select! {
            biased;
            ready = watched.readable() => match ready {
                // Cleared first: a completion from here on makes the descriptor ready again.
                Ok(mut ready) => ready.clear_ready(),
                Err(error) => {
                    tracing::error!(%error, "io_uring cannot be watched; its device is closed");
                    return;
                }
            },
            () = shared.refused.notified() => tokio::task::yield_now().await,
            () = shared.closed.notified() => {}
        }
        shared.reap();
        let ring = shared.ring.lock();
        if ring.state == Life::Closing && ring.is_idle() {
            return;
        }
    }
}

/// A ring that does not interrupt threads for completions (Linux 5.19), or a plain one. Children that this process forks do
/// not have its memory.
fn uring() -> io::Result<IoUring> {
    let builder = || {
        let mut builder = IoUring::builder();
        builder.dontfork();
        builder
    };
    builder().setup_coop_taskrun().build(ENTRIES).or_else(|_| builder().build(ENTRIES))
}

impl Ring {
    fn new(uring: IoUring) -> Ring {
        Ring {
            uring,
            waiting: VecDeque::new(),
            in_kernel: (0..IN_KERNEL).map(|_| None).collect(),
            free: (0..IN_KERNEL).rev().collect(),
            state: Life::Open,
        }
    }

    /// Whether no job waits or is in the kernel.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.free.len() == IN_KERNEL
    }

    /// Submits waiting jobs, as far as there is space; returns whether the kernel took them.
    fn submit(&mut self) -> bool {
        while !self.waiting.is_empty() && !self.free.is_empty() {
            let (Some(mut job), Some(tag)) = (self.waiting.pop_front(), self.free.pop()) else {
                break;
            };
            let (first, sync) = entries(&mut job.transfer, tag as u64);
            let (alone, linked);
            let entries: &[squeue::Entry] = match sync {
                Some(sync) => {
                    linked = [first, sync];
                    &linked
                }
                None => {
                    alone = [first];
                    &alone
                }
            };
            // SAFETY: `in_kernel` keeps the entries' memory until their completions are taken; `drop` waits
            // for that, or leaks it.
            let pushed = unsafe { self.uring.submission().push_multiple(entries) };
            if pushed.is_err() {
                self.waiting.push_front(job);
                self.free.push(tag);
                break;
            }
            self.in_kernel[tag] = Some(Flight { job, results: [None; 2], calls: entries.len() });
        }
        if self.uring.submission().is_empty() {
            return true;
        }
        // Entries that the kernel refuses for now stay in the ring.
        self.uring.submit().is_ok() && self.uring.submission().is_empty()
    }

    fn complete(&mut self, over: &mut Vec<Over>) {
        let (mut completions, in_kernel) = (self.uring.completion(), &mut self.in_kernel);
        // Syncs the completion queue first, so that new completions are seen too.
        loop {
            for completion in completions.by_ref() {
                let (tag, call) = call_of(completion.user_data());
                let Some(slot) = in_kernel.get_mut(tag) else { continue };
                let Some(flight) = slot else { continue };
                let Some(step) = flight.land(call, completion.result()) else { continue };
                let Some(Flight { job, .. }) = slot.take() else { continue };
                self.free.push(tag);
                match step {
                    Step::Again => self.waiting.push_front(job),
                    Step::Done(outcome) => over.push(Over {
                        reply: job.reply,
                        outcome: outcome.map(|()| job.transfer).map_err(Failure::Io),
                    }),
                }
            }
            completions.sync();
            if completions.is_empty() {
                return;
            }
        }
    }

    /// Waits until the kernel is done with all jobs.
    fn drain(&mut self, over: &mut Vec<Over>) {
        while self.free.len() < IN_KERNEL {
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                // Nothing is lost: the entries stay in the ring, and completions make room.
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                    _ => return,
                },
            }
            self.complete(over);
            // Do not resume a partial transfer.
            self.waiting.clear();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.drain(&mut Vec::new());
        if self.free.len() < IN_KERNEL {
            std::mem::forget(std::mem::take(&mut self.in_kernel));
        }
    }
}

/// The calls of a transfer: the next one, and a sync linked to it, which the kernel starts when it has moved
/// everything.
fn entries(transfer: &mut Transfer, tag: u64) -> (squeue::Entry, Option<squeue::Entry>) {
    let fd = types::Fd(transfer.fd());
    let is_synced = transfer.is_synced_next();
    let first = entry(transfer).user_data(2 * tag);
    if !is_synced {
        return (first, None);
    }
    (first.flags(squeue::Flags::IO_LINK), Some(sync(fd).user_data(2 * tag + 1)))
}

/// The transfer, and which of its calls it is.
fn call_of(user_data: u64) -> (usize, usize) {
    ((user_data / 2) as usize, (user_data % 2) as usize)
}

fn sync(fd: types::Fd) -> squeue::Entry {
    opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()
}

fn entry(transfer: &mut Transfer) -> squeue::Entry {
    let (fd, call, position) = (types::Fd(transfer.fd()), transfer.call(), transfer.position());
    let segments = transfer.segments();
    let count = segments.len() as u32;
    match (call, segments) {
        (Call::Sync, _) => sync(fd),
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
