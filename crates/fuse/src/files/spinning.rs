//! Waits for the kernel's next request without going to sleep, for a short while.
//!
//! A program that makes one request after the other waits for two wake-ups with each: of the thread that takes the request, and
//! its own. Where processors that have nothing to do are halted, as in virtual machines, a wake-up takes longer than most
//! requests. So a thread that has answered one looks for the next one a little longer. It does so less and less often while none
//! comes, and lets everything else run that could run on its processor.

use std::cell::Cell;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thalweg_env::Env;

/// After one wait in vain a thread leaves out the next one, after two in a row three of them, then seven and so on; more than
/// this many in a row make no difference.
const MOST_MISSES: u32 = 6;

/// How a thread's waits went.
#[derive(Clone, Copy, Default)]
struct Luck {
    /// So many of the last ones were in vain.
    misses: u32,
    /// So many of the next ones are left out.
    left_out: u32,
}

thread_local! {
    static LUCK: Cell<Luck> = const { Cell::new(Luck { misses: 0, left_out: 0 }) };
}

impl Luck {
    /// Whether to wait now.
    fn tries(&mut self) -> bool {
        let leaves_out = self.left_out > 0;
        self.left_out = self.left_out.saturating_sub(1);
        !leaves_out
    }

    fn waited(&mut self, came: bool) {
        self.misses = if came { 0 } else { (self.misses + 1).min(MOST_MISSES) };
        self.left_out = (1 << self.misses) - 1;
    }
}

/// The waits of all threads of a mount.
pub(super) struct Spinning {
    env: Env,
    /// The longest wait.
    most: Duration,
    /// The device of the mount, when there is one.
    device: OnceLock<OwnedFd>,
    /// A thread waits.
    is_busy: AtomicBool,
}

impl Spinning {
    pub(super) fn new(env: &Env, most: Duration) -> Spinning {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // On the only one the program could not run meanwhile.
        let most = if cores > 1 { most } else { Duration::ZERO };
        Spinning {
            env: env.clone(),
            most,
            device: OnceLock::new(),
            is_busy: AtomicBool::new(false),
        }
    }

    /// Threads may wait from now on, for requests from this device.
    pub(super) fn begin(&self, device: BorrowedFd<'_>) -> std::io::Result<()> {
        let _ = self.device.set(device.try_clone_to_owned()?);
        Ok(())
    }

    /// Returns when a request waits, or soon.
    pub(super) fn wait(&self) {
        let Some(device) = self.device.get().filter(|_| !self.most.is_zero()) else { return };
        let mut luck = LUCK.get();
        if luck.tries() && !self.is_busy.swap(true, Ordering::Acquire) {
            luck.waited(self.comes(device));
            self.is_busy.store(false, Ordering::Release);
        }
        LUCK.set(luck);
    }

    fn comes(&self, device: &OwnedFd) -> bool {
        let begun = self.env.now();
        loop {
            if has_request(device) {
                return true;
            }
            if self.env.now().since(begun) >= self.most {
                return false;
            }
            // This lets other threads run on the processor.
            std::thread::yield_now();
        }
    }
}

fn has_request(device: &OwnedFd) -> bool {
    let mut polled = libc::pollfd { fd: device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the descriptor is open, and the call writes to this one structure alone.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn it_waits_less_often_while_that_is_in_vain() {
        let mut luck = Luck::default();
        let mut tried = Vec::new();
        for turn in 0..200 {
            if luck.tries() {
                tried.push(turn);
                luck.waited(false);
            }
        }
        assert_eq!(tried, [0, 2, 6, 14, 30, 62, 126, 190]);
        while !luck.tries() {}
        luck.waited(true);
        assert!(luck.tries());
    }

    #[test]
    fn a_request_that_waits_ends_the_wait_and_is_left() {
        let (read, mut write) = std::io::pipe().unwrap();
        let spinning = Spinning {
            env: Env::real(),
            most: Duration::from_micros(10),
            device: OnceLock::new(),
            is_busy: AtomicBool::new(false),
        };
        let misses = || {
            spinning.wait();
            LUCK.get().misses
        };
        assert_eq!(misses(), 0, "there is no device");
        spinning.begin(read.as_fd()).unwrap();
        assert_eq!(misses(), 1);
        write.write_all(b"a request").unwrap();
        assert_eq!(misses(), 1, "one is left out");
        assert_eq!(misses(), 0);
        assert_eq!(misses(), 0);
        spinning.is_busy.store(true, Ordering::Relaxed);
        drop((write, read));
        assert_eq!(misses(), 0, "another thread waits");
    }
}
