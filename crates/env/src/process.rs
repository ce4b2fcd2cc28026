//! This process, and the children that it forks.
//!
//! A child of fork(2) has its parent's memory and descriptors, and only the thread that forked. It must not speak on its
//! parent's connections nor release the parent's locks, and a task of the parent's runtime never answers it. So what a
//! program holds open for its threads is an [`OfProcess`]: the child can neither reach nor drop it. And descriptors that would keep a
//! connection or a lock alive in the child, after the parent has ended, are [`ClosedInChildren`].
//!
//! Handlers of the system (pthread_atfork) note each fork; [`watch_forks`] sets them. A child that executes another program,
//! or that is made without the C library's fork, is not concerned.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use nix::libc;

/// Descriptors that can be registered at a time.
const REGISTERED: usize = 1024;
/// No descriptor.
const NONE: RawFd = -1;

/// Forks between the first ancestor that watched them and this process. It differs from that of each ancestor.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The descriptors that a child closes. A child reads it without a lock, which another thread of the parent may hold.
static DESCRIPTORS: [AtomicI32; REGISTERED] = [const { AtomicI32::new(NONE) }; REGISTERED];

/// Where the search for a free entry of [`DESCRIPTORS`] begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Runs in each child before fork(2) returns there: it calls nothing that takes a lock.
unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for descriptor in &DESCRIPTORS {
        let descriptor = descriptor.swap(NONE, Ordering::Relaxed);
        if descriptor != NONE {
            // SAFETY: what the descriptor belongs to is its parent's, and is never used in this process.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Notes forks of this process from now on. A program calls it before it opens what [`OfProcess`] protects.
///
/// # Errors
/// The system has no memory for it.
pub fn watch_forks() -> io::Result<()> {
    static WATCHED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handler is safe to call in a child of a process with several threads: it takes no lock.
    let failed =
        WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    match *failed {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// A process among its ancestors and descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process(u64);

impl Process {
    fn here() -> Process {
        Process(FORKS.load(Ordering::Relaxed))
    }
}

/// Generations of forks that have a value of their own, beside the first process.
const GENERATIONS: usize = 16;

/// A value of each process: a child does not share its parent's, of which a thread of the parent may hold a lock for ever.
/// Only after 16 generations of forks one is used again.
#[derive(Debug)]
pub struct OfEachProcess<T> {
    first: T,
    later: [OnceLock<T>; GENERATIONS],
}

impl<T: Default> OfEachProcess<T> {
    /// With the value of the first process.
    pub const fn new(first: T) -> OfEachProcess<T> {
        OfEachProcess { first, later: [const { OnceLock::new() }; GENERATIONS] }
    }

    /// The value of this process, and how many forks are between the first one and this one.
    pub fn get(&self) -> (&T, u32) {
        let Process(forks) = Process::here();
        match (forks as usize).checked_sub(1) {
            None => (&self.first, 0),
            Some(at) => (self.later[at % GENERATIONS].get_or_init(T::default), forks as u32),
        }
    }
}

/// Give up: a parent of this process has opened it, and only that one can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forked {
    /// The process that opened it.
    opener: u32,
}

impl fmt::Display for Forked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opener = self.opener;
        write!(f, "process {opener} opened this, and then forked this process: open it here anew")
    }
}

impl std::error::Error for Forked {}

/// A value of the process that made it. A child can neither reach nor drop it: there it stays as it was at the fork.
pub struct OfProcess<T> {
    /// `None` only during the drop.
    value: Option<T>,
    process: Process,
    opener: u32,
}

impl<T: fmt::Debug> fmt::Debug for OfProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Ok(value) => value.fmt(f),
            Err(forked) => forked.fmt(f),
        }
    }
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> OfProcess<T> {
        let opener = std::process::id();
        OfProcess { value: Some(value), process: Process::here(), opener }
    }

    /// Whether the value is of this process.
    pub fn is_here(&self) -> bool {
        self.process == Process::here()
    }

    /// The value.
    ///
    /// # Errors
    /// [`Forked`] in a child of the process that made it.
    pub fn get(&self) -> Result<&T, Forked> {
        match &self.value {
            Some(value) if self.is_here() => Ok(value),
            _ => Err(Forked { opener: self.opener }),
        }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            // Its drop might wait for a thread that only the parent has, or speak on the parent's connections.
            std::mem::forget(self.value.take());
        }
    }
}

/// A descriptor that children close as soon as they are forked, until this is dropped. It is dropped before the descriptor
/// is closed, since its number may then be another one's.
///
/// Closing it in the child has no effect on the parent's. Left open, it would keep a connection alive, and the locks of a file, for as
/// long as the child runs, although the parent has died.
#[derive(Debug)]
pub struct ClosedInChildren {
    /// Its place; `None` when there are too many: then a child keeps it open.
    place: Option<usize>,
    descriptor: RawFd,
}

impl ClosedInChildren {
    /// Has children close a descriptor.
    pub fn new(descriptor: &impl AsFd) -> ClosedInChildren {
        let descriptor = descriptor.as_fd().as_raw_fd();
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = (0..REGISTERED).map(|step| first.wrapping_add(step) % REGISTERED).find(|at| {
            let (new, order) = (descriptor, Ordering::Relaxed);
            DESCRIPTORS[*at].compare_exchange(NONE, new, order, order).is_ok()
        });
        ClosedInChildren { place, descriptor }
    }
}

impl Drop for ClosedInChildren {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            // In a child the place may have another descriptor already.
            let (old, order) = (self.descriptor, Ordering::Relaxed);
            let _ = DESCRIPTORS[place].compare_exchange(old, NONE, order, order);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Whether `work` holds in a child.
    fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child takes no lock and ends at once.
        match unsafe { libc::fork() } {
            0 => {
                let failed = !work();
                // SAFETY: no handlers of the parent's exit run.
                unsafe { libc::_exit(failed.into()) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the status is a place for it.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                status == 0
            }
        }
    }

    struct Noted<'a>(&'a AtomicBool);

    impl Drop for Noted<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_child_neither_reaches_nor_drops_what_is_its_parents() {
        watch_forks().unwrap();
        let dropped = AtomicBool::new(false);
        let mut value = Some(OfProcess::new(Noted(&dropped)));
        assert!(value.as_ref().unwrap().get().is_ok());
        assert!(in_child(|| {
            let inherited = value.take().unwrap();
            let own = OfProcess::new(5);
            let refused = inherited.get().is_err();
            drop(inherited);
            // What the child has made is not that of its own child.
            refused
                && !dropped.load(Ordering::Relaxed)
                && own.get() == Ok(&5)
                && in_child(|| own.get().is_err())
        }));
        drop(value);
        assert!(dropped.load(Ordering::Relaxed));
    }

    #[test]
    fn a_child_closes_descriptors_that_are_registered_and_no_others() {
        watch_forks().unwrap();
        let files = [(); 2].map(|()| File::open("/dev/null").unwrap());
        let [private, shared] = files.each_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: no memory is accessed.
        let is_open = |descriptor| unsafe { libc::fcntl(descriptor, libc::F_GETFD) } >= 0;
        let registered = ClosedInChildren::new(&files[0]);
        assert!(in_child(|| !is_open(private) && is_open(shared)));
        assert!(is_open(private));
        drop(registered);
        assert!(in_child(|| is_open(private)));
    }

    #[test]
    fn each_process_has_a_value_of_its_own() {
        static VALUES: OfEachProcess<AtomicU64> = OfEachProcess::new(AtomicU64::new(7));
        watch_forks().unwrap();
        let (value, process) = VALUES.get();
        assert_eq!(value.load(Ordering::Relaxed), 7);
        assert!(in_child(|| {
            let (own, here) = VALUES.get();
            own.load(Ordering::Relaxed) == 0 && here != process
        }));
    }
}
